//! Triggers that ask for what they must not have: refused, counted, and nothing else.

use shmccl::channel::{Channel, PortChannel, RefusalReason};
use shmccl::heap::SegmentCells;
use shmccl::sync::atomic::AtomicU64;
use shmccl::{Communicator, Rank, Result};
use shmccl_proxy::{
    Fifo, FifoHeader, Push, SharedProducer, Slot, Transfer, TransferLen, Trigger, TriggerKind,
};

use crate::harness::Job;

/// A way into a fifo of a rank past everything that a channel checks.
pub(crate) type Raw = SharedProducer<shmccl::shm::CellRef<FifoHeader>, shmccl::shm::CellSlice<Slot>>;

pub(crate) fn cells(comm: &Communicator) -> SegmentCells {
    SegmentCells::new(comm.heap().view().window().mapping(comm.rank()).unwrap().clone()).unwrap()
}

pub(crate) fn raw_producer(comm: &Communicator, fifo: u32) -> Raw {
    let fifo = cells(comm).fifo(fifo).unwrap();
    Fifo::new(fifo.header, fifo.slots).unwrap().shared_producer().unwrap()
}

/// The fifo of a rank that channels share once each of the others has one to itself.
pub(crate) const SHARED: u32 = 7;

/// A port channel in the fifo [`SHARED`], and those that keep it out of the others.
pub(crate) fn sharing(comm: &Communicator, peer: Rank) -> Result<(PortChannel, Vec<PortChannel>)> {
    let others: Result<Vec<_>> = (0..SHARED).map(|_| comm.port_channel(peer)).collect();
    Ok((comm.port_channel(peer)?, others?))
}

pub(crate) fn push(producer: &mut Raw, trigger: Trigger) {
    while producer.try_push(trigger).is_err() {
        std::thread::yield_now();
    }
}

/// Word by word, so that nothing is checked on the way.
fn forged(kind: u64, ids: (u64, u64), offsets: (u64, u64), len: u64, semaphore: u64) -> Trigger {
    let ((source, target), (from, to)) = (ids, offsets);
    Trigger::from_words([len | from << 32, to | source << 32 | target << 41 | semaphore << 50 | kind << 60])
}

fn refused(comm: &Communicator) -> Result<u64> {
    Ok(comm.fifo_snapshots()?[SHARED as usize].refused)
}

port_scenario!(a_forged_trigger_is_refused_and_the_proxy_lives_on, Job::of(2), |comm| {
    const DATA: u64 = 1;
    const SIGNAL: u64 = 2;
    const FLUSH: u64 = 4;
    const ADD: u64 = 1;
    const ADD_LONG: u64 = 1 | 1 << 5;
    const MAX: u64 = u32::MAX as u64;
    let guard = comm.alloc::<u64>(1 << 15)?;
    guard.fill(0x6a6a_6a6a_6a6a_6a6a);
    let (source, target) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    comm.barrier()?;
    let peer = comm.right();
    let (mut channel, mut others) = sharing(comm, peer)?;
    let mut producer = raw_producer(comm, SHARED);
    let usage = comm.heap_usage();
    let (backed, len) = (usage.committed, usage.len);
    assert!(backed < len);
    let (own, other) = (u64::from(comm.rank().get()), u64::from(peer.get()));
    let stranger = u64::from(comm.n_ranks()) * 16;
    let (from, to) = (RefusalReason::Source, RefusalReason::Target);
    let bad = [
        (RefusalReason::NoKind, forged(0, (own, other), (0, 0), 8, 0)),
        (RefusalReason::NoKind, forged(0, (0, 0), (0, 1), 0, 0)),
        (RefusalReason::NoKind, forged(0, (0, other), (0, 0), 1, 6)),
        (to, forged(0, (0, 2), (0, 0), 1, ADD)),
        (to, forged(0, (0, other), (0, 2), 1, ADD)),
        (to, forged(0, (0, other), (0, 4), 1, ADD_LONG)),
        (to, forged(0, (0, other), (0, backed), 1, ADD)),
        (to, forged(0, (0, other), (0, backed - 4), 1, ADD_LONG)),
        (to, forged(0, (0, own), (0, MAX), 1, ADD_LONG)),
        (from, forged(DATA, (2, other), (0, 0), 8, 0)),
        (from, forged(DATA, (511, 511), (0, 0), 8, 0)),
        (to, forged(DATA, (own, 2), (0, 0), 8, 0)),
        (to, forged(DATA, (own, 511), (0, 0), 1, 0)),
        (from, forged(DATA, (own, other), (backed, 0), 1, 0)),
        (from, forged(DATA, (own, other), (backed - 1, 0), 2, 0)),
        (to, forged(DATA, (own, other), (0, backed - 1), 2, 0)),
        (to, forged(DATA, (own, other), (0, len), 1, 0)),
        (to, forged(DATA, (own, own), (0, MAX), 1, 0)),
        (from, forged(DATA, (other, own), (MAX, 0), MAX, 0)),
        (from, forged(DATA, (own, other), (0, 0), MAX, 0)),
        (from, forged(DATA, (own, other), (0, 0), backed + 1, 0)),
        (to, forged(DATA | SIGNAL | FLUSH, (own, other), (0, backed), 8, other * 16)),
        (RefusalReason::Semaphore, forged(SIGNAL, (0, 0), (0, 0), 0, stranger)),
        (RefusalReason::Semaphore, forged(SIGNAL, (0, 0), (0, 0), 0, 1023)),
        (RefusalReason::Semaphore, forged(DATA | SIGNAL, (own, other), (0, 0), 8, 1023)),
    ];
    for (count, (reason, trigger)) in (1..).zip(bad) {
        push(&mut producer, trigger);
        channel.flush()?;
        assert_eq!(refused(comm)?, count, "{trigger:?}");
        let last = comm.fifo_snapshots()?[SHARED as usize].last_refused.unwrap();
        assert_eq!((RefusalReason::from_code(last.code), last.trigger), (Some(reason), trigger));
    }
    // A refused FLUSH completes like any other.
    let position = producer.try_push(bad[21].1).unwrap();
    channel.signal()?;
    channel.wait()?;
    while !position.is_completed(producer.header()) {
        std::thread::yield_now();
    }
    comm.barrier()?;
    let any = others.iter_mut().chain([&mut channel]).any(Channel::poll);
    assert!(!any, "no forged trigger has signalled");
    comm.barrier()?;
    source.set(0, 41 + own)?;
    channel.put_with_signal_and_flush(target.region().offset, source.region().offset, 8)?;
    channel.wait()?;
    assert_eq!(target.get(0)?, 41 + other);
    comm.barrier()?;
    assert!(guard.to_vec().iter().all(|word| *word == 0x6a6a_6a6a_6a6a_6a6a), "something was moved");
});

port_scenario!(an_empty_transfer_of_no_memory_is_no_forgery, Job::of(2), |comm| {
    let peer = comm.right();
    let (mut channel, _others) = sharing(comm, peer)?;
    let mut producer = raw_producer(comm, SHARED);
    push(&mut producer, forged(1, (511, 511), (9, 9), 0, 0));
    channel.flush()?;
    assert_eq!(refused(comm)?, 0);
    comm.barrier()?;
});

port_scenario!(a_table_entry_that_makes_no_sense_is_refused_at_every_use, Job::of(2), |comm| {
    let buffer = comm.alloc::<u64>(2)?;
    let (mut channel, _others) = sharing(comm, comm.right())?;
    let mut producer = raw_producer(comm, SHARED);
    let id = shmccl_proxy::MemoryId::new(300).unwrap();
    let table: &[AtomicU64] = &cells(comm).memory_table();
    let transfer = {
        let len = TransferLen::new(8).unwrap();
        Transfer { len, source: id, source_offset: 0, target: id, target_offset: 0 }
    };
    let entries =
        [[1, 0, 64, 0], [u64::MAX, 0, 64, 1], [1, u64::MAX, u64::MAX, 2], [3, 0, 64, 3], [0, 0, 64, 4]];
    for (count, entry) in (1..).zip(entries) {
        for (word, value) in table[4 * 300..].iter().zip(entry) {
            shmccl::sync::plain::store(word, value);
        }
        push(
            &mut producer,
            Trigger::new(TriggerKind::DATA, transfer, shmccl_proxy::SemaphoreId::default()).unwrap(),
        );
        channel.flush()?;
        assert_eq!(refused(comm)?, count, "{entry:?}");
    }
    assert_eq!(buffer.to_vec(), [0; 2]);
    comm.barrier()?;
});
