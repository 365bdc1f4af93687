//! What ranks see of each other while nothing goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use shmccl::channel::Channel;
use shmccl::collective::{Algorithm, Operation};
use shmccl::observe::Report;
use shmccl::reduce::{CustomOp, ReduceOp};
use shmccl::{Collectives, Communicator, Error, Result};

use crate::harness::Job;

/// The elements of an operation of many steps.
const COUNT: usize = 1 << 21;

/// The numbers of the ranks that a report names.
fn numbers(ranks: &[shmccl::Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.get()).collect()
}

/// How long what is looked for may take to come about.
const LOOKING: Duration = Duration::from_secs(40);

/// Looks until there is something to see.
fn look(comm: &Communicator, is_there: impl Fn(&Report) -> bool) -> Result<Report> {
    let began = Instant::now();
    loop {
        let report = comm.report()?;
        if is_there(&report) {
            return Ok(report);
        }
        assert!(began.elapsed() < LOOKING, "it is not there to be seen: {report}");
        std::thread::yield_now();
    }
}

/// Whether these ranks wait in a call that rank 1 has not come to.
fn wait_for_rank_1(report: &Report, ranks: &[usize]) -> bool {
    ranks.iter().map(|&rank| &report.ranks[rank]).all(|rank| {
        let is_ahead = rank.work.operations > report.ranks[1].work.operations;
        is_ahead && rank.waits_for().is_some() && numbers(&rank.awaits()) == [1]
    })
}

scenario!(a_rank_that_does_not_come_is_named_while_the_others_wait, Job::of(3), |comm| {
    let [input, output] = [comm.alloc::<f32>(2)?, comm.alloc::<f32>(2)?];
    comm.all_reduce(&input, &output, &ReduceOp::Sum)?;
    if comm.rank().get() == 1 {
        let report = look(comm, |report| wait_for_rank_1(report, &[0, 2]))?;
        assert_eq!(numbers(&report.stragglers()), [1], "{report}");
        for rank in [0, 2] {
            let call = report.ranks[rank].call.expect("it waits in a call");
            assert_eq!(call.signature.operation(), Some(Operation::AllReduce), "{report}");
        }
        assert!(report.ranks[1].call.is_none() && report.ranks[1].last.is_some(), "{report}");
        let text = report.to_string();
        assert!(text.ends_with("held up by rank 1, which waits for nobody"), "{text}");
        assert!(text.contains("in all_reduce of 2 float by sum"), "{text}");
    }
    comm.all_reduce(&input, &output, &ReduceOp::Sum)?;
});

scenario!(a_large_operation_is_told_of_with_its_way, Job::of(2).heap_len(64 << 20), |comm| {
    let [input, output] = [comm.alloc::<f32>(1 << 20)?, comm.alloc::<f32>(1 << 20)?];
    comm.all_reduce(&input, &output, &ReduceOp::Sum)?;
    if comm.rank().get() == 1 {
        let report = look(comm, |report| wait_for_rank_1(report, &[0]))?;
        let call = report.ranks[0].call.expect("it waits in a call");
        assert_eq!(
            (call.signature.operation(), call.signature.count()),
            (Some(Operation::AllReduce), 1 << 20)
        );
        // It knows what the table says before rank 1 has come.
        assert!(report.to_string().contains("all_reduce of 1048576 float by sum by two_shot"), "{report}");
        let work = &report.ranks[1].work;
        assert_eq!((work.large_operations, work.large_bytes), (1, 4 << 20), "{report}");
    }
    comm.all_reduce(&input, &output, &ReduceOp::Sum)?;
    comm.set_algorithm(Some(Algorithm::Ring));
    if comm.rank().get() == 1 {
        let is_told =
            |report: &Report| report.to_string().contains("all_reduce of 1048576 float by sum by ring");
        look(comm, |report| wait_for_rank_1(report, &[0]) && is_told(report))?;
    }
    comm.all_reduce(&input, &output, &ReduceOp::Sum)?;
});

scenario!(
    a_rank_that_stops_in_the_middle_of_a_large_operation_is_waited_for_in_a_step_of_it,
    Job::of(2).heap_len(64 << 20),
    |comm| {
        let onlooker = Mutex::new(comm.duplicate()?);
        let (is_rank_1, seen) = (comm.rank().get() == 1, OnceLock::new());
        let (combined, told) = (AtomicUsize::new(0), Arc::new(seen));
        let tell = Arc::clone(&told);
        // Rank 1 stops where it has combined an eighth of all, and looks on until rank 0 can do no
        // more without it.
        let slow = CustomOp::new::<f32>("slow sum", move |sums, others| {
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
            let before = combined.fetch_add(sums.len(), Ordering::Relaxed);
            if is_rank_1 && before >= COUNT / 8 && tell.get().is_none() {
                let comm = onlooker.lock().unwrap();
                let waits = |report: &Report| {
                    report.ranks[0].waits_for().is_some() && report.to_string().contains(", step ")
                };
                let _ = tell.set(look(&comm, waits).unwrap());
            }
        });
        let mut data = vec![1.0_f32; COUNT];
        comm.all_reduce_in_place(&mut data, &ReduceOp::Custom(slow))?;
        assert!(data.iter().all(|sum| *sum == 2.0));
        if is_rank_1 {
            let report = told.get().expect("rank 1 has combined its share");
            assert_eq!(numbers(&report.ranks[0].awaits()), [1], "{report}");
            let text = report.to_string();
            let (_, rest) = text
                .split_once(&format!("in all_reduce of {COUNT} float by an operator of the program's own "))
                .unwrap();
            let (_, rest) = rest.split_once(" by two_shot").unwrap_or_else(|| panic!("{text}"));
            let (_, rest) = rest.split_once(", step ").unwrap_or_else(|| panic!("{text}"));
            let digits = rest.find(|char: char| !char.is_ascii_digit()).unwrap();
            assert!(rest[..digits].parse::<u64>().unwrap() > 0, "{text}");
        }
    }
);

scenario!(an_operation_has_begun_while_its_first_piece_is_combined, Job::of(2).heap_len(64 << 20), |comm| {
    let onlooker = Mutex::new(comm.duplicate()?);
    let me = comm.rank().index();
    let count = move |comm: &Communicator| comm.report().unwrap().ranks[me].work.operations;
    let seen = Arc::new(OnceLock::new());
    let tell = Arc::clone(&seen);
    let looking = CustomOp::new::<f32>("looking sum", move |sums, others| {
        sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        tell.get_or_init(|| count(&onlooker.lock().unwrap()));
    });
    let mut data = vec![1.0_f32; 1 << 18];
    let before = count(comm);
    comm.all_reduce_in_place(&mut data, &ReduceOp::Custom(looking))?;
    assert!(data.iter().all(|sum| *sum == 2.0));
    let during = *seen.get().expect("a share was combined");
    assert_eq!([during, count(comm)], [before + 1; 2]);
});

scenario!(
    communicators_beyond_those_that_are_shown_take_nothing_from_the_count,
    Job::of(2).heap_len(64 << 20),
    |comm| {
        let count = |comm: &Communicator| -> Result<u64> {
            Ok(comm.report()?.ranks[comm.rank().index()].work.operations)
        };
        let mut twins = (0..6).map(|_| comm.duplicate()).collect::<Result<Vec<_>>>()?;
        let before = count(comm)?;
        // Ordinary memory goes in many steps.
        let mut data = vec![1_u8; 4 << 20];
        for twin in &mut twins {
            twin.all_reduce_in_place(&mut data, &ReduceOp::Max)?;
        }
        let more = count(comm)?.wrapping_sub(before);
        assert!((1..=6).contains(&more), "{more}");
    }
);

scenario!(
    a_wait_that_times_out_names_who_holds_it_up,
    Job::of(3).timeout(Duration::from_millis(100)).broken(),
    |comm| {
        // Rank 0 waits for rank 1, which waits for rank 2, which looks on.
        let next = comm.right();
        let mut channel = comm.memory_channel(next)?;
        if comm.rank().get() == 0 {
            // It may have given up by then.
            look(comm, |report| !report.ranks[1].awaits().is_empty())?;
        }
        if comm.rank().get() < 2 {
            let error = channel.wait().unwrap_err();
            let straggler = match &error {
                Error::Timeout { operation: "wait", awaited, straggler, report, .. } => {
                    assert_eq!(*awaited, Some(next), "{error}");
                    let report: &Report = report.as_ref().unwrap().downcast_ref().unwrap();
                    assert_eq!(report.ranks[comm.rank().index()].awaits(), [next], "{report}");
                    assert!(format!("{error:#?}").ends_with(&format!("\n{report}")), "{error:#?}");
                    *straggler
                }
                // The others leave as soon as they have seen enough.
                Error::PeerLost { .. } | Error::Revoked { .. } => return Ok(()),
                _ => panic!("{error}"),
            };
            assert!(straggler.is_none_or(|rank| rank.get() == 2), "{error}");
            assert_eq!(
                error.to_string().contains("; all is held up by rank 2"),
                straggler.is_some(),
                "{error}"
            );
        } else {
            let report = look(comm, Report::has_timed_out)?;
            assert!(report.to_string().contains("in wait; "), "{report}");
        }
    }
);

scenario!(
    ranks_that_wait_for_each_other_are_a_knot,
    Job::of(2).timeout(Duration::from_millis(100)).broken(),
    |comm| {
        let mut channel = comm.memory_channel(comm.right())?;
        if comm.rank().get() == 0 {
            // Until the other one has seen enough, and leaves.
            while matches!(channel.wait(), Err(Error::Timeout { .. })) {}
            return Ok(());
        }
        look(comm, |report| !report.ranks[0].awaits().is_empty())?;
        let error = channel.wait().unwrap_err();
        assert!(!matches!(&error, Error::Timeout { straggler: Some(_), .. }), "{error}");
        let report = comm.report()?;
        assert!(report.stragglers().is_empty(), "{report}");
    }
);
