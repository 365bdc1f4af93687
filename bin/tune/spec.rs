//! What device processes are told to measure, and what they report.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shmccl::collective::tuning::BufferKind;
use shmccl::collective::{Algorithm, Operation};
use shmccl_harness::layout::{CaseLayout, distinct};
use shmccl_harness::test::TestChannel;

use crate::failure::UsageError;
use crate::planned::PlannedTest;

/// The environment variable that carries the spec, as JSON.
pub(crate) const VARIABLE: &str = "SHMCCL_TUNE_SPEC";

/// The smallest contribution of a rank, in bytes.
const LEAST: u64 = 8;

/// The most execution plans that take part: each is a bit of a word.
const MOST_PLANS: usize = 48;

/// The longest buffer, in bytes.
const LONGEST: u64 = 8 << 20;

/// Bytes of an element: all are `f32`.
const ELEMENT: u64 = size_of::<f32>() as u64;

/// What one job measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TuneSpec {
    /// Whether few sizes are enough.
    pub(crate) quick: bool,
    /// How long the job is to take, in milliseconds.
    pub(crate) budget_ms: u64,
    /// The names of the execution plans that take part.
    pub(crate) plans: Vec<String>,
    /// The bytes of heap that these take.
    pub(crate) plans_len: u64,
}

/// One operation at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TunePoint {
    /// What the ranks do.
    pub(crate) operation: Operation,
    /// Where the buffers are.
    pub(crate) buffers: BufferKind,
    /// Elements of the buffers.
    pub(crate) layout: CaseLayout,
    /// The bytes that a rank contributes at most.
    pub(crate) len: u64,
}

impl TuneSpec {
    /// Makes the spec for `n_ranks`, with those of the `planned` that are for as many.
    ///
    /// # Errors
    /// More plans than can be measured.
    pub(crate) fn new(quick: bool, n_ranks: u32, planned: &[PlannedTest]) -> Result<Self, UsageError> {
        let fitting: Vec<_> = planned.iter().filter(|plan| plan.n_ranks() == n_ranks).collect();
        let plans: BTreeSet<_> = fitting.iter().map(|plan| plan.name().to_owned()).collect();
        if plans.len() > MOST_PLANS {
            let found = plans.len();
            let told = format!("--plans has {found} plans for {n_ranks} ranks; leave {MOST_PLANS} there");
            return Err(UsageError::new(told));
        }
        let plans_len = fitting.iter().map(|plan| plan.heap_len(LONGEST)).sum();
        Ok(Self { quick, budget_ms: 0, plans: plans.into_iter().collect(), plans_len })
    }

    /// Returns all points for `n_ranks`, in their order.
    pub(crate) fn points(&self, n_ranks: u32) -> Vec<TunePoint> {
        let each = Algorithm::OPERATIONS
            .into_iter()
            .flat_map(|operation| BufferKind::ALL.into_iter().map(move |buffers| (operation, buffers)));
        each.flat_map(|(operation, buffers)| self.of(operation, buffers, n_ranks)).collect()
    }

    fn of(&self, operation: Operation, buffers: BufferKind, n_ranks: u32) -> Vec<TunePoint> {
        let n_ranks = u64::from(n_ranks);
        let (send, recv) = operation.blocks(n_ranks);
        let factor = if self.quick { 64 } else { 4 };
        let lens = std::iter::successors(Some(LEAST), |len| Some(len * factor));
        let layout = |len| CaseLayout::new(operation, len / send * send.max(recv), ELEMENT, n_ranks);
        let layouts = lens.map(layout).take_while(|layout| layout.largest() * ELEMENT <= LONGEST);
        let point =
            |layout: CaseLayout| TunePoint { operation, buffers, layout, len: layout.send() * ELEMENT };
        layouts.filter(|layout| layout.block > 0).map(point).collect()
    }

    /// Returns the bytes of heap that each rank needs: inputs, outputs, and the share of the
    /// library.
    pub(crate) fn heap_len(&self) -> u64 {
        (2 * LONGEST + (48 << 20)) / 7 * 8 + self.plans_len
    }
}

impl TunePoint {
    /// Returns the algorithms to measure among `n_ranks`, each way of doing the operation once.
    pub(crate) fn algorithms(&self, n_ranks: u32) -> Vec<Algorithm> {
        distinct(self.operation, TestChannel::Memory, n_ranks, self.len)
    }
}

/// The times of one algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AlgorithmTimes {
    /// Its name; `plan:NAME` for an execution plan.
    pub(crate) algorithm: String,
    /// The median time of an operation on its slowest rank, in nanoseconds.
    pub(crate) p50_ns: f64,
    /// Its time over that of the built-in choice in the same round: the median over rounds.
    pub(crate) ratio: f64,
    /// A quarter of the rounds had a smaller ratio.
    pub(crate) ratio_p25: f64,
    /// A quarter of the rounds had a greater ratio.
    pub(crate) ratio_p75: f64,
    /// Rounds that it took part in. A hopeless algorithm is left out of later ones.
    pub(crate) rounds: usize,
}

/// What was measured at one point: a line that rank 0 prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TuneFigure {
    /// The operation.
    pub(crate) operation: String,
    /// How many ranks.
    pub(crate) ranks: u32,
    /// Whether ranks share cores.
    pub(crate) oversubscribed: bool,
    /// Where the buffers were.
    pub(crate) buffers: BufferKind,
    /// The bytes that a rank contributes at most.
    pub(crate) bytes: u64,
    /// The built-in choice.
    pub(crate) built_in: AlgorithmTimes,
    /// The built-in choice once more: its ratio to itself is noise.
    pub(crate) control: AlgorithmTimes,
    /// All other algorithms, and execution plans.
    pub(crate) others: Vec<AlgorithmTimes>,
    /// Elements that differed from the expected ones.
    pub(crate) wrong: u64,
}
