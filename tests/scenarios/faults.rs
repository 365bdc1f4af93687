//! Faults that are injected: each kind strikes where its plan says, again and again in the same
//! places, and is told of.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use shmccl::bootstrap::Options;
use shmccl::channel::{Channel, RefusalReason};
use shmccl::collective::Algorithm;
use shmccl::comm::{Collectives, Group};
use shmccl::faults::{FaultHit, FaultKind};
use shmccl::heap::DeviceBuffer;
use shmccl::launch::{launch_threads, spawn_threads};
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Error, Rank, Result};

use crate::fault_program::{Scratch, all_operations, count_operations};
use crate::harness::{Job, Open, Watchdog, is_lost, pattern};

const SHORT: Duration = Duration::from_millis(100);

fn with(faults: &str) -> Options {
    Options { heap_len: 16 << 20, faults: faults.parse().unwrap(), ..Options::default() }
}

#[test]
fn whatever_the_operation_at_which_a_rank_dies_the_others_lose_that_rank() {
    let _watchdog = Watchdog::start("a death at every operation", Duration::from_secs(120));
    let (victim, operations) = (Rank::new(1, 3).unwrap(), count_operations());
    assert!(operations > 25, "{operations}");
    let scratch = Scratch::new("deaths");
    for number in 1..=operations {
        let seen = Mutex::new(Vec::new());
        let comms =
            Communicator::init_all_with(3, &with(&format!("seed=5;kill:rank=1,at={number}"))).unwrap();
        let outcome = spawn_threads(comms, |rank, mut comm| {
            let done = all_operations(&mut comm, scratch.path()).and_then(|()| comm.finalize());
            if rank != victim {
                let error = done.as_ref().unwrap_err();
                seen.lock().unwrap().push(is_lost(error, victim));
            }
            done
        });
        assert_eq!(seen.into_inner().unwrap(), [true, true], "operation {number}");
        let Err(Error::FaultInjected { hit }) = outcome else { panic!("{number}: {outcome:?}") };
        assert_eq!((hit.rank, hit.number, hit.seed), (victim, number, 5), "{hit}");
    }
}

#[test]
fn a_rank_that_the_job_does_not_have_can_suffer_nothing() {
    let error = Communicator::init_all_with(2, &with("kill:at=1;kill:rank=2,at=1")).unwrap_err();
    assert!(error.to_string().contains("there is no rank 2 in a job of 2"), "{error}");
}

/// Puts `n` times, each time another place, and returns the numbers of those that have not arrived,
/// with the strikes.
fn missing(faults: &str, n: usize) -> (Vec<usize>, Vec<FaultHit>) {
    let results = launch_threads(2, &with(faults), |comm| {
        let cells = comm.alloc::<u64>(2 * n)?;
        cells.fill(7);
        // Places that are 0 at the end have got nothing.
        (n..2 * n).try_for_each(|index| cells.set(index, 0))?;
        comm.barrier()?;
        if comm.rank().get() == 0 {
            let mut channel = comm.port_channel(comm.right())?;
            for index in 0..n {
                channel.put(cells.part(n + index, 1)?.offset, cells.part(index, 1)?.offset, 8)?;
            }
            channel.flush()?;
            let refused = comm.fifo_snapshots()?.remove(0);
            let reason = refused.last_refused.as_ref().map(|refused| RefusalReason::from_code(refused.code));
            assert!(reason.is_none_or(|reason| reason == Some(RefusalReason::Injected)), "{refused:?}");
            let failed = comm.fault_hits().iter().filter(|hit| hit.kind == FaultKind::Fail).count();
            assert_eq!(refused.refused, failed as u64);
        } else {
            comm.memory_channel(comm.left())?;
        }
        comm.barrier()?;
        let lost = (0..n).filter(|index| cells.get(n + index).is_ok_and(|cell| cell == 0)).collect();
        Ok((lost, comm.fault_hits()))
    });
    let [(_, hits), (lost, none)] = results.unwrap().try_into().unwrap();
    assert_eq!(none, []);
    (lost, hits)
}

#[test]
fn triggers_that_are_dropped_or_failed_move_nothing_and_the_same_seed_strikes_the_same() {
    let _watchdog = Watchdog::start("dropped triggers", Duration::from_secs(60));
    assert_eq!(missing("drop:rank=1,one_in=1", 100), (vec![], vec![]), "another rank's");
    for kind in ["drop", "fail"] {
        let plan = |seed: u64| format!("seed={seed};{kind}:rank=0,one_in=5");
        let (first, hits) = missing(&plan(11), 200);
        assert!((10..100).contains(&first.len()), "{first:?}");
        assert_eq!((first.clone(), hits.clone()), missing(&plan(11), 200));
        assert_ne!(first, missing(&plan(12), 200).0);
        let numbers: Vec<_> =
            hits.iter().filter_map(|hit| usize::try_from(hit.number).ok()).filter(|n| *n <= 200).collect();
        assert_eq!(first, numbers.iter().map(|number| number - 1).collect::<Vec<_>>());
        assert!(hits.iter().all(|hit| hit.seed == 11 && hit.at == "trigger"));
    }
}

port_scenario!(
    a_dropped_signal_is_a_timeout_and_the_report_names_the_fault,
    Job::of(2).timeout(SHORT).faults("seed=3;drop:rank=0,at=2").broken(),
    |comm| {
        let mut channel = comm.port_channel(comm.right())?;
        if comm.rank().get() == 0 {
            channel.signal()?;
            channel.signal()?;
            while let Err(error) = channel.flush() {
                assert!(matches!(error, Error::Timeout { .. }), "{error}");
            }
            while let Err(error) = comm.barrier() {
                assert!(matches!(error, Error::Timeout { .. }), "{error}");
            }
            return Ok(());
        }
        while let Err(error) = channel.wait() {
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        let error = channel.wait().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        let report = comm.report()?.to_string();
        assert!(report.contains("fault injected: drop at trigger 2 (seed 3)"), "{report}");
        while let Err(error) = comm.barrier() {
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
    }
);

/// Puts a pattern to the right and returns in how many bits it differs from that here.
fn damage(comm: &mut Communicator, open: Open) -> Result<u32> {
    const LEN: usize = 5000;
    let (source, target) = (comm.alloc::<u8>(LEN)?, comm.alloc::<u8>(LEN)?);
    source.copy_from_slice(0, &pattern(1, LEN))?;
    let mut channels = [open(comm, comm.right())?, open(comm, comm.left())?];
    if comm.rank().get() == 1 {
        channels.reverse();
    }
    let [right, left] = &mut channels;
    right.put_with_signal(target.region().offset, source.region().offset, LEN as u64)?;
    left.wait()?;
    right.flush()?;
    differing(&target, &pattern(1, LEN))
}

fn differing(target: &DeviceBuffer<u8>, expected: &[u8]) -> Result<u32> {
    let mut found = vec![0; expected.len()];
    target.copy_to_slice(0, &mut found)?;
    Ok(found.iter().zip(expected).map(|(found, expected)| (found ^ expected).count_ones()).sum())
}

channel_scenario!(
    a_put_that_is_corrupted_differs_in_one_bit,
    Job::of(2).faults("corrupt:rank=0,at=2"),
    |comm, open| {
        let found = [damage(comm, open)?, damage(comm, open)?, damage(comm, open)?];
        let struck = comm.rank().get() == 1;
        assert_eq!(found, [0, u32::from(struck), 0]);
    }
);

scenario!(
    what_is_corrupted_in_the_eager_slot_of_a_rank_the_others_take_and_it_itself_does_not,
    Job::of(2).faults("corrupt:rank=0,at=1,of=post;corrupt:rank=0,at=3,of=post"),
    |comm| {
        let (me, count) = (comm.rank().get(), 500);
        let input = |rank: u32| (0..500).map(|index| 256 * index + rank).collect::<Vec<u32>>();
        let sums: Vec<u32> = input(0).iter().zip(&input(1)).map(|(one, other)| one + other).collect();
        let both = [input(0), input(1)].concat();
        let wrong = |found: &[u32], right: &[u32]| {
            found.iter().zip(right).filter(|(one, other)| one != other).count()
        };
        let (send, recv) = (comm.alloc::<u32>(count)?, comm.alloc::<u32>(2 * count)?);
        send.copy_from_slice(0, &input(me))?;
        let mut found = Vec::new();
        for is_gathered in [false, true] {
            for in_heap in [false, true] {
                let right = if is_gathered { &both } else { &sums };
                let mut slice = vec![0; right.len()];
                let part = comm.buffer(recv.part(0, right.len())?)?;
                match (is_gathered, in_heap) {
                    (false, false) => comm.all_reduce(&input(me), &mut slice, &ReduceOp::Sum)?,
                    (false, true) => comm.all_reduce(&send, &part, &ReduceOp::Sum)?,
                    (true, false) => comm.all_gather(&input(me), &mut slice)?,
                    (true, true) => comm.all_gather(&send, &part)?,
                }
                found.push(wrong(&if in_heap { part.to_vec() } else { slice }, right));
            }
        }
        assert_eq!(found, if me == 0 { [0; 4] } else { [1, 0, 1, 0] });
    }
);

scenario!(
    messages_and_what_is_staged_can_be_corrupted,
    Job::of(2).faults("corrupt:rank=0,at=3,of=message;corrupt:rank=0,at=1,of=stage"),
    |comm| {
        let mine = pattern(comm.rank().get().into(), 40_000);
        let theirs = pattern(comm.right().get().into(), 40_000);
        let wrong = |found: &[u8]| -> u32 {
            found.iter().zip(&theirs).map(|(found, theirs)| (found ^ theirs).count_ones()).sum()
        };
        let (me, peer, n) = (comm.rank().index(), comm.right(), mine.len());
        let expected = u32::from(me == 1);
        let mut all = vec![0; 2 * n];
        comm.all_gather(&mine, &mut all)?;
        assert_eq!(wrong(&all[peer.index() * n..][..n]), expected, "staged");
        let mut found = Vec::new();
        for _ in 0..4 {
            let mut received = vec![0; 1000];
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).send(&mine[..1000], peer)?;
            group.on(joined).recv(&mut received, peer)?;
            group.end()?;
            found.push(wrong(&received));
        }
        assert_eq!(found, [0, 0, expected, 0], "messages");
        comm.set_algorithm(Some(Algorithm::Ring));
        comm.all_gather(&mine, &mut all)?;
        assert_eq!(wrong(&all[peer.index() * n..][..n]), 0, "the fault has struck already");
    }
);

#[test]
fn calls_of_a_group_are_fused_alike_where_faults_are_planned_for_one_rank_only() {
    let _watchdog = Watchdog::start("a group and a fault to come", Duration::from_secs(60));
    let sums = launch_threads(2, &with("delay:rank=1,at=99,time=1ms"), |comm| {
        let mine = [u64::from(comm.rank().get()) + 1];
        let (mut sum, mut most) = ([0_u64], [0_u64]);
        let mut group = Group::start();
        let joined = group.join(comm);
        group.on(joined).all_reduce(&mine, &mut sum, &ReduceOp::Sum)?;
        group.on(joined).all_reduce(&mine, &mut most, &ReduceOp::Max)?;
        group.end()?;
        Ok((sum[0], most[0]))
    });
    assert_eq!(sums.unwrap(), [(3, 2); 2]);
}

#[test]
fn a_stopped_proxy_of_a_thread_is_lost_to_everybody() {
    let _watchdog = Watchdog::start("a stopped proxy", Duration::from_secs(60));
    let seen = Mutex::new(Vec::new());
    let outcome = launch_threads(3, &with("stop:rank=1,at=3"), |comm| {
        let mut channel = comm.port_channel(comm.right())?;
        let error = match comm.rank().get() {
            1 => (0..5).find_map(|_| channel.signal().and_then(|()| channel.flush()).err()),
            _ => comm.barrier().err(),
        };
        let error = error.expect("the proxy is gone");
        seen.lock().unwrap().push(matches!(error, Error::ProxyLost));
        Err::<(), _>(error)
    });
    assert!(matches!(outcome, Err(Error::ProxyLost)), "{outcome:?}");
    assert_eq!(seen.into_inner().unwrap(), [true; 3]);
}

#[test]
fn a_delay_takes_its_time_and_ends_with_the_epoch() {
    let _watchdog = Watchdog::start("delays", Duration::from_secs(60));
    let times = launch_threads(2, &with("delay:rank=0,at=2,of=barrier,time=30ms"), |comm| {
        let mut times = Vec::new();
        for _ in 0..2 {
            let began = Instant::now();
            comm.barrier()?;
            times.push(began.elapsed());
        }
        Ok(times)
    });
    // The other one may be held up before it begins, and waits the less.
    assert!(times.unwrap()[0][1] >= Duration::from_millis(30));
    let struck = Mutex::new(0);
    let _over = launch_threads(2, &with("delay:rank=0,at=1,of=barrier,time=3000s"), |comm| {
        if comm.rank().get() == 1 {
            comm.revoke();
        }
        let over = comm.barrier();
        *struck.lock().unwrap() += comm.fault_hits().len();
        over
    });
    assert_eq!(struck.into_inner().unwrap(), 1);
}

#[test]
fn a_rank_that_is_killed_is_left_behind_by_those_who_go_on() {
    let _watchdog = Watchdog::start("going on after a fault", Duration::from_secs(60));
    let sums = Mutex::new(Vec::new());
    let outcome = launch_threads(3, &with("kill:rank=2,at=4;kill:rank=0,at=100"), |comm| {
        let lost = loop {
            if let Err(error) = comm.barrier() {
                break error;
            }
        };
        if let Error::FaultInjected { .. } = lost {
            return Err(lost);
        }
        let mut comm = comm.shrink()?.comm;
        let mut sum = [comm.rank().get() + 1];
        comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
        sums.lock().unwrap().push((sum[0], comm.fault_hits().len()));
        comm.finalize()?;
        Err::<(), _>(lost)
    });
    assert!(matches!(outcome, Err(Error::FaultInjected { .. })), "{outcome:?}");
    assert_eq!(sums.into_inner().unwrap(), [(3, 0); 2]);
}

#[test]
fn what_an_operation_does_within_is_not_counted_and_the_first_call_is_like_any_other() {
    let _watchdog = Watchdog::start("what is counted", Duration::from_secs(60));
    let counted = launch_threads(2, &with("delay:one_in=1,time=0ns"), |comm| {
        for _ in 0..2 {
            comm.all_reduce_in_place(&mut [1_u32; 3000], &ReduceOp::Sum)?;
        }
        // More of them than the memory that was taken at first has room for.
        let halves = (0..5).map(|_| comm.duplicate()).collect::<Result<Vec<_>>>()?;
        let names: Vec<_> = comm.fault_hits().iter().map(|hit| hit.at).collect();
        halves.into_iter().rev().try_for_each(Communicator::finalize)?;
        Ok(names)
    });
    let expected = [&["all_reduce"; 2][..], &["duplicate"; 5]].concat();
    assert_eq!(counted.unwrap(), [expected.clone(), expected]);
}
