//! Slices: how a figure and its limit are compared on a machine that changes under the measurement.
//!
//! A test alternates with its limit in slices of about a millisecond. Before each slice a short raw flag ping-pong probes what
//! the two cores are at that moment: on virtual machines they can turn from separate cores into hyper-threads of one and back.
//! Slices are then sorted into kinds by their probe, and only what was measured in the same slice, in the kind that most slices
//! belong to, is compared. The ratio is the median over slices of (median of the test / median of the limit).

use super::stats::{Summary, Times, median, quantile};

/// Two groups of probes are of different kinds when the median of one is this many times that of the other.
pub(crate) const APART: f64 = 2.2;

/// Probes this many times slower than most were interrupted; they say nothing about the cores.
const INTERRUPTED: f64 = 20.0;

/// The probe of slices that nobody probes: they are all alike.
pub(crate) const UNPROBED: f64 = 1.0;

/// Slower probes are a kind of their own only from this share of the slices on.
const SUBSTANTIAL: f64 = 0.05;

/// What the two cores were while a slice was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All slices were alike, so that nothing tells which of the two it was.
    Alike,
    /// Separate cores.
    Separate,
    /// Hyper-threads of one core.
    Siblings,
    /// The probe was interrupted.
    Disturbed,
}

/// All slices of one test at one size.
#[derive(Clone, Debug)]
pub(crate) struct Slices {
    slices: Vec<Slice>,
    per_sample: u64,
}

#[derive(Clone, Debug)]
struct Slice {
    probe_ns: f64,
    samples: Vec<f64>,
    limit: Vec<f64>,
    cpu_ns: Option<f64>,
}

/// A median over slices, and how far the slices lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The middle slice.
    pub(crate) median: f64,
    /// A tenth of the slices lie below.
    pub(crate) p10: f64,
    /// A tenth of the slices lie above.
    pub(crate) p90: f64,
}

/// What the slices say together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    /// What the cores were in most slices; everything below is taken from those.
    pub(crate) kind: Kind,
    /// How many slices those are.
    pub(crate) slices: usize,
    /// How many slices there were in all.
    pub(crate) of: usize,
    /// The share of all slices in which the cores were siblings.
    pub(crate) sibling_share: f64,
    /// The median probe, one way.
    pub(crate) probe_ns: f64,
    /// The test.
    pub(crate) test: Summary,
    /// The median of all its samples, whatever the cores were: what others tell who do not look at that.
    pub(crate) p50_all_ns: f64,
    /// The limit; `None` when none was measured.
    pub(crate) limit: Option<Summary>,
    /// Time of the test over time of the limit in the same slice.
    pub(crate) ratio: Option<Spread>,
    /// CPU time of the thread under test for one operation, over slices; `None` when it was not measured.
    pub(crate) cpu_ns: Option<Spread>,
    /// Operations that one sample is the mean of.
    pub(crate) per_sample: u64,
}

impl Slices {
    /// No slices yet; each operation is a sample.
    pub(crate) fn new() -> Self {
        Self::of_means(1)
    }

    /// No slices yet; a sample is the mean of so many operations.
    pub(crate) fn of_means(per_sample: u64) -> Self {
        Self { slices: Vec::new(), per_sample }
    }

    /// Adds a slice: what its probe took one way, and the times of single operations of the test and of its limit, in
    /// nanoseconds. A slice without samples of the test is left out; the limit may have none.
    pub(crate) fn push(&mut self, probe_ns: f64, samples: &[f64], limit: &[f64]) {
        self.push_charged(probe_ns, samples, limit, None);
    }

    /// The same, with the CPU time of one operation.
    pub(crate) fn push_charged(
        &mut self,
        probe_ns: f64,
        samples: &[f64],
        limit: &[f64],
        cpu_ns: Option<f64>,
    ) {
        if !samples.is_empty() {
            self.slices.push(Slice { probe_ns, samples: samples.to_vec(), limit: limit.to_vec(), cpu_ns });
        }
    }

    /// Sorts the slices by kind and compares like with like; `None` when there is no slice.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let kinds = classify(&self.slices.iter().map(|slice| slice.probe_ns).collect::<Vec<_>>());
        let kind = dominant(&kinds)?;
        let chosen: Vec<&Slice> = self
            .slices
            .iter()
            .zip(&kinds)
            .filter(|(_, found)| **found == kind)
            .map(|(slice, _)| slice)
            .collect();
        let siblings = kinds.iter().filter(|found| **found == Kind::Siblings).count();
        Some(Verdict {
            kind,
            slices: chosen.len(),
            of: kinds.len(),
            sibling_share: share(siblings, kinds.len()),
            probe_ns: median(&mut chosen.iter().map(|slice| slice.probe_ns).collect::<Vec<_>>())?,
            p50_all_ns: pool(self.slices.iter().map(|slice| slice.samples.as_slice()))?.p50_ns,
            test: pool(chosen.iter().map(|slice| slice.samples.as_slice()))?,
            limit: pool(chosen.iter().map(|slice| slice.limit.as_slice())),
            ratio: Spread::of(&mut chosen.iter().filter_map(|slice| slice.ratio()).collect::<Vec<_>>()),
            per_sample: self.per_sample,
            cpu_ns: Spread::of(&mut chosen.iter().filter_map(|slice| slice.cpu_ns).collect::<Vec<_>>()),
        })
    }
}

impl Slice {
    fn ratio(&self) -> Option<f64> {
        let limit = median(&mut self.limit.clone())?;
        let test = median(&mut self.samples.clone())?;
        (limit > 0.0).then(|| test / limit)
    }
}

impl Spread {
    /// The spread of `values`, which it sorts; `None` of none.
    pub(crate) fn of(values: &mut [f64]) -> Option<Self> {
        Some(Self { median: median(values)?, p10: quantile(values, 0.1)?, p90: quantile(values, 0.9)? })
    }
}

fn pool<'a>(parts: impl Iterator<Item = &'a [f64]>) -> Option<Summary> {
    let mut times = Times::new();
    for ns in parts.flatten() {
        times.record(*ns);
    }
    times.summary()
}

/// The kind with the most slices; of two with equally many, the one that came first.
fn dominant(kinds: &[Kind]) -> Option<Kind> {
    let count = |kind: Kind| kinds.iter().filter(|found| **found == kind).count();
    [Kind::Disturbed, Kind::Siblings, Kind::Separate, Kind::Alike]
        .into_iter()
        .filter(|kind| count(*kind) > 0)
        .max_by_key(|kind| count(*kind))
}

/// Sorts probes into kinds.
///
/// Whatever is clearly quicker than most was taken between siblings: nothing else makes a ping-pong quick. What is clearly slower
/// than most was interrupted, unless there is enough of it and it is not absurdly slow: then most were siblings.
fn classify(probes: &[f64]) -> Vec<Kind> {
    let mut groups = groups(probes);
    groups.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    let Some(most) = groups.iter().max_by_key(|group| group.members.len()).map(|group| group.middle) else {
        return Vec::new();
    };
    let is_quick = |group: &Group| group.middle * APART <= most;
    let is_slow_kind = |group: &Group| {
        group.middle >= most * APART
            && group.middle < most * INTERRUPTED
            && share(group.members.len(), probes.len()) >= SUBSTANTIAL
    };
    let any_quick = groups.iter().any(is_quick);
    let any_slow = !any_quick && groups.iter().any(is_slow_kind);
    let mut kinds = vec![Kind::Disturbed; probes.len()];
    for group in &groups {
        let kind = match () {
            () if is_quick(group) => Kind::Siblings,
            () if group.middle < most * APART && any_quick => Kind::Separate,
            () if group.middle < most * APART && any_slow => Kind::Siblings,
            () if group.middle < most * APART => Kind::Alike,
            () if any_slow && is_slow_kind(group) => Kind::Separate,
            () => Kind::Disturbed,
        };
        for member in &group.members {
            kinds[*member] = kind;
        }
    }
    kinds
}

struct Group {
    members: Vec<usize>,
    middle: f64,
}

/// Splits the probes in two where the logarithms of both halves lie closest together, and each half again, as long as the halves'
/// medians are far enough apart.
fn groups(probes: &[f64]) -> Vec<Group> {
    let mut order: Vec<usize> = (0..probes.len()).collect();
    order.sort_by(|a, b| probes[*a].total_cmp(&probes[*b]));
    let mut found = Vec::new();
    let mut pending = vec![order];
    while let Some(members) = pending.pop() {
        let middle = |part: &[usize]| part.get(part.len() / 2).map_or(0.0, |index| probes[*index]);
        let cut = best_cut(&members.iter().map(|index| probes[*index].max(1e-3).ln()).collect::<Vec<_>>());
        let (low, high) = members.split_at(cut);
        if low.is_empty() || high.is_empty() || middle(high) < middle(low) * APART {
            if !members.is_empty() {
                found.push(Group { middle: middle(&members), members });
            }
        } else {
            pending.extend([low.to_vec(), high.to_vec()]);
        }
    }
    found
}

/// Where to cut sorted values so that the variance between the two parts is largest (Otsu 1979); 0 when there is no cut.
fn best_cut(sorted: &[f64]) -> usize {
    let total: f64 = sorted.iter().sum();
    let mut below = 0.0;
    let mut best = (0, 0.0);
    for (cut, value) in sorted.iter().enumerate().skip(1).map(|(cut, _)| (cut, sorted[cut - 1])) {
        below += value;
        let (low, high) = (share(cut, sorted.len()), share(sorted.len() - cut, sorted.len()));
        let scale = share(1, sorted.len());
        let distance = below * scale / low - (total - below) * scale / high;
        let between = low * high * distance * distance;
        if between > best.1 {
            best = (cut, between);
        }
    }
    best.0
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests;
