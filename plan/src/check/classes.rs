//! Size classes: the sizes that one run stands for.
//!
//! Without pipelines the size changes nothing but the number of units. So one size stands for all
//! in which every slice has data, and others are tried where slices of different cuts meet. With
//! pipelines a chunk may be smaller than a unit, larger, or larger than scratch wraps in. Units and
//! wraps are scaled down together, for speed.

use std::collections::BTreeSet;

use crate::lower::{Lowered, Scaled, Sizes, chunks_of_message, gcd, lower_sized, slices, wrap_of};
use crate::plan::{Operation, Plan};
use crate::problem::{Place, Problem};

/// The most units of a chunk for which units and wraps keep their exact relation.
const MAX_UNITS: usize = 2048;

/// A size class.
#[derive(Debug)]
pub(super) struct Class {
    /// What the class is.
    pub(super) about: String,
    /// The plan at the size that stands for the class.
    pub(super) lowered: Lowered,
    /// Whether units and wraps are not in their exact relation.
    pub(super) is_approximate: bool,
}

/// Returns the class of one message: just that size.
pub(super) fn of_message(plan: &Plan, message: u64) -> Result<Class, Vec<Problem>> {
    let lowered = crate::lower(plan, message)?;
    Ok(Class { about: format!("messages of {message} bytes"), lowered, is_approximate: false })
}

/// Returns all classes that the limits of a plan allow. The first is that of the smallest messages.
pub(super) fn all(plan: &Plan) -> Result<Vec<Class>, Vec<Problem>> {
    let has_chunks = plan.ranks.iter().any(|rank| rank.input_chunks > 0 || rank.output_chunks > 0);
    let cuts = Cuts::of(plan);
    let unit = plan.alignment.saturating_mul(slices(plan));
    let smallest = if has_chunks { unit } else { 0 };
    let about = match (cuts.units.iter().min(), has_chunks) {
        (_, false) => "a plan without input and output, whose chunks have no bytes".to_owned(),
        (None, _) => "messages of all sizes".to_owned(),
        (Some(least), _) => format!("chunks of at most {least} bytes"),
    };
    let mut classes = vec![class(plan, about, smallest, None)?];
    let most = usize::try_from(plan.max_message / chunks_of_message(plan)).unwrap_or(usize::MAX);
    if cuts.are_mixed {
        for units in [slices(plan) + 1, 2 * slices(plan) + 1] {
            let chunk = plan.alignment * units;
            if chunk <= most {
                classes.push(class(
                    plan,
                    format!("slices of unequal length, chunks of {chunk} bytes"),
                    chunk,
                    None,
                )?);
            }
        }
    }
    if let Some(&least) = cuts.units.iter().min().filter(|&&least| least < most) {
        classes.push(many_iterations(plan, &cuts, unit, least)?);
        let wrap = plan.ranks.iter().map(|rank| wrap_of(plan, rank)).min().unwrap_or(usize::MAX);
        if wrap < most {
            classes.push(wrapped(plan, &cuts, unit, wrap)?);
        }
    }
    Ok(classes)
}

/// How a plan cuts chunks.
struct Cuts {
    /// The units of its pipelines.
    units: BTreeSet<usize>,
    /// Whether chunks are cut into slices in several ways.
    are_mixed: bool,
}

impl Cuts {
    fn of(plan: &Plan) -> Self {
        let (mut units, mut ways) = (BTreeSet::new(), BTreeSet::new());
        let mut visit = |operation: &Operation, _: Place| {
            units.extend(operation.pipeline.as_ref().map(|pipeline| pipeline.unit));
            let size = operation.sources.first().map(|source| source.size);
            ways.extend(operation.slice.filter(|&(_, of)| of > 1).map(|(_, of)| (of, size)));
        };
        for block in plan.ranks.iter().flat_map(|rank| &rank.blocks) {
            crate::rules::each_operation(&block.operations, Place::PLAN, &mut visit);
        }
        Self { units, are_mixed: ways.len() > 1 }
    }
}

fn class(plan: &Plan, about: String, chunk: usize, scaled: Option<&Scaled>) -> Result<Class, Vec<Problem>> {
    let sizes = Sizes::of_chunk(plan, chunk, scaled).map_err(|problem| vec![problem])?;
    Ok(Class { about, lowered: lower_sized(plan, &sizes)?, is_approximate: false })
}

/// Three full iterations and a partial one, before scratch wraps.
fn many_iterations(plan: &Plan, cuts: &Cuts, unit: usize, least: usize) -> Result<Class, Vec<Problem>> {
    let common = cuts.units.iter().copied().fold(0, gcd);
    let largest = cuts.units.iter().max().map_or(0, |most| most / common * unit);
    let scaled = Scaled { unit: (unit, common), wraps: vec![usize::MAX; plan.ranks.len()] };
    class(plan, format!("chunks of more than {least} bytes"), 3 * largest + unit, Some(&scaled))
}

/// Chunks that wrap twice.
fn wrapped(plan: &Plan, cuts: &Cuts, unit: usize, wrap: usize) -> Result<Class, Vec<Problem>> {
    let wraps: Vec<_> = plan.ranks.iter().map(|rank| wrap_of(plan, rank)).collect();
    let finite = || wraps.iter().copied().filter(|&wrap| wrap < usize::MAX);
    let largest = cuts.units.iter().copied().max().unwrap_or(1);
    let exact = cuts.units.iter().copied().chain(finite()).fold(0, gcd);
    let is_approximate = finite().max().unwrap_or(0) / exact > MAX_UNITS;
    let common = if is_approximate { cuts.units.iter().copied().fold(0, gcd) } else { exact };
    // One unit more than a whole number of them, where the wrap is no whole number of units.
    let scale = |bytes: usize| match bytes {
        usize::MAX => usize::MAX,
        bytes => bytes / common * unit * 2 + if bytes % common > 0 { unit } else { 0 },
    };
    let scaled = Scaled { unit: (2 * unit, common), wraps: wraps.iter().map(|&wrap| scale(wrap)).collect() };
    let most = finite().map(scale).max().unwrap_or(0);
    let chunk = 2 * most + scale(largest) + unit;
    let about = format!("chunks of more than {wrap} bytes, which wrap in scratch");
    Ok(Class { is_approximate, ..class(plan, about, chunk, Some(&scaled))? })
}
