//! What the launcher tells the device processes of a measuring job to do.
//!
//! MERGED:
//! The figures of a matrix.
//!
//! MERGED:
//! What the launcher tells the device processes of a matrix.
//!
//! MERGED:
//! What the launcher tells the device processes of a collective test, and what they tell it.

use std::time::Duration;
use serde::{Deserialize, Serialize};
use super::collective::settings::Settings;
use super::interleave::Effort;
use super::matrix;
use crate::flags::ProxyPlace;
use crate::perf::test::{Test, TestChannel};
use anyhow::Result;
use super::figure::PairPlacement;
use crate::perf::pair::RankPair;
use clap::ValueEnum;
use crate::perf::report::PerfRow;
use crate::perf::test::TestChannel;

/// The environment variable that carries the plan, as JSON.
pub(crate) const VARIABLE: &str = "SHMCCL_PERF_PLAN";

/// An idle proxy polls for a millisecond before it sleeps.
const PROXIES_ASLEEP_AFTER: Duration = Duration::from_millis(3);

/// One job: every rank does the same tests, in the same order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfPlan {
    /// What to measure, and over which channel.
    pub(crate) tests: Vec<(Test, Option<TestChannel>)>,
    /// Sizes, for the tests that have them.
    pub(crate) sizes: Vec<u64>,
    /// Operations to time per figure, where the user said how many.
    pub(crate) iters: Option<u64>,
    /// Operations before the clock starts, where the user said how many.
    pub(crate) warmup: Option<u64>,
    /// Whether data are verified.
    pub(crate) check: bool,
    /// Whether ranks 0 and 1 share a core; the launcher's finding.
    pub(crate) one_core: bool,
    /// Milliseconds to spend on a figure where the user did not say how many operations.
    pub(crate) figure_ms: u64,
    /// Milliseconds to go on for at most, where a figure has too few samples for a 99th percentile.
    pub(crate) patience_ms: u64,
    /// The only test that is given so long, where the percentiles of one only are shown.
    pub(crate) patient: Option<Test>,
    /// Where proxies run.
    pub(crate) proxy: ProxyPlace,
    /// What collective tests are to measure.
    pub(crate) collective: Option<Settings>,
    /// What a matrix is to show.
    pub(crate) matrix: Option<matrix::settings::Settings>,
}

impl PerfPlan {
    /// A job that starts and ends.
    pub(crate) fn of_nothing() -> Self {
        Self {
            tests: Vec::new(),
            sizes: Vec::new(),
            iters: None,
            warmup: None,
            check: true,
            one_core: false,
            figure_ms: 0,
            patience_ms: 0,
            patient: None,
            proxy: ProxyPlace::Thread,
            collective: None,
            matrix: None,
        }
    }

    /// Bytes of heap that the job needs on every rank.
    pub(crate) fn heap_len(&self) -> u64 {
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        if self.collective.is_some() {
            // Inputs and outputs, what the library keeps for itself (up to an eighth of the heap), flags and times.
            return (pages(largest).saturating_mul(2).saturating_add(64 << 20) / 7).saturating_mul(8);
        }
        // Outgoing, incoming, what a peer sends meanwhile, packets twice over in two halves, flags and small buffers.
        let has_packets = self.tests.iter().any(|(test, _)| *test == Test::PacketLatency);
        let packets = if has_packets { largest.saturating_mul(4) } else { 0 };
        pages(largest).saturating_mul(3).saturating_add(packets).saturating_add(16 << 20)
    }

    /// How much to measure for one figure.
    pub(crate) fn effort(&self, test: Test, channel: Option<TestChannel>) -> Effort {
        let is_patient = self.patient.is_none_or(|patient| patient == test);
        let rest = if channel == Some(TestChannel::Port) { PROXIES_ASLEEP_AFTER } else { Duration::ZERO };
        Effort {
            iters: self.iters,
            warmup: self.warmup,
            time: Duration::from_millis(self.figure_ms),
            patience: if is_patient { Duration::from_millis(self.patience_ms) } else { Duration::ZERO },
            rest,
        }
    }
}

/// `len` in whole pages.
fn pages(len: u64) -> u64 {
    len.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixFigure {
    /// Bandwidth of puts in one direction.
    Unidirectional,
    /// Bandwidth of puts in both directions at once, both together.
    Bidirectional,
    /// From a put with signal until the receiver holds the data.
    Latency,
    /// Every rank to every other at once.
    AllToAll,
}

impl MatrixFigure {
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
pub(crate) struct PairPlacement {
    /// The rank that puts.
    pub(crate) from: u32,
    /// The rank that it puts to.
    pub(crate) to: u32,
    /// The core of the one; null where the scheduler decides.
    pub(crate) from_core: Option<u32>,
    /// The core of the other.
    pub(crate) to_core: Option<u32>,
}

impl PairPlacement {
    /// Whether both are known to share a core.
    pub(crate) fn one_core(self) -> bool {
        self.from_core.is_some() && self.from_core == self.to_core
    }
}

/// Sizes, and who is where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MatrixSettings {
    /// Bytes of a put whose bandwidth is measured; of all that a rank sends when all send at once.
    pub(crate) bandwidth_bytes: u64,
    /// Bytes of a put whose latency is measured.
    pub(crate) latency_bytes: u64,
    /// The core of each rank; `None` where the scheduler decides.
    pub(crate) cores: Vec<Option<u32>>,
    /// Whether there are more ranks than cores.
    pub(crate) crowded: bool,
}

impl MatrixSettings {
    /// The pair of these ranks.
    ///
    /// # Errors
    /// A number that is no rank.
    pub(crate) fn pair(&self, leader: u32, other: u32) -> Result<RankPair> {
        let one_core = match (self.core(leader), self.core(other)) {
            (Some(first), Some(second)) => first == second,
            _ => self.crowded,
        };
        Ok(RankPair::new(leader, other, u32::try_from(self.cores.len())?, one_core)?)
    }

    /// Where the two are, the leader first.
    pub(crate) fn place(&self, pair: RankPair) -> PairPlacement {
        let (from, to) = (pair.leader.get(), pair.other.get());
        PairPlacement { from, to, from_core: self.core(from), to_core: self.core(to) }
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

/// What to measure, besides the sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CollectiveSettings {
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
    pub(crate) average: RankAverage,
    /// Where buffers are.
    pub(crate) memory: Memory,
    /// Whether the percentiles of times are shown, which single operations have and means have not.
    pub(crate) percentiles: bool,
    /// Algorithms to be held against each other, out of place, instead of the one above.
    pub(crate) rivals: Vec<Option<String>>,
}

/// What the time of an operation is, of all that the ranks have measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RankAverage {
    /// That of rank 0.
    First,
    /// Their mean.
    Mean,
    /// The shortest.
    Least,
    /// The longest.
    Most,
}

impl RankAverage {
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
pub(crate) enum DeviceLine {
    /// Where a rank is.
    RankPlacement(RankPlacement),
    /// A figure, from rank 0.
    Figure(Box<PerfRow>),
}

/// A rank and its process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct RankPlacement {
    /// The rank.
    pub(crate) rank: u32,
    /// Its process.
    pub(crate) pid: u32,
    /// The first core that it may run on.
    pub(crate) core: usize,
}

impl DeviceLine {
    /// Reads a line.
    ///
    /// # Errors
    /// A line that is none.
    pub(crate) fn read(line: &str) -> Result<Self> {
        Ok(serde_json::from_str(line)?)
    }
}
