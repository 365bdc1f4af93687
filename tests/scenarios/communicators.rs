//! Communicators that are derived from others: who is in them, that they do not disturb each other,
//! and that nothing is left of them.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::collective::CallMismatch;
use shmccl::collective::{ChannelKind, Operation};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Rank, Result};

use crate::harness::{Job, Random, rank};

/// The ranks of the job that are members.
pub(crate) fn members(comm: &Communicator) -> Vec<u32> {
    comm.members().iter().map(|rank| rank.get()).collect()
}

/// Sums a number of each member: through posts, eager slots, and the scratch.
pub(crate) fn check_sum(comm: &mut Communicator) -> Result<()> {
    let value = |rank: u32| u64::from(rank) * 3 + 1;
    let expected: u64 = members(comm).into_iter().map(value).sum();
    for count in [0, 1, 12, 1000, 70_000] {
        let mut data = vec![value(members(comm)[comm.rank().index()]); count];
        comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
        assert!(data.iter().all(|&sum| sum == expected), "{count} elements among {:?}", comm.members());
    }
    Ok(())
}

fn halves(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank().get(), comm.n_ranks());
    let mut half = comm.split(Some(me % 2), 0)?.expect("every rank has a colour");
    assert_eq!(members(&half), (me % 2..n).step_by(2).collect::<Vec<_>>());
    assert_eq!((half.rank().get(), half.n_ranks()), (me / 2, (n + 1 - me % 2) / 2));
    check_sum(&mut half)?;
    check_sum(comm)?;
    // Around a ring of the half, by its own numbers; where there are two, both ways lead to the
    // same channel.
    if half.n_ranks() > 2 {
        let (mut right, mut left) = (half.memory_channel(half.right())?, half.memory_channel(half.left())?);
        assert_eq!(right.peer(), half.members()[half.right().index()]);
        right.signal()?;
        left.wait()?;
    }
    half.finalize()?;
    check_sum(comm)
}

scenario!(two_ranks_part, Job::of(2).heap_len(64 << 20), |comm| {
    halves(comm)?;
});
scenario!(three_ranks_part, Job::of(3).heap_len(64 << 20), |comm| {
    halves(comm)?;
});
scenario!(seven_ranks_part, Job::of(7).heap_len(64 << 20), |comm| {
    halves(comm)?;
});
scenario!(eight_ranks_part, Job::of(8).heap_len(64 << 20), |comm| {
    halves(comm)?;
});

scenario!(keys_decide_the_order_and_ranks_between_equal_keys, Job::of(5).heap_len(64 << 20), |comm| {
    let me = comm.rank().get();
    let mut turned = comm.split(Some(0), -i64::from(me))?.unwrap();
    assert_eq!((members(&turned), turned.rank().get()), (vec![4, 3, 2, 1, 0], 4 - me));
    check_sum(&mut turned)?;
    let mut gathered = vec![0; 5];
    turned.all_gather(&[me], &mut gathered)?;
    assert_eq!(gathered, [4, 3, 2, 1, 0]);
    // Extreme keys, two by two.
    let key = [i64::MAX, i64::MIN, 0, i64::MIN, i64::MAX][me as usize];
    let mixed = turned.split(Some(u32::MAX), key)?.unwrap();
    assert_eq!(members(&mixed), [3, 1, 2, 4, 0]);
});

scenario!(whoever_names_no_colour_takes_part_and_gets_nothing, Job::of(4).heap_len(64 << 20), |comm| {
    let me = comm.rank().get();
    let some = comm.split((me % 2 == 1).then_some(7), 0)?;
    assert_eq!(some.as_ref().map(members), (me % 2 == 1).then(|| vec![1, 3]));
    some.map_or(Ok(()), |mut comm| check_sum(&mut comm))?;
    assert!(comm.split(None, 0)?.is_none(), "nobody has a colour");
    let mut alone = comm.split(Some(me), 0)?.unwrap();
    assert_eq!(members(&alone), [me]);
    check_sum(&mut alone)?;
});

scenario!(
    communicators_are_used_by_turns_and_derived_from_derived_ones,
    Job::of(6).heap_len(128 << 20),
    |comm| {
        let me = comm.rank().get();
        let mut twin = comm.duplicate()?;
        let mut half = twin.split(Some(me / 3), -i64::from(me))?.unwrap();
        let mut pair = half.split(Some(half.rank().get() / 2), 0)?.unwrap();
        let expected = [vec![0], vec![2, 1], vec![2, 1], vec![3], vec![5, 4], vec![5, 4]];
        assert_eq!(members(&pair), expected[me as usize]);
        for _ in 0..5 {
            for comm in [&mut *comm, &mut twin, &mut half, &mut pair] {
                check_sum(comm)?;
                comm.barrier()?;
            }
        }
        // A parent may go first.
        drop(half);
        check_sum(&mut pair)?;
        twin.finalize()?;
        check_sum(&mut pair)?;
    }
);

scenario!(communicators_are_used_by_threads_at_once, Job::of(3).heap_len(64 << 20), |comm| {
    let mut others =
        [comm.duplicate()?, comm.duplicate()?, comm.split(Some(comm.rank().get() / 2), 0)?.unwrap()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = others
            .iter_mut()
            .map(|other| scope.spawn(|| (0..5).try_for_each(|_| check_sum(other))))
            .collect();
        (0..5).try_for_each(|_| check_sum(comm))?;
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
});

port_scenario!(proxied_collectives_run_in_a_derived_communicator, Job::of(4).heap_len(64 << 20), |comm| {
    comm.set_channel_kind(ChannelKind::Port)?;
    let mut half = comm.split(Some(comm.rank().get() % 2), 0)?.unwrap();
    check_sum(&mut half)?;
    check_sum(comm)?;
    half.finalize()?;
    check_sum(comm)?;
});

/// Derives from each of `comms` in a thread of its own, so many times, and uses what comes of it.
fn derive_at_once(comms: &mut [Communicator], rounds: u64) -> Result<()> {
    let derive = |comm: &mut Communicator, seed: u64| {
        let mut random = Random(seed);
        for round in 0..rounds {
            // So that threads come in different orders on different ranks.
            for _ in 0..random.below(200) {
                std::hint::spin_loop();
            }
            let mut twin = comm.duplicate()?;
            check_sum(&mut twin)?;
            // With a meeting at the end, and without one.
            if round % 2 == 0 { twin.finalize()? } else { drop(twin) }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(comms)
            .map(|(index, comm)| {
                let seed = index << 8 | u64::from(comm.rank().get());
                scope.spawn(move || derive(comm, seed))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

port_scenario!(
    threads_derive_proxied_communicators_at_once,
    Job::of(3).heap_len(128 << 20).timeout(Duration::from_secs(20)),
    |comm| {
        comm.set_channel_kind(ChannelKind::Port)?;
        let mut parents = [comm.duplicate()?, comm.split(Some(0), -i64::from(comm.rank().get()))?.unwrap()];
        derive_at_once(&mut parents, 20)?;
    }
);

port_scenario!(
    proxied_communicators_that_are_left_at_different_times_do_not_stand_in_the_way,
    Job::of(2).heap_len(128 << 20),
    |comm| {
        comm.set_channel_kind(ChannelKind::Port)?;
        let mut held: Vec<_> = (0..4).map(|_| comm.duplicate().map(Some)).collect::<Result<_>>()?;
        // What is free on either side differs, but for one.
        match comm.rank().get() {
            0 => drop((held[0].take(), held[2].take(), held[3].take())),
            _ => drop((held[1].take(), held[3].take())),
        }
        check_sum(&mut comm.duplicate()?)?;
        let mut next = comm.duplicate()?;
        drop(held);
        check_sum(&mut next)?;
        check_sum(&mut comm.duplicate()?)?;
    }
);

port_scenario!(
    who_has_no_channel_left_keeps_all_from_a_proxied_communicator,
    Job::of(4).heap_len(64 << 20),
    |comm| {
        comm.set_channel_kind(ChannelKind::Port)?;
        let (me, mut held) = (comm.rank().get(), Vec::new());
        if me == 0 {
            while let Ok(channel) = comm.memory_channel(rank(comm, 1)) {
                held.push(channel);
            }
        }
        for _ in 0..2 {
            // Ranks 2 and 3 would have a communicator of their own, rank 3 would have none.
            let colour = (me < 3).then_some(me / 2);
            let error = comm.split(colour, 0).unwrap_err();
            let elsewhere = |rank: Rank| rank.get() == 0;
            match me {
                0 => assert!(matches!(error, Error::Exhausted { .. }), "{error}"),
                _ => assert!(
                    matches!(error, Error::FailedElsewhere { operation: "split", rank } if elsewhere(rank)),
                    "{error}"
                ),
            }
        }
        drop(held);
        check_sum(&mut comm.split(Some(me / 2), 0)?.unwrap())?;
        check_sum(comm)?;
    }
);

scenario!(
    threads_derive_while_another_ones_derivation_makes_room,
    Job::of(3).heap_len(128 << 20).timeout(Duration::from_secs(20)),
    |comm| {
        // A communicator of ranks 0 and 1 cannot make room, and takes what that of all ranks has
        // made.
        let mut pair = comm.split((comm.rank().get() < 2).then_some(0), 0)?;
        let mut all = comm.duplicate()?;
        let is_full = AtomicBool::new(false);
        let greedy = |pair: &mut Communicator| {
            let mut kept = Vec::new();
            loop {
                let mut stop = [u8::from(is_full.load(SeqCst))];
                pair.all_reduce_in_place(&mut stop, &ReduceOp::Max)?;
                match pair.duplicate() {
                    _ if stop == [1] => return Ok(()),
                    Ok(twin) => kept.push(twin),
                    Err(Error::Exhausted { .. } | Error::FailedElsewhere { .. }) => kept.truncate(2),
                    Err(error) => return Err(error),
                }
            }
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| pair.as_mut().map_or(Ok(()), greedy));
            let mut kept = Vec::new();
            let full = loop {
                match all.duplicate() {
                    Ok(twin) => kept.push(twin),
                    Err(error) => break error,
                }
            };
            is_full.store(true, SeqCst);
            thread.join().unwrap()?;
            let is_told = matches!(full, Error::OutOfMemory { .. });
            assert!(is_told && kept.len() >= 5, "{full} after {}", kept.len());
            kept.last_mut().map_or(Ok(()), check_sum)
        })?;
    }
);

scenario!(
    a_thousand_communicators_in_a_row_take_the_room_of_one,
    Job::of(3).heap_len(8 << 20).patience(Duration::from_secs(600)),
    |comm| {
        for round in 0..500 {
            let mut twin = comm.duplicate()?;
            let mut data = [round];
            twin.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
            assert_eq!(data, [3 * round]);
            // With a meeting at the end, and without one.
            twin.finalize()?;
            drop(comm.split(Some(comm.rank().get() / 2), 0)?);
        }
        assert!(comm.heap_usage().live <= 3, "{:?}", comm.heap_usage());
    }
);

scenario!(a_heap_that_is_full_is_told_to_all_and_nothing_is_lost, Job::of(3).heap_len(8 << 20), |comm| {
    for _ in 0..3 {
        let mut twins = Vec::new();
        let error = loop {
            match comm.duplicate() {
                Ok(twin) => twins.push(twin),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert_eq!(twins.len(), 2, "as many as fit beside the first one");
        twins.iter_mut().try_for_each(check_sum)?;
    }
    // Ranks 0 and 1 cannot make room without rank 2. Rank 0 alone has none left.
    let mut pair = comm.split((comm.rank().get() < 2).then_some(0), 0)?;
    if let Some(pair) = &mut pair {
        let mut kept = Vec::new();
        let error = loop {
            match pair.split((pair.rank().get() == 0).then_some(0), 0) {
                Ok(alone) => kept.push(alone),
                Err(error) => break error,
            }
        };
        if pair.rank().get() == 0 {
            assert!(matches!(error, Error::Exhausted { .. }), "{error}");
        } else {
            let told =
                matches!(error, Error::FailedElsewhere { operation: "split", rank } if rank.get() == 0);
            assert!(told, "{error}");
        }
        check_sum(pair)?;
        kept.clear();
        assert_eq!(pair.split(Some(0), 0)?.map(|pair| members(&pair)), Some(vec![0, 1]));
    }
    check_sum(comm)?;
});

scenario!(memory_is_allocated_through_any_communicator_of_all_ranks, Job::of(3).heap_len(32 << 20), |comm| {
    let me = comm.rank().get();
    let mut turned = comm.split(Some(0), -i64::from(me))?.unwrap();
    let buffer = turned.alloc::<u32>(100)?;
    let mut channel = turned.memory_channel(turned.right())?;
    channel.write(buffer.part(5, 1)?.offset, me)?;
    turned.barrier()?;
    assert_eq!(buffer.get(5)?, (me + 1) % 3, "the next in the new order is the rank before");
    let before = comm.heap_usage();
    let unequal = turned.alloc::<u8>(if me == 1 { 65 } else { 64 });
    assert!(
        matches!(unequal, Err(Error::Mismatch { what: "the length of an allocation, in bytes", .. })),
        "{unequal:?}"
    );
    let too_much = turned.alloc::<u8>(1 << 30);
    assert!(matches!(too_much, Err(Error::OutOfMemory { .. })), "{too_much:?}");
    assert_eq!(comm.heap_usage(), before);
    comm.free(buffer)?;
    let mut some = comm.split(Some(me / 2), 0)?.unwrap();
    let error = some.alloc::<u8>(64).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
});

/// The two operations of a mismatch, in either order.
fn mismatch(error: &Error) -> Option<[Operation; 2]> {
    let CallMismatch { mine, theirs, .. } = error.detail()?;
    let mut both = [mine.operation()?, theirs.operation()?];
    both.sort_by_key(|operation| *operation as u8);
    Some(both)
}

scenario!(a_split_beside_a_duplicate_is_a_mismatch, Job::of(3).broken(), |comm| {
    check_sum(comm)?;
    let derived = match comm.rank().get() {
        1 => comm.split(Some(0), 0).map(drop),
        _ => comm.duplicate().map(drop),
    };
    let error = derived.unwrap_err();
    assert_eq!(mismatch(&error), Some([Operation::Split, Operation::Duplicate]), "{error}");
    let error = comm.duplicate().unwrap_err();
    assert!(matches!(error, Error::CallMismatch { .. } | Error::Revoked { .. }), "{error}");
});

scenario!(a_split_beside_a_reduction_is_a_mismatch, Job::of(2).heap_len(32 << 20).broken(), |comm| {
    let mut twin = comm.duplicate()?;
    let called = match comm.rank().get() {
        0 => twin.split(Some(0), 0).map(drop),
        _ => twin.all_reduce_in_place(&mut [1_u8], &ReduceOp::Sum),
    };
    let error = called.unwrap_err();
    assert_eq!(mismatch(&error), Some([Operation::AllReduce, Operation::Split]), "{error}");
});
