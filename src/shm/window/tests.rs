use std::ptr::NonNull;

use super::*;
use crate::rank::MAX_RANKS;
use crate::shm::segment::MAX_LEN;
use crate::shm::{Backing, Identity};
use crate::sync::atomic::{AtomicU64, Ordering};

fn segment(len: u64) -> Segment {
    let segment = Segment::create(&Backing::Anonymous, len, Identity::default()).unwrap();
    segment.commit(0, len).unwrap();
    segment
}

fn base_of(window: &Window, rank: u32) -> NonNull<u8> {
    window.range.part(u64::from(rank) * window.stride, 0).unwrap().base()
}

#[test]
fn every_rank_is_a_stride_away_from_the_one_before() {
    let window = Window::reserve(4, 8 * PAGE).unwrap();
    let base = base_of(&window, 0).as_ptr().addr();
    for rank in 0..4_u32 {
        let address = base_of(&window, rank).as_ptr().addr();
        assert_eq!((address - base) as u64, u64::from(rank) * 8 * PAGE);
    }
    assert!(window.mapping(Rank::known(4)).is_none());
}

#[test]
fn strides_of_huge_pages_start_on_one() {
    let window = Window::reserve(3, 2 * HUGE).unwrap();
    assert_eq!(base_of(&window, 1).as_ptr().addr() as u64 % HUGE, 0);
}

#[test]
fn a_segment_mapped_twice_is_one_memory() {
    let segment = segment(2 * PAGE);
    let mut window = Window::reserve(2, 2 * PAGE).unwrap();
    let here = window.map(Rank::known(0), &segment).unwrap();
    let there = window.map(Rank::known(1), &segment).unwrap();
    assert_eq!(here.base(), base_of(&window, 0));
    here.cell::<AtomicU64>(PAGE).unwrap().store(5, Ordering::Relaxed); // same thread
    assert_eq!(there.span(PAGE, 8).unwrap().read::<u64>(0).unwrap(), 5);
    let elsewhere = segment.map().unwrap();
    assert_eq!(elsewhere.span(PAGE, 8).unwrap().read::<u64>(0).unwrap(), 5);
}

#[test]
fn what_was_mapped_outlives_the_window_and_the_segment() {
    let segment = segment(PAGE);
    let mut window = Window::reserve(2, PAGE).unwrap();
    let span = window.map(Rank::known(1), &segment).unwrap().span(512, 8).unwrap();
    drop((window, segment));
    span.write(0, 3_u64).unwrap();
    assert_eq!(span.read::<u64>(0).unwrap(), 3);
}

#[test]
fn a_place_takes_one_segment_that_fits() {
    let (fits, too_long) = (segment(PAGE), segment(2 * PAGE));
    let mut window = Window::reserve(2, PAGE).unwrap();
    assert!(matches!(window.map(Rank::known(0), &too_long), Err(Error::InvalidArgument { value: 8192, .. })));
    assert!(matches!(window.map(Rank::known(2), &fits), Err(Error::InvalidRank { rank: 2, n_ranks: 2 })));
    assert!(window.mapping(Rank::known(0)).is_none());
    window.map(Rank::known(0), &fits).unwrap();
    assert!(window.mapping(Rank::known(0)).is_some());
    assert!(matches!(window.map(Rank::known(0), &fits), Err(Error::InvalidArgument { .. })));
    assert!(window.mapping(Rank::known(9)).is_none());
}

#[test]
fn a_window_of_a_bad_shape_is_refused() {
    for (n_ranks, stride) in
        [(0, PAGE), (257, PAGE), (1, 0), (1, 1), (1, PAGE + 1), (1, 2 * MAX_LEN), (1, u64::MAX)]
    {
        assert!(
            matches!(Window::reserve(n_ranks, stride), Err(Error::InvalidArgument { .. })),
            "{n_ranks} ranks of {stride}"
        );
    }
}

#[test]
fn many_long_places_cost_no_memory() {
    let window = Window::reserve(MAX_RANKS, 64 << 30).unwrap();
    assert_eq!(window.n_ranks(), MAX_RANKS);
    assert_eq!(window.stride, 64 << 30);
}

#[test]
fn dropping_the_window_gives_all_addresses_back() {
    let segment = segment(PAGE);
    let mut window = Window::reserve(8, HUGE).unwrap();
    for rank in 0..8 {
        window.map(Rank::known(rank), &segment).unwrap();
    }
    // The segment keeps its header mapped.
    assert_eq!(mappings_of(&segment), 1 + 8);
    drop(window);
    assert_eq!(mappings_of(&segment), 1);
}

#[test]
fn what_is_mapped_into_a_window_is_advised() {
    let segment = segment(4 << 20);
    let mut window = Window::reserve(1, 4 << 20).unwrap();
    let place = window.map(Rank::known(0), &segment).unwrap();
    let area = format!("{:x}-", place.base().as_ptr().addr());
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let flags = smaps.lines().skip_while(|line| !line.starts_with(&area));
    let flags = flags.skip(1).find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    let is_compiled_in = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    assert_eq!(flags.split_ascii_whitespace().any(|flag| flag == "hg"), is_compiled_in, "{flags}");
}

/// In how many places of this process the segment is mapped.
fn mappings_of(segment: &Segment) -> usize {
    let inode = nix::sys::stat::fstat(segment).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.split_ascii_whitespace().nth(4) == Some(&inode)).count()
}

/// What `/proc` says of the pages at `address`, by two letters each.
fn flags_at(address: *const u8) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_there = false;
    for line in maps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some(range) = range {
            let [start, end] = [range.0, range.1].map(|end| usize::from_str_radix(end, 16).unwrap_or(0));
            is_there = (start..end).contains(&address.addr());
        } else if let Some(flags) = line.strip_prefix("VmFlags: ").filter(|_| is_there) {
            return flags.to_owned();
        }
    }
    panic!("nothing is mapped at {address:?}");
}

fn is_dumped(mapping: &Mapping, offset: u64) -> bool {
    let address = mapping.part(offset, 1).unwrap().base();
    !flags_at(address.as_ptr()).split(' ').any(|flag| flag == "dd")
}

#[test]
fn no_core_dump_holds_a_segment_but_what_was_asked_for() {
    let segment = segment(4 * PAGE);
    let mut window = Window::reserve(2, 4 * PAGE).unwrap();
    let places = [0, 1].map(|rank| window.map(Rank::known(rank), &segment).unwrap());
    let [own, other] = &places;
    let elsewhere = segment.map().unwrap();
    assert!(!is_dumped(own, 0) && !is_dumped(other, 0) && !is_dumped(&elsewhere, 0));
    own.take_into_dumps(PAGE, 2 * PAGE).unwrap();
    assert_eq!([0, 1, 2, 3].map(|page| is_dumped(own, page * PAGE)), [false, true, true, false]);
    assert!(!is_dumped(other, PAGE));
    let named = format!("shmccl-test-dumps-{}", std::process::id());
    let named = Segment::create(&Backing::Named(named), PAGE, Identity::default()).unwrap();
    assert!(!is_dumped(&named.map().unwrap(), 0));
}
