//! The numbers of a comparison.

use serde::Serialize;

use super::crossing::Crossing;
use super::verdict::Verdict;
use crate::flags::ProxyPlace;
use crate::machine::MachineInfo;
use crate::perf::report::PerfRow;
use crate::perf::test::{Test, TestChannel};

/// Direct against proxied over sizes, on one machine in one run.
#[derive(Clone, Debug)]
pub(crate) struct CompareReport {
    /// Where it ran.
    pub(crate) machine: MachineInfo,
    /// Where the proxies ran.
    pub(crate) proxy: ProxyPlace,
    /// Where the proxy ran while overlap was measured.
    pub(crate) overlap_place: Option<String>,
    /// One point per size, in rising order.
    pub(crate) points: Vec<Point>,
}

/// One size.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Payload of one put.
    pub(crate) bytes: u64,
    /// Through the memory channel.
    pub(crate) direct: Side,
    /// Through the port channel.
    pub(crate) proxied: Side,
}

/// What one channel did at one size; times are per put, one way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Side {
    /// Puts that were timed for the latency.
    pub(crate) iterations: u64,
    /// Timings of the latency.
    pub(crate) samples: Option<u64>,
    /// Puts that one of them is the mean of.
    pub(crate) puts_per_sample: Option<u64>,
    /// The quickest.
    pub(crate) min_ns: f64,
    /// The median.
    pub(crate) p50_ns: f64,
    /// The 99th percentile, of a hundred samples at least.
    pub(crate) p99_ns: Option<f64>,
    /// The slowest.
    pub(crate) max_ns: f64,
    /// Puts one after the other without waiting for each, in 10^9 bytes per second.
    pub(crate) gb_per_s: f64,
    /// CPU time of the device thread for one put: the median over slices.
    pub(crate) device_cpu_ns: Option<f64>,
    /// Its tenth and ninetieth percentiles over slices.
    pub(crate) device_cpu_spread: Option<(f64, f64)>,
    /// How much of the transfer was hidden behind computation: 1 is all, below 0 it took longer than one after the other.
    pub(crate) overlap: Option<f64>,
    /// The most triggers that waited in the fifo at once, while puts were pushed as fast as they can be, without a flush.
    pub(crate) fifo_depth: Option<u64>,
    /// The median of how many waited meanwhile.
    pub(crate) fifo_depth_p50: Option<u64>,
    /// Triggers pushed meanwhile.
    pub(crate) pushes: Option<u64>,
    /// How many of those pushes found the fifo full, and waited.
    pub(crate) stalls: Option<u64>,
    /// The machine's limit that the latency is held against, by name.
    pub(crate) limit: Option<String>,
    /// The median of that limit in the same slices.
    pub(crate) limit_p50_ns: Option<f64>,
    /// Latency over limit: the median over slices.
    pub(crate) ratio: Option<f64>,
    /// Bytes that did not arrive as sent; `None` when nothing was checked.
    pub(crate) wrong: Option<u64>,
}

/// The file `compare.json`.
#[derive(Debug, Serialize)]
pub(crate) struct CompareFile {
    machine: MachineInfo,
    proxy: ProxyPlace,
    /// Where the proxy ran while overlap was measured, which is not where it ran for all other figures.
    overlap_place: Option<String>,
    /// Null when there was too little to conclude from.
    crossover: Option<Crossovers>,
    summary: Vec<String>,
    rows: Vec<PerfRow>,
}

#[derive(Debug, Serialize)]
struct Crossovers {
    device_time: Option<Crossing>,
    /// Between which sizes that lies, as far as slices differ.
    device_time_range: Option<(f64, f64)>,
    latency: Crossing,
    bandwidth: Crossing,
}

impl CompareReport {
    /// How many sides carry wrong data: the run fails when there is one.
    pub(crate) fn wrong_sides(&self) -> usize {
        let sides = self.points.iter().flat_map(|point| [&point.direct, &point.proxied]);
        sides.filter(|side| side.wrong.is_some_and(|wrong| wrong > 0)).count()
    }

    /// The report as it goes to `compare.json`: two rows per size, and where the lines cross.
    pub(crate) fn to_file(&self) -> CompareFile {
        let verdict = Verdict::of(self);
        CompareFile {
            machine: self.machine.clone(),
            proxy: self.proxy,
            overlap_place: self.overlap_place.clone(),
            summary: verdict.sentences(self),
            crossover: verdict.too_few.is_none().then_some(Crossovers {
                device_time: verdict.device_time,
                device_time_range: verdict.range,
                latency: verdict.latency,
                bandwidth: verdict.bandwidth,
            }),
            rows: self.points.iter().flat_map(Point::rows).collect(),
        }
    }
}

impl Point {
    fn rows(&self) -> [PerfRow; 2] {
        [self.direct.row(self.bytes, TestChannel::Memory), self.proxied.row(self.bytes, TestChannel::Port)]
    }
}

impl Side {
    fn row(&self, bytes: u64, channel: TestChannel) -> PerfRow {
        PerfRow {
            channel: Some(channel),
            bytes: Some(bytes),
            iterations: self.iterations,
            samples: self.samples,
            operations_per_sample: self.puts_per_sample,
            min_ns: Some(self.min_ns),
            p50_ns: Some(self.p50_ns),
            p99_ns: self.p99_ns,
            max_ns: Some(self.max_ns),
            gb_per_s: Some(self.gb_per_s),
            limit: self.limit.clone(),
            limit_p50_ns: self.limit_p50_ns,
            ratio: self.ratio,
            device_cpu_ns: self.device_cpu_ns,
            device_cpu_p10_ns: self.device_cpu_spread.map(|(low, _)| low),
            device_cpu_p90_ns: self.device_cpu_spread.map(|(_, high)| high),
            overlap: self.overlap,
            fifo_depth: self.fifo_depth,
            fifo_depth_p50: self.fifo_depth_p50,
            pushes: self.pushes,
            stalls: self.stalls,
            wrong: self.wrong,
            ..PerfRow::new(Test::PutLatency, 2)
        }
    }
}
