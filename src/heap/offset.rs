//! Places in a symmetric heap: offsets that mean the same on every rank, and runs of bytes that
//! start at one.

use crate::error::{Error, Result};

/// A distance in bytes from the start of a symmetric heap; the same on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeapOffset(u64);

impl HeapOffset {
    /// The start of the heap.
    pub const ZERO: Self = Self(0);

    /// Names the byte `bytes` past the start of the heap.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the distance from the start of the heap, in bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for HeapOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A run of bytes of a symmetric heap, the same on every rank.
///
/// A region is plain data: holding one proves nothing. Code that turns it into memory checks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Region {
    /// Where it starts.
    pub offset: HeapOffset,
    /// How many bytes it has; zero is legal.
    pub len: u64,
}

impl Region {
    /// Names `len` bytes from `offset` on.
    #[must_use]
    pub const fn new(offset: HeapOffset, len: u64) -> Self {
        Self { offset, len }
    }

    /// Returns the offset one past its last byte; `None` when that is past the end of all
    /// addresses.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.offset.0.checked_add(self.len)
    }

    /// Says whether some byte is in this region and in `other`.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let is_before = |one: Self, other: Self| one.end().is_some_and(|end| end <= other.offset.get());
        self.len > 0 && other.len > 0 && !is_before(self, other) && !is_before(other, self)
    }

    /// Names the `len` bytes that start `offset` bytes into this region.
    ///
    /// An empty part is legal anywhere from the region's start to its end, both included.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when the part reaches past the region's end.
    pub const fn part(self, offset: u64, len: u64) -> Result<Self> {
        if fits(offset, len, self.len) {
            Ok(Self { offset: HeapOffset(self.offset.0.saturating_add(offset)), len })
        } else {
            Err(Error::OutOfRange { what: "region", offset, len, limit: self.len })
        }
    }

    /// Refuses a region that reaches past `limit`, in the name of `what`.
    pub(crate) const fn check(self, what: &'static str, limit: u64) -> Result<()> {
        if fits(self.offset.0, self.len, limit) {
            Ok(())
        } else {
            Err(Error::OutOfRange { what, offset: self.offset.0, len: self.len, limit })
        }
    }
}

/// Returns whether `[offset, offset + len)` lies within `[0, limit)`; an empty range may also stand
/// at `limit`.
pub(crate) const fn fits(offset: u64, len: u64, limit: u64) -> bool {
    match offset.checked_add(len) {
        Some(end) => end <= limit,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stays_within_its_region() {
        let region = Region::new(HeapOffset::new(64), 10);
        assert_eq!(region.part(3, 7).unwrap(), Region::new(HeapOffset::new(67), 7));
        assert!(region.part(3, 8).is_err());
        assert!(region.part(u64::MAX, 1).is_err());
        assert!(region.part(1, u64::MAX).is_err());
    }

    #[test]
    fn an_empty_part_may_stand_at_the_end_but_not_past_it() {
        let region = Region::new(HeapOffset::new(64), 10);
        assert_eq!(region.part(10, 0).unwrap().offset.get(), 74);
        assert!(region.part(11, 0).is_err());
        assert_eq!(Region::default().part(0, 0).unwrap(), Region::default());
    }

    #[test]
    fn a_region_past_all_addresses_has_no_end() {
        assert_eq!(Region::new(HeapOffset::new(u64::MAX), 0).end(), Some(u64::MAX));
        assert_eq!(Region::new(HeapOffset::new(u64::MAX), 1).end(), None);
        assert!(Region::new(HeapOffset::new(u64::MAX), 2).check("heap", u64::MAX).is_err());
    }
}
