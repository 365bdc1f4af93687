//! Who waits for whom at the end of a run that has come to a halt.

use std::collections::BTreeMap;

use super::findings;
use super::machine::{AbstractMachine, CounterId};
use super::report::{Finding, FindingKind};
use super::rule::{Rule, holds};
use crate::lower::{BlockTransfer, Form, Lowered, Operand, StepAction};
use crate::plan::BlockId;
use crate::problem::Place;

/// A block that waits for ever.
struct EndlessWait {
    place: Place,
    /// What it waits for.
    what: String,
    /// The blocks that could bring it.
    sources: Vec<BlockId>,
}

/// Returns one finding for all blocks that wait for ever, if there are any.
pub(super) fn findings(machine: &AbstractMachine<'_>) -> Option<Finding> {
    let waiting = waiting(machine);
    if !holds(Rule::BlocksEnd) {
        return None;
    }
    let (&first, _) = waiting.first_key_value()?;
    let cycle = cycle(&waiting);
    let orphan =
        waiting.iter().find(|(_, wait)| !wait.sources.iter().any(|source| waiting.contains_key(source)));
    let told = |block: &BlockId| {
        let wait = &waiting[block];
        format!("{} waits for {}", wait.place, wait.what)
    };
    let shown: Vec<BlockId> = match (&cycle, orphan) {
        (Some(cycle), _) => cycle.clone(),
        (None, Some((&block, _))) => vec![block],
        (None, None) => vec![first],
    };
    let mut what = shown.iter().take(8).map(told).collect::<Vec<_>>().join("; ");
    if cycle.is_some() {
        what = format!("in a circle, {what}");
    }
    let others = waiting.len() - shown.len();
    if others > 0 {
        what = format!("{what}; {others} more blocks wait behind");
    }
    let remedy = match (lacking(machine, &waiting), &cycle) {
        (Some(lacking), _) => lacking,
        (None, Some(_)) => "let one of these operations come before its block waits".to_owned(),
        (None, None) => "let a block bring it in every launch, or leave the wait out".to_owned(),
    };
    let places = shown.iter().map(|block| waiting[block].place).collect();
    Some(Finding { kind: FindingKind::Deadlock, what, remedy, places })
}

/// Says which counter, of those that blocks wait for, a launch takes more from than it adds to.
fn lacking(machine: &AbstractMachine<'_>, waiting: &BTreeMap<BlockId, EndlessWait>) -> Option<String> {
    let lowered = machine.lowered;
    let mut tally: BTreeMap<(usize, CounterId), (usize, usize)> = BTreeMap::new();
    for (rank, code) in lowered.ranks.iter().enumerate() {
        for code in &code.blocks {
            for (step, times) in code.steps.iter().zip(code.repeats()) {
                if let Some(counter) = added(rank, &step.action) {
                    tally.entry(counter).or_default().0 += times;
                }
                if let Some(counter) = taken(rank, &step.action) {
                    tally.entry(counter).or_default().1 += times;
                }
            }
        }
    }
    waiting.keys().find_map(|&BlockId { rank, block }| {
        let step = machine.ranks[rank].blocks[block].cursor.step(&lowered.ranks[rank].blocks[block])?;
        let counter = taken(rank, &step.action)?;
        let (adds, takes) = tally[&counter];
        let name = findings::counter(lowered, counter.0, counter.1);
        (adds < takes).then(|| {
            let what = if matches!(counter.1, CounterId::Signals(_)) { "signals" } else { "releases" };
            format!("a launch adds {adds} to {name} and takes {takes}; add the {what} that are missing, or leave waits out")
        })
    })
}

fn waiting(machine: &AbstractMachine<'_>) -> BTreeMap<BlockId, EndlessWait> {
    let lowered = machine.lowered;
    let mut waiting = BTreeMap::new();
    for (rank, state) in machine.ranks.iter().enumerate().filter(|(_, state)| state.is_running) {
        for (block, task) in state.blocks.iter().enumerate() {
            let code = &lowered.ranks[rank].blocks[block];
            if let Some(step) = task.cursor.step(code) {
                let place = code.sites[step.site].place(rank, block);
                let (what, sources) = awaited(machine, BlockId { rank, block }, &step.action);
                let what = format!("{what} (launch {})", state.launch);
                waiting.insert(BlockId { rank, block }, EndlessWait { place, what, sources });
            }
        }
    }
    waiting
}

/// Returns what a step waits for, and which blocks could bring it.
fn awaited(machine: &AbstractMachine<'_>, block: BlockId, action: &StepAction) -> (String, Vec<BlockId>) {
    let (lowered, rank) = (machine.lowered, block.rank);
    match action {
        StepAction::Wait { counter, .. } => {
            let counts = Some((rank, CounterId::Signals(*counter)));
            let is = |of: usize, action: &StepAction| added(of, action) == counts && of != rank;
            (findings::counter(lowered, rank, CounterId::Signals(*counter)), blocks_that(lowered, is))
        }
        StepAction::Acquire { semaphore } => {
            let is = |of, action: &StepAction| {
                of == rank && *action == StepAction::Release { semaphore: *semaphore }
            };
            (findings::counter(lowered, rank, CounterId::Semaphore(*semaphore)), blocks_that(lowered, is))
        }
        StepAction::Barrier { barrier } => {
            let is =
                |of, action: &StepAction| of == rank && *action == StepAction::Barrier { barrier: *barrier };
            let others = blocks_that(lowered, is).into_iter().filter(|&other| other != block);
            (format!("other blocks of rank {rank} at barrier {barrier}"), others.collect())
        }
        StepAction::Move(transfer) | StepAction::Await(transfer) => packets(lowered, block, transfer),
        _ => ("the proxy".to_owned(), Vec::new()),
    }
}

/// Returns the counter that an action of a rank adds to, and whose it is.
pub(super) fn added(rank: usize, action: &StepAction) -> Option<(usize, CounterId)> {
    match *action {
        StepAction::Signal { peer, counter, .. } | StepAction::PushSignal { peer, counter, .. } => {
            Some((peer, CounterId::Signals(counter)))
        }
        StepAction::Release { semaphore } => Some((rank, CounterId::Semaphore(semaphore))),
        _ => None,
    }
}

/// Returns the counter that an action of a rank takes from.
pub(super) fn taken(rank: usize, action: &StepAction) -> Option<(usize, CounterId)> {
    match *action {
        StepAction::Wait { counter, .. } => Some((rank, CounterId::Signals(counter))),
        StepAction::Acquire { semaphore } => Some((rank, CounterId::Semaphore(semaphore))),
        _ => None,
    }
}

fn blocks_that(lowered: &Lowered, is: impl Fn(usize, &StepAction) -> bool) -> Vec<BlockId> {
    let mut found = Vec::new();
    for (rank, code) in lowered.ranks.iter().enumerate() {
        for (block, code) in code.blocks.iter().enumerate() {
            if code.steps.iter().any(|step| is(rank, &step.action)) {
                found.push(BlockId { rank, block });
            }
        }
    }
    found
}

/// Returns the packets that a transfer waits for, and the blocks that write some of them.
fn packets(lowered: &Lowered, block: BlockId, transfer: &BlockTransfer) -> (String, Vec<BlockId>) {
    let code = &lowered.ranks[block.rank].blocks[block.block];
    let range =
        |operand: &Operand, bytes| (operand.rank, operand.buffer, operand.offset, operand.offset + bytes);
    let wanted: Vec<_> = (code.sources(transfer).iter())
        .filter(|source| source.form == Form::Packets)
        .map(|source| range(source, 2 * transfer.bytes))
        .collect();
    let mut found = Vec::new();
    for (rank, code) in lowered.ranks.iter().enumerate() {
        for (block, code) in code.blocks.iter().enumerate() {
            let meets = |target: &Operand, bytes| {
                let (rank, buffer, first, last) = range(target, bytes);
                wanted
                    .iter()
                    .any(|want| (want.0, want.1) == (rank, buffer) && want.2 < last && first < want.3)
            };
            let writes = code.steps.iter().any(|step| match &step.action {
                StepAction::Move(of) => code
                    .targets(of)
                    .iter()
                    .any(|target| target.form == Form::Packets && meets(target, 2 * of.bytes)),
                StepAction::Push { transfer: of, .. } => {
                    code.targets(of).iter().any(|target| meets(target, of.bytes))
                }
                _ => false,
            });
            if writes {
                found.push(BlockId { rank, block });
            }
        }
    }
    let told = wanted.first().map_or(String::new(), |(rank, _, first, last)| {
        format!(" in bytes {first}..{last} of the scratch of rank {rank}")
    });
    (format!("packets{told}"), found)
}

/// Returns blocks that wait for each other in a circle.
fn cycle(waiting: &BTreeMap<BlockId, EndlessWait>) -> Option<Vec<BlockId>> {
    let mut finished = std::collections::BTreeSet::new();
    for &start in waiting.keys() {
        let mut path: Vec<(BlockId, usize)> = vec![(start, 0)];
        while let Some((block, next)) = path.last_mut() {
            if finished.contains(block) {
                path.pop();
                continue;
            }
            let Some(&source) = waiting[block].sources.get(*next) else {
                finished.insert(*block);
                path.pop();
                continue;
            };
            *next += 1;
            if let Some(first) = path.iter().position(|(on, _)| *on == source) {
                return Some(path[first..].iter().map(|&(block, _)| block).collect());
            }
            if waiting.contains_key(&source) && !finished.contains(&source) {
                path.push((source, 0));
            }
        }
    }
    None
}
