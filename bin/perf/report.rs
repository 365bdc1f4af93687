//! What the measuring commands report: one row per figure, and the machine it was measured on.

use serde::{Deserialize, Serialize};

use crate::host::MachineInfo;
use crate::perf::collective::figures::Figures;
use crate::perf::matrix::figure::Place;
use crate::perf::test::{Test, TestChannel};

/// One figure. What does not apply to a test is `None`, and null in JSON; times are per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfRow {
    /// The test.
    pub(crate) test: Test,
    /// The channel under test, where the test uses one.
    pub(crate) channel: Option<TestChannel>,
    /// What tells this row from others of its test: `4 producers`, `thread proxy`.
    pub(crate) variant: Option<String>,
    /// Device processes that took part.
    pub(crate) ranks: u32,
    /// Payload of one operation.
    pub(crate) bytes: Option<u64>,
    /// Operations that were timed.
    pub(crate) iterations: u64,
    /// Timings that the percentiles are taken from.
    pub(crate) samples: Option<u64>,
    /// Operations that one of them is the mean of: 1 where each was timed by itself, 2 where a round trip was.
    pub(crate) operations_per_sample: Option<u64>,
    /// The quickest.
    pub(crate) min_ns: Option<f64>,
    /// The median, in the kind of slices that were most.
    pub(crate) p50_ns: Option<f64>,
    /// The median of all samples, in slices of whatever kind.
    pub(crate) p50_all_ns: Option<f64>,
    /// The 99th percentile, of a hundred samples at least.
    pub(crate) p99_ns: Option<f64>,
    /// The slowest.
    pub(crate) max_ns: Option<f64>,
    /// 10^9 bytes per second.
    pub(crate) gb_per_s: Option<f64>,
    /// Operations per second.
    pub(crate) per_s: Option<f64>,
    /// The machine's own limit that this figure is held against, by name.
    pub(crate) limit: Option<String>,
    /// The limit's median, on the same cores in the same slices.
    pub(crate) limit_p50_ns: Option<f64>,
    /// Time of the test over time of the limit in the same slice: the median over slices. As each slice has its own two medians, this
    /// is not quite `p50_ns` over `limit_p50_ns`, which are those of all samples of all slices.
    pub(crate) ratio: Option<f64>,
    /// The tenth percentile of that ratio over slices.
    pub(crate) ratio_p10: Option<f64>,
    /// The ninetieth percentile of that ratio over slices.
    pub(crate) ratio_p90: Option<f64>,
    /// CPU time of the device thread for one operation: the median over slices, without what reading that clock takes.
    pub(crate) device_cpu_ns: Option<f64>,
    /// Its tenth percentile over slices.
    pub(crate) device_cpu_p10_ns: Option<f64>,
    /// Its ninetieth percentile over slices.
    pub(crate) device_cpu_p90_ns: Option<f64>,
    /// How much of the transfer was hidden behind computation: 1 is all of it; below 0, both together took longer than one after the
    /// other.
    pub(crate) overlap: Option<f64>,
    /// The most triggers that waited in the fifo at once, while puts were pushed as fast as they can be, without a flush.
    pub(crate) fifo_depth: Option<u64>,
    /// The median of how many waited meanwhile.
    pub(crate) fifo_depth_p50: Option<u64>,
    /// Triggers pushed: meanwhile, or where depths are not measured for the whole row.
    pub(crate) pushes: Option<u64>,
    /// How many of those pushes found the fifo full, and waited.
    pub(crate) stalls: Option<u64>,
    /// The share of slices in which the two cores were hyper-thread siblings, where slices differed.
    pub(crate) sibling_slices: Option<f64>,
    /// What a bare flag took from one core to the other meanwhile, in nanoseconds: the median over slices, where it was probed.
    pub(crate) probe_ns: Option<f64>,
    /// Bytes (or words, or triggers) that did not arrive as sent; `None` when nothing was checked.
    pub(crate) wrong: Option<u64>,
    /// What there is to say of a collective operation, among the other keys.
    #[serde(flatten)]
    pub(crate) collective: Option<Figures>,
    /// Between which ranks, in a matrix, among the other keys.
    #[serde(flatten)]
    pub(crate) place: Option<Place>,
}

impl PerfRow {
    /// A row that holds nothing yet but what was measured, with how many ranks.
    pub(crate) fn new(test: Test, ranks: u32) -> Self {
        Self {
            test,
            channel: None,
            variant: None,
            ranks,
            bytes: None,
            iterations: 0,
            samples: None,
            operations_per_sample: None,
            min_ns: None,
            p50_ns: None,
            p50_all_ns: None,
            p99_ns: None,
            max_ns: None,
            gb_per_s: None,
            per_s: None,
            limit: None,
            limit_p50_ns: None,
            ratio: None,
            ratio_p10: None,
            ratio_p90: None,
            device_cpu_ns: None,
            device_cpu_p10_ns: None,
            device_cpu_p90_ns: None,
            overlap: None,
            fifo_depth: None,
            fifo_depth_p50: None,
            pushes: None,
            stalls: None,
            sibling_slices: None,
            probe_ns: None,
            wrong: None,
            collective: None,
            place: None,
        }
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfReport {
    /// Where it ran.
    pub(crate) machine: MachineInfo,
    /// What was measured, in the order in which it was.
    pub(crate) rows: Vec<PerfRow>,
}

impl PerfReport {
    /// How many rows carry wrong data: the run fails when there is one.
    pub(crate) fn wrong_rows(&self) -> usize {
        self.rows.iter().filter(|row| row.wrong.is_some_and(|wrong| wrong > 0)).count()
    }
}

/// The share of `pushes` that were `stalls`, where there were any pushes.
pub(crate) fn share_of_stalls(stalls: Option<u64>, pushes: Option<u64>) -> Option<f64> {
    let (stalls, pushes) = stalls.zip(pushes)?;
    (pushes > 0).then(|| stalls as f64 / pushes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_apply_is_null_in_json_and_every_key_is_there() {
        let json = serde_json::to_value(PerfRow::new(Test::Barrier, 8)).unwrap();
        let object = json.as_object().unwrap();
        for key in [
            "test",
            "channel",
            "ranks",
            "bytes",
            "iterations",
            "min_ns",
            "p50_ns",
            "p50_all_ns",
            "p99_ns",
            "max_ns",
            "gb_per_s",
            "limit",
            "limit_p50_ns",
            "ratio",
            "wrong",
        ] {
            assert!(object.contains_key(key), "{key}");
        }
        assert_eq!(object["test"], "barrier");
        assert!(object["bytes"].is_null() && object["wrong"].is_null());
        assert_eq!(serde_json::from_value::<PerfRow>(json).unwrap(), PerfRow::new(Test::Barrier, 8));
    }

    #[test]
    fn a_row_with_wrong_data_is_counted_and_one_that_was_not_checked_is_not() {
        let mut report =
            PerfReport { machine: MachineInfo::detect(), rows: vec![PerfRow::new(Test::PutLatency, 2); 3] };
        report.rows[0].wrong = Some(0);
        report.rows[1].wrong = Some(7);
        assert_eq!(report.wrong_rows(), 1);
    }
}
