use proptest::prelude::*;

use super::*;
use crate::heap::layout::MAX_HEAP_LEN;
use crate::heap::testing::heaps;
use crate::rank::Rank;

const LEN: u64 = 16 * CHUNK;

/// As many bytes as are committed together, as the length of a list.
const PIECE: usize = 2 << 20;

const _: () = assert!(PIECE as u64 == CHUNK);

fn arenas(n_ranks: u32, len: u64) -> Vec<Arena> {
    heaps(n_ranks, len).into_iter().map(|heap| Arena::new(Arc::new(heap))).collect()
}

fn offset<T>(buffer: &ArenaBuffer<T>) -> u64
where
    T: Pod,
{
    buffer.region().offset.get()
}

#[test]
fn a_peer_reads_and_writes_a_buffer_that_one_rank_has_allocated_alone() {
    let arenas = arenas(3, LEN);
    let first = arenas[1].alloc::<u64>(10).unwrap();
    let second = arenas[1].alloc::<u64>(3 * PIECE / 8).unwrap();
    for (buffer, value) in [(&first, 7), (&second, 8)] {
        let theirs = arenas[0].heap.span(Rank::known(1), buffer.region()).unwrap();
        theirs.write(0, value).unwrap();
        theirs.write(buffer.region().len - 8, value).unwrap();
        assert_eq!([buffer.get(0).unwrap(), buffer.get(buffer.len() - 1).unwrap()], [value; 2]);
    }
    // The others have nothing there.
    for heap in [&arenas[0].heap, &arenas[1].heap] {
        for rank in [0, 2] {
            let theirs = heap.span(Rank::known(rank), first.region());
            assert!(matches!(theirs, Err(Error::OutOfRange { limit: 0, .. })), "{theirs:?}");
        }
    }
}

#[test]
fn buffers_are_aligned_lie_apart_and_an_empty_one_has_an_address_too() {
    let arena = arenas(1, LEN).remove(0);
    let mut places: Vec<(u64, u64)> = Vec::new();
    let mut kept = Vec::new();
    for (len, align) in [(0, 1), (0, 1), (1, 1), (100, 64), (65, 128), (4097, 4096), (7, 1 << 21), (64, 256)]
    {
        let buffer = arena.alloc_aligned::<u8>(len, align).unwrap();
        let address = buffer.span().start().addr().get() as u64;
        assert!(address.is_multiple_of(align.max(64)) && offset(&buffer).is_multiple_of(align.max(64)));
        places.push((offset(&buffer), (len as u64).max(1)));
        kept.push(buffer);
    }
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{places:?}");
    assert!(places.last().unwrap().0 < LEN);
    assert!(matches!(arena.alloc_aligned::<u8>(1, 3), Err(Error::InvalidArgument { name: "align", .. })));
    assert!(matches!(arena.alloc_aligned::<u8>(1, 4 << 20), Err(Error::InvalidArgument { .. })));
}

#[test]
fn memory_is_taken_by_the_first_allocation_and_reused_when_it_was_freed() {
    let arena = arenas(1, LEN).remove(0);
    assert_eq!(
        arena.usage(),
        HeapUsage {
            len: LEN / 4 * 3,
            free: LEN / 4 * 3,
            contiguous: LEN / 4 * 3,
            committed: 0,
            live: 0,
            statics: 0
        }
    );
    for _ in 0..100 {
        let (a, b) = (arena.alloc::<u8>(100).unwrap(), arena.alloc::<u8>(PIECE).unwrap());
        assert_eq!(arena.usage().live, 2);
        drop(a);
        drop(b);
    }
    let usage = arena.usage();
    assert_eq!((usage.committed, usage.free, usage.live), (2 * CHUNK, LEN / 4 * 3, 0));
}

#[test]
fn a_full_arena_says_how_large_it_is_how_full_and_what_helps() {
    let arena = arenas(1, 4 * CHUNK).remove(0);
    let _most = arena.alloc::<u8>(2 * PIECE).unwrap();
    for asked in [CHUNK + 1, u64::MAX / 2, u64::MAX - 1] {
        let error = arena.alloc::<u8>(usize::try_from(asked).unwrap()).unwrap_err();
        let told = matches!(error, Error::OutOfMemory { len, free, contiguous, .. }
            if len == 3 * CHUNK && free == CHUNK && contiguous == CHUNK);
        assert!(told && error.to_string().contains("--heap"), "{error}");
    }
    assert!(matches!(arena.alloc::<u64>(usize::MAX), Err(Error::OutOfMemory { .. })));
    arena.alloc::<u8>(PIECE).unwrap();
}

#[test]
fn a_heap_without_bytes_has_an_arena_without_bytes() {
    let arena = arenas(2, 0).remove(1);
    assert!(matches!(arena.alloc::<u8>(0), Err(Error::OutOfMemory { len: 0, free: 0, .. })));
}

#[test]
fn symmetric_memory_and_the_arena_leave_each_other_what_they_have() {
    let arenas: Vec<_> = arenas(2, 4 * CHUNK);
    let heap = &arenas[0].heap;
    let local = arenas[0].alloc::<u8>(PIECE + 1).unwrap();
    local.fill(1);
    let granule = CHUNK + 64;
    let usage = heap.usage();
    assert_eq!(
        (usage.len, usage.free, usage.contiguous),
        (4 * CHUNK, 4 * CHUNK - granule, 4 * CHUNK - granule)
    );
    let error = heap.plan(3 * CHUNK, 64).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { free, .. } if free == 4 * CHUNK - granule), "{error}");
    // Where it fits, it is where a rank without an arena has it.
    let regions: Vec<_> = arenas.iter().map(|arena| arena.heap.plan(2 * CHUNK, 64).unwrap()).collect();
    assert_eq!(regions[0], regions[1]);
    assert_eq!(arenas[0].usage().len, 2 * CHUNK);
    assert!(matches!(arenas[0].alloc::<u8>(PIECE), Err(Error::OutOfMemory { .. })));
    heap.abandon(regions[0]).unwrap();
    drop(local);
    // What the arena had is symmetric memory now, and back.
    let all = heap.plan(4 * CHUNK, 64).unwrap();
    heap.commit(all).unwrap();
    heap.confirm(all).unwrap();
    heap.span(Rank::known(0), all).unwrap().fill(0, all.len, 2).unwrap();
    assert!(matches!(arenas[0].alloc::<u8>(0), Err(Error::OutOfMemory { len: 0, .. })));
    heap.free(all).unwrap();
    let local = arenas[0].alloc::<u8>(3 * PIECE).unwrap();
    assert!(local.to_vec().iter().all(|byte| *byte == 2), "reused memory keeps its old contents");
}

#[test]
fn memory_that_the_machine_has_not_is_an_error_and_nothing_is_taken() {
    let arena = arenas(1, MAX_HEAP_LEN).remove(0);
    let error = arena.alloc::<u8>(usize::try_from(MAX_HEAP_LEN / 2).unwrap()).unwrap_err();
    assert!(matches!(error, Error::ResourceLimit { .. }), "{error}");
    let usage = arena.usage();
    assert_eq!((usage.committed, usage.live, usage.free), (0, 0, usage.len));
    arena.alloc::<u8>(64).unwrap().fill(1);
}

#[test]
fn a_buffer_outlives_everything_else_of_its_heap() {
    let heaps = heaps(2, LEN).into_iter().map(Arc::new).collect::<Vec<_>>();
    let buffer = Arena::new(Arc::clone(&heaps[0])).alloc::<u32>(5).unwrap();
    drop(heaps);
    buffer.fill(9);
    assert_eq!(buffer.to_vec(), [9; 5]);
}

#[test]
fn an_address_is_found_in_the_heap_that_it_lies_in_and_in_no_other() {
    let arenas = arenas(3, LEN);
    let strangers = self::arenas(1, LEN);
    let region = {
        let heaps: Vec<_> = arenas.iter().map(|arena| &arena.heap).collect();
        let regions: Vec<_> = heaps.iter().map(|heap| heap.plan(100, 64).unwrap()).collect();
        heaps.iter().for_each(|heap| heap.commit(regions[0]).unwrap());
        heaps.iter().for_each(|heap| heap.confirm(regions[0]).unwrap());
        regions[0]
    };
    let local = arenas[1].alloc::<u8>(1000).unwrap();
    for (rank, region) in [(1, local.region()), (1, region), (2, region), (0, region)] {
        let heap = &arenas[1].heap;
        let rank = Rank::known(rank);
        let address = heap.span(rank, region).unwrap().start().addr().get();
        let part = region.part(10, 20).unwrap();
        assert_eq!(heap.place_of(address + 10, 20), Some((rank, part)));
        assert_eq!(heap.region_of(address + 10, 20), (rank == heap.rank()).then_some(part));
        assert_eq!(strangers[0].heap.region_of(address, 1), None);
        assert_eq!(strangers[0].heap.place_of(address, 1), None);
        // The end of the heap is, the byte behind it is not.
        let start = address - usize::try_from(region.offset.get()).unwrap();
        let end = start + usize::try_from(LEN).unwrap();
        assert!(heap.place_of(end, 0).is_some() && heap.place_of(end - 1, 1).is_some());
        for (address, len) in [(end, 1), (end - 1, 2), (start - 1, 1), (start, u64::MAX), (address, LEN + 1)]
        {
            let found = heap.place_of(address, len);
            assert_eq!(found, None, "{len} at {address:#x}");
            assert_eq!(heap.region_of(address, len), None);
        }
    }
    let ordinary = [0_u8; 8];
    for address in [0, 1, usize::MAX, ordinary.as_ptr().addr()] {
        assert_eq!(arenas[0].heap.place_of(address, 8), None);
        assert_eq!(arenas[0].heap.region_of(address, 8), None);
    }
}

#[test]
fn threads_allocate_and_free_at_once_and_none_gets_what_another_has() {
    let arena = arenas(1, LEN).remove(0);
    std::thread::scope(|scope| {
        for mark in 1..=4_u8 {
            let arena = arena.clone();
            scope.spawn(move || {
                let mut kept: Vec<ArenaBuffer<u8>> = Vec::new();
                for round in 0..300_usize {
                    let buffer = arena.alloc::<u8>(round * 97 % 5000).unwrap();
                    buffer.fill(mark);
                    kept.push(buffer);
                    if kept.len() > 7 {
                        let old = kept.swap_remove(round % 7);
                        assert!(old.to_vec().iter().all(|byte| *byte == mark));
                    }
                }
            });
        }
    });
    assert_eq!(arena.usage().live, 0);
}

proptest! {
    #[test]
    fn whatever_both_ends_do_nothing_overlaps_and_all_of_the_arena_has_memory(
        steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 0..3 * CHUNK, 0..22_u32), 1..60),
    ) {
        let heaps = heaps(2, 8 * CHUNK).into_iter().map(Arc::new).collect::<Vec<_>>();
        let arena = Arena::new(Arc::clone(&heaps[1]));
        let (mut local, mut symmetric) = (Vec::new(), Vec::new());
        for (step, pick, len, align_bits) in steps {
            match step {
                0 => {
                    let len = usize::try_from(len).unwrap();
                    local.extend(arena.alloc_aligned::<u8>(len, 1 << align_bits).ok());
                }
                1 if !local.is_empty() => drop(local.swap_remove(pick.index(local.len()))),
                2 => {
                    // The other rank, whose arena is empty, would have it at the same place.
                    let mine = heaps[1].plan(len, 1 << align_bits);
                    let theirs = heaps[0].plan(len, 1 << align_bits).unwrap_or_default();
                    match mine {
                        Ok(region) => {
                            prop_assert_eq!(region, theirs);
                            heaps[1].commit(region).unwrap();
                            symmetric.push(region);
                        }
                        Err(_) => _ = heaps[0].abandon(theirs),
                    }
                }
                3 if !symmetric.is_empty() => {
                    let region = symmetric.swap_remove(pick.index(symmetric.len()));
                    heaps.iter().for_each(|heap| heap.abandon(region).unwrap());
                }
                _ => {}
            }
            let owned = |region: Region| (region.offset.get(), region.offset.get() + region.len.max(1));
            let mut all: Vec<_> = local.iter().map(|buffer: &ArenaBuffer<u8>| owned(buffer.region())).collect();
            for (start, end) in &all {
                prop_assert!(*start >= 2 * CHUNK && 8 * CHUNK - start <= arena.usage().committed && *end <= 8 * CHUNK);
            }
            all.extend(symmetric.iter().map(|region| owned(*region)));
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", all);
        }
    }
}
