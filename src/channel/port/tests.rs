//! Port channels over small windows, a proxy that runs, and one that does not.

use std::time::Duration;

use super::super::testing::{ALLOCATED, OWN, PEER, bytes, channel, context, mapped, proxy};
use super::*;
use crate::channel::epoch::EpochMapping;
use crate::channel::executor::Executor;
use crate::error::Error;
use crate::testing::wait_until;

/// Half of what is allocated is sent, the other half received.
const HALF: u64 = ALLOCATED / 2;

fn executor(mapped: &Arc<EpochMapping>) -> Executor {
    Executor::new(mapped, &[OWN]).unwrap()
}

fn pushed(context: &RankContext) -> u64 {
    context.mapped().cells(OWN).fifo(0).unwrap().snapshot().pushed
}

fn signals(context: &RankContext) -> u64 {
    context.mapped().semaphores(PEER)[0].value()
}

#[test]
fn a_long_put_is_split_where_windows_and_pieces_end_and_signals_once() {
    let mapped = mapped(2, |mapped| mapped.cut(1 << 16, 3000).unwrap());
    let context = context(&mapped, OWN, Duration::from_secs(20));
    let _proxy = proxy(&mapped, executor(&mapped));
    let mut channel = channel(&context);
    let data: Vec<u8> = (0..HALF).map(|index| (index * 7 % 251).to_le_bytes()[0]).collect();
    context
        .heap()
        .view()
        .span(OWN, Region::new(HeapOffset::new(0), HALF))
        .unwrap()
        .copy_in(0, &data)
        .unwrap();
    let mut sent = 0;
    // One piece, a border in the source, one in the target, more pieces than the fifo has slots.
    let cases = [(0, 0, 3000, 1), (0, 0, 3001, 2), (65_535, 0, 2, 2), (0, 65_535, 2, 2), (1, 2, 65_536, 24)];
    for (from, to, len, pieces) in cases {
        let (before, target) = (pushed(&context), HeapOffset::new(HALF + to));
        channel.put_with_signal_and_flush(target, HeapOffset::new(from), len).unwrap();
        assert_eq!(pushed(&context) - before, pieces, "{len} bytes from {from} to {to}");
        let (start, count) = (usize::try_from(from).unwrap(), usize::try_from(len).unwrap());
        assert!(bytes(&context, PEER, Region::new(target, len)) == data[start..start + count]);
        sent += 1;
        assert_eq!(signals(&context), sent);
    }
    let before = pushed(&context);
    let mut step = |kind: &str| match kind {
        "put" => channel.put(HeapOffset::new(HALF + 1), HeapOffset::new(0), HALF - 1).unwrap(),
        _ => channel.flush().unwrap(),
    };
    step("put");
    step("put");
    step("flush");
    assert!(pushed(&context) - before > 512, "the fifo was full on the way");
    let whole = bytes(&context, PEER, Region::new(HeapOffset::new(HALF + 1), HALF - 1));
    assert!(whole == data[..data.len() - 1]);
    assert_eq!(signals(&context), sent, "a put signals nothing");
}

#[test]
fn a_flush_that_failed_leaves_the_channel_unflushed_and_its_slot_taken() {
    let mapped = mapped(2, |mapped| mapped);
    let context = context(&mapped, OWN, Duration::from_millis(20));
    // Nobody serves the fifo: a SIGNAL stays in it, which the next channel in this slot would
    // overtake.
    let mut first = channel(&context);
    first.signal().unwrap();
    assert!(matches!(first.flush(), Err(Error::Timeout { operation: "flush", awaited: None, .. })));
    drop(first);
    let second = channel(&context);
    assert_eq!(second.slot.number, 1);
    drop(second);
    assert_eq!(channel(&context).slot.number, 1, "one that pushed nothing leaves its slot");
    let _proxy = proxy(&mapped, executor(&mapped));
    let mut last = channel(&context);
    // The proxy may take longer to get going than this waits.
    wait_until("the proxy serves what was pushed", || {
        let done = last.flush();
        assert!(matches!(done, Ok(()) | Err(Error::Timeout { .. })), "{done:?}");
        done.is_ok()
    });
    assert_eq!(signals(&context), 1);
}

#[test]
fn a_channel_that_outlives_its_proxy_is_told_so_at_once() {
    let mapped = mapped(2, |mapped| mapped);
    let context = context(&mapped, OWN, Duration::from_secs(3600));
    let mut channel = channel(&context);
    let life =
        crate::shm::LifeLock::take(*mapped.kernel(), mapped.control().lives(), None, OWN, |_| {}).unwrap();
    drop(proxy(&mapped, executor(&mapped)));
    drop(life);
    channel.signal().unwrap();
    assert!(matches!(channel.flush(), Err(Error::ProxyLost)));
    // Nor does dropping it wait for an hour.
}

#[test]
fn a_stopped_proxy_has_executed_what_was_pushed_before() {
    let mapped = mapped(2, |mapped| mapped);
    let context = context(&mapped, OWN, Duration::from_secs(20));
    for round in 1..50 {
        let proxy = proxy(&mapped, executor(&mapped));
        let mut channel = channel(&context);
        for _ in 0..round {
            channel.signal().unwrap();
        }
        drop(proxy);
        assert_eq!(signals(&context), (1..=round).sum::<u64>());
        channel.pending = false;
    }
}
