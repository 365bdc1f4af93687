//! What device processes are told to measure, and what they tell.

use serde::{Deserialize, Serialize};
use shmccl::collective::tuning::BufferKind;
use shmccl::collective::{Algorithm, Operation};

use crate::perf::collective::algorithms::distinct;
use crate::perf::collective::layout::CaseLayout;
use crate::perf::test::TestChannel;

/// The environment variable that carries the plan, as JSON.
pub(crate) const VARIABLE: &str = "SHMCCL_TUNE_PLAN";

/// The least that a rank contributes, in bytes.
const LEAST: u64 = 8;

/// No buffer is longer, in bytes.
const LONGEST: u64 = 8 << 20;

/// Bytes of an element: all are `f32`.
const ELEMENT: u64 = size_of::<f32>() as u64;

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Whether few sizes will do.
    pub(crate) quick: bool,
    /// How long the job is to take, in milliseconds.
    pub(crate) budget_ms: u64,
}

/// What is measured in one race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    /// What the ranks do.
    pub(crate) operation: Operation,
    /// Where the buffers are.
    pub(crate) buffers: BufferKind,
    /// How much.
    pub(crate) layout: CaseLayout,
    /// The bytes that a rank contributes at most.
    pub(crate) len: u64,
}

impl Plan {
    /// All races among `n_ranks`, in their order.
    pub(crate) fn courses(&self, n_ranks: u32) -> Vec<Course> {
        let each = Algorithm::OPERATIONS
            .into_iter()
            .flat_map(|operation| BufferKind::ALL.into_iter().map(move |buffers| (operation, buffers)));
        each.flat_map(|(operation, buffers)| self.of(operation, buffers, n_ranks)).collect()
    }

    fn of(&self, operation: Operation, buffers: BufferKind, n_ranks: u32) -> Vec<Course> {
        let n_ranks = u64::from(n_ranks);
        let (send, recv) = operation.blocks(n_ranks);
        let factor = if self.quick { 64 } else { 4 };
        let lens = std::iter::successors(Some(LEAST), |len| Some(len * factor));
        let layout = |len| CaseLayout::new(operation, len / send * send.max(recv), ELEMENT, n_ranks);
        let layouts = lens.map(layout).take_while(|layout| layout.largest() * ELEMENT <= LONGEST);
        let course = |layout: CaseLayout| Course { operation, buffers, layout, len: layout.send() * ELEMENT };
        layouts.filter(|layout| layout.block > 0).map(course).collect()
    }

    /// Bytes of heap that the job needs on every rank: inputs, outputs, and what the library keeps for itself.
    pub(crate) fn heap_len(&self) -> u64 {
        (2 * LONGEST + (48 << 20)) / 7 * 8
    }
}

impl Course {
    /// The algorithms that race among `n_ranks`; each way of doing it once.
    pub(crate) fn algorithms(&self, n_ranks: u32) -> Vec<Algorithm> {
        distinct(self.operation, TestChannel::Memory, n_ranks, self.len)
    }
}

/// How an algorithm did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entrant {
    /// Its name.
    pub(crate) algorithm: String,
    /// The median time of an operation on its slowest rank, in nanoseconds.
    pub(crate) p50_ns: f64,
    /// Its time over that of the built-in choice in the same round: the median.
    pub(crate) ratio: f64,
    /// A quarter of the rounds had a smaller ratio.
    pub(crate) ratio_p25: f64,
    /// A quarter of the rounds had a greater ratio.
    pub(crate) ratio_p75: f64,
    /// Rounds that it took part in; who is hopeless is left out of later ones.
    pub(crate) rounds: usize,
}

/// The outcome of a race: a line that rank 0 prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// The operation.
    pub(crate) operation: String,
    /// How many ranks.
    pub(crate) ranks: u32,
    /// Whether they share cores.
    pub(crate) oversubscribed: bool,
    /// Where the buffers were.
    pub(crate) buffers: BufferKind,
    /// The bytes that a rank contributes at most.
    pub(crate) bytes: u64,
    /// The built-in choice, and how it did.
    pub(crate) built_in: Entrant,
    /// The built-in choice once more, against itself: what is left is noise.
    pub(crate) control: Entrant,
    /// All others.
    pub(crate) others: Vec<Entrant>,
    /// Elements that were not as expected.
    pub(crate) wrong: u64,
}
