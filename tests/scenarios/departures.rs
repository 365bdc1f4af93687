//! Members that leave their communicators, by and by or at once, and what is left to the others and
//! to themselves.

use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::collective::CallMismatch;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result};

use crate::communicators::{check_sum, members};
use crate::harness::{Job, is_lost, rank};

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
    use shmccl::launch::Launch;
    use shmccl::rank::Rank;

    use super::*;
    use crate::harness::{VICTIMS_CODE, Watchdog, check_exit_of, test_name, this_test};

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
                std::process::exit(VICTIMS_CODE);
            }
            let error = check_sum(&mut turned).unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            let error = turned.split(Some(0), 0).unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            Err(error)
        });
        check_exit_of(victim, role);
    }
}

/// A panic takes the communicators along that the thread has: their members learn whom they have
/// lost.
mod a_member_that_panics_is_lost_to_the_others_in_derived_communicators {
    use shmccl::bootstrap::Options;
    use shmccl::launch::launch_threads;
    use shmccl::rank::Rank;

    use super::*;
    use crate::harness::{Watchdog, panic_on_purpose, panicked};

    #[test]
    fn threads() {
        let _watchdog = Watchdog::start("a member that panics", Duration::from_secs(60));
        let options = Options { heap_len: 32 << 20, ..Options::default() };
        let victim = Rank::new(1, 3).unwrap();
        let seen = std::sync::Mutex::new(Vec::new());
        let result = launch_threads(3, &options, |comm| {
            let mut twin = comm.duplicate()?;
            if comm.rank() == victim {
                panic_on_purpose()
            }
            let error = check_sum(&mut twin).unwrap_err();
            seen.lock().unwrap().push(is_lost(&error, victim));
            Err::<(), _>(error)
        });
        assert!(panicked(&result.unwrap_err(), victim));
        assert_eq!(seen.into_inner().unwrap(), [true, true]);
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

/// A call of one rank.
type Call = fn(&mut Communicator) -> Result<()>;

/// What two ranks are told that make these calls, in which they wait for nobody, and finalize.
fn finalized_after(calls: [Call; 2]) -> Vec<Result<()>> {
    let _watchdog = crate::harness::Watchdog::start("finalized after", Duration::from_secs(60));
    std::thread::scope(|scope| {
        let comms = Communicator::init_all(2).unwrap();
        let run = |mut comm: Communicator, call: Call| {
            check_sum(&mut comm).unwrap();
            // What it is told may come at its next call already.
            call(&mut comm).and_then(|()| comm.finalize())
        };
        let running = comms.into_iter().zip(calls).map(|(comm, call)| scope.spawn(move || run(comm, call)));
        let running: Vec<_> = running.collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_that_were_in_different_calls_and_waited_for_nobody_are_told_at_the_end() {
    let broadcast = |comm: &mut Communicator| comm.broadcast(&[1_u8; 4], &mut [0; 4], rank(comm, 0));
    let reduce =
        |comm: &mut Communicator| comm.reduce(&[1_u8; 4], &mut [0; 4], &ReduceOp::Sum, rank(comm, 0));
    let nothing = |_: &mut Communicator| Ok(());
    // So many calls ahead as a rank can be.
    let far_ahead: [Call; 2] = [
        |comm| (0..7).try_for_each(|_| comm.broadcast(&[1_u8; 4], &mut [0; 4], rank(comm, 0))),
        |comm| comm.reduce(&[1_u8; 4], &mut [0; 4], &ReduceOp::Sum, rank(comm, 0)),
    ];
    // The other one waits at the end, and looks for members that are elsewhere, when the next call
    // comes.
    let later: [Call; 2] = [
        |comm| {
            comm.broadcast(&[1_u8; 4], &mut [0; 4], rank(comm, 0))?;
            while comm.report()?.ranks[1].waits_for().is_none() {
                std::thread::yield_now();
            }
            comm.broadcast(&[1_u8; 4], &mut [0; 4], rank(comm, 0))?;
            while comm.revoked().is_none() {
                std::thread::yield_now();
            }
            Ok(())
        },
        far_ahead[1],
    ];
    let both = ["broadcast of 4 uint8 with root 0", "reduce of 4 uint8 by sum with root 0"];
    let cases: [([Call; 2], [&str; 2]); 5] = [
        ([broadcast, reduce], both),
        (far_ahead, both),
        (later, both),
        ([broadcast, nothing], ["broadcast of 4 uint8 with root 0", "finalize"]),
        ([nothing, reduce], ["finalize", "reduce of 4 uint8 by sum with root 0"]),
    ];
    for (calls, names) in cases {
        for (me, told) in finalized_after(calls).into_iter().enumerate() {
            let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&told) else {
                panic!("{names:?}: {told:?}")
            };
            assert_eq!((mine.to_string().as_str(), rank.index()), (names[me], 1 - me));
            assert_eq!(theirs.to_string(), names[1 - me]);
        }
    }
    assert!(finalized_after([broadcast, broadcast]).iter().all(Result::is_ok));
}
