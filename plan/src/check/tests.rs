use super::{FindingKind, Redundant, check, redundant};
use crate::build::{BlockId, CollectiveProgram};
use crate::plan::ExecutionPlan;

/// Returns the only finding of a plan that is not decided.
fn undecided(plan: &ExecutionPlan) -> String {
    let report = check(plan, None).unwrap();
    let errors: Vec<_> =
        report.classes[0].findings.iter().filter(|finding| finding.kind.is_error()).collect();
    assert!(matches!(&errors[..], [one] if one.kind == FindingKind::Undecided), "{errors:?}");
    errors[0].what.clone()
}

/// A program of one rank and one block, with so many chunks.
fn small(collective: &str, chunks: u32) -> (CollectiveProgram, BlockId) {
    let mut program = CollectiveProgram::new("large", collective, 1).chunks(chunks, chunks, 0);
    let block = program.block(0);
    (program, block)
}

#[test]
fn a_plan_of_more_chunks_than_a_check_looks_at_is_undecided() {
    let (program, _) = small("test", 1 << 19);
    let told = undecided(&program.finish_unproved().unwrap());
    assert!(told.contains("1048576 units of memory, more than the 524288"), "{told}");
}

#[test]
fn a_plan_that_copies_more_than_a_check_looks_at_is_undecided() {
    let (mut program, block) = small("test", 1 << 15);
    for _ in 0..17 {
        program.copy(block, program.input(0, 0..1 << 15), program.output(0, 0..1 << 15)).unwrap();
    }
    let told = undecided(&program.finish_unproved().unwrap());
    assert!(told.contains("1114112 units to read and write, more than the 1048576"), "{told}");
}

#[test]
fn a_plan_whose_results_combine_more_than_a_check_looks_at_is_undecided() {
    let (mut program, block) = small("allreduce", 64);
    let (from, to) = (program.input(0, 0..64), program.output(0, 0..64));
    program.copy(block, from, to).unwrap();
    for _ in 0..300 {
        program.reduce(block, &[to, from], &[to]).unwrap();
    }
    let told = undecided(&program.finish_unproved().unwrap());
    assert!(told.contains("results combine more than 65536 parts"), "{told}");
}

#[test]
fn a_plan_whose_signals_pile_up_is_undecided() {
    let mut program = CollectiveProgram::new("signals", "test", 2).chunks(1, 1, 0);
    let (channel, _) = (program.memory_channel(0, 1), program.memory_channel(1, 0));
    let block = program.block(0);
    for _ in 0..6000 {
        program.copy(block, program.input(0, 0..1), program.output(0, 0..1)).unwrap();
        program.signal(block, channel).unwrap();
    }
    let told = undecided(&program.finish_unproved().unwrap());
    assert!(told.contains("know of each other"), "{told}");
}

#[test]
fn a_semaphore_that_begins_with_many_takes_no_more_to_check() {
    let mut program = CollectiveProgram::new("credits", "test", 1);
    let semaphore = program.semaphore(0, u32::MAX);
    let block = program.block(0);
    program.acquire(block, semaphore).unwrap();
    program.release(block, semaphore).unwrap();
    let report = check(&program.finish_unproved().unwrap(), None).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn synchronisation_of_a_long_plan_is_tried_in_part_and_the_rest_is_counted() {
    let mut program = CollectiveProgram::new("long", "test", 1);
    let semaphore = program.semaphore(0, 0);
    let block = program.block(0);
    for _ in 0..400 {
        program.release(block, semaphore).unwrap();
        program.acquire(block, semaphore).unwrap();
    }
    let found = redundant(&program.finish_unproved().unwrap());
    let last = &found[found.len() - 1];
    assert!(matches!(last, Redundant::Untried(pieces) if *pieces > 300), "{last}");
    assert!(last.to_string().contains("more pieces, which were not tried"), "{last}");
    assert!(found.len() > 1 && matches!(found[0], Redundant::Piece(_)), "{found:?}");
}
