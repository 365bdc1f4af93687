//! Where results go: into the cache, or past it.
//!
//! A store into the cache first reads the line that it changes, and later drives another one out. Where places are much larger
//! than the cache that is a third of all traffic, for nothing: a line stored past the cache goes to memory and no other way.
//! Where they fit into the cache it is the other way round, and so it is in place: the line has just been read.
//!
//! From what length on depends on where cores and lines are, and on the processor (lines that another core has read have to be taken
//! from it, store by store): from 16 KiB on it is tried out, as for copies, by what combinations of this thread turn out to cost
//! while all ranks store theirs in the same way. Where places fill the cache it is past it, always.
//!
//! # Results for several
//! What a core has written and another one has read takes long to write again, line by line: stores wait for each other, and neither
//! `prefetchw` nor a load of the line beforehand helps much. The string instruction takes lines over without reading them, many at a
//! time. So where a result has several receivers, none of them in place, a third way is tried out: results are stored to the first
//! receiver alone, [`PIECE`] bytes at a time, and copied to the others from there ([`StorePolicy::CopyForward`]).
//! With one way forced, an all-reduce of 512 KiB out of place between two ranks on separate cores (AMD Zen 5) took 17 us so, 51 with a
//! store to each, and 30 past the cache; one of 2 MiB 57 to 67, 162 and 160. Among 4 ranks on 2 such cores 512 KiB took 90 to 100, 143
//! and 120 us, 2 MiB 350 to 457, 537 and 457; among 8 ranks 512 KiB took 243, 324 and 290. While cores share their caches the copies are
//! as quick as a store to each between two ranks (512 KiB took 9.2 us against 10.5) and among 8, and slower among 4 (46 us against 40).
//! On an AMD Zen 4 copies are no match for stores past the cache: between two separate cores 32 KiB took 13 us copied, 20 with a store to
//! each, and 4.2 past the cache; 128 KiB 47, 84 and 12; 512 KiB 174, 198 and 49. So all three are tried out, and the first two where lines
//! of the receivers do not begin at the same element.
//! Where what all read and write does not fit into the shared cache it is past it as before: copies of 8 MiB among 8 took 4.1 ms, 3.5
//! past the cache.
//!
//! [`run`] only says which way is the better one. A kernel goes past the cache if it can: with AVX2, or wider vectors, and where
//! lines begin at the same element in all targets. Operators of a program's own always go through it.

use super::places::OperandAddresses;
use crate::shm::copy::{StorePolicy, StorePurpose, takes_over, with_measured_policy};
use crate::shm::mapping::to_usize;

/// Bytes of a cache line, of which a store past the cache should fill all.
pub(super) const LINE: usize = 64;

/// Shorter places, in bytes, are not worth a look at their number, or at where their lines begin.
pub(super) const SHORT: usize = 4096;

/// Results that are stored to the first receiver before they are copied to the others, in bytes: what a core's own cache keeps
/// meanwhile. A multiple of the widths of all elements. With 32 KiB it took 10 % to 20 % longer between two ranks on separate cores.
pub(super) const PIECE: usize = 128 << 10;

/// Does `combine` over all of `places`, its results stored in the better way. All are right for all places, and give the same bits.
///
/// Half of all places are to this what a source is to a copy: what is read and what is written fill a cache together.
#[inline]
pub(super) fn run(places: &OperandAddresses<'_>, combine: impl FnOnce(StorePolicy)) {
    if places.len() < SHORT || places.is_in_place() || !are_alike(places) {
        return combine(StorePolicy::Cached);
    }
    try_out(places, places.len() as u64, StorePurpose::Combine, combine);
}

/// The same for results each of whose receivers does as much of the operation at the same time, and stores it to all, too. The last one
/// may have less to do: calls are told apart by `most_len`, the bytes of whoever has most, so that all who have something to do count the
/// same ones.
#[inline]
pub(super) fn run_for_all(places: &OperandAddresses<'_>, most_len: u64, combine: impl FnOnce(StorePolicy)) {
    if most_len < SHORT as u64 || places.is_in_place() {
        return combine(StorePolicy::Cached);
    }
    let n_receivers = places.targets().len();
    let touched = bytes_of(places, most_len);
    let can_be_copied = n_receivers > 1 && takes_over(touched.saturating_mul(n_receivers as u64));
    let purpose = match (can_be_copied, are_alike(places)) {
        (true, true) => StorePurpose::CombineForAll,
        (true, false) => StorePurpose::CombineForUnlike,
        (false, true) => StorePurpose::Combine,
        (false, false) => return combine(StorePolicy::Cached),
    };
    try_out(places, most_len, purpose, combine);
}

/// Whether lines of all targets begin at the same element, so that results can go past the cache.
#[inline]
fn are_alike(places: &OperandAddresses<'_>) -> bool {
    elements_before_line(places.targets(), 1).is_some()
}

/// All bytes that are read or written where each place has `len` of them.
#[inline]
fn bytes_of(places: &OperandAddresses<'_>, len: u64) -> u64 {
    let n_places = places.sources().len() + places.targets().len();
    len.saturating_mul(n_places as u64)
}

#[inline]
fn try_out(
    places: &OperandAddresses<'_>,
    most_len: u64,
    purpose: StorePurpose,
    combine: impl FnOnce(StorePolicy),
) {
    let [most, own] = [most_len, places.len() as u64].map(|len| to_usize(bytes_of(places, len) / 2).max(1));
    with_measured_policy(most, own, purpose, combine);
}

/// How many of the first targets go past the cache, where nobody reads the first one soon, but the others: that one, unless it takes
/// the place of a source.
pub(super) fn n_past_but_others(places: &OperandAddresses<'_>) -> usize {
    let is_source = |target: &*mut u8| places.sources().contains(&target.cast_const());
    usize::from(places.len() >= SHORT && places.targets().first().is_some_and(|first| !is_source(first)))
}

/// How many elements of `width` bytes lie before the first line that starts with an element, which has to be the same number
/// in all of `targets`.
pub(super) fn elements_before_line(targets: &[*mut u8], width: usize) -> Option<usize> {
    let bytes_before = |target: &*mut u8| target.addr().wrapping_neg() % LINE;
    let bytes = targets.first().map(bytes_before)?;
    let is_same = targets.iter().all(|target| bytes_before(target) == bytes);
    (is_same && bytes.is_multiple_of(width)).then_some(bytes / width)
}

#[cfg(test)]
mod tests;
