//! Elements, ranges and strided blocks.

use shmccl::heap::{HeapOffset, HeapPlace};
use shmccl::symmetric::StridedBlocks;
use shmccl::{Communicator, Error, Result, Symmetric};

use crate::harness::{Job, Random, pattern, rank, seed_of};

/// Lengths around everything that a copy treats differently.
const SIZES: [usize; 13] = [0, 1, 3, 7, 8, 9, 63, 64, 65, 4095, 4097, 65_537, (1 << 20) + 1];

scenario!(ranges_of_every_size_arrive_whole_and_touch_nothing_else, Job::of(3), |comm| {
    const LEN: usize = (1 << 20) + 64;
    let target = comm.alloc::<u8>(LEN)?;
    let (all, right, own) = (comm.symmetric(), comm.right(), comm.rank());
    for (round, len) in (0_u64..).zip(SIZES) {
        let to = len % 5 + 1;
        let sent = |rank: shmccl::Rank| pattern(4 * round + u64::from(rank.get()), len);
        target.fill(0xa5);
        comm.barrier()?;
        all.put(right, target.part(to, len)?.offset, &sent(own))?;
        all.fence();
        comm.barrier()?;
        let mut expected = vec![0xa5; LEN];
        expected[to..to + len].copy_from_slice(&sent(comm.left()));
        assert!(target.to_vec() == expected, "{len} bytes");
        let mut got = vec![0; len];
        all.get(right, target.part(to, len)?.offset, &mut got)?;
        assert!(got == sent(own), "{len} bytes");
        comm.barrier()?;
    }
});

scenario!(elements_are_read_and_written_in_place_on_every_rank, Job::of(4), |comm| {
    let cells = comm.alloc::<u64>(4)?;
    let (all, own) = (comm.symmetric(), u64::from(comm.rank().get()));
    for peer in 0..comm.n_ranks() {
        all.write(rank(comm, peer), cells.part(comm.rank().index(), 1)?.offset, own * 10 + u64::from(peer))?;
    }
    all.quiet();
    comm.barrier()?;
    assert_eq!(cells.to_vec(), [0, 10, 20, 30].map(|cell| cell + own));
    for peer in 0..comm.n_ranks() {
        let read: u64 = all.read(rank(comm, peer), cells.part(2, 1)?.offset)?;
        assert_eq!(read, 20 + u64::from(peer));
        all.pe_quiet(rank(comm, peer))?;
    }
    comm.barrier()?;
    // Neither aligned nor as long as any word.
    all.write(comm.right(), HeapOffset::new(cells.region().offset.get() + 1), [7_u8; 3])?;
    comm.barrier()?;
    assert_eq!(all.read::<[u8; 5]>(comm.rank(), cells.region().offset)?[1..4], [7; 3]);
});

scenario!(a_copy_goes_between_any_two_heaps, Job::of(3), |comm| {
    let cells = comm.alloc::<u32>(300)?;
    cells.fill(comm.rank().get());
    comm.barrier()?;
    if comm.rank().get() == 0 {
        let place = |at: u32, index| {
            Ok::<_, Error>(HeapPlace { rank: rank(comm, at), offset: cells.part(index, 100)?.offset })
        };
        comm.symmetric().copy(place(1, 0)?, place(2, 100)?, 400)?;
        comm.symmetric().copy(place(2, 50)?, place(2, 70)?, 400)?;
    }
    comm.barrier()?;
    if comm.rank().get() == 2 {
        let expected: Vec<u32> = (0..300)
            .map(|index| if (120..170).contains(&index) || (170..200).contains(&index) { 1 } else { 2 })
            .collect();
        assert_eq!(cells.to_vec(), expected);
    }
});

/// A strided put and get against loops over elements.
fn strided_rounds(
    all: &Symmetric,
    random: &mut Random,
    cells: &shmccl::heap::DeviceBuffer<u16>,
) -> Result<()> {
    let below = |random: &mut Random, limit: u64| usize::try_from(random.below(limit)).unwrap();
    let peer = shmccl::Rank::new(u32::try_from(below(random, 3)).unwrap(), 3)?;
    let (count, len) = (below(random, 9), below(random, 5));
    let (target_stride, source_stride) = (len + below(random, 7), len + below(random, 7));
    let blocks = StridedBlocks { count, len, target_stride, source_stride };
    let local: Vec<u16> = bytemuck::cast_slice(&random.bytes(400)).to_vec();
    let at = below(random, 40);
    let offset = cells.part(at, 0)?.offset;
    let mut before = vec![0_u16; cells.len()];
    all.get(peer, cells.region().offset, &mut before)?;
    all.put_strided(peer, offset, &local, blocks)?;
    let mut after = vec![0_u16; cells.len()];
    all.get(peer, cells.region().offset, &mut after)?;
    let places = || (0..count).flat_map(|block| (0..len).map(move |index| (block, index)));
    for (block, index) in places() {
        before[at + block * target_stride + index] = local[block * source_stride + index];
    }
    assert_eq!(after, before, "{blocks:?} to {at}");
    let mut got = local.clone();
    all.get_strided(peer, offset, &mut got, blocks)?;
    let mut expected = local;
    for (block, index) in places() {
        expected[block * target_stride + index] = after[at + block * source_stride + index];
    }
    assert_eq!(got, expected, "{blocks:?} from {at}");
    Ok(())
}

scenario!(strided_blocks_are_those_of_a_loop_over_elements, Job::of(3), |comm| {
    let seed = seed_of(comm, "strided blocks")?;
    let cells = comm.alloc::<u16>(200)?;
    let all = comm.symmetric();
    for turn in 0..comm.n_ranks() {
        if comm.rank().get() == turn {
            let mut random = Random(seed + u64::from(turn));
            (0..200).try_for_each(|_| strided_rounds(&all, &mut random, &cells))?;
        }
        comm.barrier()?;
    }
});

scenario!(what_reaches_past_the_allocated_heap_moves_nothing, Job::of(2), |comm| {
    let cells = comm.alloc::<u64>(4)?;
    cells.fill(3);
    comm.barrier()?;
    let (all, peer, here) = (comm.symmetric(), comm.right(), cells.region().offset);
    let end = comm.heap_usage().len;
    let is_out = |result: Result<()>| matches!(result, Err(Error::OutOfRange { .. }));
    for offset in [end, end - 4, end + 8, u64::MAX, u64::MAX - 7, 4 << 20] {
        let there = HeapOffset::new(offset);
        assert!(is_out(all.write(peer, there, 1_u64)), "{offset}");
        assert!(is_out(all.read::<u64>(peer, there).map(drop)), "{offset}");
        assert!(is_out(all.put(peer, there, &[1_u64, 2])), "{offset}");
        assert!(is_out(all.get(peer, there, &mut [0_u64; 2])), "{offset}");
        assert!(is_out(all.fetch_add(peer, there, 1_u64).map(drop)), "{offset}");
        let place = |rank, offset| HeapPlace { rank, offset };
        assert!(is_out(all.copy(place(peer, here), place(peer, there), 8)), "{offset}");
        assert!(is_out(all.copy(place(peer, there), place(peer, here), 8)), "{offset}");
        let blocks = StridedBlocks::of_elements(2, 1, 1);
        assert!(is_out(all.put_strided(peer, there, &[1_u64, 2], blocks)), "{offset}");
        assert!(is_out(all.get_strided(peer, there, &mut [0_u64; 2], blocks)), "{offset}");
    }
    let wide = StridedBlocks::of_elements(2, 1 << 60, 1);
    assert!(is_out(all.put_strided(peer, here, &[1_u64, 2], wide)));
    let long = StridedBlocks::of_elements(3, 1, 1);
    assert!(is_out(all.put_strided(peer, here, &[1_u64, 2], long)));
    assert!(is_out(all.get_strided(peer, here, &mut [0_u64; 2], long)));
    let close = StridedBlocks { count: 2, len: 2, target_stride: 1, source_stride: 2 };
    let refused = all.put_strided(peer, here, &[1_u64; 4], close);
    assert!(matches!(refused, Err(Error::InvalidArgument { name: "target_stride", value: 1, .. })));
    // Nothing, to and from anywhere in the heap.
    all.put::<u64>(peer, HeapOffset::new(end), &[])?;
    all.put_strided::<u64>(peer, here, &[], StridedBlocks::of_elements(0, 0, 0))?;
    comm.barrier()?;
    assert_eq!(cells.to_vec(), [3; 4]);
});

scenario!(a_rank_that_is_not_there_is_an_error, Job::of(2), |comm| {
    let cells = comm.alloc::<u64>(1)?;
    let (all, missing) = (comm.symmetric(), shmccl::Rank::new(2, 3)?);
    let here = cells.region().offset;
    let is_missing = |result: Result<()>| matches!(result, Err(Error::InvalidRank { rank: 2, n_ranks: 2 }));
    assert!(is_missing(all.write(missing, here, 1_u64)));
    assert!(is_missing(all.read::<u64>(missing, here).map(drop)));
    assert!(is_missing(all.put(missing, here, &[1_u64])));
    assert!(is_missing(all.get(missing, here, &mut [0_u64])));
    assert!(is_missing(all.set(missing, here, 1_u64)));
    assert!(is_missing(all.put_strided(missing, here, &[1_u64], StridedBlocks::of_elements(1, 1, 1))));
    assert!(is_missing(all.pe_quiet(missing)));
    comm.barrier()?;
});

scenario!(ranks_are_those_of_the_communicator_it_is_of, Job::of(4).heap_len(32 << 20), |comm| {
    let cells = comm.alloc::<u32>(4)?;
    // 0 and 2, 1 and 3, each pair turned round.
    let own = comm.rank().get();
    let pair = comm.split(Some(own % 2), -i64::from(own))?.unwrap();
    let all = pair.symmetric();
    assert_eq!((all.rank(), all.n_ranks()), (pair.rank(), 2));
    all.write(pair.right(), cells.part(own as usize, 1)?.offset, own + 1)?;
    comm.barrier()?;
    let other = (own + 2) % 4;
    let mut expected = [0; 4];
    expected[other as usize] = other + 1;
    assert_eq!(cells.to_vec(), expected);
});

#[test]
fn a_rank_that_has_left_reaches_nothing() {
    let mut comm = Communicator::init_all(1).unwrap().remove(0);
    let cells = comm.alloc::<u64>(1).unwrap();
    let (all, own, at) = (comm.symmetric(), comm.rank(), cells.region().offset);
    let other = all.clone();
    all.write(own, at, 5_u64).unwrap();
    assert_eq!(other.read::<u64>(own, at).unwrap(), 5);
    comm.finalize().unwrap();
    let is_refused = |result: Result<()>| matches!(result, Err(Error::Unavailable { .. }));
    assert!(is_refused(all.write(own, at, 6_u64)) && is_refused(all.read::<u64>(own, at).map(drop)));
    assert!(is_refused(other.add(own, at, 1_u64)) && is_refused(other.put(own, at, &[1_u64])));
    assert_eq!(cells.get(0).unwrap(), 5);
}
