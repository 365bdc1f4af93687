//! What MSCCL++'s executor refuses, or runs otherwise than the format means, as read at commit
//! `1f5f065d`.

use std::collections::BTreeSet;

use crate::plan::{Buffer, ChannelKind, Code, Holder, Operation, Operator, Plan, RankProgram, Reference};
use crate::problem::Place;
use crate::rules::each_operation;

/// Returns a line for each place.
#[must_use]
pub fn differences(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        limits(rank, program, &mut found);
        if program.output_chunks == 0 {
            let at = Place::rank(rank);
            found
                .push(format!("{at}: its executor divides by the chunks of output, of which there are none"));
        }
        for (index, block) in program.blocks.iter().enumerate() {
            each_operation(&block.operations, Place::block(rank, index), &mut |operation, at| {
                let types = |references: &[Reference]| buffers(program, block, operation, references);
                found.extend(of_operation(plan, operation, &types).map(|what| format!("{at}: {what}")));
            });
        }
    }
    found
}

/// The limits of its arrays.
fn limits(rank: usize, program: &RankProgram, found: &mut Vec<String>) {
    let mut limit = |at: Place, what: &str, count: usize, most: usize| {
        if count > most {
            found.push(format!("{at}: {count} {what}, of which its executor takes {most}"));
        }
    };
    let mut barriers = BTreeSet::new();
    for (index, block) in program.blocks.iter().enumerate() {
        let at = Place::block(rank, index);
        let mut operations = 0;
        each_operation(&block.operations, at, &mut |operation, at| {
            operations += 1;
            barriers.extend(operation.barrier);
            limit(at, "channels", operation.channels.len(), 8);
            limit(at, "sources", operation.sources.len(), 10);
            limit(at, "destinations", operation.targets.len(), 10);
            limit(
                at,
                "chunks of a pipeline",
                operation.pipeline.as_ref().map_or(0, |of| of.chunks as usize),
                65_535,
            );
        });
        limit(at, "operations", operations, 64);
        for kind in ChannelKind::ALL {
            limit(at, "channels of a kind", block.channels(*kind).len(), 16);
        }
    }
    limit(Place::rank(rank), "semaphores", program.semaphores.len(), 16);
    limit(Place::rank(rank), "barriers", barriers.len(), 16);
}

/// What its executor does with an operation, where that is not what the format says.
fn of_operation(
    plan: &Plan,
    operation: &Operation,
    types: &impl Fn(&[Reference]) -> Vec<Option<Buffer>>,
) -> Option<String> {
    let pairs = || operation.sources.iter().zip(&operation.targets);
    let shifted = || pairs().any(|(source, target)| source.index != target.index);
    let is_memory = operation.kind == Some(ChannelKind::Memory);
    let plain_scratch = || {
        let far = |reference: &&Reference| matches!(reference.holder, Holder::Remote(_));
        let far: Vec<_> = operation.sources.iter().chain(&operation.targets).filter(far).copied().collect();
        plan.double_scratch && !operation.code.is_of_packets() && types(&far).contains(&Some(Buffer::Scratch))
    };
    let mixed = || {
        let types = types(&operation.sources);
        types.iter().any(|buffer| *buffer != types[0])
    };
    let what = match operation.code {
        Code::Get if shifted() => "get exchanges the two offsets, which differ",
        Code::Flush => "flush does nothing",
        Code::Put | Code::PutPackets if is_memory && mixed() => {
            "a fused put takes the buffer of all sources from the first"
        }
        Code::PutPackets if operation.kind == Some(ChannelKind::Port) => {
            "packets over a port come from the first plan of a process only"
        }
        Code::GroupLoadReduce => "glre is refused",
        Code::GroupLoadReduceStore if shifted() => "glres takes the source's index for its destination",
        _ if operation.code.is_reduction() && operation.operator != Operator::Sum => {
            "every reduction is a sum"
        }
        _ if plain_scratch() => "far plain accesses use the first half of scratch in every launch",
        Code::Pipeline if operation.inner().iter().any(|inner| inner.slice.is_some()) => {
            "a slice that is shorter than a pipeline's offset is copied out of range"
        }
        _ => return None,
    };
    Some(what.to_owned())
}

/// Returns the buffers that references name.
fn buffers(
    program: &RankProgram,
    block: &crate::plan::Block,
    operation: &Operation,
    references: &[Reference],
) -> Vec<Option<Buffer>> {
    let far = |id: u32| {
        let kind = operation.kind?;
        let index = *block.remote_buffers(kind).get(id as usize)?;
        program.remote_buffers.get(index as usize).map(|buffer| buffer.buffer)
    };
    let of = |reference: &Reference| match reference.holder {
        Holder::Local(buffer) => Some(buffer),
        Holder::Remote(id) => far(id),
        Holder::Switch(_) => None,
    };
    references.iter().map(of).collect()
}
