use super::*;
use crate::shm::Mapping;

const HEAP: u64 = 1 << 20;

/// A table over two heaps, with its registrar and the words beneath.
fn table() -> (MemoryRegistrar, CellSlice<AtomicU64>) {
    let mapping = Mapping::boxed(TABLE_WORDS as u64 * 8).unwrap();
    let words = mapping.cells::<AtomicU64>(0, TABLE_WORDS as u64).unwrap();
    (MemoryRegistrar::new(MemoryTable::new(words.clone(), 2, HEAP).unwrap()), words)
}

fn region(offset: u64, len: u64) -> Region {
    Region::new(HeapOffset::new(offset), len)
}

#[test]
fn a_registered_region_is_found_by_its_id_through_another_handle() {
    let (mut registrar, words) = table();
    let proxy = MemoryTable::new(words, 2, HEAP).unwrap();
    let id = registrar.register(Rank::known(1), region(64, 100)).unwrap();
    assert_eq!(proxy.lookup(id).unwrap(), (Rank::known(1), region(64, 100)));
    registrar.unregister(id).unwrap();
    assert!(matches!(proxy.lookup(id), Err(Error::InvalidArgument { .. })));
    assert!(registrar.unregister(id).is_err(), "twice");
}

#[test]
fn an_all_zero_table_names_nothing() {
    let (registrar, _) = table();
    for id in 0..512 {
        assert!(registrar.table.lookup(MemoryId::new(id).unwrap()).is_err());
    }
}

#[test]
fn regions_that_do_not_exist_cannot_be_registered() {
    let (mut registrar, _) = table();
    assert!(matches!(registrar.register(Rank::known(2), region(0, 1)), Err(Error::InvalidRank { .. })));
    for bad in
        [region(HEAP, 1), region(1, HEAP), region(u64::MAX, 1), region(1, u64::MAX), region(HEAP + 1, 0)]
    {
        assert!(matches!(registrar.register(Rank::known(0), bad), Err(Error::OutOfRange { .. })), "{bad:?}");
    }
    for good in [region(HEAP, 0), region(0, 0), region(0, HEAP)] {
        registrar.register(Rank::known(0), good).unwrap();
    }
}

#[test]
fn every_id_can_be_in_use_and_one_that_is_given_back_is_used_again() {
    let (mut registrar, _) = table();
    let ids: Vec<_> = (0..512).map(|i| registrar.register(Rank::known(0), region(i, 1)).unwrap()).collect();
    let full = registrar.register(Rank::known(0), region(0, 1));
    assert!(matches!(full, Err(Error::Exhausted { limit: 512, .. })));
    registrar.unregister(ids[77]).unwrap();
    let again = registrar.register(Rank::known(1), region(5, 6)).unwrap();
    assert_eq!(again, ids[77]);
    assert_eq!(registrar.table.lookup(again).unwrap(), (Rank::known(1), region(5, 6)));
    assert_eq!(registrar.table.lookup(ids[511]).unwrap().1, region(511, 1));
}

#[test]
fn a_trigger_may_name_any_part_of_a_region_and_nothing_past_it() {
    let (mut registrar, _) = table();
    let id = registrar.register(Rank::known(0), region(1000, 50)).unwrap();
    let table = &registrar.table;
    assert_eq!(table.resolve(id, 20, 30).unwrap(), (Rank::known(0), region(1020, 30)));
    assert_eq!(table.resolve(id, 50, 0).unwrap().1, region(1050, 0));
    for (offset, len) in [(51, 0), (20, 31), (u32::MAX, 1), (0, u32::MAX), (u32::MAX, u32::MAX)] {
        assert!(matches!(table.resolve(id, offset, len), Err(Error::OutOfRange { .. })), "{len} at {offset}");
    }
}

#[test]
fn a_mix_of_two_entries_is_refused_word_by_word() {
    let (mut registrar, words) = table();
    let id = registrar.register(Rank::known(0), region(64, 100)).unwrap();
    let old: Vec<_> = words[..4].iter().map(plain::load).collect();
    registrar.unregister(id).unwrap();
    assert_eq!(registrar.register(Rank::known(1), region(4096, 7)).unwrap(), id);
    let new: Vec<_> = words[..4].iter().map(plain::load).collect();
    for mix in 1..15_u32 {
        for (word, cell) in words[..4].iter().enumerate() {
            plain::store(cell, if mix >> word & 1 == 1 { old[word] } else { new[word] });
        }
        assert!(matches!(registrar.table.lookup(id), Err(Error::Layout { .. })), "mix {mix:04b}");
    }
}

#[test]
fn a_forged_entry_is_checked_against_the_heaps() {
    let (registrar, words) = table();
    let id = MemoryId::new(0).unwrap();
    for forged in
        [[3, 0, 1], [u64::MAX, 0, 1], [1 << 33, 0, 1], [1, HEAP, 1], [1, u64::MAX, 2], [1, 0, u64::MAX]]
    {
        for (cell, value) in words.iter().zip(forged.into_iter().chain([seal(forged)])) {
            plain::store(cell, value);
        }
        let error = registrar.table.lookup(id).unwrap_err();
        assert!(matches!(error, Error::InvalidRank { .. } | Error::OutOfRange { .. }), "{forged:?}: {error}");
    }
}

#[test]
fn the_windows_of_all_heaps_take_the_first_ids_in_order() {
    let (mut registrar, _) = table();
    let windows = HeapWindows::with_limits(2, HEAP, HEAP / 4, 1 << 10).unwrap();
    heap_windows(&mut registrar, &windows).unwrap();
    for (id, expected) in (0..).zip(windows.iter()) {
        assert_eq!(registrar.table.lookup(MemoryId::new(id).unwrap()).unwrap(), expected);
    }
    assert_eq!(registrar.register(Rank::known(0), region(0, 1)).unwrap().get(), 8);
    assert!(matches!(
        heap_windows(&mut registrar, &windows),
        Err(Error::Layout { expected: 0, found: 9, .. })
    ));
}

#[test]
fn a_piece_of_a_split_transfer_resolves_to_the_bytes_that_were_meant() {
    use crate::heap::windows::HeapPlace;
    let (mut registrar, _) = table();
    let windows = HeapWindows::with_limits(2, HEAP, 1 << 12, 1 << 10).unwrap();
    heap_windows(&mut registrar, &windows).unwrap();
    let at = |rank, offset| HeapPlace { rank: Rank::known(rank), offset: HeapOffset::new(offset) };
    let mut done = 0;
    for piece in windows.split(at(0, 4001), at(1, 8190), 10_000).unwrap() {
        let source = registrar.table.resolve(piece.source, piece.source_offset, piece.len.get()).unwrap();
        let target = registrar.table.resolve(piece.target, piece.target_offset, piece.len.get()).unwrap();
        assert_eq!(source, (Rank::known(0), region(4001 + done, piece.len.get().into())));
        assert_eq!(target, (Rank::known(1), region(8190 + done, piece.len.get().into())));
        done += u64::from(piece.len.get());
    }
    assert_eq!(done, 10_000);
}

#[test]
fn a_table_of_another_size_is_not_a_table() {
    let mapping = Mapping::boxed(4096).unwrap();
    let words = mapping.cells::<AtomicU64>(0, 512).unwrap();
    assert!(matches!(MemoryTable::new(words, 1, HEAP), Err(Error::Layout { found: 512, .. })));
}
