//! What the launcher tells the device processes of a collective test, and what they tell it.

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::perf::report::PerfRow;
use crate::perf::test::TestChannel;

/// What to measure, besides the sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The name of the algorithm; `None` for what suits the size.
    pub(crate) algorithm: Option<String>,
    /// The kind of channel that data go over.
    pub(crate) channel: TestChannel,
    /// Names of element types.
    pub(crate) types: Vec<String>,
    /// Names of operators, as the table has them where the operation only moves.
    pub(crate) ops: Vec<String>,
    /// Roots; none for an operation that has no root.
    pub(crate) roots: Vec<u32>,
    /// What becomes of the times of all ranks.
    pub(crate) average: Average,
    /// Where buffers are.
    pub(crate) memory: Memory,
    /// Whether the percentiles of times are shown, which single operations have and means have not.
    pub(crate) percentiles: bool,
    /// Algorithms to be held against each other, out of place, instead of the one above.
    pub(crate) rivals: Vec<Option<String>>,
}

/// What the time of an operation is, of all that the ranks have measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Average {
    /// That of rank 0.
    First,
    /// Their mean.
    Mean,
    /// The shortest.
    Least,
    /// The longest.
    Most,
}

impl Average {
    /// By nccl-tests' number, from 0 to 3.
    pub(crate) fn numbered(number: u8) -> Self {
        match number {
            0 => Self::First,
            1 => Self::Mean,
            2 => Self::Least,
            _ => Self::Most,
        }
    }

    /// The time out of one for each rank.
    pub(crate) fn of(self, times: &[f64]) -> f64 {
        match self {
            Self::First => times[0],
            Self::Mean => times.iter().sum::<f64>() / times.len() as f64,
            Self::Least => times.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Most => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// Where the buffers of an operation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// In the symmetric heap
    Heap,
    /// In memory of the process
    Ordinary,
}

/// A line that a device process prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Where a rank is.
    Seat(Seat),
    /// A figure, from rank 0.
    Figure(Box<PerfRow>),
}

/// A rank and its process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Seat {
    /// The rank.
    pub(crate) rank: u32,
    /// Its process.
    pub(crate) pid: u32,
    /// The first core that it may run on.
    pub(crate) core: usize,
}

impl Message {
    /// Reads a line.
    ///
    /// # Errors
    /// A line that is none.
    pub(crate) fn read(line: &str) -> Result<Self> {
        Ok(serde_json::from_str(line)?)
    }
}
