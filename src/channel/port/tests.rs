//! Port channels over small windows, a proxy that runs, and one that does not.

use std::time::Duration;

use super::super::testing::{ALLOCATED, OWN, PEER, bytes, channel, fabric, proxy, world};
use super::*;
use crate::channel::executor::Executor;
use crate::channel::world::World;
use crate::error::Error;
use crate::testing::wait_until;

/// Half of what is allocated is sent, the other half received.
const HALF: u64 = ALLOCATED / 2;

fn executor(world: &Arc<World>) -> Executor {
    Executor::new(world, &[OWN]).unwrap()
}

fn pushed(fabric: &Fabric) -> u64 {
    fabric.world().cells(OWN).fifo(0).unwrap().snapshot().pushed
}

fn signals(fabric: &Fabric) -> u64 {
    fabric.world().semaphores(PEER)[0].value()
}

#[test]
fn a_long_put_is_split_where_windows_and_pieces_end_and_signals_once() {
    let world = world(2, |world| world.cut(1 << 16, 3000).unwrap());
    let fabric = fabric(&world, OWN, Duration::from_secs(20));
    let _proxy = proxy(&world, executor(&world));
    let mut channel = channel(&fabric);
    let data: Vec<u8> = (0..HALF).map(|index| (index * 7 % 251).to_le_bytes()[0]).collect();
    fabric.heap().view().span(OWN, Region::new(HeapOffset::new(0), HALF)).unwrap().copy_in(0, &data).unwrap();
    let mut sent = 0;
    // One piece, a border in the source, one in the target, more pieces than the fifo has slots.
    let cases = [(0, 0, 3000, 1), (0, 0, 3001, 2), (65_535, 0, 2, 2), (0, 65_535, 2, 2), (1, 2, 65_536, 24)];
    for (from, to, len, pieces) in cases {
        let (before, target) = (pushed(&fabric), HeapOffset::new(HALF + to));
        channel.put_with_signal_and_flush(target, HeapOffset::new(from), len).unwrap();
        assert_eq!(pushed(&fabric) - before, pieces, "{len} bytes from {from} to {to}");
        let (start, count) = (usize::try_from(from).unwrap(), usize::try_from(len).unwrap());
        assert!(bytes(&fabric, PEER, Region::new(target, len)) == data[start..start + count]);
        sent += 1;
        assert_eq!(signals(&fabric), sent);
    }
    let before = pushed(&fabric);
    let mut step = |kind: &str| match kind {
        "put" => channel.put(HeapOffset::new(HALF + 1), HeapOffset::new(0), HALF - 1).unwrap(),
        _ => channel.flush().unwrap(),
    };
    step("put");
    step("put");
    step("flush");
    assert!(pushed(&fabric) - before > 512, "the fifo was full on the way");
    let whole = bytes(&fabric, PEER, Region::new(HeapOffset::new(HALF + 1), HALF - 1));
    assert!(whole == data[..data.len() - 1]);
    assert_eq!(signals(&fabric), sent, "a put signals nothing");
}

#[test]
fn a_flush_that_failed_leaves_the_channel_unflushed_and_its_seat_taken() {
    let world = world(2, |world| world);
    let fabric = fabric(&world, OWN, Duration::from_millis(20));
    // Nobody serves the fifo: a SIGNAL stays in it, which whoever sat here next would overtake.
    let mut first = channel(&fabric);
    first.signal().unwrap();
    assert!(matches!(first.flush(), Err(Error::Timeout { operation: "flush", awaited: None, .. })));
    drop(first);
    let second = channel(&fabric);
    assert_eq!(second.seat.number, 1);
    drop(second);
    assert_eq!(channel(&fabric).seat.number, 1, "one that pushed nothing leaves its seat");
    let _proxy = proxy(&world, executor(&world));
    let mut last = channel(&fabric);
    // The proxy may take longer to get going than this waits.
    wait_until("the proxy serves what was pushed", || {
        let done = last.flush();
        assert!(matches!(done, Ok(()) | Err(Error::Timeout { .. })), "{done:?}");
        done.is_ok()
    });
    assert_eq!(signals(&fabric), 1);
}

#[test]
fn a_channel_that_outlives_its_proxy_is_told_so_at_once() {
    let world = world(2, |world| world);
    let fabric = fabric(&world, OWN, Duration::from_secs(3600));
    let mut channel = channel(&fabric);
    let life = crate::shm::LifeLock::take(*world.kernel(), world.control().lives(), OWN, |_| {}).unwrap();
    drop(proxy(&world, executor(&world)));
    drop(life);
    channel.signal().unwrap();
    assert!(matches!(channel.flush(), Err(Error::ProxyLost)));
    // Nor does dropping it wait for an hour.
}

#[test]
fn a_stopped_proxy_has_executed_what_was_pushed_before() {
    let world = world(2, |world| world);
    let fabric = fabric(&world, OWN, Duration::from_secs(20));
    for round in 1..50 {
        let proxy = proxy(&world, executor(&world));
        let mut channel = channel(&fabric);
        for _ in 0..round {
            channel.signal().unwrap();
        }
        drop(proxy);
        assert_eq!(signals(&fabric), (1..=round).sum::<u64>());
        channel.pending = false;
    }
}
