use proptest::prelude::*;

use super::*;
use crate::heap::layout::{self, HeapShape};
use crate::heap::offset::HeapOffset;
use crate::heap::testing::{allocate, heaps};
use crate::heap::windows::HeapPlace;
use crate::rank::Rank;
use crate::shm::{CacheHint, Window};

fn place(rank: u32, region: Region, offset: u64) -> HeapPlace {
    HeapPlace { rank: Rank::known(rank), offset: HeapOffset::new(region.offset.get() + offset) }
}

fn bytes(heap: &SymmetricHeap, rank: u32, region: Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len).unwrap()];
    heap.span(Rank::known(rank), region).unwrap().copy_out(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn ranks_that_take_the_same_steps_get_the_same_region_and_reach_each_others_bytes() {
    let heaps = heaps(3, 8 * CHUNK);
    for (len, align) in [(100, 64), (0, 1), (4097, 4096), (CHUNK + 1, 1 << 21), (7, 8)] {
        let region = allocate(&heaps, len, align);
        assert!(region.offset.get().is_multiple_of(align));
        for (heap, rank) in heaps.iter().zip(0_u8..) {
            let own = heap.span(heap.rank(), region).unwrap();
            own.fill(0, region.len, rank + 1).unwrap();
        }
        for heap in &heaps {
            for rank in 0_u8..3 {
                assert_eq!(bytes(heap, rank.into(), region), vec![rank + 1; usize::try_from(len).unwrap()]);
            }
        }
    }
}

#[test]
fn a_region_is_out_of_reach_until_every_rank_has_committed_it() {
    let heaps = heaps(2, 4 * CHUNK);
    let heap = &heaps[0];
    let region = heap.plan(64, 64).unwrap();
    let unreachable = |heap: &SymmetricHeap| {
        matches!(heap.span(Rank::known(1), region), Err(Error::OutOfRange { limit: 0, .. }))
    };
    assert!(unreachable(heap));
    heap.commit(region).unwrap();
    assert!(unreachable(heap), "committed here, but not agreed on");
    heap.confirm(region).unwrap();
    assert!(heap.span(Rank::known(1), region).is_ok());
}

#[test]
fn nothing_past_what_was_allocated_so_far_is_reached() {
    let heaps = heaps(2, 4 * CHUNK);
    let region = allocate(&heaps, CHUNK, 64);
    let past = Region::new(HeapOffset::new(CHUNK), 1);
    assert!(heaps[0].span(Rank::known(0), past).is_err());
    assert!(heaps[0].copy(place(0, region, 1), place(1, region, 0), CHUNK, CacheHint::Keep).is_err());
    assert!(heaps[0].copy(place(0, region, 0), place(1, region, u64::MAX), 1, CacheHint::Keep).is_err());
    assert!(heaps[0].copy(place(0, region, 0), place(1, region, 0), u64::MAX, CacheHint::Keep).is_err());
    assert_eq!(bytes(&heaps[1], 1, region), vec![0; usize::try_from(CHUNK).unwrap()], "nothing was changed");
}

#[test]
fn an_empty_region_is_reached_anywhere_in_the_heap_but_not_past_its_end() {
    let heaps = heaps(1, CHUNK);
    let empty = |offset| Region::new(HeapOffset::new(offset), 0);
    for offset in [0, 1, CHUNK - 1, CHUNK] {
        assert!(heaps[0].span(Rank::known(0), empty(offset)).unwrap().is_empty());
    }
    for offset in [CHUNK + 1, u64::MAX] {
        assert!(heaps[0].span(Rank::known(0), empty(offset)).is_err());
    }
}

#[test]
fn a_rank_that_does_not_exist_is_an_error() {
    let heaps = heaps(2, CHUNK);
    let region = allocate(&heaps, 64, 64);
    let nobody = Rank::known(2);
    assert!(matches!(heaps[0].span(nobody, region), Err(Error::InvalidRank { rank: 2, n_ranks: 2 })));
    let copied = heaps[0].copy(place(0, region, 0), place(2, region, 0), 0, CacheHint::Keep);
    assert!(matches!(copied, Err(Error::InvalidRank { .. })));
}

#[test]
fn an_address_is_one_multiply_add_away() {
    let heaps = heaps(3, 2 * CHUNK);
    let region = allocate(&heaps, 4096, 4096);
    let region = region.part(100, 8).unwrap();
    let address = |rank| heaps[0].span(Rank::known(rank), region).unwrap().start().addr().get();
    assert_eq!(address(2) - address(1), address(1) - address(0));
}

#[test]
fn a_copy_moves_bytes_between_any_two_ranks_and_within_one() {
    let heaps = heaps(3, CHUNK);
    let region = allocate(&heaps, 1000, 64);
    let pattern: Vec<u8> = (0..=255).cycle().take(1000).collect();
    heaps[1].span(Rank::known(1), region).unwrap().copy_in(0, &pattern).unwrap();
    heaps[0].copy(place(1, region, 3), place(2, region, 500), 499, CacheHint::Keep).unwrap();
    assert_eq!(bytes(&heaps[2], 2, region)[500..999], pattern[3..502]);
    heaps[1].copy(place(1, region, 0), place(1, region, 1), 999, CacheHint::Bypass).unwrap();
    assert_eq!(bytes(&heaps[0], 1, region)[1..], pattern[..999], "the ranges overlapped");
}

#[test]
fn an_abandoned_region_is_handed_out_again() {
    let heaps = heaps(2, 4 * CHUNK);
    let first = heaps[0].plan(3 * CHUNK, 64).unwrap();
    heaps[0].commit(first).unwrap();
    heaps[0].abandon(first).unwrap();
    assert!(heaps[0].confirm(first).is_err());
    assert_eq!(heaps[0].plan(4 * CHUNK, 64).unwrap().offset, first.offset);
}

#[test]
fn freed_memory_is_reused_without_asking_the_system_again() {
    let heaps = heaps(1, 64 * CHUNK);
    for _ in 0..100 {
        let (a, b) = (allocate(&heaps, CHUNK, 64), allocate(&heaps, 3 * CHUNK, 64));
        heaps[0].free(a).unwrap();
        heaps[0].free(b).unwrap();
    }
    let usage = heaps[0].usage();
    assert_eq!(
        (usage.committed, usage.free, usage.contiguous, usage.live),
        (4 * CHUNK, usage.len, usage.len, 0)
    );
}

#[test]
fn freeing_twice_is_an_error_and_so_is_freeing_what_is_only_planned() {
    let heaps = heaps(1, CHUNK);
    let region = allocate(&heaps, 64, 64);
    heaps[0].free(region).unwrap();
    assert!(heaps[0].free(region).is_err());
    let planned = heaps[0].plan(64, 64).unwrap();
    assert!(heaps[0].free(planned).is_err());
}

#[test]
fn more_memory_than_the_machine_has_is_an_error_and_the_heap_goes_on() {
    let heaps = heaps(1, layout::MAX_HEAP_LEN);
    let region = heaps[0].plan(layout::MAX_HEAP_LEN, 64).unwrap();
    assert!(matches!(heaps[0].commit(region), Err(Error::ResourceLimit { .. })));
    assert!(heaps[0].confirm(region).is_err());
    heaps[0].abandon(region).unwrap();
    assert_eq!(heaps[0].usage().committed, 0);
    let small = allocate(&heaps, 64, 64);
    heaps[0].span(Rank::known(0), small).unwrap().fill(0, 64, 1).unwrap();
}

#[test]
fn a_full_heap_says_what_was_asked_and_what_is_left() {
    let heaps = heaps(1, CHUNK);
    let _half = allocate(&heaps, CHUNK / 2, 64);
    for asked in [CHUNK / 2 + 1, u64::MAX] {
        let error = heaps[0].plan(asked, 64).unwrap_err();
        assert!(
            matches!(error, Error::OutOfMemory { asked: told, free, contiguous, .. }
                if told == asked && free == CHUNK / 2 && contiguous == CHUNK / 2),
            "{error}"
        );
    }
}

#[test]
fn a_heap_without_bytes_can_be_made() {
    let heaps = heaps(2, 0);
    assert!(matches!(heaps[0].plan(0, 1), Err(Error::OutOfMemory { .. })));
    assert!(heaps[1].span(Rank::known(0), Region::default()).unwrap().is_empty());
}

#[test]
fn threads_that_copy_between_ranks_do_not_disturb_each_other() {
    let heaps = heaps(2, 2 * CHUNK);
    let regions: Vec<_> = (0..4).map(|_| allocate(&heaps, 10_000, 64)).collect();
    std::thread::scope(|scope| {
        for (region, mark) in regions.iter().zip(1_u8..) {
            let heap = &heaps[0];
            scope.spawn(move || {
                heap.span(Rank::known(0), *region).unwrap().fill(0, region.len, mark).unwrap();
                heap.copy(place(0, *region, 0), place(1, *region, 0), region.len, CacheHint::Keep).unwrap();
            });
        }
    });
    for (region, mark) in regions.iter().zip(1_u8..) {
        assert_eq!(bytes(&heaps[1], 1, *region), vec![mark; 10_000]);
    }
}

#[test]
fn a_transfer_split_into_small_windows_and_looked_up_by_id_is_the_same_copy() {
    use crate::heap::registered::{MemoryRegistrar, MemoryTable, TABLE_WORDS, heap_windows};
    use crate::heap::windows::HeapWindows;
    use crate::shm::Mapping;

    let heaps = heaps(2, CHUNK);
    let heap = &heaps[0];
    let whole = allocate(&heaps, CHUNK, 64);
    let words = Mapping::boxed(TABLE_WORDS as u64 * 8).unwrap().cells(0, TABLE_WORDS as u64).unwrap();
    let table = MemoryTable::new(words, 2, CHUNK).unwrap();
    let mut registrar = MemoryRegistrar::new(table.clone());
    let windows = HeapWindows::with_limits(2, CHUNK, 1 << 14, 5000).unwrap();
    heap_windows(&mut registrar, &windows).unwrap();

    let pattern: Vec<u8> = (0..251_u8).cycle().take(100_001).collect();
    heap.span(Rank::known(0), whole).unwrap().copy_in(16_383, &pattern).unwrap();
    let (source, target) = (place(0, whole, 16_383), place(1, whole, 777));
    for piece in windows.split(source, target, 100_001).unwrap() {
        let from = table.resolve(piece.source, piece.source_offset, piece.len.get()).unwrap();
        let to = table.resolve(piece.target, piece.target_offset, piece.len.get()).unwrap();
        let at = |(rank, region): (Rank, Region)| HeapPlace { rank, offset: region.offset };
        heap.copy(at(from), at(to), piece.len.get().into(), CacheHint::Keep).unwrap();
    }
    let got = bytes(&heaps[1], 1, whole);
    assert_eq!(got[777..777 + pattern.len()], pattern);
    assert!(got[..777].iter().chain(&got[777 + pattern.len()..]).all(|byte| *byte == 0));
}

#[test]
fn a_proxy_of_a_rank_reaches_what_the_rank_may_reach_and_no_more() {
    let heaps = heaps(2, 4 * CHUNK);
    let proxy = heaps[1].view().clone();
    let region = heaps[1].plan(CHUNK, 64).unwrap();
    heaps[1].commit(region).unwrap();
    assert!(proxy.span(Rank::known(0), region).is_err());
    heaps[1].confirm(region).unwrap();
    assert!(proxy.span(Rank::known(0), region).is_ok());
    assert!(proxy.span(Rank::known(0), Region::new(HeapOffset::new(CHUNK), 1)).is_err());
    assert!(heaps[0].span(Rank::known(0), region).is_err(), "rank 0 has not confirmed it");
}

#[test]
fn a_forged_watermark_reaches_no_further_than_the_heap() {
    let heaps = heaps(2, CHUNK);
    heaps[0].raise(u64::MAX);
    assert_eq!(heaps[0].watermark(), CHUNK);
    assert!(heaps[0].span(Rank::known(1), Region::new(HeapOffset::new(1), CHUNK)).is_err());
    assert!(heaps[0].span(Rank::known(1), Region::new(HeapOffset::new(0), u64::MAX)).is_err());
}

#[test]
fn a_view_needs_the_segment_of_every_rank_at_its_full_length() {
    let shape = HeapShape::new(2, CHUNK).unwrap();
    let create =
        |shape| layout::create_segment(&crate::shm::Backing::Anonymous, shape, Default::default()).unwrap();
    let mut window = Window::reserve(2, shape.segment_len()).unwrap();
    window.map(Rank::known(0), &create(shape)).unwrap();
    let view = |window, rank| HeapView::new(Arc::new(window), Rank::known(rank), shape);
    assert!(matches!(view(window, 0), Err(Error::InvalidRank { rank: 1, .. })));
    let mut window = Window::reserve(2, shape.segment_len()).unwrap();
    window.map(Rank::known(0), &create(shape)).unwrap();
    window.map(Rank::known(1), &create(HeapShape::new(2, 0).unwrap())).unwrap();
    assert!(matches!(view(window, 1), Err(Error::OutOfRange { .. })));
    assert!(matches!(view(Window::reserve(2, CHUNK).unwrap(), 2), Err(Error::InvalidRank { rank: 2, .. })));
}

#[test]
fn memory_is_backed_by_whole_chunks_and_only_once() {
    let mut ledger = HeapLedger::new(10 * CHUNK).unwrap();
    let first = ledger.plan(1, 1).unwrap();
    assert_eq!(ledger.missing(first).unwrap(), 0..CHUNK);
    ledger.backed(first).unwrap();
    assert_eq!(ledger.confirm(first).unwrap(), CHUNK);
    let second = ledger.plan(CHUNK, 1).unwrap();
    assert_eq!(ledger.missing(second).unwrap(), CHUNK..2 * CHUNK);
    ledger.backed(second).unwrap();
    assert!(ledger.missing(second).unwrap().is_empty());
    ledger.confirm(second).unwrap();
    ledger.free(first).unwrap();
    let again = ledger.plan(64, 64).unwrap();
    assert_eq!(again.offset, HeapOffset::ZERO);
    assert!(ledger.missing(again).unwrap().is_empty(), "freed memory is still backed");
}

#[test]
fn the_last_chunk_of_a_heap_may_be_short() {
    let mut ledger = HeapLedger::new(CHUNK + 128).unwrap();
    let all = ledger.plan(CHUNK + 128, 64).unwrap();
    assert_eq!(ledger.missing(all).unwrap(), 0..CHUNK + 128);
}

#[test]
fn an_abandoned_region_does_not_raise_what_the_ranks_agreed_on() {
    let mut ledger = HeapLedger::new(16 * CHUNK).unwrap();
    let far = ledger.plan(8 * CHUNK, 64).unwrap();
    ledger.backed(far).unwrap();
    ledger.abandon(far).unwrap();
    assert_eq!(ledger.backed, 8 * CHUNK);
    let near = ledger.plan(64, 64).unwrap();
    ledger.backed(near).unwrap();
    assert_eq!(ledger.confirm(near).unwrap(), CHUNK);
}

#[test]
fn steps_out_of_turn_are_refused() {
    let mut ledger = HeapLedger::new(4 * CHUNK).unwrap();
    let region = ledger.plan(100, 64).unwrap();
    assert!(ledger.confirm(region).is_err(), "not committed");
    assert!(ledger.free(region).is_err(), "not confirmed");
    ledger.backed(region).unwrap();
    ledger.confirm(region).unwrap();
    assert!(ledger.confirm(region).is_err(), "twice");
    assert!(ledger.abandon(region).is_err(), "live");
    assert!(ledger.missing(region).is_err(), "live");
    ledger.free(region).unwrap();
    assert!(ledger.free(region).is_err(), "twice");
    let stranger = Region::new(HeapOffset::new(64), 1);
    assert!(ledger.missing(stranger).is_err() && ledger.backed(stranger).is_err());
}

#[test]
fn an_alignment_stricter_than_the_heaps_own_is_refused() {
    let mut ledger = HeapLedger::new(4 * CHUNK).unwrap();
    assert!(ledger.plan(1, 2 * MAX_ALIGN).is_err());
    assert!(ledger.plan(1, u64::MAX).is_err());
    assert!(ledger.plan(1, MAX_ALIGN).is_ok());
}

proptest! {
    #[test]
    fn whatever_is_live_lies_below_the_agreed_watermark_and_that_below_the_backed_one(
        steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 0..3 * CHUNK, 0..22_u32), 1..80),
    ) {
        let mut ledger = HeapLedger::new(12 * CHUNK).unwrap();
        let (mut planned, mut live) = (Vec::<Region>::new(), Vec::<Region>::new());
        let mut agreed = 0;
        let mut memory = [false; 12];
        for (step, pick, len, align_bits) in steps {
            match step {
                0 => planned.extend(ledger.plan(len, 1 << align_bits).ok()),
                1 if !planned.is_empty() => {
                    let region = planned.swap_remove(pick.index(planned.len()));
                    let missing = ledger.missing(region).unwrap();
                    for chunk in missing.step_by(usize::try_from(CHUNK).unwrap()) {
                        let had = std::mem::replace(&mut memory[usize::try_from(chunk / CHUNK).unwrap()], true);
                        prop_assert!(!had, "committed twice");
                    }
                    ledger.backed(region).unwrap();
                    agreed = ledger.confirm(region).unwrap();
                    live.push(region);
                }
                2 if !planned.is_empty() => {
                    ledger.abandon(planned.swap_remove(pick.index(planned.len()))).unwrap();
                }
                3 if !live.is_empty() => {
                    ledger.free(live.swap_remove(pick.index(live.len()))).unwrap();
                }
                _ => {}
            }
            let chunks = usize::try_from(ledger.backed / CHUNK).unwrap();
            prop_assert!(memory[..chunks].iter().all(|has| *has));
            prop_assert!(agreed <= ledger.backed);
            prop_assert!(live.iter().all(|region| region.end().unwrap() <= agreed));
            prop_assert_eq!(ledger.allocator.live(), live.len() + planned.len());
        }
    }
}
