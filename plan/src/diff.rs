//! What differs between two plans.

use std::fmt::Display;

use crate::escape::escaped;
use crate::plan::{
    Block, BlockOperation, ChannelKind, ExecutionPlan, RankProgram, Reference, RemoteBuffer, SwitchGroup,
};
use crate::problem::Place;
use crate::show::reference;

/// The most differences that are listed.
const MAX_DIFFERENCES: usize = 1000;

/// Returns one line for each difference, from the plan as a whole to single operations.
#[must_use]
pub fn diff(one: &ExecutionPlan, other: &ExecutionPlan) -> Vec<String> {
    let mut found = Vec::new();
    let at = Place::PLAN;
    field(&mut found, at, "name", &escaped(&one.name), &escaped(&other.name));
    field(&mut found, at, "collective", &escaped(&one.collective), &escaped(&other.collective));
    field(&mut found, at, "protocol", &one.protocol, &other.protocol);
    field(&mut found, at, "inplace", &one.in_place, &other.in_place);
    field(&mut found, at, "reuse_resources", &one.reuse_resources, &other.reuse_resources);
    field(&mut found, at, "use_double_scratch_buffer", &one.double_scratch, &other.double_scratch);
    field(&mut found, at, "buffer_alignment", &one.alignment, &other.alignment);
    field(&mut found, at, "num_threads_per_block", &one.threads_per_block, &other.threads_per_block);
    field(&mut found, at, "min_message_size", &one.min_message, &other.min_message);
    field(&mut found, at, "max_message_size", &one.max_message, &other.max_message);
    field(&mut found, at, "ranks", &one.ranks.len(), &other.ranks.len());
    for (rank, (one, other)) in one.ranks.iter().zip(&other.ranks).enumerate() {
        ranks(&mut found, rank, one, other);
    }
    let more = found.len().saturating_sub(MAX_DIFFERENCES);
    found.truncate(MAX_DIFFERENCES);
    if more > 0 {
        found.push(format!("the plan: {more} more differences"));
    }
    found
}

fn field<T: PartialEq + Display>(found: &mut Vec<String>, at: Place, name: &str, one: &T, other: &T) {
    if one != other {
        found.push(format!("{at}: {name} {one} -> {other}"));
    }
}

fn ranks(found: &mut Vec<String>, rank: usize, one: &RankProgram, other: &RankProgram) {
    let at = Place::rank(rank);
    field(found, at, "input_chunks", &one.input_chunks, &other.input_chunks);
    field(found, at, "output_chunks", &one.output_chunks, &other.output_chunks);
    field(found, at, "scratch_chunks", &one.scratch_chunks, &other.scratch_chunks);
    let peer = |peer: &u32| format!("to rank {peer}");
    entries(found, at, "memory channel", &one.memory_channels, &other.memory_channels, peer);
    entries(found, at, "port channel", &one.port_channels, &other.port_channels, peer);
    entries(found, at, "switch channel", &one.switch_groups, &other.switch_groups, group);
    entries(found, at, "remote buffer", &one.remote_buffers, &other.remote_buffers, remote);
    let value = |value: &u32| format!("of init_value {value}");
    entries(found, at, "semaphore", &one.semaphores, &other.semaphores, value);
    field(found, at, "thread blocks", &one.blocks.len(), &other.blocks.len());
    for (block, (one, other)) in one.blocks.iter().zip(&other.blocks).enumerate() {
        blocks(found, Place::block(rank, block), one, other);
    }
}

/// Compares two lists of what a rank or a block has, entry by entry.
fn entries<T: PartialEq>(
    found: &mut Vec<String>,
    at: Place,
    what: &str,
    one: &[T],
    other: &[T],
    told: impl Fn(&T) -> String,
) {
    for index in 0..one.len().max(other.len()) {
        let line = match (one.get(index), other.get(index)) {
            (Some(one), Some(other)) if one != other => format!("{} -> {}", told(one), told(other)),
            (Some(one), None) => format!("{} removed", told(one)),
            (None, Some(other)) => format!("{} added", told(other)),
            _ => continue,
        };
        found.push(format!("{at}: {what} {index} {line}"));
    }
}

fn group(group: &SwitchGroup) -> String {
    format!("of {} of ranks {:?}", group.buffer, group.ranks)
}

fn remote(remote: &RemoteBuffer) -> String {
    let access: Vec<_> = remote.access.iter().map(|kind| kind.name()).collect();
    format!("{} of rank {} over {}", remote.buffer, remote.rank, access.join(" and "))
}

fn blocks(found: &mut Vec<String>, at: Place, one: &Block, other: &Block) {
    let entry = |entry: &u32| format!("is {entry} of the rank");
    for kind in ChannelKind::ALL.iter().copied() {
        let what = format!("{kind} channel");
        entries(found, at, &what, one.channels(kind), other.channels(kind), entry);
        let what = format!("{kind} buffer");
        entries(found, at, &what, one.remote_buffers(kind), other.remote_buffers(kind), entry);
    }
    operations(found, at, &one.operations, &other.operations);
}

/// Compares two lists of operations by their longest common beginning and end: what is between was
/// changed, added or removed.
fn operations(found: &mut Vec<String>, at: Place, one: &[BlockOperation], other: &[BlockOperation]) {
    let before = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[before..], &other[before..]);
    let after = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[..one.len() - after], &other[..other.len() - after]);
    for index in 0..one.len().max(other.len()) {
        let place = |operation: &BlockOperation| at.operation(before + index, Some(operation.code));
        match (one.get(index), other.get(index)) {
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => {
                let [before, after] = [told(one), told(other)];
                // Equal pipelines may have other operations in them.
                if before != after {
                    found.push(format!("{}: {before} -> {after}", place(one)));
                }
                operations(found, place(one), one.inner(), other.inner());
            }
            (Some(one), None) => {
                found.push(format!("{}: {} removed", place(one), told(one)));
                operations(found, place(one), one.inner(), &[]);
            }
            (None, Some(other)) => {
                found.push(format!("{}: {} added", place(other), told(other)));
                operations(found, place(other), &[], other.inner());
            }
            (None, None) => {}
        }
    }
}

/// Tells an operation and all that belongs to it in one line, but for the operations of a pipeline.
fn told(operation: &BlockOperation) -> String {
    // Each field is named, so that none is forgotten.
    let BlockOperation {
        code,
        kind,
        channels,
        semaphores,
        barrier,
        sources,
        targets,
        operator,
        slice,
        pipeline,
    } = operation;
    let references = |list: &[Reference]| list.iter().map(reference).collect::<Vec<_>>().join(" ");
    let numbers = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let parts = [
        ("by", code.is_reduction().then(|| operator.to_string())),
        ("over", kind.map(|kind| kind.to_string())),
        ("channels", Some(numbers(channels))),
        ("semaphores", Some(numbers(semaphores))),
        ("of", Some(references(sources))),
        ("to", Some(references(targets))),
        ("part", slice.map(|(part, of)| format!("{part} of {of}"))),
        ("id", barrier.map(|(id, parties)| format!("{id} of {parties} blocks"))),
        ("in units of", pipeline.as_ref().map(|it| format!("{} bytes, {} chunks", it.unit, it.chunks))),
    ];
    let mut line = code.name().to_owned();
    for (name, value) in parts {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            line.push_str(&format!(" {name} {value}"));
        }
    }
    line
}
