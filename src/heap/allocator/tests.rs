use proptest::prelude::*;

use super::*;

fn region(offset: u64, len: u64) -> Region {
    Region::new(HeapOffset::new(offset), len)
}

#[test]
fn allocations_are_handed_out_from_the_lowest_offset_up() {
    let mut heap = Allocator::new(4096).unwrap();
    assert_eq!(heap.allocate(1, 1).unwrap(), region(0, 1));
    assert_eq!(heap.allocate(65, 64).unwrap(), region(64, 65));
    assert_eq!(heap.allocate(8, 1024).unwrap(), region(1024, 8));
    assert_eq!(heap.allocate(64, 8).unwrap(), region(192, 64), "the hole before the aligned one is used");
    assert_eq!(heap.free_bytes(), 4096 - 64 - 128 - 64 - 64);
    assert_eq!(heap.live(), 4);
}

#[test]
fn an_empty_allocation_has_an_offset_of_its_own() {
    let mut heap = Allocator::new(128).unwrap();
    let (first, second) = (heap.allocate(0, 1).unwrap(), heap.allocate(0, 1).unwrap());
    assert_ne!(first.offset, second.offset);
    assert_eq!((first.len, second.len), (0, 0));
    assert!(matches!(
        heap.allocate(0, 1),
        Err(Error::OutOfMemory { asked: 0, len: 128, free: 0, contiguous: 0 })
    ));
    heap.free(second).unwrap();
    heap.free(first).unwrap();
    assert_eq!(heap.contiguous(1), 128);
}

#[test]
fn a_heap_without_bytes_is_out_of_memory_at_once() {
    let mut heap = Allocator::new(0).unwrap();
    assert!(heap.is_empty());
    assert!(matches!(heap.allocate(0, 1), Err(Error::OutOfMemory { .. })));
}

#[test]
fn a_length_that_cannot_be_rounded_up_is_out_of_memory() {
    let mut heap = Allocator::new(1 << 40).unwrap();
    for asked in [u64::MAX, u64::MAX - 62, u64::MAX - 63, 1 << 63, (1 << 40) + 1] {
        let error = heap.allocate(asked, 64).unwrap_err();
        assert!(
            matches!(error, Error::OutOfMemory { asked: told, free, contiguous, .. }
                if told == asked && free == 1 << 40 && contiguous == 1 << 40),
            "{error}"
        );
    }
    assert_eq!(heap.allocate(1 << 40, 64).unwrap(), region(0, 1 << 40));
}

#[test]
fn the_largest_heap_that_can_be_counted_works_to_its_last_granule() {
    let len = u64::MAX - (GRANULE - 1);
    let mut heap = Allocator::new(len).unwrap();
    let all = heap.allocate(len, 1).unwrap();
    assert_eq!(heap.free_bytes(), 0);
    heap.free(all).unwrap();
    let top = heap.allocate(64, 1 << 63).unwrap();
    let half = heap.allocate(64, 1 << 63).unwrap();
    assert_eq!((top.offset.get(), half.offset.get()), (0, 1 << 63));
    assert!(heap.allocate(64, 1 << 63).is_err());
}

#[test]
fn out_of_memory_tells_what_was_asked_what_is_free_and_the_longest_run_at_that_alignment() {
    let mut heap = Allocator::new(1024).unwrap();
    let regions: Vec<_> = (0..16).map(|_| heap.allocate(64, 64).unwrap()).collect();
    for index in [1, 2, 5, 15] {
        heap.free(regions[index]).unwrap();
    }
    let error = heap.allocate(200, 64).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { asked: 200, free: 256, contiguous: 128, .. }), "{error}");
    let error = heap.allocate(100, 128).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { asked: 100, free: 256, contiguous: 64, .. }), "{error}");
}

#[test]
fn a_bad_alignment_is_an_error_and_changes_nothing() {
    let mut heap = Allocator::new(4096).unwrap();
    for align in [0, 3, 65, u64::MAX] {
        assert!(matches!(heap.allocate(8, align), Err(Error::InvalidArgument { name: "align", .. })));
    }
    assert_eq!(heap.free_bytes(), 4096);
    assert!(Allocator::new(100).is_err());
}

#[test]
fn freeing_twice_or_something_else_is_an_error_and_changes_nothing() {
    let mut heap = Allocator::new(4096).unwrap();
    let a = heap.allocate(100, 64).unwrap();
    let b = heap.allocate(100, 64).unwrap();
    heap.free(a).unwrap();
    assert!(heap.free(a).is_err(), "twice");
    assert!(heap.free(region(b.offset.get(), 99)).is_err(), "another length");
    assert!(heap.free(region(b.offset.get() + 64, 36)).is_err(), "its middle");
    assert!(heap.free(region(u64::MAX, 1)).is_err(), "nowhere");
    assert_eq!(heap.free_bytes(), 4096 - 128);
    heap.free(b).unwrap();
    assert_eq!((heap.free_bytes(), heap.contiguous(64), heap.live()), (4096, 4096, 0));
}

#[test]
fn freed_memory_is_joined_with_its_neighbours_in_any_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let mut heap = Allocator::new(192).unwrap();
        let regions: Vec<_> = (0..3).map(|_| heap.allocate(64, 64).unwrap()).collect();
        for index in order {
            heap.free(regions[index]).unwrap();
        }
        assert_eq!(heap.allocate(192, 64).unwrap().offset, HeapOffset::ZERO, "{order:?}");
    }
}

/// One flag per granule, searched from the start: slow and obvious.
struct Oracle {
    used: Vec<bool>,
}

impl Oracle {
    fn granules(len: u64) -> usize {
        usize::try_from(len.div_ceil(GRANULE).max(1)).unwrap_or(usize::MAX)
    }

    fn allocate(&mut self, len: u64, align: u64) -> Option<u64> {
        let (need, step) = (Self::granules(len), Self::granules(align));
        let start = (0..self.used.len()).step_by(step).find(|&start| {
            self.used[start..].len() >= need && !self.used[start..start + need].contains(&true)
        })?;
        self.used[start..start + need].fill(true);
        Some(start as u64 * GRANULE)
    }

    fn free(&mut self, region: Region) {
        let start = usize::try_from(region.offset.get() / GRANULE).unwrap();
        self.used[start..start + Self::granules(region.len)].fill(false);
    }

    fn free_bytes(&self) -> u64 {
        self.used.iter().filter(|used| !**used).count() as u64 * GRANULE
    }

    fn contiguous(&self, align: u64) -> u64 {
        let run = |start: usize| self.used[start..].iter().take_while(|used| !**used).count() as u64;
        (0..self.used.len()).step_by(Self::granules(align)).map(run).max().unwrap_or(0) * GRANULE
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { len: u64, align: u64 },
    Free { pick: usize },
    FreeAgain { pick: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0..600_u64, 1 => 0..5000_u64, 1 => Just(u64::MAX), 1 => (0..8_u64).prop_map(|n| n * 64)];
    let align = (0..13_u32).prop_map(|bits| 1_u64 << bits);
    prop_oneof![
        5 => (len, align).prop_map(|(len, align)| Step::Allocate { len, align }),
        4 => any::<usize>().prop_map(|pick| Step::Free { pick }),
        1 => any::<usize>().prop_map(|pick| Step::FreeAgain { pick }),
    ]
}

proptest! {
    #[test]
    fn every_call_agrees_with_a_slow_first_fit(granules in 0..96_u64, steps in prop::collection::vec(step(), 1..120)) {
        let mut heap = Allocator::new(granules * GRANULE).unwrap();
        let mut oracle = Oracle { used: vec![false; usize::try_from(granules).unwrap()] };
        let (mut live, mut dead) = (Vec::<Region>::new(), Vec::<Region>::new());
        for step in steps {
            match step {
                Step::Allocate { len, align } => match (heap.allocate(len, align), oracle.allocate(len, align)) {
                    (Ok(region), Some(offset)) => {
                        prop_assert_eq!(region, Region::new(HeapOffset::new(offset), len));
                        live.push(region);
                    }
                    (Err(Error::OutOfMemory { asked, free, contiguous, .. }), None) => {
                        prop_assert_eq!((asked, free, contiguous), (len, oracle.free_bytes(), oracle.contiguous(align)));
                    }
                    (got, expected) => prop_assert!(false, "got {got:?}, expected {expected:?}"),
                },
                Step::Free { pick } if !live.is_empty() => {
                    let region = live.swap_remove(pick % live.len());
                    heap.free(region).unwrap();
                    oracle.free(region);
                    dead.push(region);
                }
                Step::FreeAgain { pick } if !dead.is_empty() => {
                    let region = dead[pick % dead.len()];
                    if !live.contains(&region) {
                        prop_assert!(heap.free(region).is_err());
                    }
                }
                Step::Free { .. } | Step::FreeAgain { .. } => {}
            }
            prop_assert_eq!(heap.free_bytes(), oracle.free_bytes());
            prop_assert_eq!(heap.contiguous(1), oracle.contiguous(1));
            prop_assert_eq!(heap.live(), live.len());
        }
        for region in live {
            heap.free(region).unwrap();
        }
        prop_assert_eq!(heap.contiguous(1), granules * GRANULE);
    }
}
