//! Streams: what is enqueued is done in order, behind the program's back.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::collective::Algorithm;
use shmccl::comm::stream::{Event, HostBuffer, Stream, StreamStatus};
use shmccl::heap::{DeviceBuffer, HeapPlace};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Error, Group, Result};

use crate::harness::{Job, rank};

/// Around an element, an eager slot, a piece of the scratch.
const COUNTS: [usize; 8] = [0, 1, 3, 1000, 2048, 2049, 100_003, 300_000];

/// Whether `error` says that operation `number` of a stream, called `name`, was the first to fail.
pub(crate) fn names(error: &Error, name: &str, number: u64) -> bool {
    matches!(error, Error::StreamFailed { operation, number: n, .. } if *operation == name && *n == number)
}

pub(crate) fn all_are<T: bytemuck::Pod + PartialEq>(buffer: &DeviceBuffer<T>, expected: T) -> bool {
    buffer.to_vec().iter().all(|element| *element == expected)
}

/// A function that returns when the sender is gone.
fn until_released(sender: Receiver<()>) -> impl FnOnce() + Send + 'static {
    move || assert!(sender.recv().is_err(), "nobody sends")
}

/// A log to which operations of streams add.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    fn add(&self, entry: u32) {
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn adds(&self, entry: u32) -> impl FnOnce() + Send + 'static {
        let log = self.clone();
        move || log.add(entry)
    }

    pub(crate) fn entries(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

scenario!(what_is_enqueued_is_done_in_that_order, Job::of(3), |comm| {
    const ROUNDS: u32 = 12;
    let stream = comm.stream()?;
    let log = Log::default();
    for count in COUNTS {
        let sums = comm.alloc::<u64>(count)?;
        let seen = HostBuffer::<u64>::zeroed(count);
        stream.fill(&sums, 1)?;
        for round in 0..ROUNDS {
            stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
            stream.call(log.adds(round))?;
        }
        stream.copy_device_to_host(&sums, &seen)?;
        stream.fill(&sums, 0)?;
        stream.synchronise()?;
        assert_eq!(stream.query()?, StreamStatus::Success);
        assert!(seen.to_vec().iter().all(|&sum| sum == 3_u64.pow(ROUNDS)), "{count} elements");
        assert!(all_are(&sums, 0));
    }
    let once: Vec<_> = (0..ROUNDS).collect();
    assert_eq!(log.entries(), once.repeat(COUNTS.len()));
});

scenario!(a_call_at_once_comes_after_those_that_were_enqueued, Job::of(2), |comm| {
    let (stream, sums) = (comm.stream()?, comm.alloc::<u64>(100_003)?);
    let mut expected = 1;
    sums.fill(expected);
    for round in 0..20 {
        for _ in 0..round % 3 {
            stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
            expected *= 2;
        }
        match round % 4 {
            0 => comm.all_reduce_in_place(&sums, &ReduceOp::Max)?,
            1 => {
                comm.all_reduce_in_place(&sums, &ReduceOp::Sum)?;
                expected *= 2;
            }
            _ => comm.barrier()?,
        }
        assert!(all_are(&sums, expected), "round {round}");
    }
});

scenario!(calls_of_one_communicator_run_in_their_order_on_whatever_streams, Job::of(2), |comm| {
    let streams = [comm.stream()?, comm.stream()?, comm.stream()?];
    let buffers: Vec<_> = (0..=30).map(|_| comm.alloc::<u64>(33)).collect::<Result<_>>()?;
    buffers[0].fill(1);
    // Each call reads what the one before has written, on another stream and without an event.
    for (index, pair) in buffers.windows(2).enumerate() {
        streams[index % 3].on(comm).all_reduce(&pair[0], &pair[1], &ReduceOp::Sum)?;
    }
    for stream in &streams {
        stream.synchronise()?;
    }
    assert!(all_are(&buffers[30], 1 << 30));
});

scenario!(streams_run_at_the_same_time_and_wait_for_each_others_events, Job::of(2), |comm| {
    let (one, other) = (comm.stream()?, comm.stream()?);
    let log = Log::default();
    // Each waits for something that the other does later than something that it waits for.
    let ((to_one, of_one), (to_other, of_other)) = (channel(), channel());
    one.call(move || of_one.recv().unwrap())?;
    one.call(move || to_other.send(()).unwrap())?;
    other.call(move || to_one.send(()).unwrap())?;
    other.call(move || of_other.recv().unwrap())?;
    // And by events: 0 to 9 in turn.
    for entry in (0..10).step_by(2) {
        let (first, second) = (Event::new(), Event::new());
        one.call(log.adds(entry))?;
        one.record(&first)?;
        other.wait(&first)?;
        other.call(log.adds(entry + 1))?;
        other.record(&second)?;
        one.wait(&second)?;
    }
    one.synchronise()?;
    assert_eq!(log.entries(), Vec::from_iter(0..10));
    // A call on one stream goes on while the other is stuck.
    let (release, stuck) = channel::<()>();
    let sums = comm.alloc::<u64>(5)?;
    one.call(until_released(stuck))?;
    other.fill(&sums, 4)?;
    other.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    other.synchronise()?;
    assert_eq!(one.query()?, StreamStatus::InProgress);
    assert!(all_are(&sums, 8));
    drop(release);
});

scenario!(calls_of_two_communicators_on_two_streams_overlap, Job::of(3), |comm| {
    let (stream, other) = (comm.stream()?, comm.stream()?);
    let (sums, greatest) = (comm.alloc::<u64>(5000)?, comm.alloc::<u64>(5000)?);
    sums.fill(1);
    greatest.fill(comm.rank().get().into());
    let mut double = comm.duplicate()?;
    if comm.rank() == rank(comm, 0) {
        // The others begin this one only when the second is done, which takes this rank as well.
        stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
        other.on(&mut double).all_reduce_in_place(&greatest, &ReduceOp::Max)?;
        other.synchronise()?;
        assert_eq!(stream.query()?, StreamStatus::InProgress);
        comm.memory_channel(comm.right())?.signal()?;
        comm.memory_channel(comm.left())?.signal()?;
    } else {
        other.on(&mut double).all_reduce_in_place(&greatest, &ReduceOp::Max)?;
        other.synchronise()?;
        comm.memory_channel(rank(comm, 0))?.wait()?;
        stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    }
    // A communicator that is dropped has done what it has enqueued.
    other.on(&mut double).all_reduce_in_place(&greatest, &ReduceOp::Sum)?;
    drop(double);
    assert!(all_are(&greatest, 6));
    comm.all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    assert!(all_are(&sums, 9));
});

scenario!(events_tell_what_was_reached_and_when, Job::of(1), |comm| {
    let stream = comm.stream()?;
    let (start, end) = (Event::new(), Event::new());
    assert_eq!(start.query()?, StreamStatus::Success);
    start.synchronise()?;
    stream.wait(&start)?; // never recorded: keeps nobody waiting
    let refused = |error| matches!(error, Err(Error::Unavailable { operation: "elapsed_since", .. }));
    assert!(refused(end.elapsed_since(&start)));
    let (release, released) = channel::<()>();
    stream.record(&start)?;
    stream.call(until_released(released))?;
    stream.call(|| std::thread::park_timeout(Duration::from_millis(3)))?;
    stream.record(&end)?;
    start.synchronise()?;
    assert_eq!(end.query()?, StreamStatus::InProgress);
    assert!(refused(end.elapsed_since(&start)));
    drop(release);
    end.synchronise()?;
    assert_eq!(end.query()?, StreamStatus::Success);
    assert!(end.elapsed_since(&start)? > Duration::ZERO);
    assert_eq!(start.elapsed_since(&end)?, Duration::ZERO);
    // Recorded again it is new to whoever asks; whoever waits already waits for the old one.
    let other = comm.stream()?;
    let (release, released) = channel::<()>();
    other.wait(&end)?;
    stream.call(until_released(released))?;
    stream.record(&end)?;
    other.synchronise()?;
    assert_eq!(end.query()?, StreamStatus::InProgress);
    drop(release);
    stream.synchronise()?;
});

scenario!(copies_bring_every_size_to_host_device_and_peer, Job::of(3).heap_len(32 << 20), |comm| {
    static FIXED: [u32; 3] = [7, 8, 9];
    let (me, right) = (comm.rank().get(), comm.right());
    let stream = comm.stream()?;
    for count in [0, 1, 3, 1023, 100_003, 1 << 20] {
        let elements = |rank: u32| (0..count).map(move |index| rank * 1000 + u32::try_from(index).unwrap());
        let (sent, received) = (comm.alloc::<u32>(count)?, comm.alloc::<u32>(count)?);
        let (host, back) = (HostBuffer::<u32>::zeroed(count), HostBuffer::<u32>::zeroed(count));
        stream.copy_host_to_device(elements(me).collect::<Vec<_>>(), &sent)?;
        stream.copy_device_to_host(&sent, &host)?;
        stream.fill(&sent, 0)?;
        stream.copy_host_to_device(&host, &sent)?;
        let place = |buffer: &DeviceBuffer<u32>, rank| HeapPlace { rank, offset: buffer.region().offset };
        stream.copy_device_to_device(
            place(&sent, comm.rank()),
            place(&received, right),
            sent.region().len,
        )?;
        stream.synchronise()?;
        comm.barrier()?;
        stream.copy_device_to_host(&received, &back)?;
        stream.synchronise()?;
        assert!(host.to_vec().into_iter().eq(elements(me)), "{count} elements");
        assert!(back.to_vec().into_iter().eq(elements(comm.left().get())), "{count} elements");
        comm.free(received)?;
        comm.free(sent)?;
    }
    let few = comm.alloc::<u32>(3)?;
    stream.copy_host_to_device(&FIXED[..], &few)?;
    stream.synchronise()?;
    assert_eq!(few.to_vec(), FIXED);
    stream.copy_host_to_device(Arc::<[u32]>::from([1, 2, 3]), &few)?;
    stream.synchronise()?;
    assert_eq!(few.to_vec(), [1, 2, 3]);
});

scenario!(a_call_is_done_in_the_manner_of_when_it_was_enqueued, Job::of(2), |comm| {
    let (stream, other) = (comm.stream()?, comm.stream()?);
    let sums = comm.alloc::<u64>(3000)?;
    sums.fill(1);
    let (release, released) = channel::<()>();
    stream.call(until_released(released))?;
    comm.set_algorithm(Some(Algorithm::Ring));
    stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    let root = rank(comm, 0);
    stream.on(comm).broadcast(&sums, &sums, root)?;
    comm.set_algorithm(None);
    other.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    // Calls that went by this would be a mismatch.
    comm.set_algorithm((comm.rank() == root).then_some(Algorithm::Tree));
    drop(release);
    stream.synchronise()?;
    other.synchronise()?;
    comm.set_algorithm(None);
    assert!(all_are(&sums, 4));
});

scenario!(what_is_enqueued_is_done_before_a_stream_is_gone, Job::of(2), |comm| {
    let (log, sums) = (Log::default(), comm.alloc::<u64>(1000)?);
    for round in 0..5 {
        let stream = comm.stream()?;
        stream.fill(&sums, 1)?;
        for _ in 0..10 {
            stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
        }
        stream.call(log.adds(round))?;
        drop(stream);
        assert!(all_are(&sums, 1 << 10));
    }
    assert_eq!(log.entries(), [0, 1, 2, 3, 4]);
});

scenario!(a_stream_that_its_own_function_drops_ends_by_itself, Job::of(1), |comm| {
    let stream = Arc::new(comm.stream()?);
    let ((hand_over, stream_comes), (tell, told)) = (channel::<Arc<Stream>>(), channel());
    stream.call(move || {
        let stream = stream_comes.recv().unwrap();
        let refused = stream.synchronise();
        assert!(matches!(refused, Err(Error::Unavailable { operation: "synchronise", .. })));
        stream.call(move || tell.send(()).unwrap()).unwrap();
    })?;
    hand_over.send(stream).unwrap();
    // What it has enqueued is done; then the thread drops what it holds.
    told.recv().unwrap();
});

scenario!(many_streams_of_many_ranks_share_few_cores, Job::of(8), |comm| {
    const N: u64 = 8;
    let streams = [comm.stream()?, comm.stream()?];
    let sums: Vec<_> = (0..4).map(|_| comm.alloc::<u64>(10_000)).collect::<Result<_>>()?;
    for round in 0..10 {
        for (index, sums) in sums.iter().enumerate() {
            let stream = &streams[index % 2];
            stream.fill(sums, round)?;
            stream.on(comm).all_reduce_in_place(sums, &ReduceOp::Sum)?;
        }
        streams.iter().try_for_each(Stream::synchronise)?;
        assert!(sums.iter().all(|sums| all_are(sums, round * N)), "round {round}");
        comm.barrier()?;
    }
});

scenario!(
    messages_of_a_group_on_a_stream_do_not_wait_for_each_other,
    Job::of(3).heap_len(64 << 20),
    |comm| {
        let (right, left) = (comm.right(), comm.left());
        // Longer than what goes before the peer has called.
        let (sent, received) = (comm.alloc::<u8>(1 << 20)?, comm.alloc::<u8>(1 << 20)?);
        let sums = comm.alloc::<u32>(8)?;
        sent.fill(comm.rank().get().to_le_bytes()[0] + 1);
        sums.copy_from_slice(0, &[1; 8])?;
        let stream = comm.stream()?;
        let mut group = Group::start();
        let all = group.join(comm);
        group.on(all).send(&sent, right)?;
        group.on(all).recv(&received, left)?;
        group.on(all).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
        group.end_on(&stream)?;
        stream.synchronise()?;
        assert_eq!(received.get((1 << 20) - 1)?, left.get().to_le_bytes()[0] + 1);
        assert_eq!(sums.get(7)?, 3);
    }
);

scenario!(
    groups_of_two_communicators_on_streams_do_not_wait_for_each_other_in_whatever_order_ranks_put_them_in,
    Job::of(3).heap_len(16 << 20),
    |comm| {
        let mut other = comm.duplicate()?;
        let me = comm.rank().get();
        let (sums, others) = (comm.alloc::<u32>(300)?, comm.alloc::<u32>(5000)?);
        let (sent, received) = (comm.alloc::<u32>(1)?, comm.alloc::<u32>(1)?);
        let streams = [comm.stream()?, comm.stream()?];
        let (right, left) = (comm.right(), comm.left());
        for round in 0..20 {
            sums.fill(me + round);
            others.fill(me);
            sent.fill(10 * me + round);
            let mut group = Group::start();
            let [one, two] = if me == 1 {
                let two = group.join(&mut other);
                [group.join(comm), two]
            } else {
                [group.join(comm), group.join(&mut other)]
            };
            for is_first in [me != 2, me == 2] {
                group.nest(|group| {
                    if is_first {
                        group.on(one).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
                        group.on(one).recv(&received, left)
                    } else {
                        group.on(two).all_reduce_in_place(&others, &ReduceOp::Sum)
                    }
                })?;
            }
            group.on(one).send(&sent, right)?;
            // Which stream takes it is each rank's own business.
            group.end_on(&streams[((me + round) % 2) as usize])?;
            // And by the other one, behind it.
            streams[((me + round + 1) % 2) as usize]
                .on(&mut other)
                .all_reduce_in_place(&others, &ReduceOp::Sum)?;
            streams.iter().try_for_each(Stream::synchronise)?;
            assert_eq!((sums.get(299)?, others.get(4999)?), (3 + 3 * round, 9));
            assert_eq!(received.get(0)?, 10 * left.get() + round);
        }
    }
);
