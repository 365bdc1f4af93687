//! The switch channel: all members' buffers read as one, and written as one.

use std::time::Duration;

use half::bf16;
use shmccl::channel::Channel;
use shmccl::comm::SwitchChannel;
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::{Bool, Complex128, CustomOp, DataType, Element, ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Error, Result};

use crate::harness::{Job, Random, meet_at_last};

/// Elements of each buffer.
const LEN: usize = 10_000;

/// A buffer at an offset of this rank's own: a part of a larger one.
fn own_part<T: Element>(comm: &mut Communicator) -> Result<DeviceBuffer<T>> {
    let me = comm.rank().index();
    let room = comm.alloc::<T>(LEN + 1000)?;
    comm.buffer(room.part(me * 7, LEN)?)
}

/// Reduces, broadcasts, and does both, against the collective operation on the same values.
fn agrees<T: Element + PartialEq + std::fmt::Debug>(
    comm: &mut Communicator,
    op: &ReduceOp,
    value: impl Fn(usize, usize) -> T,
) -> Result<()> {
    let me = comm.rank().index();
    let values: Vec<T> = (0..LEN).map(|index| value(me, index)).collect();
    let mut expected = vec![T::zeroed(); LEN];
    comm.all_reduce(&values, &mut expected, op)?;
    let (buffer, kept) = (own_part::<T>(comm)?, comm.alloc::<T>(LEN)?);
    let mut switch = comm.switch_channel(&buffer)?;
    assert_eq!((switch.len(), switch.is_empty()), (LEN, false));
    buffer.copy_from_slice(0, &values)?;
    switch.barrier()?;
    for (at, count) in [(0, 0), (LEN, 0), (0, 1), (3, 77), (LEN - 1, 1), (0, LEN)] {
        let mut slice = vec![T::zeroed(); count];
        switch.reduce(at, &mut slice, op)?;
        assert!(slice == expected[at..at + count], "{op} of {count} at {at} into a slice");
        let part = comm.buffer::<T>(kept.part(0, count)?)?;
        switch.reduce(at, &part, op)?;
        assert!(part.to_vec() == expected[at..at + count], "{op} of {count} at {at} into the heap");
    }
    switch.barrier()?;
    switch.reduce_broadcast(switch.share(LEN), op)?;
    switch.barrier()?;
    assert!(buffer.to_vec() == expected, "{op} by shares");
    Ok(())
}

/// Small whole numbers that every type holds, and whose sums every type holds for a few ranks.
fn small(rank: usize, index: usize) -> u8 {
    u8::try_from((rank * 5 + index) % 3).unwrap()
}

fn everything(comm: &mut Communicator) -> Result<()> {
    let max = CustomOp::new::<i64>("greatest", |into, from| {
        for (into, from) in into.iter_mut().zip(from) {
            *into = (*into).max(*from);
        }
    });
    for op in ReduceOp::PLAIN {
        if op.supports(DataType::F32) {
            agrees::<f32>(comm, &op, |rank, index| f32::from(small(rank, index)) + 0.25)?;
        }
        agrees::<u8>(comm, &op, small)?;
    }
    agrees::<Bool>(comm, &ReduceOp::BitXor, |rank, index| Bool(small(rank, index)))?;
    let complex = |rank, index| Complex128 { re: small(rank, index).into(), im: small(index, rank).into() };
    agrees::<Complex128>(comm, &ReduceOp::PreMulSum(Scalar::new(0.5_f64)), complex)?;
    agrees::<i64>(comm, &ReduceOp::Custom(max), |rank, index| i64::from(small(rank, index)) - 1)?;
    agrees::<bf16>(comm, &ReduceOp::Sum, |rank, index| bf16::from_f32(small(rank, index).into()))?;
    let scaled = ReduceOp::PreMulSum(Scalar::new(0.5_f64));
    agrees::<f64>(comm, &scaled, |rank, index| small(rank, index).into())
}

scenario!(one_rank_is_a_switch_of_its_own, Job::of(1).heap_len(64 << 20), |comm| {
    everything(comm)?;
});
scenario!(two_ranks_reduce_and_broadcast, Job::of(2).heap_len(64 << 20), |comm| {
    everything(comm)?;
});
scenario!(five_ranks_reduce_and_broadcast, Job::of(5).heap_len(64 << 20), |comm| {
    everything(comm)?;
});

/// Every member stores its number to its place, from a slice and from the heap.
fn tell_all(
    comm: &mut Communicator,
    switch: &mut SwitchChannel<u32>,
    buffer: &DeviceBuffer<u32>,
) -> Result<()> {
    let (me, n) = (comm.rank(), comm.n_ranks() as usize);
    let number = comm.members()[me.index()].get();
    switch.broadcast(3 * me.index(), &[number, number + 100])?;
    switch.barrier()?;
    for (member, rank) in comm.members().iter().enumerate() {
        assert_eq!([buffer.get(3 * member)?, buffer.get(3 * member + 1)?], [rank.get(), rank.get() + 100]);
    }
    switch.barrier()?;
    let own = comm.buffer::<u32>(buffer.part(3 * me.index(), 2)?)?;
    switch.broadcast(3 * (n + me.index()), &own)?;
    switch.barrier()?;
    for (member, rank) in comm.members().iter().enumerate() {
        assert_eq!(buffer.get(3 * (n + member) + 1)?, rank.get() + 100);
    }
    Ok(())
}

scenario!(stores_reach_all_members_also_of_a_derived_communicator, Job::of(4).heap_len(64 << 20), |comm| {
    let buffer = own_part::<u32>(comm)?;
    let mut switch = comm.switch_channel(&buffer)?;
    tell_all(comm, &mut switch, &buffer)?;
    let mut half = comm.split(Some(comm.rank().get() % 2), -1)?.unwrap();
    let mut switch = half.switch_channel(&buffer)?;
    half.barrier()?;
    tell_all(&mut half, &mut switch, &buffer)?;
});

scenario!(what_does_not_fit_is_refused_and_all_members_learn_of_it, Job::of(3).heap_len(64 << 20), |comm| {
    let me = comm.rank().get();
    let (long, short) = (comm.alloc::<u32>(100)?, comm.alloc::<u32>(99)?);
    let differ = |error: Option<Error>| matches!(error, Some(Error::Mismatch { .. }));
    let unequal = if me == 1 { comm.switch_channel(&short) } else { comm.switch_channel(&long) };
    assert!(differ(unequal.err()), "buffers of two lengths");
    let floats = comm.buffer::<f32>(long.region())?;
    let unequal = match me {
        1 => comm.switch_channel(&floats).err(),
        _ => comm.switch_channel(&long).err(),
    };
    assert!(differ(unequal), "buffers of two types");
    let switch = comm.switch_channel(&long)?;
    for (at, count) in [(100, 1), (0, 101), (101, 0), (usize::MAX, 1)] {
        let mut values = vec![0_u32; count];
        let refused = [
            switch.reduce(at, &mut values, &ReduceOp::Sum),
            switch.broadcast(at, &values),
            switch.reduce_broadcast(at..at.saturating_add(count), &ReduceOp::Sum),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::OutOfRange { .. })), "{count} at {at}: {result:?}");
        }
    }
    let other_type = ReduceOp::PreMulSum(Scalar::new(1.0_f32));
    let refused = switch.reduce(0, &mut [0; 2], &other_type);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    // One rank has no channel left to its neighbour.
    let mut held = Vec::new();
    if me == 0 {
        while let Ok(channel) = comm.memory_channel(comm.right()) {
            held.push(channel);
        }
    }
    let error = comm.switch_channel(&long).unwrap_err();
    match me {
        0 => assert!(matches!(error, Error::Exhausted { .. }), "{error}"),
        _ => assert!(matches!(error, Error::FailedElsewhere { rank, .. } if rank.get() == 0), "{error}"),
    }
    drop(held);
    comm.switch_channel(&long)?.barrier()?;
});

scenario!(
    switch_channels_that_threads_open_at_once_do_not_hear_each_other,
    Job::of(3).heap_len(64 << 20),
    |comm| {
        let (me, n) = (comm.rank().get(), comm.n_ranks());
        let mut others =
            [comm.duplicate()?, comm.split(Some(0), -i64::from(me))?.unwrap(), comm.duplicate()?];
        let buffers = [comm.alloc::<u32>(64)?, comm.alloc::<u32>(64)?, comm.alloc::<u32>(64)?];
        let use_switch = |comm: &mut Communicator, buffer: &DeviceBuffer<u32>, seed: u64| -> Result<()> {
            let mut random = Random(seed);
            for round in 0..30 {
                // So that threads come in different orders on different ranks.
                for _ in 0..random.below(500) {
                    std::hint::spin_loop();
                }
                let mut switch = comm.switch_channel(buffer)?;
                for turn in round..round + 3 {
                    buffer.fill(turn + me);
                    switch.barrier()?;
                    let mut sum = [0; 64];
                    switch.reduce(0, &mut sum, &ReduceOp::Sum)?;
                    assert_eq!(sum, [n * turn + n * (n - 1) / 2; 64]);
                    switch.barrier()?;
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(others.iter_mut().zip(&buffers))
                .map(|(index, (comm, buffer))| {
                    scope.spawn(move || use_switch(comm, buffer, index << 8 | u64::from(me)))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })?;
    }
);

scenario!(
    a_switch_channel_does_not_take_the_slot_that_one_side_has_left,
    Job::of(2).heap_len(64 << 20),
    |comm| {
        let buffer = comm.alloc::<u32>(1)?;
        let mut held: Vec<_> =
            (0..3).map(|_| comm.switch_channel(&buffer).map(Some)).collect::<Result<_>>()?;
        match comm.rank().get() {
            0 => drop(held[0].take()),
            _ => drop((held[1].take(), held[2].take())),
        }
        let (mut one, mut two) = (comm.switch_channel(&buffer)?, comm.switch_channel(&buffer)?);
        drop(held);
        let mut three = comm.switch_channel(&buffer)?;
        for switch in [&mut one, &mut three, &mut two] {
            switch.barrier()?;
        }
        // Nor do they count among those that the ranks open alone.
        let (mut own, peer) = (comm.memory_channel(comm.right())?, comm.right());
        own.signal()?;
        assert_eq!(own.peer(), peer);
        own.wait()?;
    }
);

scenario!(
    what_a_dropped_switch_channel_has_not_waited_for_the_next_one_does_not_hear,
    Job::of(2).timeout(Duration::from_secs(2)),
    |comm| {
        let buffer = comm.alloc::<u32>(1)?;
        let mut first = comm.switch_channel(&buffer)?;
        first.signal()?;
        drop(first);
        let mut second = comm.switch_channel(&buffer)?;
        let unheard = second.wait();
        assert!(matches!(unheard, Err(Error::Timeout { .. })), "{unheard:?}");
        meet_at_last(comm);
    }
);
