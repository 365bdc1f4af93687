//! The lines of nccl-tests' table, character for character, so that its readers can read this one.
//!
//! Each function is one `printf` of nccl-tests. Columns of our own come behind theirs, and only
//! where they are asked for.

use crate::figures::three_digits;
use crate::lines::RankPlacement;
use crate::report::{CollectiveFigures, PerfRow, RowTimes};
use crate::test::Test;

/// The contents of the first lines.
#[derive(Clone, Copy, Debug)]
pub struct TableHead {
    /// The test.
    pub test: Test,
    /// Ranks.
    pub n_ranks: u32,
    /// The sizes.
    pub sizes: SizeRange,
    /// Operations before the clock starts at each size, at least.
    pub warmup: u64,
    /// Operations at each size, at least.
    pub iters: u64,
    /// How often data are verified, as it was asked for.
    pub check: u32,
}

/// The machine, as a device is named.
#[derive(Clone, Debug)]
pub struct MachineName {
    /// The host.
    pub host: String,
    /// The processor.
    pub processor: String,
}

/// The range of sizes that a table names.
#[derive(Clone, Copy, Debug)]
pub struct SizeRange {
    /// The smallest, in bytes.
    pub least: u64,
    /// The largest.
    pub most: u64,
    /// From one size to the next.
    pub step: u64,
    /// What the step is: a factor, or bytes.
    pub unit: &'static str,
}

/// Which columns of our own are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extras {
    /// Least, median, 99th percentile, greatest time.
    pub percentiles: bool,
    /// The limit's median, and how many times longer the operation takes.
    pub bound: bool,
    /// The time of the operation in the heap, and how many times longer this one takes.
    pub heap: bool,
}

impl TableHead {
    /// Writes everything above the rows.
    pub fn text(&self, placements: &[RankPlacement], machine: &MachineName, extras: Extras) -> String {
        let Self { n_ranks, sizes: SizeRange { least, most, step, unit }, warmup, iters, check, .. } = self;
        let mut text = format!("# Collective test starting: {}_perf\n", self.test.nccl_tests_name());
        text += &format!(
            "# nThread 1 nGpus {n_ranks} minBytes {least} maxBytes {most} step: {step}({unit}) \
             warmup iters: {warmup} iters: {iters} agg iters: 1 validation: {check} graph: 0\n\
             #\n# Using devices\n"
        );
        for RankPlacement { rank, pid, core } in placements {
            text += &format!(
                "#  Rank {rank:2} Group {:2} Pid {pid:6} on {:>10} device {rank:2} [{core:#04x}] {}\n",
                0, machine.host, machine.processor
            );
        }
        text + &column_heads(extras)
    }
}

fn column_heads(extras: Extras) -> String {
    let line = |words: [&str; 5], figures: [&str; 4], gap: usize, own: &str| {
        let [size, count, data_type, redop, root] = words;
        let [time, algbw, busbw, wrong] = figures;
        let place = format!("  {time:>7}  {algbw:>6}  {busbw:>6}{:gap$}{wrong:>width$}", "", width = 7 - gap);
        format!("# {size:>10}  {count:>12}  {data_type:>8}  {redop:>6}  {root:>6}{place}{place}{own}\n")
    };
    let (names, units) = extras.heads();
    format!(
        "#\n# {:10}  {:12}  {:8}  {:6}  {:6}           out-of-place                       in-place          \n",
        "", "", "", "", ""
    ) + &line(["size", "count", "type", "redop", "root"], ["time", "algbw", "busbw", "#wrong"], 1, &names)
        + &line(["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""], 2, &units)
}

impl Extras {
    /// Returns names and units of our columns, for both places.
    fn heads(self) -> (String, String) {
        let mut columns = Vec::new();
        if self.percentiles {
            columns.extend([("min", "(us)"), ("p50", "(us)"), ("p99", "(us)"), ("max", "(us)")]);
        }
        if self.bound {
            columns.extend([("limit", "(us)"), ("ratio", "")]);
        }
        if self.heap {
            columns.extend([("heap", "(us)"), ("ratio", "")]);
        }
        let line = |of: fn(&(&str, &str)) -> String| columns.iter().map(of).collect::<String>().repeat(2);
        (line(|column| format!("  {:>8}", column.0)), line(|column| format!("  {:>8}", column.1)))
    }

    /// Writes our columns of one place.
    fn cells(self, row: &PerfRow) -> String {
        let us = |ns| known(ns, |ns| time(ns).trim_start().to_owned());
        let compared = |ns, ratio| [us(ns), known(ratio, three_digits)];
        let mut cells = Vec::new();
        if self.percentiles {
            let RowTimes { min_ns, p50_ns, p99_ns, max_ns, .. } = row.times;
            cells.extend([min_ns, p50_ns, p99_ns, max_ns].map(us));
        }
        if self.bound {
            cells.extend(compared(row.limit.p50_ns, row.limit.ratio));
        }
        if self.heap {
            let figures = row.collective.as_ref().map(|figures| (figures.heap_p50_ns, figures.heap_ratio));
            let (p50_ns, ratio) = figures.unwrap_or_default();
            cells.extend(compared(p50_ns, ratio));
        }
        cells.iter().map(|cell| format!("  {cell:>8}")).collect()
    }
}

/// Writes one size, out of place and in place.
pub fn row(apart: &PerfRow, in_place: &PerfRow, extras: Extras) -> String {
    let head = apart.collective.as_ref().map(|figures| {
        let CollectiveFigures { count, data_type, redop, root, .. } = figures;
        format!("{:12}  {count:12}  {data_type:>8}  {redop:>6}  {root:>6}", apart.bytes.unwrap_or(0))
    });
    format!(
        "{}{}{}{}{}\n",
        head.unwrap_or_default(),
        place(apart),
        place(in_place),
        extras.cells(apart),
        extras.cells(in_place)
    )
}

fn place(row: &PerfRow) -> String {
    let (algbw, busbw) = row.collective.as_ref().map_or((0.0, 0.0), |figures| (figures.algbw, figures.busbw));
    let wrong = known(row.wrong, |wrong| general(wrong as f64));
    format!("  {:>7}  {algbw:>6.2}  {busbw:>6.2}  {wrong:>5}", time(row.times.p50_ns.unwrap_or(0.0)))
}

/// Writes what stands below the rows: how many have wrong data, and the mean bus bandwidth.
pub fn foot(test: &str, rows: &[PerfRow]) -> String {
    let wrong = rows.iter().filter(|row| row.wrong.is_some_and(|wrong| wrong > 0)).count();
    let busbw: Vec<f64> = rows.iter().filter_map(|row| Some(row.collective.as_ref()?.busbw)).collect();
    let mean = busbw.iter().sum::<f64>() / busbw.len().max(1) as f64;
    format!(
        "# Out of bounds values : {wrong} {}\n# Avg bus bandwidth    : {} \n#\n# Collective test concluded: {test}_perf\n",
        if wrong == 0 { "OK" } else { "FAILED" },
        general(mean)
    )
}

/// Writes a figure, or that there is none.
fn known<T>(figure: Option<T>, write: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| "N/A".to_owned(), write)
}

/// Writes nanoseconds as microseconds: `%7.2f`, with fewer decimals for longer times.
fn time(ns: f64) -> String {
    match ns / 1e3 {
        us if us >= 10_000.0 => format!("{us:7.0}"),
        us if us >= 100.0 => format!("{us:7.1}"),
        us => format!("{us:7.2}"),
    }
}

/// Writes C's `%g`: six significant digits without zeros behind the point, and an exponent where
/// the value is large or small.
fn general(value: f64) -> String {
    let scientific = format!("{value:.5e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if value != 0.0 && !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(digits), exponent.abs());
    }
    let decimals = usize::try_from(5 - exponent).unwrap_or(0);
    trim(&format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use shmccl::collective::Operation;

    use super::*;
    use crate::report::{Memory, RowLimit};

    const PLAIN: Extras = Extras { percentiles: false, bound: false, heap: false };

    fn measured(us: f64, wrong: Option<u64>) -> PerfRow {
        PerfRow {
            bytes: Some(1024),
            times: RowTimes { p50_ns: Some(us * 1e3), ..RowTimes::default() },
            limit: RowLimit { p50_ns: Some(1e3), ratio: Some(1.25), ..RowLimit::default() },
            wrong,
            collective: Some(CollectiveFigures {
                algbw: 1.0,
                busbw: 1.5,
                memory: Memory::Heap,
                in_place: false,
                data_type: "float".to_owned(),
                redop: "sum".to_owned(),
                root: -1,
                count: 256,
                heap_p50_ns: Some(500.0),
                heap_ratio: Some(2.0),
            }),
            ..PerfRow::new(Test::Operation(Operation::AllReduce), 4)
        }
    }

    #[test]
    fn lines_are_those_of_nccl_tests_to_the_character() {
        let heads = column_heads(PLAIN);
        let lines: Vec<_> = heads.lines().collect();
        assert_eq!(
            lines[1],
            "#                                                              out-of-place                       in-place          "
        );
        assert_eq!(
            lines[2],
            "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
        );
        assert_eq!(
            lines[3],
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       "
        );
        assert_eq!(
            row(&measured(12.345, Some(0)), &measured(123.45, Some(0)), PLAIN),
            "        1024           256     float     sum      -1    12.35    1.00    1.50      0    123.5    1.00    1.50      0\n"
        );
        assert_eq!(
            row(&measured(0.1, Some(0)), &measured(0.1, None), PLAIN),
            "        1024           256     float     sum      -1     0.10    1.00    1.50      0     0.10    1.00    1.50    N/A\n"
        );
    }

    #[test]
    fn our_columns_come_behind_theirs() {
        let both = Extras { percentiles: true, bound: true, heap: true };
        let measured = measured(1.0, Some(0));
        let line = row(&measured, &measured, both);
        assert!(line.starts_with(row(&measured, &measured, PLAIN).trim_end()));
        assert!(line.ends_with("     1.00      1.25      0.50      2.00\n"), "{line}");
        let heads = column_heads(both);
        assert_eq!(heads.lines().nth(2).unwrap().len() + 1, line.len());
    }

    #[test]
    fn the_head_tells_ranks_sizes_and_devices() {
        let head = TableHead {
            test: Test::Operation(Operation::AllReduce),
            n_ranks: 2,
            sizes: SizeRange { least: 8, most: 64, step: 2, unit: "factor" },
            warmup: 5,
            iters: 20,
            check: 1,
        };
        let machine = MachineName { host: "node".to_owned(), processor: "some processor".to_owned() };
        let text = head.text(&[RankPlacement { rank: 1, pid: 4711, core: 1 }], &machine, PLAIN);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
        );
        assert_eq!(lines[4], "#  Rank  1 Group  0 Pid   4711 on       node device  1 [0x01] some processor");
    }

    #[test]
    fn wrong_data_is_told_in_the_row_and_below() {
        let rows = [measured(1.0, Some(1_234_567)), measured(1.0, Some(0))];
        assert!(row(&rows[0], &rows[1], PLAIN).contains(" 1.23457e+06"));
        assert!(
            foot("reduce", &rows)
                .starts_with("# Out of bounds values : 1 FAILED\n# Avg bus bandwidth    : 1.5 \n")
        );
    }

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (3.0, "3"),
            (41.046_63, "41.0466"),
            (0.000_123_456_7, "0.000123457"),
            (0.000_012_345, "1.2345e-05"),
            (999_999.5, "1e+06"),
            (123_456.0, "123456"),
        ] {
            assert_eq!(general(value), text);
        }
    }
}
