//! The rules of the format that a plan must keep, whatever the size of the message.
//!
//! Tried by `plans musts:: on_a_gpu::`.

mod operands;
pub(crate) mod pipelines;

use std::collections::{BTreeMap, BTreeSet};

use crate::collective::CollectiveKind;
use crate::lower::{Sizes, granule, wrap_of};
use crate::plan::{Block, BlockOperation, ChannelKind, Code, ExecutionPlan, Protocol, RankProgram};
use crate::problem::{Place, Problem, each_operation};

/// The largest unit of divisions, in bytes.
const MAX_ALIGNMENT: usize = 1 << 20;

/// The largest buffer of MSCCL++, in bytes.
const MAX_BUFFER: u64 = 1 << 32;

/// The bytes of payload in a word of a packet.
const PAYLOAD: usize = 4;

/// The most places that all operations of a plan may name, each member of a group on its own.
const MAX_PLACES: usize = 1 << 22;

/// Notes what breaks a rule, and what looks unintended.
pub(crate) fn check(plan: &ExecutionPlan, problems: &mut Vec<Problem>, warnings: &mut Vec<String>) {
    if plan.ranks.is_empty() {
        problems.push(Problem::new(Place::PLAN, "`gpus` is empty; give one entry per rank"));
    }
    if !(1..=MAX_ALIGNMENT).contains(&plan.alignment) {
        let what = format!("`buffer_alignment` is {}; give 1 to {MAX_ALIGNMENT} bytes", plan.alignment);
        problems.push(Problem::new(Place::PLAN, what));
        return;
    }
    if plan.min_message > plan.max_message {
        let what = format!(
            "`min_message_size` {} is above `max_message_size` {}; swap them",
            plan.min_message, plan.max_message
        );
        problems.push(Problem::new(Place::PLAN, what));
    }
    let mut told = BTreeSet::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        peers(plan, rank, program, problems);
        barriers(rank, program, problems);
        for (index, block) in program.blocks.iter().enumerate() {
            let at = Place::block(rank, index);
            entries(program, block, at, problems);
            operations(plan, program, block, at, problems, &mut told);
        }
    }
    if let Some(granule) = granule(plan).filter(|_| plan.min_message <= plan.max_message)
        && plan.max_message / granule * granule < plan.min_message.max(1)
    {
        let what = format!(
            "no message is within `min_message_size` {} and `max_message_size` {} and a multiple of {granule}, the unit of its chunks; widen the limits",
            plan.min_message, plan.max_message
        );
        problems.push(Problem::new(Place::PLAN, what));
    }
    let has_chunks = plan.ranks.iter().any(|rank| rank.input_chunks > 0 || rank.output_chunks > 0);
    if CollectiveKind::of(plan) != CollectiveKind::Other && !has_chunks && !plan.ranks.is_empty() {
        let collective = &plan.collective;
        let what = format!(
            "no rank has chunks of input or output, so nothing is left of {collective}; give `input_chunks` or `output_chunks`"
        );
        problems.push(Problem::new(Place::PLAN, what));
    }
    if problems.is_empty() {
        pipelines::check(plan, problems);
    }
    if problems.is_empty() && places(plan) > MAX_PLACES {
        let what = format!("operations name more than {MAX_PLACES} places together; split the plan");
        problems.push(Problem::new(Place::PLAN, what));
    }
    ratios(plan, &mut told);
    if problems.is_empty() {
        units(plan, &mut told);
        sizes(plan, &mut told);
    }
    warnings.extend(told);
}

/// Channels and remote buffers name other ranks of the plan.
fn peers(plan: &ExecutionPlan, rank: usize, program: &RankProgram, problems: &mut Vec<Problem>) {
    let at = Place::rank(rank);
    let mut check = |what: &str, peer: u32| {
        let peer = peer as usize;
        if peer == rank {
            problems.push(Problem::new(at, format!("{what} leads to the rank itself; name another rank")));
        } else if peer >= plan.ranks.len() {
            let told = format!("{what} leads to rank {peer} of {}; name one there is", plan.ranks.len());
            problems.push(Problem::new(at, told));
        }
    };
    program.memory_channels.iter().for_each(|&peer| check("a memory channel", peer));
    program.port_channels.iter().for_each(|&peer| check("a port channel", peer));
    program.remote_buffers.iter().for_each(|buffer| check("a remote buffer", buffer.rank));
    for group in &program.switch_groups {
        let members: BTreeSet<_> = group.ranks.iter().map(|&member| member as usize).collect();
        let all = members.iter().all(|&member| member < plan.ranks.len());
        if members.len() != group.ranks.len() || !all || !members.contains(&rank) {
            let told = format!(
                "a switch group of ranks {:?}; name ranks of the plan once, this one too",
                group.ranks
            );
            problems.push(Problem::new(at, told));
        }
    }
}

/// Checks that the indices of a block lie within the lists of its rank.
fn entries(program: &RankProgram, block: &Block, at: Place, problems: &mut Vec<Problem>) {
    let mut check = |what: &str, ids: &[u32], count: usize| {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= count) {
            let told = format!("{what} {id} of {count} of the rank; name one there is");
            problems.push(Problem::new(at, told));
        }
    };
    check("memory channel", &block.memory_channels, program.memory_channels.len());
    check("port channel", &block.port_channels, program.port_channels.len());
    check("switch channel", &block.switch_groups, program.switch_groups.len());
    check("remote buffer", &block.memory_buffers, program.remote_buffers.len());
    check("remote buffer", &block.port_buffers, program.remote_buffers.len());
}

/// Checks that as many blocks use a barrier as its operations say.
fn barriers(rank: usize, program: &RankProgram, problems: &mut Vec<Problem>) {
    let mut users: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    let mut uses = Vec::new();
    for (index, block) in program.blocks.iter().enumerate() {
        each_operation(&block.operations, Place::block(rank, index), &mut |operation, at| {
            if let Some((id, parties)) = operation.barrier {
                users.entry(id).or_default().insert(index);
                uses.push((id, parties, at));
            }
        });
    }
    let mut told = BTreeSet::new();
    for (id, parties, at) in uses {
        let blocks = users[&id].len();
        if blocks != parties as usize && told.insert(id) {
            let what = format!("barrier {id} is of {parties} blocks, but {blocks} use it; make them agree");
            problems.push(Problem::new(at, what));
        }
    }
}

fn operations(
    plan: &ExecutionPlan,
    program: &RankProgram,
    block: &Block,
    at: Place,
    problems: &mut Vec<Problem>,
    warnings: &mut BTreeSet<String>,
) {
    let mut found = |at, what: String| problems.push(Problem::new(at, what));
    each_operation(&block.operations, at, &mut |operation, at| {
        channels(operation, block, &mut |what| found(at, what));
        if let Some(id) = operation.semaphores.iter().find(|&&id| id as usize >= program.semaphores.len()) {
            found(at, format!("semaphore {id} of {}; name one there is", program.semaphores.len()));
        }
        if let Some((part, of)) = operation.slice.filter(|(part, of)| part >= of) {
            found(at, format!("`tbg_info` is part {part} of {of}; parts count from 0"));
        }
        if operation.code.is_of_packets() && plan.protocol == Protocol::Simple {
            found(at, "packets in a plan of protocol Simple; set `protocol` to \"LL\"".to_owned());
        }
        if operation.code.is_of_packets() && !plan.alignment.is_multiple_of(PAYLOAD) {
            let alignment = plan.alignment;
            found(
                at,
                format!("packets at a `buffer_alignment` of {alignment}; give a multiple of {PAYLOAD}"),
            );
        }
        if operation.code.is_of_packets() && at.operation.is_some_and(|(_, inner)| inner.is_some()) {
            warnings
                .insert("packet operations within a pipeline cover all bytes in each iteration".to_owned());
        }
        if let Some(pipeline) = &operation.pipeline
            && (pipeline.unit == 0 || !pipeline.unit.is_multiple_of(plan.alignment))
        {
            let (unit, alignment) = (pipeline.unit, plan.alignment);
            found(at, format!("`unit_size` is {unit}; give a multiple of the alignment, {alignment}"));
        }
        operands::check(plan, (at, program, block), operation, &mut |what| found(at, what));
    });
}

/// Counts the places that operations name.
fn places(plan: &ExecutionPlan) -> usize {
    let mut count: usize = 0;
    for program in &plan.ranks {
        let largest = program.switch_groups.iter().map(|group| group.ranks.len()).max().unwrap_or(1);
        let mut visit = |operation: &BlockOperation, _: Place| {
            let places = operation.sources.len() + operation.targets.len();
            let each = if operation.kind == Some(ChannelKind::Switch) { largest } else { 1 };
            count = count.saturating_add(places * each);
        };
        for block in &program.blocks {
            each_operation(&block.operations, Place::PLAN, &mut visit);
        }
    }
    count
}

/// Operations name channels of their kind that their block lists.
fn channels(operation: &BlockOperation, block: &Block, found: &mut impl FnMut(String)) {
    let allowed: &[ChannelKind] = match operation.code {
        Code::Signal | Code::Wait | Code::PutWithSignal => &[ChannelKind::Memory, ChannelKind::Port],
        Code::RelaxedSignal | Code::RelaxedWait => &[ChannelKind::Memory],
        Code::Flush | Code::PutWithSignalAndFlush => &[ChannelKind::Port],
        Code::Put | Code::PutPackets | Code::ReadPutPackets => &[ChannelKind::Memory, ChannelKind::Port],
        Code::Get
        | Code::ReduceSend
        | Code::ReadReduce
        | Code::ReadReduceSend
        | Code::ReduceSendPackets
        | Code::ReduceCopySendPackets => &[ChannelKind::Memory],
        Code::GroupLoadReduceStore | Code::GroupStore | Code::GroupStorePackets | Code::GroupLoadReduce => {
            &[ChannelKind::Switch]
        }
        _ => return,
    };
    let Some(kind) = operation.kind.filter(|kind| allowed.contains(kind)) else {
        let names: Vec<_> = allowed.iter().map(|kind| kind.name()).collect();
        let given = operation.kind.map_or("absent", ChannelKind::name);
        return found(format!("`channel_type` is {given}; expected {}", names.join(" or ")));
    };
    let count = block.channels(kind).len();
    if let Some(id) = operation.channels.iter().find(|&&id| id as usize >= count) {
        found(format!("{kind} channel {id} of {count} of the block; name one there is"));
    }
}

/// Warns of pipelines whose units do not fit what scratch wraps in.
fn units(plan: &ExecutionPlan, warnings: &mut BTreeSet<String>) {
    for (rank, program) in plan.ranks.iter().enumerate() {
        let wrap = wrap_of(plan, program);
        let mut visit = |operation: &BlockOperation, at: Place| {
            let units = operation.pipeline.as_ref().map(|pipeline| pipeline.unit);
            if let Some(unit) = units.filter(|unit| wrap < usize::MAX && !wrap.is_multiple_of(*unit)) {
                let what = if unit > wrap { "is larger than" } else { "does not divide" };
                warnings.insert(format!(
                    "{at}: `unit_size` {unit} {what} the {wrap} bytes in which scratch wraps"
                ));
            }
        };
        for (index, block) in program.blocks.iter().enumerate() {
            each_operation(&block.operations, Place::block(rank, index), &mut visit);
        }
    }
}

/// Warns where buffers of the smallest message are larger than MSCCL++ takes.
fn sizes(plan: &ExecutionPlan, warnings: &mut BTreeSet<String>) {
    let Some(least) =
        granule(plan).and_then(|granule| plan.min_message.max(1).checked_next_multiple_of(granule))
    else {
        return;
    };
    let Ok(sizes) = Sizes::of_message(plan, least) else { return };
    let large = |bytes: usize| bytes as u64 > MAX_BUFFER;
    let is_large =
        sizes.ranks.iter().any(|rank| large(rank.input) || large(rank.output) || large(rank.scratch));
    if is_large {
        warnings
            .insert(format!("messages of {least} bytes take buffers beyond the 4 GiB of MSCCL++'s executor"));
    }
}

/// Warns where the counts of chunks do not fit the collective.
fn ratios(plan: &ExecutionPlan, warnings: &mut BTreeSet<String>) {
    let ranks = plan.ranks.len() as u64;
    for program in &plan.ranks {
        let (input, output) = (u64::from(program.input_chunks), u64::from(program.output_chunks));
        let fits = match plan.collective.as_str() {
            "allgather" => output == ranks * input,
            "reducescatter" => input == ranks * output,
            "allreduce" | "alltoall" | "sendrecv" => input == output,
            _ => true,
        };
        if !fits && input != 0 && output != 0 {
            warnings.insert(format!(
                "{input} chunks of input and {output} of output are unusual for {} of {ranks} ranks",
                plan.collective
            ));
        }
    }
}
