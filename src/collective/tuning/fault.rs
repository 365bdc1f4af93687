//! What can be wrong with a table.

use super::super::algorithm::Algorithm;
use super::super::operation::Operation;
use crate::rank::MAX_RANKS;

/// Why a tuning table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuningFault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// It is a directory, a pipe or a device.
    #[error("is no regular file")]
    NotAFile,
    /// No table is as long.
    #[error("has more than {most} bytes, and no tuning table is as long")]
    TooLong {
        /// The most that are read.
        most: u64,
    },
    /// It is no TOML, or no table in TOML.
    #[error("{0}")]
    Malformed(String),
    /// It is of another version.
    #[error("is of version {found}, and this is a reader of version {}", super::text::VERSION)]
    Version {
        /// The version.
        found: u32,
    },
    /// No operation has this name, or not one that there are several algorithms for.
    #[error("there are no algorithms to choose from for the operation {name:?}")]
    UnknownOperation {
        /// The name.
        name: String,
    },
    /// No algorithm has this name.
    #[error("{name:?} is {}", super::super::algorithm::UnknownAlgorithm)]
    UnknownAlgorithm {
        /// The name.
        name: String,
    },
    /// The algorithm cannot do the operation.
    #[error("{algorithm} cannot do {operation}")]
    Unsupported {
        /// The algorithm.
        algorithm: Algorithm,
        /// The operation.
        operation: Operation,
    },
    /// A communicator cannot have so many ranks, or has no choice.
    #[error("ranks is {found}, expected 2 to {MAX_RANKS}")]
    Ranks {
        /// How many.
        found: u32,
    },
    /// Sizes and algorithms do not match.
    #[error(
        "up_to has {sizes} sizes for {algorithms} algorithms, expected one less, as the last is for all that is longer"
    )]
    Count {
        /// How many sizes.
        sizes: usize,
        /// How many algorithms.
        algorithms: usize,
    },
    /// The sizes do not ascend.
    #[error("the sizes in up_to do not ascend")]
    Order,
    /// There are two cases for the same circumstances.
    #[error("this case is there twice")]
    Twice,
}
