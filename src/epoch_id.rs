//! The numbers by which a job and its epochs are told apart.

use std::hash::{BuildHasher, RandomState};

/// The epoch of a job's first communicator.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// Returns a job number that no other job of the machine has. It is never zero.
pub(crate) fn fresh_job_id() -> u64 {
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now())).max(1)
}
