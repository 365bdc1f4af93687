//! The figures of a matrix.

use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Bandwidth of puts in one direction.
    Unidirectional,
    /// Bandwidth of puts in both directions at once, both together.
    Bidirectional,
    /// From a put with signal until the receiver holds the data.
    Latency,
    /// Every rank to every other at once.
    AllToAll,
}

impl Figure {
    /// Those of a pair, in the order in which they are measured and shown.
    pub(crate) const OF_PAIRS: [Self; 3] = [Self::Unidirectional, Self::Bidirectional, Self::Latency];

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unidirectional => "unidirectional",
            Self::Bidirectional => "bidirectional",
            Self::Latency => "latency",
            Self::AllToAll => "all_to_all",
        }
    }
}

/// Between whom, and where they are: keys of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The rank that puts.
    pub(crate) from: u32,
    /// The rank that it puts to.
    pub(crate) to: u32,
    /// The core of the one; null where the scheduler decides.
    pub(crate) from_core: Option<u32>,
    /// The core of the other.
    pub(crate) to_core: Option<u32>,
}

impl Place {
    /// Whether both are known to share a core.
    pub(crate) fn one_core(self) -> bool {
        self.from_core.is_some() && self.from_core == self.to_core
    }
}
