//! Chunks of so many iterations that more would tell nothing new, within the limits of a plan.
//!
//! The units of pipelines have a common divisor, and lengths count in *parts* of it: halves, so
//! that a last iteration may be a partial one.

use std::collections::BTreeSet;

use crate::check::iterations::{Iterations, PipelineShape};
use crate::check::report::Finding;
use crate::check::rule::{Rule, holds};
use crate::check::{findings, too_large};
use crate::lower::{Scaled, chunks_of_message, gcd, message_of, slices, wrap_of};
use crate::plan::ExecutionPlan;
use crate::problem::Problem;

use super::{MAX_UNITS, Pipelines, SizeClass, class, messages};

/// Full iterations that are tried where counters hold nothing from outside.
const FEW: usize = 3;
/// The most sizes of a plan that are checked one by one.
const MAX_SIZES: usize = 16;
/// The most lengths that are tried where units differ, or where blocks begin late.
const MAX_LENGTHS: usize = 128;
/// A length at which pipelines of other units are many iterations apart, in parts.
const FAR: usize = 512;
/// The most units that sizes which are checked one by one read and write together.
const MAX_ACCESSES: usize = 1 << 16;

/// The bytes of the shortest and the longest chunk that the limits of a plan allow.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkLimits {
    pub(super) low: usize,
    pub(super) high: usize,
}

impl ChunkLimits {
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let chunks = chunks_of_message(plan);
        let bytes = |chunk: u64| usize::try_from(chunk).unwrap_or(usize::MAX);
        let low = bytes(plan.min_message.div_ceil(chunks)).max(1);
        let low = low.checked_next_multiple_of(plan.alignment).unwrap_or(usize::MAX);
        let high = bytes(plan.max_message / chunks) / plan.alignment * plan.alignment;
        if holds(Rule::LimitsHold) {
            Self { low, high }
        } else {
            Self { low: plan.alignment, high: usize::MAX }
        }
    }
}

/// A plan with pipelines, and what its counters make of them.
pub(super) struct Iterated<'a> {
    plan: &'a ExecutionPlan,
    pipelines: &'a Pipelines,
    pub(super) limits: ChunkLimits,
    iterations: Iterations,
    /// What divides all units.
    pub(super) common: usize,
    /// Into how many parts it is cut.
    parts: usize,
    /// The largest unit, in parts.
    largest: usize,
}

impl<'a> Iterated<'a> {
    /// Returns nothing where the plan has no pipelines.
    pub(super) fn of(plan: &'a ExecutionPlan, pipelines: &'a Pipelines) -> Option<Self> {
        let largest = *pipelines.units.iter().max()?;
        let common = pipelines.units.iter().copied().fold(0, gcd);
        // No unit is cut where it is as short as can be.
        let parts = if common > plan.alignment { 2 } else { 1 };
        let (limits, iterations) = (ChunkLimits::of(plan), Iterations::of(plan));
        Some(Self {
            plan,
            pipelines,
            limits,
            iterations,
            common,
            parts,
            largest: (largest / common).saturating_mul(parts),
        })
    }

    /// Returns a class for each size, where there are few.
    pub(super) fn each_size(&self) -> Result<Option<Vec<SizeClass>>, Vec<Problem>> {
        let ChunkLimits { low, high } = self.limits;
        if high.saturating_sub(low) / self.plan.alignment >= MAX_SIZES {
            return Ok(None);
        }
        let mut classes = Vec::new();
        for chunk in (low..=high).step_by(self.plan.alignment) {
            let Some(class) = self.exactly(chunk)? else { return Ok(None) };
            classes.push(class);
        }
        Ok(Some(classes))
    }

    /// Returns the class of the shortest chunks, where those have more than one iteration.
    pub(super) fn shortest(&self) -> Result<Option<SizeClass>, Vec<Problem>> {
        let is_longer = self.pipelines.units.iter().min().is_some_and(|&least| self.limits.low > least);
        if is_longer { self.exactly(self.limits.low) } else { Ok(None) }
    }

    /// Adds the classes of chunks that take several iterations. The first class is there.
    pub(super) fn several(&self, least: usize, classes: &mut Vec<SizeClass>) -> Result<(), Vec<Problem>> {
        let (lengths, undecided) = self.lengths();
        classes[0].undecided.extend(undecided);
        let few = FEW.saturating_mul(self.largest).saturating_add(1);
        let (allowed, excluded): (Vec<_>, Vec<_>) =
            lengths.iter().copied().partition(|&length| self.is_allowed(length));
        for length in allowed {
            let more = messages(self.plan, "more than ", least);
            let about = match length {
                length if length == few => more,
                length if length > few => {
                    format!("{more}, such as {}", message_of(self.plan, self.bytes(length)))
                }
                length => messages(self.plan, "about ", self.bytes(length)),
            };
            classes.push(self.scaled(about, length)?);
        }
        let ChunkLimits { low, high } = self.limits;
        if excluded.iter().any(|&length| self.bytes(length) > high) {
            self.limit(high, classes)?;
        }
        // What keeps step runs on as before.
        let is_beyond =
            excluded.len() == lengths.len() && lengths.iter().all(|&length| self.bytes(length) < low);
        if is_beyond
            && self.exactly(low)?.is_none()
            && let Some(&last) = lengths.last()
        {
            classes.push(self.scaled(messages(self.plan, "at least ", low), last)?);
        }
        Ok(())
    }

    /// Adds the class of a limit.
    fn limit(&self, chunk: usize, classes: &mut Vec<SizeClass>) -> Result<(), Vec<Problem>> {
        match self.exactly(chunk)? {
            Some(class) if classes.iter().all(|other| other.about != class.about) => classes.push(class),
            Some(_) => {}
            None => classes[0].undecided.push(findings::untried_limit(chunk)),
        }
        Ok(())
    }

    /// Returns how many iterations more than a few are needed, where blocks begin late, until these
    /// do what they go on doing.
    pub(super) fn late(&self) -> usize {
        if self.iterations.begin_late && holds(Rule::TakesBegin) { self.iterations.lag } else { 0 }
    }

    /// Returns how many iterations a lap in scratch has at least, so that longer ones tell no more.
    pub(super) fn decisive(&self) -> usize {
        self.iterations.lag.saturating_add(FEW + 1)
    }

    /// Returns after how many divisors of all units these lie to each other as before.
    pub(super) fn period(&self) -> usize {
        let units = self.pipelines.units.iter().map(|unit| unit / self.common);
        units.fold(1, |period: usize, unit| (period / gcd(period, unit)).saturating_mul(unit))
    }

    /// Returns the lengths to try, in parts, and what they do not stand for.
    fn lengths(&self) -> (BTreeSet<usize>, Vec<Finding>) {
        let Iterations { lag, begin_late, out_of_step } = self.iterations;
        let mut undecided = Vec::new();
        let lag = if holds(Rule::CreditsRunOut) { lag } else { 0 };
        let most = MAX_UNITS / self.largest.max(1);
        let iterations = FEW.saturating_add(lag).min(most.max(FEW));
        if iterations < FEW.saturating_add(lag) {
            undecided.push(findings::many_credits(lag));
        }
        let last = iterations.saturating_mul(self.largest).saturating_add(1);
        let mut lengths = BTreeSet::from([FEW.saturating_mul(self.largest).saturating_add(1), last]);
        if begin_late && holds(Rule::TakesBegin) {
            if iterations > MAX_LENGTHS {
                undecided.push(findings::many_credits(lag));
            }
            lengths.extend((1..=iterations.min(MAX_LENGTHS)).map(|times| times * self.largest));
        }
        if self.pipelines.shapes.len() > 1 && holds(Rule::UnitsDiffer) {
            let all = self.period().saturating_mul(self.parts).saturating_add(last);
            if all > MAX_LENGTHS {
                undecided.push(findings::many_units());
            }
            lengths.extend(1..=all.min(MAX_LENGTHS));
            // Where iterations drift apart, so far that no credit hides it.
            lengths.extend(out_of_step.map(|_| FAR.max(last)));
        }
        undecided.extend(out_of_step.filter(|_| holds(Rule::SidesKeepStep)).map(findings::out_of_step));
        (lengths, undecided)
    }

    /// Returns the bytes of the longest chunk that a length stands for.
    fn bytes(&self, length: usize) -> usize {
        length.saturating_mul(self.common) / self.parts
    }

    /// Returns whether some chunk that a length stands for is within the limits.
    fn is_allowed(&self, length: usize) -> bool {
        let shortest = self.bytes(length - 1).saturating_add(self.plan.alignment);
        self.bytes(length) >= self.limits.low && shortest <= self.limits.high
    }

    fn scaled(&self, about: String, length: usize) -> Result<SizeClass, Vec<Problem>> {
        let unit = self.plan.alignment.saturating_mul(slices(self.plan));
        let wraps = vec![usize::MAX; self.plan.ranks.len()];
        let scaled = Scaled { unit: (unit.saturating_mul(self.parts), self.common), wraps };
        class(self.plan, about, length.saturating_mul(unit), Some(&scaled))
    }

    /// Returns the class of chunks of so many bytes, where that many are few enough: as they are,
    /// or with chunks and units scaled down together.
    fn exactly(&self, chunk: usize) -> Result<Option<SizeClass>, Vec<Problem>> {
        let about = messages(self.plan, "", chunk);
        if let Ok(class) = class(self.plan, about.clone(), chunk, None)
            && let Some(lowered) = &class.lowered
            && lowered.accessed() / self.plan.alignment <= MAX_ACCESSES
            && too_large(self.plan, lowered).is_none()
        {
            return Ok(Some(class));
        }
        let wraps: Vec<_> = self.plan.ranks.iter().map(|rank| wrap_of(self.plan, rank)).collect();
        let finite = wraps.iter().copied().filter(|&wrap| wrap < chunk);
        let common = finite.clone().fold(gcd(self.common, chunk), gcd);
        let unit = self.plan.alignment.saturating_mul(slices(self.plan));
        if chunk / common <= MAX_UNITS {
            let scale = |wrap: usize| if wrap < chunk { wrap / common * unit } else { usize::MAX };
            let scaled =
                Scaled { unit: (unit, common), wraps: wraps.iter().map(|&wrap| scale(wrap)).collect() };
            return class(self.plan, about, chunk / common * unit, Some(&scaled)).map(Some);
        }
        if finite.count() > 0 {
            return Ok(None);
        }
        let length = chunk.div_ceil(self.common).saturating_mul(self.parts) - (self.parts - 1);
        let of = |(unit, chunks): PipelineShape, chunk: usize| chunk.saturating_mul(chunks).div_ceil(unit);
        let bytes = self.bytes(length);
        let runs_alike = self.pipelines.shapes.iter().all(|&shape| of(shape, chunk) == of(shape, bytes));
        if length > MAX_UNITS || !runs_alike || chunk.is_multiple_of(self.common) {
            return Ok(None);
        }
        self.scaled(about, length).map(Some)
    }
}
