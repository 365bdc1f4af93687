//! Instances of a program, run as one block.
//!
//! MSCCL++ splits a program into *instances*: neighbouring blocks that do the same, each on its
//! part of every chunk, and over channels of its own. One thread gains nothing by that. So they are
//! merged into a block that moves all their parts at once, and signals and waits on the counter of
//! the first one alone.
//!
//! # Why a merged launch ends where the plan does
//! A merged step is the same step of each instance, one after the other: one of the orders that the
//! plan allows. Whatever instance k waits for, signals or packets, comes from instance k of blocks
//! that are merged alike ([`unmatched`]). So all instances can go on if one of them can.
//!
//! A launch signals merged counters as often as it waits for them. So the counters of all instances
//! stand alike for a launch of another size, whose blocks may not be merged.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use shmccl_plan::Lowered;
use shmccl_plan::lower::{BlockCode, BlockTransfer, Form, Operand, StepAction};
use shmccl_plan::plan::Buffer;

/// The payload of a packet.
const WORD: usize = 4;

/// Neighbouring blocks of a rank that are merged, or a block by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    rank: usize,
    blocks: Range<usize>,
}

/// What a step signals, waits for, or reads or writes in packets.
struct End {
    /// The rank that holds it.
    rank: usize,
    kind: EndKind,
    /// A counter, or bytes of scratch.
    range: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EndKind {
    Counter,
    Packets,
}

/// One end of a step of all instances of a group.
struct Ends {
    group: usize,
    rank: usize,
    kind: EndKind,
    /// The part of each instance.
    parts: Vec<Range<usize>>,
    is_signal: bool,
}

/// Merges the instances of each rank. Returns, by rank and block, which blocks of the plan it
/// stands for.
pub(super) fn merge(lowered: &mut Lowered) -> Vec<Vec<Range<usize>>> {
    lowered.ranks.iter_mut().flat_map(|code| &mut code.blocks).for_each(straighten);
    let ranks = lowered.ranks.iter().enumerate();
    let mut groups: Vec<_> = ranks.flat_map(|(rank, code)| alike(rank, &code.blocks)).collect();
    loop {
        let apart = unmatched(lowered, &groups);
        if apart.is_empty() {
            break;
        }
        let single = |rank, block| Group { rank, blocks: block..block + 1 };
        let kept = groups.iter().enumerate().flat_map(|(index, group)| match apart.contains(&index) {
            true => group.blocks.clone().map(|block| single(group.rank, block)).collect(),
            false => vec![group.clone()],
        });
        groups = kept.collect();
    }
    let mut numbers = vec![Vec::new(); lowered.ranks.len()];
    let mut merged = vec![Vec::new(); lowered.ranks.len()];
    for Group { rank, blocks } in groups {
        merged[rank].push(as_one(&lowered.ranks[rank].blocks[blocks.clone()]));
        numbers[rank].push(blocks);
    }
    for (code, blocks) in lowered.ranks.iter_mut().zip(merged) {
        code.blocks = blocks;
    }
    numbers
}

/// Has operands that no transfer wraps around in wrap nowhere.
fn straighten(code: &mut BlockCode) {
    for step in &code.steps {
        let StepAction::Move(transfer) = step.action else { continue };
        let operands = transfer.operands..transfer.operands + transfer.sources + transfer.targets;
        for operand in &mut code.operands[operands] {
            if transfer.unit == 0 && transfer.bytes <= operand.wrap {
                operand.wrap = usize::MAX;
            }
        }
    }
}

/// Groups the blocks of a rank that look like instances.
fn alike(rank: usize, blocks: &[BlockCode]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for block in 0..blocks.len() {
        match groups.last_mut() {
            Some(group) if goes_on(&blocks[block - 1], &blocks[block]) => group.blocks.end += 1,
            _ => groups.push(Group { rank, blocks: block..block + 1 }),
        }
    }
    groups
}

/// Returns whether each step of `next` goes on where that of `block` ends.
fn goes_on(block: &BlockCode, next: &BlockCode) -> bool {
    let is_behind = |first: &BlockTransfer, second: &BlockTransfer| {
        let continues = |(a, b): (&Operand, &Operand)| {
            let is_whole = a.form == Form::Plain || first.bytes.is_multiple_of(WORD);
            is_whole && a.wrap == usize::MAX && Operand { offset: a.at(first.bytes), ..*a } == *b
        };
        let all = |a: &[Operand], b: &[Operand]| a.iter().zip(b).all(continues);
        (first.operator, first.sources, first.targets, first.unit)
            == (second.operator, second.sources, second.targets, 0)
            && all(block.sources(first), next.sources(second))
            && all(block.targets(first), next.targets(second))
    };
    let steps = || block.steps.iter().zip(&next.steps);
    block.steps.len() == next.steps.len()
        && steps().all(|(step, behind)| match (&step.action, &behind.action) {
            (StepAction::Move(first), StepAction::Move(second)) => is_behind(first, second),
            (StepAction::Signal { peer: first, .. }, StepAction::Signal { peer: second, .. }) => {
                first == second
            }
            (StepAction::Wait { .. }, StepAction::Wait { .. }) | (StepAction::Fence, StepAction::Fence) => {
                true
            }
            _ => false,
        })
}

/// Returns the groups of several blocks that have something to do with one that is not merged
/// alike, or whose counters do not stand as before after a launch.
fn unmatched(lowered: &Lowered, groups: &[Group]) -> BTreeSet<usize> {
    let ends: Vec<_> = (0..groups.len()).flat_map(|group| ends(lowered, group, &groups[group])).collect();
    let mut parts: Vec<_> =
        ends.iter().flat_map(|ends| (0..ends.parts.len()).map(move |part| (ends, part))).collect();
    parts.retain(|&(ends, part)| !ends.parts[part].is_empty());
    parts.sort_unstable_by_key(|&(ends, part)| (ends.rank, ends.kind, ends.parts[part].start));
    let mut found = BTreeSet::new();
    // The part before this one that reaches farthest.
    let mut before = parts.first().copied();
    for (ends, part) in parts {
        let Some((other, last)) = before else { break };
        let (mine, theirs) = (&ends.parts[part], &other.parts[last]);
        let meets = (ends.rank, ends.kind) == (other.rank, other.kind) && mine.start < theirs.end;
        if meets && (part, &ends.parts) != (last, &other.parts) {
            found.extend([ends.group, other.group]);
        }
        if !meets || mine.end > theirs.end {
            before = Some((ends, part));
        }
    }
    let merged = || ends.iter().filter(|ends| ends.kind == EndKind::Counter && ends.parts.len() > 1);
    let mut balances = BTreeMap::new();
    for ends in merged() {
        *balances.entry((ends.rank, ends.parts[0].start)).or_insert(0) += if ends.is_signal { 1 } else { -1 };
    }
    let uneven = merged().filter(|ends| balances[&(ends.rank, ends.parts[0].start)] != 0);
    found.extend(uneven.map(|ends| ends.group));
    found.retain(|&group| groups[group].blocks.len() > 1);
    found
}

/// Returns the ends of all steps of a group.
fn ends(lowered: &Lowered, group: usize, Group { rank, blocks }: &Group) -> Vec<Ends> {
    let blocks = &lowered.ranks[*rank].blocks[blocks.clone()];
    let mut found = Vec::new();
    for step in 0..blocks[0].steps.len() {
        let ends: Vec<_> = blocks.iter().map(|code| ends_of(*rank, code, &code.steps[step].action)).collect();
        for (index, end) in ends[0].iter().enumerate() {
            let parts = ends.iter().map(|ends| ends[index].range.clone()).collect();
            let is_signal = matches!(blocks[0].steps[step].action, StepAction::Signal { .. });
            found.push(Ends { group, rank: end.rank, kind: end.kind, parts, is_signal });
        }
    }
    found
}

/// Returns the ends of a step of a block.
fn ends_of(rank: usize, code: &BlockCode, action: &StepAction) -> Vec<End> {
    let counter = |rank, counter| vec![End { rank, kind: EndKind::Counter, range: counter..counter + 1 }];
    let scratch = |operand: &Operand, bytes| End {
        rank: operand.rank,
        kind: EndKind::Packets,
        range: operand.offset..operand.offset + bytes,
    };
    match action {
        StepAction::Signal { peer, counter: of, .. } | StepAction::PushSignal { peer, counter: of, .. } => {
            counter(*peer, *of)
        }
        StepAction::Wait { counter: of, .. } => counter(rank, *of),
        StepAction::Move(transfer) | StepAction::Await(transfer) => {
            let operands = code.sources(transfer).iter().chain(code.targets(transfer));
            let packets = operands.filter(|operand| operand.form == Form::Packets);
            packets.map(|operand| scratch(operand, 2 * transfer.bytes)).collect()
        }
        // A proxy copies packets as plain bytes.
        StepAction::Push { transfer, .. } => {
            let targets = code.targets(transfer).iter().filter(|target| target.buffer == Buffer::Scratch);
            targets.map(|target| scratch(target, transfer.bytes)).collect()
        }
        _ => Vec::new(),
    }
}

/// Makes one block of instances.
fn as_one(instances: &[BlockCode]) -> BlockCode {
    let mut merged = instances[0].clone();
    for (index, step) in merged.steps.iter_mut().enumerate() {
        if let StepAction::Move(transfer) = &mut step.action {
            let bytes = |code: &BlockCode| match code.steps[index].action {
                StepAction::Move(transfer) => transfer.bytes,
                _ => 0,
            };
            transfer.bytes = instances.iter().map(bytes).sum();
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shmccl_plan::interpret::{self, InterpretedRun};
    use shmccl_plan::lower;
    use shmccl_plan::lower::smallest;
    use shmccl_plan::plan::{Code, ExecutionPlan};
    use shmccl_plan::read::read_file;

    use super::*;

    fn load(name: &str) -> ExecutionPlan {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans/generated");
        read_file(&folder.join(format!("{name}.json"))).unwrap().plan
    }

    /// Lowers a plan for `times` its smallest size, apart and merged. Returns by rank which blocks
    /// of the plan begin one.
    fn lowered(plan: &ExecutionPlan, times: u64) -> (Lowered, Lowered, Vec<Vec<usize>>) {
        let apart = lower(plan, smallest(plan).unwrap() * times).unwrap();
        let mut merged = apart.clone();
        let starts = |blocks: Vec<Range<usize>>| blocks.iter().map(|blocks| blocks.start).collect();
        let blocks = merge(&mut merged).into_iter().map(starts).collect();
        (apart, merged, blocks)
    }

    fn run(plan: &ExecutionPlan, lowered: &Lowered, seed: u64) -> InterpretedRun {
        let byte = |rank: usize, launch: u64, at: usize| {
            (89 * rank as u64 + 31 * launch + 7 * at as u64).to_le_bytes()[0]
        };
        let input = |rank: usize, launch| {
            (0..lowered.ranks[rank].input.bytes).map(|at| byte(rank, launch, at)).collect()
        };
        let combine = |_, into: &mut [u8], from: &[u8]| {
            into.iter_mut().zip(from).for_each(|(into, from)| *into = into.wrapping_add(*from));
        };
        interpret::run(lowered, plan.alignment, 3, seed, &input, &combine)
    }

    #[test]
    fn merged_plans_compute_what_they_compute_apart() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans/generated");
        let mut n_merged = 0;
        for entry in folder.read_dir().unwrap() {
            let plan = read_file(&entry.unwrap().path()).unwrap().plan;
            let (apart, merged, _) = lowered(&plan, 3);
            if apart != merged && plan.ranks.len() <= 4 {
                assert_eq!(run(&plan, &apart, 1), run(&plan, &merged, 2), "{}", plan.name);
                n_merged += 1;
            }
        }
        assert!(n_merged > 5, "{n_merged}");
    }

    #[test]
    fn all_instances_of_a_program_are_one_block() {
        for (name, ranks) in [("ar_2", 2), ("ar_4", 4), ("ar_8", 8)] {
            assert_eq!(lowered(&load(name), 1).2, vec![vec![0]; ranks], "{name}");
        }
    }

    #[test]
    fn instances_of_which_one_has_no_partner_stay_apart_and_wait_as_before() {
        let mut plan = load("ar_2");
        plan.ranks[1].blocks[3].operations.retain(|operation| operation.code != Code::Signal);
        let (apart, merged, blocks) = lowered(&plan, 1);
        assert_eq!(blocks, vec![(0..8).collect::<Vec<_>>(); 2]);
        assert_eq!(run(&plan, &apart, 1).stuck, run(&plan, &merged, 1).stuck);
        assert!(!run(&plan, &merged, 1).stuck.is_empty());
    }

    #[test]
    fn instances_whose_channels_cross_stay_apart() {
        let mut plan = load("ar_2");
        let [first, second, ..] = &mut plan.ranks[1].blocks[..] else { panic!("few blocks") };
        std::mem::swap(&mut first.memory_channels, &mut second.memory_channels);
        assert_eq!(lowered(&plan, 1).2, vec![(0..8).collect::<Vec<_>>(); 2]);
    }

    #[test]
    fn counters_that_a_launch_leaves_uneven_are_not_merged() {
        let mut plan = load("ar_2");
        for block in plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks) {
            block.operations.retain(|operation| operation.code != Code::Wait);
        }
        assert_eq!(lowered(&plan, 1).2, vec![(0..8).collect::<Vec<_>>(); 2]);
    }
}
