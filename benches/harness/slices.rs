//! Slices: how a figure and its limit are compared on a machine that changes under the measurement.
//!
//! A test alternates with its limit in slices of about a millisecond. Before each slice a short
//! flag ping-pong probes how near the two cores are to each other. On virtual machines they can
//! turn from separate cores into hyper-threads of one and back. Slices are sorted into kinds by
//! their probe. Only what was measured in one slice, of the most frequent kind, is compared. The
//! ratio is the median over slices of (median of the test / median of the limit).

use crate::stats::{TimeHistogram, TimeSummary, median, quantile};

/// Two groups of probes are of different kinds when the median of one is this many times that of
/// the other.
pub const APART: f64 = 2.2;

/// Probes this many times slower than most were interrupted; they say nothing about the cores.
const INTERRUPTED: f64 = 20.0;

/// The probe of slices that are not probed: all alike.
pub const UNPROBED: f64 = 1.0;

/// Slower probes are a kind of their own from this share of the slices on.
const SUBSTANTIAL: f64 = 0.05;

/// How near the two cores were to each other in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// All slices were alike, so that nothing tells siblings from separate cores.
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
pub struct Slices {
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
pub struct Spread {
    /// The middle slice.
    pub median: f64,
    /// A tenth of the slices lie below.
    pub p10: f64,
    /// A tenth of the slices lie above.
    pub p90: f64,
}

/// A test compared with its limit over all slices.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceComparison {
    /// The most frequent kind of slices; everything below is taken from those.
    pub kind: SliceKind,
    /// The number of those slices.
    pub slices: usize,
    /// The number of all slices.
    pub of: usize,
    /// The share of all slices in which the cores were siblings.
    pub sibling_share: f64,
    /// The median probe, one way.
    pub probe_ns: f64,
    /// The test.
    pub test: TimeSummary,
    /// The medians of the test in those slices.
    pub p50_ns: Option<Spread>,
    /// The limit; `None` when none was measured.
    pub limit: Option<TimeSummary>,
    /// Time of the test over time of the limit in the same slice.
    pub ratio: Option<Spread>,
    /// CPU time of the thread under test for one operation, over slices; `None` when it was not
    /// measured.
    pub cpu_ns: Option<Spread>,
    /// Operations that one sample is the mean of.
    pub per_sample: u64,
}

impl Slices {
    /// Makes an empty set. A sample is the mean of `per_sample` operations.
    pub fn of_means(per_sample: u64) -> Self {
        Self { slices: Vec::new(), per_sample }
    }

    /// Adds a slice: what its probe took one way, and the times of single operations of the test
    /// and of its limit, in nanoseconds. A slice without samples of the test is left out; the limit
    /// may have none.
    pub fn push(&mut self, probe_ns: f64, samples: &[f64], limit: &[f64]) {
        self.push_charged(probe_ns, samples, limit, None);
    }

    /// Adds a slice like [`Slices::push`], but with the CPU time of one operation.
    pub fn push_charged(&mut self, probe_ns: f64, samples: &[f64], limit: &[f64], cpu_ns: Option<f64>) {
        if !samples.is_empty() {
            self.slices.push(Slice { probe_ns, samples: samples.to_vec(), limit: limit.to_vec(), cpu_ns });
        }
    }

    /// Sorts the slices by kind and compares like with like; `None` when there is no slice.
    pub fn compare(&self) -> Option<SliceComparison> {
        let kinds = classify(&self.slices.iter().map(|slice| slice.probe_ns).collect::<Vec<_>>());
        let kind = dominant(&kinds)?;
        let chosen: Vec<&Slice> = self
            .slices
            .iter()
            .zip(&kinds)
            .filter(|(_, found)| **found == kind)
            .map(|(slice, _)| slice)
            .collect();
        let spread = |of: fn(&Slice) -> Option<f64>| {
            Spread::of(&mut chosen.iter().filter_map(|slice| of(slice)).collect::<Vec<_>>())
        };
        let siblings = kinds.iter().filter(|found| **found == SliceKind::Siblings).count();
        Some(SliceComparison {
            kind,
            slices: chosen.len(),
            of: kinds.len(),
            sibling_share: share(siblings, kinds.len()),
            probe_ns: spread(|slice| Some(slice.probe_ns))?.median,
            p50_ns: spread(|slice| median(&mut slice.samples.clone())),
            test: pool(chosen.iter().map(|slice| slice.samples.as_slice()))?,
            limit: pool(chosen.iter().map(|slice| slice.limit.as_slice())),
            ratio: spread(Slice::ratio),
            per_sample: self.per_sample,
            cpu_ns: spread(|slice| slice.cpu_ns),
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
    /// Returns the spread of `values`, which it sorts; `None` of none.
    pub fn of(values: &mut [f64]) -> Option<Self> {
        Some(Self { median: median(values)?, p10: quantile(values, 0.1)?, p90: quantile(values, 0.9)? })
    }
}

fn pool<'a>(parts: impl Iterator<Item = &'a [f64]>) -> Option<TimeSummary> {
    let mut times = TimeHistogram::new();
    for ns in parts.flatten() {
        times.record(*ns);
    }
    times.summary()
}

/// Returns the kind with the most slices; of two with equally many, the first of the list below.
fn dominant(kinds: &[SliceKind]) -> Option<SliceKind> {
    let count = |kind: SliceKind| kinds.iter().filter(|found| **found == kind).count();
    [SliceKind::Disturbed, SliceKind::Siblings, SliceKind::Separate, SliceKind::Alike]
        .into_iter()
        .filter(|kind| count(*kind) > 0)
        .max_by_key(|kind| count(*kind))
}

/// Sorts probes into kinds.
///
/// Probes that are clearly quicker than most were between siblings: nothing else makes a ping-pong
/// quick. Clearly slower ones were interrupted, unless they are many and not absurdly slow. Then
/// most were between siblings.
fn classify(probes: &[f64]) -> Vec<SliceKind> {
    let mut groups = groups(probes);
    groups.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    let Some(most) = groups.iter().max_by_key(|group| group.members.len()).map(|group| group.middle) else {
        return Vec::new();
    };
    let is_quick = |group: &ProbeGroup| group.middle * APART <= most;
    let is_slow_kind = |group: &ProbeGroup| {
        group.middle >= most * APART
            && group.middle < most * INTERRUPTED
            && share(group.members.len(), probes.len()) >= SUBSTANTIAL
    };
    let any_quick = groups.iter().any(is_quick);
    let any_slow = !any_quick && groups.iter().any(is_slow_kind);
    let mut kinds = vec![SliceKind::Disturbed; probes.len()];
    for group in &groups {
        let kind = match () {
            () if is_quick(group) => SliceKind::Siblings,
            () if group.middle < most * APART && any_quick => SliceKind::Separate,
            () if group.middle < most * APART && any_slow => SliceKind::Siblings,
            () if group.middle < most * APART => SliceKind::Alike,
            () if any_slow && is_slow_kind(group) => SliceKind::Separate,
            () => SliceKind::Disturbed,
        };
        for member in &group.members {
            kinds[*member] = kind;
        }
    }
    kinds
}

struct ProbeGroup {
    members: Vec<usize>,
    middle: f64,
}

/// Splits the probes in two where the logarithms of both halves lie closest together, and each half
/// again, as long as the medians are far enough apart.
fn groups(probes: &[f64]) -> Vec<ProbeGroup> {
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
                found.push(ProbeGroup { middle: middle(&members), members });
            }
        } else {
            pending.extend([low.to_vec(), high.to_vec()]);
        }
    }
    found
}

/// Returns where to cut sorted values so that the variance between the two parts is largest (Otsu
/// 1979); 0 when there is no cut.
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
mod tests {
    use super::*;

    /// Slices with a constant probe, test and limit each.
    fn slices(parts: &[(usize, f64, f64, f64)]) -> Slices {
        let mut slices = Slices::of_means(1);
        for &(count, probe, test, limit) in parts {
            for step in 0..count {
                // A few per cent of noise, the same in every run.
                let noise = 1.0 + 0.01 * f64::from(u32::try_from(step % 7).unwrap());
                slices.push(probe * noise, &[test * noise; 20], &[limit * noise; 20]);
            }
        }
        slices
    }

    #[test]
    fn no_slice_has_no_verdict() {
        assert_eq!(Slices::of_means(1).compare(), None);
        let mut empty = Slices::of_means(1);
        empty.push(100.0, &[], &[1.0]);
        assert_eq!(empty.compare(), None);
    }

    #[test]
    fn slices_that_are_all_alike_stay_together() {
        let verdict = slices(&[(100, 130.0, 150.0, 130.0)]).compare().unwrap();
        assert_eq!(
            (verdict.kind, verdict.slices, verdict.of, verdict.sibling_share),
            (SliceKind::Alike, 100, 100, 0.0)
        );
        assert!((verdict.ratio.unwrap().median - 150.0 / 130.0).abs() < 1e-9);
        assert_eq!(verdict.test.count, 2000);
        let p50 = verdict.p50_ns.unwrap();
        assert!(p50.p10 < p50.median && p50.median < p50.p90, "{p50:?}");
    }

    #[test]
    fn like_is_compared_with_like_when_the_cores_turn_into_siblings() {
        // Pooled, the test would seem as quick as its limit.
        let verdict = slices(&[(60, 130.0, 156.0, 130.0), (40, 20.0, 60.0, 20.0)]).compare().unwrap();
        assert_eq!((verdict.kind, verdict.slices, verdict.of), (SliceKind::Separate, 60, 100));
        assert!((verdict.sibling_share - 0.4).abs() < 1e-9);
        assert!((verdict.ratio.unwrap().median - 1.2).abs() < 1e-9);
        assert!(verdict.test.min_ns > 150.0 && verdict.limit.unwrap().min_ns > 129.0);
    }

    #[test]
    fn a_run_that_was_mostly_on_siblings_is_judged_by_those() {
        let verdict = slices(&[(10, 130.0, 156.0, 130.0), (90, 20.0, 22.0, 20.0)]).compare().unwrap();
        assert_eq!((verdict.kind, verdict.slices), (SliceKind::Siblings, 90));
        assert!((verdict.ratio.unwrap().median - 1.1).abs() < 1e-9);
        assert!((verdict.sibling_share - 0.9).abs() < 1e-9);
    }

    #[test]
    fn a_few_quick_probes_are_siblings_and_a_few_slow_ones_an_interruption() {
        let verdict = slices(&[(97, 130.0, 150.0, 130.0), (2, 20.0, 25.0, 20.0), (1, 9000.0, 9000.0, 130.0)])
            .compare()
            .unwrap();
        assert_eq!((verdict.kind, verdict.slices), (SliceKind::Separate, 97));
        assert!((verdict.sibling_share - 0.02).abs() < 1e-9);
        let slow = slices(&[(98, 130.0, 150.0, 130.0), (2, 600.0, 700.0, 130.0)]).compare().unwrap();
        assert_eq!((slow.kind, slow.slices, slow.sibling_share), (SliceKind::Alike, 98, 0.0));
    }

    #[test]
    fn many_interrupted_probes_do_not_make_the_others_siblings() {
        let verdict = slices(&[(80, 130.0, 150.0, 130.0), (20, 50_000.0, 150.0, 130.0)]).compare().unwrap();
        assert_eq!((verdict.kind, verdict.slices, verdict.sibling_share), (SliceKind::Alike, 80, 0.0));
    }

    #[test]
    fn a_slow_drift_is_not_torn_apart() {
        let probes: Vec<f64> = (0..100).map(|step| 100.0 + f64::from(step)).collect();
        assert!(classify(&probes).iter().all(|kind| *kind == SliceKind::Alike));
    }

    #[test]
    fn slices_that_straddle_the_change_do_not_hide_it() {
        // Values in between close every gap, so that looking for a gap would find none.
        let mut probes = vec![20.0; 40];
        probes.extend((0..12).map(|step| 20.0 * 1.17_f64.powi(step)));
        probes.extend([130.0; 48]);
        let kinds = classify(&probes);
        assert_eq!((kinds[0], kinds[99]), (SliceKind::Siblings, SliceKind::Separate));
    }

    #[test]
    fn a_single_slice_is_its_own_verdict() {
        let verdict = slices(&[(1, 130.0, 150.0, 100.0)]).compare().unwrap();
        assert_eq!((verdict.kind, verdict.slices), (SliceKind::Alike, 1));
        assert_eq!(verdict.ratio.unwrap(), Spread { median: 1.5, p10: 1.5, p90: 1.5 });
    }

    #[test]
    fn cpu_time_is_of_the_kind_that_counts() {
        let mut slices = Slices::of_means(1);
        (0..60).for_each(|_| slices.push_charged(130.0, &[150.0], &[130.0], Some(40.0)));
        (0..40).for_each(|_| slices.push_charged(20.0, &[25.0], &[20.0], Some(9.0)));
        let cpu = slices.compare().unwrap().cpu_ns.unwrap();
        assert_eq!(cpu, Spread { median: 40.0, p10: 40.0, p90: 40.0 });
        slices.push(130.0, &[150.0], &[130.0]);
        assert_eq!(slices.compare().unwrap().cpu_ns, Some(cpu));
    }

    #[test]
    fn a_test_without_a_limit_has_no_ratio() {
        let mut slices = Slices::of_means(1);
        slices.push(130.0, &[5.0, 7.0, 6.0], &[]);
        let verdict = slices.compare().unwrap();
        assert_eq!((verdict.limit, verdict.ratio), (None, None));
        assert_eq!((verdict.test.min_ns, verdict.test.max_ns), (5.0, 7.0));
    }

    #[test]
    fn the_spread_tells_how_far_the_slices_lie_apart() {
        let mut slices = Slices::of_means(1);
        for step in 0..=10 {
            slices.push(130.0, &[100.0 + f64::from(step)], &[100.0]);
        }
        let ratio = slices.compare().unwrap().ratio.unwrap();
        assert!(
            (ratio.p10 - 1.01).abs() < 1e-9
                && (ratio.median - 1.05).abs() < 1e-9
                && (ratio.p90 - 1.09).abs() < 1e-9
        );
    }

    #[test]
    fn probes_of_zero_and_not_a_number_are_survived() {
        assert_eq!(classify(&[]), []);
        assert_eq!(classify(&[0.0, f64::NAN, 0.0, -1.0]).len(), 4);
        assert_eq!(classify(&[0.0; 5]).len(), 5);
    }
}
