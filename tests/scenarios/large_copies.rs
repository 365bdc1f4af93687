//! Data that no cache keeps: they are stored past it, and staged in many pieces.

use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Group, Result};

use crate::harness::{Job, rank};

/// With a second buffer more than most caches hold; a multiple of nothing that data are cut at.
const LEN: usize = (36 << 20) + 17;

/// After so many bytes data repeat: no length that they are cut at is a multiple of it.
const PERIOD: usize = 65_537;

/// What `rank` contributes to `round`; the sum of several ranks' fits into a byte. No two stretches
/// of it are alike.
fn period_of(rank: u32, round: u32) -> Vec<u8> {
    let seed = 1 + rank * 31 + round * 13;
    (seed..).take(PERIOD).map(|number| (number.wrapping_mul(0x9e37_79b1) >> 26) as u8).collect()
}

fn sum_of(n_ranks: u32, round: u32) -> Vec<u8> {
    let mut sum = vec![0; PERIOD];
    for rank in 0..n_ranks {
        sum.iter_mut().zip(period_of(rank, round)).for_each(|(sum, addend)| *sum += addend);
    }
    sum
}

fn repeated(period: &[u8]) -> Vec<u8> {
    let mut data = period.repeat(LEN.div_ceil(PERIOD));
    data.truncate(LEN);
    data
}

/// Whether `data` repeats `period` from its beginning on.
fn repeats(data: &[u8], period: &[u8]) -> bool {
    data.chunks(PERIOD).all(|chunk| *chunk == period[..chunk.len()])
}

fn read(buffer: &DeviceBuffer<u8>) -> Result<Vec<u8>> {
    let mut data = vec![0; buffer.len()];
    buffer.copy_to_slice(0, &mut data)?;
    Ok(data)
}

fn sums_in_the_heap(comm: &mut Communicator) -> Result<()> {
    let (me, n_ranks) = (comm.rank().get(), comm.n_ranks());
    let (send, recv) = (comm.alloc::<u8>(LEN)?, comm.alloc::<u8>(LEN)?);
    send.copy_from_slice(0, &repeated(&period_of(me, 0)))?;
    comm.all_reduce(&send, &recv, &ReduceOp::Sum)?;
    assert!(repeats(&read(&recv)?, &sum_of(n_ranks, 0)));
    assert!(repeats(&read(&send)?, &period_of(me, 0)));
    comm.all_reduce_in_place(&send, &ReduceOp::Sum)?;
    assert!(repeats(&read(&send)?, &sum_of(n_ranks, 0)));
    comm.free(send)?;
    comm.free(recv)
}

fn sums_in_ordinary_memory(comm: &mut Communicator) -> Result<()> {
    let (me, n_ranks) = (comm.rank().get(), comm.n_ranks());
    let (mut send, mut recv) = (repeated(&period_of(me, 1)), vec![0; LEN]);
    // A third fills caches of up to 48 MiB, and larger than 12 MiB it does not fill four times:
    // after five calls it has gone past the cache and through it.
    for len in [LEN, LEN / 3, LEN / 3, LEN / 3, LEN / 3, LEN / 3] {
        recv.fill(0);
        comm.all_reduce(&send[..len], &mut recv[..len], &ReduceOp::Sum)?;
        assert!(repeats(&recv[..len], &sum_of(n_ranks, 1)) && repeats(&send, &period_of(me, 1)));
        assert!(recv[len..].iter().all(|byte| *byte == 0));
    }
    comm.all_reduce_in_place(&mut send, &ReduceOp::Sum)?;
    assert!(repeats(&send, &sum_of(n_ranks, 1)));
    Ok(())
}

/// Where the output begins elsewhere in a cache line than the input, and where one of the two is in
/// the heap.
fn sums_that_lie_unlike(comm: &mut Communicator) -> Result<()> {
    let (me, n_ranks) = (comm.rank().get(), comm.n_ranks());
    let root = rank(comm, n_ranks - 1);
    let (own, mut got) = (comm.alloc::<u8>(LEN)?, vec![0; LEN + 1]);
    own.copy_from_slice(0, &repeated(&period_of(me, 3)))?;
    comm.all_reduce(&own, &mut got[1..], &ReduceOp::Sum)?;
    assert!(repeats(&got[1..], &sum_of(n_ranks, 3)) && got[0] == 0);
    let send = repeated(&period_of(me, 4));
    got.fill(0);
    comm.reduce(&send, &mut got[1..], &ReduceOp::Sum, root)?;
    let expected = if comm.rank() == root { sum_of(n_ranks, 4) } else { vec![0; PERIOD] };
    assert!(repeats(&got[1..], &expected) && got[0] == 0);
    // Where one rank has its buffers elsewhere, those of the others are staged, too, and go past
    // the cache from there.
    let sums = comm.alloc::<u8>(LEN)?;
    if me == 0 {
        comm.all_reduce(&repeated(&period_of(me, 3)), &mut got[1..], &ReduceOp::Sum)?;
        sums.copy_from_slice(0, &got[1..])?;
    } else {
        comm.all_reduce(&own, &sums, &ReduceOp::Sum)?;
    }
    assert!(repeats(&read(&sums)?, &sum_of(n_ranks, 3)));
    comm.free(sums)?;
    comm.free(own)
}

/// To the next rank and from the one before it: from the heap to ordinary memory, and from that to
/// the heap.
fn messages(comm: &mut Communicator) -> Result<()> {
    let (me, n_ranks) = (comm.rank().get(), comm.n_ranks());
    let before_that = |rank| (rank + n_ranks - 1) % n_ranks;
    let (before, next) = (rank(comm, before_that(me)), rank(comm, (me + 1) % n_ranks));
    let (own, mut got) = (comm.alloc::<u8>(LEN)?, vec![0; LEN]);
    own.copy_from_slice(0, &repeated(&period_of(me, 2)))?;
    let mut group = Group::start();
    let all = group.join(comm);
    group.on(all).send(&own, next)?;
    group.on(all).recv(&mut got, before)?;
    group.end()?;
    assert!(repeats(&got, &period_of(before.get(), 2)));
    let mut group = Group::start();
    let all = group.join(comm);
    group.on(all).send(&got, next)?;
    group.on(all).recv(&own, before)?;
    group.end()?;
    assert!(repeats(&read(&own)?, &period_of(before_that(before.get()), 2)));
    comm.free(own)
}

scenario!(data_that_no_cache_keeps_arrive_whole, Job::of(2).heap_len(112 << 20), |comm| {
    sums_in_the_heap(comm)?;
    sums_in_ordinary_memory(comm)?;
    sums_that_lie_unlike(comm)?;
    messages(comm)?;
});
