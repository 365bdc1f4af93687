//! Atomic operations that a proxy carries out, beside direct ones.

use std::num::Wrapping;

use shmccl::channel::{Channel, PortChannel};
use shmccl::heap::HeapOffset;
use shmccl::symmetric::{Comparison, IntegerAtom};
use shmccl::{Error, Result, Symmetric};

use crate::harness::Job;

/// Has the proxy do all operations on a word of the peer, and holds each against plain arithmetic.
fn each_operation<T>(port: &mut PortChannel, all: &Symmetric, at: HeapOffset, values: [T; 2]) -> Result<()>
where
    T: IntegerAtom
        + std::fmt::Debug
        + std::ops::BitAnd<Output = T>
        + std::ops::BitOr<Output = T>
        + std::ops::BitXor<Output = T>,
    Wrapping<T>: std::ops::Add<Output = Wrapping<T>>,
{
    type Operation<T> = fn(&mut PortChannel, HeapOffset, T) -> Result<()>;
    let [a, b] = values;
    let operations: [(Operation<T>, T); 5] = [
        (PortChannel::atomic_set, b),
        (PortChannel::atomic_add, (Wrapping(a) + Wrapping(b)).0),
        (PortChannel::atomic_and, a & b),
        (PortChannel::atomic_or, a | b),
        (PortChannel::atomic_xor, a ^ b),
    ];
    for (operation, expected) in operations {
        all.set(port.peer(), at, a)?;
        operation(port, at, b)?;
        port.flush()?;
        assert_eq!(all.fetch::<T>(port.peer(), at)?, expected);
    }
    Ok(())
}

port_scenario!(each_operation_of_a_proxy_is_that_of_plain_arithmetic, Job::of(2), |comm| {
    let cells = comm.alloc::<u64>(2)?;
    let (mut port, all) = (comm.port_channel(comm.right())?, comm.symmetric());
    let at = cells.part(1, 1)?.offset;
    comm.barrier()?;
    each_operation(&mut port, &all, at, [0x8000_0000_0000_000f_u64, u64::MAX - 0x35])?;
    each_operation(&mut port, &all, at, [i64::MIN, -0x35])?;
    // The upper half of the 8 bytes stays.
    all.set(port.peer(), at, 0x0123_4567_0000_0000_u64)?;
    each_operation(&mut port, &all, at, [0x8000_000f_u32, u32::MAX - 0x35])?;
    each_operation(&mut port, &all, at, [i32::MIN, -0x35])?;
    assert_eq!(all.fetch::<u64>(port.peer(), at)? >> 32, 0x0123_4567);
    comm.barrier()?;
});

port_scenario!(an_atomic_behind_a_put_tells_that_it_has_arrived, Job::of(2), |comm| {
    let data = comm.alloc::<u64>(64)?;
    let (source, count) = (comm.alloc::<u64>(64)?, comm.alloc::<u32>(1)?);
    let (mut port, all) = (comm.port_channel(comm.right())?, comm.symmetric());
    for round in 1..100_u32 {
        source.fill(round.into());
        port.put(data.region().offset, source.region().offset, 64 * 8)?;
        port.atomic_add(count.region().offset, 1_u32)?;
        all.wait_until(count.region().offset, Comparison::Equal, round)?;
        assert!(data.to_vec().iter().all(|word| *word == u64::from(round)), "round {round}");
        port.flush()?;
        comm.barrier()?;
    }
});

port_scenario!(what_proxies_and_ranks_add_to_one_word_is_all_there, Job::of(3), |comm| {
    const TIMES: u64 = 500;
    let count = comm.alloc::<u64>(1)?;
    let at = count.region().offset;
    let (all, home) = (comm.symmetric(), comm.right());
    let mut port = comm.port_channel(home)?;
    for time in 0..TIMES {
        port.atomic_add(at, 1_u64)?;
        all.add(home, at, time)?;
    }
    port.flush()?;
    comm.barrier()?;
    assert_eq!(count.get(0)?, TIMES + TIMES * (TIMES - 1) / 2);
});

port_scenario!(a_word_that_cannot_be_changed_is_refused_before_it_is_asked_for, Job::of(2), |comm| {
    let cells = comm.alloc::<u64>(2)?;
    let at = |bytes: u64| HeapOffset::new(cells.region().offset.get() + bytes);
    let mut port = comm.port_channel(comm.right())?;
    let pushed = comm.fifo_snapshots()?.iter().map(|fifo| fifo.pushed).sum::<u64>();
    assert!(matches!(port.atomic_add(at(4), 1_u64), Err(Error::Misaligned { .. })));
    assert!(matches!(port.atomic_add(at(2), 1_u32), Err(Error::Misaligned { .. })));
    let end = HeapOffset::new(comm.heap_usage().len);
    for beyond in [end, HeapOffset::new(end.get() - 4), HeapOffset::new(u64::MAX - 7)] {
        assert!(matches!(port.atomic_set(beyond, 1_u64), Err(Error::OutOfRange { .. })));
    }
    assert_eq!(comm.fifo_snapshots()?.iter().map(|fifo| fifo.pushed).sum::<u64>(), pushed);
    port.atomic_add(at(4), 1_u32)?;
    port.flush()?;
    comm.barrier()?;
    assert_eq!(cells.get(0)?, 1 << 32);
});
