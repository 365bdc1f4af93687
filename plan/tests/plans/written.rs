//! Plans that are written: read again they are the same.

use shmccl_plan::build::{BuildError, Chunks, CollectiveProgram};
use shmccl_plan::{ExecutionPlan, diff, read, write};

use crate::corpus::{fault, listed, run};

fn again(plan: &ExecutionPlan) -> ExecutionPlan {
    read::read("written", write::write(plan).as_bytes()).unwrap_or_else(|refusal| panic!("{refusal}")).plan
}

#[test]
fn a_plan_that_is_written_and_read_again_is_the_same() {
    for listed in listed(&["generated", "upstream", "units"]) {
        let read_again = again(&listed.plan);
        assert_eq!(diff::diff(&listed.plan, &read_again), Vec::<String>::new(), "{}", listed.name);
        assert_eq!(listed.plan, read_again, "{}", listed.name);
        assert_eq!(write::write(&listed.plan), write::write(&read_again));
    }
}

/// Builds an allreduce by packets: each rank sends all it has to all others.
fn all_pairs(ranks: usize) -> CollectiveProgram {
    let chunks = u32::try_from(ranks).unwrap();
    let mut program =
        CollectiveProgram::new("all_pairs", "allreduce", ranks).in_place().packets().chunks(1, 1, chunks);
    for rank in 0..ranks {
        let block = program.block(rank);
        let own = program.input(rank, 0..1);
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            program.put_packets(block, own, program.scratch(peer, rank..rank + 1)).unwrap();
        }
        let others: Vec<_> = (0..ranks)
            .filter(|&peer| peer != rank)
            .map(|peer| program.scratch(rank, peer..peer + 1))
            .collect();
        program.reduce_packets(block, own, &others, own, &[]).unwrap();
    }
    program
}

#[test]
fn a_program_is_proved_and_runs_in_one_or_more_instances() {
    for instances in [1, 3] {
        let plan = all_pairs(4).instances(instances).finish().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.ranks[0].blocks.len(), instances as usize);
        assert_eq!(again(&plan), plan);
        let message = u64::from(instances) * 16;
        assert_eq!(fault(&plan, &run(&plan, message, 4, 3), 4), None);
        assert_eq!(write::write(&plan), write::write(&all_pairs(4).instances(instances).finish().unwrap()));
    }
}

#[test]
fn a_program_that_is_wrong_is_not_written_and_its_line_is_named() {
    let mut program = CollectiveProgram::new("late", "allgather", 2).in_place().chunks(1, 2, 0);
    let line = line!() + 4;
    for rank in 0..2 {
        let own = program.output(rank, rank..rank + 1);
        let (block, far) = (program.block(rank), Chunks { rank: 1 - rank, ..own });
        program.put(block, own, far).unwrap();
    }
    let Err(error @ BuildError::Unproved { .. }) = program.finish() else { panic!("proved") };
    let told = error.to_string();
    assert!(told.contains(&format!("written.rs:{line}:")), "{told}");
}

#[test]
fn a_program_in_another_language_names_its_own_lines() {
    let mut program = CollectiveProgram::new("other", "allgather", 2).chunks(1, 2, 0);
    let block = program.block(0);
    program.made_at("ring.py:7");
    let error = program.copy(block, program.input(1, 0..1), program.output(0, 0..1)).unwrap_err();
    assert!(error.to_string().starts_with("ring.py:7: rank 1 is another rank"), "{error}");
}

#[test]
fn more_instances_or_chunks_than_can_be_are_refused_and_none_is_made() {
    for (instances, chunk, told) in [(1 << 31, 0, "2147483648 times; give 256 in all"), (2, 1 << 31, "")] {
        let mut program = CollectiveProgram::new("many", "allgather", 1).chunks(1, 1, 0).instances(instances);
        let block = program.block(0);
        let input = program.input(0, 0..1);
        program.copy(block, Chunks { index: chunk, ..input }, program.output(0, 0..1)).unwrap();
        let refused = program.finish().unwrap_err().to_string();
        assert!(refused.contains(told), "{refused}");
    }
}

#[test]
fn a_call_that_has_no_meaning_names_its_line() {
    let mut program = CollectiveProgram::new("wrong", "allgather", 2).chunks(1, 2, 0);
    let block = program.block(0);
    let error = program.copy(block, program.input(1, 0..1), program.output(0, 0..1)).unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("written.rs:") && told.ends_with("rank 1 is another rank; name chunks of rank 0"),
        "{told}"
    );
}

#[test]
fn a_changed_operation_is_named_by_a_diff() {
    let plan = listed(&["generated"]).remove(0).plan;
    let mut other = plan.clone();
    other.ranks[1].blocks[0].operations.remove(7);
    other.ranks[0].output_chunks = 3;
    assert_eq!(
        diff::diff(&plan, &other),
        [
            "rank 0: output_chunks 2 -> 3",
            "rank 1 block 0 operation 7 (signal): signal over memory channels 0 removed",
        ]
    );
}
