//! What differs between two plans.

use std::fmt::Display;

use crate::plan::{Block, Operation, Plan, RankProgram};
use crate::problem::Place;

/// The most differences that are listed.
const MAX_DIFFERENCES: usize = 1000;

/// Returns one line for each difference, from the plan as a whole to single operations.
#[must_use]
pub fn diff(one: &Plan, other: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    let at = Place::PLAN;
    field(&mut found, at, "name", &one.name, &other.name);
    field(&mut found, at, "collective", &one.collective, &other.collective);
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
    found.truncate(MAX_DIFFERENCES);
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
    let mut part = |name: &str, is_same: bool| {
        if !is_same {
            found.push(format!("{at}: {name} differ"));
        }
    };
    part("memory channels", one.memory_channels == other.memory_channels);
    part("port channels", one.port_channels == other.port_channels);
    part("switch channels", one.switch_groups == other.switch_groups);
    part("remote buffers", one.remote_buffers == other.remote_buffers);
    part("semaphores", one.semaphores == other.semaphores);
    field(found, at, "thread blocks", &one.blocks.len(), &other.blocks.len());
    for (block, (one, other)) in one.blocks.iter().zip(&other.blocks).enumerate() {
        blocks(found, Place::block(rank, block), one, other);
    }
}

fn blocks(found: &mut Vec<String>, at: Place, one: &Block, other: &Block) {
    let lists = |block: &Block| {
        let Block { memory_channels, port_channels, switch_groups, memory_buffers, port_buffers, .. } =
            block.clone();
        (memory_channels, port_channels, switch_groups, memory_buffers, port_buffers)
    };
    if lists(one) != lists(other) {
        found.push(format!("{at}: the channels or remote buffers that it uses differ"));
    }
    operations(found, at, &one.operations, &other.operations);
}

/// Compares two lists of operations by their longest common beginning and end: what is between was
/// changed, added or removed.
fn operations(found: &mut Vec<String>, at: Place, one: &[Operation], other: &[Operation]) {
    let before = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[before..], &other[before..]);
    let after = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[..one.len() - after], &other[..other.len() - after]);
    for index in 0..one.len().max(other.len()) {
        let place = |operation: &Operation| at.operation(before + index, Some(operation.code));
        match (one.get(index), other.get(index)) {
            (Some(one), Some(other)) if one.code == other.code && one.pipeline.is_some() => {
                operations(found, place(one), one.inner(), other.inner());
            }
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => {
                found.push(format!("{}: {} -> {}", place(one), told(one), told(other)))
            }
            (Some(one), None) => found.push(format!("{}: {} removed", place(one), told(one))),
            (None, Some(other)) => found.push(format!("{}: {} added", place(other), told(other))),
            (None, None) => {}
        }
    }
}

/// Tells an operation and its operands in one line.
fn told(operation: &Operation) -> String {
    let mut line = operation.code.name().to_owned();
    let mut add = |name: &str, list: String| {
        if !list.is_empty() {
            line.push_str(&format!(" {name} {list}"));
        }
    };
    let references = |list: &[crate::plan::Reference]| {
        list.iter().map(crate::show::reference).collect::<Vec<_>>().join(" ")
    };
    let numbers = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    add("channels", numbers(&operation.channels));
    add("semaphores", numbers(&operation.semaphores));
    add("of", references(&operation.sources));
    add("to", references(&operation.targets));
    if let Some((part, of)) = operation.slice {
        add("part", format!("{part} of {of}"));
    }
    if let Some((id, parties)) = operation.barrier {
        add("id", format!("{id} of {parties} blocks"));
    }
    line
}
