//! Proves a plan right, or says where it is wrong, without moving a byte.
//!
//! One run over abstract data stands for every schedule and every message of a *size class*
//! (`classes`): nothing branches, and each counter is taken from by one block at a time. Cells
//! hold expressions over inputs, actors hold vector clocks, and each access is held against those
//! before it. Four launches follow each other without a barrier between ranks. What depends on
//! chance is reported as undecided, never as clean.
//!
//! A block is many threads that meet at `nop`s (the *strict* model). A race that is gone where a
//! block is one thread, as in this library's executor, is told apart.
//!
//! Tried by its unit tests and `plans checked:: drawn:: iterated:: mutants:: false_clean::`.

mod classes;
mod clock;
mod findings;
pub mod gpu;
mod iterations;
mod machine;
mod memory;
mod outcome;
mod redundant;
mod report;
mod rule;
mod slices;
mod stuck;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::thread;

use crate::lower::{Lowered, StepAction, smallest};
use crate::plan::ExecutionPlan;
use crate::problem::Problem;
use classes::SizeClass;
use machine::{AbstractMachine, Model};
use memory::{Race, RaceKey};
pub use redundant::{Redundant, redundant};
pub use report::{CheckReport, ClassReport, Finding, FindingKind};
use rule::{Rule, holds};

/// The most cells of a class that is checked.
const MAX_CELLS: usize = 1 << 19;
/// The most units that a launch reads and writes.
const MAX_ACCESSES: usize = 1 << 20;
/// The most steps of all blocks in a launch, and the most of these times the actors.
const MAX_STEPS: usize = 4_000_000;
const MAX_CLOCKS: usize = 1 << 30;
/// How many further schedules are tried where the outcome depends on chance.
const FURTHER_SCHEDULES: u64 = 4;

/// Checks a plan: at one size, or for all sizes that it allows.
///
/// # Errors
/// Why the plan cannot run at that size, or at any.
pub fn check(plan: &ExecutionPlan, message: Option<u64>) -> Result<CheckReport, Vec<Problem>> {
    let classes = match message {
        Some(message) => vec![classes::of_message(plan, message)?],
        None => classes::all(plan)?,
    };
    Ok(CheckReport {
        name: plan.name.clone(),
        collective: plan.collective.clone(),
        ranks: plan.ranks.len(),
        classes: check_classes(plan, &classes),
    })
}

/// Checks all classes, two at once, as each takes memory of its own.
fn check_classes(plan: &ExecutionPlan, classes: &[SizeClass]) -> Vec<ClassReport> {
    let check_from = |first: usize, step: usize| -> Vec<ClassReport> {
        classes.iter().skip(first).step_by(step).map(|class| check_class(plan, class)).collect()
    };
    // A test switches rules off for its own thread.
    if classes.len() < 2 || cfg!(test) {
        return check_from(0, 1);
    }
    let (even, odd) = thread::scope(|scope| {
        let helper = thread::Builder::new().spawn_scoped(scope, || check_from(1, 2));
        let even = check_from(0, 2);
        let odd = match helper {
            Ok(helper) => helper.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => check_from(1, 2),
        };
        (even, odd)
    });
    let mut odd = odd.into_iter();
    even.into_iter().flat_map(|report| [Some(report), odd.next()]).flatten().collect()
}

fn check_class(plan: &ExecutionPlan, class: &SizeClass) -> ClassReport {
    let mut report = class.report();
    let Some(lowered) = &class.lowered else {
        report.extend(class.undecided.iter().cloned());
        return report;
    };
    if let Some(finding) = too_large(plan, lowered) {
        report.add(finding);
        return report;
    }
    let weakest = weakest(lowered);
    let mut first = run(plan, lowered, weakest, &mut report);
    let is_decided = first.holds_where_more_is_known();
    if !is_decided && weakest != Model::STRICT {
        report = class.report();
        first = run(plan, lowered, Model::STRICT, &mut report);
    }
    if first.is_cut_short {
        return report;
    }
    if first.has_chances {
        further_schedules(plan, lowered, &mut report, &mut first.races);
    }
    report.extend(class.undecided.iter().cloned());
    sort_races(plan, lowered, &first.races, &mut report);
    if !is_decided && !first.is_stuck {
        notes(plan, lowered, &first.races, &mut report);
    }
    report.findings.sort_by_key(|finding| finding.kind);
    report
}

/// What a run has found, beside what it has reported.
struct RunFindings {
    races: Races,
    has_chances: bool,
    /// Whether several threads add to one counter, or take from one.
    has_shared_counters: bool,
    is_stuck: bool,
    is_cut_short: bool,
}

impl RunFindings {
    /// Whether a model in which all know the same or more finds the same: no race, and no chance.
    fn holds_where_more_is_known(&self) -> bool {
        self.races.is_empty() && !self.has_shared_counters && !self.is_stuck && !self.is_cut_short
    }
}

/// Runs a plan once, and reports all but races.
fn run(plan: &ExecutionPlan, lowered: &Lowered, model: Model, report: &mut ClassReport) -> RunFindings {
    let mut machine = AbstractMachine::new(lowered, plan.alignment, model);
    machine.run();
    let races = std::mem::take(&mut machine.memory.races);
    let (has_chances, has_shared_counters) = (!machine.chances.is_empty(), machine.has_shared_counters);
    if machine.is_cut_short {
        report.add(findings::cut_short());
        return RunFindings { races, has_chances, has_shared_counters, is_stuck: false, is_cut_short: true };
    }
    let stuck = stuck::findings(&machine);
    let is_stuck = stuck.is_some();
    report.extend(stuck);
    report.extend(outcome::values(plan, &mut machine));
    if !is_stuck {
        report.extend(outcome::balance(&machine));
    }
    report.extend(machine.chances.iter().map(|chance| findings::chance(lowered, chance)));
    RunFindings { races, has_chances, has_shared_counters, is_stuck, is_cut_short: false }
}

/// Says that a plan takes more than a check has, if so.
fn too_large(plan: &ExecutionPlan, lowered: &Lowered) -> Option<Finding> {
    let bytes = lowered.ranks.iter().flat_map(|rank| rank.buffers);
    let cells = bytes.fold(0, usize::saturating_add) / plan.alignment;
    let accesses = lowered.accessed() / plan.alignment;
    let steps = lowered.steps();
    let clocks = steps.saturating_mul(machine::actors_of(lowered));
    let limits = [
        ("units of memory", cells, MAX_CELLS),
        ("units to read and write", accesses, MAX_ACCESSES),
        ("steps", steps, MAX_STEPS),
        ("steps times actors", clocks, MAX_CLOCKS),
    ];
    let (what, count, most) = limits.into_iter().find(|(_, count, most)| count > most)?;
    let is_smallest = smallest(plan).is_none_or(|least| lowered.message <= least);
    Some(findings::too_large(what, count, most, is_smallest))
}

type Races = BTreeMap<RaceKey, Race>;

fn races_in(plan: &ExecutionPlan, lowered: &Lowered, model: Model, report: &mut ClassReport) -> Races {
    let mut machine = AbstractMachine::new(lowered, plan.alignment, model);
    machine.run();
    if machine.is_cut_short {
        report.add(findings::cut_short());
    }
    machine.memory.races
}

/// Tells races of every executor from those where a block is many threads.
fn sort_races(plan: &ExecutionPlan, lowered: &Lowered, races: &Races, report: &mut ClassReport) {
    if races.is_empty() {
        return;
    }
    let everywhere = races_in(plan, lowered, Model { one_thread: true, ..Model::STRICT }, report);
    for (key, race) in races {
        let kind = if everywhere.contains_key(key) { FindingKind::Race } else { FindingKind::RaceOnGpu };
        report.add(findings::race(plan, lowered, kind, race));
    }
}

/// Returns the model in which actors know the least: neither what ends in flight, nor what relaxed
/// signals tell.
fn weakest(lowered: &Lowered) -> Model {
    Model {
        flushed_end: !(has_pushes(lowered) && holds(Rule::EndsInFlight)),
        relaxed_orders: !(has_relaxed(lowered) && holds(Rule::RelaxedIsNoOrder)),
        ..Model::STRICT
    }
}

/// Adds what is right as this library runs plans, and is not for every executor.
fn notes(plan: &ExecutionPlan, lowered: &Lowered, races: &Races, report: &mut ClassReport) {
    let Model { flushed_end, relaxed_orders, .. } = weakest(lowered);
    let weaker = [
        (FindingKind::MissingFlush, Model { flushed_end, ..Model::STRICT }),
        (FindingKind::RelaxedOrder, Model { relaxed_orders, ..Model::STRICT }),
    ];
    for (kind, model) in weaker.into_iter().filter(|(_, model)| *model != Model::STRICT) {
        let found = races_in(plan, lowered, model, report);
        let new = found.iter().filter(|(key, _)| !races.contains_key(*key));
        report.extend(new.map(|(_, race)| findings::race(plan, lowered, kind, race)));
    }
}

/// Looks for more errors on other schedules, where one does not stand for all.
fn further_schedules(plan: &ExecutionPlan, lowered: &Lowered, report: &mut ClassReport, races: &mut Races) {
    for seed in 1..=FURTHER_SCHEDULES {
        for (key, race) in run(plan, lowered, Model { seed, ..Model::STRICT }, report).races {
            races.entry(key).or_insert(race);
        }
    }
}

fn has_pushes(lowered: &Lowered) -> bool {
    any_step(lowered, |action| matches!(action, StepAction::Push { .. }))
}

fn has_relaxed(lowered: &Lowered) -> bool {
    any_step(lowered, |action| matches!(action, StepAction::Signal { relaxed: true, .. }))
}

fn any_step(lowered: &Lowered, is: impl Fn(&StepAction) -> bool) -> bool {
    let mut blocks = lowered.ranks.iter().flat_map(|rank| &rank.blocks);
    blocks.any(|block| block.steps.iter().any(|step| is(&step.action)))
}
