//! What the launcher tells the device processes of a matrix.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::figure::Place;
use crate::perf::pair::Pair;

/// Sizes, and who is where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Bytes of a put whose bandwidth is measured; of all that a rank sends when all send at once.
    pub(crate) bandwidth_bytes: u64,
    /// Bytes of a put whose latency is measured.
    pub(crate) latency_bytes: u64,
    /// The core of each rank; `None` where the scheduler decides.
    pub(crate) cores: Vec<Option<u32>>,
    /// Whether there are more ranks than cores.
    pub(crate) oversubscribed: bool,
}

impl Settings {
    /// The pair of these ranks.
    ///
    /// # Errors
    /// A number that is no rank.
    pub(crate) fn pair(&self, leader: u32, other: u32) -> Result<Pair> {
        let one_core = match (self.core(leader), self.core(other)) {
            (Some(first), Some(second)) => first == second,
            _ => self.oversubscribed,
        };
        Ok(Pair::new(leader, other, u32::try_from(self.cores.len())?, one_core)?)
    }

    /// Where the two are, the leader first.
    pub(crate) fn place(&self, pair: Pair) -> Place {
        let (from, to) = (pair.leader.get(), pair.other.get());
        Place { from, to, from_core: self.core(from), to_core: self.core(to) }
    }

    fn core(&self, rank: u32) -> Option<u32> {
        self.cores.get(rank as usize).copied().flatten()
    }

    /// Bytes from each rank to each other when all send at once: a multiple of a cache line, where there are so many.
    pub(crate) fn block(&self) -> u64 {
        let share = self.bandwidth_bytes / self.cores.len().max(1) as u64;
        (share / 64 * 64).max(8)
    }
}
