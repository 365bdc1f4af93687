//! Blocks that synchronise with each other inside pipelines run as many iterations, at every size.

use std::collections::BTreeMap;

use crate::lower::{Counters, gcd};
use crate::plan::{BlockId, BlockOperation, ChannelKind, Code, ExecutionPlan, PipelineLoop};
use crate::problem::{Place, Problem};

/// What blocks synchronise by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SharedCounter {
    /// A counter of signals: the rank that waits, and which.
    Signals(usize, usize),
    Semaphore(usize, u32),
    Barrier(usize, u32),
}

/// The pipelines of one block that use something, in order.
#[derive(Debug)]
struct Use {
    /// The first operation that does.
    at: Place,
    /// By pipeline, its index, its unit and its chunks in lowest terms.
    pipelines: Vec<(usize, usize, usize)>,
}

impl Use {
    fn shapes(&self) -> Vec<(usize, usize)> {
        self.pipelines.iter().map(|&(_, unit, chunks)| (unit, chunks)).collect()
    }
}

type PipelineUses = BTreeMap<SharedCounter, BTreeMap<BlockId, Use>>;

/// Notes blocks whose pipelines differ and share a counter, a semaphore or a barrier.
pub(super) fn check(plan: &ExecutionPlan, problems: &mut Vec<Problem>) {
    let counters = Counters::of(plan);
    let mut uses = PipelineUses::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        for (block, of) in program.blocks.iter().enumerate() {
            let by = BlockId { rank, block };
            for (index, operation) in of.operations.iter().enumerate() {
                let Some(pipeline) = &operation.pipeline else { continue };
                let at = Place::block(rank, block).operation(index, None);
                for (inner, operation) in pipeline.operations.iter().enumerate() {
                    let at = at.operation(inner, Some(operation.code));
                    for shared in shared(plan, &counters, by, operation) {
                        note(&mut uses, shared, by, at, index, pipeline);
                    }
                }
            }
        }
    }
    for (shared, blocks) in uses {
        let mut blocks = blocks.into_values();
        let Some(first) = blocks.next() else { continue };
        if let Some(other) = blocks.find(|other| other.shapes() != first.shapes()) {
            problems.push(unequal(shared, &first, &other));
        }
    }
}

fn note(
    uses: &mut PipelineUses,
    shared: SharedCounter,
    by: BlockId,
    at: Place,
    index: usize,
    pipeline: &PipelineLoop,
) {
    let of_block = uses.entry(shared).or_default().entry(by);
    let of_block = of_block.or_insert_with(|| Use { at, pipelines: Vec::new() });
    if of_block.pipelines.last().is_none_or(|last| last.0 != index) {
        let (unit, chunks) = (pipeline.unit, pipeline.chunks as usize);
        let common = gcd(unit, chunks).max(1);
        of_block.pipelines.push((index, unit / common, chunks / common));
    }
}

/// Returns what an operation synchronises by.
pub(crate) fn shared(
    plan: &ExecutionPlan,
    counters: &Counters,
    BlockId { rank, block }: BlockId,
    operation: &BlockOperation,
) -> Vec<SharedCounter> {
    let kind = operation.kind.unwrap_or(ChannelKind::Memory);
    let channels = plan.ranks[rank].blocks[block].channels(kind);
    let ends = operation.channels.iter().map(|&id| counters.ends(rank, kind, channels[id as usize] as usize));
    match operation.code {
        Code::Wait | Code::RelaxedWait => {
            ends.map(|ends| SharedCounter::Signals(rank, ends.inbound)).collect()
        }
        Code::Signal | Code::RelaxedSignal | Code::PutWithSignal | Code::PutWithSignalAndFlush => {
            ends.map(|ends| SharedCounter::Signals(ends.peer, ends.outbound)).collect()
        }
        Code::SemAcquire | Code::SemRelease => {
            operation.semaphores.iter().map(|&id| SharedCounter::Semaphore(rank, id)).collect()
        }
        _ => operation.barrier.iter().map(|&(id, _)| SharedCounter::Barrier(rank, id)).collect(),
    }
}

fn unequal(shared: SharedCounter, first: &Use, other: &Use) -> Problem {
    let by = match shared {
        SharedCounter::Signals(rank, _) => format!("signals of a channel to rank {rank}"),
        SharedCounter::Semaphore(rank, id) => format!("semaphore {id} of rank {rank}"),
        SharedCounter::Barrier(rank, id) => format!("barrier {id} of rank {rank}"),
    };
    let what = format!(
        "synchronises with {} by {by}, in pipelines that run other numbers of iterations; give both the same `unit_size` and `num_chunks`",
        first.at
    );
    Problem::new(other.at, what)
}
