//! Synchronisation that nothing needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::classes;
use super::machine::{AbstractMachine, CounterId, Model};
use super::{outcome, stuck, too_large};
use crate::lower::{Lowered, OperationSite, StepAction};
use crate::plan::{BlockOperation, Code, ExecutionPlan};
use crate::problem::Place;

/// Synchronisation that a plan is right without: a `nop` or a flush, a signal with its wait, a
/// release with its acquire, or one meeting of all blocks of a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redundant {
    /// The operations that are left out together.
    Piece(Vec<Place>),
    /// So many pieces were not tried any more.
    Untried(usize),
}

/// The most steps that are run to find it, over all pieces that are left out. Tests reach it.
const MAX_STEPS: usize = if cfg!(test) { 1 << 14 } else { 1 << 24 };

impl fmt::Display for Redundant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Piece(places) => {
                let places: Vec<_> = places.iter().map(ToString::to_string).collect();
                f.write_str(&places.join(" and "))
            }
            Self::Untried(pieces) => {
                write!(f, "perhaps {pieces} more pieces, which were not tried, as the plan is too long")
            }
        }
    }
}

/// Returns the synchronisation without which, a piece at a time, the plan is proved right all the
/// same. Nothing is redundant in a plan that is not. The last entry of a plan that is too long for
/// all pieces says how many were not tried.
#[must_use]
pub fn redundant(plan: &ExecutionPlan) -> Vec<Redundant> {
    let Ok(classes) = classes::all(plan) else { return Vec::new() };
    let lowered: Option<Vec<_>> = classes.iter().map(|class| class.lowered.as_ref()).collect();
    let Some(lowered) = lowered.filter(|all| all.iter().all(|lowered| too_large(plan, lowered).is_none()))
    else {
        return Vec::new();
    };
    if !is_right(plan) {
        return Vec::new();
    }
    let candidates = Candidates::of(lowered[0]).groups();
    let steps = lowered.iter().fold(1, |steps: usize, lowered| steps.saturating_add(lowered.steps()));
    let tried = candidates.len().min(MAX_STEPS / steps);
    let needless = candidates[..tried].iter().filter(|parts| is_right(&without(plan, parts)));
    let found = needless.map(|parts| Redundant::Piece(parts.iter().map(OperationPart::place).collect()));
    let untried = candidates.len() - tried;
    found.chain((untried > 0).then_some(Redundant::Untried(untried))).collect()
}

/// One channel or semaphore of an operation, or all of it where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OperationPart {
    rank: usize,
    block: usize,
    site: OperationSite,
    slot: usize,
}

impl OperationPart {
    fn place(&self) -> Place {
        self.site.place(self.rank, self.block)
    }
}

/// What may be left out, by what it is part of.
#[derive(Debug, Default)]
struct Candidates {
    alone: Vec<OperationPart>,
    adds: BTreeMap<(usize, CounterId), Vec<OperationPart>>,
    takes: BTreeMap<(usize, CounterId), Vec<OperationPart>>,
    /// By rank and barrier, and then by block.
    meetings: BTreeMap<(usize, usize), BTreeMap<usize, Vec<OperationPart>>>,
    /// Counters that an operation adds to which does more than that.
    mixed: BTreeSet<(usize, CounterId)>,
}

impl Candidates {
    fn of(lowered: &Lowered) -> Self {
        let mut found = Self::default();
        for (rank, code) in lowered.ranks.iter().enumerate() {
            for (block, code) in code.blocks.iter().enumerate() {
                for step in &code.steps {
                    let part = OperationPart { rank, block, site: code.sites[step.site], slot: step.slot };
                    found.add(part, &step.action);
                }
            }
        }
        found
    }

    fn add(&mut self, part: OperationPart, action: &StepAction) {
        let rank = part.rank;
        match *action {
            StepAction::Fence | StepAction::Flush { .. } if part.site.code != Code::PutWithSignalAndFlush => {
                self.alone.push(part);
            }
            StepAction::Barrier { barrier } => {
                let blocks = self.meetings.entry((rank, barrier)).or_default();
                blocks.entry(part.block).or_default().push(part);
            }
            _ => {}
        }
        if let Some(counter) = stuck::added(rank, action) {
            self.adds.entry(counter).or_default().push(part);
            if !matches!(part.site.code, Code::Signal | Code::RelaxedSignal | Code::SemRelease) {
                self.mixed.insert(counter);
            }
        }
        if let Some(counter) = stuck::taken(rank, action) {
            self.takes.entry(counter).or_default().push(part);
        }
    }

    /// Returns what is left out together: the k-th that adds with the k-th that takes, where one
    /// block does either.
    fn groups(mut self) -> Vec<Vec<OperationPart>> {
        let mut groups: Vec<_> = self.alone.into_iter().map(|part| vec![part]).collect();
        for (counter, adds) in self.adds {
            let takes = self.takes.remove(&counter).unwrap_or_default();
            let is_of_one = |parts: &[OperationPart]| parts.iter().all(|part| part.block == parts[0].block);
            if adds.len() == takes.len()
                && is_of_one(&adds)
                && is_of_one(&takes)
                && !self.mixed.contains(&counter)
            {
                groups.extend(adds.into_iter().zip(takes).map(|(add, take)| vec![add, take]));
            }
        }
        for blocks in self.meetings.into_values() {
            let rounds = blocks.values().map(Vec::len).max().unwrap_or(0);
            if blocks.values().all(|of_block| of_block.len() == rounds) {
                groups.extend((0..rounds).map(|round| blocks.values().map(|of| of[round]).collect()));
            }
        }
        groups
    }
}

/// Returns a plan without some of its synchronisation.
fn without(plan: &ExecutionPlan, parts: &[OperationPart]) -> ExecutionPlan {
    let mut less = plan.clone();
    let mut parts = parts.to_vec();
    // From the last on, so that indices stay what they are.
    parts
        .sort_by_key(|part| std::cmp::Reverse((part.rank, part.block, part.site.operation, part.site.inner)));
    for OperationPart { rank, block, site, slot } in parts {
        let operations = &mut less.ranks[rank].blocks[block].operations;
        match (site.inner, &mut operations[site.operation].pipeline) {
            (Some(inner), Some(pipeline)) => leave_out(&mut pipeline.operations, inner, slot),
            _ => leave_out(operations, site.operation, slot),
        }
    }
    less
}

/// Takes one channel or semaphore from an operation, or the operation out.
fn leave_out(operations: &mut Vec<BlockOperation>, index: usize, slot: usize) {
    let operation = &mut operations[index];
    if operation.channels.len() > 1 {
        operation.channels.remove(slot);
    } else if operation.semaphores.len() > 1 {
        operation.semaphores.remove(slot);
    } else {
        operations.remove(index);
    }
}

/// Returns whether a plan is right in the strict model, at all sizes that it allows.
fn is_right(plan: &ExecutionPlan) -> bool {
    let Ok(classes) = classes::all(plan) else { return false };
    classes.iter().all(|class| {
        let Some(lowered) = &class.lowered else { return false };
        let mut machine = AbstractMachine::new(lowered, plan.alignment, Model::STRICT);
        machine.run();
        !machine.is_cut_short
            && machine.memory.races.is_empty()
            && machine.chances.is_empty()
            && stuck::findings(&machine).is_none()
            && outcome::balance(&machine).is_empty()
            && !outcome::values(plan, &mut machine).iter().any(|finding| finding.kind.is_error())
    })
}
