//! A plan as JSON, as MSCCL++ reads it. Equal plans become equal bytes.

use serde_json::{Map, Value, json};

use crate::plan::{
    Block, BlockOperation, ChannelKind, Code, ExecutionPlan, RankProgram, Reference, ReferencedBuffer,
    SwitchGroup,
};

/// Writes a plan in one line.
#[must_use]
pub fn write(plan: &ExecutionPlan) -> String {
    let ranks = plan.ranks.iter().enumerate();
    let mut text = json!({
        "name": plan.name,
        "collective": plan.collective,
        "protocol": plan.protocol.name(),
        "inplace": plan.in_place,
        "reuse_resources": plan.reuse_resources,
        "use_double_scratch_buffer": plan.double_scratch,
        "buffer_alignment": plan.alignment,
        "num_threads_per_block": plan.threads_per_block,
        "min_message_size": plan.min_message,
        "max_message_size": plan.max_message,
        "gpus": ranks.map(|(id, rank)| self::rank(id, rank)).collect::<Vec<_>>(),
    })
    .to_string();
    text.push('\n');
    text
}

fn rank(id: usize, rank: &RankProgram) -> Value {
    let blocks = rank.blocks.iter().enumerate().map(|(id, block)| self::block(rank, id, block));
    let buffers = rank.remote_buffers.iter().map(|buffer| {
        let access: Vec<_> = buffer.access.iter().map(|kind| kind.name()).collect();
        json!({"rank": buffer.rank, "type": buffer.buffer.name(), "access_channel_types": access})
    });
    json!({
        "id": id,
        "input_chunks": rank.input_chunks,
        "output_chunks": rank.output_chunks,
        "scratch_chunks": rank.scratch_chunks,
        "threadblocks": blocks.collect::<Vec<_>>(),
        "channels": channels(rank),
        "remote_buffers": buffers.collect::<Vec<_>>(),
        "semaphores": rank.semaphores.iter().map(|value| json!({"init_value": value})).collect::<Vec<_>>(),
    })
}

fn channels(rank: &RankProgram) -> Vec<Value> {
    let mut channels = Vec::new();
    for kind in [ChannelKind::Memory, ChannelKind::Port] {
        if !rank.channels(kind).is_empty() {
            channels.push(json!({"channel_type": kind.name(), "connected_to": rank.channels(kind)}));
        }
    }
    for groups in rank.switch_groups.chunk_by(|one, other| one.buffer == other.buffer) {
        let of = |group: &SwitchGroup| json!({"size": group.ranks.len(), "ranks": group.ranks});
        channels.push(json!({
            "channel_type": ChannelKind::Switch.name(),
            "buffer_type": groups[0].buffer.name(),
            "rank_groups": groups.iter().map(of).collect::<Vec<_>>(),
        }));
    }
    channels
}

fn block(rank: &RankProgram, id: usize, block: &Block) -> Value {
    let of_kind = |list: &[(ChannelKind, &[u32])], kind_name: &str, ids_name: &str| {
        let used = list.iter().filter(|(_, ids)| !ids.is_empty());
        used.map(|(kind, ids)| json!({kind_name: kind.name(), ids_name: ids})).collect::<Vec<_>>()
    };
    let channels = ChannelKind::ALL.iter().map(|&kind| (kind, block.channels(kind))).collect::<Vec<_>>();
    let buffers = ChannelKind::ALL.iter().map(|&kind| (kind, block.remote_buffers(kind))).collect::<Vec<_>>();
    json!({
        "id": id,
        "ops": block.operations.iter().map(|of| operation(rank, block, of)).collect::<Vec<_>>(),
        "channels": of_kind(&channels, "channel_type", "channel_ids"),
        "remote_buffer_refs": of_kind(&buffers, "access_channel_type", "remote_buffer_ids"),
    })
}

fn operation(rank: &RankProgram, block: &Block, of: &BlockOperation) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    set("name", json!(of.code.name()));
    if let Some(kind) = of.kind {
        set("channel_type", json!(kind.name()));
    }
    if !of.channels.is_empty() {
        set("channel_ids", json!(of.channels));
    }
    if !of.semaphores.is_empty() {
        set("semaphore_ids", json!(of.semaphores));
    }
    if let Some((id, parties)) = of.barrier {
        set("barrier_id", json!(id));
        set("num_threadblocks", json!(parties));
    }
    if of.code.is_reduction() {
        set("reduce_op", json!(of.operator.name()));
    }
    if let Some((part, count)) = of.slice {
        set("tbg_info", json!({"tb_id": part, "tbg_size": count}));
    }
    if of.code == Code::GroupLoadReduce {
        group_load_reduce(rank, block, of, &mut set);
    } else {
        for (name, references) in [("src_buff", &of.sources), ("dst_buff", &of.targets)] {
            if !references.is_empty() {
                set(name, references.iter().map(reference).collect());
            }
        }
    }
    if let Some(pipeline) = &of.pipeline {
        set("iter_context", json!({"unit_size": pipeline.unit, "num_chunks": pipeline.chunks}));
        set("ops", pipeline.operations.iter().map(|of| operation(rank, block, of)).collect());
    }
    Value::Object(fields)
}

/// Writes the operands of `glre`, which has fields of its own.
fn group_load_reduce(
    rank: &RankProgram,
    block: &Block,
    of: &BlockOperation,
    set: &mut impl FnMut(&str, Value),
) {
    let group = of.channels.first().and_then(|&id| block.switch_groups.get(id as usize));
    let group = group.and_then(|&id| rank.switch_groups.get(id as usize));
    if let (Some(group), Some(source), Some(target)) = (group, of.sources.first(), of.targets.first()) {
        set("buffer_type", json!(group.buffer.name()));
        set("buffer_offset", json!(source.index));
        set("size", json!(source.size));
        set("dst_chunk", reference(target));
    }
}

fn reference(of: &Reference) -> Value {
    let (index, size) = (of.index, of.size);
    match of.holder {
        ReferencedBuffer::Local(buffer) => json!({"type": buffer.name(), "index": index, "size": size}),
        ReferencedBuffer::Remote(id) => json!({"buffer_id": id, "index": index, "size": size}),
        ReferencedBuffer::Switch(id) => json!({"switch_channel_id": id, "index": index, "size": size}),
    }
}
