//! Memory for the operands of groups, kept from one group to the next.
//!
//! Fresh memory is zeroed by the system page by page, as it is first written to. For operands of
//! some MiB that takes longer than to copy them.

use crate::error::{Error, Result};

/// The most bytes that are kept.
const KEPT: usize = 32 << 20;

/// Words that no group uses.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<Vec<u64>>);

impl Scratch {
    /// Returns words for `len` bytes or more, of any value, so that elements of every type are
    /// aligned there.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] when there is no memory.
    pub(super) fn take(&mut self, len: usize) -> Result<Vec<u64>> {
        let count = len.div_ceil(8);
        let fitting = (0..self.0.len()).filter(|at| self.0[*at].len() >= count);
        if let Some(at) = fitting.min_by_key(|at| self.0[*at].len()) {
            return Ok(self.0.swap_remove(at));
        }
        // Words that are too few make room.
        let mut words = self.0.pop().unwrap_or_default();
        words.clear();
        words.try_reserve_exact(count).map_err(|_| Error::ResourceLimit {
            resource: "memory",
            action: "copying the operands of a call",
            remedy: "call for fewer elements at a time",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        words.resize(count, 0);
        Ok(words)
    }

    /// Keeps words for later, unless there are enough.
    pub(super) fn give_back(&mut self, words: Vec<u64>) {
        let kept: usize = self.0.iter().map(Vec::len).sum();
        if (kept + words.len()) * 8 <= KEPT {
            self.0.push(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_used_again_and_grow_where_they_are_too_few() {
        let mut scratch = Scratch::default();
        let first = scratch.take(17).unwrap();
        assert_eq!(first.len(), 3);
        let place = first.as_ptr();
        scratch.give_back(first);
        let again = scratch.take(24).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (place, 3));
        scratch.give_back(again);
        assert_eq!(scratch.take(25).unwrap().len(), 4);
        assert!(scratch.0.is_empty(), "what was too short has grown");
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let mut scratch = Scratch::default();
        (0..3).for_each(|_| scratch.give_back(vec![0; KEPT / 16]));
        assert_eq!(scratch.0.len(), 2);
        assert!(scratch.take(usize::MAX).is_err());
    }
}
