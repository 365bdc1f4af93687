//! What a comparison of puts shows: what the proxy costs, what it buys, and from which size on it
//! is worth it.

use serde::Serialize;
use shmccl_harness::report::{LEVEL, PerfRow};

use super::{between, level_in_words};
use crate::compare::crossover::{Cost, Crossover};
use crate::compare::series::{Point, Series, Subject, time};
use crate::flags::ProxyPlace;
use crate::units::{format_about, format_ns, format_size, percent};

/// Sizes that are less than this factor apart are one.
const TELLING: f64 = 1.25;

/// Where proxied puts are ahead of direct ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PutCrossovers {
    /// The crossover in CPU time of the device thread; `None` when that was not measured.
    pub(crate) device_time: Option<Crossover>,
    /// The sizes between which that crossover lies, as far as rounds differ.
    pub(crate) device_time_range: Option<(f64, f64)>,
    /// The crossover in latency.
    pub(crate) latency: Crossover,
    /// The crossover in bandwidth.
    pub(crate) bandwidth: Crossover,
    /// Where proxied latency is level with direct latency, or better.
    #[serde(skip)]
    level: Crossover,
}

impl PutCrossovers {
    pub(super) fn of(series: &Series) -> Self {
        let points = series.points();
        let costs = |cost: fn(&PerfRow) -> Option<f64>| -> Option<Vec<Cost>> {
            points.iter().map(|point| point.cost(cost, cost)).collect()
        };
        let latency = costs(|row| row.times.p50_ns).unwrap_or_default();
        // The least of direct against the most of proxied: nobody is ahead by noise alone.
        let surely = |direct: fn(&PerfRow) -> Option<f64>, proxied: fn(&PerfRow) -> Option<f64>| {
            let costs: Option<Vec<Cost>> = points.iter().map(|point| point.cost(direct, proxied)).collect();
            Crossover::below(&costs.unwrap_or_default(), 1.0 - LEVEL)
        };
        let device_time = costs(|row| row.device_cpu_ns).map(|costs| Crossover::below(&costs, 1.0 - LEVEL));
        let mark = device_time.and_then(Crossover::mark);
        Self {
            device_time,
            device_time_range: mark.and_then(|mark| range(&points, mark)),
            latency: surely(|row| Some(row.range("p50_ns")?.0), |row| Some(row.range("p50_ns")?.1)),
            bandwidth: surely(
                |row| Some(1.0 / row.range("gb_per_s")?.1.max(1e-9)),
                |row| Some(1.0 / row.range("gb_per_s")?.0.max(1e-9)),
            ),
            level: Crossover::below(&latency, 1.0 + LEVEL),
        }
    }

    /// Returns the crossover to mark: that of device time, which a proxy is for, or that of latency
    /// where device time is unknown.
    pub(crate) fn main(&self) -> Crossover {
        self.device_time.unwrap_or(self.latency)
    }

    /// Says what that means, in one sentence or two for each of crossover, latency, device time and
    /// overlap.
    pub(super) fn summary(&self, series: &Series) -> Vec<String> {
        let points = series.points();
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
        let mut sentences =
            vec![self.crossover_sentence(series, &points), self.latency_sentence(first, last)];
        sentences.extend(device_sentence(first, last));
        sentences.extend(overlap_sentence(series, &points));
        sentences
    }

    fn crossover_sentence(&self, series: &Series, points: &[Point<'_>]) -> String {
        let what =
            if self.device_time.is_some() { "costs the device thread less time" } else { "is quicker" };
        let who = match (hides(points), shares_cores(series)) {
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
        match self.main() {
            Crossover::Between { estimate, .. } => {
                let range = self.device_time_range.filter(|(low, high)| *high > low * TELLING);
                let spread = range.map_or_else(String::new, |(low, high)| {
                    format!(" (between {} and {} by round)", format_about(low), format_about(high))
                });
                format!(
                    "Crossover at about {}{spread}: below it put directly; above it a proxied put {what} than a direct one, and {who}.",
                    format_about(estimate)
                )
            }
            Crossover::Always => format!(
                "No crossover: from {} on, the smallest size measured, a proxied put {what} than a direct one, and {who}.",
                format_size(points[0].bytes)
            ),
            Crossover::Passing { first_ahead, last_ahead } => format!(
                "No crossover: a proxied put {what} than a direct one at some sizes {}, but not at the largest measured; put directly on this machine, or measure again.",
                between(first_ahead, last_ahead)
            ),
            Crossover::Never => format!(
                "No crossover: at no size up to the largest measured a proxied put {what} than a direct one; put directly on this machine."
            ),
        }
    }

    fn latency_sentence(&self, first: &Point<'_>, last: &Point<'_>) -> String {
        let cost = match time(first.proxied) - time(first.direct) {
            added if added > 0.0 => format!(
                "the proxy adds {}{} at {} ({} direct)",
                first.mark(),
                format_ns(added),
                format_size(first.bytes),
                first.told_factor()
            ),
            _ => format!("the proxy adds nothing at {}", format_size(first.bytes)),
        };
        let rest = match self.latency {
            Crossover::Always => "a proxied put is quicker at every size".to_owned(),
            Crossover::Between { first_ahead, .. } => {
                format!("from {} on a proxied put is quicker", format_size(first_ahead))
            }
            Crossover::Passing { first_ahead, last_ahead } => format!(
                "a proxied put is quicker at some sizes {}, but not at the largest ({} direct)",
                between(first_ahead, last_ahead),
                last.told_factor()
            ),
            Crossover::Never => match (level_in_words(self.level), self.level) {
                (Some(level), Crossover::Passing { .. }) => {
                    format!("{level}, and direct is ahead at the others")
                }
                (Some(level), _) => level,
                (None, _) => {
                    format!("direct stays ahead up to {} ({})", format_size(last.bytes), last.told_factor())
                }
            },
        };
        format!("Latency: {cost}; {rest}.")
    }
}

/// Returns between which sizes the crossover of device time at `mark` lies.
///
/// That is where lines cross that no round lies below for one channel, and none above for the
/// other. `None` where there was one round.
fn range(points: &[Point<'_>], mark: f64) -> Option<(f64, f64)> {
    type Figure = fn(&PerfRow) -> Option<f64>;
    let (low, high): (Figure, Figure) = (
        |row| row.spread.get("device_cpu_ns").map(|(low, _)| *low),
        |row| row.spread.get("device_cpu_ns").map(|(_, high)| *high),
    );
    let crossover = |direct, proxied| -> Option<Crossover> {
        let costs: Option<Vec<Cost>> = points.iter().map(|point| point.cost(direct, proxied)).collect();
        Some(Crossover::below(&costs?, 1.0 - LEVEL))
    };
    let (late, early) = (crossover(low, high)?, crossover(high, low)?);
    let (first, last) = (points.first()?.bytes as f64, points.last()?.bytes as f64);
    let low = early.mark().unwrap_or(first).min(mark);
    let high = late.mark().unwrap_or(last).max(mark);
    Some((low, high))
}

fn device_sentence(first: &Point<'_>, last: &Point<'_>) -> Option<String> {
    let told = |point: &Point<'_>| {
        Some(format!(
            "{} against {} at {}",
            point.proxied.told("device_cpu_ns", format_ns)?,
            point.direct.told("device_cpu_ns", format_ns)?,
            format_size(point.bytes)
        ))
    };
    Some(format!("Device time, proxied against direct: {}, {}.", told(first)?, told(last)?))
}

fn overlap_sentence(series: &Series, points: &[Point<'_>]) -> Option<String> {
    let place = match &series.subject {
        Subject::Puts { overlap_left_out: Some(reason), .. } => {
            return Some(format!("Overlap: not measured: {reason}."));
        }
        Subject::Puts { overlap_place: Some(place), .. } => format!(", {place}"),
        _ => String::new(),
    };
    let overlap = |point: &&Point<'_>| point.proxied.overlap.unwrap_or(-1.0);
    let best = points.iter().max_by(|a, b| overlap(a).total_cmp(&overlap(b)))?;
    Some(format!(
        "Overlap: at best {} of a proxied transfer hides behind computation (at {}{place}); nothing of a direct one, which the device copies itself.",
        best.proxied.told("overlap", percent)?,
        format_size(best.bytes)
    ))
}

/// Whether the proxy hid a clear part, at most of the sizes that are long enough to tell.
fn hides(points: &[Point<'_>]) -> bool {
    let hidden: Vec<f64> = points.iter().filter_map(|point| point.proxied.overlap).collect();
    2 * hidden.iter().filter(|hidden| **hidden > 0.2).count() > hidden.len()
}

/// Whether two devices and their proxies had to share cores.
fn shares_cores(series: &Series) -> bool {
    let proxies = match series.proxy {
        ProxyPlace::Thread => 2,
        ProxyPlace::Process => 1,
    };
    series.report.machine.cores < 2 + proxies
}
