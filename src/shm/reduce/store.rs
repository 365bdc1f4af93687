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
//! [`run`] only says which way is the better one. A kernel goes past the cache if it can: with AVX2, or wider vectors, and where
//! lines begin at the same element in all targets. Operators of a program's own always go through it.

use super::places::Places;
use crate::shm::copy::{Purpose, Way, by_experience};
use crate::shm::mapping::to_usize;

/// Bytes of a cache line, of which a store past the cache should fill all.
pub(super) const LINE: usize = 64;

/// Shorter places, in bytes, are not worth a look at their number, or at where their lines begin.
pub(super) const SHORT: usize = 4096;

/// Does `combine` over all of `places`, its results stored in the better way. Both are right for all places, and give the same bits.
///
/// Half of all places are to this what a source is to a copy: what is read and what is written fill a cache together.
#[inline]
pub(super) fn run(places: &Places<'_>, combine: impl FnOnce(Way)) {
    let targets = places.targets();
    if places.len() < SHORT || places.is_in_place() || elements_before_line(targets, 1).is_none() {
        return combine(Way::Through);
    }
    let of_places = |n: usize| (places.len() as u64).saturating_mul(n as u64);
    let bytes = of_places(places.sources().len() + targets.len());
    by_experience(to_usize(bytes / 2), to_usize(of_places(targets.len())), Purpose::Combine, combine);
}

/// How many of the first targets go past the cache, where nobody reads the first one soon, but the others: that one, unless it takes
/// the place of a source.
pub(super) fn n_past_but_others(places: &Places<'_>) -> usize {
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
