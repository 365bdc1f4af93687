//! Plans that go wrong by the number of iterations, and right ones beside them.

use shmccl_plan::build::{BlockId, BlockSemaphore, CollectiveProgram};
use shmccl_plan::check::{CheckReport, FindingKind};
use shmccl_plan::{ExecutionPlan, check, read};

use crate::corpus::load;

fn report(plan: &ExecutionPlan) -> CheckReport {
    check(plan, None).unwrap()
}

/// Checks that the worst finding over all sizes is of a kind, or that there is none.
fn is(plan: &ExecutionPlan, kind: Option<FindingKind>) -> CheckReport {
    let report = report(plan);
    let worst = report.worst().filter(|kind| kind.is_error());
    assert_eq!(worst, kind, "{}: {report:#?}", plan.name);
    report
}

/// A step of a block.
#[derive(Clone, Copy)]
enum Step {
    Acquire(usize),
    Release(usize),
}
use Step::{Acquire, Release};

/// By block its pipelines: the unit of each, and what an iteration does.
type Blocks<'a> = &'a [&'a [(usize, &'a [Step])]];

fn take(program: &mut CollectiveProgram, block: BlockId, semaphores: &[BlockSemaphore], step: Step) {
    match step {
        Acquire(index) => program.acquire(block, semaphores[index]).unwrap(),
        Release(index) => program.release(block, semaphores[index]).unwrap(),
    }
}

/// Semaphores of one rank, and blocks of pipelines: the unit of each, and what an iteration does. A
/// unit of 0 makes it no pipeline.
fn semaphores(initial: &[u32], blocks: Blocks<'_>) -> CollectiveProgram {
    let mut program = CollectiveProgram::new("semaphores", "test", 1).chunks(1, 1, 0);
    let semaphores: Vec<_> = initial.iter().map(|&value| program.semaphore(0, value)).collect();
    for pipelines in blocks {
        let block = program.block(0);
        for &(unit, steps) in *pipelines {
            if unit > 0 {
                program.begin_pipeline(block, unit, 1).unwrap();
            }
            steps.iter().for_each(|&step| take(&mut program, block, &semaphores, step));
            if unit > 0 {
                program.end_pipeline(block).unwrap();
            }
        }
    }
    program
}

fn plan(program: CollectiveProgram) -> ExecutionPlan {
    program.finish_unproved().unwrap()
}

#[test]
fn credits_of_a_semaphore_that_run_out_after_many_iterations_are_a_deadlock() {
    is(&load("false_clean/credits"), Some(FindingKind::Deadlock));
    for credits in [4, 5, 32, 300] {
        let blocks: Blocks<'_> = &[&[(16, &[Acquire(0)]), (16, &[Release(0)])]];
        let plan = plan(semaphores(&[credits], blocks));
        let told = is(&plan, Some(FindingKind::Deadlock));
        // The iterations that the credits last for are right.
        let last = u64::from(credits) * 16;
        assert!(check(&plan, Some(last)).unwrap().is_clean(), "{told:#?}");
        assert!(!check(&plan, Some(last + 16)).unwrap().is_clean());
    }
}

#[test]
fn credits_that_a_channel_gets_outside_of_pipelines_run_out_too() {
    is(&load("false_clean/credits_between"), Some(FindingKind::Deadlock));
}

#[test]
fn credits_of_semaphores_that_follow_each_other_add_up() {
    let blocks: Blocks<'_> = &[
        &[(16, &[Acquire(0), Release(1)])],
        &[(16, &[Acquire(1), Release(2)])],
        &[(16, &[Acquire(2)]), (16, &[Release(0)])],
    ];
    let plan = plan(semaphores(&[5, 6, 7], blocks));
    is(&plan, Some(FindingKind::Deadlock));
    assert!(check(&plan, Some(18 * 16)).unwrap().is_clean());
    assert!(!check(&plan, Some(19 * 16)).unwrap().is_clean());
}

#[test]
fn credits_that_outlast_a_check_are_undecided_and_the_message_names_the_way_out() {
    let blocks: Blocks<'_> = &[&[(16, &[Acquire(0)]), (16, &[Release(0)])]];
    let report = is(&plan(semaphores(&[1 << 20], blocks)), Some(FindingKind::Undecided));
    let told = report.classes[0].findings[0].to_string();
    assert!(told.contains("begin with") && told.contains("1048576") && told.contains("--size"), "{told}");
}

#[test]
fn credits_that_come_back_in_each_iteration_are_clean() {
    let blocks: Blocks<'_> = &[&[(16, &[Acquire(0), Release(1)])], &[(16, &[Acquire(1), Release(0)])]];
    is(&plan(semaphores(&[8, 0], blocks)), None);
}

#[test]
fn a_reader_that_waits_a_few_times_only_races_once_there_are_more_iterations() {
    for times in [1, 4, 9] {
        let mut program = CollectiveProgram::new("late", "test", 1).chunks(1, 1, 1);
        let (semaphore, writer, reader) = (program.semaphore(0, 0), program.block(0), program.block(0));
        let scratch = program.scratch(0, 0..1);
        program.begin_pipeline(writer, 32, 1).unwrap();
        program.copy(writer, program.input(0, 0..1), scratch).unwrap();
        program.release(writer, semaphore).unwrap();
        program.end_pipeline(writer).unwrap();
        (0..times).for_each(|_| program.release(writer, semaphore).unwrap());
        (0..times).for_each(|_| program.acquire(reader, semaphore).unwrap());
        program.copy(reader, scratch, program.output(0, 0..1)).unwrap();
        program.begin_pipeline(reader, 32, 1).unwrap();
        program.acquire(reader, semaphore).unwrap();
        program.end_pipeline(reader).unwrap();
        let report = is(&plan(program), Some(FindingKind::Race));
        assert!(told_within(&report), "{times}: {report:#?}");
    }
}

/// Whether two accesses of one launch race.
fn told_within(report: &CheckReport) -> bool {
    let mut all = report.classes.iter().flat_map(|class| &class.findings);
    all.any(|finding| finding.kind == FindingKind::Race && !finding.what.contains("(launch"))
}

#[test]
fn pipelines_of_other_units_on_one_semaphore_are_a_deadlock_or_unbalanced() {
    is(&load("false_clean/units_release_more"), Some(FindingKind::Deadlock));
    is(&load("false_clean/units_acquire_more"), Some(FindingKind::Unbalanced));
    // In all, as many are released as acquired.
    let blocks: Blocks<'_> =
        &[&[(80, &[Release(0)]), (64, &[Acquire(0)]), (64, &[Release(0)]), (80, &[Acquire(0)])]];
    for credits in [0, 1, 3] {
        is(&plan(semaphores(&[credits], blocks)), Some(FindingKind::Deadlock));
    }
    let turned: Blocks<'_> =
        &[&[(64, &[Release(0)]), (80, &[Acquire(0)]), (80, &[Release(0)]), (64, &[Acquire(0)])]];
    is(&plan(semaphores(&[0], turned)), Some(FindingKind::Undecided));
}

#[test]
fn pipelines_of_other_units_that_share_nothing_are_clean() {
    let blocks: Blocks<'_> =
        &[&[(64, &[Release(0)]), (80, &[Release(1)])], &[(64, &[Acquire(0)]), (80, &[Acquire(1)])]];
    is(&plan(semaphores(&[0, 0], blocks)), None);
}

#[test]
fn two_blocks_that_count_otherwise_in_each_iteration_are_no_clean_plan() {
    let blocks: Blocks<'_> = &[
        &[(16, &[Release(0), Release(0)])],
        &[(16, &[Acquire(0)]), (0, &[Acquire(0), Acquire(0), Acquire(0), Acquire(0)])],
    ];
    let plan = plan(semaphores(&[0], blocks));
    let report = report(&plan);
    assert!(!report.is_clean(), "{report:#?}");
    assert!(check(&plan, Some(64)).unwrap().is_clean());
}

#[test]
fn a_plan_of_one_size_is_judged_by_that_size() {
    is(&load("false_clean/credits_fixed"), Some(FindingKind::Deadlock));
    let report = is(&load("false_clean/fixed_size"), None);
    let about: Vec<_> = report.classes.iter().map(|class| class.about.as_str()).collect();
    assert_eq!(about, ["messages of 128 bytes"]);
}

#[test]
fn sizes_beyond_the_limits_of_a_plan_decide_nothing() {
    // Up to 30 iterations are allowed, for which the credits last.
    let blocks: Blocks<'_> = &[&[(64, &[Acquire(0)]), (64, &[Release(0)])]];
    let limited = |credits: u32| plan(semaphores(&[credits], blocks).limits(0, 30 * 64));
    is(&limited(30), None);
    is(&limited(29), Some(FindingKind::Deadlock));
    // From 30 iterations on they do not, from 31 on neither.
    let least = |credits: u32| plan(semaphores(&[credits], blocks).limits(30 * 64, 1 << 40));
    is(&least(29), Some(FindingKind::Deadlock));
    is(&least(30), Some(FindingKind::Deadlock));
}

#[test]
fn a_plan_whose_smallest_size_is_large_is_scaled_down() {
    let unit = 1 << 20;
    let blocks: Blocks<'_> = &[&[(unit, &[Acquire(0)]), (unit, &[Release(0)])]];
    let fixed = |credits| {
        let size = 40 * unit as u64;
        let mut plan = plan(semaphores(&[credits], blocks));
        (plan.min_message, plan.max_message) = (size, size);
        plan
    };
    is(&fixed(40), None);
    is(&fixed(39), Some(FindingKind::Deadlock));
}

#[test]
fn a_reader_that_meets_a_writer_outside_of_pipelines_races_once_there_are_more_iterations() {
    let meet = r#"{"name":"barrier","barrier_id":0,"num_threadblocks":2}"#;
    let copy = |from: &str, to: &str| {
        let of = |buffer: &str| format!(r#"[{{"type":"{buffer}","index":0,"size":1}}]"#);
        format!(r#"{{"name":"copy","src_buff":{},"dst_buff":{}}}"#, of(from), of(to))
    };
    let context = r#"{"unit_size":32,"num_chunks":1}"#;
    let pipeline = |ops: &str| format!(r#"{{"name":"pipeline","iter_context":{context},"ops":[{ops}]}}"#);
    let block =
        |id: usize, ops: &[String]| format!(r#"{{"id":{id},"channels":[],"ops":[{}]}}"#, ops.join(","));
    let five = vec![meet.to_owned(); 5].join(",");
    let writer = block(0, &[pipeline(&format!("{},{meet}", copy("i", "s"))), five.clone()]);
    let reader = block(1, &[five, copy("s", "o"), pipeline(meet)]);
    let text = format!(
        r#"{{"name":"meet","collective":"test","protocol":"Simple","inplace":false,"gpus":[{{"id":0,"input_chunks":1,"output_chunks":1,"scratch_chunks":1,"threadblocks":[{writer},{reader}],"channels":[],"remote_buffers":[]}}]}}"#
    );
    let plan = read::read("meet", text.as_bytes()).unwrap().plan;
    // Five iterations end before the reader begins; the sixth does not.
    assert!(!told_within(&check(&plan, Some(160)).unwrap()));
    assert!(told_within(&check(&plan, Some(192)).unwrap()));
    assert!(told_within(&report(&plan)), "{:#?}", report(&plan));
}

#[test]
fn chunks_that_wrap_more_often_than_the_limits_of_a_plan_allow_are_not_tried() {
    // Scratch wraps in 1 MiB, and nothing says when it may be written again.
    let limited = |most: u64| {
        let mut program = CollectiveProgram::new("wrap", "allreduce", 1).chunks(1, 1, 64).reuse_resources();
        let (semaphore, writer, reader) = (program.semaphore(0, 0), program.block(0), program.block(0));
        let (scratch, unit) = (program.scratch(0, 0..1), 1 << 18);
        program.begin_pipeline(writer, unit, 1).unwrap();
        program.copy(writer, program.input(0, 0..1), scratch).unwrap();
        program.release(writer, semaphore).unwrap();
        program.end_pipeline(writer).unwrap();
        program.begin_pipeline(reader, unit, 1).unwrap();
        program.acquire(reader, semaphore).unwrap();
        program.copy(reader, scratch, program.output(0, 0..1)).unwrap();
        program.end_pipeline(reader).unwrap();
        plan(program.limits(0, most))
    };
    let worst = |most| report(&limited(most)).worst();
    assert_eq!(worst(1 << 20), None);
    assert_eq!(worst((1 << 20) + (1 << 18)), Some(FindingKind::Value));
}

#[test]
fn what_helps_an_undecided_size_is_no_smaller_one_where_there_is_none() {
    let program = CollectiveProgram::new("large", "test", 1).chunks(1 << 19, 1 << 19, 0);
    let plan = plan(program);
    let told = |size| check(&plan, size).unwrap().classes[0].findings[0].remedy.clone();
    let smallest = "check the same program for fewer ranks, or with fewer chunks";
    assert_eq!(told(None), smallest);
    assert_eq!(told(Some(1 << 23)), smallest);
    assert!(told(Some(1 << 24)).contains("a smaller size with --size"), "{}", told(Some(1 << 24)));
}
