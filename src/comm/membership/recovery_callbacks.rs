//! What a rank learns of a recovery, and the function of the program that is called with it.

use crate::error::{Error, Result};
use crate::heap::Region;
use crate::rank::Rank;
use crate::shm::{Mapping, Span};

/// A recovery of a communicator, with the step from which its ranks go on, for
/// [`Communicator::on_recovery`](crate::Communicator::on_recovery).
#[derive(Debug)]
#[non_exhaustive]
pub struct Recovery {
    /// The number of the new epoch, greater than any before. It is the same on all ranks.
    pub epoch: u64,
    /// The restarted ranks in order, the same on all ranks. It is empty where the epoch ended
    /// without a death, and all have come back.
    pub restarted: Vec<Rank>,
    /// Whether this process replaces one that has died.
    pub was_restarted: bool,
    /// The step up to which all survivors had come: the least of what they passed to
    /// [`Communicator::recover`](crate::Communicator::recover). It is the same on all ranks.
    pub sequence: u64,
    pub(in crate::comm) inherited: Option<Mapping>,
}

impl Recovery {
    /// Returns whether the old heap of this rank can still be read. A restarted process reads its
    /// predecessor's ([`Recovery::inherited`]), a survivor its own through the old communicator.
    ///
    /// It is kept whatever backs the segment, since the survivors have its descriptor. Only mapping
    /// it once more can fail.
    #[must_use]
    pub fn keeps_heap(&self) -> bool {
        !self.was_restarted || self.inherited.is_some()
    }

    /// Returns the bytes of `region` in the heap of this process's predecessor, as it left them in
    /// the midst of its work. Offsets mean what they meant to the predecessor. The memory stays
    /// mapped while there is a span of it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this process has no predecessor, or its heap was not
    /// [kept](Recovery::keeps_heap); [`Error::OutOfRange`] past the end of the heap.
    pub fn inherited(&self, region: Region) -> Result<Span> {
        let needs = "a restarted rank whose old heap was kept";
        let heap = self.inherited.as_ref().ok_or(Error::Unavailable { operation: "inherited", needs })?;
        heap.span(region.offset.get(), region.len)
    }
}

/// A function that is called for every recovery.
pub(in crate::comm) type Callback = Box<dyn FnMut(&Recovery) + Send>;

/// Reports recoveries to a rank, each once.
#[derive(Default)]
pub(in crate::comm) struct RecoveryCallbacks {
    pub(in crate::comm) callback: Option<Callback>,
    /// The recovery that led to this epoch, until a callback was called with it.
    pub(in crate::comm) untold: Option<Recovery>,
}

impl std::fmt::Debug for RecoveryCallbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecoveryCallbacks").field("untold", &self.untold).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_was_started_again_without_its_heap_is_told_so() {
        let told = |was_restarted| {
            let recovery =
                Recovery { epoch: 2, restarted: Vec::new(), was_restarted, sequence: 0, inherited: None };
            let read = recovery.inherited(Region::new(crate::heap::HeapOffset::new(0), 8));
            assert!(matches!(read, Err(Error::Unavailable { operation: "inherited", .. })), "{read:?}");
            recovery.keeps_heap()
        };
        assert_eq!([false, true].map(told), [true, false]);
    }
}
