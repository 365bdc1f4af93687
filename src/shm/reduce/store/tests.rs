use super::*;
use crate::shm::copy::CopyKernel;
use crate::shm::reduce::{Source, SourcePlace, Target, with_places};

/// Whether this processor stores past the cache at all.
fn is_able() -> bool {
    choose(u64::MAX, ReadSoon::Yes) != CopyKernel::Memcpy
}

/// From where on a copy goes past the cache.
fn copied_past_from() -> usize {
    (12..40).map(|power| 1 << power).find(|&len| choose(len as u64, ReadSoon::Yes).is_streaming()).unwrap()
}

/// What is decided for two sources and one target of `len` bytes each, the first source in place or not.
fn decided(len: usize, in_place: bool) -> Store {
    // Zeroed memory that nobody touches costs nothing, however much it is.
    let (one, other, mut sum) = (vec![0; len], vec![0; len], vec![0; len]);
    let first = if in_place { SourcePlace::Target(0) } else { SourcePlace::Slice(&one) };
    let sources = [first, SourcePlace::Slice(&other)].map(Source::fresh);
    with_places(&sources, &mut [Target::Slice(&mut sum)], len as u64, Store::of).unwrap()
}

#[test]
fn results_go_past_the_cache_when_half_of_all_places_is_as_long_as_a_copy_that_does() {
    if !is_able() {
        assert_eq!(decided(1 << 20, false), Store::Cached);
        return;
    }
    let half = copied_past_from();
    let len = (2 * half).div_ceil(3);
    assert_eq!(decided(len, false), Store::Streaming);
    assert_eq!(decided(len / 2, false), Store::Cached);
    assert_eq!(decided(0, false), Store::Cached);
}

#[test]
fn results_in_place_stay_in_the_cache_whatever_their_length() {
    let len = if is_able() { 4 * copied_past_from() } else { 1 << 20 };
    assert_eq!(decided(len, true), Store::Cached);
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
