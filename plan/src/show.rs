//! A plan in words: who sends what to whom in which step.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::escape::escaped;
use crate::lower::{Lowered, granule};
use crate::plan::{Block, BlockOperation, ExecutionPlan, Reference, ReferencedBuffer};
use crate::problem::Place;
use crate::trace::{Movement, PayloadSpan, Ranks, Trace, trace};

/// The most transfers of a step that are told one by one.
const MAX_TOLD: usize = 64;

/// Summarises a plan as it runs at one size.
///
/// # Errors
/// A plan that moves more, at this size, than is followed.
pub fn show(plan: &ExecutionPlan, lowered: &Lowered) -> Result<String, String> {
    let mut text = header(plan, lowered);
    let trace = trace(lowered, plan.alignment)?;
    let steps = by_step(&trace);
    let movements = trace.events.iter().flat_map(|event| &event.movements);
    let local = movements.filter(|movement| movement.from.rank == movement.to.rank).count();
    for (step, pairs) in &steps {
        let bytes: usize = pairs.values().flatten().map(|movement| movement.to.bytes).sum();
        let _ = writeln!(text, "\nstep {step}: {} pairs of ranks, {bytes} bytes", pairs.len());
        for ((from, to), movements) in pairs.iter().take(MAX_TOLD) {
            let _ = writeln!(text, "  {from} -> {to}  {}", told(lowered, movements));
        }
        if pairs.len() > MAX_TOLD {
            let _ = writeln!(text, "  and {} more pairs", pairs.len() - MAX_TOLD);
        }
    }
    let _ = writeln!(text, "\n{local} copies and reductions within ranks");
    if trace.is_stuck {
        let _ = writeln!(text, "the plan does not end: `plan check` says why");
    }
    Ok(text)
}

/// What moves between ranks in one step, by the two ranks.
pub(crate) type Pairs = BTreeMap<(usize, usize), Vec<Movement>>;

/// Sorts what moves between ranks by step.
pub(crate) fn by_step(trace: &Trace) -> BTreeMap<usize, Pairs> {
    let mut steps: BTreeMap<usize, Pairs> = BTreeMap::new();
    for movement in trace.events.iter().flat_map(|event| &event.movements) {
        let (from, to) = (movement.from.rank, movement.to.rank);
        if from != to {
            steps.entry(movement.hop).or_default().entry((from, to)).or_default().push(*movement);
        }
    }
    steps
}

fn header(plan: &ExecutionPlan, lowered: &Lowered) -> String {
    let mut text = String::new();
    let blocks = plan.ranks.iter().map(|rank| rank.blocks.len()).max().unwrap_or(0);
    let rank = &plan.ranks[0];
    let place = if plan.in_place { "in place" } else { "out of place" };
    let (name, collective) = (escaped(&plan.name), escaped(&plan.collective));
    let _ = writeln!(text, "{name}: {collective} of {} ranks, {place}", plan.ranks.len());
    let _ = writeln!(
        text,
        "protocol {}, {blocks} blocks a rank, chunks: {} input, {} output, {} scratch",
        plan.protocol, rank.input_chunks, rank.output_chunks, rank.scratch_chunks
    );
    let most = match plan.max_message {
        u64::MAX => "on".to_owned(),
        most => format!("to {most}"),
    };
    let unit = granule(plan).map_or("none".to_owned(), |unit| unit.to_string());
    let _ = writeln!(text, "messages from {} bytes {most}, multiples of {unit}", plan.min_message);
    let _ = writeln!(text, "shown at {} bytes: chunks of {} bytes", lowered.message, lowered.chunk);
    let _ = writeln!(text, "operations: {}", counts(plan));
    text
}

/// Counts operations by name.
fn counts(plan: &ExecutionPlan) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut count =
        |operation: &BlockOperation, _: Place| *counts.entry(operation.code.name()).or_default() += 1;
    for block in plan.ranks.iter().flat_map(|rank| &rank.blocks) {
        crate::problem::each_operation(&block.operations, Place::PLAN, &mut count);
    }
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// Tells what moves between two ranks: ranges in chunks, and whose inputs they combine.
pub(crate) fn told(lowered: &Lowered, movements: &[Movement]) -> String {
    let mut parts = Vec::new();
    for movement in joined(movements) {
        let [from, to] = [movement.from, movement.to].map(|span| chunks(lowered, span));
        parts.push(format!("{from} to {to} ({})", inputs(movement.ranks)));
    }
    let more = parts.len().saturating_sub(6);
    parts.truncate(6);
    if more > 0 {
        parts.push(format!("{more} more ranges"));
    }
    parts.join(", ")
}

/// Joins movements that follow each other at both ends.
fn joined(movements: &[Movement]) -> Vec<Movement> {
    let mut sorted = movements.to_vec();
    sorted.sort_by_key(|movement| (movement.ranks, movement.from, movement.to));
    let mut joined: Vec<Movement> = Vec::new();
    for movement in sorted {
        match joined.last_mut() {
            Some(last) if follows(last, &movement) => {
                last.from.bytes += movement.from.bytes;
                last.to.bytes += movement.to.bytes;
            }
            _ => joined.push(movement),
        }
    }
    joined
}

fn follows(last: &Movement, next: &Movement) -> bool {
    let after = |one: PayloadSpan, other: PayloadSpan| {
        one.buffer == other.buffer && one.first + one.bytes == other.first
    };
    last.ranks == next.ranks && after(last.from, next.from) && after(last.to, next.to)
}

/// Names a range by its chunks, such as `i[0..2]`; a part of a chunk by its bytes.
pub(crate) fn chunks(lowered: &Lowered, span: PayloadSpan) -> String {
    let chunk = lowered.chunk.max(1);
    let (first, last) = (span.first, span.first + span.bytes);
    match (first % chunk, last % chunk) {
        (0, 0) if span.bytes == chunk => format!("{}[{}]", span.buffer, first / chunk),
        (0, 0) => format!("{}[{}..{}]", span.buffer, first / chunk, last / chunk),
        _ => format!("{} bytes {first}..{last}", span.buffer),
    }
}

/// Tells whose inputs bytes combine.
pub(crate) fn inputs(ranks: Ranks) -> String {
    let members: Vec<_> = ranks.iter().map(|rank| rank.to_string()).collect();
    match &members[..] {
        [] => "nothing yet".to_owned(),
        [rank] => format!("of {rank}"),
        members => format!("of {}", members.join("+")),
    }
}

/// Names a reference of an operation.
pub(crate) fn reference(of: &Reference) -> String {
    let range = match of.size {
        1 => format!("[{}]", of.index),
        size => format!("[{}..{}]", of.index, u64::from(of.index) + u64::from(size)),
    };
    match of.holder {
        ReferencedBuffer::Local(buffer) => format!("{buffer}{range}"),
        ReferencedBuffer::Remote(id) => format!("remote {id}{range}"),
        ReferencedBuffer::Switch(id) => format!("group {id}{range}"),
    }
}

/// Lists the operations of every block, a line each.
#[must_use]
pub fn listing(plan: &ExecutionPlan) -> String {
    let mut text = String::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        for (index, block) in program.blocks.iter().enumerate() {
            let _ = writeln!(text, "\nrank {rank} block {index}");
            lines(&mut text, plan, rank, block, &block.operations, "  ");
        }
    }
    text
}

fn lines(
    text: &mut String,
    plan: &ExecutionPlan,
    rank: usize,
    block: &Block,
    operations: &[BlockOperation],
    indent: &str,
) {
    for (index, operation) in operations.iter().enumerate() {
        let _ = writeln!(text, "{indent}{index} {}", line(plan, rank, block, operation));
        lines(text, plan, rank, block, operation.inner(), &format!("{indent}  "));
    }
}

/// Tells an operation with the ranks that it talks to.
pub(crate) fn line(plan: &ExecutionPlan, rank: usize, block: &Block, operation: &BlockOperation) -> String {
    let program = &plan.ranks[rank];
    let mut parts = vec![operation.code.name().to_owned()];
    let named = |of: &Reference| match (of.holder, operation.kind) {
        (ReferencedBuffer::Remote(id), Some(kind)) => {
            let remote = &program.remote_buffers[block.remote_buffers(kind)[id as usize] as usize];
            let local = Reference { holder: ReferencedBuffer::Local(remote.buffer), ..*of };
            format!("{} of rank {}", reference(&local), remote.rank)
        }
        _ => reference(of),
    };
    let list = |references: &[Reference]| references.iter().map(named).collect::<Vec<_>>().join(", ");
    if !operation.sources.is_empty() {
        parts.push(format!("{} -> {}", list(&operation.sources), list(&operation.targets)));
    }
    if let Some(kind) = operation.kind
        && !operation.channels.is_empty()
    {
        let peer = |&id: &u32| match kind {
            crate::plan::ChannelKind::Switch => format!("group {id}"),
            kind => format!("{}", program.channels(kind)[block.channels(kind)[id as usize] as usize]),
        };
        let peers: Vec<_> = operation.channels.iter().map(peer).collect();
        parts.push(format!("({kind} channels to {})", peers.join(", ")));
    }
    if !operation.semaphores.is_empty() {
        parts.push(format!("semaphores {:?}", operation.semaphores));
    }
    if let Some((part, of)) = operation.slice {
        parts.push(format!("part {part} of {of}"));
    }
    if let Some((id, parties)) = operation.barrier {
        parts.push(format!("{id} of {parties} blocks"));
    }
    if let Some(pipeline) = &operation.pipeline {
        parts.push(format!("units of {} bytes, {} chunks", pipeline.unit, pipeline.chunks));
    }
    parts.join(" ")
}
