//! The two ranks that measure while all others sleep.

use shmccl::{Rank, Result};

/// Who keeps the time, and with whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// Keeps the time, and sends first.
    pub(crate) leader: Rank,
    /// Does what the leader says.
    pub(crate) other: Rank,
    /// Whether both share a core.
    pub(crate) one_core: bool,
}

impl Pair {
    /// Two of `n_ranks` ranks.
    ///
    /// # Errors
    /// A number that is no rank.
    pub(crate) fn new(leader: u32, other: u32, n_ranks: u32, one_core: bool) -> Result<Self> {
        Ok(Self { leader: Rank::new(leader, n_ranks)?, other: Rank::new(other, n_ranks)?, one_core })
    }

    /// Whether `rank` is one of the two.
    pub(crate) fn has(self, rank: Rank) -> bool {
        rank == self.leader || rank == self.other
    }

    /// Whom `rank` measures with; the leader, for ranks that do not.
    pub(crate) fn peer_of(self, rank: Rank) -> Rank {
        if rank == self.leader { self.other } else { self.leader }
    }
}
