//! From what slices say to rows.

use super::contest::{Outcome, Yardstick};
use super::slices::{Kind, UNPROBED, Verdict};
use super::stats::{Summary, median};
use super::transfer::flood::{Counters, Level};
use crate::perf::report::PerfRow;
use crate::perf::test::{Test, TestChannel};

/// A row with the times of a test, and how they compare to a limit of this name.
pub(crate) fn row_of(
    test: Test,
    channel: Option<TestChannel>,
    ranks: u32,
    verdict: &Verdict,
    limit: &str,
) -> PerfRow {
    let mut row = PerfRow::new(test, ranks);
    row.channel = channel;
    row.set_times(Some(verdict.test));
    row.p50_all_ns = Some(verdict.p50_all_ns);
    row.samples = Some(verdict.test.count);
    row.operations_per_sample = Some(verdict.per_sample);
    if let Some(times) = verdict.limit {
        row.limit = Some(limit.to_owned());
        row.limit_p50_ns = Some(times.p50_ns);
    }
    if let Some(ratio) = verdict.ratio {
        row.ratio = Some(ratio.median);
        row.ratio_p10 = Some(ratio.p10);
        row.ratio_p90 = Some(ratio.p90);
    }
    if let Some(cpu) = verdict.cpu_ns {
        row.device_cpu_ns = Some(cpu.median);
        row.device_cpu_p10_ns = Some(cpu.p10);
        row.device_cpu_p90_ns = Some(cpu.p90);
    }
    row.probe_ns = (verdict.probe_ns > UNPROBED).then_some(verdict.probe_ns);
    row.sibling_slices = (verdict.kind != Kind::Alike).then_some(verdict.sibling_share);
    row
}

/// Yardsticks of a contest whose lanes from the second on are limits, each by itself.
pub(crate) fn best_of(limits: usize) -> Vec<Yardstick> {
    const EACH: [Yardstick; 6] = [
        |samples| samples[1].clone(),
        |samples| samples[2].clone(),
        |samples| samples[3].clone(),
        |samples| samples[4].clone(),
        |samples| samples[5].clone(),
        |samples| samples[6].clone(),
    ];
    EACH[..limits].to_vec()
}

/// The same, each with two hand-offs, which the last lane times.
pub(crate) fn best_with_handoffs(limits: usize) -> Vec<Yardstick> {
    const EACH: [Yardstick; 3] = [
        |samples| handed_off(samples, 1),
        |samples| handed_off(samples, 2),
        |samples| handed_off(samples, 3),
    ];
    EACH[..limits].to_vec()
}

/// The median of a lane and twice that of the last one.
fn handed_off(samples: &[Vec<f64>], lane: usize) -> Vec<f64> {
    let middle = |samples: Option<&Vec<f64>>| median(&mut samples?.clone());
    let parts = middle(samples.get(lane)).zip(middle(samples.last()));
    parts.map(|(one, handoff)| one + 2.0 * handoff).into_iter().collect()
}

/// Twice the median of the last lane: two hand-offs and nothing else.
pub(crate) fn two_handoffs(samples: &[Vec<f64>]) -> Vec<f64> {
    let handoff = samples.last().and_then(|samples| median(&mut samples.clone()));
    handoff.map(|handoff| 2.0 * handoff).into_iter().collect()
}

impl Outcome {
    /// Keeps only the verdict against the lowest limit; which one that is, on the rank that leads, and 0 elsewhere.
    pub(crate) fn with_lowest_limit(self) -> Option<(usize, Self)> {
        let p50 = |verdict: &Verdict| verdict.limit.map_or(f64::INFINITY, |limit| limit.p50_ns);
        let lowest = self.verdicts.iter().enumerate().min_by(|a, b| p50(a.1).total_cmp(&p50(b.1)));
        let Some((best, verdict)) = lowest else { return Some((0, self)) };
        Some((best, Self { verdicts: vec![verdict.clone()], ..self }))
    }
}

impl PerfRow {
    /// Fills in the times of an operation.
    pub(crate) fn set_times(&mut self, times: Option<Summary>) {
        if let Some(times) = times {
            self.iterations = times.count;
            self.min_ns = Some(times.min_ns);
            self.p50_ns = Some(times.p50_ns);
            self.p99_ns = times.p99_ns;
            self.max_ns = Some(times.max_ns);
        }
    }

    /// Fills in the bandwidth of operations that move `bytes` each.
    pub(crate) fn set_bandwidth(&mut self, bytes: u64) {
        self.gb_per_s = self.p50_ns.filter(|ns| *ns > 0.0).map(|ns| bytes as f64 / ns);
    }

    /// Fills in what was pushed, and how often into a full fifo.
    pub(crate) fn set_pushes(&mut self, counted: Counters) {
        self.pushes = Some(counted.pushed);
        self.stalls = Some(counted.stalls);
    }

    /// Fills in how full a flood has kept the fifo, pushes included; where there was none, nothing is known of any of it.
    pub(crate) fn set_level(&mut self, level: Option<Level>) {
        self.fifo_depth = level.and_then(|level| level.greatest);
        self.fifo_depth_p50 = level.and_then(|level| level.p50);
        self.pushes = level.map(|level| level.counted.pushed);
        self.stalls = level.map(|level| level.counted.stalls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_what_is_handed_to_a_proxy_and_back_has_two_handoffs_in_it() {
        let samples = [vec![9000.0], vec![50.0, 70.0, 60.0], vec![40.0], vec![1000.0]];
        let limits: Vec<_> = best_with_handoffs(2).iter().map(|yardstick| yardstick(&samples)).collect();
        assert_eq!(limits, [[2060.0], [2040.0]]);
        assert_eq!(two_handoffs(&samples), [2000.0]);
        // The rank that does not keep the time has no samples.
        let none = vec![Vec::new(); 3];
        assert!(best_with_handoffs(1)[0](&none).is_empty() && two_handoffs(&none).is_empty());
    }
}
