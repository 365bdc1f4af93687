//! What MSCCL++'s executor refuses, or runs otherwise than the format means, as read at commit
//! `1f5f065d`.

use std::collections::BTreeSet;

use crate::plan::{
    Block, BlockOperation, Buffer, ChannelKind, Code, ExecutionPlan, Operator, RankProgram, Reference,
    ReferencedBuffer,
};
use crate::problem::Place;
use crate::problem::each_operation;

/// Returns a line for each place.
#[must_use]
pub fn differences(plan: &ExecutionPlan) -> Vec<String> {
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
                let differences = of_operation(plan, program, block, operation);
                found.extend(differences.into_iter().map(|what| format!("{at}: {what}")));
            });
        }
    }
    found
}

/// Checks the limits of the executor's arrays.
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

/// Returns what its executor asks of callers, where the format asks nothing.
#[must_use]
pub fn duties(plan: &ExecutionPlan) -> Option<String> {
    let mut first = None;
    for (rank, program) in plan.ranks.iter().enumerate() {
        for (index, block) in program.blocks.iter().enumerate() {
            each_operation(&block.operations, Place::block(rank, index), &mut |operation, at| {
                if far(program, block, operation).iter().any(|buffer| *buffer != Buffer::Scratch) {
                    first.get_or_insert(at);
                }
            });
        }
    }
    let told = "all ranks must pass buffers at equal offsets within their allocations";
    first.map(|at| format!("{told}: far addresses, as in {at}, take the offset of the own rank"))
}

/// What its executor does with an operation, where that is not what the format says.
fn of_operation(
    plan: &ExecutionPlan,
    program: &RankProgram,
    block: &Block,
    operation: &BlockOperation,
) -> Vec<&'static str> {
    let is_shifted =
        operation.sources.iter().zip(&operation.targets).any(|(from, to)| from.index != to.index);
    let is_of = |codes: &[Code], kind| codes.contains(&operation.code) && operation.kind == Some(kind);
    let is_mixed = || operation.sources.windows(2).any(|two| two[0].holder != two[1].holder);
    let far = || far(program, block, operation);
    let is_sliced = |operation: &BlockOperation| operation.slice.is_some();
    let code = operation.code;
    let all = [
        (code == Code::Get && is_shifted, "get exchanges the two offsets, which differ"),
        (code == Code::Flush, "flush does nothing"),
        (
            is_of(&[Code::Put, Code::PutPackets], ChannelKind::Memory) && is_mixed(),
            "a fused put takes the buffer of all sources from the first",
        ),
        (
            is_of(&[Code::PutPackets], ChannelKind::Port),
            "packets over a port come from the first plan of a process only",
        ),
        (code == Code::GroupLoadReduce, "glre is refused"),
        (
            code == Code::GroupLoadReduceStore && is_shifted,
            "glres takes the source's index for its destination",
        ),
        (code.is_reduction() && operation.operator != Operator::Sum, "every reduction is a sum"),
        (
            plan.double_scratch && !code.is_of_packets() && far().contains(&Buffer::Scratch),
            "far plain accesses use the first half of scratch in every launch",
        ),
        (
            operation.inner().iter().any(is_sliced),
            "a slice that is shorter than a pipeline's offset is copied out of range",
        ),
    ];
    all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what).collect()
}

/// Returns the buffers of other ranks that an operation names.
fn far(program: &RankProgram, block: &Block, operation: &BlockOperation) -> Vec<Buffer> {
    let kind = operation.kind.unwrap_or(ChannelKind::Memory);
    let of = |reference: &Reference| match reference.holder {
        ReferencedBuffer::Local(_) => None,
        ReferencedBuffer::Remote(id) => {
            let index = *block.remote_buffers(kind).get(id as usize)?;
            program.remote_buffers.get(index as usize).map(|buffer| buffer.buffer)
        }
        ReferencedBuffer::Switch(id) => {
            let index = *block.switch_groups.get(id as usize)?;
            program.switch_groups.get(index as usize).map(|group| group.buffer)
        }
    };
    operation.sources.iter().chain(&operation.targets).filter_map(of).collect()
}
