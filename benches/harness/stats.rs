//! Distributions of times: a histogram that keeps picoseconds, and percentiles of small samples.
//!
//! Times are in nanoseconds as `f64` outside and in whole picoseconds inside. The mean of
//! operations that were timed together (a push into a fifo, a poll) may be a few nanoseconds, and
//! would lose half its digits as an integer.

use hdrhistogram::Histogram;

/// The longest time that a histogram holds: an hour, in picoseconds.
const LONGEST_PS: u64 = 3_600_000_000_000_000;

/// Samples for a 99th percentile: that of fewer is the slowest.
pub const ENOUGH_FOR_P99: u64 = 100;

/// Times of many operations, in fixed space, to three digits.
#[derive(Clone, Debug)]
pub(crate) struct TimeHistogram {
    histogram: Histogram<u64>,
    min_ps: u64,
    max_ps: u64,
}

/// A distribution in five numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeSummary {
    /// Samples.
    pub count: u64,
    /// The quickest.
    pub min_ns: f64,
    /// The median.
    pub p50_ns: f64,
    /// The 99th percentile, where there are enough for one.
    pub p99_ns: Option<f64>,
    /// The slowest.
    pub max_ns: f64,
}

impl TimeHistogram {
    /// Makes an empty histogram. It allocates all that it will ever need, so that recording does
    /// not.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram takes.
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_PS, 3).expect("constant bounds are valid");
        Self { histogram, min_ps: u64::MAX, max_ps: 0 }
    }

    /// Records one sample.
    pub(crate) fn record(&mut self, ns: f64) {
        let ps = whole((ns * 1000.0).clamp(0.0, 3.6e15));
        self.histogram.saturating_record(ps);
        self.min_ps = self.min_ps.min(ps);
        self.max_ps = self.max_ps.max(ps);
    }

    /// Returns the five numbers; `None` when nothing was recorded.
    pub(crate) fn summary(&self) -> Option<TimeSummary> {
        if self.histogram.is_empty() {
            return None;
        }
        let ns = |ps: u64| to_f64(ps) / 1000.0;
        // The histogram answers with the upper end of a bucket; the extremes are known exactly.
        let at = |quantile| ns(self.histogram.value_at_quantile(quantile).clamp(self.min_ps, self.max_ps));
        Some(TimeSummary {
            count: self.histogram.len(),
            min_ns: ns(self.min_ps),
            p50_ns: at(0.5),
            p99_ns: (self.histogram.len() >= ENOUGH_FOR_P99).then(|| at(0.99)),
            max_ns: ns(self.max_ps),
        })
    }
}

/// Returns the value below which a share of the samples lies, interpolated between neighbours;
/// `None` of no samples. Sorts the samples.
pub fn quantile(samples: &mut [f64], share: f64) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let last = samples.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * to_f64(last as u64);
    let below = usize::try_from(whole(place)).unwrap_or(last).min(last);
    let above = (below + 1).min(last);
    Some(samples[below] + (samples[above] - samples[below]) * (place - to_f64(below as u64)))
}

/// Returns the middle of the samples; `None` of no samples. Sorts the samples.
pub fn median(samples: &mut [f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// Cuts off the fraction, and everything below zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates and dropping the fraction is the purpose"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Returns the nearest `f64`: exact up to 2^53, which is 104 days in nanoseconds.
fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= b.abs() * 0.002
    }

    #[test]
    fn nothing_recorded_has_no_summary() {
        assert_eq!(TimeHistogram::new().summary(), None);
    }

    #[test]
    fn percentiles_of_a_known_distribution_come_out_within_three_digits() {
        let mut times = TimeHistogram::new();
        for ns in 1..=1000_u32 {
            times.record(f64::from(ns));
        }
        let summary = times.summary().unwrap();
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (1000, 1.0, 1000.0));
        assert!(close(summary.p50_ns, 500.0) && close(summary.p99_ns.unwrap(), 990.0), "{summary:?}");
    }

    #[test]
    fn there_is_no_99th_percentile_of_fewer_than_a_hundred() {
        let mut times = TimeHistogram::new();
        (0..99).for_each(|ns| times.record(f64::from(ns)));
        assert_eq!(times.summary().unwrap().p99_ns, None);
        times.record(1000.0);
        assert!(times.summary().unwrap().p99_ns.is_some());
    }

    #[test]
    fn a_mean_below_a_nanosecond_is_not_rounded_away() {
        let mut times = TimeHistogram::new();
        times.record(0.25);
        let summary = times.summary().unwrap();
        assert_eq!(summary.count, 1);
        assert!(close(summary.p50_ns, 0.25) && close(summary.min_ns, 0.25), "{summary:?}");
    }

    #[test]
    fn times_out_of_range_are_kept_at_its_ends() {
        let mut times = TimeHistogram::new();
        for ns in [-1.0, 0.0, f64::NAN, 1e30] {
            times.record(ns);
        }
        let summary = times.summary().unwrap();
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (4, 0.0, 3.6e12));
    }

    #[test]
    fn quantiles_interpolate_between_neighbours() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [7.0]), Some(7.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
        assert_eq!(quantile(&mut [1.0, 2.0, 3.0, 4.0, 5.0], 0.9), Some(4.6));
        assert_eq!(quantile(&mut [1.0, 2.0], 1.0), Some(2.0));
    }
}
