//! The numbers of a comparison of ways.

use serde::Serialize;

use super::verdict::{Lead, Verdict};
use crate::compare::crossing::Crossing;
use crate::flags::ProxyPlace;
use crate::machine::MachineInfo;
use crate::perf::report::PerfRow;
use crate::perf::slices::APART;
use crate::perf::test::{Test, TestChannel};

/// What the library does where nobody chooses.
pub(super) const BY_DEFAULT: &str = "default";

/// One operation in many ways over sizes, on one machine: at each size in one job over each kind of channel.
#[derive(Clone, Debug)]
pub(crate) struct RivalReport {
    /// Where it ran.
    pub(crate) machine: MachineInfo,
    /// Where the proxies ran.
    pub(crate) proxy: ProxyPlace,
    /// The operation.
    pub(crate) test: Test,
    /// How many ranks did it.
    pub(crate) n_ranks: u32,
    /// A row for each way at each size.
    pub(crate) rows: Vec<PerfRow>,
}

/// The file `compare.json`.
#[derive(Debug, Serialize)]
pub(crate) struct RivalFile {
    machine: MachineInfo,
    proxy: ProxyPlace,
    op: Test,
    ranks: u32,
    /// Null when there was too little to conclude from.
    crossover: Option<Crossovers>,
    summary: Vec<String>,
    rows: Vec<PerfRow>,
}

#[derive(Debug, Serialize)]
struct Crossovers {
    /// Which algorithm from which size on, over memory channels.
    memory: Vec<Lead>,
    /// The same over port channels.
    port: Vec<Lead>,
    /// Where the quickest proxied way overtakes the quickest direct one; null where no size can tell.
    proxied: Option<Crossing>,
}

impl RivalReport {
    /// Sizes, in rising order.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.rows.iter().filter_map(|row| row.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Names of the algorithms, the default first.
    pub(super) fn algorithms(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for row in &self.rows {
            if !names.contains(&name(row)) {
                names.push(name(row));
            }
        }
        names
    }

    /// Those of them that were measured over `channel`.
    pub(super) fn algorithms_over(&self, channel: TestChannel) -> Vec<&str> {
        let is_there = |algorithm: &&str| {
            self.rows.iter().any(|row| row.channel == Some(channel) && name(row) == *algorithm)
        };
        self.algorithms().into_iter().filter(is_there).collect()
    }

    /// Whether there are algorithms to choose from.
    pub(super) fn has_choice(&self) -> bool {
        self.rows.iter().any(|row| row.variant.is_some())
    }

    /// What `algorithm` took at a size over `channel`.
    pub(super) fn row(&self, bytes: u64, channel: TestChannel, algorithm: &str) -> Option<&PerfRow> {
        self.at(bytes, channel).find(|row| name(row) == algorithm)
    }

    /// The quickest algorithm at a size over `channel`; what the library does by itself where there is none with a name.
    pub(super) fn quickest(&self, bytes: u64, channel: TestChannel) -> Option<&PerfRow> {
        let is_nameless = |row: &PerfRow| row.variant.is_none();
        self.at(bytes, channel)
            .min_by(|a, b| is_nameless(a).cmp(&is_nameless(b)).then(time(a).total_cmp(&time(b))))
    }

    /// How many times as long as the quickest direct way the quickest proxied one takes at a size; `None` where the two cannot be
    /// [compared](Self::is_even).
    pub(super) fn factor(&self, bytes: u64) -> Option<f64> {
        let best = |channel| self.quickest(bytes, channel).map(time);
        let (direct, proxied) = (best(TestChannel::Memory)?, best(TestChannel::Port)?);
        self.is_even(bytes).then(|| proxied / direct.max(1e-3))
    }

    /// Whether the cores were of one kind in both jobs of a size, as far as anybody has probed them: they may turn from
    /// hyper-thread siblings into separate cores and back between the two.
    pub(super) fn is_even(&self, bytes: u64) -> bool {
        let probed = |channel| self.at(bytes, channel).find_map(|row| row.probe_ns);
        match (probed(TestChannel::Memory), probed(TestChannel::Port)) {
            (Some(direct), Some(proxied)) => direct.max(proxied) < direct.min(proxied) * APART,
            _ => true,
        }
    }

    fn at(&self, bytes: u64, channel: TestChannel) -> impl Iterator<Item = &PerfRow> {
        self.rows.iter().filter(move |row| (row.bytes, row.channel) == (Some(bytes), Some(channel)))
    }

    /// How many figures carry wrong data: the run fails when there is one.
    pub(super) fn wrong_rows(&self) -> usize {
        self.rows.iter().filter(|row| row.wrong.is_some_and(|wrong| wrong > 0)).count()
    }

    /// Wrong elements of all ways at a size; `None` when nothing was checked.
    pub(super) fn wrong_at(&self, bytes: u64) -> Option<u64> {
        self.rows.iter().filter(|row| row.bytes == Some(bytes)).map(|row| row.wrong).sum()
    }

    /// The report as it goes to `compare.json`.
    pub(super) fn to_file(&self) -> RivalFile {
        let verdict = Verdict::of(self);
        RivalFile {
            machine: self.machine.clone(),
            proxy: self.proxy,
            op: self.test,
            ranks: self.n_ranks,
            summary: verdict.sentences(self),
            crossover: verdict.too_few.is_none().then_some(Crossovers {
                memory: verdict.direct,
                port: verdict.proxied,
                proxied: verdict.compared.is_some().then_some(verdict.overtaking),
            }),
            rows: self.rows.clone(),
        }
    }
}

/// The algorithm of a row.
pub(super) fn name(row: &PerfRow) -> &str {
    row.variant.as_deref().unwrap_or(BY_DEFAULT)
}

/// The median time of a row in nanoseconds.
pub(super) fn time(row: &PerfRow) -> f64 {
    row.p50_ns.unwrap_or(f64::INFINITY)
}
