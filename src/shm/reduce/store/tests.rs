use super::*;
use crate::shm::copy::{CacheHint, CacheSizes, CopyKernel, choose};
use crate::shm::reduce::{Source, SourcePlace, Target, with_addresses};

/// From where on a copy goes past the cache, whatever has been found out before; beyond all memory
/// if this processor cannot.
fn copied_past_from() -> usize {
    let lens = (12..40).map(|power| 1 << power);
    let is_past = |len: &usize| choose(*len as u64, CacheHint::Keep).is_streaming();
    lens.into_iter().find(is_past).unwrap_or(1 << 40)
}

/// Which way two sources and one target of `len` bytes each go, the first source in place or not.
fn way(len: usize, in_place: bool) -> StorePolicy {
    // Zeroed memory that nobody touches costs nothing, however much it is.
    let (one, other, mut sum) = (vec![0; len], vec![0; len], vec![0; len]);
    let first = if in_place { SourcePlace::Target(0) } else { SourcePlace::Slice(&one) };
    let sources = [first, SourcePlace::Slice(&other)].map(Source::fresh);
    let mut taken = None;
    with_addresses(&sources, &mut [Target::Slice(&mut sum)], len as u64, |places| {
        run(places, |way| taken = Some(way));
    })
    .unwrap();
    taken.expect("it is done once")
}

#[test]
fn results_go_past_the_cache_when_half_of_all_places_is_as_long_as_a_copy_that_does() {
    let half = copied_past_from();
    if half < 1 << 40 {
        assert_eq!(way((2 * half).div_ceil(3), false), StorePolicy::NonTemporal);
    }
    // Shorter than what is tried out.
    assert_eq!((way(SHORT, false), way(0, false)), (StorePolicy::Cached, StorePolicy::Cached));
}

#[test]
fn both_ways_are_tried_out_in_between() {
    let half = copied_past_from();
    let (able, len) = (half < 1 << 40, (half / 3).min(256 << 10));
    let ways: Vec<_> = (0..64).map(|_| way(len, false)).collect();
    assert_eq!((ways.contains(&StorePolicy::Cached), ways.contains(&StorePolicy::NonTemporal)), (true, able));
}

/// In which ways the results of two sources of `len` bytes are stored for so many receivers, the
/// first one in place or not.
fn ways_for_all(len: usize, n_receivers: usize, in_place: bool) -> Vec<StorePolicy> {
    ways_of_share(len, len, n_receivers, in_place)
}

/// The same where some rank has `most_len` bytes of each source.
fn ways_of_share(len: usize, most_len: usize, n_receivers: usize, in_place: bool) -> Vec<StorePolicy> {
    // All in one, so that those of whole lines have their lines alike.
    let (source, mut sums) = (vec![0; len], vec![0; n_receivers * len]);
    let first = if in_place { SourcePlace::Target(0) } else { SourcePlace::Slice(&source) };
    let sources = [first, SourcePlace::Slice(&source)].map(Source::fresh);
    let mut targets: Vec<_> = sums.chunks_exact_mut(len).map(Target::Slice).collect();
    let mut taken = Vec::new();
    with_addresses(&sources, &mut targets, len as u64, |places| {
        (0..64).for_each(|_| run_for_all(places, most_len as u64, |way| taken.push(way)));
    })
    .unwrap();
    taken
}

#[test]
fn copies_from_the_first_receiver_are_tried_out_where_there_are_several_and_none_in_place() {
    let able = copied_past_from() < 1 << 40 && CopyKernel::RepMovsb.is_supported();
    let has_copies = |len, n, in_place| {
        ways_for_all(len, n, in_place).into_iter().any(|way| way == StorePolicy::CopyForward)
    };
    // The first ones of their length: one that has been settled on may be all that later ones take.
    let ways = ways_for_all(32 << 10, 2, false);
    let tried = [StorePolicy::CopyForward, StorePolicy::NonTemporal, StorePolicy::Cached]
        .map(|way| ways.contains(&way));
    assert_eq!(tried, [able, able, true]);
    assert_eq!(has_copies(128 << 10, 3, false), able);
    assert!(!has_copies(32 << 10, 1, false) && !has_copies(32 << 10, 2, true));
    assert_eq!(ways_for_all(SHORT - 1, 2, false), [StorePolicy::Cached; 64]);
}

#[test]
fn copies_are_tried_out_where_lines_of_receivers_begin_at_different_elements_and_stores_past_the_cache_are_not()
 {
    let able = copied_past_from() < 1 << 40 && CopyKernel::RepMovsb.is_supported();
    let ways = ways_for_all((48 << 10) + 4, 2, false);
    let tried = [StorePolicy::CopyForward, StorePolicy::NonTemporal, StorePolicy::Cached]
        .map(|way| ways.contains(&way));
    assert_eq!(tried, [able, false, true]);
}

#[test]
fn who_has_less_to_do_than_others_tries_out_what_they_try_out() {
    let able = copied_past_from() < 1 << 40 && CopyKernel::RepMovsb.is_supported();
    let ways = ways_of_share(SHORT / 2, 24 << 10, 2, false);
    let others = std::thread::spawn(|| ways_for_all(24 << 10, 2, false)).join().unwrap();
    assert_eq!(ways[..9], others[..9]);
    assert_eq!(ways.contains(&StorePolicy::CopyForward), able);
}

#[test]
fn nothing_is_copied_where_all_that_receivers_read_and_write_does_not_fit_into_the_shared_cache() {
    let shared = CacheSizes::of_this_machine().shared;
    // Two sources and two targets, of each of two receivers.
    let len = to_usize(shared / 8 + 64);
    if len < 1 << 28 {
        assert!(!ways_for_all(len, 2, false).contains(&StorePolicy::CopyForward));
    }
}

#[test]
fn results_in_place_stay_in_the_cache_whatever_their_length() {
    for len in [256 << 10, copied_past_from().min(1 << 30)] {
        assert!((0..64).all(|_| way(len, true) == StorePolicy::Cached));
    }
}

#[test]
fn a_first_target_that_nobody_reads_soon_goes_past_the_cache_unless_it_is_a_source_or_short() {
    let n_past = |len: usize, in_place: usize| {
        let (one, mut first, mut second) = (vec![0; len], vec![0; len], vec![0; len]);
        let sources = [SourcePlace::Slice(&one), SourcePlace::Target(in_place)].map(Source::fresh);
        let mut targets = [Target::Slice(&mut first), Target::Slice(&mut second)];
        with_addresses(&sources, &mut targets, len as u64, n_past_but_others).unwrap()
    };
    assert_eq!((n_past(SHORT, 1), n_past(SHORT, 0)), (1, 0));
    assert_eq!((n_past(SHORT - 1, 1), n_past(0, 1)), (0, 0));
}

#[test]
fn lines_are_found_where_they_begin_with_an_element_of_every_target() {
    let at = |addresses: &[usize], width| {
        let targets: Vec<_> = addresses.iter().map(|&at| std::ptr::without_provenance_mut(at)).collect();
        elements_before_line(&targets, width)
    };
    assert_eq!(at(&[64, 640], 4), Some(0));
    assert_eq!(at(&[68, 4], 4), Some(15));
    assert_eq!(at(&[127], 1), Some(1));
    assert_eq!(at(&[96], 8), Some(4));
    assert_eq!(at(&[65], 4), None);
    assert_eq!(at(&[68], 8), None);
    assert_eq!(at(&[64, 68], 4), None);
    assert_eq!(at(&[], 4), None);
}
