//! Rows of pairs, put in order of their ranks.

use shmccl_harness::report::PerfRow;
use shmccl_harness::test::TestChannel;

use crate::perf::spec::MatrixFigure;
use crate::units::{format_size, three_digits};

/// From here on latencies are shown in microseconds.
const LONG_NS: f64 = 10_000.0;

/// One figure of every pair, over one channel.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// The figure.
    pub(crate) figure: MatrixFigure,
    /// The channel.
    pub(crate) channel: TestChannel,
    /// Bytes of a put.
    pub(crate) bytes: u64,
    /// The core of each rank; `None` where the scheduler decides.
    pub(crate) cores: Vec<Option<u32>>,
    /// 10^9 bytes per second, nanoseconds or microseconds.
    pub(crate) unit: &'static str,
    /// By the rank that puts and the rank that it puts to.
    cells: Vec<Vec<Option<Cell>>>,
}

/// One pair.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    /// In the matrix's unit.
    pub(crate) value: f64,
    /// The value as a text, with a mark where it is not steady.
    told: String,
    /// Time over limit, with its marks.
    pub(crate) ratio: Option<String>,
    /// Whether both ranks share a core.
    pub(crate) one_core: bool,
}

impl Cell {
    /// Writes the value, with an asterisk where both ranks share a core.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.told, if self.one_core { "*" } else { "" })
    }
}

impl Matrix {
    /// Makes the matrices of these rows, in the order in which they were measured.
    pub(crate) fn all(rows: &[PerfRow]) -> Vec<Self> {
        let mut channels: Vec<_> = rows.iter().filter_map(|row| row.channel).collect();
        channels.dedup();
        let of = |channel| MatrixFigure::OF_PAIRS.map(|figure| Self::of(rows, channel, figure));
        channels.into_iter().flat_map(of).flatten().collect()
    }

    fn of(rows: &[PerfRow], channel: TestChannel, figure: MatrixFigure) -> Option<Self> {
        let is_of = |row: &&PerfRow| {
            row.channel == Some(channel)
                && row.variant.as_deref() == Some(figure.name())
                && row.place.is_some()
        };
        let rows: Vec<&PerfRow> = rows.iter().filter(is_of).collect();
        let first = rows.first()?;
        let n_ranks = first.ranks as usize;
        let key = if figure == MatrixFigure::Latency { "p50_ns" } else { "gb_per_s" };
        let value = |row: &PerfRow| {
            if figure == MatrixFigure::Latency { row.times.p50_ns } else { row.times.gb_per_s }
        };
        let longest = rows.iter().filter_map(|row| value(row)).fold(0.0, f64::max);
        let (unit, scale) = match figure {
            MatrixFigure::Latency if longest >= LONG_NS => ("us", 1e-3),
            MatrixFigure::Latency => ("ns", 1.0),
            _ => ("GB/s", 1.0),
        };
        let mut cores = vec![None; n_ranks];
        let mut cells = vec![vec![None; n_ranks]; n_ranks];
        for row in &rows {
            let (Some(place), Some(value)) = (row.place, value(row)) else { continue };
            let (from, to) = (place.from as usize, place.to as usize);
            cores[from] = place.from_core;
            let told = row.told(key, |value| three_digits(value * scale)).unwrap_or_default();
            let (value, one_core) = (value * scale, place.one_core());
            cells[from][to] = Some(Cell { value, told, ratio: row.told_ratio(""), one_core });
        }
        Some(Self { figure, channel, bytes: first.bytes.unwrap_or(0), cores, unit, cells })
    }

    /// Returns the number of ranks.
    pub(crate) fn n_ranks(&self) -> usize {
        self.cells.len()
    }

    /// Returns the cell of `from` and `to`; nothing on the diagonal.
    pub(crate) fn cell(&self, from: usize, to: usize) -> Option<&Cell> {
        self.cells[from][to].as_ref()
    }

    /// Returns the greatest value.
    pub(crate) fn most(&self) -> f64 {
        self.cells.iter().flatten().flatten().map(|cell| cell.value).fold(0.0, f64::max)
    }

    /// Writes what the matrix shows.
    pub(crate) fn title(&self) -> String {
        let what = match self.figure {
            MatrixFigure::Unidirectional => "bandwidth one way",
            MatrixFigure::Bidirectional => "bandwidth of both ways at once",
            _ => "latency of put_with_signal",
        };
        format!("{what}, {}, {}", format_size(self.bytes), self.unit)
    }

    /// Writes the ranks of each core that several share: `0, 2; 1, 3`. Returns `None` where no core
    /// is shared.
    pub(crate) fn shared(&self) -> Option<String> {
        let mut cores: Vec<u32> = self.cores.iter().copied().flatten().collect();
        cores.sort_unstable();
        cores.dedup();
        let ranks = |core: &u32| {
            let on_it = self.cores.iter().enumerate().filter(|(_, place)| **place == Some(*core));
            on_it.map(|(rank, _)| rank.to_string()).collect::<Vec<_>>()
        };
        let groups = cores.iter().map(ranks).filter(|ranks| ranks.len() > 1);
        let groups: Vec<_> = groups.map(|ranks| ranks.join(", ")).collect();
        (!groups.is_empty()).then(|| groups.join("; "))
    }
}
