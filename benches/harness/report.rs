//! What the measuring commands report: a row for each figure.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shmccl::heap::layout::FIFO_SLOTS;

use crate::figures::{percent, three_digits};
use crate::slices::{SliceComparison, SliceKind, Spread, UNPROBED};
use crate::stats::TimeSummary;
use crate::test::{Test, TestChannel};

/// Fewer slices tell nothing of others.
const FEWEST_SLICES: usize = 5;

/// Repetitions of a steady figure lie within this share of the greatest of them.
pub const STEADY: f64 = 0.2;

/// Differences below this share are noise and count as level.
pub const LEVEL: f64 = 0.05;

/// Where a row holds a figure.
pub type FigureOf = fn(&mut PerfRow) -> &mut Option<f64>;

/// What repetitions of a measurement may give differently, by its key in JSON.
pub const FIGURES: [(&str, FigureOf); 15] = [
    ("min_ns", |row| &mut row.times.min_ns),
    ("p50_ns", |row| &mut row.times.p50_ns),
    ("p99_ns", |row| &mut row.times.p99_ns),
    ("max_ns", |row| &mut row.times.max_ns),
    ("gb_per_s", |row| &mut row.times.gb_per_s),
    ("per_s", |row| &mut row.times.per_s),
    ("limit_p50_ns", |row| &mut row.limit.p50_ns),
    ("ratio", |row| &mut row.limit.ratio),
    ("device_cpu_ns", |row| &mut row.device_cpu_ns),
    ("overlap", |row| &mut row.overlap),
    ("share_ratio", |row| &mut row.share_ratio),
    ("fifo_depth", |row| &mut row.fifo.depth),
    ("fifo_depth_p50", |row| &mut row.fifo.depth_p50),
    ("stall_share", |row| &mut row.fifo.stall_share),
    ("probe_ns", |row| &mut row.cores.probe_ns),
];

/// Says what the marks in a table mean, if it has any.
pub fn legend(table: &str) -> String {
    let lines = [
        (
            '~',
            format!(
                "not steady: repetitions are few, or more than {} apart (see the spread)",
                percent(STEADY)
            ),
        ),
        ('!', "quicker than its limit: noise, or that limit is none".to_owned()),
    ];
    let told = lines.into_iter().filter(|(mark, _)| table.contains(*mark));
    told.map(|(mark, text)| format!("{mark}: {text}.\n")).collect()
}

/// One figure. What does not apply to a test is `None`, and null in JSON; times are per operation.
///
/// In JSON all parts are flat: one object with the keys of all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerfRow {
    /// The test.
    pub test: Test,
    /// The channel under test, where the test uses one.
    pub channel: Option<TestChannel>,
    /// The difference to other rows of its test: `4 producers`, `thread proxy`.
    pub variant: Option<String>,
    /// Device processes that took part.
    pub ranks: u32,
    /// Payload of one operation.
    pub bytes: Option<u64>,
    /// Operations that were timed.
    pub iterations: u64,
    /// How long operations took.
    #[serde(flatten)]
    pub times: RowTimes,
    /// The limit that the times are compared with.
    #[serde(flatten)]
    pub limit: RowLimit,
    /// CPU time of the device thread for one operation, without reading that clock: the median
    /// over slices.
    pub device_cpu_ns: Option<f64>,
    /// How much of the transfer was hidden behind computation, from none (0) to all (1).
    pub overlap: Option<f64>,
    /// Operations of the rank that did most while all took turns, for one of the rank that did
    /// fewest.
    pub share_ratio: Option<f64>,
    /// The fifo of a proxied test.
    #[serde(flatten)]
    pub fifo: RowFifo,
    /// How near the two cores were to each other.
    #[serde(flatten)]
    pub cores: RowCores,
    /// Between which two values repetitions of a figure lie, by its key in JSON. Those of rows that
    /// were measured in rounds are of rounds, and otherwise of slices (p10 and p90).
    #[serde(default)]
    pub spread: BTreeMap<String, (f64, f64)>,
    /// Bytes (or words, or triggers) that did not arrive as sent; `None` when nothing was checked.
    pub wrong: Option<u64>,
    /// The figures of a collective operation, among the other keys.
    #[serde(flatten)]
    pub collective: Option<CollectiveFigures>,
    /// The two ranks of a matrix, among the other keys.
    #[serde(flatten)]
    pub place: Option<PairPlacement>,
}

/// How long operations took, and the rates that follow from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowTimes {
    /// Timings that the percentiles are taken from.
    pub samples: Option<u64>,
    /// Operations that a sample is the mean of: 1 where each was timed by itself, 2 where a round
    /// trip was.
    pub operations_per_sample: Option<u64>,
    /// The quickest; of rounds, the median of those.
    pub min_ns: Option<f64>,
    /// The median, in the most frequent kind of slices.
    pub p50_ns: Option<f64>,
    /// The 99th percentile, of a hundred samples at least.
    pub p99_ns: Option<f64>,
    /// The slowest; of rounds, the median of those.
    pub max_ns: Option<f64>,
    /// 10^9 bytes per second.
    pub gb_per_s: Option<f64>,
    /// Operations per second.
    pub per_s: Option<f64>,
}

/// The machine's own limit that a figure is compared with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowLimit {
    /// The name.
    #[serde(rename = "limit")]
    pub name: Option<String>,
    /// The limit's median, on the same cores in the same slices.
    #[serde(rename = "limit_p50_ns")]
    pub p50_ns: Option<f64>,
    /// Time of the test over time of the limit in the same slice: the median over slices. As each
    /// slice has its own two medians, this is not quite the ratio of the medians of all slices.
    pub ratio: Option<f64>,
}

/// How full a fifo was, while puts were pushed as fast as they can be, without a flush.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowFifo {
    /// The most triggers that waited at once.
    #[serde(rename = "fifo_depth")]
    pub depth: Option<f64>,
    /// The median of how many waited.
    #[serde(rename = "fifo_depth_p50")]
    pub depth_p50: Option<f64>,
    /// Triggers pushed: meanwhile, or for the whole row where depths are not measured.
    pub pushes: Option<u64>,
    /// How many of those pushes found the fifo full, and waited.
    pub stalls: Option<u64>,
    /// Those as a share of all pushes.
    pub stall_share: Option<f64>,
}

/// How near the two cores were to each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowCores {
    /// The share of slices in which they were hyper-thread siblings, where slices differed.
    pub sibling_slices: Option<f64>,
    /// Nanoseconds of a bare flag from one core to the other: the median over slices, where probed.
    pub probe_ns: Option<f64>,
}

impl PerfRow {
    /// Makes a row that holds nothing yet but the test and the number of ranks.
    pub fn new(test: Test, ranks: u32) -> Self {
        Self { test, ranks, ..Self::default() }
    }

    /// Returns whether repetitions of the figure `key` are known to lie close together.
    pub fn is_steady(&self, key: &str) -> bool {
        self.spread.get(key).is_some_and(|(low, high)| high - low <= STEADY * high)
    }

    fn figure(&self, key: &str) -> Option<f64> {
        let (_, of) = FIGURES.iter().find(|(name, _)| *name == key)?;
        *of(&mut self.clone())
    }

    /// Returns between which values the figure `key` lies: within its spread where it is known not
    /// to be steady, at the figure itself elsewhere.
    pub fn range(&self, key: &str) -> Option<(f64, f64)> {
        let figure = self.figure(key)?;
        let spread = self.spread.get(key).filter(|_| !self.is_steady(key));
        Some(spread.map_or((figure, figure), |(low, high)| (low.min(figure), high.max(figure))))
    }

    /// Writes the figure `key`, if there is one, and marks it where it is not steady.
    pub fn told(&self, key: &str, write: impl FnOnce(f64) -> String) -> Option<String> {
        let mark = if self.is_steady(key) { "" } else { "~" };
        self.figure(key).map(|figure| format!("{mark}{}", write(figure)))
    }

    /// Writes the ratio to the limit, and marks it where it is below 1 by more than [`LEVEL`], too.
    pub fn told_ratio(&self, unit: &str) -> Option<String> {
        let mark = |ratio: f64| if ratio < 1.0 - LEVEL { "!" } else { "" };
        self.told("ratio", |ratio| format!("{}{unit}{}", three_digits(ratio), mark(ratio)))
    }

    /// Writes between which values repetitions of that ratio lie.
    pub fn ratio_spread(&self) -> Option<String> {
        self.spread
            .get("ratio")
            .map(|(low, high)| format!("({}..{})", three_digits(*low), three_digits(*high)))
    }
}

/// The figures that nccl-tests prints, and their circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveFigures {
    /// 10^9 bytes per second of the operation's size.
    pub algbw: f64,
    /// 10^9 bytes per second of the links that the operation keeps busy.
    pub busbw: f64,
    /// Where the buffers were.
    pub memory: Memory,
    /// Whether the output took the place of the input.
    pub in_place: bool,
    /// The type of the elements.
    #[serde(rename = "type")]
    pub data_type: String,
    /// The operator, or `none`.
    pub redop: String,
    /// The root, or -1.
    pub root: i64,
    /// Elements of a block.
    pub count: u64,
    /// The median time of the operation on buffers in the heap, in one run with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap_p50_ns: Option<f64>,
    /// How many times as long this one took in such a slice: the median over slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap_ratio: Option<f64>,
}

/// The two ranks of a row of a matrix, and where they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPlacement {
    /// The rank that puts.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// The core of the rank that puts; null where the scheduler decides.
    pub from_core: Option<u32>,
    /// The core of the rank that receives.
    pub to_core: Option<u32>,
}

impl PairPlacement {
    /// Returns whether both are known to share a core.
    pub fn one_core(self) -> bool {
        self.from_core.is_some() && self.from_core == self.to_core
    }
}

/// Where the buffers of an operation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// In the symmetric heap
    Heap,
    /// In memory of the process
    Ordinary,
}

/// The counts of a rank's fifos, taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FifoCounts {
    /// Triggers pushed.
    pub pushed: u64,
    /// Pushes that found the ring full.
    pub stalls: u64,
}

impl FifoCounts {
    /// Returns what was counted since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self { pushed: self.pushed - earlier.pushed, stalls: self.stalls - earlier.stalls }
    }
}

/// How full a flood has kept the fifo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FifoLevel {
    /// Triggers that waited, at the median of the looks.
    pub p50: Option<u64>,
    /// The most that were waiting at once.
    pub greatest: Option<u64>,
    /// Pushes, and how many of them found the ring full.
    pub counted: FifoCounts,
}

impl FifoLevel {
    /// Makes a level of the `depths` that a flood has seen, and of what it `counted`.
    pub fn of(mut depths: Vec<u64>, counted: FifoCounts) -> Self {
        depths.sort_unstable();
        let seen = depths.last().copied();
        // A stall is a ring that was full, whether or not anybody looked at that moment.
        let greatest = if counted.stalls > 0 { Some(FIFO_SLOTS) } else { seen };
        Self { p50: depths.get(depths.len() / 2).copied(), greatest, counted }
    }
}

/// Makes a row of the times of a test, compared to a limit of this name.
pub fn row_of(
    test: Test,
    channel: Option<TestChannel>,
    ranks: u32,
    comparison: &SliceComparison,
    limit: &str,
) -> PerfRow {
    let mut row = PerfRow::new(test, ranks);
    row.channel = channel;
    row.set_times(comparison.test);
    row.times.samples = Some(comparison.test.count);
    row.times.operations_per_sample = Some(comparison.per_sample);
    row.limit = RowLimit {
        name: comparison.limit.map(|_| limit.to_owned()),
        p50_ns: comparison.limit.map(|times| times.p50_ns),
        ratio: comparison.ratio.map(|ratio| ratio.median),
    };
    row.device_cpu_ns = comparison.cpu_ns.map(|cpu| cpu.median);
    let spreads =
        [("p50_ns", comparison.p50_ns), ("ratio", comparison.ratio), ("device_cpu_ns", comparison.cpu_ns)];
    let known =
        |(key, spread): (&str, Option<Spread>)| Some((key.to_owned(), spread.map(|s| (s.p10, s.p90))?));
    row.spread =
        spreads.into_iter().filter(|_| comparison.slices >= FEWEST_SLICES).filter_map(known).collect();
    row.cores = RowCores {
        sibling_slices: (comparison.kind != SliceKind::Alike).then_some(comparison.sibling_share),
        probe_ns: (comparison.probe_ns > UNPROBED).then_some(comparison.probe_ns),
    };
    row
}

impl PerfRow {
    /// Sets the times of an operation.
    fn set_times(&mut self, found: TimeSummary) {
        self.iterations = found.count;
        self.times.min_ns = Some(found.min_ns);
        self.times.p50_ns = Some(found.p50_ns);
        self.times.p99_ns = found.p99_ns;
        self.times.max_ns = Some(found.max_ns);
    }

    /// Sets the bandwidth of operations that move `bytes` each.
    pub fn set_bandwidth(&mut self, bytes: u64) {
        let p50_ns = self.times.p50_ns.filter(|ns| *ns > 0.0);
        self.times.gb_per_s = p50_ns.map(|ns| bytes as f64 / ns);
        self.set_rate_spread("gb_per_s", bytes as f64);
    }

    /// Sets the spread of a rate, of `work` in the time of an operation.
    fn set_rate_spread(&mut self, key: &str, work: f64) {
        if let Some(&(low, high)) = self.spread.get("p50_ns") {
            self.spread.insert(key.to_owned(), (work / high, work / low));
        }
    }

    /// Sets the rate of operations.
    pub fn set_rate(&mut self) {
        self.times.per_s = self.times.p50_ns.map(|ns| 1e9 / ns);
        self.set_rate_spread("per_s", 1e9);
    }

    /// Sets how much was pushed, and how often into a full fifo.
    pub fn set_pushes(&mut self, counted: FifoCounts) {
        (self.fifo.pushes, self.fifo.stalls) = (Some(counted.pushed), Some(counted.stalls));
        self.fifo.stall_share = (counted.pushed > 0).then(|| counted.stalls as f64 / counted.pushed as f64);
    }

    /// Sets how full a flood has kept the fifo, and its pushes. Without a flood nothing is known of
    /// them.
    pub fn set_level(&mut self, level: Option<FifoLevel>) {
        self.fifo = RowFifo::default();
        if let Some(FifoLevel { p50, greatest, counted }) = level {
            self.set_pushes(counted);
            self.fifo.depth = greatest.map(|depth| depth as f64);
            self.fifo.depth_p50 = p50.map(|depth| depth as f64);
        }
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
    fn a_row_is_one_flat_object_whose_keys_keep_their_order() {
        let mut row = PerfRow::new(Test::PutBandwidth, 2);
        row.channel = Some(TestChannel::Port);
        row.variant = Some("latency".to_owned());
        (row.bytes, row.iterations, row.overlap, row.wrong) = (Some(8), 5, Some(0.5), Some(0));
        row.times = RowTimes {
            samples: Some(5),
            operations_per_sample: Some(2),
            min_ns: Some(1.0),
            p50_ns: Some(2.5),
            p99_ns: None,
            max_ns: Some(4.0),
            gb_per_s: Some(3.2),
            per_s: Some(4e8),
        };
        row.limit =
            RowLimit { name: Some("plain copy (memcpy)".to_owned()), p50_ns: Some(2.0), ratio: Some(1.25) };
        row.device_cpu_ns = Some(10.0);
        row.set_level(Some(FifoLevel {
            p50: Some(256),
            greatest: Some(512),
            counted: FifoCounts { pushed: 1000, stalls: 3 },
        }));
        row.spread.insert("ratio".to_owned(), (1.0, 1.5));
        row.cores = RowCores { sibling_slices: Some(0.25), probe_ns: Some(130.0) };
        row.place = Some(PairPlacement { from: 0, to: 1, from_core: Some(0), to_core: None });
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(
            text,
            "{\"test\":\"put_bandwidth\",\"channel\":\"port\",\"variant\":\"latency\",\"ranks\":2,\
             \"bytes\":8,\"iterations\":5,\"samples\":5,\"operations_per_sample\":2,\"min_ns\":1.0,\
             \"p50_ns\":2.5,\"p99_ns\":null,\"max_ns\":4.0,\"gb_per_s\":3.2,\
             \"per_s\":400000000.0,\"limit\":\"plain copy (memcpy)\",\"limit_p50_ns\":2.0,\"ratio\":1.25,\
             \"device_cpu_ns\":10.0,\"overlap\":0.5,\"share_ratio\":null,\"fifo_depth\":512.0,\
             \"fifo_depth_p50\":256.0,\
             \"pushes\":1000,\"stalls\":3,\"stall_share\":0.003,\"sibling_slices\":0.25,\"probe_ns\":130.0,\
             \"spread\":{\"ratio\":[1.0,1.5]},\"wrong\":0,\"from\":0,\"to\":1,\"from_core\":0,\"to_core\":null}"
        );
        assert_eq!(serde_json::from_str::<PerfRow>(&text).unwrap(), row);
    }

    #[test]
    fn a_figure_says_whether_it_is_steady_and_whether_its_limit_held() {
        let mut row = PerfRow::new(Test::PutLatency, 2);
        assert_eq!((row.told("p50_ns", three_digits), row.told_ratio(" x")), (None, None));
        (row.times.p50_ns, row.limit.ratio) = (Some(100.0), Some(0.672));
        // Of one repetition nobody knows.
        assert_eq!(row.told("p50_ns", three_digits).as_deref(), Some("~100"));
        for (spread, p50, ratio) in [((90.0, 110.0), "100", "0.672 x!"), ((85.0, 110.0), "~100", "~0.672 x!")]
        {
            row.spread.insert("p50_ns".to_owned(), spread);
            row.spread.insert("ratio".to_owned(), spread);
            assert_eq!(row.told("p50_ns", three_digits).as_deref(), Some(p50));
            assert_eq!(row.told_ratio(" x").as_deref(), Some(ratio));
        }
        row.limit.ratio = Some(0.951);
        assert_eq!(row.told_ratio("").as_deref(), Some("~0.951"));
        row.limit.ratio = Some(0.949);
        assert_eq!(row.told_ratio("").as_deref(), Some("~0.949!"));
        assert_eq!(legend("1.00"), "");
        assert!(legend("~1.00").starts_with("~: not steady: ") && legend("0.672!").starts_with("!: quicker"));
    }

    #[test]
    fn the_spread_of_a_rate_is_that_of_its_time() {
        let mut row = PerfRow::new(Test::PutLatency, 2);
        row.times.p50_ns = Some(100.0);
        row.spread.insert("p50_ns".to_owned(), (50.0, 200.0));
        row.set_bandwidth(1000);
        row.set_rate();
        assert_eq!((row.spread["gb_per_s"], row.spread["per_s"]), ((5.0, 20.0), (5e6, 2e7)));
    }
}
