//! Blocks that are even on some ranks, on all, or on none: the same exchange.

use shmccl::collective::{CallMismatch, Operation};
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::{Blocks, Collectives, Communicator, Group, Result};

use crate::harness::Job;

/// In the post, in its slot, and longer.
const COUNTS: [usize; 5] = [0, 2, 700, 5000, 70_000];

/// What lies between blocks.
const GAP: u32 = u32::MAX;

/// Which ranks have even blocks in a round.
#[derive(Clone, Copy)]
enum Even {
    All,
    /// This one alone: the others have longer ones among themselves.
    One(usize),
    /// All but this one, whose blocks lie apart.
    AllBut(usize),
    None,
}

/// The blocks of one rank, the same on both sides.
struct Side {
    counts: Vec<usize>,
    places: Vec<usize>,
    len: usize,
}

impl Side {
    fn new(even: Even, count: usize, me: usize, n: usize) -> Self {
        let is_long = |peer: usize| match even {
            Even::One(one) => me != one && peer != one,
            _ => false,
        };
        let counts: Vec<_> = (0..n).map(|peer| count + 3 * usize::from(is_long(peer))).collect();
        let gap = match even {
            Even::AllBut(odd) => usize::from(odd == me),
            Even::None => 1 + me,
            _ => 0,
        };
        let place = |peer: usize| counts[..peer].iter().sum::<usize>() + gap * (peer + 1);
        let places: Vec<_> = (0..n).map(place).collect();
        let len = places[n - 1] + counts[n - 1];
        Self { counts, places, len }
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks::new(&self.counts, &self.places)
    }
}

fn value(round: usize, from: usize, to: usize, index: usize) -> u32 {
    u32::try_from(round * 7919 + from * 131 + to * 31 + index).unwrap()
}

/// Exchanges the blocks in `both`, which is one buffer, in one of eight forms; each rank has its
/// own. Those in the heap are copied to and from it.
fn exchange(
    comm: &mut Communicator,
    form: usize,
    side: &Side,
    both: &mut Vec<u32>,
    heap: &[DeviceBuffer<u32>; 2],
) -> Result<()> {
    let blocks = side.blocks();
    let mut received = vec![0; side.len];
    match form {
        0 => comm.all_to_all_v(&*both, blocks, &mut received, blocks)?,
        1 => return comm.all_to_all_v_in_place(both, blocks),
        2 => {
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).all_to_all_v(&*both, blocks, &mut received, blocks)?;
            group.end()?;
        }
        _ => {
            let [source, target] = [0, 1].map(|which| heap[which].part(0, side.len));
            let (source, target) = (comm.buffer::<u32>(source?)?, comm.buffer::<u32>(target?)?);
            source.copy_from_slice(0, both)?;
            received = in_heap(comm, form, blocks, &source, &target)?;
        }
    }
    *both = received;
    Ok(())
}

fn in_heap(
    comm: &mut Communicator,
    form: usize,
    blocks: Blocks<'_>,
    source: &DeviceBuffer<u32>,
    target: &DeviceBuffer<u32>,
) -> Result<Vec<u32>> {
    match form {
        3 => comm.all_to_all_v(source, blocks, target, blocks)?,
        4 => comm.start(|_| (), |calls| calls.all_to_all_v(source, blocks, target, blocks))?.wait()?,
        5 => comm.all_to_all_v(source, blocks, source, blocks)?,
        _ => comm.all_to_all_v_in_place(source, blocks)?,
    }
    Ok(if form < 5 { target.to_vec() } else { source.to_vec() })
}

/// Exchanges blocks in `rounds` rounds, with another call between two of them now and then.
fn exchange_all(comm: &mut Communicator, rounds: usize) -> Result<()> {
    let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
    let heap = [comm.alloc::<u32>(n * 70_020)?, comm.alloc::<u32>(n * 70_020)?];
    for round in 0..rounds {
        let count = COUNTS[round % COUNTS.len()];
        let even = match round % 6 {
            0 | 3 => Even::All,
            1 => Even::One(round % n),
            2 | 4 => Even::AllBut(round % n),
            _ => Even::None,
        };
        let form = if count == 0 { 0 } else { (round / 6 + 3 * me) % 7 };
        let side = Side::new(even, count, me, n);
        let mut both = vec![GAP; side.len];
        let fill = |both: &mut Vec<u32>, value: &dyn Fn(usize, usize) -> u32| {
            for (peer, (&place, &count)) in side.places.iter().zip(&side.counts).enumerate() {
                (0..count).for_each(|index| both[place + index] = value(peer, index));
            }
        };
        fill(&mut both, &|peer, index| value(round, me, peer, index));
        exchange(comm, form, &side, &mut both, &heap)?;
        for (peer, (&place, &count)) in side.places.iter().zip(&side.counts).enumerate() {
            let is_right = (0..count).all(|index| both[place + index] == value(round, peer, me, index));
            assert!(is_right, "the block of rank {peer} in round {round}, form {form}");
        }
        if round % 4 == 1 {
            let mut sum = [1_u64];
            comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
            assert_eq!(sum, [n as u64], "after round {round}");
        }
    }
    Ok(())
}

scenario!(two_ranks_meet_with_even_blocks_and_others, Job::of(2).heap_len(16 << 20), |comm| {
    exchange_all(comm, 210)?;
});
scenario!(three_ranks_meet_with_even_blocks_and_others, Job::of(3).heap_len(16 << 20), |comm| {
    exchange_all(comm, 90)?;
});
scenario!(four_ranks_meet_with_even_blocks_and_others, Job::of(4).heap_len(16 << 20), |comm| {
    exchange_all(comm, 60)?;
});

/// Calls what is not the same on rank 0 and the others, and checks what rank 0 and 1 are told.
fn differ(comm: &mut Communicator, counts: [usize; 2], operations: [Operation; 2]) -> Result<()> {
    comm.prepare()?;
    let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
    let mine = usize::from(me > 0);
    let (count, data) = (counts[mine], vec![7_u32; n * counts[mine]]);
    let mut received = vec![0_u32; n * count];
    let places: Vec<_> = (0..n).map(|rank| rank * count).collect();
    let each = vec![count; n];
    let blocks = Blocks::new(&each, &places);
    let called = match operations[mine] {
        Operation::AllToAll => comm.all_to_all(&data, &mut received),
        Operation::AllToAllV => comm.all_to_all_v(&data, blocks, &mut received, blocks),
        _ => comm.all_reduce_in_place(&mut received, &ReduceOp::Sum),
    };
    let called = called.and_then(|()| comm.barrier());
    let Some(CallMismatch { mine: ours, theirs, .. }) = CallMismatch::of(&called) else {
        panic!("{called:?}")
    };
    assert_eq!(ours.operation(), Some(operations[mine]));
    assert_eq!(theirs.operation(), Some(operations[1 - mine]), "{called:?}");
    assert!(received.iter().all(|&element| element == 0), "nothing has moved");
    Ok(())
}

scenario!(even_blocks_of_other_lengths_are_told, Job::of(2).broken(), |comm| {
    differ(comm, [3, 4], [Operation::AllToAllV; 2])?;
});
scenario!(long_even_blocks_of_other_lengths_are_told, Job::of(3).broken(), |comm| {
    differ(comm, [30_000, 30_001], [Operation::AllToAllV; 2])?;
});
scenario!(even_blocks_are_no_all_to_all, Job::of(2).broken(), |comm| {
    differ(comm, [3, 3], [Operation::AllToAllV, Operation::AllToAll])?;
});
scenario!(even_blocks_are_no_other_call, Job::of(2).broken(), |comm| {
    differ(comm, [3, 6], [Operation::AllToAllV, Operation::AllReduce])?;
});
