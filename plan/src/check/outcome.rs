//! What a run has left: results, and counters.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::findings;
use super::machine::{AbstractMachine, CounterId};
use super::report::{Finding, FindingKind};
use super::rule::{Rule, holds};
use super::value::{Expression, Leaves, TooManyParts, Value, ValueParts};
use crate::collective::CollectiveKind;
use crate::lower::Lowered;
use crate::plan::{Buffer, ExecutionPlan, Operator};
use crate::problem::Place;

/// Units of a result that are not what the collective says.
struct Wrong {
    /// The first one: its launch from 0 on, and which unit of the output.
    launch: usize,
    cell: usize,
    value: Value,
    parts: Rc<ValueParts>,
    expected: Vec<Expression>,
    /// How many more there are.
    more: usize,
}

/// A cell of the output of a rank, of `cells`. Launches count from 1.
struct OutputCell {
    rank: usize,
    launch: usize,
    cell: usize,
    cells: usize,
}

/// Compares all results with the collective.
pub(super) fn values(plan: &ExecutionPlan, machine: &mut AbstractMachine<'_>) -> Vec<Finding> {
    let collective = CollectiveKind::of(plan);
    if collective == CollectiveKind::Other {
        return vec![findings::unchecked(plan)];
    }
    let launches = machine.ranks.iter().map(|rank| rank.outputs.len()).min().unwrap_or(0);
    let (mut found, mut operators) = (Vec::new(), FirstUses::new());
    for rank in 0..machine.ranks.len() {
        match wrong(machine, collective, rank, launches, &mut operators) {
            Ok(wrong) => found.extend(wrong.map(|wrong| wrong_value(plan, machine, rank, &wrong))),
            Err(TooManyParts) => {
                found.push(findings::too_many_parts());
                return found;
            }
        }
    }
    if collective == CollectiveKind::SendRecv && holds(Rule::ReceiversDiffer) {
        found.extend(permutation(machine, launches));
    }
    if holds(Rule::OperatorsAgree) {
        found.extend(unequal_operators(plan, machine, &operators));
    }
    if found.is_empty() && collective == CollectiveKind::AllReduce {
        found.extend(unequal_orders(machine, launches));
    }
    found
}

/// By operator, the rank and the unit of its output that was first seen to be combined by it.
type FirstUses = BTreeMap<Operator, (usize, usize)>;

/// Checks that all results are combined by one operator.
fn unequal_operators(
    plan: &ExecutionPlan,
    machine: &AbstractMachine<'_>,
    operators: &FirstUses,
) -> Option<Finding> {
    let mut all = operators.iter();
    let ((one, of_one), (other, of_other)) = (all.next()?, all.next()?);
    let told = |operator: &Operator, &(rank, cell): &(usize, usize)| {
        let (first, last) = real_bytes(plan, machine.lowered, rank, cell);
        format!("bytes {first}..{last} of the output of rank {rank} by {operator}")
    };
    let (first, second) = (told(one, of_one), told(other, of_other));
    Some(Finding {
        kind: FindingKind::Value,
        what: format!("operators are mixed: the plan combines {first}, and {second}"),
        remedy: "give all reductions the same `reduce_op`".to_owned(),
        places: vec![Place::rank(of_one.0), Place::rank(of_other.0)],
    })
}

/// Returns the units of a rank's results that are wrong, and notes what combines the right ones.
fn wrong(
    machine: &mut AbstractMachine<'_>,
    collective: CollectiveKind,
    rank: usize,
    launches: usize,
    operators: &mut FirstUses,
) -> Result<Option<Wrong>, TooManyParts> {
    let mut wrong: Option<Wrong> = None;
    for launch in 0..launches {
        let output = machine.ranks[rank].outputs[launch].clone();
        let source = sender(machine, collective, &output);
        for (cell, &value) in output.iter().enumerate() {
            let expected = expected(
                machine,
                collective,
                OutputCell { rank, launch: launch + 1, cell, cells: output.len() },
                source,
            );
            if expected == [machine.values.expression(value)] {
                continue;
            }
            let parts = machine.values.parts(value)?;
            match &mut wrong {
                _ if agrees(&parts, &expected) => {
                    for &operator in &parts.operators {
                        operators.entry(operator).or_insert((rank, cell));
                    }
                }
                Some(wrong) => wrong.more += 1,
                None => wrong = Some(Wrong { launch, cell, value, parts, expected, more: 0 }),
            }
        }
    }
    Ok(wrong)
}

/// Returns the rank whose input a whole output is.
fn sender(machine: &AbstractMachine<'_>, collective: CollectiveKind, output: &[Value]) -> Option<usize> {
    if collective != CollectiveKind::SendRecv {
        return None;
    }
    match machine.values.expression(*output.first()?) {
        Expression::Input { rank, .. } => Some(rank as usize),
        _ => None,
    }
}

/// Returns the inputs that a cell of an output combines.
fn expected(
    machine: &AbstractMachine<'_>,
    collective: CollectiveKind,
    OutputCell { rank, launch, cell, cells }: OutputCell,
    sender: Option<usize>,
) -> Vec<Expression> {
    let ranks = machine.ranks.len();
    let leaf = |rank: usize, cell: usize| Expression::Input {
        rank: u32::try_from(rank).unwrap_or(u32::MAX),
        launch: u32::try_from(launch).unwrap_or(u32::MAX),
        cell: u32::try_from(cell).unwrap_or(u32::MAX),
    };
    let part = (cells / ranks).max(1);
    match collective {
        CollectiveKind::AllReduce => (0..ranks).map(|peer| leaf(peer, cell)).collect(),
        CollectiveKind::ReduceScatter => (0..ranks).map(|peer| leaf(peer, rank * cells + cell)).collect(),
        CollectiveKind::AllGather => vec![leaf(cell / part, cell % part)],
        CollectiveKind::AllToAll => vec![leaf(cell / part, rank * part + cell % part)],
        CollectiveKind::SendRecv => vec![leaf(sender.unwrap_or(rank), cell)],
        CollectiveKind::Other => Vec::new(),
    }
}

/// Whether a value combines each of the expected inputs, once, and nothing else.
fn agrees(ValueParts { leaves, operators }: &ValueParts, expected: &[Expression]) -> bool {
    let is_of = |operator| operators.len() == 1 && operators.contains(&operator);
    let counts_once = !is_of(Operator::Min) && !is_of(Operator::Max) && holds(Rule::InputsCountOnce);
    let mut launches = leaves.keys().filter_map(|leaf| match leaf {
        Expression::Input { launch, .. } => Some(*launch),
        _ => None,
    });
    let of_launch = expected.iter().find_map(|leaf| match leaf {
        Expression::Input { launch, .. } => Some(*launch),
        _ => None,
    });
    if !holds(Rule::ResultsAreOfTheirLaunch) && launches.any(|launch| Some(launch) != of_launch) {
        return true;
    }
    let are_one = operators.len() <= 1 || !holds(Rule::OperatorsAgree);
    let are_there = leaves.len() == expected.len()
        && expected.iter().all(|leaf| leaves.get(leaf).is_some_and(|&count| count == 1 || !counts_once));
    are_one && (are_there || !holds(Rule::InputsAreThere))
}

fn wrong_value(plan: &ExecutionPlan, machine: &AbstractMachine<'_>, rank: usize, wrong: &Wrong) -> Finding {
    let lowered = machine.lowered;
    let (first, last) = real_bytes(plan, lowered, rank, wrong.cell);
    let unit =
        |cell: u32| lowered.real_byte(rank, Buffer::Input, cell as usize * plan.alignment) / plan.alignment;
    let reasons = reasons(&wrong.parts.leaves, &wrong.expected, &unit);
    let more = findings::more_units(lowered, wrong.more, " over all launches");
    Finding {
        kind: FindingKind::Value,
        what: format!(
            "bytes {first}..{last} of the output of rank {rank}, launch {}{more}: {reasons}; they are {}",
            wrong.launch + 1,
            machine.values.told(wrong.value, &unit)
        ),
        remedy: "follow these bytes in `plan show`".to_owned(),
        places: vec![Place::rank(rank)],
    }
}

/// Returns the bytes of an output that a cell of it stands for.
fn real_bytes(plan: &ExecutionPlan, lowered: &Lowered, rank: usize, cell: usize) -> (usize, usize) {
    let first = lowered.real_byte(rank, Buffer::Output, cell * plan.alignment);
    (first, first + lowered.real_len(plan.alignment))
}

/// Says in which ways the inputs that were combined are not those expected. `unit` numbers their
/// cells.
fn reasons(leaves: &Leaves, expected: &[Expression], unit: &impl Fn(u32) -> usize) -> String {
    let mut told = Vec::new();
    for leaf in expected.iter().filter(|leaf| !leaves.contains_key(leaf)) {
        if let Expression::Input { rank, cell, .. } = leaf {
            told.push(format!("rank {rank}'s input (unit {}) is missing", unit(*cell)));
        }
    }
    for (leaf, count) in leaves {
        match leaf {
            Expression::Undefined => told.push("there are undefined bytes".to_owned()),
            Expression::Input { rank, launch, cell } if !expected.contains(leaf) => {
                let unit = unit(*cell);
                told.push(format!("rank {rank}'s input (unit {unit}) of launch {launch} does not belong"));
            }
            Expression::Input { rank, .. } if *count > 1 => {
                told.push(format!("rank {rank} counts {count} times"))
            }
            _ => {}
        }
    }
    if told.is_empty() {
        told.push("operators are mixed".to_owned());
    }
    told.truncate(3);
    told.join(", ")
}

/// Checks that every rank has the input of another one, of a different one each.
fn permutation(machine: &AbstractMachine<'_>, launches: usize) -> Option<Finding> {
    let mut takers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, state) in machine.ranks.iter().enumerate() {
        let output = state.outputs.get(launches.checked_sub(1)?)?;
        if let Some(sender) = sender(machine, CollectiveKind::SendRecv, output) {
            takers.entry(sender).or_default().push(rank);
        }
    }
    let own = takers.iter().find(|(sender, ranks)| ranks.contains(sender));
    if let Some((&rank, _)) = own {
        return Some(Finding {
            kind: FindingKind::Value,
            what: format!("rank {rank} has its own input; sendrecv gives it that of another rank"),
            remedy: format!("let another rank put its input into the output of rank {rank}"),
            places: vec![Place::rank(rank)],
        });
    }
    let (sender, ranks) = takers.into_iter().find(|(_, ranks)| ranks.len() > 1)?;
    Some(Finding {
        kind: FindingKind::Value,
        what: format!("ranks {ranks:?} all have the input of rank {sender}; sendrecv gives each another one"),
        remedy: "let each rank send to one other rank".to_owned(),
        places: ranks.into_iter().map(Place::rank).collect(),
    })
}

/// Notes that ranks combine in different orders.
fn unequal_orders(machine: &AbstractMachine<'_>, launches: usize) -> Option<Finding> {
    let last = launches.checked_sub(1)?;
    let (first, others) = machine.ranks.split_first()?;
    let output = first.outputs.get(last)?;
    for (other, state) in others.iter().enumerate() {
        for (cell, value) in output.iter().enumerate() {
            let of_other = *state.outputs.get(last)?.get(cell)?;
            if *value != of_other {
                let [one, two] = [*value, of_other].map(|value| machine.values.told_in_ranks(value));
                let rank = other + 1;
                return Some(Finding {
                    kind: FindingKind::UnequalOrder,
                    what: format!("rank 0 combines {one} where rank {rank} combines {two}"),
                    remedy: "floats may differ in their last bits between ranks; reduce once and copy the result if they must not".to_owned(),
                    places: vec![Place::rank(0), Place::rank(rank)],
                });
            }
        }
    }
    None
}

/// Checks that each counter ends as it began.
pub(super) fn balance(machine: &AbstractMachine<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (rank, state) in machine.ranks.iter().enumerate() {
        let signals =
            state.signals.iter().enumerate().map(|(index, counted)| (CounterId::Signals(index), counted));
        let semaphores = state
            .semaphores
            .iter()
            .enumerate()
            .map(|(index, counted)| (CounterId::Semaphore(index), counted));
        for (count, counted) in signals.chain(semaphores).filter(|(count, counted)| {
            let balances = match count {
                CounterId::Signals(_) => holds(Rule::SignalsBalance),
                CounterId::Semaphore(_) => holds(Rule::SemaphoresBalance),
            };
            counted.surplus() != 0 && balances
        }) {
            let surplus = counted.surplus();
            let what = if surplus > 0 { "more added than taken" } else { "more taken than added" };
            found.push(Finding {
                kind: FindingKind::Unbalanced,
                what: format!(
                    "{}: {} {what} after {} launches",
                    findings::counter(machine.lowered, rank, count),
                    surplus.unsigned_abs(),
                    state.outputs.len()
                ),
                remedy: "give each signal one wait, and each release one acquire, in every launch".to_owned(),
                places: vec![Place::rank(rank)],
            });
        }
    }
    found
}
