//! Failures of streams: what is wrong is refused, and what fails later is told with the operation's
//! name.

use std::time::Duration;

use shmccl::bootstrap::Options;
use shmccl::channel::Channel;
use shmccl::comm::stream::{Event, HostBuffer};
use shmccl::heap::{HeapOffset, HeapPlace};
use shmccl::launch::launch_threads;
use shmccl::reduce::{CustomOp, ReduceOp};
use shmccl::{Collectives, Communicator, Error, Result};

use crate::harness::{Job, Watchdog, is_lost, panic_on_purpose, panicked, rank};
use crate::streams::{Log, all_are, names};

scenario!(arguments_that_are_wrong_are_refused_at_once, Job::of(2), |comm| {
    let stream = comm.stream()?;
    let (three, four) = (comm.alloc::<u32>(3)?, comm.alloc::<u32>(4)?);
    let refused = |error| matches!(error, Err(Error::WrongCount { .. }));
    assert!(refused(stream.on(comm).all_reduce(&three, &four, &ReduceOp::Sum)));
    let uneven = stream.on(comm).all_to_all(&three, &three);
    assert!(matches!(uneven, Err(Error::InvalidArgument { value: 3, .. })), "{uneven:?}");
    assert!(refused(stream.copy_host_to_device(vec![0; 4], &three)));
    assert!(refused(stream.copy_device_to_host(&four, &HostBuffer::zeroed(3))));
    let here = HeapPlace { rank: comm.rank(), offset: HeapOffset::ZERO };
    let nowhere = HeapPlace { offset: HeapOffset::new(u64::MAX - 8), ..here };
    for (source, target) in [(here, nowhere), (nowhere, here)] {
        let error = stream.copy_device_to_device(source, target, 16);
        assert!(matches!(error, Err(Error::OutOfRange { .. })));
    }
    let nobody = HeapPlace { rank: shmccl::Rank::new(2, 3)?, ..here };
    let error = stream.copy_device_to_device(nobody, here, 0);
    assert!(matches!(error, Err(Error::InvalidRank { rank: 2, n_ranks: 2 })));
    stream.synchronise()?;
});

scenario!(after_a_failure_a_stream_does_nothing_and_names_it, Job::of(2), |comm| {
    let (stream, other) = (comm.stream()?, comm.stream()?);
    let sums = comm.alloc::<u64>(3)?;
    let (log, event) = (Log::default(), Event::new());
    stream.fill(&sums, 5)?;
    // A panic without the message, which two ranks that are threads would print at once.
    stream.call(|| panic_on_purpose())?;
    // The failure may be known by now, so each of these may tell it; they are not executed either
    // way.
    let _ = stream.call(log.adds(1));
    let _ = stream.fill(&sums, 6);
    let _ = stream.record(&event);
    for _ in 0..2 {
        let error = stream.synchronise().unwrap_err();
        assert!(names(&error, "call", 2) && matches!(error.origin(), Error::Panicked), "{error}");
        assert_eq!(error.to_string(), "operation 2 of the stream, call, failed");
    }
    for error in
        [stream.query().map(drop), event.query().map(drop), event.synchronise(), stream.record(&event)]
    {
        assert!(names(&error.unwrap_err(), "call", 2));
    }
    assert!(all_are(&sums, 5));
    // The failure goes where the event is awaited, and nowhere else.
    other.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    other.synchronise()?;
    assert!(all_are(&sums, 10));
    other.wait(&event)?;
    let error = other.synchronise().unwrap_err();
    assert!(names(&error, "wait", 2) && matches!(error.origin(), Error::Panicked), "{error:?}");
    assert!(log.entries().is_empty());
});

scenario!(
    a_call_that_a_stream_skips_ends_the_epoch_rather_than_pair_the_next_one,
    Job::of(2).broken(),
    |comm| {
        let (stream, behind) = (comm.stream()?, rank(comm, 0));
        let (first, second) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
        comm.barrier()?;
        if comm.rank() == behind {
            stream.call(|| panic_on_purpose())?;
        }
        let _ = stream.on(comm).all_reduce_in_place(&first, &ReduceOp::Sum);
        let error = stream.synchronise().unwrap_err();
        if comm.rank() == behind {
            assert!(matches!(error.origin(), Error::Panicked), "{error:?}");
        } else {
            assert!(matches!(error.origin(), Error::Revoked { by, .. } if *by == Some(behind)), "{error:?}");
        }
        // Of the same type, count and operator, it would be taken for the first.
        let error = comm.all_reduce_in_place(&second, &ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Revoked { by, .. } if by == Some(behind)), "{error:?}");
    }
);

scenario!(a_peer_that_leaves_is_lost_to_the_operation_that_needs_it, Job::of(2).broken(), |comm| {
    let (stream, sums) = (comm.stream()?, comm.alloc::<u64>(1)?);
    let log = Log::default();
    stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    let gone = rank(comm, 1);
    if comm.rank() == gone {
        return stream.synchronise();
    }
    stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    let _ = stream.call(log.adds(1));
    let error = stream.synchronise().unwrap_err();
    assert!(names(&error, "all_reduce", 2) && is_lost(error.origin(), gone), "{error:?}");
    assert!(log.entries().is_empty());
});

/// Starts two ranks that wait for each other for ever, and expects that the second panics.
fn second_panics(name: &str, body: impl Fn(&mut Communicator) -> Result<()> + Sync) {
    let _watchdog = Watchdog::start(name, Duration::from_secs(60));
    let options = Options { timeout: Duration::from_secs(3600), ..Options::default() };
    let error = launch_threads(2, &options, |comm| body(comm)).unwrap_err();
    assert!(panicked(&error, shmccl::Rank::new(1, 2).unwrap()), "{error}");
}

#[test]
fn a_rank_that_panics_waits_for_nothing_that_it_has_enqueued() {
    second_panics("a rank that panics with work enqueued", |comm| {
        let (lost, sums) = (rank(comm, 1), comm.alloc::<u64>(1)?);
        let stream = comm.stream()?;
        stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
        stream.synchronise()?;
        if comm.rank() == lost {
            // The other one never comes to this.
            stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
            panic_on_purpose();
        }
        let error = comm.memory_channel(lost)?.wait().unwrap_err();
        assert!(is_lost(&error, lost), "{error}");
        Err(error)
    });
}

#[test]
fn an_operator_that_panics_in_an_enqueued_call_ends_the_epoch() {
    second_panics("an operator that panics", |comm| {
        let (lost, sums) = (rank(comm, 1), comm.alloc::<u64>(3000)?);
        let is_lost_rank = comm.rank() == lost;
        let op = CustomOp::new("sum", move |sums: &mut [u64], others: &[u64]| {
            if is_lost_rank {
                panic_on_purpose()
            }
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        });
        let stream = comm.stream()?;
        stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Custom(op))?;
        stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum).ok();
        let error = stream.synchronise().unwrap_err();
        // A peer hears of the epoch's end first, or already of the death that follows it.
        let expected = match error.origin() {
            Error::Panicked => is_lost_rank,
            Error::Revoked { by, .. } => !is_lost_rank && *by == Some(lost),
            origin => !is_lost_rank && is_lost(origin, lost),
        };
        assert!(expected, "{error:?}");
        assert!(!is_lost_rank, "as a program may answer to the error");
        Err(error)
    });
}

scenario!(a_function_that_fails_fails_its_stream_with_its_error, Job::of(1), |comm| {
    let stream = comm.stream()?;
    stream.try_call(|| Ok(()))?;
    stream.try_call(|| Err(Error::Unavailable { operation: "this", needs: "that" }))?;
    let error = stream.synchronise().unwrap_err();
    assert!(names(&error, "call", 2) && error.origin().to_string() == "this needs that", "{error:?}");
});
