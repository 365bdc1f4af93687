//! Which lengths of chunks make slices lie otherwise to each other and to whole references.
//!
//! Part k of m of s chunks of u units begins at `k*s*u/m` units, but for a remainder that depends
//! on u modulo m and is at most m/4. Two such bounds are in one order for all u that are large
//! enough, and else in one that depends on u modulo the cuts. So a few u stand for all others.

use std::collections::BTreeSet;

use crate::collective::CollectiveKind;
use crate::lower::{chunks_of_message, gcd, slices};
use crate::plan::{BlockOperation, ExecutionPlan, Reference};
use crate::problem::Place;

/// The most bounds of slices that are computed, over all lengths.
const MAX_BOUNDS: usize = 1 << 20;
/// The most lengths of chunks that are checked beside the first.
const MAX_LENGTHS: usize = 64;

/// The lengths of chunks to check.
#[derive(Debug, Default)]
pub(super) struct ChunkLengths {
    /// In units, beside that which gives every slice one.
    pub(super) others: Vec<usize>,
    /// Whether they stand for all lengths.
    pub(super) are_all: bool,
    /// Whether it matters what is left over once every slice has data.
    pub(super) are_mixed: bool,
}

/// How a plan cuts its chunks.
struct Cuts {
    /// Chunks of a reference, and into how many slices it is cut.
    ways: BTreeSet<(usize, usize)>,
    /// Every reference covers a multiple of so many chunks, and begins at one.
    period: usize,
}

/// How bounds of slices lie: for each the period that it is in, and its rank within.
type Order = Vec<(usize, usize)>;

/// Finds the lengths of chunks that make slices lie in an order of their own.
pub(super) fn lengths(plan: &ExecutionPlan) -> ChunkLengths {
    let cuts = Cuts::of(plan);
    let bounds = cuts.ways.iter().fold(1, |bounds: usize, (_, of)| bounds.saturating_add(*of));
    if bounds > MAX_BOUNDS {
        return ChunkLengths::default();
    }
    let most_units = MAX_BOUNDS / bounds;
    let most = cuts.ways.iter().map(|&(_, of)| of).max().unwrap_or(1);
    let common =
        cuts.ways.iter().fold(1, |common: usize, &(_, of)| (common / gcd(common, of)).saturating_mul(of));
    let enough = common.saturating_mul(most) / 4;
    let last = enough.saturating_add(common);
    let mut seen = BTreeSet::from([cuts.order(slices(plan))]);
    let mut found = ChunkLengths { are_all: last <= most_units, ..ChunkLengths::default() };
    for units in 1..=last.min(most_units) {
        let step = if units > enough { Some(common) } else { None };
        if is_allowed(plan, units, step) && seen.insert(cuts.order(units)) {
            found.others.push(units);
        }
    }
    found.are_mixed = found.others.iter().any(|&units| units >= most);
    found.are_all &= found.others.len() <= MAX_LENGTHS;
    found.others.truncate(MAX_LENGTHS);
    found
}

/// Returns whether the limits of a plan allow chunks of so many units, or of some steps more.
fn is_allowed(plan: &ExecutionPlan, units: usize, step: Option<usize>) -> bool {
    let bytes = chunks_of_message(plan).saturating_mul(plan.alignment as u64);
    let least = plan.min_message.div_ceil(bytes);
    let missing = least.saturating_sub(units as u64);
    let more = match step {
        Some(step) => missing.next_multiple_of(step as u64),
        None if missing > 0 => return false,
        None => 0,
    };
    (units as u64).saturating_add(more).saturating_mul(bytes) <= plan.max_message
}

impl Cuts {
    fn of(plan: &ExecutionPlan) -> Self {
        let (mut ways, mut period) = (BTreeSet::new(), 0);
        let mut visit = |operation: &BlockOperation, _: Place| {
            let of = operation.slice.map_or(1, |(_, of)| of as usize);
            for &Reference { index, size, .. } in operation.sources.iter().chain(&operation.targets) {
                period = gcd(gcd(period, index as usize), size as usize);
                if of > 1 {
                    ways.insert((size as usize, of));
                }
            }
        };
        for rank in &plan.ranks {
            for block in &rank.blocks {
                crate::problem::each_operation(&block.operations, Place::PLAN, &mut visit);
            }
        }
        for rank in &plan.ranks {
            for chunks in [rank.input_chunks, rank.output_chunks].map(|chunks| chunks as usize) {
                period = gcd(period, chunks);
                if CollectiveKind::of(plan) == CollectiveKind::AllToAll && chunks > 0 {
                    ways.insert((chunks, plan.ranks.len()));
                }
            }
        }
        Self { ways, period: period.max(1) }
    }

    /// Returns how slices lie in chunks of so many units.
    fn order(&self, units: usize) -> Order {
        let period = self.period.saturating_mul(units);
        let bounds: Vec<_> = (self.ways.iter())
            .flat_map(|&(size, of)| {
                let units = size.saturating_mul(units);
                (0..=of).map(move |part| part * (units / of) + part.min(units % of))
            })
            .map(|bound| (bound / period, bound % period))
            .collect();
        let mut all: Vec<_> = bounds.iter().map(|&(_, within)| within).chain([0]).collect();
        all.sort_unstable();
        all.dedup();
        bounds
            .into_iter()
            .map(|(period, within)| (period, all.partition_point(|&less| less < within)))
            .collect()
    }
}
