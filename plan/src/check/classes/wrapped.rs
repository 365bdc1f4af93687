//! Chunks that are longer than what scratch wraps in.
//!
//! What is written in one lap is overwritten in the next, so many iterations later. A chain of
//! waits goes back by the sum of all lags at most ([`Iterations`](crate::check::iterations)). So a
//! lap of more iterations than that stands for all longer ones in which units lie to the wrap
//! alike.

use std::collections::BTreeSet;

use crate::check::findings;
use crate::check::report::Finding;
use crate::check::rule::{Rule, holds};
use crate::lower::{Scaled, gcd, slices, wrap_of};
use crate::plan::{ExecutionPlan, RankProgram};
use crate::problem::{Place, Problem};

use super::iterated::Iterated;
use super::refused::refused;
use super::{MAX_UNITS, Pipelines, SizeClass, class, messages};

/// The most ways in which units lie to each other that are tried in chunks that wrap.
const MAX_WAYS: usize = 32;

/// How units and wraps are scaled down.
struct Scale {
    /// What divides all units and, unless they are scaled roughly, all wraps.
    common: usize,
    /// The bytes that stand for `common`.
    unit: usize,
    /// Of laps that are shortened: the fewest divisors of one, and after how many more units lie to
    /// the wrap as before.
    shortened: Option<(usize, usize)>,
    is_rough: bool,
}

impl Scale {
    fn of(iterated: &Iterated<'_>, units: &BTreeSet<usize>, wraps: &[usize], unit: usize) -> Self {
        let exact = wraps.iter().copied().fold(iterated.common, gcd);
        let fits = wraps.iter().max().is_none_or(|most| most / exact <= MAX_UNITS);
        let largest = units.iter().max().map_or(1, |most| most / exact);
        let least = iterated.decisive().saturating_mul(largest);
        let lcm = |a: usize, b: usize| (a / gcd(a, b)).saturating_mul(b);
        let period = units.iter().map(|unit| unit / exact).fold(1, lcm);
        let is_short = least.saturating_add(period) <= MAX_UNITS;
        let is_rough = !fits && !is_short;
        Self {
            common: if is_rough { iterated.common } else { exact },
            unit: 2 * unit,
            shortened: (!fits && is_short).then_some((least, period)),
            is_rough,
        }
    }

    /// Returns what stands for so many bytes. One unit more than a whole number of them, where they
    /// are no whole number of divisors.
    fn len(&self, bytes: usize) -> usize {
        match bytes {
            usize::MAX => usize::MAX,
            bytes => {
                self.times(bytes / self.common) + if bytes % self.common > 0 { self.unit / 2 } else { 0 }
            }
        }
    }

    fn times(&self, divisors: usize) -> usize {
        divisors.saturating_mul(self.unit)
    }

    /// Returns what stands for a wrap.
    fn wrap(&self, bytes: usize) -> usize {
        let divisors = bytes / self.common;
        match self.shortened {
            Some((least, period)) if bytes < usize::MAX && divisors > least => {
                self.times(least + (divisors - least) % period)
            }
            _ => self.len(bytes),
        }
    }

    /// Returns what stands for the longest chunk, where laps have `lap` bytes.
    fn longest(&self, bytes: usize, lap: usize) -> usize {
        match self.shortened {
            Some(_) if bytes < usize::MAX => {
                let (laps, rest) = (bytes / lap, self.len(bytes % lap));
                laps.saturating_mul(self.wrap(lap)).saturating_add(rest.min(self.wrap(lap)))
            }
            _ => self.len(bytes),
        }
    }
}

/// Chunks, and slices, that wrap twice.
pub(super) fn wrapped(
    plan: &ExecutionPlan,
    pipelines: &Pipelines,
    iterated: &Iterated<'_>,
    unit: usize,
    wrap: usize,
    classes: &mut Vec<SizeClass>,
) -> Result<(), Vec<Problem>> {
    if let Some(class) = refused(plan, wrap, iterated.limits.high).filter(|_| holds(Rule::ChunksWrap)) {
        classes.push(class);
        return Ok(());
    }
    let wraps: Vec<_> = plan.ranks.iter().map(|rank| wrap_of(plan, rank)).collect();
    let finite: Vec<_> = wraps.iter().copied().filter(|&wrap| wrap < usize::MAX).collect();
    let scale = Scale::of(iterated, &pipelines.units, &finite, unit);
    let scaled = Scaled {
        unit: (scale.unit, scale.common),
        wraps: wraps.iter().map(|&wrap| scale.wrap(wrap)).collect(),
    };
    let most = finite.iter().map(|&wrap| scale.wrap(wrap)).max().unwrap_or(0);
    let largest = pipelines.units.iter().copied().max().unwrap_or(1);
    let chunk =
        scale.len(largest).saturating_mul(iterated.late().saturating_add(1)).saturating_add(2 * most + unit);
    let longest = scale.longest(iterated.limits.high, wrap).max(unit);
    let about = format!("{}, which wrap in scratch", messages(plan, "more than ", wrap));
    // As in chunks that do not wrap, units that differ lie to each other in several ways.
    let ways = if pipelines.shapes.len() > 1 { iterated.period().saturating_mul(2) } else { 1 };
    let mut undecided: Vec<Finding> = scale.is_rough.then(findings::approximate).into_iter().collect();
    undecided.extend((ways > MAX_WAYS).then(findings::many_units));
    for way in (0..ways.min(MAX_WAYS)).filter(|_| holds(Rule::ChunksWrap)) {
        let chunk = chunk.saturating_add(way.saturating_mul(unit)).min(longest);
        let class = class(plan, about.clone(), chunk, Some(&scaled))?.above(plan, wrap);
        classes.push(SizeClass { undecided: undecided.clone(), ..class });
    }
    if pipelines.have_slices && holds(Rule::SlicesWrap) {
        let chunk = chunk.saturating_mul(slices(plan)).min(longest);
        let about = format!("{about}, and whose slices do");
        match class(plan, about, chunk, Some(&scaled)) {
            Ok(class) => classes.push(SizeClass { undecided, ..class.above(plan, wrap) }),
            Err(problems) => classes[0].undecided.extend(problems.first().map(findings::refused_later)),
        }
    }
    Ok(())
}

/// Chunks that are a little longer than scratch has room from one to the next. Where an operation
/// reaches beyond scratch then, longer ones are refused, too.
pub(super) fn overlapping(
    plan: &ExecutionPlan,
    pipelines: &Pipelines,
    unit: usize,
    wrap: usize,
    at: Place,
) -> Option<SizeClass> {
    let common = pipelines.units.iter().copied().reduce(gcd);
    let largest = pipelines.units.iter().max().map_or(0, |most| most / common.unwrap_or(1) * unit);
    let least = 2 * largest.max(unit);
    let scale = |program: &RankProgram| match wrap_of(plan, program) {
        usize::MAX => usize::MAX,
        bytes => bytes.div_ceil(wrap).saturating_mul(least),
    };
    let scaled = Scaled {
        unit: common.map_or((1, 1), |common| (unit, common)),
        wraps: plan.ranks.iter().map(scale).collect(),
    };
    let about = format!("{}, whose chunks overlap in scratch", messages(plan, "more than ", wrap));
    let class = class(plan, about, least + plan.alignment, Some(&scaled)).ok()?;
    Some(SizeClass { undecided: vec![findings::overlapping(at, wrap)], ..class.above(plan, wrap) })
}
