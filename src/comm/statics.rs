//! The static objects of the ranks' programs, by their addresses in this rank.

use std::sync::Arc;

use super::Communicator;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::Span;
use crate::shm::statics::{JobStatics, StaticsWindow};

/// The static objects of the programs of a communicator's ranks: what lies in `.data` and `.bss` of
/// the executable, where the program has asked for it. See [`crate::shm::statics`].
///
/// An object has one offset on every rank, but not one address. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Statics {
    job: JobStatics,
    members: Arc<[Rank]>,
}

impl Communicator {
    /// Returns the static objects of its ranks.
    #[must_use]
    pub fn statics(&self) -> Statics {
        Statics { job: self.context().mapped().statics().clone(), members: Arc::clone(&self.members) }
    }
}

impl Statics {
    /// Returns where they are, by the job's numbers of the ranks.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`] with the reason why they are not symmetric.
    pub fn window(&self) -> Result<&Arc<StaticsWindow>> {
        self.job.window()
    }

    /// Returns what `rank` has in the place of the `len` bytes at `address` of this rank, to be
    /// read and written there. Orders nothing.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`] when they are not symmetric, or names what else lies at `address`;
    /// [`Error::OutOfRange`], [`Error::InvalidRank`].
    pub fn span(&self, rank: Rank, address: usize, len: u64) -> Result<Span> {
        let n_ranks = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let missing = Error::InvalidRank { rank: rank.get(), n_ranks };
        let member = self.members.get(rank.index()).copied().ok_or(missing)?;
        self.window()?.span(member, address, len)
    }
}
