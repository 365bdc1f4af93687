//! The numbers of a comparison: direct against proxied over sizes, of puts or of one collective
//! operation.

use serde::Serialize;
use shmccl_harness::puts::PUTS;
use shmccl_harness::report::PerfRow;
use shmccl_harness::slices::APART;
use shmccl_harness::test::{Test, TestChannel};

use super::crossover::Cost;
use crate::flags::ProxyPlace;
use crate::perf::report::PerfReport;
use crate::units::three_digits;

/// The name of the row in which the library chooses the algorithm by itself.
pub(super) const BY_DEFAULT: &str = "default";

/// Timings below this number show no median.
const FEWEST_SAMPLES: u64 = 5;

/// What was compared, on one machine in one run.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// The machine, and a row for each way at each size.
    pub(super) report: PerfReport,
    /// Where the proxies ran.
    pub(super) proxy: ProxyPlace,
    /// What the rows are about.
    pub(super) subject: Subject,
}

/// What was done in several ways. It stands among the other keys of `compare.json`.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Subject {
    /// Puts from one rank to another.
    Puts {
        /// Where the proxy ran while overlap was measured, which differs from all other figures.
        overlap_place: Option<String>,
        /// Why overlap was not measured, if it was not.
        overlap_left_out: Option<String>,
    },
    /// A collective operation.
    Operation {
        /// The test that measures it.
        #[serde(rename = "op")]
        test: Test,
        /// How many ranks did it.
        #[serde(rename = "ranks")]
        n_ranks: u32,
    },
}

/// Both channels at one size, each with its quickest algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point<'s> {
    /// The size.
    pub(super) bytes: u64,
    /// Through the memory channel.
    pub(super) direct: &'s PerfRow,
    /// Through the port channel.
    pub(super) proxied: &'s PerfRow,
}

/// A collective as the library does it, beside puts of a program's own, at one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct BesidePuts<'s> {
    /// The size.
    pub(super) bytes: u64,
    /// By puts.
    pub(super) puts: &'s PerfRow,
    /// By the collective, over memory channels.
    pub(super) collective: &'s PerfRow,
}

impl BesidePuts<'_> {
    /// Whether the times show which of the two is quicker: both have enough samples, and neither
    /// brings wrong data.
    pub(super) fn is_telling(&self) -> bool {
        [self.puts, self.collective].iter().all(|row| !is_thin(row) && row.wrong.unwrap_or(0) == 0)
    }

    /// Returns how many times as long as the collective puts take.
    pub(super) fn factor(&self) -> f64 {
        time(self.puts) / time(self.collective).max(1e-3)
    }

    /// Writes how many times as long as the collective puts take, with `~` unless both are steady.
    pub(super) fn told_factor(&self) -> String {
        let is_steady = [self.puts, self.collective].iter().all(|row| row.is_steady("p50_ns"));
        format!("{}{} x", if is_steady { "" } else { "~" }, three_digits(self.factor()))
    }

    /// Returns the times of both, where puts hold the lead and the collective challenges.
    pub(super) fn cost(&self) -> Cost {
        Cost { bytes: self.bytes, holder: time(self.puts), challenger: time(self.collective) }
    }
}

impl Series {
    /// Returns all sizes, in rising order.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.report.rows.iter().filter_map(|row| row.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Returns the names of all algorithms of the library, the default first.
    pub(super) fn algorithms(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for row in self.report.rows.iter().filter(|row| !is_by_puts(row)) {
            if !names.contains(&algorithm(row)) {
                names.push(algorithm(row));
            }
        }
        names
    }

    /// Returns the names of the algorithms that were measured over `channel`.
    pub(super) fn algorithms_over(&self, channel: TestChannel) -> Vec<&str> {
        let is_there = |name: &&str| {
            self.report.rows.iter().any(|row| row.channel == Some(channel) && algorithm(row) == *name)
        };
        self.algorithms().into_iter().filter(is_there).collect()
    }

    /// Whether there are algorithms to choose from.
    pub(super) fn has_choice(&self) -> bool {
        self.report.rows.iter().any(|row| row.variant.is_some() && !is_by_puts(row))
    }

    /// Returns the row of algorithm `name` at a size over `channel`.
    pub(super) fn row(&self, bytes: u64, channel: TestChannel, name: &str) -> Option<&PerfRow> {
        self.over(bytes, channel).find(|row| algorithm(row) == name)
    }

    /// Returns the quickest row of the library at a size over `channel`. The default counts only
    /// where no row has a name.
    pub(super) fn quickest(&self, bytes: u64, channel: TestChannel) -> Option<&PerfRow> {
        let is_nameless = |row: &PerfRow| row.variant.is_none();
        self.over(bytes, channel)
            .filter(|row| !is_by_puts(row))
            .min_by(|a, b| is_nameless(a).cmp(&is_nameless(b)).then(time(a).total_cmp(&time(b))))
    }

    /// Returns the sizes at which puts of a program's own were measured beside the collective, in
    /// rising order, with both.
    pub(super) fn beside_puts(&self) -> Vec<BesidePuts<'_>> {
        let beside = |bytes| {
            let of = |name| self.row(bytes, TestChannel::Memory, name);
            Some(BesidePuts { bytes, puts: of(PUTS)?, collective: of(BY_DEFAULT)? })
        };
        self.sizes().into_iter().filter_map(beside).collect()
    }

    /// Returns the size, where both channels were measured at it.
    pub(super) fn point(&self, bytes: u64) -> Option<Point<'_>> {
        let quickest = |channel| self.quickest(bytes, channel);
        let (direct, proxied) = (quickest(TestChannel::Memory)?, quickest(TestChannel::Port)?);
        Some(Point { bytes, direct, proxied })
    }

    /// Returns all sizes at which both channels were measured, in rising order.
    pub(super) fn points(&self) -> Vec<Point<'_>> {
        self.sizes().into_iter().filter_map(|bytes| self.point(bytes)).collect()
    }

    /// Returns the size, where both channels can be [compared](Self::is_even) at it.
    pub(super) fn even_point(&self, bytes: u64) -> Option<Point<'_>> {
        self.point(bytes).filter(|_| self.is_even(bytes))
    }

    /// Whether the cores were of one kind in the jobs of both channels at a size, as far as they
    /// were probed. Cores may turn from hyper-thread siblings into separate cores and back between
    /// two jobs.
    pub(super) fn is_even(&self, bytes: u64) -> bool {
        let probed = |channel| self.over(bytes, channel).find_map(|row| row.cores.probe_ns);
        match (probed(TestChannel::Memory), probed(TestChannel::Port)) {
            (Some(direct), Some(proxied)) => direct.max(proxied) < direct.min(proxied) * APART,
            _ => true,
        }
    }

    /// Returns the wrong elements or bytes of all rows at a size; `None` when a row was not
    /// checked.
    pub(super) fn wrong_at(&self, bytes: u64) -> Option<u64> {
        self.at(bytes).try_fold(0, |sum: u64, row| Some(sum.saturating_add(row.wrong?)))
    }

    /// Returns all rows at a size.
    pub(super) fn at(&self, bytes: u64) -> impl Iterator<Item = &PerfRow> {
        self.report.rows.iter().filter(move |row| row.bytes == Some(bytes))
    }

    fn over(&self, bytes: u64, channel: TestChannel) -> impl Iterator<Item = &PerfRow> {
        self.at(bytes).filter(move |row| row.channel == Some(channel))
    }
}

impl Point<'_> {
    /// Returns how many times as long as direct proxied takes.
    pub(super) fn factor(&self) -> f64 {
        time(self.proxied) / time(self.direct).max(1e-3)
    }

    /// Returns what stands before what is made of both times: `~` unless both are steady.
    pub(super) fn mark(&self) -> &'static str {
        if [self.direct, self.proxied].iter().all(|row| row.is_steady("p50_ns")) { "" } else { "~" }
    }

    /// Writes how many times as long as direct proxied takes.
    pub(super) fn told_factor(&self) -> String {
        format!("{}{} x", self.mark(), three_digits(self.factor()))
    }

    /// Returns what both channels cost, where both have a figure.
    pub(super) fn cost(
        &self,
        direct: impl Fn(&PerfRow) -> Option<f64>,
        proxied: impl Fn(&PerfRow) -> Option<f64>,
    ) -> Option<Cost> {
        Some(Cost { bytes: self.bytes, holder: direct(self.direct)?, challenger: proxied(self.proxied)? })
    }
}

/// Whether a row is that of puts of a program's own.
pub(super) fn is_by_puts(row: &PerfRow) -> bool {
    row.variant.as_deref() == Some(PUTS)
}

/// Returns the name of the algorithm of a row.
pub(super) fn algorithm(row: &PerfRow) -> &str {
    row.variant.as_deref().unwrap_or(BY_DEFAULT)
}

/// Returns the median time of a row, in nanoseconds.
pub(super) fn time(row: &PerfRow) -> f64 {
    row.times.p50_ns.unwrap_or(f64::INFINITY)
}

/// Whether a row has too few samples for its median to show anything.
pub(super) fn is_thin(row: &PerfRow) -> bool {
    row.times.samples.is_some_and(|samples| samples < FEWEST_SAMPLES)
}
