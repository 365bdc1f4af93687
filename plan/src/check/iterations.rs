//! How many iterations of pipelines tell all that more of them would.
//!
//! A wait of iteration i waits for the signal of iteration i, less what was signalled outside of
//! pipelines, more what was taken there. Such a *lag* is the same in all iterations. So a chain of
//! waits goes back by the sum of all lags at most, and a plan with more iterations than that does
//! in the next ones what it did before. That holds where both sides of a counter keep step: they
//! run pipelines of the same shapes in the same order, with as many operations in each.

use std::collections::{BTreeMap, BTreeSet};

use crate::lower::{Counters, gcd};
use crate::plan::{BlockId, BlockOperation, Code, ExecutionPlan, PipelineLoop};
use crate::problem::Place;
use crate::rules::pipelines::{SharedCounter, shared};

/// What the counters of a plan make of its pipelines.
#[derive(Debug, Default)]
pub(super) struct Iterations {
    /// The sum of all lags.
    pub(super) lag: usize,
    /// Whether something is taken, or met for, before a pipeline that does the same.
    pub(super) begin_late: bool,
    /// The first operation on a counter whose two sides do not keep step.
    pub(super) out_of_step: Option<Place>,
}

/// The iterations of one pipeline that use a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The block, and which operation of it is the pipeline.
    pipeline: (BlockId, usize),
    shape: PipelineShape,
    /// How many operations each iteration has on the counter.
    times: usize,
}

/// The unit and the chunks of a pipeline in lowest terms, which decide its iterations.
pub(super) type PipelineShape = (usize, usize);

/// One side of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CounterSide {
    Adds,
    Takes,
    /// A block that meets others.
    Meets(BlockId),
}

/// All uses of a counter.
#[derive(Debug, Default)]
struct CounterUses {
    /// The first one in a pipeline.
    first: Option<Place>,
    /// How many there are outside of pipelines.
    outside: usize,
    /// By block that has taken or met outside, whether a pipeline of it did the same later.
    before: BTreeMap<BlockId, bool>,
    sides: BTreeMap<CounterSide, Vec<Run>>,
}

impl Iterations {
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let mut found = Self::default();
        for (counter, uses) in all_uses(plan) {
            let Some(first) = uses.first else { continue };
            let initial = match counter {
                SharedCounter::Semaphore(rank, id) => plan.ranks[rank].semaphores[id as usize] as usize,
                _ => 0,
            };
            found.lag = found.lag.saturating_add(initial).saturating_add(uses.outside);
            found.begin_late |= uses.before.values().any(|&is_before| is_before);
            if found.out_of_step.is_none() && !uses.keep_step() {
                found.out_of_step = Some(first);
            }
        }
        found
    }
}

impl CounterUses {
    fn note(&mut self, side: CounterSide, by: BlockId, at: Place, run: Option<(usize, PipelineShape)>) {
        let takes = side != CounterSide::Adds;
        let Some((index, shape)) = run else {
            self.outside += 1;
            if takes {
                self.before.entry(by).or_insert(false);
            }
            return;
        };
        self.first.get_or_insert(at);
        if let Some(is_before) = self.before.get_mut(&by).filter(|_| takes) {
            *is_before = true;
        }
        let pipeline = (by, index);
        let runs = self.sides.entry(side).or_default();
        match runs.last_mut() {
            Some(last) if last.pipeline == pipeline => last.times += 1,
            _ => runs.push(Run { pipeline, shape, times: 1 }),
        }
    }

    fn keep_step(&self) -> bool {
        let shapes = |runs: &Vec<Run>| runs.iter().map(|run| (run.shape, run.times)).collect();
        let of_sides: BTreeSet<Vec<_>> = self.sides.values().map(shapes).collect();
        let is_one_sided =
            self.sides.len() < 2 && !matches!(self.sides.keys().next(), Some(CounterSide::Meets(..)));
        of_sides.len() == 1 && !is_one_sided
    }
}

fn all_uses(plan: &ExecutionPlan) -> BTreeMap<SharedCounter, CounterUses> {
    let counters = Counters::of(plan);
    let mut uses: BTreeMap<SharedCounter, CounterUses> = BTreeMap::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        for (block, of) in program.blocks.iter().enumerate() {
            let by = BlockId { rank, block };
            let mut note = |operation: &BlockOperation, at: Place, run| {
                for counter in shared(plan, &counters, by, operation) {
                    let side = side(counter, by, operation);
                    uses.entry(counter).or_default().note(side, by, at, run);
                }
            };
            for (index, operation) in of.operations.iter().enumerate() {
                let at = Place::block(rank, block).operation(index, Some(operation.code));
                note(operation, at, None);
                let Some(pipeline) = operation.pipeline.as_ref().filter(|of| of.chunks > 0) else { continue };
                let shape = shape(pipeline);
                for (inner, operation) in pipeline.operations.iter().enumerate() {
                    note(operation, at.operation(inner, Some(operation.code)), Some((index, shape)));
                }
            }
        }
    }
    uses
}

/// Returns what decides the iterations of a pipeline.
pub(super) fn shape(pipeline: &PipelineLoop) -> PipelineShape {
    let (unit, chunks) = (pipeline.unit, pipeline.chunks as usize);
    let common = gcd(unit, chunks).max(1);
    (unit / common, chunks / common)
}

fn side(counter: SharedCounter, by: BlockId, operation: &BlockOperation) -> CounterSide {
    match counter {
        SharedCounter::Barrier(..) => CounterSide::Meets(by),
        _ if matches!(operation.code, Code::Wait | Code::RelaxedWait | Code::SemAcquire) => {
            CounterSide::Takes
        }
        _ => CounterSide::Adds,
    }
}
