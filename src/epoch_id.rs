//! The numbers of jobs and their epochs.
//!
//! Tried by `launch` and `meet`.

use std::hash::{BuildHasher, RandomState};

use crate::rank::Rank;
use crate::shm::Identity;

/// A job, and one of its epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochId {
    pub(crate) job: u64,
    pub(crate) epoch: u64,
}

impl EpochId {
    /// Returns what the header of a segment of this epoch says: that it is `owner`'s, or the
    /// epoch's.
    pub(crate) fn identity(self, owner: Option<Rank>) -> Identity {
        Identity {
            job: self.job,
            epoch: self.epoch,
            owner: owner.map_or(0, |rank| u64::from(rank.get()) + 1),
        }
    }
}

/// The epoch of a job's first communicator.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// Returns a job number that no other job of the machine has. It is never zero.
pub(crate) fn fresh_job_id() -> u64 {
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now())).max(1)
}
