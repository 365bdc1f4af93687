//! Each must of the format refuses a plan that is otherwise right.

use shmccl_plan::plan::{
    BlockOperation, Buffer, ChannelKind, Code, PipelineLoop, Reference, ReferencedBuffer,
};
use shmccl_plan::{ExecutionPlan, check, read, write};

use crate::corpus::load;

type Change = fn(&mut ExecutionPlan);

/// Returns why a plan is refused once it was changed.
fn refusal(name: &str, change: impl FnOnce(&mut ExecutionPlan)) -> String {
    let mut plan = load(name);
    read::read("right", write::write(&plan).as_bytes()).unwrap();
    change(&mut plan);
    match read::read("changed", write::write(&plan).as_bytes()) {
        Ok(_) => "nothing".to_owned(),
        Err(refusal) => refusal.problems.iter().map(|problem| format!("{problem}\n")).collect(),
    }
}

/// Returns the first operation of a kind of rank 0.
fn first(plan: &mut ExecutionPlan, code: Code) -> &mut BlockOperation {
    let mut all = plan.ranks[0].blocks.iter_mut().flat_map(|block| &mut block.operations);
    all.find(|operation| operation.code == code).unwrap()
}

/// Names the rank itself as what it has of others.
fn local(operation: &mut BlockOperation, buffer: Buffer) {
    operation.sources[0].holder = ReferencedBuffer::Local(buffer);
}

#[test]
fn numbers_of_the_plan_stay_within_what_they_can_be() {
    let cases: [(Change, &str); 4] = [
        (|plan| plan.alignment = 0, "`buffer_alignment` is 0; give 1 to 1048576 bytes"),
        (|plan| plan.alignment = 1 << 21, "`buffer_alignment` is 2097152"),
        (
            |plan| (plan.min_message, plan.max_message) = (64, 32),
            "`min_message_size` 64 is above `max_message_size` 32",
        ),
        (|plan| plan.ranks.clear(), "`gpus` is empty; give one entry per rank"),
    ];
    for (change, told) in cases {
        let found = refusal("generated/ag_2", change);
        assert!(found.contains(told), "{told}: {found}");
    }
}

#[test]
fn what_a_block_lists_is_there() {
    let cases: [(&str, Change, &str); 5] = [
        (
            "generated/mn_rs_2x2",
            |plan| plan.ranks[0].blocks[0].memory_channels[0] = 1,
            "rank 0 block 0: memory channel 1 of 1 of the rank",
        ),
        (
            "generated/mn_rs_2x2",
            |plan| plan.ranks[0].blocks[0].port_channels[0] = 1,
            "rank 0 block 0: port channel 1 of 1 of the rank",
        ),
        (
            "generated/mn_rs_2x2",
            |plan| plan.ranks[0].blocks[0].memory_buffers.push(2),
            "rank 0 block 0: remote buffer 2 of 2 of the rank",
        ),
        (
            "generated/mn_rs_2x2",
            |plan| plan.ranks[0].blocks[0].port_buffers.push(2),
            "rank 0 block 0: remote buffer 2 of 2 of the rank",
        ),
        (
            "generated/ag_nvls_2_i1",
            |plan| plan.ranks[0].blocks[0].switch_groups.push(1),
            "rank 0 block 0: switch channel 1 of 1 of the rank",
        ),
    ];
    for (name, change, told) in cases {
        let found = refusal(name, change);
        assert!(found.contains(told), "{told}: {found}");
    }
}

#[test]
fn a_switch_group_names_ranks_of_the_plan_once_and_its_own() {
    for ranks in [vec![0, 0], vec![0, 9], vec![1]] {
        let told = format!("rank 0: a switch group of ranks {ranks:?}; name ranks of the plan once");
        let found =
            refusal("generated/ag_nvls_2_i1", |plan| plan.ranks[0].switch_groups[0].ranks = ranks.clone());
        assert!(found.contains(&told), "{told}: {found}");
    }
}

#[test]
fn a_reference_to_a_group_lies_within_the_buffers_of_all_members() {
    let found = refusal("generated/ag_nvls_pkt_2", |plan| plan.ranks[1].scratch_chunks = 1);
    let told = "rank 0 block 0 operation 1 (gstorepkt): `dst_buff` 0: chunks 0..1";
    assert!(!found.contains(told) && found.contains("rank 1"), "{found}");
    let found = refusal("generated/ag_nvls_pkt_2", |plan| {
        plan.ranks[1].scratch_chunks = 0;
        plan.ranks[1].blocks.clear();
    });
    assert!(found.contains(told), "{told}: {found}");
}

#[test]
fn a_barrier_is_of_as_many_blocks_as_use_it() {
    for parties in [3, 5] {
        let told = format!("barrier 0 is of {parties} blocks, but 4 use it; make them agree");
        let found = refusal("generated/ag_tbg_2", |plan| {
            for block in &mut plan.ranks[0].blocks {
                let barriers = block.operations.iter_mut().filter_map(|operation| operation.barrier.as_mut());
                barriers.for_each(|barrier| barrier.1 = parties);
            }
        });
        assert!(found.contains(&told), "{told}: {found}");
    }
}

#[test]
fn parts_and_units_are_what_can_be_cut() {
    for slice in [(2, 2), (7, 2)] {
        let told = format!("(put): `tbg_info` is part {} of 2; parts count from 0", slice.0);
        let found = refusal("generated/ag_2", |plan| first(plan, Code::Put).slice = Some(slice));
        assert!(found.contains(&told), "{told}: {found}");
    }
    let found = refusal("generated/ag_2", |plan| {
        let pipeline = PipelineLoop { unit: 24, chunks: 1, operations: Vec::new() };
        *first(plan, Code::Nop) =
            BlockOperation { pipeline: Some(pipeline), ..BlockOperation::new(Code::Pipeline) };
    });
    assert!(found.contains("`unit_size` is 24; give a multiple of the alignment, 16"), "{found}");
}

#[test]
fn operands_go_in_pairs_and_with_as_many_channels() {
    let own = Reference { holder: ReferencedBuffer::Local(Buffer::Output), index: 0, size: 1 };
    for (sources, targets) in [(2, 1), (1, 2)] {
        let found = refusal("generated/ag_2", |plan| {
            let put = first(plan, Code::Put);
            put.sources = vec![own; sources];
            put.targets = vec![put.targets[0]; targets];
        });
        let told = format!("(put): {sources} sources for {targets} destinations, which go in pairs");
        assert!(found.contains(&told), "{told}: {found}");
    }
    for code in [Code::PutWithSignal, Code::Put] {
        let found = refusal("generated/mn_rs_2x2", |plan| {
            let pushed = first(plan, Code::PutWithSignal);
            (pushed.code, pushed.channels) = (code, Vec::new());
        });
        assert!(found.contains("0 `channel_ids` for 1 destinations; give each one"), "{found}");
    }
    let found = refusal("generated/mn_rs_2x2", |plan| {
        let pushed = first(plan, Code::PutWithSignal);
        (pushed.kind, pushed.channels) = (Some(ChannelKind::Memory), vec![0, 0]);
    });
    assert!(found.contains("2 `channel_ids` for 1 destinations; give each one"), "{found}");
}

#[test]
fn packets_lie_in_scratch_wherever_they_are() {
    let found = refusal("generated/ag_pkt_2", |plan| local(first(plan, Code::UnpackPackets), Buffer::Output));
    assert!(
        found.contains("(upkt): `src_buff` 0: packets in buffer \"o\"; keep packets in scratch"),
        "{found}"
    );
    let found = refusal("generated/ag_pkt_2", |plan| plan.ranks[0].remote_buffers[0].buffer = Buffer::Output);
    assert!(
        found.contains("(ppkt): `dst_buff` 0: packets in buffer \"o\"; keep packets in scratch"),
        "{found}"
    );
    let found =
        refusal("generated/ag_nvls_pkt_2", |plan| plan.ranks[0].switch_groups[0].buffer = Buffer::Output);
    assert!(
        found.contains("(gstorepkt): `dst_buff` 0: packets in buffer \"o\"; keep packets in scratch"),
        "{found}"
    );
}

#[test]
fn a_message_of_no_bytes_is_refused_and_none_is_offered() {
    let plan = load("generated/ag_2");
    let told = |message| check(&plan, Some(message)).unwrap_err()[0].to_string();
    assert!(told(0).contains("a message of 0 bytes has nothing to do; take 32"), "{}", told(0));
    assert!(told(16).ends_with("the unit of its chunks; take 32"), "{}", told(16));
    assert!(told(48).ends_with("take 32 or 64"), "{}", told(48));
    let limited = ExecutionPlan { min_message: 33, max_message: 95, ..plan.clone() };
    let told = |message| check(&limited, Some(message)).unwrap_err()[0].to_string();
    assert!(told(48).ends_with("take 64"), "{}", told(48));
    assert!(told(90).ends_with("take 64"), "{}", told(90));
}
