//! Places: bytes of a rank's own heap, as a custom algorithm names them.

use crate::error::{Error, Result};
use crate::heap::Region;

/// A range of bytes that belongs to a call: of its input or output, a message that has come, or one that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) region: Region,
    /// Whether these are elements of some rank's input, as they were.
    pub(super) fresh: bool,
}

impl Place {
    pub(super) fn made(region: Region) -> Self {
        Self { region, fresh: false }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.region.len
    }

    /// Whether it is of no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// `len` bytes of it, from byte `at` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn part(self, at: u64, len: u64) -> Result<Self> {
        Ok(Self { region: self.region.part(at, len)?, ..self })
    }

    /// Its parts of `len` bytes, of which the last may be shorter.
    pub fn parts(self, len: u64) -> impl Iterator<Item = Self> {
        let step = usize::try_from(len.max(1)).unwrap_or(usize::MAX);
        let starts = (0..self.len()).step_by(step);
        starts.filter_map(move |at| self.part(at, len.min(self.len() - at)).ok())
    }

    /// The same as elements that no rank has combined yet: for a message that was sent straight from an input. Operators that
    /// do something to each input, such as multiply it, do it then.
    #[must_use]
    pub fn uncombined(self) -> Self {
        Self { fresh: true, ..self }
    }

    /// Refuses to go on with two places of different lengths.
    pub(super) fn check_len(self, other: Self) -> Result<()> {
        if self.len() == other.len() {
            return Ok(());
        }
        let (name, expected) = ("bytes of a place", "as many as the other place has");
        Err(Error::InvalidArgument { name, value: other.len(), expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::HeapOffset;

    #[test]
    fn parts_cover_a_place_once_and_reach_no_further() {
        let place = Place::made(Region::new(HeapOffset::new(100), 10));
        let lens: Vec<_> = place.parts(4).map(|part| (part.region.offset.get(), part.len())).collect();
        assert_eq!(lens, [(100, 4), (104, 4), (108, 2)]);
        assert_eq!(place.parts(100).count(), 1);
        assert_eq!(place.part(10, 0).unwrap().parts(4).count(), 0);
        assert!(place.part(9, 2).is_err() && place.part(u64::MAX, 1).is_err());
    }
}
