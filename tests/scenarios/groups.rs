//! Calls that are put together: sends and receives in any order, several communicators, small
//! operations in one hand-over.

use std::time::Instant;

use shmccl::collective::CallMismatch;
use shmccl::collective::{Algorithm, CallSignature, ChannelKind};
use shmccl::rank::Rank;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Group, Result};
use support::long;

use crate::harness::{Job, Random, figure, is_lost, pattern, rank, seed_of};

/// A message of a round: who sends it to whom, and how many bytes.
#[derive(Clone, Copy)]
struct Message {
    from: usize,
    to: usize,
    len: usize,
}

/// The messages of a round among `n` ranks, the same on all of them.
fn plan(random: &mut Random, n: u64) -> Vec<Message> {
    const LENGTHS: [usize; 8] = [0, 1, 8, 200, 4096, 5000, 70_000, 300_000];
    let mut below = |limit: u64| usize::try_from(random.below(limit)).unwrap();
    let count = below(6 * n);
    let message = |_| Message { from: below(n), to: below(n), len: LENGTHS[below(8)] };
    (0..count).map(message).collect()
}

/// What message number `index` of round `round` contains: quick to make, as every rank makes all of
/// them.
fn contents(round: u64, index: usize, len: usize) -> Vec<u8> {
    let tag = pattern(round << 32 | index as u64, 16);
    let mut bytes = vec![tag[15]; len];
    let start = len.min(15);
    bytes[..start].copy_from_slice(&tag[..start]);
    bytes
}

/// The messages of this rank by their numbers, in an order of its own: only those from and to the
/// same ranks keep theirs.
fn shuffled(random: &mut Random, messages: &[Message], me: usize) -> Vec<(usize, bool)> {
    let ends = |(index, message): (usize, &Message)| {
        [(message.from == me, (index, true)), (message.to == me, (index, false))]
    };
    let mut mine: Vec<_> = messages
        .iter()
        .enumerate()
        .flat_map(ends)
        .filter(|(is_mine, _)| *is_mine)
        .map(|(_, end)| end)
        .collect();
    for _ in 0..4 * mine.len() {
        let at = usize::try_from(random.below(mine.len() as u64)).unwrap();
        let Some(next) = mine.get(at + 1).copied() else { continue };
        let pair = |(index, is_sent): (usize, bool)| (is_sent, messages[index].from, messages[index].to);
        if pair(mine[at]) != pair(next) {
            mine.swap(at, at + 1);
        }
    }
    mine
}

/// Rounds of messages between ranks picked by chance, which each rank puts into its group in an
/// order of its own.
fn by_chance(comm: &mut Communicator, rounds: u64) -> Result<()> {
    let (n, me) = (u64::from(comm.n_ranks()), comm.rank().index());
    let seed = seed_of(comm, &format!("messages of {n} ranks in any order"))?;
    for round in 0..rounds {
        // Each round can be drawn from its own seed alone.
        let own = Random(seed.wrapping_add(round)).next();
        let messages = plan(&mut Random(own), n);
        let order = shuffled(&mut Random(own ^ (1 + me as u64)), &messages, me);
        let sent: Vec<_> =
            messages.iter().enumerate().map(|(index, message)| contents(round, index, message.len)).collect();
        let mut received: Vec<_> = messages.iter().map(|message| vec![0xaa_u8; message.len]).collect();
        let mut targets: Vec<_> = received.iter_mut().map(Some).collect();
        let peer = |comm: &Communicator, index: usize| rank(comm, u32::try_from(index).unwrap());
        let peers: Vec<_> =
            messages.iter().map(|message| (peer(comm, message.from), peer(comm, message.to))).collect();
        let mut group = Group::start();
        let joined = group.join(comm);
        for (index, is_sent) in order {
            if is_sent {
                group.on(joined).send(&sent[index], peers[index].1)?;
            } else {
                group.on(joined).recv(targets[index].take().unwrap(), peers[index].0)?;
            }
        }
        group.end()?;
        for (index, message) in messages.iter().enumerate().filter(|(_, message)| message.to == me) {
            assert!(
                received[index] == sent[index],
                "SHMCCL_SEED={seed}, round {round}: message {index} of {} bytes",
                message.len
            );
        }
    }
    Ok(())
}

scenario!(messages_of_two_ranks_in_any_order_arrive, Job::of(2).heap_len(16 << 20), |comm| {
    by_chance(comm, 200)?;
});
scenario!(messages_of_five_ranks_in_any_order_arrive, Job::of(5).heap_len(16 << 20), |comm| {
    by_chance(comm, 100)?;
});
scenario!(messages_of_eight_ranks_in_any_order_arrive, Job::of(8).heap_len(16 << 20), |comm| {
    by_chance(comm, 40)?;
});
port_scenario!(messages_in_any_order_arrive_by_proxies, Job::of(3).heap_len(16 << 20), |comm| {
    comm.set_channel_kind(ChannelKind::Port)?;
    by_chance(comm, 60)?;
});

scenario!(ranks_that_send_to_each_other_first_do_not_wait_for_ever, Job::of(2).heap_len(64 << 20), |comm| {
    let peer = comm.right();
    let (sent, received) = (comm.alloc::<u8>(16 << 20)?, comm.alloc::<u8>(16 << 20)?);
    sent.fill(comm.rank().get().to_le_bytes()[0] + 1);
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).send(&sent, peer)?;
    group.on(joined).recv(&received, peer)?;
    group.end()?;
    assert_eq!(received.get((16 << 20) - 1)?, peer.get().to_le_bytes()[0] + 1);
});

/// So many messages each way between two ranks: all sends before all receives, as no order of the
/// calls has to fit the peer's.
fn many_each_way(comm: &mut Communicator, n: u32) -> Result<()> {
    let (peer, mine) = (comm.right(), comm.rank().get() << 24);
    let sent: Vec<u32> = (0..n).map(|index| mine | index).collect();
    let mut received = vec![u32::MAX; sent.len()];
    comm.barrier()?;
    let started = Instant::now();
    let mut group = Group::start();
    let joined = group.join(comm);
    for message in sent.chunks(1) {
        group.on(joined).send(message, peer)?;
    }
    for message in received.chunks_mut(1) {
        group.on(joined).recv(message, peer)?;
    }
    group.end()?;
    let each = started.elapsed() / n;
    figure(&format!("{n} messages each way in one group: {each:?} for one each way"));
    assert!(received.iter().zip(&sent).all(|(theirs, mine)| *theirs == mine ^ 1 << 24));
    Ok(())
}

scenario!(as_many_messages_as_a_group_holds_arrive_in_their_order, Job::of(2), |comm| {
    let most = if long() { 1 << 15 } else { 1 << 11 };
    [most / 16, most].into_iter().try_for_each(|n| many_each_way(comm, n))?;
});

scenario!(an_inner_end_executes_nothing, Job::of(2), |comm| {
    let (mine, peer) = ([comm.rank().get()], comm.right());
    let mut got = [u32::MAX];
    let mut group = Group::start();
    let joined = group.join(comm);
    // Alone this would wait for a receive that comes after it.
    group.nest(|group| {
        group.on(joined).send(&mine, peer)?;
        group.end()
    })?;
    let failed = group.nest(|group| group.on(joined).send(&mine, Rank::new(5, 6)?));
    assert!(matches!(failed, Err(Error::InvalidRank { .. })), "the failure of what is nested is its own");
    group.nest(|group| group.on(joined).recv(&mut got, peer))?;
    group.end()?;
    assert!(matches!(group.end(), Err(Error::Unavailable { .. })), "everything has ended");
    assert!(matches!(group.on(joined).send(&mine, peer), Err(Error::Unavailable { .. })));
    assert_eq!(got, [peer.get()]);
});

scenario!(a_second_end_of_what_is_nested_executes_nothing_either, Job::of(2), |comm| {
    let mut sum = [1_u32];
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    let nested = group.nest(|group| {
        group.end()?;
        assert!(matches!(group.end(), Err(Error::Unavailable { .. })), "one end too many");
        // Neither has what is nested here to end what is around it.
        group.nest(|group| {
            group.end()?;
            group.end()
        })
    });
    assert!(matches!(nested, Err(Error::Unavailable { .. })), "{nested:?}");
    group.end()?;
    let after = group.nest(|_| Ok(()));
    assert!(matches!(after, Err(Error::Unavailable { .. })), "{after:?}");
    drop(group);
    assert_eq!(sum, [2]);
});

#[test]
fn ranks_of_one_job_in_a_group_are_told_from_those_of_two_jobs() {
    let mut comms = Communicator::init_all(2).unwrap();
    comms.extend(Communicator::init_all(1).unwrap());
    let refusal = |comms: &mut [Communicator]| {
        let mut group = Group::start();
        for comm in comms {
            let joined = group.join(comm);
            group.on(joined).send(&[1_u8], Rank::new(0, 1).unwrap()).unwrap();
        }
        match group.end() {
            Err(Error::InvalidArgument { name, value, .. }) => (name, value),
            other => panic!("{other:?}"),
        }
    };
    let (name, value) = refusal(&mut comms[..2]);
    assert!(name.contains("another rank of the job") && value == 1, "{name}: {value}");
    let (name, value) = refusal(&mut comms);
    assert!(name.contains("another job") && value == 1, "{name}: {value}");
}

scenario!(a_group_that_is_dropped_executes_nothing, Job::of(2), |comm| {
    let mut data = [1_u32; 4];
    {
        let mut group = Group::start();
        let joined = group.join(comm);
        group.on(joined).all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    }
    assert_eq!(data, [1; 4]);
    comm.all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    assert_eq!(data, [2; 4]);
});

scenario!(two_communicators_may_be_put_in_in_any_order, Job::of(2).heap_len(32 << 20), |comm| {
    let mut twin = comm.duplicate()?;
    let (me, peer) = (comm.rank().get(), comm.right());
    for count in [1, 100, 30_000] {
        let (mut ones, mut twos) = (vec![1_u32; count], vec![2_u32; count]);
        let (mut from_one, mut from_two) = (vec![0_u32; count], vec![0_u32; count]);
        let (mine, more) = (vec![me; count], vec![10 + me; count]);
        let mut group = Group::start();
        let (first, second) = (group.join(comm), group.join(&mut twin));
        if me == 0 {
            group.on(first).all_reduce_in_place(&mut ones, &ReduceOp::Sum)?;
            group.on(first).send(&mine, peer)?;
            group.on(second).all_reduce_in_place(&mut twos, &ReduceOp::Sum)?;
            group.on(second).send(&more, peer)?;
            group.on(first).recv(&mut from_one, peer)?;
            group.on(second).recv(&mut from_two, peer)?;
        } else {
            group.on(second).recv(&mut from_two, peer)?;
            group.on(second).all_reduce_in_place(&mut twos, &ReduceOp::Sum)?;
            group.on(second).send(&more, peer)?;
            group.on(first).recv(&mut from_one, peer)?;
            group.on(first).send(&mine, peer)?;
            group.on(first).all_reduce_in_place(&mut ones, &ReduceOp::Sum)?;
        }
        group.end()?;
        assert!(ones.iter().all(|&sum| sum == 2) && twos.iter().all(|&sum| sum == 4));
        assert!(from_one.iter().all(|&word| word == peer.get()));
        assert!(from_two.iter().all(|&word| word == 10 + peer.get()));
    }
});

scenario!(communicators_that_overlap_do_not_wait_for_each_other, Job::of(3).heap_len(32 << 20), |comm| {
    // Each rank is in two of three pairs, and joins them in an order that goes round.
    let pair_of = |absent: u32, me: u32| (me != absent).then_some(0);
    let me = comm.rank().get();
    let mut pairs = Vec::new();
    for absent in 0..3 {
        pairs.extend(comm.split(pair_of(absent, me), 0)?);
    }
    if me == 1 {
        pairs.reverse();
    }
    for _ in 0..100 {
        // The sum tells which pair it is of.
        let mut data = [vec![me + 1; 5000], vec![me + 1; 5000]];
        let mut group = Group::start();
        for (pair, data) in pairs.iter_mut().zip(&mut data) {
            let joined = group.join(pair);
            group.on(joined).all_reduce_in_place(data, &ReduceOp::Sum)?;
        }
        group.end()?;
        for (pair, data) in pairs.iter().zip(&data) {
            let expected = pair.members().iter().map(|rank| rank.get() + 1).sum::<u32>();
            assert!(data.iter().all(|&sum| sum == expected), "{:?}: {}", pair.members(), data[0]);
        }
    }
});

scenario!(a_wrong_argument_is_an_error_of_the_call_and_the_others_are_executed, Job::of(2), |comm| {
    let (mut data, mut few) = ([1_u32; 4], [0_u32; 3]);
    let nobody = Rank::new(2, 3)?;
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce_in_place(&mut data, &ReduceOp::Sum)?;
    let refused = group.on(joined).all_reduce(&[1_u32; 4], &mut few, &ReduceOp::Sum);
    assert!(matches!(refused, Err(Error::WrongCount { count: 3, expected: 4, .. })), "{refused:?}");
    assert!(matches!(group.on(joined).send(&[1_u8], nobody), Err(Error::InvalidRank { .. })));
    group.end()?;
    assert_eq!(data, [2; 4]);
    comm.set_algorithm(Some(Algorithm::Ring));
    let mut group = Group::start();
    let joined = group.join(comm);
    let refused = group.on(joined).all_to_all(&[1_u32; 4], &mut data);
    assert!(matches!(refused, Err(Error::UnsupportedAlgorithm { .. })), "{refused:?}");
    group.end()?;
});

scenario!(a_message_to_oneself_needs_both_ends_in_the_group, Job::of(2), |comm| {
    let me = comm.rank();
    let (mut got, mut sum) = ([0_u32; 2], [1_u32]);
    let heap = comm.alloc::<u32>(2)?;
    heap.copy_from_slice(0, &[5, 6])?;
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).recv(&mut got, me)?;
    group.on(joined).all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    group.on(joined).send(&heap, me)?;
    group.end()?;
    assert_eq!((got, sum), ([5, 6], [2]));
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    group.on(joined).send(&heap, me)?;
    let refused = group.end();
    assert!(matches!(refused, Err(Error::InvalidArgument { value: 1, .. })), "{refused:?}");
    assert_eq!(sum, [2], "nothing was executed");
});

/// Every small operation in one group, which share one hand-over or a few: of as many elements as
/// `counts` say, in turns.
fn everything_small(comm: &mut Communicator, counts: &[usize]) -> Result<()> {
    let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
    let count = |call: usize| counts[call % counts.len()];
    let of = |rank: usize, call| vec![u32::try_from(rank).unwrap() + 1; count(call)];
    let all = |call| (0..n).flat_map(|rank| of(rank, call)).collect::<Vec<_>>();
    let sum_of_all = |call| vec![(1..=u32::try_from(n).unwrap()).sum::<u32>(); count(call)];
    let last = rank(comm, comm.n_ranks() - 1);
    let mine: [_; 8] = std::array::from_fn(|call| of(me, call));
    let blocks: [_; 8] = std::array::from_fn(all);
    let heap = comm.alloc::<u32>(count(3).max(1))?;
    let in_heap = comm.buffer::<u32>(heap.part(0, count(3))?)?;
    in_heap.copy_from_slice(0, &mine[3])?;
    let [mut sum, mut at_root, mut copy, mut scattered, mut dealt] =
        [0, 1, 2, 4, 7].map(|call| vec![0_u32; count(call)]);
    let [mut gathered, mut turned, mut collected] = [3, 5, 6].map(|call| vec![0_u32; n * count(call)]);
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce(&mine[0], &mut sum, &ReduceOp::Sum)?;
    group.on(joined).reduce(&mine[1], &mut at_root, &ReduceOp::Sum, last)?;
    group.on(joined).broadcast(&mine[2], &mut copy, last)?;
    group.on(joined).all_gather(&in_heap, &mut gathered)?;
    group.on(joined).reduce_scatter(&blocks[4], &mut scattered, &ReduceOp::Max)?;
    group.on(joined).all_to_all(&blocks[5], &mut turned)?;
    group.on(joined).gather(&mine[6], &mut collected, last)?;
    group.on(joined).scatter(&blocks[7], &mut dealt, last)?;
    group.end()?;
    assert!(sum == sum_of_all(0) && copy == of(n - 1, 2) && scattered == mine[4]);
    assert!(gathered == all(3) && turned == mine[5].repeat(n) && dealt == mine[7]);
    if comm.rank() == last {
        assert!(at_root == sum_of_all(1) && collected == all(6));
    }
    comm.free(heap)
}

/// Counts that go round the calls of a group: the same for all, and mixed.
fn counts_of_calls(largest: usize) -> Vec<Vec<usize>> {
    let alike = [0, 1, 2, 3, 100, 600, 2048, 5000].into_iter().filter(|count| *count <= largest);
    let mixed = [vec![1, 0], vec![22, 0, 0], vec![2, 0, 11, 3, 0], vec![0, largest, 1]];
    alike.map(|count| vec![count]).chain(mixed).collect()
}

scenario!(small_operations_together_do_what_they_do_alone, Job::of(3).heap_len(16 << 20), |comm| {
    counts_of_calls(5000).iter().try_for_each(|counts| everything_small(comm, counts))?;
});
scenario!(small_operations_of_two_ranks_do_what_they_do_alone, Job::of(2).heap_len(16 << 20), |comm| {
    counts_of_calls(5000).iter().try_for_each(|counts| everything_small(comm, counts))?;
});
scenario!(small_operations_of_one_rank_do_what_they_do_alone, Job::of(1), |comm| {
    counts_of_calls(5000).iter().try_for_each(|counts| everything_small(comm, counts))?;
});
scenario!(small_operations_of_eight_ranks_do_what_they_do_alone, Job::of(8).heap_len(16 << 20), |comm| {
    counts_of_calls(100).iter().try_for_each(|counts| everything_small(comm, counts))?;
});

/// Groups in which nothing is reduced after, before and between inputs that take `words` of a post.
fn nothing_beside(comm: &mut Communicator, words: usize) -> Result<()> {
    let (n, root) = (comm.n_ranks() as usize, rank(comm, 0));
    let (mut first, mut rest) = (vec![1_u64; words.min(1)], vec![2_u64; words - words.min(1)]);
    let [mut one, mut two, mut three, mut four] = [const { [0_u64; 0] }; 4];
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce_in_place(&mut one, &ReduceOp::Sum)?;
    group.on(joined).all_reduce_in_place(&mut first, &ReduceOp::Sum)?;
    group.on(joined).all_gather(&[0_u64; 0], &mut two)?;
    group.on(joined).all_reduce_in_place(&mut rest, &ReduceOp::Sum)?;
    group.on(joined).reduce(&[0_u64; 0], &mut three, &ReduceOp::Sum, root)?;
    group.on(joined).reduce_scatter(&[0_u64; 0], &mut four, &ReduceOp::Max)?;
    group.on(joined).all_reduce_in_place(&mut [0_u64; 0], &ReduceOp::Sum)?;
    group.end()?;
    assert!(first.iter().all(|&sum| sum == n as u64) && rest.iter().all(|&sum| sum == 2 * n as u64));
    Ok(())
}

scenario!(nothing_is_reduced_where_a_post_of_two_ranks_ends, Job::of(2), |comm| {
    (0..=12).try_for_each(|words| nothing_beside(comm, words))?;
});
scenario!(nothing_is_reduced_where_a_post_of_three_ranks_ends, Job::of(3), |comm| {
    (0..=12).try_for_each(|words| nothing_beside(comm, words))?;
});

scenario!(more_operations_than_one_post_holds_are_all_executed, Job::of(2), |comm| {
    let mut data: Vec<_> = (0..300_u32).map(|index| vec![index; 1 + index as usize % 20]).collect();
    let mut group = Group::start();
    let joined = group.join(comm);
    for buffer in &mut data {
        group.on(joined).all_reduce_in_place(buffer, &ReduceOp::Sum)?;
    }
    group.end()?;
    assert!((0..).zip(&data).all(|(index, buffer)| buffer.iter().all(|&sum| sum == 2 * index)));
});

scenario!(the_call_in_which_groups_differ_is_named_on_all_ranks, Job::of(3).broken(), |comm| {
    let mut data = [[1_f32; 4]; 3];
    let [first, second, third] = &mut data;
    let second = if comm.rank().get() == 1 { &mut second[..3] } else { &mut second[..] };
    comm.prepare()?;
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce_in_place(first, &ReduceOp::Sum)?;
    group.on(joined).all_reduce_in_place(second, &ReduceOp::Sum)?;
    group.on(joined).all_reduce_in_place(third, &ReduceOp::Sum)?;
    let called = group.end();
    let Some(CallMismatch { mine, theirs, .. }) = CallMismatch::of(&called) else { panic!("{called:?}") };
    let mut counts = [mine.count(), theirs.count()];
    counts.sort_unstable();
    assert_eq!(counts, [3, 4], "{mine}, {theirs}");
});

/// Makes all-reduces of so many elements in one group, which is another one on some rank; what
/// `tell` tells of both, in order.
fn both_told<T: Ord>(
    comm: &mut Communicator,
    counts: &[usize],
    tell: fn(CallSignature) -> T,
) -> Result<[T; 2]> {
    let mut data: Vec<_> = counts.iter().map(|&count| vec![1_f32; count]).collect();
    comm.prepare()?;
    let mut group = Group::start();
    let joined = group.join(comm);
    for buffer in &mut data {
        group.on(joined).all_reduce_in_place(buffer, &ReduceOp::Sum)?;
    }
    let called = group.end();
    let Some(CallMismatch { mine, theirs, .. }) = CallMismatch::of(&called) else { panic!("{called:?}") };
    let mut both = [mine, theirs].map(tell);
    both.sort_unstable();
    Ok(both)
}

scenario!(groups_that_begin_alike_and_end_sooner_on_one_rank_are_named, Job::of(3).broken(), |comm| {
    let counts: &[_] = if comm.rank().get() == 1 { &[4; 2] } else { &[4; 3] };
    assert_eq!(both_told(comm, counts, CallSignature::calls)?, [Some(2), Some(3)]);
});

scenario!(groups_that_differ_in_a_call_that_is_large_on_one_rank_are_named, Job::of(3).broken(), |comm| {
    let last = if comm.rank().get() == 1 { 100_000 } else { 4 };
    assert_eq!(both_told(comm, &[4, 4, last], CallSignature::calls)?, [Some(2), Some(3)]);
});

scenario!(the_call_in_which_groups_differ_is_named_although_one_ends_sooner, Job::of(3).broken(), |comm| {
    let counts: &[_] = if comm.rank().get() == 1 { &[4, 3] } else { &[4; 3] };
    assert_eq!(both_told(comm, counts, CallSignature::count)?, [3, 4]);
});

scenario!(a_peer_that_leaves_is_lost_to_a_group_that_waits_for_it, Job::of(3).broken(), |comm| {
    let (one, me) = (rank(comm, 1), comm.rank());
    let peers = [comm.left(), comm.right()];
    comm.prepare()?;
    if me != one {
        let mut got = [[0_u8; 4]; 2];
        let mut group = Group::start();
        let joined = group.join(comm);
        for (peer, got) in peers.into_iter().zip(&mut got) {
            group.on(joined).send(&[1_u8; 4], peer)?;
            group.on(joined).recv(got, peer)?;
        }
        let ended = group.end();
        let is_told = |error: &Error| is_lost(error, one) || matches!(error, Error::Revoked { .. });
        assert!(ended.as_ref().is_err_and(is_told), "{ended:?}");
    }
});
