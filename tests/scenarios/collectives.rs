//! Every collective operation against what it is to do, element by element, on buffers of both
//! kinds.

use shmccl::collective::CallMismatch;
use shmccl::heap::DeviceBuffer;
use shmccl::rank::Rank;
use shmccl::reduce::{Bool, Complex64, CustomOp, Element, ReduceOp, Scalar};
use shmccl::{Collectives, Communicator, Error, Group, Result};

use crate::harness::Job;

/// Around what fits into a post, into an eager slot, and into a piece of the scratch.
const COUNTS: [usize; 12] = [0, 1, 2, 3, 21, 22, 23, 1000, 2048, 2049, 100_003, 300_000];

/// Elements repeat after so many.
const PERIOD: usize = 64;

/// Element `index` of what `rank` contributes to `round`: small whole numbers, whose sums are
/// exact.
fn element(round: usize, rank: usize, index: usize) -> f32 {
    u8::try_from((round * 7 + rank * 31 + index * 13) % PERIOD).unwrap().into()
}

fn elements(range: std::ops::Range<usize>, element: impl Fn(usize) -> f32) -> Vec<f32> {
    let period: Vec<_> = (range.start..range.start + PERIOD).map(element).collect();
    let mut elements = period.repeat(range.len().div_ceil(PERIOD));
    elements.truncate(range.len());
    elements
}

/// The place of one rank in one operation.
#[derive(Clone, Copy)]
pub(crate) struct CallCase {
    pub(crate) round: usize,
    pub(crate) me: usize,
    pub(crate) n: usize,
    pub(crate) count: usize,
}

impl CallCase {
    pub(crate) fn root(self) -> Rank {
        Rank::new(u32::try_from(self.round % self.n).unwrap(), u32::try_from(self.n).unwrap()).unwrap()
    }

    fn input(self, rank: usize, range: std::ops::Range<usize>) -> Vec<f32> {
        elements(range, |index| element(self.round, rank, index))
    }

    fn sum(self, range: std::ops::Range<usize>) -> Vec<f32> {
        elements(range, |index| (0..self.n).map(|rank| element(self.round, rank, index)).sum())
    }

    /// Block `index` of a buffer of several.
    fn block(self, index: usize) -> std::ops::Range<usize> {
        index * self.count..(index + 1) * self.count
    }

    fn all(self, blocks: impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
        (0..self.n).map(blocks).collect::<Vec<_>>().concat()
    }

    /// `buffer` at the root, nothing elsewhere.
    fn at_root(self, buffer: Vec<f32>) -> Vec<f32> {
        if self.root().index() == self.me { buffer } else { Vec::new() }
    }
}

/// Where the buffers of a call are.
pub(crate) enum Buffers<'a> {
    Heap(&'a DeviceBuffer<f32>, &'a DeviceBuffer<f32>),
    Memory(&'a [f32], &'a mut [f32]),
}

/// Calls an operation on buffers of either kind.
macro_rules! call {
    ($comm:ident, $buffers:ident, $name:ident $(, $rest:expr)*) => {
        match $buffers {
            Buffers::Heap(send, recv) => $comm.$name(send, recv $(, $rest)*),
            Buffers::Memory(send, recv) => $comm.$name(send, recv $(, $rest)*),
        }
    };
}

/// An operation: what a rank sends, what it is to get, and the call.
pub(crate) type Operation = (
    fn(CallCase) -> Vec<f32>,
    fn(CallCase) -> Vec<f32>,
    fn(&mut Communicator, CallCase, Buffers<'_>) -> Result<()>,
);

pub(crate) const OPERATIONS: [Operation; 8] = [
    (
        |case| case.input(case.me, 0..case.count),
        |case| case.sum(0..case.count),
        |comm, _, buffers| call!(comm, buffers, all_reduce, &ReduceOp::Sum),
    ),
    (
        |case| case.input(case.me, 0..case.count),
        |case| case.at_root(case.sum(0..case.count)),
        |comm, case, buffers| call!(comm, buffers, reduce, &ReduceOp::Sum, case.root()),
    ),
    (
        |case| case.at_root(case.input(case.me, 0..case.count)),
        |case| case.input(case.root().index(), 0..case.count),
        |comm, case, buffers| call!(comm, buffers, broadcast, case.root()),
    ),
    (
        |case| case.input(case.me, 0..case.count),
        |case| case.all(|rank| case.input(rank, 0..case.count)),
        |comm, _, buffers| call!(comm, buffers, all_gather),
    ),
    (
        |case| case.input(case.me, 0..case.n * case.count),
        |case| case.sum(case.block(case.me)),
        |comm, _, buffers| call!(comm, buffers, reduce_scatter, &ReduceOp::Sum),
    ),
    (
        |case| case.input(case.me, 0..case.n * case.count),
        |case| case.all(|rank| case.input(rank, case.block(case.me))),
        |comm, _, buffers| call!(comm, buffers, all_to_all),
    ),
    (
        |case| case.input(case.me, 0..case.count),
        |case| case.at_root(case.all(|rank| case.input(rank, 0..case.count))),
        |comm, case, buffers| call!(comm, buffers, gather, case.root()),
    ),
    (
        |case| case.at_root(case.input(case.me, 0..case.n * case.count)),
        |case| case.input(case.root().index(), case.block(case.me)),
        |comm, case, buffers| call!(comm, buffers, scatter, case.root()),
    ),
];

fn everything(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    let most = n * COUNTS[COUNTS.len() - 1];
    let (heap_send, heap_recv) = (comm.alloc::<f32>(most)?, comm.alloc::<f32>(most)?);
    for (which, (send, recv, run)) in OPERATIONS.into_iter().enumerate() {
        for (round, count) in COUNTS.into_iter().enumerate() {
            let case = CallCase { round, me, n, count };
            let (input, expected) = (send(case), recv(case));
            heap_send.copy_from_slice(0, &input)?;
            heap_recv.fill(f32::NAN);
            let sent = comm.buffer::<f32>(heap_send.part(0, input.len())?)?;
            let received = comm.buffer::<f32>(heap_recv.part(0, expected.len())?)?;
            run(comm, case, Buffers::Heap(&sent, &received))?;
            assert!(received.to_vec() == expected, "operation {which}: {count} elements in the heap");
            let mut slice = vec![f32::NAN; expected.len()];
            run(comm, case, Buffers::Memory(&input, &mut slice))?;
            assert!(slice == expected, "operation {which}: {count} elements in ordinary memory");
        }
    }
    Ok(())
}

scenario!(one_rank_does_everything_alone, Job::of(1).heap_len(64 << 20), |comm| {
    everything(comm)?;
});
scenario!(two_ranks_do_everything, Job::of(2).heap_len(64 << 20), |comm| {
    everything(comm)?;
});
scenario!(three_ranks_do_everything, Job::of(3).heap_len(64 << 20), |comm| {
    everything(comm)?;
});
scenario!(eight_ranks_do_everything, Job::of(8).heap_len(64 << 20), |comm| {
    everything(comm)?;
});

/// Sums `count` elements where they lie: on ranks below `heaps` in the heap, on the others in
/// ordinary memory.
fn sum_in_place(comm: &mut Communicator, count: usize, heaps: u32) -> Result<()> {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    let case = CallCase { round: count, me, n, count };
    let (input, expected) = (case.input(me, 0..count), case.sum(0..count));
    let buffer = comm.alloc::<f32>(count)?;
    let mut slice = input.clone();
    if comm.rank().get() < heaps {
        buffer.copy_from_slice(0, &input)?;
        comm.all_reduce_in_place(&buffer, &ReduceOp::Sum)?;
        slice = buffer.to_vec();
    } else {
        comm.all_reduce_in_place(&mut slice, &ReduceOp::Sum)?;
    }
    assert!(slice == expected, "{count} elements with {heaps} buffers in heaps");
    Ok(())
}

scenario!(
    buffers_of_some_ranks_can_lie_in_the_heap_and_of_others_not,
    Job::of(3).heap_len(64 << 20),
    |comm| {
        for count in COUNTS {
            for heaps in 0..=3 {
                sum_in_place(comm, count, heaps)?;
            }
        }
    }
);

scenario!(ranks_with_different_operators_all_learn_of_it, Job::of(2).broken(), |comm| {
    let mut data = [1.0_f32; 4];
    let op = if comm.rank().get() == 0 { ReduceOp::Sum } else { ReduceOp::Max };
    let called = comm.all_reduce_in_place(&mut data, &op);
    assert!(matches!(called, Err(Error::CallMismatch { .. })), "{called:?}");
});

scenario!(ranks_in_different_calls_all_learn_of_it, Job::of(3).broken(), |comm| {
    let mut data = [1.0_f32; 4];
    comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    let called = if comm.rank().get() == 1 {
        comm.all_reduce_in_place(&mut data[..3], &ReduceOp::Sum)
    } else {
        comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)
    };
    let Some(CallMismatch { mine, theirs, .. }) = CallMismatch::of(&called) else { panic!("{called:?}") };
    let mut counts = [mine.count(), theirs.count()];
    counts.sort_unstable();
    assert_eq!(counts, [3, 4]);
});

scenario!(
    a_rank_that_gave_up_a_collective_call_ends_the_epoch,
    Job::of(2).timeout(std::time::Duration::from_secs(2)).broken(),
    |comm| {
        let mut data = [1.0_f32; 4];
        comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
        if comm.rank().get() == 0 {
            let gave_up = comm.all_reduce_in_place(&mut data, &ReduceOp::Sum);
            assert!(matches!(gave_up, Err(Error::Timeout { operation: "all_reduce", .. })), "{gave_up:?}");
        } else {
            while comm.revoked().is_none() {
                std::thread::yield_now();
            }
            let late = comm.all_gather(&data, &mut vec![0.0; 8]);
            assert!(matches!(late, Err(Error::CallMismatch { .. } | Error::Revoked { .. })), "{late:?}");
        }
    }
);

scenario!(an_operator_that_panics_ends_the_epoch_for_all, Job::of(2).broken(), |comm| {
    for count in [2, 30_000] {
        let breaks = comm.rank().get() == 0 && count == 30_000;
        let op = CustomOp::new::<f32>("sum or panic", move |sum, other| {
            // Without a hook's output, as of a program that expects it.
            if breaks {
                std::panic::resume_unwind(Box::new("no such sum"));
            }
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        });
        let done = comm.all_reduce_in_place(&mut vec![1.0_f32; count], &ReduceOp::Custom(op));
        match (count, comm.rank().get()) {
            (2, _) => done?,
            (_, 0) => assert!(matches!(done, Err(Error::Panicked)), "{done:?}"),
            _ => assert!(matches!(done, Err(Error::Revoked { .. })), "{done:?}"),
        }
    }
});

scenario!(buffers_of_the_heap_that_overlap_in_part_are_refused_before_anything_moves, Job::of(2), |comm| {
    const COUNT: u64 = 3000;
    let (heap, me) = (comm.alloc_region(4 * (2 * COUNT + 1), 4)?, u64::from(comm.rank().get()));
    comm.buffer::<f32>(heap)?.fill(1.0);
    let part = |comm: &Communicator, at: u64, count: u64| comm.buffer::<f32>(heap.part(4 * at, 4 * count)?);
    for at in [1, COUNT - 1] {
        let (send, recv) = (part(comm, 0, COUNT)?, part(comm, at, COUNT)?);
        for refused in [
            comm.all_reduce(&send, &recv, &ReduceOp::Sum),
            comm.all_reduce(&recv, &send, &ReduceOp::Sum),
            comm.broadcast(&send, &recv, comm.rank()),
        ] {
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{at}: {refused:?}");
        }
        let all = part(comm, 0, 2 * COUNT)?;
        // The block of the other rank, and none.
        for at in [(1 - me) * COUNT, 1 + me * COUNT] {
            let one = part(comm, at, COUNT)?;
            for refused in [comm.all_gather(&one, &all), comm.reduce_scatter(&all, &one, &ReduceOp::Sum)] {
                assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{at}: {refused:?}");
            }
        }
    }
    assert!(comm.buffer::<f32>(heap)?.to_vec().iter().all(|element| *element == 1.0));
    // Side by side, and in place.
    let (send, recv) = (part(comm, 0, COUNT)?, part(comm, COUNT, COUNT)?);
    comm.all_reduce(&send, &recv, &ReduceOp::Sum)?;
    comm.all_reduce(&recv, &recv, &ReduceOp::Sum)?;
    assert_eq!(recv.to_vec(), vec![4.0; 3000]);
    let (own, all) = (part(comm, me * COUNT, COUNT)?, part(comm, 0, 2 * COUNT)?);
    own.fill(me as f32);
    comm.all_gather(&own, &all)?;
    assert_eq!([all.get(2999)?, all.get(3000)?], [0.0, 1.0]);
});

/// Has `op` refused on elements `T`, in whichever way it is asked for.
fn is_refused<T: Element>(comm: &mut Communicator, op: &ReduceOp) -> Result<()> {
    let assert_told = |refused: Result<()>| {
        let Err(Error::UnsupportedOperator { operator, data_type, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((operator, data_type), (op.name(), T::DATA_TYPE.name()));
    };
    let heap = comm.alloc::<T>(64)?;
    let mut slice = vec![T::zeroed(); 64];
    let switch = comm.switch_channel(&heap)?;
    // By one rank alone: had it posted anything, the others would come to a call that is not
    // theirs.
    if comm.rank().get() == 1 {
        let mut half = vec![T::zeroed(); 32];
        assert_told(comm.all_reduce_in_place(&heap, op));
        assert_told(comm.reduce(&slice.clone(), &mut slice, op, comm.rank()));
        assert_told(comm.reduce_scatter(&slice, &mut half, op));
        assert_told(switch.reduce(0, &mut half, op));
        assert_told(switch.reduce_broadcast(0..64, op));
        let stream = comm.stream()?;
        assert_told(stream.on(comm).all_reduce_in_place(&heap, op));
        stream.synchronise()?;
        let mut group = Group::start();
        let joined = group.join(comm);
        assert_told(group.on(joined).all_reduce_in_place(&mut slice, op));
        group.end()?;
    }
    Ok(())
}

scenario!(an_operator_that_a_type_does_not_have_is_refused_before_anything_is_posted, Job::of(2), |comm| {
    for op in [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor] {
        is_refused::<f32>(comm, &op)?;
        is_refused::<Complex64>(comm, &op)?;
    }
    for op in [ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
        is_refused::<Complex64>(comm, &op)?;
    }
    for op in [ReduceOp::Avg, ReduceOp::PreMulSum(Scalar::new(Bool(1)))] {
        is_refused::<Bool>(comm, &op)?;
    }
    let mut sum = [1.5_f32];
    comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    assert_eq!(sum, [3.0]);
});
