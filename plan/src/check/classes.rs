//! Size classes: the sizes that one run stands for.
//!
//! Without pipelines the size changes nothing but the number of units. So one size stands for all
//! in which slices lie to each other in one order, and each order is tried (`slices`). With
//! pipelines a chunk may be smaller than a unit, take more iterations than counters have to give
//! (`iterated`), or be larger than scratch wraps in. Units and wraps are scaled down together, for
//! speed. Sizes beyond the limits of a plan are left out, as far as iterations depend on them.

mod iterated;

use std::collections::BTreeSet;

use crate::lower::{Lowered, Scaled, Sizes, gcd, granule, lower_sized, slices, wrap_of};
use crate::plan::{Block, Buffer, ChannelKind, Holder, Operation, Plan, RankProgram, Reference};
use crate::problem::{Place, Problem};

use super::iterations::{Shape, shape};
use super::report::Finding;
use super::rule::{Rule, holds};
use super::{findings, slices as cut};
use iterated::{Iterated, Limits};

/// The most units of a chunk for which units and wraps keep their exact relation.
const MAX_UNITS: usize = 2048;

/// The most ways in which units lie to each other that are tried in chunks that wrap.
const MAX_WAYS: usize = 32;

/// A size class.
#[derive(Debug)]
pub(super) struct Class {
    /// What the class is.
    pub(super) about: String,
    /// The plan at the size that stands for the class.
    pub(super) lowered: Lowered,
    /// What it does not stand for.
    pub(super) undecided: Vec<Finding>,
}

/// Returns the class of one message: just that size.
pub(super) fn of_message(plan: &Plan, message: u64) -> Result<Class, Vec<Problem>> {
    let lowered = crate::lower(plan, message)?;
    Ok(Class { about: format!("messages of {message} bytes"), lowered, undecided: Vec::new() })
}

/// Returns all classes that the limits of a plan allow. The first is that of the smallest messages.
pub(super) fn all(plan: &Plan) -> Result<Vec<Class>, Vec<Problem>> {
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
        (Some(least), _) => format!("chunks of at most {least} bytes"),
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
    let most = Limits::of(plan).high;
    let wrap = plan.ranks.iter().map(|rank| wrap_of(plan, rank)).min().unwrap_or(usize::MAX);
    let least = pipelines.units.iter().copied().min().filter(|&least| least < most);
    if let Some((iterated, least)) = iterated.zip(least) {
        many_iterations(plan, (&pipelines, &iterated), (unit, least), &mut classes)?;
        if wrap < most {
            wrapped(plan, (&pipelines, &iterated), (unit, wrap), &mut classes)?;
        }
    }
    if let Some(at) = pipelines.scratch.filter(|_| wrap < most && holds(Rule::ChunksOverlap)) {
        classes.extend(overlapping(plan, &pipelines, (unit, wrap), at));
    }
    Ok(classes)
}

/// Chunks whose slices lie to each other otherwise.
fn other_slices(plan: &Plan, pipelines: &Pipelines, classes: &mut Vec<Class>) -> Result<(), Vec<Problem>> {
    let lengths = cut::lengths(plan);
    // Beside pipelines a length does not stand for longer ones.
    let low = if pipelines.units.is_empty() { 0 } else { Limits::of(plan).low };
    let is_tried = |units: usize| plan.alignment * units >= low && holds(Rule::SlicesLieOtherwise);
    for units in lengths.others.iter().filter(|&&units| is_tried(units)) {
        let chunk = plan.alignment * units;
        let about = format!("chunks of {chunk} bytes, whose slices lie otherwise");
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
    shapes: BTreeSet<Shape>,
    /// Whether there are slices within them.
    have_slices: bool,
    /// An operation outside of them that names scratch which wraps.
    scratch: Option<Place>,
}

impl Pipelines {
    fn of(plan: &Plan) -> Self {
        let mut pipelines = Self::default();
        for (rank, program) in plan.ranks.iter().enumerate() {
            for (index, block) in program.blocks.iter().enumerate() {
                let names_scratch = |operation: &Operation| names_scratch(plan, program, block, operation);
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

/// Whether an operation names scratch, of a plan that wraps it.
fn names_scratch(plan: &Plan, program: &RankProgram, block: &Block, operation: &Operation) -> bool {
    let kind = operation.kind.unwrap_or(ChannelKind::Memory);
    let buffer = |reference: &Reference| match reference.holder {
        Holder::Local(buffer) => buffer,
        Holder::Remote(id) => program.remote_buffers[block.remote_buffers(kind)[id as usize] as usize].buffer,
        Holder::Switch(id) => program.switch_groups[block.switch_groups[id as usize] as usize].buffer,
    };
    let mut all = operation.sources.iter().chain(&operation.targets);
    plan.reuse_resources && all.any(|reference| buffer(reference) == Buffer::Scratch)
}

fn class(plan: &Plan, about: String, chunk: usize, scaled: Option<&Scaled>) -> Result<Class, Vec<Problem>> {
    let sizes = Sizes::of_chunk(plan, chunk, scaled).map_err(|problem| vec![problem])?;
    Ok(Class { about, lowered: lower_sized(plan, &sizes)?, undecided: Vec::new() })
}

/// Several iterations, before scratch wraps: of chunks, and of slices.
fn many_iterations(
    plan: &Plan,
    (pipelines, iterated): (&Pipelines, &Iterated<'_>),
    (unit, least): (usize, usize),
    classes: &mut Vec<Class>,
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
        let about = format!("slices of more than {least} bytes");
        classes.push(class(plan, about, chunk, Some(&scaled))?);
        if pipelines.shapes.len() > 1 {
            classes[0].undecided.push(findings::many_units());
        }
    }
    Ok(())
}

/// Chunks, and slices, that wrap twice.
fn wrapped(
    plan: &Plan,
    (pipelines, iterated): (&Pipelines, &Iterated<'_>),
    (unit, wrap): (usize, usize),
    classes: &mut Vec<Class>,
) -> Result<(), Vec<Problem>> {
    let wraps: Vec<_> = plan.ranks.iter().map(|rank| wrap_of(plan, rank)).collect();
    let finite = || wraps.iter().copied().filter(|&wrap| wrap < usize::MAX);
    let largest = pipelines.units.iter().copied().max().unwrap_or(1);
    let exact = finite().fold(iterated.common, gcd);
    let is_approximate = finite().max().unwrap_or(0) / exact > MAX_UNITS;
    let common = if is_approximate { iterated.common } else { exact };
    // One unit more than a whole number of them, where the wrap is no whole number of units.
    let scale = |bytes: usize| match bytes {
        usize::MAX => usize::MAX,
        bytes => (bytes / common).saturating_mul(unit * 2) + if bytes % common > 0 { unit } else { 0 },
    };
    let scaled = Scaled { unit: (2 * unit, common), wraps: wraps.iter().map(|&wrap| scale(wrap)).collect() };
    let most = finite().map(scale).max().unwrap_or(0);
    let chunk =
        scale(largest).saturating_mul(iterated.late().saturating_add(1)).saturating_add(2 * most + unit);
    let longest = scale(iterated.limits.high).max(unit);
    let about = format!("chunks of more than {wrap} bytes, which wrap in scratch");
    let mut undecided: Vec<_> = is_approximate.then(findings::approximate).into_iter().collect();
    // As in chunks that do not wrap, units that differ lie to each other in several ways.
    let ways = if pipelines.shapes.len() > 1 { iterated.period().saturating_mul(2) } else { 1 };
    undecided.extend((ways > MAX_WAYS).then(findings::many_units));
    for way in (0..ways.min(MAX_WAYS)).filter(|_| holds(Rule::ChunksWrap)) {
        let chunk = chunk.saturating_add(way.saturating_mul(unit)).min(longest);
        let class = class(plan, about.clone(), chunk, Some(&scaled))?;
        classes.push(Class { undecided: undecided.clone(), ..class });
    }
    if pipelines.have_slices && holds(Rule::SlicesWrap) {
        let chunk = chunk.saturating_mul(slices(plan)).min(longest);
        let about = format!("slices of more than {wrap} bytes, which wrap in scratch");
        match class(plan, about, chunk, Some(&scaled)) {
            Ok(class) => classes.push(Class { undecided, ..class }),
            Err(problems) => classes[0].undecided.extend(problems.first().map(findings::refused_later)),
        }
    }
    Ok(())
}

/// Chunks that are a little longer than scratch has room from one to the next. Where an operation
/// reaches beyond scratch then, longer ones are refused, too.
fn overlapping(plan: &Plan, pipelines: &Pipelines, (unit, wrap): (usize, usize), at: Place) -> Option<Class> {
    let common = pipelines.units.iter().copied().reduce(gcd);
    let largest = pipelines.units.iter().max().map_or(0, |most| most / common.unwrap_or(1) * unit);
    let least = 2 * largest.max(unit);
    let scale = |program| match wrap_of(plan, program) {
        usize::MAX => usize::MAX,
        bytes => bytes.div_ceil(wrap).saturating_mul(least),
    };
    let scaled = Scaled {
        unit: common.map_or((1, 1), |common| (unit, common)),
        wraps: plan.ranks.iter().map(scale).collect(),
    };
    let about = format!("chunks of more than {wrap} bytes, which overlap in scratch");
    let class = class(plan, about, least + plan.alignment, Some(&scaled)).ok()?;
    Some(Class { undecided: vec![findings::overlapping(at, wrap)], ..class })
}
