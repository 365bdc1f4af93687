//! What the launcher tells the device processes of a measuring job.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shmccl_harness::case::{CollectiveBuffers, whole_pages};
use shmccl_harness::interleave::{Effort, FEWEST_SLICES};
use shmccl_harness::report::{Memory, PairPlacement};
use shmccl_harness::sync::{RankAverage, RankPair};
use shmccl_harness::test::{Test, TestChannel};

use crate::flags::{JobArgs, ProxyPlace, SweepArgs};
use crate::planned::PlanSettings;

/// The environment variable that carries the spec, as JSON.
pub(crate) const VARIABLE: &str = "SHMCCL_PERF_SPEC";

/// Milliseconds for a figure where the user does not say how many operations.
const FIGURE_MS: u64 = 120;

/// Milliseconds to go on for at most, while there are too few samples for a 99th percentile.
pub(crate) const PATIENCE_MS: u64 = 10_000;

/// How long idle proxies get to fall asleep. They poll for a millisecond before.
const PROXIES_ASLEEP_AFTER: Duration = Duration::from_millis(3);

/// The tests of one job. Every rank does them, in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfSpec {
    /// The tests, and the channel of each.
    pub(crate) tests: Vec<(Test, Option<TestChannel>)>,
    /// Sizes, for the tests that have them.
    pub(crate) sizes: Vec<u64>,
    /// Operations to time per figure, where the user said how many.
    pub(crate) iters: Option<u64>,
    /// Operations before the clock starts, where the user said how many.
    pub(crate) warmup: Option<u64>,
    /// Whether data are verified.
    pub(crate) check: bool,
    /// Whether ranks 0 and 1 share a core, as the launcher has found.
    pub(crate) one_core: bool,
    /// Milliseconds to spend on a figure where the user did not say how many operations.
    pub(crate) figure_ms: u64,
    /// Milliseconds to go on for at most, while a figure has too few samples for a 99th percentile.
    pub(crate) patience_ms: u64,
    /// The only test that goes on for so long, where only its percentiles are shown.
    pub(crate) patient: Option<Test>,
    /// In how many rounds a figure is measured. This job does its share.
    pub(crate) rounds: u64,
    /// Where proxies run.
    pub(crate) proxy: ProxyPlace,
    /// The settings of collective tests.
    pub(crate) collective: Option<CollectiveSettings>,
    /// The settings of a matrix.
    pub(crate) matrix: Option<MatrixSettings>,
}

impl PerfSpec {
    /// Makes a spec of `tests` over `sizes` as the flags say, without patience.
    pub(crate) fn new(
        tests: Vec<(Test, Option<TestChannel>)>,
        sizes: Vec<u64>,
        sweep: &SweepArgs,
        job: &JobArgs,
        one_core: bool,
    ) -> Self {
        Self {
            tests,
            sizes,
            iters: sweep.iters,
            warmup: sweep.warmup_iters,
            check: sweep.check(),
            one_core,
            figure_ms: FIGURE_MS,
            proxy: job.proxy,
            ..Self::of_nothing()
        }
    }

    /// Makes a spec of a job that starts, does one all_reduce and ends.
    pub(crate) fn of_nothing() -> Self {
        Self { check: true, rounds: 1, ..Self::default() }
    }

    /// Returns the bytes of heap that the job needs on every rank.
    pub(crate) fn heap_len(&self) -> u64 {
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        if let Some(collective) = &self.collective {
            let planned = collective.plan.as_ref().map_or(0, |plan| plan.heap_len);
            let more = whole_pages(planned).saturating_add(whole_pages(collective.landing_len));
            return CollectiveBuffers::heap_len(largest).saturating_add(more);
        }
        // Outgoing, incoming, what a peer sends meanwhile, packets twice over in two halves, flags.
        let has_packets = self.tests.iter().any(|(test, _)| *test == Test::PacketLatency);
        let packets = if has_packets { largest.saturating_mul(4) } else { 0 };
        whole_pages(largest).saturating_mul(3).saturating_add(packets).saturating_add(16 << 20)
    }

    /// Returns how much to measure for one figure in this round.
    pub(crate) fn effort(&self, test: Test, channel: Option<TestChannel>) -> Effort {
        let is_patient = self.patient.is_none_or(|patient| patient == test);
        let rest = if channel == Some(TestChannel::Port) { PROXIES_ASLEEP_AFTER } else { Duration::ZERO };
        Effort {
            // Results are checked where nothing is timed.
            iters: self.iters.map(|iters| iters.div_ceil(self.rounds).max(1)),
            warmup: self.warmup,
            time: Duration::from_millis(self.figure_ms / self.rounds),
            patience: Duration::from_millis(if is_patient { self.patience_ms / self.rounds } else { 0 }),
            fewest_slices: FEWEST_SLICES.div_ceil(self.rounds),
            rest,
        }
    }
}

/// A figure of a matrix.
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
    /// The figures of a pair, in the order in which they are measured and shown.
    pub(crate) const OF_PAIRS: [Self; 3] = [Self::Unidirectional, Self::Bidirectional, Self::Latency];

    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unidirectional => "unidirectional",
            Self::Bidirectional => "bidirectional",
            Self::Latency => "latency",
            Self::AllToAll => "all_to_all",
        }
    }
}

/// The settings of a matrix test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MatrixSettings {
    /// Bytes of a put whose bandwidth is measured, and of all that a rank sends when all send at
    /// once.
    pub(crate) bandwidth_bytes: u64,
    /// Bytes of a put whose latency is measured.
    pub(crate) latency_bytes: u64,
    /// The core of each rank; `None` where the scheduler decides.
    pub(crate) cores: Vec<Option<u32>>,
    /// Whether there are more ranks than cores.
    pub(crate) oversubscribed: bool,
}

impl MatrixSettings {
    /// Returns the pair of these ranks.
    ///
    /// # Errors
    /// A number that is no rank.
    pub(crate) fn pair(&self, leader: u32, other: u32) -> Result<RankPair> {
        let one_core = match (self.core(leader), self.core(other)) {
            (Some(first), Some(second)) => first == second,
            _ => self.oversubscribed,
        };
        Ok(RankPair::new(leader, other, u32::try_from(self.cores.len())?, one_core)?)
    }

    /// Returns where the two ranks are, the leader first.
    pub(crate) fn placement(&self, pair: RankPair) -> PairPlacement {
        let (from, to) = (pair.leader.get(), pair.other.get());
        PairPlacement { from, to, from_core: self.core(from), to_core: self.core(to) }
    }

    fn core(&self, rank: u32) -> Option<u32> {
        self.cores.get(rank as usize).copied().flatten()
    }

    /// Returns the bytes from each rank to each other when all send at once: whole cache lines,
    /// where there are so many.
    pub(crate) fn block(&self) -> u64 {
        let share = self.bandwidth_bytes / self.cores.len().max(1) as u64;
        (share / 64 * 64).max(8)
    }
}

/// The settings of a collective test, besides the sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CollectiveSettings {
    /// The name of the algorithm; `None` for what suits the size.
    pub(crate) algorithm: Option<String>,
    /// The execution plan that does the operation, where one is wanted.
    pub(crate) plan: Option<PlanSettings>,
    /// The kind of channel that data go over.
    pub(crate) channel: TestChannel,
    /// Names of element types.
    pub(crate) types: Vec<String>,
    /// Names of operators, as in the table where the operation only moves.
    pub(crate) ops: Vec<String>,
    /// Roots; none for an operation that has no root.
    pub(crate) roots: Vec<u32>,
    /// How the times of all ranks become one.
    pub(crate) average: RankAverage,
    /// Where buffers are.
    pub(crate) memory: Memory,
    /// Whether percentiles of times are shown, which needs operations that are timed one by one.
    pub(crate) percentiles: bool,
    /// Algorithms to compare with each other, out of place, instead of the one above.
    pub(crate) algorithms: Vec<Option<String>>,
    /// Bytes of heap for puts of a program's own, where these are compared with them.
    pub(crate) landing_len: u64,
}
