//! Plans whose chunks are longer than what scratch wraps in.

use shmccl_plan::build::CollectiveProgram;
use shmccl_plan::check::{CheckReport, FindingKind};
use shmccl_plan::lower::granule;
use shmccl_plan::{ExecutionPlan, check, lower};

use crate::corpus::load;

const MIB: u64 = 1 << 20;

/// A plan of the corpus with other units and chunks in all its pipelines.
fn with_units(name: &str, unit: usize, chunks: u32) -> ExecutionPlan {
    let mut plan = load(name);
    let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    for pipeline in blocks.flat_map(|block| &mut block.operations).filter_map(|op| op.pipeline.as_mut()) {
        (pipeline.unit, pipeline.chunks) = (unit, chunks);
    }
    plan
}

fn kinds(report: &CheckReport) -> Vec<FindingKind> {
    let findings = report.classes.iter().flat_map(|class| &class.findings);
    let mut kinds: Vec<_> = findings.map(|finding| finding.kind).filter(|kind| kind.is_error()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

#[test]
fn a_plan_is_right_up_to_the_last_message_that_does_not_reach_beyond_scratch() {
    for (unit, chunks) in [(96, 3), (48, 1), (112, 2), (3 << 20, 1), ((1 << 20) + 16, 5)] {
        let plan = with_units("generated/ar_pipeline_2", unit, chunks);
        let report = check(&plan, None).unwrap();
        let right = report.right_up_to().unwrap_or_else(|| panic!("{unit}: {report:#?}"));
        let wrong = right + granule(&plan).unwrap();
        assert_eq!(kinds(&report), [FindingKind::OutOfBounds], "{unit}");
        assert!(lower(&plan, right).is_ok() && lower(&plan, wrong).is_err(), "{unit}: {right}");
        assert!(lower(&plan, right + 5 * MIB).is_err(), "{unit}: longer ones are refused, too");
        let told = report.classes.last().unwrap().findings[0].to_string();
        assert!(told.contains(&format!("a message of {wrong} bytes is refused")), "{told}");
        assert!(told.contains(&format!("`max_message_size` to {right}")), "{told}");
        // The remedy works.
        let limited = ExecutionPlan { max_message: right, ..plan };
        assert!(check(&limited, None).unwrap().is_clean(), "{unit}");
    }
}

#[test]
fn a_pipeline_of_small_units_is_decided_and_findings_are_about_real_messages() {
    for unit in [16, 32, 64, 1 << 10, 1 << 16] {
        let plan = with_units("generated/ar_pipeline_2", unit, 1);
        let report = check(&plan, None).unwrap();
        assert_eq!(
            (kinds(&report), report.right_up_to()),
            (vec![FindingKind::Race], Some(64 * MIB)),
            "{unit}"
        );
        let wrong = report.classes.last().unwrap();
        assert!(wrong.message > 64 * MIB, "{unit}: {}", wrong.message);
        let told = &wrong.findings.iter().find(|it| it.what.contains("operation 0.1 (copy)")).unwrap().what;
        assert!(told.contains("overwrites bytes 33554432.."), "the second chunk of scratch: {told}");
        let limited = ExecutionPlan { max_message: 64 * MIB, ..plan };
        assert!(check(&limited, None).unwrap().is_clean(), "{unit}");
    }
    for name in ["a2a_pipeline_2", "a2a_pipeline_4"] {
        let report = check(&with_units(&format!("generated/{name}"), 64, 1), None).unwrap();
        assert!(!report.is_undecided(), "{name}: {report:#?}");
    }
}

/// Adds a writer and a reader of a rank, between which a chunk of scratch lies. They move the chunk
/// of that number in such units. The writer may be `credits` of them ahead, if any.
fn add_pair(
    program: &mut CollectiveProgram,
    (rank, chunk): (usize, usize),
    unit: usize,
    credits: Option<u32>,
) {
    let (full, free) = (program.semaphore(rank, 0), program.semaphore(rank, credits.unwrap_or(0)));
    let (writer, reader) = (program.block(rank), program.block(rank));
    let chunk = chunk..chunk + 1;
    let scratch = program.scratch(rank, chunk.clone());
    program.begin_pipeline(writer, unit, 1).unwrap();
    credits.iter().for_each(|_| program.acquire(writer, free).unwrap());
    program.copy(writer, program.input(rank, chunk.clone()), scratch).unwrap();
    program.release(writer, full).unwrap();
    program.end_pipeline(writer).unwrap();
    program.begin_pipeline(reader, unit, 1).unwrap();
    program.acquire(reader, full).unwrap();
    program.copy(reader, scratch, program.output(rank, chunk)).unwrap();
    credits.iter().for_each(|_| program.release(reader, free).unwrap());
    program.end_pipeline(reader).unwrap();
}

/// A pair in units of 4 KiB with scratch of 2 chunks, so that a lap is one of 8192 iterations.
fn between(credits: Option<u32>) -> ExecutionPlan {
    let mut program = CollectiveProgram::new("wrap", "allreduce", 1).chunks(1, 1, 2).reuse_resources();
    add_pair(&mut program, (0, 0), 1 << 12, credits);
    let plan = program.finish_unproved().unwrap();
    ExecutionPlan { alignment: 1 << 12, ..plan }
}

#[test]
fn a_lap_that_is_shortened_has_the_verdict_of_the_whole_one() {
    for (credits, is_right) in [(None, false), (Some(1), true), (Some(5), true), (Some(60), true)] {
        let plan = between(credits);
        // One lap and a half, unit by unit.
        let whole = check(&plan, Some(48 * MIB)).unwrap();
        let shortened = check(&plan, None).unwrap();
        assert_eq!(whole.is_clean(), is_right, "{credits:?}: {whole:#?}");
        assert_eq!(kinds(&shortened), kinds(&whole), "{credits:?}: {shortened:#?}");
        let up_to = (!is_right).then_some(32 * MIB);
        assert_eq!(shortened.right_up_to(), up_to, "{credits:?}");
    }
}

#[test]
fn the_last_message_that_is_right_is_found_also_far_beyond_the_first_lap_of_another_rank() {
    let mut program = CollectiveProgram::new("wrap", "of no name", 2).chunks(2, 2, 3).reuse_resources();
    (0..2).for_each(|rank| add_pair(&mut program, (rank, 1), 96, Some(1)));
    let mut plan = program.finish_unproved().unwrap();
    // 96 divides what three chunks wrap in, and not what two do.
    plan.ranks[0].scratch_chunks = 2;
    let report = check(&plan, None).unwrap();
    let right = report.right_up_to().unwrap_or_else(|| panic!("{report:#?}"));
    assert_eq!((kinds(&report), right), (vec![FindingKind::OutOfBounds], 64 * MIB));
    let wrong = right + granule(&plan).unwrap();
    assert!(lower(&plan, right).is_ok() && lower(&plan, wrong).is_err());
}

#[test]
fn units_that_differ_lie_to_a_shortened_lap_as_to_the_whole_one() {
    for (credits, is_right) in [(None, false), (Some(1), true), (Some(2), true), (Some(3), true)] {
        let mut program = CollectiveProgram::new("wrap", "allreduce", 1).chunks(2, 2, 3).reuse_resources();
        // Both divide what three chunks wrap in.
        add_pair(&mut program, (0, 0), 32, Some(1));
        add_pair(&mut program, (0, 1), 48, credits);
        let report = check(&program.finish_unproved().unwrap(), None).unwrap();
        let expected = if is_right { vec![] } else { vec![FindingKind::Value, FindingKind::Race] };
        assert_eq!((kinds(&report), report.is_undecided()), (expected, false), "{credits:?}: {report:#?}");
    }
}

#[test]
fn a_limit_a_part_of_a_unit_beyond_a_lap_is_kept_and_that_part_is_checked() {
    let limited = |max_message| ExecutionPlan { alignment: 1 << 11, max_message, ..between(None) };
    assert!(check(&limited(32 * MIB), None).unwrap().is_clean());
    let plan = limited(32 * MIB + (1 << 11));
    let report = check(&plan, None).unwrap();
    assert_eq!(
        (kinds(&report), report.right_up_to()),
        (vec![FindingKind::Value, FindingKind::Race], Some(32 * MIB))
    );
    let longest = report.classes.iter().map(|class| class.message).max();
    assert_eq!(longest, Some(plan.max_message), "{report:#?}");
}

#[test]
fn a_lap_that_is_neither_short_enough_nor_shortened_is_undecided() {
    let report = check(&between(Some(3000)), None).unwrap();
    let mut findings = report.classes.iter().flat_map(|class| &class.findings);
    assert!(report.is_undecided() && findings.any(|it| it.what.ends_with("scaled roughly")), "{report:#?}");
}
