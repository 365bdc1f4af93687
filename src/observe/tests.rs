//! What an observer makes of segments that hold anything.

use std::os::fd::AsFd;

use super::{Job, Report};
use crate::channel::{CONTROL_LEN, Control, EpochMapping};
use crate::collective::tuning::{BufferKind, Case, Step, Table};
use crate::collective::{Algorithm, Operation};
use crate::comm::{Collectives, Communicator};
use crate::epoch_id::{EpochId, fresh_job_id};
use crate::error::Error;
use crate::heap::layout::{CONTROL_LEN as STRUCTURES_LEN, HeapShape};
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::shm::Segment;
use crate::sync::header::HEADER_LEN;

/// A control segment and that of a rank, of a job of `n_ranks`, to be filled with anything.
fn segments(n_ranks: u32) -> (impl AsFd, Segment) {
    let epoch_id = EpochId { job: fresh_job_id(), epoch: 1 };
    let shape = HeapShape::new(n_ranks, 2 << 20).unwrap();
    let segment = EpochMapping::create_segment(
        epoch_id,
        Rank::known(0),
        shape,
        &crate::bootstrap::SegmentBacking::Anonymous,
    );
    (Control::create(n_ranks, epoch_id).unwrap().1, segment.unwrap())
}

/// Bytes that nobody has chosen, the same at each run.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Now and then what ends of ranges are made of.
        let word = match state >> 61 {
            0 => 0,
            1 => u64::MAX,
            2 => state >> 58,
            _ => state,
        };
        word.to_le_bytes()
    });
    words.collect()
}

fn scribble(segment: &impl AsFd, seed: u64, start: u64, end: u64) {
    let bytes = noise(seed, end - start);
    let file = std::fs::File::from(segment.as_fd().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, start).unwrap();
}

#[test]
fn forged_words_are_shown_as_something_and_never_panic() {
    for seed in 0..200 {
        let (control, segment) = segments(4);
        scribble(&segment, seed, HEADER_LEN, STRUCTURES_LEN);
        // The number of ranks stays in half of the cases.
        let start = if seed % 2 == 0 { HEADER_LEN } else { 201_600 };
        scribble(&control, seed, start, CONTROL_LEN);
        match Report::take(control.as_fd(), |_| Some(&segment)) {
            Ok(report) => {
                assert!(report.to_string().lines().count() > report.ranks.len(), "seed {seed}: {report}")
            }
            Err(error) => assert!(seed % 2 == 0, "seed {seed}: {error}"),
        }
    }
}

#[test]
fn a_segment_that_is_no_control_segment_is_refused() {
    let (_, segment) = segments(2);
    assert!(Report::take(segment.as_fd(), |_| None::<&Segment>).is_err());
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(Report::take(null.as_fd(), |_| None::<&Segment>).is_err());
}

#[test]
fn a_job_of_threads_is_found_with_its_process_and_is_gone_with_it() {
    let options = crate::bootstrap::Options { heap_len: 2 << 20, ..Default::default() };
    let me = std::process::id();
    let ids = crate::launch::launch_threads(3, &options, |comm| {
        comm.barrier()?;
        let own = comm.report()?.job;
        let job = Job::newest().into_iter().find(|job| job.id == own).expect("it is running");
        // Another test may be about to start a process, which has everything open until it executes
        // its program.
        assert!(job.processes.contains(&me) && job.epoch == 1);
        let report = job.report()?;
        assert!(report.ranks.len() == 3 && report.ranks.iter().all(|rank| rank.pid == Some(me)), "{report}");
        comm.barrier()?;
        Ok(own)
    });
    let ids = ids.unwrap();
    crate::testing::wait_until("it is gone", || !Job::all().iter().any(|job| ids.contains(&job.id)));
}

#[test]
fn operations_count_once_whatever_steps_they_take_and_still_when_their_communicator_is_gone() {
    let options = crate::bootstrap::Options { heap_len: 16 << 20, ..Default::default() };
    let ran = crate::launch::launch_threads(2, &options, |comm| {
        let rank = comm.rank().index();
        let counted = |comm: &Communicator| Ok::<_, Error>(comm.report()?.ranks[rank].work.operations);
        comm.prepare()?;
        assert_eq!(counted(comm)?, 0);
        for count in [1, 3, 1 << 18] {
            comm.all_reduce_in_place(&mut vec![1.0_f32; count], &ReduceOp::Sum)?;
        }
        let mut other = comm.duplicate()?;
        assert_eq!(counted(comm)?, 4);
        other.barrier()?;
        other.all_reduce_in_place(&mut vec![1.0_f32; 1 << 18], &ReduceOp::Sum)?;
        assert_eq!(counted(comm)?, 6);
        drop(other);
        assert_eq!(counted(comm)?, 6);
        // Where the heap goes another way, the members meet before they know that one shot will do.
        let (operation, n_ranks, oversubscribed) = (Operation::AllReduce, 2, comm.is_oversubscribed()?);
        let case = |(buffers, algorithm): (BufferKind, Algorithm)| {
            let steps = vec![Step { up_to: None, algorithm: algorithm.into() }];
            Case { operation, n_ranks, oversubscribed, buffers, steps }
        };
        let ways =
            [(BufferKind::Heap, Algorithm::TwoShot), (BufferKind::Ordinary, Algorithm::OneShot)].map(case);
        comm.set_tuning(Table::new(&ways).unwrap())?;
        let before = counted(comm)?;
        comm.all_reduce_in_place(&mut [1.0_f32; 2], &ReduceOp::Sum)?;
        assert_eq!(counted(comm)?, before + 1);
        comm.barrier()
    });
    ran.unwrap();
}
