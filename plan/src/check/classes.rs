//! Size classes: the sizes that one run stands for.
//!
//! Without pipelines the size changes nothing but the number of units. So one size stands for all
//! in which slices lie to each other in one order, and each order is tried (`slices`). With
//! pipelines a chunk may be smaller than a unit, take more iterations than counters have to give
//! (`iterated`), or be larger than scratch wraps in (`wrapped`). Units and wraps are scaled down
//! together, for speed. Sizes beyond the limits of a plan are left out, as far as iterations depend
//! on them. A class that some message of it is refused in has nothing to run (`refused`).

mod iterated;
mod refused;
mod wrapped;

use std::collections::BTreeSet;

use crate::lower::{Lowered, Scaled, Sizes, granule, lower_sized, message_of, slices, wrap_of};
use crate::plan::{
    Block, BlockOperation, Buffer, ChannelKind, ExecutionPlan, RankProgram, Reference, ReferencedBuffer,
};
use crate::problem::{Place, Problem};

use super::iterations::{PipelineShape, shape};
use super::report::{ClassReport, Finding};
use super::rule::{Rule, holds};
use super::{findings, slices as cut};
use iterated::{ChunkLimits, Iterated};
use wrapped::{overlapping, wrapped};

/// The most units of a chunk for which units and wraps keep their exact relation.
const MAX_UNITS: usize = 2048;

/// A size class.
#[derive(Debug)]
pub(super) struct SizeClass {
    /// What the class is.
    pub(super) about: String,
    /// The bytes of a chunk of the message that stands for the class, and of that message.
    pub(super) chunk: usize,
    pub(super) message: u64,
    /// The largest message that is too small for the class.
    pub(super) above: Option<u64>,
    /// The plan at a size that stands for the class; nothing where that message is refused.
    pub(super) lowered: Option<Lowered>,
    /// What it does not stand for, or why it is refused.
    pub(super) undecided: Vec<Finding>,
}

impl SizeClass {
    /// Makes the report of this class, in which nothing was found yet.
    pub(super) fn report(&self) -> ClassReport {
        let Self { chunk, message, above, .. } = *self;
        ClassReport { about: self.about.clone(), chunk, message, above, findings: Vec::new() }
    }

    fn new(plan: &ExecutionPlan, about: String, lowered: Lowered) -> Self {
        let chunk = lowered.real_chunk();
        let (message, lowered) = (message_of(plan, chunk), Some(lowered));
        Self { about, chunk, message, above: None, lowered, undecided: Vec::new() }
    }

    /// Says that its messages are longer than those with chunks of so many bytes.
    fn above(self, plan: &ExecutionPlan, chunk: usize) -> Self {
        Self { above: Some(message_of(plan, chunk)), ..self }
    }
}

/// Names the messages whose chunks have so many bytes.
fn messages(plan: &ExecutionPlan, range: &str, chunk: usize) -> String {
    format!("messages of {range}{} bytes", message_of(plan, chunk))
}

/// Returns the class of one message: just that size.
pub(super) fn of_message(plan: &ExecutionPlan, message: u64) -> Result<SizeClass, Vec<Problem>> {
    let lowered = crate::lower(plan, message)?;
    let about = format!("messages of {message} bytes");
    Ok(SizeClass { message, ..SizeClass::new(plan, about, lowered) })
}

/// Returns all classes that the limits of a plan allow. The first is that of the smallest messages.
pub(super) fn all(plan: &ExecutionPlan) -> Result<Vec<SizeClass>, Vec<Problem>> {
    if granule(plan).is_none() {
        let what = format!("no message of {} fits the counts of chunks; make them agree", plan.collective);
        return Err(vec![Problem::new(Place::PLAN, what)]);
    }
    let has_chunks = plan.ranks.iter().any(|rank| rank.input_chunks > 0 || rank.output_chunks > 0);
    let pipelines = Pipelines::of(plan);
    let unit = plan.alignment.saturating_mul(slices(plan));
    let smallest = if has_chunks { unit } else { 0 };
    let about = match (pipelines.units.iter().min(), has_chunks) {
        (_, false) => "a plan without input and output, whose chunks have no bytes".to_owned(),
        (None, _) => "messages of all sizes".to_owned(),
        (Some(&least), _) => messages(plan, "at most ", least),
    };
    let iterated = Iterated::of(plan, &pipelines).filter(|_| has_chunks);
    if let Some(classes) = iterated.as_ref().map_or(Ok(None), Iterated::each_size)? {
        return Ok(classes);
    }
    let first = match iterated.as_ref().map_or(Ok(None), Iterated::shortest)? {
        Some(class) => class,
        None => class(plan, about, smallest, None)?,
    };
    let mut classes = vec![first];
    if !has_chunks {
        return Ok(classes);
    }
    other_slices(plan, &pipelines, &mut classes)?;
    let most = ChunkLimits::of(plan).high;
    let wrap = plan.ranks.iter().map(|rank| wrap_of(plan, rank)).min().unwrap_or(usize::MAX);
    let least = pipelines.units.iter().copied().min().filter(|&least| least < most);
    if let Some((iterated, least)) = iterated.zip(least) {
        many_iterations(plan, &pipelines, &iterated, unit, least, &mut classes)?;
        if wrap < most {
            wrapped(plan, &pipelines, &iterated, unit, wrap, &mut classes)?;
        }
    }
    if let Some(at) = pipelines.scratch.filter(|_| wrap < most && holds(Rule::ChunksOverlap)) {
        classes.extend(overlapping(plan, &pipelines, unit, wrap, at));
    }
    Ok(classes)
}

/// Chunks whose slices lie to each other otherwise.
fn other_slices(
    plan: &ExecutionPlan,
    pipelines: &Pipelines,
    classes: &mut Vec<SizeClass>,
) -> Result<(), Vec<Problem>> {
    let lengths = cut::lengths(plan);
    // Beside pipelines a length does not stand for longer ones.
    let low = if pipelines.units.is_empty() { 0 } else { ChunkLimits::of(plan).low };
    let is_tried = |units: usize| plan.alignment * units >= low && holds(Rule::SlicesLieOtherwise);
    for units in lengths.others.iter().filter(|&&units| is_tried(units)) {
        let chunk = plan.alignment * units;
        let about = format!("{}, whose slices lie otherwise", messages(plan, "", chunk));
        classes.push(class(plan, about, chunk, None)?);
    }
    // In a pipeline, what is left out may lie otherwise in what each iteration covers.
    let are_short = lengths.others.iter().any(|units| plan.alignment * units < low);
    let are_iterated = pipelines.have_slices && (lengths.are_mixed || are_short);
    if !lengths.are_all || are_iterated {
        classes[0].undecided.push(findings::too_many_cuts());
    }
    Ok(())
}

/// The pipelines of a plan, and what it does outside of them.
#[derive(Default)]
struct Pipelines {
    /// Their units.
    units: BTreeSet<usize>,
    /// What decides their iterations.
    shapes: BTreeSet<PipelineShape>,
    /// Whether there are slices within them.
    have_slices: bool,
    /// An operation outside of them that names scratch which wraps.
    scratch: Option<Place>,
}

impl Pipelines {
    fn of(plan: &ExecutionPlan) -> Self {
        let mut pipelines = Self::default();
        for (rank, program) in plan.ranks.iter().enumerate() {
            for (index, block) in program.blocks.iter().enumerate() {
                let names_scratch =
                    |operation: &BlockOperation| names_scratch(plan, program, block, operation);
                crate::problem::each_operation(
                    &block.operations,
                    Place::block(rank, index),
                    &mut |operation, at| {
                        let is_inner = at.operation.is_some_and(|(_, inner)| inner.is_some());
                        pipelines.units.extend(operation.pipeline.as_ref().map(|pipeline| pipeline.unit));
                        pipelines.shapes.extend(operation.pipeline.as_ref().map(shape));
                        pipelines.have_slices |= is_inner && operation.slice.is_some_and(|(_, of)| of > 1);
                        if !is_inner && pipelines.scratch.is_none() && names_scratch(operation) {
                            pipelines.scratch = Some(at);
                        }
                    },
                );
            }
        }
        pipelines
    }
}

/// Returns whether an operation names scratch, of a plan that wraps it.
fn names_scratch(
    plan: &ExecutionPlan,
    program: &RankProgram,
    block: &Block,
    operation: &BlockOperation,
) -> bool {
    let kind = operation.kind.unwrap_or(ChannelKind::Memory);
    let buffer = |reference: &Reference| match reference.holder {
        ReferencedBuffer::Local(buffer) => buffer,
        ReferencedBuffer::Remote(id) => {
            program.remote_buffers[block.remote_buffers(kind)[id as usize] as usize].buffer
        }
        ReferencedBuffer::Switch(id) => {
            program.switch_groups[block.switch_groups[id as usize] as usize].buffer
        }
    };
    let mut all = operation.sources.iter().chain(&operation.targets);
    plan.reuse_resources && all.any(|reference| buffer(reference) == Buffer::Scratch)
}

fn class(
    plan: &ExecutionPlan,
    about: String,
    chunk: usize,
    scaled: Option<&Scaled>,
) -> Result<SizeClass, Vec<Problem>> {
    let sizes = Sizes::of_chunk(plan, chunk, scaled).map_err(|problem| vec![problem])?;
    Ok(SizeClass::new(plan, about, lower_sized(plan, &sizes)?))
}

/// Several iterations, before scratch wraps: of chunks, and of slices.
fn many_iterations(
    plan: &ExecutionPlan,
    pipelines: &Pipelines,
    iterated: &Iterated<'_>,
    unit: usize,
    least: usize,
    classes: &mut Vec<SizeClass>,
) -> Result<(), Vec<Problem>> {
    if holds(Rule::PipelinesRepeat) {
        iterated.several(least, classes)?;
    }
    if pipelines.have_slices && holds(Rule::SlicesRepeat) {
        let common = iterated.common;
        let largest = pipelines.units.iter().max().map_or(0, |most| most / common * unit);
        let scaled = Scaled { unit: (unit, common), wraps: vec![usize::MAX; plan.ranks.len()] };
        let several = largest.saturating_mul(iterated.late().saturating_add(3)).saturating_add(unit);
        let most = (iterated.limits.high / common).saturating_mul(unit).max(unit);
        let chunk = several.saturating_mul(slices(plan)).min(most);
        let about = format!("{}, whose slices have more than {least}", messages(plan, "more than ", least));
        classes.push(class(plan, about, chunk, Some(&scaled))?.above(plan, least));
        if pipelines.shapes.len() > 1 {
            classes[0].undecided.push(findings::many_units());
        }
    }
    Ok(())
}
