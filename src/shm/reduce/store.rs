//! Where results go: into the cache, or past it.
//!
//! A store into the cache first reads the line that it changes, and later drives another one out.
//! Where operands are much larger than the cache that is a third of all traffic, for nothing: a
//! line stored past the cache goes to memory and no other way. Where operands fit into the cache it
//! is the other way round. In place the cache is always right: the line has just been read.
//!
//! The length from which to store past the cache depends on the processor, and on where cores and
//! lines are: lines that another core has read have to be taken from it, store by store. So from 16
//! KiB on it is tried out, as for copies, by the cost of this thread's combinations while all ranks
//! store theirs by one policy. Where operands fill the cache results go past it, always.
//!
//! # Results for several
//! A line that one core has written and another one has read takes long to write again: stores wait
//! for each other, and neither `prefetchw` nor a load of the line beforehand helps much. The string
//! instruction takes lines over without reading them, many at a time. So where a result has several
//! receivers, none of them in place, a third policy is tried out: [`StorePolicy::CopyForward`].
//! Results are stored to the first receiver alone, [`PIECE`] bytes at a time, and copied to the
//! others from there. Whether that wins depends on the processor and on shared caches
//! (`benches/RESULTS.md`, "Results for several receivers"). So all three policies are tried out,
//! and the first two that are possible where lines of the receivers do not begin at the same
//! element. Where all that is read and written does not fit into the shared cache, results go past
//! it.
//!
//! [`run`] only picks a policy. A kernel goes past the cache if it can: with AVX2, or wider
//! vectors, and where lines begin at the same element in all targets. Operators of a program's own
//! always go through it.

use super::places::OperandAddresses;
use crate::shm::copy::{StorePolicy, StorePurpose, takes_over, with_measured_policy};
use crate::shm::to_usize;

/// Bytes of a cache line, of which a store past the cache should fill all.
pub(super) const LINE: usize = 64;

/// Shorter places, in bytes, are not worth a look at their number, or at where their lines begin.
pub(super) const SHORT: usize = 4096;

/// Bytes that are stored to the first receiver before they are copied to the others: as many as a
/// core's own cache keeps meanwhile. A multiple of the widths of all elements.
pub(super) const PIECE: usize = 128 << 10;

/// Does `combine` over all of `places`, its results stored by the better policy. All policies are
/// right for all operands, and give the same bits.
///
/// For the plan of copies, half of all operands are the source: the bytes read and written fill a
/// cache together.
#[inline]
pub(super) fn run(places: &OperandAddresses<'_>, combine: impl FnOnce(StorePolicy)) {
    if places.len() < SHORT || places.is_in_place() || !are_alike(places) {
        return combine(StorePolicy::Cached);
    }
    try_out(places, places.len() as u64, StorePurpose::Combine, combine);
}

/// Combines like [`run`], for results with several receivers that all combine a share at once.
/// `most_len` is the largest share: every rank counts calls by it, so that all of them pick the
/// same store policy.
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

/// Returns whether lines of all targets begin at the same element, so that results can go past the
/// cache.
#[inline]
fn are_alike(places: &OperandAddresses<'_>) -> bool {
    elements_before_line(places.targets(), 1).is_some()
}

/// Returns all bytes that are read or written where each place has `len` of them.
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

/// Returns how many of the first targets go past the cache, where the first one is not read soon
/// and the others are: the first one, unless it takes the place of a source.
pub(super) fn n_past_but_others(places: &OperandAddresses<'_>) -> usize {
    let is_source = |target: &*mut u8| places.sources().contains(&target.cast_const());
    usize::from(places.len() >= SHORT && places.targets().first().is_some_and(|first| !is_source(first)))
}

/// Returns how many elements of `width` bytes lie before the first line that starts with an
/// element. `None` unless that is the same number in all of `targets`.
pub(super) fn elements_before_line(targets: &[*mut u8], width: usize) -> Option<usize> {
    let bytes_before = |target: &*mut u8| target.addr().wrapping_neg() % LINE;
    let bytes = targets.first().map(bytes_before)?;
    let is_same = targets.iter().all(|target| bytes_before(target) == bytes);
    (is_same && bytes.is_multiple_of(width)).then_some(bytes / width)
}

#[cfg(test)]
mod tests;
