//! What the measuring commands report: a row for each figure, and the machine.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::slices::{SliceComparison, SliceKind, UNPROBED};
use super::stats::TimeSummary;
use super::test::{Test, TestChannel};
use crate::machine::MachineInfo;

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
    pub(crate) collective: Option<CollectiveFigures>,
    /// Between which ranks, in a matrix, among the other keys.
    #[serde(flatten)]
    pub(crate) place: Option<PairPlacement>,
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

/// The figures that nccl-tests prints, and the circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CollectiveFigures {
    /// 10^9 bytes per second of the operation's size.
    pub(crate) algbw: f64,
    /// The same of the links that the operation keeps busy.
    pub(crate) busbw: f64,
    /// Where the buffers were.
    pub(crate) memory: Memory,
    /// Whether the output took the place of the input.
    pub(crate) in_place: bool,
    /// The type of the elements.
    #[serde(rename = "type")]
    pub(crate) data_type: String,
    /// The operator, or `none`.
    pub(crate) redop: String,
    /// The root, or -1.
    pub(crate) root: i64,
    /// Elements of a block.
    pub(crate) count: u64,
    /// The same operation on buffers in the heap, in the same run, where these are not: the median of its times, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heap_p50_ns: Option<f64>,
    /// How many times as long this one took in the same slice: the median over slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heap_ratio: Option<f64>,
}

/// The two ranks of a row of a matrix, and where they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PairPlacement {
    /// The rank that puts.
    pub(crate) from: u32,
    /// The rank that receives.
    pub(crate) to: u32,
    /// The core of the rank that puts; null where the scheduler decides.
    pub(crate) from_core: Option<u32>,
    /// The core of the rank that receives.
    pub(crate) to_core: Option<u32>,
}

impl PairPlacement {
    /// Returns whether both are known to share a core.
    pub(crate) fn one_core(self) -> bool {
        self.from_core.is_some() && self.from_core == self.to_core
    }
}

/// Where the buffers of an operation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// In the symmetric heap
    Heap,
    /// In memory of the process
    Ordinary,
}

/// What a rank's fifos have counted, taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FifoCounts {
    /// Triggers pushed.
    pub(crate) pushed: u64,
    /// Pushes that found the ring full.
    pub(crate) stalls: u64,
}

/// How full a flood has kept the fifo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FifoLevel {
    /// Triggers that waited, at the median of the looks.
    pub(crate) p50: Option<u64>,
    /// The most that were waiting at once.
    pub(crate) greatest: Option<u64>,
    /// Pushes, and how many of them found the ring full.
    pub(crate) counted: FifoCounts,
}

/// Makes a row of the times of a test, compared to a limit of this name.
pub(crate) fn row_of(
    test: Test,
    channel: Option<TestChannel>,
    ranks: u32,
    comparison: &SliceComparison,
    limit: &str,
) -> PerfRow {
    let mut row = PerfRow::new(test, ranks);
    row.channel = channel;
    row.set_times(Some(comparison.test));
    row.p50_all_ns = Some(comparison.p50_all_ns);
    row.samples = Some(comparison.test.count);
    row.operations_per_sample = Some(comparison.per_sample);
    if let Some(times) = comparison.limit {
        row.limit = Some(limit.to_owned());
        row.limit_p50_ns = Some(times.p50_ns);
    }
    if let Some(ratio) = comparison.ratio {
        row.ratio = Some(ratio.median);
        row.ratio_p10 = Some(ratio.p10);
        row.ratio_p90 = Some(ratio.p90);
    }
    if let Some(cpu) = comparison.cpu_ns {
        row.device_cpu_ns = Some(cpu.median);
        row.device_cpu_p10_ns = Some(cpu.p10);
        row.device_cpu_p90_ns = Some(cpu.p90);
    }
    row.probe_ns = (comparison.probe_ns > UNPROBED).then_some(comparison.probe_ns);
    row.sibling_slices = (comparison.kind != SliceKind::Alike).then_some(comparison.sibling_share);
    row
}

impl PerfRow {
    /// Sets the times of an operation.
    pub(crate) fn set_times(&mut self, times: Option<TimeSummary>) {
        if let Some(times) = times {
            self.iterations = times.count;
            self.min_ns = Some(times.min_ns);
            self.p50_ns = Some(times.p50_ns);
            self.p99_ns = times.p99_ns;
            self.max_ns = Some(times.max_ns);
        }
    }

    /// Sets the bandwidth of operations that move `bytes` each.
    pub(crate) fn set_bandwidth(&mut self, bytes: u64) {
        self.gb_per_s = self.p50_ns.filter(|ns| *ns > 0.0).map(|ns| bytes as f64 / ns);
    }

    /// Sets how much was pushed, and how often into a full fifo.
    pub(crate) fn set_pushes(&mut self, counted: FifoCounts) {
        self.pushes = Some(counted.pushed);
        self.stalls = Some(counted.stalls);
    }

    /// Sets how full a flood has kept the fifo, and its pushes. Without a flood nothing is known of them.
    pub(crate) fn set_level(&mut self, level: Option<FifoLevel>) {
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
