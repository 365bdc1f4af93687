//! Blocks of any length between every two ranks, each of which takes the place of the one that went
//! the other way.

use shmccl::collective::CallMismatch;
use shmccl::collective::{ChannelKind, Operation};
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::{Blocks, Collectives, Communicator, Error, Group, Result};

use crate::harness::{Job, pattern};

/// Elements before each block, and behind the last, which stay as they are.
const GAP: usize = 1;

const GAPS: u32 = 7;

/// The room of a rank for its blocks.
const MOST: usize = 61_000;

/// How many elements two ranks exchange in `round`: none now and then, more than have room between
/// them now and then.
fn count(round: usize, one: usize, other: usize) -> usize {
    const COUNTS: [usize; 8] = [0, 1, 3, 1001, 4080, 20_000, 7, 60_001];
    COUNTS[(round + 3 * one.min(other) + 5 * one.max(other)) % COUNTS.len()]
}

/// What `from` sends to `to`.
fn contents(round: usize, from: usize, to: usize) -> Vec<u32> {
    let mut words = vec![0; count(round, from, to)];
    let bytes = pattern((round << 16 | from << 8 | to) as u64, 4 * words.len());
    bytemuck::cast_slice_mut::<u32, u8>(&mut words).copy_from_slice(&bytes);
    words
}

/// The blocks of a rank in a round, by rank, the last one first.
struct Round {
    number: usize,
    me: usize,
    counts: Vec<usize>,
    places: Vec<usize>,
    total: usize,
}

impl Round {
    fn new(comm: &Communicator, number: usize) -> Self {
        let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
        let counts: Vec<_> = (0..n).map(|peer| count(number, me, peer)).collect();
        let (mut places, mut total) = (vec![0; n], GAP);
        for peer in (0..n).rev() {
            places[peer] = total;
            total += counts[peer] + GAP;
        }
        Self { number, me, counts, places, total }
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks::new(&self.counts, &self.places)
    }

    /// What is in the buffer before, or is to be after.
    fn image(&self, is_after: bool) -> Vec<u32> {
        let mut image = vec![GAPS; self.total];
        for (peer, (&place, &count)) in self.places.iter().zip(&self.counts).enumerate() {
            let (from, to) = if is_after { (peer, self.me) } else { (self.me, peer) };
            image[place..][..count].copy_from_slice(&contents(self.number, from, to));
        }
        image
    }

    fn check(&self, found: &[u32], how: &str) {
        let expected = self.image(true);
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "rank {} in round {}, {how}", self.me, self.number);
    }

    /// A part of `buffer` with what is there before.
    fn lay(&self, comm: &Communicator, buffer: &DeviceBuffer<u32>) -> Result<DeviceBuffer<u32>> {
        let part = comm.buffer(buffer.part(0, self.total)?)?;
        part.copy_from_slice(0, &self.image(false))?;
        Ok(part)
    }
}

/// Exchanges blocks in every way in which a rank can; at first all do alike, and then not.
fn exchange(comm: &mut Communicator, rounds: usize) -> Result<()> {
    let n = comm.n_ranks() as usize;
    let (heap, other) = (comm.alloc::<u32>(n * MOST)?, comm.alloc::<u32>(n * MOST)?);
    for number in 0..rounds {
        let round = Round::new(comm, number);
        let way = if number < 4 { number } else { number + round.me * (number % 3) };
        match way % 4 {
            0 => {
                let mut buffer = round.image(false);
                comm.all_to_all_v_in_place(&mut buffer, round.blocks())?;
                round.check(&buffer, "ordinary memory");
            }
            1 => {
                let buffer = round.lay(comm, &heap)?;
                comm.all_to_all_v_in_place(&buffer, round.blocks())?;
                round.check(&buffer.to_vec(), "the heap");
            }
            2 => {
                let buffer = round.lay(comm, &heap)?;
                comm.all_to_all_v(&buffer, round.blocks(), &buffer, round.blocks())?;
                round.check(&buffer.to_vec(), "the heap, named twice");
            }
            _ => {
                let (sent, received) = (round.lay(comm, &heap)?, comm.buffer(other.part(0, round.total)?)?);
                received.fill(GAPS);
                comm.all_to_all_v(&sent, round.blocks(), &received, round.blocks())?;
                round.check(&received.to_vec(), "two buffers");
            }
        }
    }
    Ok(())
}

scenario!(the_block_of_one_rank_stays_where_it_is, Job::of(1), |comm| {
    exchange(comm, 9)?;
});
scenario!(blocks_of_two_ranks_take_each_others_places, Job::of(2).heap_len(16 << 20), |comm| {
    exchange(comm, 40)?;
});
scenario!(blocks_of_three_ranks_take_each_others_places, Job::of(3).heap_len(16 << 20), |comm| {
    exchange(comm, 24)?;
});
scenario!(blocks_of_five_ranks_take_each_others_places, Job::of(5).heap_len(24 << 20), |comm| {
    exchange(comm, 16)?;
});
scenario!(blocks_of_eight_ranks_take_each_others_places, Job::of(8).heap_len(24 << 20), |comm| {
    exchange(comm, 9)?;
});
scenario!(
    blocks_take_each_others_places_under_checksums,
    Job::of(3).heap_len(16 << 20).checksums(),
    |comm| {
        exchange(comm, 16)?;
    }
);
port_scenario!(blocks_take_each_others_places_by_proxies, Job::of(3).heap_len(16 << 20), |comm| {
    comm.set_channel_kind(ChannelKind::Port)?;
    exchange(comm, 16)?;
});

port_scenario!(
    exchanges_in_place_and_messages_of_one_group_keep_their_order,
    Job::of(3).heap_len(32 << 20),
    |comm| {
        let (n, next, previous) = (comm.n_ranks() as usize, comm.right(), comm.left());
        let heap = comm.alloc::<u32>(n * MOST)?;
        for number in 0..16 {
            if number == 8 {
                comm.set_channel_kind(ChannelKind::Port)?;
            }
            let (first, second, third) =
                (Round::new(comm, number), Round::new(comm, number + 1), Round::new(comm, number + 2));
            let (mut one, three) = (first.image(false), third.lay(comm, &heap)?);
            let (sent, mut received) = (second.image(false), vec![GAPS; second.total]);
            let (message, mut answer) = (vec![comm.rank().get(); 50_000], vec![GAPS; 50_000]);
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).send(&message, next)?;
            group.on(joined).all_to_all_v_in_place(&mut one, first.blocks())?;
            group.on(joined).all_to_all_v(&sent, second.blocks(), &mut received, second.blocks())?;
            group.on(joined).recv(&mut answer, previous)?;
            group.on(joined).all_to_all_v_in_place(&three, third.blocks())?;
            group.end()?;
            first.check(&one, "first");
            second.check(&received, "second");
            third.check(&three.to_vec(), "third");
            assert!(answer.iter().all(|&element| element == previous.get()), "round {number}");
        }
    }
);

scenario!(streams_exchange_blocks_in_place_one_after_the_other, Job::of(3).heap_len(16 << 20), |comm| {
    let (n, stream) = (comm.n_ranks() as usize, comm.stream()?);
    let heap = comm.alloc::<u32>(n * MOST)?;
    for number in 0..8 {
        let round = Round::new(comm, number);
        let buffer = round.lay(comm, &heap)?;
        // There, back, and there again.
        for _ in 0..3 {
            stream.on(comm).all_to_all_v_in_place(&buffer, round.blocks())?;
        }
        stream.synchronise()?;
        round.check(&buffer.to_vec(), "three times");
        let mut group = Group::start();
        let all = group.join(comm);
        group.on(all).all_to_all_v_in_place(&buffer, round.blocks())?;
        group.end_on(&stream)?;
        stream.synchronise()?;
        assert!(buffer.to_vec() == round.image(false), "back in round {number}");
    }
});

scenario!(one_block_may_be_replaced_where_another_goes_elsewhere, Job::of(3), |comm| {
    let me = comm.rank().get();
    let buffer = comm.alloc::<u32>(12)?;
    let before: Vec<u32> = (0..12).map(|at| 100 * me + at).collect();
    buffer.copy_from_slice(0, &before)?;
    // What goes to rank 1, and to oneself, is replaced; the others come behind all that is sent.
    let sent = Blocks::new(&[2, 2, 2], &[0, 2, 4]);
    let mut places = [6, 2, 8];
    places[me as usize] = 2 * me as usize;
    comm.all_to_all_v(&buffer, sent, &buffer, Blocks::new(&[2, 2, 2], &places))?;
    let mut expected = before;
    for from in 0..3_u32 {
        let at = places[from as usize];
        expected[at] = 100 * from + 2 * me;
        expected[at + 1] = expected[at] + 1;
    }
    assert_eq!(buffer.to_vec(), expected);
});

scenario!(a_long_message_does_not_overtake_the_short_block_before_it, Job::of(5).cores(5), |comm| {
    let (n, me) = (comm.n_ranks() as usize, u64::from(comm.rank().get()));
    let (next, previous) = (comm.right(), comm.left());
    let (counts, places) = (vec![1; n], (0..n).collect::<Vec<_>>());
    for round in 0..100_u64 {
        let mut blocks = vec![me * 10_000 + round; n];
        comm.all_to_all_v_in_place(&mut blocks, Blocks::new(&counts, &places))?;
        let (message, mut answer) = ([round; 30], [0; 30]);
        let mut group = Group::start();
        let joined = group.join(comm);
        group.on(joined).send(&message, next)?;
        group.on(joined).recv(&mut answer, previous)?;
        group.end()?;
        let expected: Vec<_> = (0..n as u64).map(|from| from * 10_000 + round).collect();
        assert_eq!((blocks, answer), (expected, message), "round {round}");
    }
});

/// Ranks 0 and 1 disagree by `theirs - mine` elements about the block that they exchange, in the
/// heap or not; both are told, and the block stays as it is.
fn disagree(comm: &mut Communicator, counts: [usize; 2], in_heap: bool) -> Result<()> {
    comm.prepare()?;
    let me = comm.rank().index();
    let (mine, theirs) = (counts[me], counts[1 - me]);
    let contents = u8::try_from(me).unwrap() + 1;
    let mut own = vec![contents; mine];
    let heap = comm.alloc::<u8>(counts[0].max(counts[1]))?;
    heap.fill(contents);
    let block = if me == 0 { [0, mine] } else { [mine, 0] };
    let blocks = Blocks::new(&block, &[0, 0]);
    let called = match in_heap {
        true => comm.all_to_all_v_in_place(&heap, blocks),
        false => comm.all_to_all_v_in_place(&mut own, blocks),
    };
    // Who had sent all of its own was not to wait for anything, where it has called for nothing.
    let called = called.and_then(|()| comm.all_reduce_in_place(&mut [1_u8], &ReduceOp::Sum));
    let (Err(error), Some(CallMismatch { mine: ours, rank, theirs: others })) =
        (&called, CallMismatch::of(&called))
    else {
        panic!("{called:?}")
    };
    let operation = Some(Operation::AllToAllV);
    assert_eq!((rank.index(), ours.operation(), others.operation()), (1 - me, operation, operation));
    assert_eq!((ours.count(), others.count()), (mine as u64, theirs as u64), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("{mine} uint8")) && text.contains(&format!("{theirs} uint8")), "{text}");
    assert!(own.iter().chain(&heap.to_vec()).all(|&byte| byte == contents));
    Ok(())
}

scenario!(ranks_that_disagree_about_a_block_in_place_are_both_told_of_both, Job::of(2).broken(), |comm| {
    disagree(comm, [3, 4], false)?;
});
scenario!(who_has_nothing_to_exchange_is_told_that_its_peer_has, Job::of(2).broken(), |comm| {
    disagree(comm, [0, 5], true)?;
});
scenario!(a_disagreement_about_many_elements_in_place_is_no_hang, Job::of(2).broken(), |comm| {
    disagree(comm, [1_000_000, 300_000], false)?;
});
scenario!(a_disagreement_about_much_in_the_heap_in_place_is_no_hang, Job::of(2).broken(), |comm| {
    disagree(comm, [300_000, 1_000_001], true)?;
});
port_scenario!(a_disagreement_in_place_is_found_behind_proxies_too, Job::of(2).broken(), |comm| {
    comm.set_channel_kind(ChannelKind::Port)?;
    disagree(comm, [300_000, 2], true)?;
});

scenario!(who_exchanges_in_place_is_told_when_its_peer_lends_another_length, Job::of(2).broken(), |comm| {
    comm.prepare()?;
    let me = comm.rank().index();
    let (buffer, other) = (comm.alloc::<u8>(500_000)?, comm.alloc::<u8>(500_000)?);
    let counts = if me == 0 { [0, 400_000] } else { [400_001, 0] };
    let blocks = Blocks::new(&counts, &[0, 0]);
    let called = match me {
        0 => comm.all_to_all_v_in_place(&buffer, blocks),
        _ => comm.all_to_all_v(&buffer, blocks, &other, blocks),
    };
    let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&called) else { panic!("{called:?}") };
    assert_eq!(rank.index(), 1 - me);
    assert_eq!((mine.count(), theirs.count()), if me == 0 { (400_000, 400_001) } else { (400_001, 400_000) });
});

scenario!(blocks_in_place_that_cannot_be_are_refused_at_once, Job::of(2), |comm| {
    let mut buffer = [comm.rank().get(); 8];
    for (counts, places) in [
        // They overlap, reach past the end, are too few, begin nowhere.
        (&[4, 4][..], &[0, 3][..]),
        (&[4, 5], &[0, 4]),
        (&[8], &[0]),
        (&[4, 4], &[0]),
        (&[1, usize::MAX], &[0, 1]),
    ] {
        let refused = comm.all_to_all_v_in_place(&mut buffer, Blocks::new(counts, places));
        let is_told = matches!(refused, Err(Error::InvalidArgument { .. } | Error::OutOfRange { .. }));
        assert!(is_told, "{refused:?}");
    }
    comm.all_to_all_v_in_place(&mut buffer, Blocks::new(&[3, 3], &[5, 0]))?;
    let expected = if comm.rank().get() == 0 { [1, 1, 1, 0, 0, 0, 0, 0] } else { [1, 1, 1, 1, 1, 0, 0, 0] };
    assert_eq!(buffer, expected);
});
