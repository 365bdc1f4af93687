//! What the numbers mean, in plain English: what the proxy costs, what it buys, and from which size on it is worth it.

use super::crossing::{Cost, Crossing, LEVEL};
use super::report::{CompareReport, Point, Side};
use crate::flags::ProxyPlace;
use crate::units::{format_about, format_ns, format_size, percent, three_digits};

/// Sizes below this number show no trend.
const FEWEST_SIZES: usize = 3;

/// Timings below this number show no median.
pub(super) const FEWEST_SAMPLES: u64 = 5;

/// Sizes that are less than this apart are one.
const TELLING: f64 = 1.25;

/// Sizes, in words.
pub(crate) fn between(first: u64, last: u64) -> String {
    if first == last {
        format!("(at {})", format_size(first))
    } else {
        format!("(from {} to {})", format_size(first), format_size(last))
    }
}

/// Where proxied is ahead of direct.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    /// In CPU time of the device thread; `None` when that was not measured.
    pub(crate) device_time: Option<Crossing>,
    /// Between which sizes that crossover lies, where slices differ enough to tell.
    pub(crate) range: Option<(f64, f64)>,
    /// In latency.
    pub(crate) latency: Crossing,
    /// Where proxied latency is level with direct, or better.
    pub(crate) level: Crossing,
    /// In bandwidth.
    pub(crate) bandwidth: Crossing,
    /// Why nothing can be concluded from all this, if nothing can.
    pub(crate) too_few: Option<String>,
}

impl Verdict {
    /// The verdict on a report.
    pub(crate) fn of(report: &CompareReport) -> Self {
        let costs = |cost: fn(&Side) -> Option<f64>| -> Option<Vec<Cost>> {
            let pair = |point: &Point| {
                Some(Cost {
                    bytes: point.bytes,
                    holder: cost(&point.direct)?,
                    challenger: cost(&point.proxied)?,
                })
            };
            report.points.iter().map(pair).collect()
        };
        if let Some(reason) = too_few(report) {
            return Self::of_too_few(reason);
        }
        let latency = costs(|side| Some(side.p50_ns)).unwrap_or_default();
        let per_byte = costs(|side| Some(1.0 / side.gb_per_s.max(1e-9))).unwrap_or_default();
        let device_time = costs(|side| side.device_cpu_ns).map(|costs| Crossing::below(&costs, 1.0 - LEVEL));
        Self {
            device_time,
            range: device_time.and_then(Crossing::mark).and_then(|mark| range(report, mark)),
            latency: Crossing::below(&latency, 1.0 - LEVEL),
            level: Crossing::below(&latency, 1.0 + LEVEL),
            bandwidth: Crossing::below(&per_byte, 1.0 - LEVEL),
            too_few: None,
        }
    }

    /// Nothing crosses where nothing can be concluded.
    fn of_too_few(reason: String) -> Self {
        let never = Crossing::Never;
        Self {
            device_time: None,
            range: None,
            latency: never,
            level: never,
            bandwidth: never,
            too_few: Some(reason),
        }
    }

    /// The crossover to mark: that of device time, which is what a proxy is for, or that of latency when device time is unknown.
    pub(crate) fn crossover(&self) -> Crossing {
        self.device_time.unwrap_or(self.latency)
    }

    /// What it means, one sentence or two for each of: crossover, latency, device time, overlap.
    pub(crate) fn sentences(&self, report: &CompareReport) -> Vec<String> {
        let (Some(first), Some(last)) = (report.points.first(), report.points.last()) else {
            return vec!["Nothing was measured.".to_owned()];
        };
        if let Some(reason) = &self.too_few {
            return vec![reason.clone()];
        }
        let mut sentences = vec![self.crossover_sentence(report, first)];
        sentences.push(self.latency_sentence(first, last));
        sentences.extend(self.device_sentence(first, last));
        sentences.extend(overlap_sentence(report));
        sentences
    }

    fn crossover_sentence(&self, report: &CompareReport, first: &Point) -> String {
        let what =
            if self.device_time.is_some() { "costs the device thread less time" } else { "is quicker" };
        let who = match (hides(report), oversubscribed(report)) {
            (true, _) => {
                "a device with other work to do is better off with the proxy, one that only waits is not"
            }
            (false, true) => {
                "a device with other work to do would be better off with the proxy if the proxy had a core of its own, which it has not here"
            }
            (false, false) => {
                "the proxy frees the device thread, but little of the transfer hid behind computation in this run"
            }
        };
        match self.crossover() {
            Crossing::Between { estimate, .. } => {
                let range = self.range.map(|(low, high)| (format_about(low), format_about(high)));
                let range = range.filter(|(low, high)| low != high);
                let spread = range.map_or_else(String::new, |(low, high)| {
                    format!(" (between {low} and {high} in most slices)")
                });
                format!(
                    "Crossover at about {}{spread}: below it put directly; above it a proxied put {what} than a direct one, and {who}.",
                    format_about(estimate)
                )
            }
            Crossing::Always => format!(
                "No crossover: from {} on, the smallest size measured, a proxied put {what} than a direct one, and {who}.",
                format_size(first.bytes)
            ),
            Crossing::Passing { first_ahead, last_ahead } => format!(
                "No crossover: a proxied put {what} than a direct one at some sizes {}, but not at the largest measured; put directly on this machine, or measure again.",
                between(first_ahead, last_ahead)
            ),
            Crossing::Never => format!(
                "No crossover: at no size up to the largest measured a proxied put {what} than a direct one; put directly on this machine."
            ),
        }
    }

    fn latency_sentence(&self, first: &Point, last: &Point) -> String {
        let times = first.proxied.p50_ns / first.direct.p50_ns.max(1e-3);
        let cost = match first.proxied.p50_ns - first.direct.p50_ns {
            added if added > 0.0 => format!(
                "the proxy adds {} at {} ({} x direct)",
                format_ns(added),
                format_size(first.bytes),
                three_digits(times)
            ),
            _ => format!("the proxy adds nothing at {}", format_size(first.bytes)),
        };
        let rest = match (self.latency, self.level) {
            (Crossing::Always, _) => "a proxied put is quicker at every size".to_owned(),
            (Crossing::Between { first_ahead, .. }, _) => {
                format!("from {} on a proxied put is quicker", format_size(first_ahead))
            }
            (Crossing::Passing { first_ahead, last_ahead }, _) => format!(
                "a proxied put is quicker at some sizes {}, but not at the largest ({} x direct)",
                between(first_ahead, last_ahead),
                three_digits(last.proxied.p50_ns / last.direct.p50_ns.max(1e-3))
            ),
            (Crossing::Never, Crossing::Always) => "the two are level at every size".to_owned(),
            (Crossing::Never, Crossing::Between { first_ahead, .. }) => {
                format!("from {} on the two are level (within {})", format_size(first_ahead), percent(LEVEL))
            }
            (Crossing::Never, Crossing::Passing { first_ahead, last_ahead }) => {
                format!(
                    "the two are level at some sizes {}, and direct is ahead at the others",
                    between(first_ahead, last_ahead)
                )
            }
            (Crossing::Never, Crossing::Never) => format!(
                "direct stays ahead up to {} ({} x)",
                format_size(last.bytes),
                three_digits(last.proxied.p50_ns / last.direct.p50_ns.max(1e-3))
            ),
        };
        format!("Latency: {cost}; {rest}.")
    }

    fn device_sentence(&self, first: &Point, last: &Point) -> Option<String> {
        let pair = |point: &Point| Some((point.direct.device_cpu_ns?, point.proxied.device_cpu_ns?));
        let told = |point: &Point| {
            let (direct, proxied) = pair(point)?;
            Some(format!(
                "{} against {} at {}",
                format_ns(proxied),
                format_ns(direct),
                format_size(point.bytes)
            ))
        };
        Some(format!("Device time, proxied against direct: {}, {}.", told(first)?, told(last)?))
    }
}

/// Between which sizes the crossover of device time lies that was found at `mark`: where lines cross that a tenth of the slices
/// lie below for one side, and above for the other. `None` where slices hardly differ, or were not told apart.
fn range(report: &CompareReport, mark: f64) -> Option<(f64, f64)> {
    let crossing = |kind: fn(&Side) -> Option<(f64, f64)>| -> Option<Crossing> {
        let cost = |point: &Point| {
            let ((holder, _), (_, challenger)) = (kind(&point.direct)?, kind(&point.proxied)?);
            Some(Cost { bytes: point.bytes, holder, challenger })
        };
        let costs: Option<Vec<Cost>> = report.points.iter().map(cost).collect();
        Some(Crossing::below(&costs?, 1.0 - LEVEL))
    };
    let late = crossing(|side| side.device_cpu_spread)?;
    let early = crossing(|side| side.device_cpu_spread.map(|(low, high)| (high, low)))?;
    let (first, last) = (report.points.first()?.bytes as f64, report.points.last()?.bytes as f64);
    let low = early.mark().unwrap_or(first).min(mark);
    let high = late.mark().unwrap_or(last).max(mark);
    (high > low * TELLING).then_some((low, high))
}

/// Says what to measure more of, when there is too little to conclude from.
fn too_few(report: &CompareReport) -> Option<String> {
    let sizes = report.points.len();
    let is_thin = |side: &Side| side.samples.is_some_and(|samples| samples < FEWEST_SAMPLES);
    let thin = report.points.iter().filter(|point| is_thin(&point.direct) || is_thin(&point.proxied)).count();
    more_of(sizes, 2 * thin > sizes)
}

/// The same for this number of `sizes`, most of which are `thin` or are not.
pub(super) fn more_of(sizes: usize, thin: bool) -> Option<String> {
    let remedy = match (sizes < FEWEST_SIZES, thin) {
        (false, false) => return None,
        (true, false) => format!("measure {FEWEST_SIZES} sizes at least (-b, -e, -f)"),
        (false, true) => {
            "let it do more operations (-n), or as many as it finds time for (without -n)".to_owned()
        }
        (true, true) => format!("measure {FEWEST_SIZES} sizes at least (-b, -e, -f), each more often (-n)"),
    };
    Some(format!("Too few samples to conclude anything: {remedy}."))
}

fn overlap_sentence(report: &CompareReport) -> Option<String> {
    let best = |side: fn(&Point) -> &Side| {
        let overlaps = report.points.iter().filter_map(|point| Some((point.bytes, side(point).overlap?)));
        overlaps.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let (bytes, proxied) = best(|point| &point.proxied)?;
    let direct = report.points.iter().find(|point| point.bytes == bytes)?.direct.overlap?;
    Some(format!(
        "Overlap: at best {} of a proxied transfer hides behind computation (at {}; direct there: {}).",
        percent(proxied),
        format_size(bytes),
        percent(direct)
    ))
}

/// Whether the proxy hid clearly more than a direct put did, at most of the sizes that are long enough to tell.
fn hides(report: &CompareReport) -> bool {
    let gain = |point: &Point| Some(point.proxied.overlap? - point.direct.overlap?);
    let gains: Vec<f64> = report.points.iter().filter_map(gain).collect();
    2 * gains.iter().filter(|gain| **gain > 0.2).count() > gains.len()
}

/// Whether two devices and their proxies had to share cores.
fn oversubscribed(report: &CompareReport) -> bool {
    let proxies = match report.proxy {
        ProxyPlace::Thread => 2,
        ProxyPlace::Process => 1,
    };
    report.machine.cores < 2 + proxies
}
