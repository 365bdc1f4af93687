//! Communicators that are derived from others: who is in them, that they do not disturb each other, and that nothing is
//! left of them.

use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::collective::Operation;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result};

use crate::harness::{Job, is_lost, rank};

/// The ranks of the job that are members.
fn members(comm: &Communicator) -> Vec<u32> {
    comm.members().iter().map(|rank| rank.get()).collect()
}

/// Sums a number of each member: through posts, the mail, and the scratch.
fn check_sum(comm: &mut Communicator) -> Result<()> {
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
    // Around a ring of the half, by its own numbers; where there are two, both ways lead to the same channel.
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
    comm.set_channel_kind(shmccl::collective::ChannelKind::Port)?;
    let mut half = comm.split(Some(comm.rank().get() % 2), 0)?.unwrap();
    check_sum(&mut half)?;
    check_sum(comm)?;
    half.finalize()?;
    check_sum(comm)?;
});

scenario!(
    a_thousand_communicators_in_a_row_take_the_room_of_one,
    Job::of(3).heap_len(8 << 20).patience(Duration::from_secs(300)),
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
    assert!(matches!(unequal, Err(Error::Mismatch { what: "the first argument", .. })), "{unequal:?}");
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
    let Error::CallMismatch { mine, theirs, .. } = error else { return None };
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

scenario!(
    a_member_that_has_left_is_named_to_whoever_waits_for_it,
    Job::of(2).heap_len(32 << 20).broken(),
    |comm| {
        let mut twin = comm.duplicate()?;
        if comm.rank().get() == 1 {
            drop(twin);
            while comm.revoked().is_none() {
                std::thread::yield_now();
            }
        } else {
            let error = twin.barrier().unwrap_err();
            assert!(is_lost(&error, rank(comm, 1)), "{error}");
        }
    }
);

scenario!(
    a_revoked_epoch_is_over_for_derived_communicators_too,
    Job::of(2).heap_len(32 << 20).timeout(Duration::from_secs(5)).broken(),
    |comm| {
        let mut twin = comm.duplicate()?;
        let mut alone = comm.split(Some(comm.rank().get()), 0)?.unwrap();
        comm.barrier()?;
        comm.revoke();
        let mut data = [1_u8];
        let errors =
            [twin.split(Some(0), 0).map(drop), twin.duplicate().map(drop), alone.duplicate().map(drop)];
        for error in errors {
            assert!(matches!(error, Err(Error::Revoked { .. })), "{error:?}");
        }
        if comm.rank().get() == 0 {
            let error = twin.all_reduce_in_place(&mut data, &ReduceOp::Sum);
            assert!(matches!(error, Err(Error::Revoked { .. })), "{error:?}");
        }
    }
);

/// A member that dies is lost to its peers in every communicator, and is the first cause.
mod a_member_that_dies_is_lost_to_the_others_in_derived_communicators {
    use shmccl::bootstrap::ProxyMode;
    use shmccl::error::{DeviceName, ExitCause};
    use shmccl::launch::{Launch, Role};
    use shmccl::rank::Rank;

    use super::*;
    use crate::harness::{Watchdog, test_name, this_test};

    #[test]
    fn processes() {
        let name = test_name(module_path!(), "processes");
        let _watchdog = Watchdog::start(&name, Duration::from_secs(60));
        let launch = Launch::new(3).unwrap().program(this_test(&name)).proxy(ProxyMode::Thread);
        let victim = Rank::new(1, 3).unwrap();
        let role = launch.heap_len(32 << 20).capture_output(true).run(|comm| {
            let mut turned = comm.split(Some(0), -i64::from(comm.rank().get()))?.unwrap();
            check_sum(&mut turned)?;
            if comm.rank() == victim {
                std::process::exit(42);
            }
            let error = check_sum(&mut turned).unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            let error = turned.split(Some(0), 0).unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            Err(error)
        });
        match role {
            Err(Error::DeviceFailed { device, cause }) => {
                assert_eq!((device, cause), (DeviceName::Rank(victim), ExitCause::Code(42)));
            }
            // In a device: what it returns is its exit code.
            Err(error) => panic!("{error}"),
            Ok(Role::Proxy) => {}
            Ok(role) => panic!("{role:?}"),
        }
    }
}

/// Several jobs in one process, and what is left of a job to a thread that has left it.
mod jobs_of_one_process {
    use shmccl::UniqueId;
    use shmccl::bootstrap::Options;
    use shmccl::channel::MemoryChannel;

    use super::*;
    use crate::harness::Watchdog;

    fn options() -> Options {
        Options { heap_len: 64 << 20, timeout: Duration::from_secs(20), ..Options::default() }
    }

    /// Runs `body` for each communicator in a thread of its own.
    fn in_threads(comms: Vec<Communicator>, body: impl Fn(Communicator) -> Result<()> + Sync) {
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || body(comm))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
    }

    #[test]
    fn two_jobs_that_met_under_ids_divide_and_go_on_at_once() {
        let _watchdog = Watchdog::start("two jobs", Duration::from_secs(60));
        let ids = [UniqueId::new().unwrap(), UniqueId::new().unwrap()];
        let member = |rank: u32| -> Result<()> {
            let mut first = Communicator::init_rank_with(3, &ids[0], rank, &options())?;
            // The same threads in another order.
            let mut second = Communicator::init_rank_with(3, &ids[1], 2 - rank, &options())?;
            let mut twin = first.duplicate()?;
            let mut part = second.split((rank > 0).then_some(1), 0)?;
            assert_eq!(part.as_ref().map(members), (rank > 0).then(|| vec![0, 1]));
            for _ in 0..5 {
                [&mut first, &mut second, &mut twin].into_iter().try_for_each(check_sum)?;
                part.iter_mut().try_for_each(check_sum)?;
            }
            first.finalize()?;
            check_sum(&mut twin)?;
            second.finalize()?;
            part.iter_mut().try_for_each(check_sum)?;
            twin.finalize()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || member(rank))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
    }

    #[test]
    fn whoever_leaves_the_first_communicator_is_missed_there_and_nowhere_else() {
        let _watchdog = Watchdog::start("leaving the first communicator", Duration::from_secs(60));
        in_threads(Communicator::init_all_with(2, &options()).unwrap(), |mut comm| {
            let me = comm.rank().get();
            let mut twin = comm.duplicate()?;
            if me == 0 {
                let peer = comm.right();
                let error = comm.barrier().unwrap_err();
                assert!(is_lost(&error, peer), "{error}");
            }
            drop(comm);
            check_sum(&mut twin)?;
            twin.finalize()
        });
    }

    #[test]
    fn channels_that_outlive_all_communicators_of_their_rank_move_nothing() {
        let _watchdog = Watchdog::start("channels that outlive", Duration::from_secs(60));
        in_threads(Communicator::init_all_with(2, &options()).unwrap(), |mut comm| {
            let buffer = comm.alloc::<u64>(2)?;
            let (first, second) = (buffer.part(0, 1)?.offset, buffer.part(1, 1)?.offset);
            let mut direct = comm.memory_channel(comm.right())?;
            let mut proxied = comm.port_channel(comm.right())?;
            let mut twin = comm.duplicate()?;
            let mut switch = twin.switch_channel(&buffer)?;
            direct.signal()?;
            comm.finalize()?;
            direct.put_with_signal(second, first, 8)?;
            proxied.put_with_signal_and_flush(second, first, 8)?;
            twin.finalize()?;
            // What had been sent by then is received.
            direct.wait()?;
            direct.wait()?;
            proxied.wait()?;
            refuses(&mut direct, &mut |channel| channel.put(second, first, 8));
            refuses(&mut direct, &mut |channel| channel.get(second, first, 8));
            refuses(&mut direct, &mut |channel| channel.read::<u64>(first).map(drop));
            refuses(&mut direct, &mut |channel| channel.write(first, 1_u64));
            refuses(&mut direct, &mut |channel| channel.put_slice(first, &[1_u64]));
            refuses(&mut direct, &mut |channel| channel.put_with_signal(second, first, 8));
            refuses(&mut direct, &mut MemoryChannel::relaxed_signal);
            refuses(&mut direct, &mut MemoryChannel::relaxed_wait);
            refuses(&mut direct, &mut Channel::signal);
            refuses(&mut direct, &mut Channel::wait);
            refuses(&mut proxied, &mut |channel| channel.put(second, first, 8));
            refuses(&mut proxied, &mut Channel::signal);
            refuses(&mut proxied, &mut Channel::flush);
            refuses(&mut proxied, &mut Channel::wait);
            refuses(&mut switch, &mut |switch| switch.reduce(0, &mut [0; 2], &ReduceOp::Sum));
            refuses(&mut switch, &mut |switch| switch.broadcast(0, &[1; 2]));
            refuses(&mut switch, &mut |switch| switch.barrier());
            assert_eq!(buffer.to_vec(), [0; 2], "memory stays mapped as long as a buffer looks at it");
            Ok(())
        });
    }

    /// Whether `call` on `channel` says that there is no communicator left.
    #[track_caller]
    fn refuses<C>(channel: &mut C, call: &mut dyn FnMut(&mut C) -> Result<()>) {
        let result = call(channel);
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    }
}
