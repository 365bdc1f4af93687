//! Each difference between two plans is told, with sides that differ.

use shmccl_plan::diff::diff;
use shmccl_plan::plan::{
    BlockOperation, Buffer, ChannelKind, Code, ExecutionPlan, Operator, Reference, ReferencedBuffer,
};

use crate::corpus::load;

/// Changes a plan and returns the only line that tells of it.
fn told(name: &str, change: impl FnOnce(&mut ExecutionPlan)) -> String {
    let one = load(name);
    let mut other = one.clone();
    change(&mut other);
    assert_ne!(one, other, "the plan was not changed");
    let lines = diff(&one, &other);
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    let sides = line.split_once(" -> ").unwrap_or_else(|| panic!("{line}"));
    assert!(!sides.0.ends_with(&format!(" {}", sides.1)), "equal sides: {line}");
    line.clone()
}

fn first(plan: &mut ExecutionPlan, code: Code) -> &mut BlockOperation {
    let operations = plan.ranks[0].blocks.iter_mut().flat_map(|block| &mut block.operations);
    operations.into_iter().find(|operation| operation.code == code).unwrap()
}

#[test]
fn the_operator_of_a_reduction_is_told() {
    let line = told("generated/ar_2", |plan| first(plan, Code::ReadReduceSend).operator = Operator::Max);
    assert!(
        line.contains("rres by sum over memory ") && line.contains(" -> rres by max over memory "),
        "{line}"
    );
}

#[test]
fn every_field_of_an_operation_is_told() {
    let put = |change: fn(&mut BlockOperation)| told("generated/ag_2", |plan| change(first(plan, Code::Put)));
    let of = |index| Reference { holder: ReferencedBuffer::Local(Buffer::Output), index, size: 1 };
    assert!(
        put(|it| it.kind = Some(ChannelKind::Port)).ends_with(" -> put over port of o[0] to remote 0[0]")
    );
    assert!(put(|it| it.channels.push(7)).contains(" channels 7"));
    assert!(put(|it| it.semaphores.push(7)).contains(" semaphores 7"));
    assert!(put(|it| it.barrier = Some((1, 2))).contains(" id 1 of 2 blocks"));
    assert!(put(|it| it.slice = Some((1, 2))).contains(" part 1 of 2"));
    assert!(
        told("generated/ag_2", |plan| first(plan, Code::Put).sources.push(of(1)))
            .contains(" of o[0] o[1] to")
    );
    assert!(told("generated/ag_2", |plan| first(plan, Code::Put).targets.push(of(1))).ends_with(" o[1]"));
}

#[test]
fn units_of_pipelines_and_what_is_in_them_are_told() {
    let pipelined = "generated/a2a_pipeline_2";
    let line = told(pipelined, |plan| first(plan, Code::Pipeline).pipeline.as_mut().unwrap().unit += 16);
    assert!(line.contains("pipeline in units of "), "{line}");
    let line = told(pipelined, |plan| first(plan, Code::Pipeline).pipeline.as_mut().unwrap().chunks += 1);
    assert!(line.ends_with(" chunks"), "{line}");
    let mut other = load(pipelined);
    other.ranks[0].blocks[0].operations.insert(0, first(&mut load(pipelined), Code::Pipeline).clone());
    let lines = diff(&load(pipelined), &other);
    let inner = first(&mut other, Code::Pipeline).inner().len();
    assert_eq!(lines.len(), 1 + inner, "{lines:?}");
}

#[test]
fn what_ranks_and_blocks_have_is_told_entry_by_entry() {
    let line = told("generated/a2a_pipeline_2", |plan| plan.ranks[0].semaphores[0] = 9);
    assert!(
        line.starts_with("rank 0: semaphore 0 of init_value ") && line.ends_with(" -> of init_value 9"),
        "{line}"
    );
    let line = told("generated/ag_2", |plan| plan.ranks[1].memory_channels[0] = 1);
    assert_eq!(line, "rank 1: memory channel 0 to rank 0 -> to rank 1");
    let line = told("generated/ag_2", |plan| plan.ranks[0].remote_buffers[0].buffer = Buffer::Scratch);
    assert_eq!(line, "rank 0: remote buffer 0 o of rank 1 over memory -> s of rank 1 over memory");
    let line = told("generated/ag_2", |plan| plan.ranks[0].blocks[0].memory_channels[0] = 3);
    assert_eq!(line, "rank 0 block 0: memory channel 0 is 0 of the rank -> is 3 of the rank");
    let line = told("generated/ex_ar_nvls_4", |plan| plan.ranks[0].switch_groups[0].ranks.reverse());
    assert!(
        line.ends_with(" -> of i of ranks [3, 2, 1, 0]") || line.ends_with(" -> of o of ranks [3, 2, 1, 0]"),
        "{line}"
    );
}

#[test]
fn differences_past_a_thousand_are_counted() {
    let [one, mut other] = [load("generated/ag_2"), load("generated/ag_2")];
    other.ranks[0].semaphores.extend([1; 1003]);
    let lines = diff(&one, &other);
    assert_eq!((lines.len(), lines[1000].as_str()), (1001, "the plan: 3 more differences"));
}
