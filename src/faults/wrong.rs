//! What can be wrong with a plan of faults.

use super::FaultKind;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultsFault {
    /// No such fault.
    #[error("`{0}` is no fault")]
    Kind(String),
    /// No such key.
    #[error("`{0}` is no key with a value")]
    Key(String),
    /// Not a number from 1 on.
    #[error("`{0}` is no number from 1 on")]
    Number(String),
    /// A seed that is none.
    #[error("the seed `{0}` is no number")]
    Seed(String),
    /// No such rank.
    #[error("the rank is not from 0 to 63")]
    Rank,
    /// A rank that the job does not have.
    #[error("there is no rank {rank} in a job of {n_ranks}")]
    NoSuchRank {
        /// Whom it was to strike.
        rank: u32,
        /// How many there are.
        n_ranks: u32,
    },
    /// A key that is there twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// It does not say when.
    #[error("`{}` needs either at or one_in", .0.name())]
    NoWhen(FaultKind),
    /// A delay without its time.
    #[error("`delay` needs a time, such as 5ms")]
    NoTime,
    /// A time for what takes none.
    #[error("`{}` takes no time", .0.name())]
    Time(FaultKind),
    /// It cannot count this.
    #[error("`{}` does not count `{of}`", kind.name())]
    Of {
        /// The fault.
        kind: FaultKind,
        /// What it was to count.
        of: String,
    },
    /// A rank cannot be killed at its triggers, which another process executes.
    #[error("`kill` does not count `trigger` where the proxy is a process, which `stop` kills")]
    OfService,
    /// More than there can be.
    #[error("there are more than 32 faults")]
    TooMany,
}
