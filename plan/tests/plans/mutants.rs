//! Plans with one change each: whatever makes bytes wrong is reported.

use shmccl_plan::interpret::SplitMix64;
use shmccl_plan::lower::granule;
use shmccl_plan::plan::{BlockOperation, Code, Operator};
use shmccl_plan::{ExecutionPlan, check, read, write};

use crate::corpus::{fault, is_long, listed, run};

/// The largest plan that is changed, in operations, in the short form.
const LARGEST: usize = 400;

/// Changes one operation of a plan, and says how.
fn change(plan: &mut ExecutionPlan, random: &mut SplitMix64) -> Option<String> {
    let rank = random.below(plan.ranks.len());
    let blocks = plan.ranks[rank].blocks.len();
    let block = random.below(blocks);
    let mut operations = &mut plan.ranks[rank].blocks[block].operations;
    if operations.is_empty() {
        return None;
    }
    let mut index = random.below(operations.len());
    if operations[index].pipeline.is_some() && random.below(4) > 0 {
        operations = &mut operations[index].pipeline.as_mut()?.operations;
        index = random.below(operations.len().max(1));
    }
    let code = operations.get(index)?.code;
    let what = change_at(operations, index, random)?;
    Some(format!("rank {rank} block {block} operation {index} ({code}): {what}"))
}

fn change_at(
    operations: &mut Vec<BlockOperation>,
    index: usize,
    random: &mut SplitMix64,
) -> Option<&'static str> {
    let is_sync = is_synchronisation(operations[index].code);
    match random.below(9) {
        0 | 1 if is_sync => {
            operations.remove(index);
            Some("dropped")
        }
        2 if is_sync => {
            let operation = operations.remove(index);
            let to = random.below(operations.len() + 1);
            operations.insert(to, operation);
            Some("moved")
        }
        3 => {
            let operation = &mut operations[index];
            let references = operation.sources.len() + operation.targets.len();
            let chosen = random.below(references.max(1));
            let mut all = operation.sources.iter_mut().chain(&mut operation.targets);
            let reference = all.nth(chosen)?;
            reference.index =
                if random.below(2) == 0 { reference.index + 1 } else { reference.index.checked_sub(1)? };
            Some("offset")
        }
        4 if operations[index].channels.len() > 1 && operations[index].targets.is_empty() => {
            let dropped = random.below(operations[index].channels.len());
            operations[index].channels.remove(dropped);
            Some("one channel less")
        }
        5 if index + 1 < operations.len() => {
            operations.swap(index, index + 1);
            Some("swapped with the next")
        }
        6 if operations[index].pipeline.is_some() => {
            let pipeline = operations[index].pipeline.as_mut()?;
            match random.below(2) {
                0 => pipeline.chunks += 1,
                _ => pipeline.unit *= 2,
            }
            Some("another pipeline")
        }
        7 if operations[index].code.is_reduction() => {
            operations[index].operator = Operator::Max;
            Some("with max")
        }
        8 if operations[index].code.is_of_packets() => {
            let mut copy = operations[index].clone();
            let source = copy.sources.first_mut()?;
            source.index =
                if random.below(2) == 0 { source.index + 1 } else { source.index.saturating_sub(1) };
            operations.insert(index, copy);
            Some("sent before with other packets")
        }
        _ if is_sync => {
            let copy = operations[index].clone();
            operations.insert(index, copy);
            Some("doubled")
        }
        _ => None,
    }
}

/// Draws a message that a plan allows.
fn drawn(plan: &ExecutionPlan, random: &mut SplitMix64) -> u64 {
    let granule = granule(plan).unwrap();
    let least = plan.min_message.div_ceil(granule).max(1);
    (least + random.below(12) as u64).min(plan.max_message / granule) * granule
}

fn is_synchronisation(code: Code) -> bool {
    matches!(
        code,
        Code::Barrier
            | Code::SemAcquire
            | Code::SemRelease
            | Code::Signal
            | Code::Wait
            | Code::RelaxedSignal
            | Code::RelaxedWait
            | Code::Flush
    )
}

#[test]
#[expect(clippy::print_stdout, reason = "the figures of the long form")]
fn each_change_that_makes_bytes_wrong_in_some_schedule_is_reported() {
    let (wanted, seeds, largest) = if is_long() { (2000, 20, usize::MAX) } else { (250, 4, LARGEST) };
    let plans: Vec<_> = listed(&["generated", "upstream"])
        .into_iter()
        .filter(|listed| listed.verdict != "race" && listed.smallest < 100_000)
        .filter(|listed| operations(&listed.plan) <= largest)
        .collect();
    let mut random = SplitMix64::new(26);
    let (mut tried, mut wrong, mut reported, mut refused) = (0, 0, 0, 0);
    while tried < wanted {
        let listed = &plans[random.below(plans.len())];
        let mut plan = listed.plan.clone();
        let Some(what) = change(&mut plan, &mut random) else { continue };
        tried += 1;
        let text = write::write(&plan);
        if read::read("mutant", text.as_bytes()).is_err() {
            refused += 1;
            continue;
        }
        if plan.operators() == [Operator::Max] {
            continue;
        }
        let report = check(&plan, None).unwrap();
        reported += usize::from(!report.is_clean());
        let fault = (0..seeds).find_map(|seed| {
            let message = if seed % 2 == 0 { listed.smallest } else { drawn(&plan, &mut random) };
            let fault = fault(&plan, &run(&plan, message, 4, seed), 4)?;
            Some(format!("{message} bytes: {fault}"))
        });
        if let Some(fault) = fault {
            wrong += 1;
            assert!(!report.is_clean(), "{}, {what}: {fault}, and the check is clean", listed.name);
        }
    }
    println!(
        "{tried} changes: {refused} refused, {reported} reported, {wrong} with wrong bytes, all of them reported"
    );
    assert!(wrong > tried / 10 && reported >= wrong);
}

fn operations(plan: &ExecutionPlan) -> usize {
    plan.ranks.iter().flat_map(|rank| &rank.blocks).map(|block| block.operations.len()).sum()
}
