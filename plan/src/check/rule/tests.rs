use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;

use super::Rule;
use crate::build::CollectiveProgram;
use crate::check::{ClassReport, FindingKind, check};
use crate::plan::{Code, ExecutionPlan, Operator};
use crate::read::read_file;

thread_local! {
    static SWITCHED_OFF: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Whether a rule holds on this thread.
pub(in crate::check) fn holds(rule: Rule) -> bool {
    SWITCHED_OFF.get() != Some(rule)
}

const ALL: &[Rule] = &[
    Rule::ReadAfterWrite,
    Rule::WriteAfterWrite,
    Rule::WriteAfterRead,
    Rule::ThreadsMeet,
    Rule::WaitsReachOneThread,
    Rule::LaunchesOverlap,
    Rule::PushesOvertake,
    Rule::PacketsAreRead,
    Rule::PacketsComeOnce,
    Rule::PacketsHaveFlags,
    Rule::CallersWrite,
    Rule::CallersRead,
    Rule::EndsInFlight,
    Rule::RelaxedIsNoOrder,
    Rule::InputsAreThere,
    Rule::InputsCountOnce,
    Rule::ResultsAreOfTheirLaunch,
    Rule::OperatorsAgree,
    Rule::ReceiversDiffer,
    Rule::SignalsBalance,
    Rule::SemaphoresBalance,
    Rule::AddersAreOrdered,
    Rule::TakersAreOrdered,
    Rule::BlocksEnd,
    Rule::PacketsAreNotPlain,
    Rule::PacketsAreWhole,
    Rule::SlicesLieOtherwise,
    Rule::PipelinesRepeat,
    Rule::CreditsRunOut,
    Rule::TakesBegin,
    Rule::SidesKeepStep,
    Rule::UnitsDiffer,
    Rule::LimitsHold,
    Rule::SlicesRepeat,
    Rule::ChunksWrap,
    Rule::SlicesWrap,
    Rule::ChunksOverlap,
];

fn load(name: &str) -> ExecutionPlan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(format!("{name}.json"));
    read_file(&path).unwrap_or_else(|refusal| panic!("{refusal}")).plan
}

/// Plans, right ones and each with one operation less or one changed operator.
fn candidates() -> Vec<(String, ExecutionPlan)> {
    let names = [
        "generated/ag_2",
        "generated/mn_sendrecv_2x1_m0_i1",
        "generated/mn_ag_2x1",
        "generated/ar_naive_2",
        "generated/ag_pkt_2",
        "generated/mn_ag_pkt_2x1",
        "generated/mn_rs_2x2",
        "generated/ag_tbg_2",
        "upstream/reduce",
        "generated/a2a_pipeline_2",
        "generated/ag_nvls_2_i1",
    ];
    let mut found = vec![
        ("two adders".to_owned(), two_adders()),
        ("two takers".to_owned(), two_takers()),
        ("two pushers".to_owned(), two_pushers()),
        ("packets twice".to_owned(), packets_twice()),
        ("two receivers".to_owned(), two_receivers()),
        ("released twice".to_owned(), released_twice()),
        ("unfenced".to_owned(), unfenced()),
        ("two writers".to_owned(), two_copies([0, 1], [0, 0])),
        ("reader, then writer".to_owned(), two_copies([0, 1], [2, 0])),
        ("writer, then reader".to_owned(), two_copies([1, 0], [0, 2])),
        ("packets as they are".to_owned(), packets_as_they_are()),
        ("swapped halves".to_owned(), swapped_halves()),
        ("many units".to_owned(), released_in_each_unit()),
        ("fine slices".to_owned(), finer_slices_follow()),
        ("begins late".to_owned(), begins_late(129)),
    ];
    let sizes = [
        "false_clean/slice4of2",
        "false_clean/slice_wrap",
        "false_clean/reuse_nopipe",
        "false_clean/credits",
        "false_clean/units_release_more",
        "false_clean/fixed_size",
    ];
    found.extend(sizes.map(|name| (name.to_owned(), load(name))));
    found.push((UNCREDITED.to_owned(), load(UNCREDITED)));
    for name in names {
        let plan = load(name);
        found.push((name.to_owned(), plan.clone()));
        for (rank, block, index) in places(&plan) {
            let at = format!("{name} rank {rank} block {block} operation {index}");
            let mut less = plan.clone();
            let operation = less.ranks[rank].blocks[block].operations.remove(index);
            found.push((format!("{at} dropped"), less));
            if operation.code.is_reduction() {
                let mut other = plan.clone();
                other.ranks[rank].blocks[block].operations[index].operator = Operator::Max;
                found.push((format!("{at} with max"), other));
                let mut twice = plan.clone();
                twice.ranks[rank].blocks[block].operations.insert(index, operation);
                found.push((format!("{at} twice"), twice));
            }
        }
    }
    found
}

fn places(plan: &ExecutionPlan) -> Vec<(usize, usize, usize)> {
    let mut found = Vec::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        for (block, of) in program.blocks.iter().enumerate() {
            found.extend((0..of.operations.len()).map(|index| (rank, block, index)));
        }
    }
    found
}

fn two_adders() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("adders", "test", 2);
    let (channel, back) = (program.memory_channel(0, 1), program.memory_channel(1, 0));
    for _ in 0..2 {
        let block = program.block(0);
        program.signal(block, channel).unwrap();
    }
    let block = program.block(1);
    program.wait(block, back).unwrap();
    program.wait(block, back).unwrap();
    program.finish_unproved().unwrap()
}

fn two_takers() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("takers", "test", 2);
    let (channel, back) = (program.memory_channel(0, 1), program.memory_channel(1, 0));
    let block = program.block(0);
    program.signal(block, channel).unwrap();
    program.signal(block, channel).unwrap();
    for _ in 0..2 {
        let block = program.block(1);
        program.wait(block, back).unwrap();
    }
    program.finish_unproved().unwrap()
}

/// Two blocks push into the same chunk of a peer, each over a channel of its own.
fn two_pushers() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("pushers", "test", 2).chunks(1, 1, 0);
    let mut ends = Vec::new();
    let receiver = program.block(1);
    for _ in 0..2 {
        ends.push((program.port_channel(0, 1), program.port_channel(1, 0)));
        let (go, ready) = (program.memory_channel(0, 1), program.memory_channel(1, 0));
        program.signal(receiver, ready).unwrap();
        let block = program.block(0);
        program.wait(block, go).unwrap();
        let (from, to) = (program.input(0, 0..1), program.output(1, 0..1));
        let channel = ends[ends.len() - 1].0;
        program.put_with_signal(block, channel, from, to, true).unwrap();
    }
    ends.into_iter().for_each(|(_, end)| program.wait(receiver, end).unwrap());
    program.finish_unproved().unwrap()
}

/// Rank 0 sends its input to all others, and nobody else sends.
fn two_receivers() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("receivers", "sendrecv", 3).chunks(1, 1, 0);
    let mut ends = Vec::new();
    for peer in 1..3 {
        ends.push((program.memory_channel(0, peer), program.memory_channel(peer, 0)));
    }
    let block = program.block(0);
    program.copy(block, program.input(0, 0..1), program.output(0, 0..1)).unwrap();
    for (index, (here, there)) in ends.into_iter().enumerate() {
        program.wait(block, here).unwrap();
        program.put(block, program.input(0, 0..1), program.output(index + 1, 0..1)).unwrap();
        program.signal(block, here).unwrap();
        let other = program.block(index + 1);
        program.signal(other, there).unwrap();
        program.wait(other, there).unwrap();
    }
    program.finish_unproved().unwrap()
}

/// Two blocks copy a chunk of scratch each.
fn two_copies(from: [usize; 2], to: [usize; 2]) -> ExecutionPlan {
    let mut program = CollectiveProgram::new("copies", "test", 1).chunks(1, 1, 3);
    for (from, to) in from.into_iter().zip(to) {
        let block = program.block(0);
        let chunk = |at: usize| program.scratch(0, at..at + 1);
        let (from, to) = (chunk(from), chunk(to));
        program.copy(block, from, to).unwrap();
    }
    program.finish_unproved().unwrap()
}

/// A block copies two chunks, then one of the copies, and its threads do not meet between.
fn unfenced() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("unfenced", "test", 1).chunks(1, 1, 5);
    let block = program.block(0);
    program.copy(block, program.scratch(0, 0..2), program.scratch(0, 2..4)).unwrap();
    program.copy(block, program.scratch(0, 2..3), program.scratch(0, 4..5)).unwrap();
    let mut plan = program.finish_unproved().unwrap();
    plan.ranks[0].blocks[0].operations.retain(|operation| operation.code != Code::Nop);
    plan
}

/// Blocks follow each other through scratch, which wraps in long chunks, and give no credits back.
const UNCREDITED: &str = "generated/ar_pipeline_2";

/// A block unpacks its packets as if they were none.
fn packets_as_they_are() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("plain", "allreduce", 1).packets().chunks(1, 1, 1);
    let (block, scratch) = (program.block(0), program.scratch(0, 0..1));
    program.copy_to_packets(block, program.input(0, 0..1), scratch).unwrap();
    program.copy(block, scratch, program.output(0, 0..1)).unwrap();
    program.finish_unproved().unwrap()
}

/// Ranks push packets to each other as bytes, the second half first.
fn swapped_halves() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("halves", "sendrecv", 2).packets().chunks(1, 1, 6);
    let ports = [(0, 1), (1, 0)].map(|(rank, peer)| program.port_channel(rank, peer));
    for (rank, port) in ports.into_iter().enumerate() {
        let block = program.block(rank);
        program.copy_to_packets(block, program.input(rank, 0..1), program.scratch(rank, 0..1)).unwrap();
        for (from, to) in [(1, 4), (0, 5)] {
            let (from, to) = (program.scratch(rank, from..from + 1), program.scratch(1 - rank, to..to + 1));
            program.put_with_signal(block, port, from, to, true).unwrap();
        }
        program.wait(block, port).unwrap();
        program.wait(block, port).unwrap();
        program.unpack_packets(block, program.scratch(rank, 2..3), program.output(rank, 0..1)).unwrap();
    }
    program.finish_unproved().unwrap()
}

/// A block copies in units, after each of which it releases a semaphore; another acquires it once.
fn released_in_each_unit() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("units", "test", 1).chunks(1, 1, 1);
    let (semaphore, writer, reader) = (program.semaphore(0, 0), program.block(0), program.block(0));
    let scratch = program.scratch(0, 0..1);
    program.begin_pipeline(writer, 16, 1).unwrap();
    program.copy(writer, program.input(0, 0..1), scratch).unwrap();
    program.release(writer, semaphore).unwrap();
    program.end_pipeline(writer).unwrap();
    program.acquire(reader, semaphore).unwrap();
    program.copy(reader, scratch, program.output(0, 0..1)).unwrap();
    program.finish_unproved().unwrap()
}

/// A block copies units of 8 slices on, of 16: the odd ones of these come too early, once a slice
/// has more than a unit.
fn finer_slices_follow() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("slices", "allreduce", 1).chunks(1, 1, 1);
    let (block, scratch) = (program.block(0), program.scratch(0, 0..1));
    program.begin_pipeline(block, 4096, 1).unwrap();
    let slices = [8, 16].into_iter().flat_map(|of| (0..of).map(move |part| (part, of)));
    for (_, of) in slices.clone() {
        let (from, to) =
            if of == 8 { (program.input(0, 0..1), scratch) } else { (scratch, program.output(0, 0..1)) };
        program.copy(block, from, to).unwrap();
    }
    program.end_pipeline(block).unwrap();
    let mut plan = program.finish_unproved().unwrap();
    let pipelines = plan.ranks[0].blocks[0].operations.iter_mut().filter_map(|of| of.pipeline.as_mut());
    let inner = pipelines.flat_map(|pipeline| &mut pipeline.operations);
    let copies = inner.filter(|operation| operation.code == Code::Copy);
    copies.zip(slices).for_each(|(copy, slice)| copy.slice = Some(slice));
    plan
}

/// A block acquires so many times, then once in each unit, what another releases the other way.
fn begins_late(times: usize) -> ExecutionPlan {
    let mut program = CollectiveProgram::new("late", "test", 1).chunks(1, 1, 0);
    let (semaphore, first, second) = (program.semaphore(0, 0), program.block(0), program.block(0));
    (0..times).for_each(|_| program.acquire(second, semaphore).unwrap());
    program.begin_pipeline(second, 16, 1).unwrap();
    program.acquire(second, semaphore).unwrap();
    program.end_pipeline(second).unwrap();
    program.begin_pipeline(first, 16, 1).unwrap();
    program.release(first, semaphore).unwrap();
    program.end_pipeline(first).unwrap();
    (0..times).for_each(|_| program.release(first, semaphore).unwrap());
    program.finish_unproved().unwrap()
}

fn released_twice() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("releases", "test", 1);
    let (semaphore, one, other) = (program.semaphore(0, 0), program.block(0), program.block(0));
    program.release(one, semaphore).unwrap();
    program.release(one, semaphore).unwrap();
    program.acquire(other, semaphore).unwrap();
    program.finish_unproved().unwrap()
}

fn kinds(plan: &ExecutionPlan) -> BTreeSet<FindingKind> {
    let report = check(plan, None).unwrap();
    report.classes.iter().flat_map(|class| &class.findings).map(|finding| finding.kind).collect()
}

#[test]
fn each_rule_decides_the_verdict_of_some_plan() {
    let candidates: Vec<_> =
        candidates().into_iter().map(|(name, plan)| (kinds(&plan), name, plan)).collect();
    let decides = |rule: &Rule| {
        SWITCHED_OFF.set(Some(*rule));
        let decided = candidates.iter().find(|(full, _, plan)| kinds(plan) != *full);
        SWITCHED_OFF.set(None);
        decided.is_some()
    };
    let idle: Vec<_> = ALL.iter().filter(|rule| !decides(rule)).collect();
    assert!(idle.is_empty(), "{idle:?} decide nothing");
}

#[test]
fn a_dropped_nop_is_a_race_of_many_threads_only() {
    let mut plan = load("generated/ag_2");
    let operations = &mut plan.ranks[0].blocks[0].operations;
    let put = operations.iter().position(|operation| operation.code == Code::Put).unwrap();
    assert_eq!(operations.remove(put + 1).code, Code::Nop);
    assert_eq!(kinds(&plan), BTreeSet::from([FindingKind::RaceOnGpu]));
}

/// A block combines its input with itself.
fn counted_twice() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("twice", "allreduce", 1).chunks(1, 1, 0);
    let (block, own) = (program.block(0), program.input(0, 0..1));
    program.reduce(block, &[own, own], &[program.output(0, 0..1)]).unwrap();
    program.finish_unproved().unwrap()
}

/// A block hands out what it has kept in the launch before.
fn a_launch_late() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("late", "allreduce", 1).chunks(1, 1, 1);
    let (block, kept) = (program.block(0), program.scratch(0, 0..1));
    program.copy(block, kept, program.output(0, 0..1)).unwrap();
    program.copy(block, program.input(0, 0..1), kept).unwrap();
    program.finish_unproved().unwrap()
}

/// Two ranks exchange packets, which lie in one half of scratch in all launches.
fn one_half() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("half", "allreduce", 2).packets().chunks(1, 1, 2);
    for rank in 0..2 {
        let (block, own) = (program.block(rank), program.input(rank, 0..1));
        program.put_packets(block, own, program.scratch(1 - rank, rank..rank + 1)).unwrap();
        let packets = program.scratch(rank, 1 - rank..2 - rank);
        program.reduce_packets(block, own, &[packets], program.output(rank, 0..1), &[]).unwrap();
    }
    let mut plan = program.finish_unproved().unwrap();
    plan.double_scratch = false;
    plan
}

/// Ranks swap packets, and send others into the same place before.
fn packets_twice() -> ExecutionPlan {
    let mut program = CollectiveProgram::new("packets", "sendrecv", 2).packets().chunks(2, 2, 2);
    for rank in 0..2 {
        let (block, channel) = (program.block(rank), program.memory_channel(rank, 1 - rank));
        let there = |at: usize| program.scratch(1 - rank, at..at + 1);
        for (from, to) in [(1, there(0)), (0, there(0)), (1, there(1))] {
            program.put_packets(block, program.input(rank, from..from + 1), to).unwrap();
        }
        program.unpack_packets(block, program.scratch(rank, 0..2), program.output(rank, 0..2)).unwrap();
        program.signal(block, channel).unwrap();
        program.wait(block, channel).unwrap();
    }
    program.finish_unproved().unwrap()
}

/// One of several reductions of a result takes the maximum, the others the sum.
fn mixed_operators() -> ExecutionPlan {
    let mut plan = load("generated/mn_rs_2x2");
    let operations = &mut plan.ranks[0].blocks[0].operations;
    let reduction = operations.iter_mut().find(|operation| operation.code == Code::Reduce).unwrap();
    reduction.operator = Operator::Max;
    plan
}

fn one_sided(waits: bool) -> ExecutionPlan {
    let mut program = CollectiveProgram::new("one side", "test", 2);
    let (channel, back) = (program.memory_channel(0, 1), program.memory_channel(1, 0));
    let (block, other) = (program.block(0), program.block(1));
    if waits {
        program.wait(other, back).unwrap()
    } else {
        program.signal(block, channel).unwrap()
    }
    program.finish_unproved().unwrap()
}

#[test]
fn each_fault_is_of_the_kind_that_its_rule_is_for() {
    let faults = [
        (unfenced(), FindingKind::RaceOnGpu),
        (two_copies([0, 1], [0, 0]), FindingKind::Race),
        (two_copies([0, 1], [2, 0]), FindingKind::Race),
        (two_copies([1, 0], [0, 2]), FindingKind::Race),
        (two_pushers(), FindingKind::Race),
        (one_half(), FindingKind::Race),
        (packets_twice(), FindingKind::Race),
        (counted_twice(), FindingKind::Value),
        (a_launch_late(), FindingKind::Value),
        (mixed_operators(), FindingKind::Value),
        (two_receivers(), FindingKind::Value),
        (one_sided(false), FindingKind::Unbalanced),
        (released_twice(), FindingKind::Unbalanced),
        (two_adders(), FindingKind::Undecided),
        (two_takers(), FindingKind::Undecided),
        (one_sided(true), FindingKind::Deadlock),
        (packets_as_they_are(), FindingKind::Value),
        (swapped_halves(), FindingKind::Value),
    ];
    for (plan, kind) in faults {
        assert!(kinds(&plan).contains(&kind), "{} is not {kind:?}: {:?}", plan.name, kinds(&plan));
    }
    let report = check(&a_launch_late(), None).unwrap();
    let told = &report.classes[0].findings[0].what;
    assert!(told.contains("and 3 more units over all launches"), "{told}");
}

#[test]
fn each_way_in_which_sizes_differ_has_a_plan_that_is_wrong_in_no_other() {
    let faults = [
        (load("false_clean/slice4of2"), FindingKind::Race, "bytes, whose slices lie otherwise"),
        (released_in_each_unit(), FindingKind::Unbalanced, "messages of more than 16 bytes"),
        (finer_slices_follow(), FindingKind::Value, "whose slices have more than 4096"),
        (load(UNCREDITED), FindingKind::Race, "messages of more than 67108864 bytes, which wrap in scratch"),
        (load("false_clean/slice_wrap"), FindingKind::Value, "which wrap in scratch, and whose slices do"),
        (load("false_clean/credits"), FindingKind::Deadlock, "messages of more than 32 bytes, such as 384"),
        (load("false_clean/reuse_nopipe"), FindingKind::Value, "whose chunks overlap in scratch"),
    ];
    for (plan, kind, told) in faults {
        let report = check(&plan, None).unwrap();
        let has = |class: &&ClassReport| class.findings.iter().any(|finding| finding.kind == kind);
        let wrong: Vec<_> = report.classes.iter().filter(has).map(|class| &class.about).collect();
        assert!(matches!(&wrong[..], [one, ..] if one.contains(told)), "{told}: {wrong:?}");
        assert!(wrong.iter().all(|about| about.contains(told)), "{told}: {wrong:?}");
    }
}
