//! What later verbs, and other ranks, may rely on.

use super::Symmetric;
use crate::error::Result;
use crate::rank::Rank;
use crate::sync::word;

impl Symmetric {
    /// Orders the verbs of this thread: whoever sees the effect of a later one, on whatever rank,
    /// sees those of all earlier ones, once it has read that effect by an atomic or a wait.
    ///
    /// OpenSHMEM orders the verbs to each rank by itself; here they are ordered among all ranks. It
    /// costs nothing on x86-64. Atomics need none before them: see the head of
    /// [`symmetric`](super).
    #[inline]
    pub fn fence(&self) {
        word::release_fence();
    }

    /// Returns when all earlier verbs of this thread have taken effect where every rank sees them.
    ///
    /// Verbs are done when they return, but a processor may hold stores back while later loads go
    /// ahead. Two ranks that each write, are quiet and then read what the other writes do not both
    /// miss it.
    #[inline]
    pub fn quiet(&self) {
        word::full_fence();
    }

    /// Does a [`quiet`](Symmetric::quiet) for the verbs towards one rank.
    ///
    /// # Errors
    /// [`Error::InvalidRank`](crate::Error::InvalidRank).
    #[inline]
    pub fn pe_quiet(&self, rank: Rank) -> Result<()> {
        self.target(rank)?;
        self.quiet();
        Ok(())
    }
}
