//! Operations that are started now and waited for later, or never.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shmccl::collective::{ChannelKind, CustomAlgorithm, Operation, Steps};
use shmccl::comm::Starting;
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::sync::interrupt::interruptible;
use shmccl::{Collectives, Communicator, Error, Result, Work};

use crate::harness::{Job, is_lost, panic_on_purpose, rank};
use crate::streams::{Log, all_are};

/// Around what is eager, what is staged, and what the worker begins at once.
const COUNTS: [usize; 5] = [0, 1, 1000, 20_000, 300_000];

/// Counts how often operations end.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<u64>>);

impl Ends {
    fn count(&self) -> impl FnOnce(&Result<(), Arc<Error>>) + Send + 'static {
        let ends = Arc::clone(&self.0);
        move |_| *ends.lock().unwrap() += 1
    }

    fn get(&self) -> u64 {
        *self.0.lock().unwrap()
    }
}

fn nothing(_: &Result<(), Arc<Error>>) {}

fn start_sum(comm: &mut Communicator, sums: &DeviceBuffer<u64>) -> Result<Work> {
    comm.start(nothing, |calls| calls.all_reduce_in_place(sums, &ReduceOp::Sum))
}

scenario!(what_is_started_runs_in_that_order_whoever_waits_for_what, Job::of(3).heap_len(32 << 20), |comm| {
    for count in COUNTS {
        let sums = comm.alloc::<u64>(count)?;
        for wait_for in [0, 3, 7] {
            sums.fill(1);
            // Each reads what the one before has written.
            let started = (0..8).map(|_| start_sum(comm, &sums)).collect::<Result<Vec<_>>>()?;
            started[wait_for].wait()?;
            assert!(started[..wait_for].iter().all(|work| matches!(work.outcome(), Some(Ok(())))));
            started.iter().rev().try_for_each(Work::wait)?;
            assert!(all_are(&sums, 3_u64.pow(8)), "{count} elements, waiting for {wait_for} first");
        }
    }
});

scenario!(what_nobody_waits_for_is_done, Job::of(2), |comm| {
    let (sums, log) = (comm.alloc::<u64>(1000)?, Log::default());
    sums.fill(1);
    let (tell, told) = channel();
    for number in 0..5 {
        let (adds, tell) = (log.adds(number), tell.clone());
        let done = move |outcome: &Result<(), Arc<Error>>| {
            assert!(outcome.is_ok());
            adds();
            tell.send(()).unwrap();
        };
        // The handle is dropped.
        comm.start(done, |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum))?;
    }
    for _ in 0..5 {
        told.recv().unwrap();
    }
    assert_eq!(log.entries(), [0, 1, 2, 3, 4]);
    assert!(all_are(&sums, 32));
    // So is what was asleep a while.
    std::thread::park_timeout(Duration::from_millis(100));
    comm.start(move |_| tell.send(()).unwrap(), |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum))?;
    told.recv().unwrap();
    assert!(all_are(&sums, 64));
});

scenario!(a_program_that_only_looks_sees_the_end, Job::of(2), |comm| {
    let sums = comm.alloc::<u64>(5)?;
    for round in 0..20 {
        sums.fill(round);
        let work = start_sum(comm, &sums)?;
        while !work.is_done() {
            std::thread::yield_now();
        }
        work.wait()?;
        assert!(all_are(&sums, 2 * round));
        let work = start_sum(comm, &sums)?;
        while !work.wait_timeout(Duration::from_micros(50))? {}
        assert!(all_are(&sums, 4 * round));
    }
});

scenario!(a_wait_that_ends_before_the_operation_leaves_it_going, Job::of(2), |comm| {
    let (sums, first) = (comm.alloc::<u64>(5)?, rank(comm, 0));
    sums.fill(1);
    comm.prepare()?;
    let mut channel = comm.memory_channel(comm.right())?;
    if comm.rank() == first {
        let work = start_sum(comm, &sums)?;
        assert!(!work.wait_timeout(Duration::from_millis(20))?);
        assert!(work.outcome().is_none());
        shmccl::channel::Channel::signal(&mut channel)?;
        work.wait()?;
    } else {
        shmccl::channel::Channel::wait(&mut channel)?;
        start_sum(comm, &sums)?.wait()?;
    }
    assert!(all_are(&sums, 2));
});

scenario!(a_call_at_once_comes_behind_what_was_started, Job::of(2), |comm| {
    let (stream, sums) = (comm.stream()?, comm.alloc::<u64>(1000)?);
    let mut expected = 1;
    sums.fill(expected);
    for round in 0..30 {
        for number in 0..round % 4 {
            if (round + number) % 3 == 0 {
                stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
            } else {
                start_sum(comm, &sums)?;
            }
            expected = 2 * expected % (1 << 40);
            if expected == 0 {
                expected = 1;
            }
        }
        match round % 3 {
            0 => comm.barrier()?,
            1 => comm.all_reduce_in_place(&sums, &ReduceOp::Max)?,
            _ => drop(comm.duplicate()?),
        }
        assert!(all_are(&sums, expected), "round {round}");
        sums.fill(1);
        expected = 1;
    }
});

/// Memory that a binding would lend and keep alive.
fn fixed(len: usize, byte: u8) -> &'static mut [u8] {
    Vec::leak(vec![byte; len])
}

scenario!(
    a_message_beside_a_started_call_of_all_ranks_does_not_wait_for_it,
    Job::of(2).heap_len(32 << 20),
    |comm| {
        // Messages go through a communicator of their own.
        let (sums, mut messages) = (comm.alloc::<u64>(3000)?, comm.duplicate()?);
        for len in [8, 1000, 4 << 20] {
            sums.fill(1);
            let mut bytes = vec![7_u8; len];
            if comm.rank() == rank(comm, 0) {
                let work = start_sum(comm, &sums)?;
                messages.send(&bytes, rank(&messages, 1))?;
                work.wait()?;
            } else {
                bytes.fill(0);
                messages.recv(&mut bytes, rank(&messages, 0))?;
                assert!(bytes.iter().all(|byte| *byte == 7));
                comm.all_reduce_in_place(&sums, &ReduceOp::Sum)?;
            }
            assert!(all_are(&sums, 2), "{len} bytes");
        }
    }
);

fn receives_first(comm: &mut Communicator) -> Result<()> {
    let (left, right) = (comm.left(), comm.right());
    for len in [0, 8, 40, 3000, 100_000, 2 << 20] {
        let received = [comm.alloc::<u8>(len)?, comm.alloc::<u8>(len)?];
        for reversed in [false, true] {
            let mut works = Vec::new();
            for buffer in &received {
                works.push(comm.start(nothing, |calls| calls.recv(buffer, left))?);
            }
            for number in [1, 2] {
                let bytes = fixed(len, number);
                works.push(comm.start(nothing, |calls| calls.send(&*bytes, right))?);
            }
            if reversed {
                works.reverse();
            }
            works.iter().try_for_each(Work::wait)?;
            assert!(all_are(&received[0], 1) && all_are(&received[1], 2), "{len} bytes, {reversed}");
            received.iter().for_each(|buffer| buffer.fill(0));
        }
        let [one, other] = received;
        comm.free(one)?;
        comm.free(other)?;
    }
    Ok(())
}

scenario!(
    receives_that_are_started_before_sends_on_all_ranks_are_done,
    Job::of(3).heap_len(64 << 20),
    |comm| {
        receives_first(comm)?;
        comm.set_channel_kind(ChannelKind::Port)?;
        receives_first(comm)?;
    }
);

scenario!(messages_that_nobody_waits_for_arrive, Job::of(2).heap_len(32 << 20), |comm| {
    let (first, ends) = (rank(comm, 0), Ends::default());
    let (peer, mut other) = (comm.right(), comm.duplicate()?);
    for len in [8, 5000, 3 << 20] {
        let received = comm.alloc::<u8>(len)?;
        if comm.rank() == first {
            let bytes = fixed(len, 9);
            other.start(ends.count(), |calls| calls.send(&*bytes, peer))?;
            comm.barrier()?;
        } else {
            let work = other.start(ends.count(), |calls| calls.recv(&received, peer))?;
            comm.barrier()?;
            while work.outcome().is_none() {
                std::thread::yield_now();
            }
            assert!(all_are(&received, 9), "{len} bytes");
        }
        comm.free(received)?;
    }
    drop(other);
    assert_eq!(ends.get(), 3);
});

scenario!(several_calls_are_started_as_one_operation, Job::of(3), |comm| {
    let (left, right) = (comm.left(), comm.right());
    let (sums, most) = (comm.alloc::<u64>(3)?, comm.alloc::<u64>(2000)?);
    let (sent, received) = (comm.alloc::<u8>(70_000)?, comm.alloc::<u8>(70_000)?);
    for round in 1..5 {
        sums.fill(round);
        most.fill(comm.rank().get().into());
        sent.fill(u8::try_from(comm.rank().get()).unwrap() + 1);
        let works = [
            comm.start(nothing, |calls| {
                calls.all_reduce_in_place(&sums, &ReduceOp::Sum)?;
                calls.all_reduce_in_place(&most, &ReduceOp::Max)
            })?,
            comm.start(nothing, |calls| {
                calls.send(&sent, right)?;
                calls.recv(&received, left)
            })?,
            comm.start(nothing, |calls| {
                calls.all_reduce_in_place(&sums, &ReduceOp::Sum)?;
                calls.send(&sent, right)?;
                calls.recv(&received, left)
            })?,
            comm.start(nothing, |_| Ok(()))?,
        ];
        works[usize::try_from(round).unwrap() % 4].wait()?;
        works.iter().try_for_each(Work::wait)?;
        assert!(all_are(&sums, 9 * round) && all_are(&most, 2));
        assert!(all_are(&received, u8::try_from(left.get()).unwrap() + 1));
    }
});

scenario!(a_message_of_a_rank_to_itself_is_received_by_the_same_start, Job::of(2), |comm| {
    let (me, sent, received) = (comm.rank(), comm.alloc::<u32>(9)?, comm.alloc::<u32>(9)?);
    sent.fill(5);
    let work = comm.start(nothing, |calls| {
        calls.recv(&received, me)?;
        calls.send(&sent, me)
    })?;
    work.wait()?;
    assert!(all_are(&received, 5));
    let refused = comm.start(nothing, |calls| calls.send(&sent, me)).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
});

scenario!(what_is_wrong_in_itself_is_not_started, Job::of(2), |comm| {
    let (three, four, ends) = (comm.alloc::<u32>(3)?, comm.alloc::<u32>(4)?, Ends::default());
    let refused = comm.start(ends.count(), |calls| calls.all_reduce(&three, &four, &ReduceOp::Sum));
    assert!(matches!(refused, Err(Error::WrongCount { .. })));
    // Nor is what was put before.
    let refused = comm.start(ends.count(), |calls| {
        calls.all_reduce_in_place(&three, &ReduceOp::Sum)?;
        Err(Error::Panicked)
    });
    assert!(matches!(refused, Err(Error::Panicked)));
    comm.barrier()?;
    assert_eq!(ends.get(), 0);
    // What belongs to an operation is dropped with it.
    assert_eq!(Arc::strong_count(&ends.0), 1);
});

scenario!(ten_thousand_operations_that_are_started_and_dropped_are_all_done, Job::of(2), |comm| {
    const MANY: u64 = 10_000;
    let (sums, ends) = (comm.alloc::<u64>(1)?, Ends::default());
    let (right, left) = (comm.right(), comm.left());
    let mut messages = comm.duplicate()?;
    // Of their own: nothing orders the two communicators.
    let (sent, received) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    sums.set(0, 1)?;
    for _ in 0..MANY {
        comm.start(ends.count(), |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Max))?;
    }
    for _ in 0..MANY / 10 {
        messages.start(ends.count(), |calls| calls.recv(&received, left))?;
        messages.start(ends.count(), |calls| calls.send(&sent, right))?;
    }
    comm.barrier()?;
    messages.barrier()?;
    assert_eq!(ends.get(), MANY + MANY / 5);
    assert_eq!(Arc::strong_count(&ends.0), 1, "what they own is gone");
});

scenario!(operations_that_several_threads_start_run_in_the_order_of_the_starts, Job::of(2), |comm| {
    const EACH: u32 = 200;
    let (sums, log) = (comm.alloc::<u64>(4)?, Log::default());
    let order = Mutex::new((&mut *comm, Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (order, log, sums) = (&order, &log, &sums);
            scope.spawn(move || {
                let mut last = None;
                for number in 0..EACH {
                    let (comm, started) = &mut *order.lock().unwrap();
                    let entry = thread * EACH + number;
                    let adds = log.adds(entry);
                    let work =
                        comm.start(move |_| adds(), |calls| calls.all_reduce_in_place(sums, &ReduceOp::Max));
                    started.push(entry);
                    last = Some(work.unwrap());
                }
                last.unwrap().wait().unwrap();
            });
        }
    });
    let (comm, started) = order.into_inner().unwrap();
    comm.barrier()?;
    assert_eq!(log.entries(), started);
});

scenario!(whatever_was_started_ends_when_a_peer_has_left, Job::of(3).broken(), |comm| {
    let (sums, received) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    let (gone, ends) = (rank(comm, 2), Ends::default());
    let mut messages = comm.duplicate()?;
    comm.barrier()?;
    if comm.rank() == gone {
        return Ok(());
    }
    let message = messages.start(ends.count(), |calls| calls.recv(&received, gone))?;
    let first = comm.start(ends.count(), |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum))?;
    let second = comm.start(ends.count(), |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum))?;
    for work in [second, first, message] {
        let error = work.wait().unwrap_err();
        assert!(matches!(error, Error::WorkFailed { .. }), "{error:?}");
        let origin = error.origin();
        assert!(is_lost(origin, gone) || matches!(origin, Error::Revoked { .. }), "{error:?}");
        assert!(work.is_done() && matches!(work.outcome(), Some(Err(_))));
    }
    assert_eq!(ends.get(), 3);
});

scenario!(whatever_was_started_ends_when_the_epoch_does, Job::of(2).broken(), |comm| {
    let (sums, received, ends) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?, Ends::default());
    let (left, mut messages) = (comm.left(), comm.duplicate()?);
    comm.barrier()?;
    let message = messages.start(ends.count(), |calls| calls.recv(&received, left))?;
    let mut works = Vec::new();
    if comm.rank() == rank(comm, 0) {
        for _ in 0..100 {
            works.push(comm.start(ends.count(), |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum))?);
        }
        comm.revoke();
    }
    works.push(message);
    for work in &works {
        // Nobody has to wait: they end by themselves.
        while work.outcome().is_none() {
            std::thread::yield_now();
        }
        assert!(matches!(work.wait().unwrap_err().origin(), Error::Revoked { .. } | Error::PeerLost { .. }));
    }
    assert_eq!(ends.get(), works.len() as u64);
    let refused = messages.start(ends.count(), |calls| calls.recv(&received, left));
    assert!(refused.is_err());
});

scenario!(
    a_deadline_ends_what_was_started,
    Job::of(2).timeout(Duration::from_millis(200)).broken(),
    |comm| {
        let (sums, first) = (comm.alloc::<u64>(1)?, rank(comm, 0));
        comm.prepare()?;
        if comm.rank() == first {
            let error = start_sum(comm, &sums)?.wait().unwrap_err();
            assert!(matches!(error.origin(), Error::Timeout { .. } | Error::PeerLost { .. }), "{error:?}");
        } else {
            while comm.revoked().is_none() {
                std::thread::yield_now();
            }
        }
    }
);

scenario!(
    a_communicator_that_is_dropped_has_done_what_was_started_but_for_receives_of_nothing,
    Job::of(2),
    |comm| {
        let (sums, received, ends) = (comm.alloc::<u64>(3000)?, comm.alloc::<u64>(1)?, Ends::default());
        let left = comm.left();
        for round in 0..5 {
            sums.fill(1);
            let mut double = comm.duplicate()?;
            let works: Vec<_> = (0..3)
                .map(|_| double.start(ends.count(), |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum)))
                .collect::<Result<_>>()?;
            let message = double.start(ends.count(), |calls| calls.recv(&received, left))?;
            drop(double);
            assert!(all_are(&sums, 8), "round {round}");
            works.iter().try_for_each(Work::wait)?;
            let error = message.wait().unwrap_err();
            assert!(matches!(error.origin(), Error::Unavailable { operation: "recv", .. }), "{error:?}");
        }
        assert_eq!((ends.get(), Arc::strong_count(&ends.0)), (20, 1));
    }
);

scenario!(a_function_that_panics_at_the_end_of_an_operation_is_told_to_who_waits, Job::of(2), |comm| {
    let sums = comm.alloc::<u64>(1)?;
    let panics = |_: &Result<(), Arc<Error>>| panic_on_purpose();
    let work = comm.start(panics, |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum))?;
    let error = work.wait().unwrap_err();
    assert!(matches!(error.origin(), Error::Panicked), "{error:?}");
    start_sum(comm, &sums)?.wait()?;
});

/// Panics in the middle of a call, without the message, which two threads would print at once.
#[derive(Debug)]
struct Panics;

impl CustomAlgorithm for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn run(&self, _: &mut Steps<'_>) -> Result<()> {
        panic_on_purpose()
    }
}

scenario!(an_algorithm_that_panics_in_a_started_call_ends_it_and_the_epoch, Job::of(2).broken(), |comm| {
    let (sums, ends) = (comm.alloc::<u64>(1)?, Ends::default());
    comm.register_algorithm(Operation::AllReduce, Arc::new(Panics))?;
    let sum = |calls: &mut Starting| calls.all_reduce_in_place(&sums, &ReduceOp::Sum);
    let works = [comm.start(ends.count(), sum)?, comm.start(ends.count(), sum)?];
    for work in &works {
        let error = work.wait().unwrap_err();
        let is_expected =
            matches!(error.origin(), Error::Panicked | Error::Revoked { .. } | Error::PeerLost { .. });
        assert!(is_expected, "{error:?}");
    }
    assert_eq!(ends.get(), 2);
});

scenario!(a_wait_that_is_cancelled_leaves_the_operation_going, Job::of(2), |comm| {
    let (sums, received, left, right) =
        (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?, comm.left(), comm.right());
    let is_cancelled = |work: &Work| {
        let error = interruptible(|| true, || work.wait()).unwrap_err();
        let within = interruptible(|| true, || work.wait_timeout(Duration::MAX)).unwrap_err();
        let are_told = [&error, &within].map(|error| matches!(error, Error::Cancelled { .. }));
        are_told == [true; 2] && work.outcome().is_none()
    };
    let mut messages = comm.duplicate()?;
    sums.set(0, 1)?;
    // The peer has not sent it.
    let message = messages.start(nothing, |calls| calls.recv(&received, left))?;
    assert!(is_cancelled(&message));
    // The worker does not come to it.
    let ((entered, began), (release, released)) = (channel(), channel::<()>());
    let stays = move |_: &Result<(), Arc<Error>>| {
        entered.send(()).unwrap();
        assert!(released.recv().is_err(), "nobody sends");
    };
    comm.start(stays, |calls| calls.all_reduce_in_place(&sums, &ReduceOp::Sum))?;
    began.recv().unwrap();
    let second = start_sum(comm, &sums)?;
    assert!(is_cancelled(&second));
    drop(release);
    second.wait()?;
    assert_eq!(sums.get(0)?, 4);
    messages.start(nothing, |calls| calls.send(&sums, right))?;
    message.wait()?;
    assert_eq!(received.get(0)?, 4);
});
