//! Details of errors that belong to parts of the crate above this one, which cannot name them.

use std::any::Any;

use crate::rank::Rank;

/// A detail that a part of the crate adds to an error of its own.
/// [`Error::detail`](super::Error::detail) returns it by its type.
pub type Detail = Box<dyn std::error::Error + Send + Sync>;

/// A look at what all ranks of an epoch were in as a wait timed out: an
/// [`observe::Report`](crate::observe::Report).
pub trait EpochReport: Any + std::fmt::Debug + std::fmt::Display + Send + Sync {
    /// Returns the rank that holds the others up, where there is one.
    fn straggler(&self) -> Option<Rank>;

    /// Returns all ranks that hold the others up.
    fn stragglers(&self) -> Vec<Rank>;

    /// Returns whether some rank's last long wait has passed its deadline.
    fn has_timed_out(&self) -> bool;

    /// Returns the next rank in the circle of calls in which `rank` waits, where it does, and the
    /// words of that rank's call.
    fn next_in_circle(&self, rank: Rank) -> Option<(Rank, [u64; 2])>;
}

impl dyn EpochReport {
    /// Returns the report by its type, where it is a `T`.
    #[must_use]
    pub fn downcast_ref<T: EpochReport>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}
