//! How many iterations of pipelines tell all that more of them would.
//!
//! A wait of iteration i waits for the signal of iteration i, less what was signalled outside of
//! pipelines, more what was taken there. Such a *lag* is the same in all iterations. So a chain of
//! waits goes back by the sum of all lags at most, and a plan with more iterations than that does
//! in the next ones what it did before. That holds where both sides of a counter keep step: they
//! run pipelines of the same shapes in the same order, with as many operations in each.

use std::collections::{BTreeMap, BTreeSet};

use crate::lower::{Counters, gcd};
use crate::plan::{Code, Operation, Pipeline, Plan};
use crate::problem::Place;
use crate::rules::pipelines::{Shared, shared};

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
    /// The rank and the block, and which operation of it is the pipeline.
    pipeline: (usize, usize, usize),
    shape: Shape,
    /// How many operations each iteration has on the counter.
    times: usize,
}

/// The unit and the chunks of a pipeline in lowest terms, which decide its iterations.
pub(super) type Shape = (usize, usize);

/// One side of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Adds,
    Takes,
    /// A block that meets others.
    Meets(usize, usize),
}

/// All uses of a counter.
#[derive(Debug, Default)]
struct Uses {
    /// The first one in a pipeline.
    first: Option<Place>,
    /// How many there are outside of pipelines.
    outside: usize,
    /// By block that has taken or met outside, whether a pipeline of it did the same later.
    before: BTreeMap<(usize, usize), bool>,
    sides: BTreeMap<Side, Vec<Run>>,
}

impl Iterations {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut found = Self::default();
        for (counter, uses) in all_uses(plan) {
            let Some(first) = uses.first else { continue };
            let initial = match counter {
                Shared::Semaphore(rank, id) => plan.ranks[rank].semaphores[id as usize] as usize,
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

impl Uses {
    fn note(&mut self, side: Side, by: (usize, usize), at: Place, run: Option<(usize, Shape)>) {
        let takes = side != Side::Adds;
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
        let pipeline = (by.0, by.1, index);
        let runs = self.sides.entry(side).or_default();
        match runs.last_mut() {
            Some(last) if last.pipeline == pipeline => last.times += 1,
            _ => runs.push(Run { pipeline, shape, times: 1 }),
        }
    }

    fn keep_step(&self) -> bool {
        let shapes = |runs: &Vec<Run>| runs.iter().map(|run| (run.shape, run.times)).collect();
        let of_sides: BTreeSet<Vec<_>> = self.sides.values().map(shapes).collect();
        let is_one_sided = self.sides.len() < 2 && !matches!(self.sides.keys().next(), Some(Side::Meets(..)));
        of_sides.len() == 1 && !is_one_sided
    }
}

fn all_uses(plan: &Plan) -> BTreeMap<Shared, Uses> {
    let counters = Counters::of(plan);
    let mut uses: BTreeMap<Shared, Uses> = BTreeMap::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        for (block, of) in program.blocks.iter().enumerate() {
            let by = (rank, block);
            let mut note = |operation: &Operation, at: Place, run| {
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
pub(super) fn shape(pipeline: &Pipeline) -> Shape {
    let (unit, chunks) = (pipeline.unit, pipeline.chunks as usize);
    let common = gcd(unit, chunks).max(1);
    (unit / common, chunks / common)
}

fn side(counter: Shared, (rank, block): (usize, usize), operation: &Operation) -> Side {
    match counter {
        Shared::Barrier(..) => Side::Meets(rank, block),
        _ if matches!(operation.code, Code::Wait | Code::RelaxedWait | Code::SemAcquire) => Side::Takes,
        _ => Side::Adds,
    }
}
