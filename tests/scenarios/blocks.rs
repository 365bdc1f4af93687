//! Blocks of any length from every rank to every other.

use shmccl::collective::CallMismatch;
use shmccl::collective::{ChannelKind, Operation};
use shmccl::reduce::ReduceOp;
use shmccl::{Blocks, Collectives, Communicator, Error, Result};

use crate::harness::{Job, pattern};

/// How many elements `from` sends to `to` in `round`: none now and then, many now and then.
fn count(round: usize, from: usize, to: usize) -> usize {
    const COUNTS: [usize; 7] = [0, 1, 3, 1000, 1024, 20_000, 60_001];
    COUNTS[(round + 3 * from + 5 * to) % COUNTS.len()]
}

/// What `from` sends to `to`.
fn contents(round: usize, from: usize, to: usize) -> Vec<u32> {
    let bytes = pattern((round << 16 | from << 8 | to) as u64, 4 * count(round, from, to));
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Blocks of `counts`, the last one first, each with a gap of one element before it; and how many
/// elements that takes.
fn backwards(counts: &[usize]) -> (Vec<usize>, usize) {
    let mut end = 0;
    let mut places = vec![0; counts.len()];
    for index in (0..counts.len()).rev() {
        places[index] = end + 1;
        end += 1 + counts[index];
    }
    (places, end)
}

fn all_to_all_v(comm: &mut Communicator, rounds: usize) -> Result<()> {
    let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
    let (heap_sent, heap_received) = (comm.alloc::<u32>(n * 61_000)?, comm.alloc::<u32>(n * 61_000)?);
    for round in 0..rounds {
        let sent: Vec<_> = (0..n).map(|to| count(round, me, to)).collect();
        let received: Vec<_> = (0..n).map(|from| count(round, from, me)).collect();
        let ((from, sent_len), (at, received_len)) = (backwards(&sent), backwards(&received));
        let mut source = vec![7; sent_len];
        for to in 0..n {
            source[from[to]..][..sent[to]].copy_from_slice(&contents(round, me, to));
        }
        let mut target = vec![9; received_len];
        let (give, take) = (Blocks::new(&sent, &from), Blocks::new(&received, &at));
        if round % 2 == 0 {
            comm.all_to_all_v(&source, give, &mut target, take)?;
        } else {
            heap_sent.copy_from_slice(0, &source)?;
            heap_received.copy_from_slice(0, &target)?;
            let from_heap = comm.buffer::<u32>(heap_sent.part(0, sent_len)?)?;
            let into_heap = comm.buffer::<u32>(heap_received.part(0, received_len)?)?;
            comm.all_to_all_v(&from_heap, give, &into_heap, take)?;
            target = into_heap.to_vec();
        }
        for sender in 0..n {
            let block = &target[at[sender] - 1..][..=received[sender]];
            assert!(block[0] == 9, "the gap before the block of rank {sender} in round {round}");
            assert!(block[1..] == contents(round, sender, me), "the block of rank {sender} in round {round}");
        }
    }
    Ok(())
}

scenario!(blocks_of_one_rank_come_back_to_it, Job::of(1).heap_len(16 << 20), |comm| {
    all_to_all_v(comm, 7)?;
});
scenario!(blocks_of_two_ranks_arrive_where_they_belong, Job::of(2).heap_len(16 << 20), |comm| {
    all_to_all_v(comm, 14)?;
});
scenario!(blocks_of_five_ranks_arrive_where_they_belong, Job::of(5).heap_len(24 << 20), |comm| {
    all_to_all_v(comm, 8)?;
});
port_scenario!(blocks_arrive_by_proxies, Job::of(3).heap_len(24 << 20), |comm| {
    comm.set_channel_kind(ChannelKind::Port)?;
    all_to_all_v(comm, 8)?;
});

scenario!(ranks_that_disagree_about_a_block_both_learn_of_it, Job::of(2).broken(), |comm| {
    comm.prepare()?;
    let me = comm.rank().get();
    // Rank 0 has three elements for rank 1, which awaits none.
    let (sent, received) = if me == 0 { ([1, 3], [1, 2]) } else { ([2, 1], [0, 1]) };
    let called = comm.all_to_all_v(
        &[5_u8; 8],
        Blocks::new(&sent, &[0, 4]),
        &mut [0; 8],
        Blocks::new(&received, &[0, 4]),
    );
    // Who has sent a few elements too many does not wait until they are looked at.
    let called = called.and_then(|()| comm.all_reduce_in_place(&mut [1_u8], &ReduceOp::Sum));
    let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&called) else { panic!("{called:?}") };
    assert_eq!(rank.get(), 1 - me);
    assert_eq!(
        (mine.operation(), theirs.operation()),
        (Some(Operation::AllToAllV), Some(Operation::AllToAllV))
    );
    assert_eq!((mine.count(), theirs.count()), if me == 0 { (3, 0) } else { (0, 3) });
});

scenario!(blocks_that_cannot_be_are_refused_at_once, Job::of(2), |comm| {
    let mut target = [0_u8; 8];
    let good = Blocks::new(&[4, 4], &[0, 4]);
    for (sent, received) in [
        (Blocks::new(&[4, 4], &[0, 5]), good),
        (good, Blocks::new(&[4, 4], &[0, 3])),
        (good, Blocks::new(&[4], &[0])),
        (Blocks::new(&[4, 4], &[0]), good),
    ] {
        let refused = comm.all_to_all_v(&[0_u8; 8], sent, &mut target, received);
        assert!(
            matches!(refused, Err(Error::InvalidArgument { .. } | Error::OutOfRange { .. })),
            "{refused:?}"
        );
    }
    comm.all_to_all_v(&[1_u8; 8], good, &mut target, good)?;
    assert_eq!(target, [1; 8]);
});

scenario!(a_buffer_may_be_both_where_no_block_that_is_sent_is_received_over, Job::of(2), |comm| {
    let (me, buffer) = (comm.rank().get(), comm.alloc::<u32>(8)?);
    buffer.copy_from_slice(0, &[10 * me, 10 * me + 1, 10 * me + 2, 10 * me + 3, 0, 0, 0, 0])?;
    let sent = Blocks::new(&[2, 2], &[0, 2]);
    for received in [[1, 4], [2, 6]] {
        let refused = comm.all_to_all_v(&buffer, sent, &buffer, Blocks::new(&[2, 2], &received));
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    }
    // The same bytes by another name.
    let shifted = comm.buffer::<u32>(buffer.part(1, 7)?)?;
    let refused =
        comm.all_to_all_v(&shifted, Blocks::new(&[1, 1], &[0, 3]), &buffer, Blocks::new(&[1, 1], &[4, 5]));
    assert!(matches!(refused, Err(Error::InvalidArgument { value: 3, .. })), "{refused:?}");
    comm.all_to_all_v(&buffer, sent, &buffer, Blocks::new(&[2, 2], &[6, 4]))?;
    assert_eq!(buffer.to_vec()[4..], [2 * me + 10, 2 * me + 11, 2 * me, 2 * me + 1]);
});

scenario!(who_disagrees_with_itself_about_its_own_block_is_named_to_all, Job::of(3).broken(), |comm| {
    comm.prepare()?;
    let me = comm.rank().get();
    // Rank 1 has two elements for itself, and awaits one.
    let received = if me == 1 { [2, 1, 2] } else { [2, 2, 2] };
    let sent = Blocks::new(&[2, 2, 2], &[0, 2, 4]);
    let called = comm.all_to_all_v(&[5_u8; 6], sent, &mut [0; 6], Blocks::new(&received, &[0, 2, 4]));
    let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&called) else { panic!("{called:?}") };
    assert_eq!(rank.get(), 1);
    assert_eq!(theirs.operation(), Some(Operation::AllToAllV));
    assert_eq!(theirs.count(), if me == 1 { 2 } else { 1 }, "{mine}, {theirs}");
});
