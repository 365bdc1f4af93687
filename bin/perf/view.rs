//! The report of `shmccl perf` as a table: a line per row, a column per figure that any row has. And a
//! warning where what was measured differs too much from itself.

use super::report::{PerfReport, PerfRow, share_of_stalls};
use super::test::Test;
use crate::output::{self, Look};
use crate::table::TextTable;
use crate::units::{fine_percent, format_ns, format_size, percent, three_digits};

type PerfColumn = (&'static str, fn(&PerfRow) -> Option<String>);

/// How many columns, from the first, hold words and not figures.
const WORDS: usize = 3;

const COLUMNS: [PerfColumn; 23] = [
    (TEST, |row| Some(row.test.name().to_owned())),
    ("channel", |row| row.channel.map(|channel| channel.name().to_owned())),
    ("variant", |row| row.variant.clone()),
    ("ranks", |row| Some(row.ranks.to_string())),
    ("size", |row| row.bytes.map(format_size)),
    (TOGETHER, |row| row.operations_per_sample.map(|count| count.to_string())),
    ("min", |row| row.min_ns.map(format_ns)),
    ("p50", |row| row.p50_ns.map(format_ns)),
    ("p99", |row| row.p99_ns.map(format_ns)),
    ("max", |row| row.max_ns.map(format_ns)),
    ("GB/s", |row| row.gb_per_s.map(three_digits)),
    ("M/s", |row| row.per_s.map(|per_s| three_digits(per_s / 1e6))),
    ("overlap", |row| row.overlap.map(percent)),
    ("device CPU", |row| row.device_cpu_ns.map(format_ns)),
    ("depth p50", |row| row.fifo_depth_p50.map(|depth| depth.to_string())),
    ("depth max", |row| row.fifo_depth.map(|depth| depth.to_string())),
    ("stalls", |row| share_of_stalls(row.stalls, row.pushes).map(fine_percent)),
    ("limit", |row| row.limit.clone()),
    ("limit p50", |row| row.limit_p50_ns.map(format_ns)),
    ("cost", cost),
    ("time/limit", |row| row.ratio.map(three_digits)),
    ("(p10..p90)", spread),
    ("wrong", |row| row.wrong.map(|wrong| wrong.to_string())),
];

const TEST: &str = "test";

const TOGETHER: &str = "ops/sample";

/// What a narrow terminal goes without, the first to go first. What is left fits in 80 characters for every test.
const EXPENDABLE: [&str; 13] = [
    TOGETHER,
    "max",
    "min",
    "stalls",
    "depth p50",
    "depth max",
    "ranks",
    "limit p50",
    "(p10..p90)",
    "device CPU",
    "limit",
    "p99",
    "channel",
];

/// The head line and the table; rows with wrong data are red where there is colour. Where the terminal is too narrow for one
/// table, each test gets its own.
pub(crate) fn text(look: Look, report: &PerfReport) -> String {
    let whole = grid(&report.rows.iter().collect::<Vec<_>>());
    let head = report.machine.line();
    if whole.fits(look) {
        return format!("{head}\n\n{}{}", whole.text(look, &[]), note(report));
    }
    let mut tests: Vec<_> = report.rows.iter().map(|row| row.test).collect();
    tests.dedup();
    let table = |test: &Test| {
        let mut grid = grid(&report.rows.iter().filter(|row| row.test == *test).collect::<Vec<_>>());
        grid.drop_column(TEST);
        format!("{}\n{}", test.name(), grid.text(look, &EXPENDABLE))
    };
    format!("{head}\n\n{}{}", tests.iter().map(table).collect::<Vec<_>>().join("\n"), note(report))
}

/// What percentiles are of, where an operation is no sample: the clock is too slow for one, or one has no time of its own.
fn note(report: &PerfReport) -> &'static str {
    let is_mean = |row: &PerfRow| row.operations_per_sample.is_some_and(|count| count > 1);
    if report.rows.iter().any(is_mean) {
        "ops/sample: operations that were timed together; min, p50, p99 and max are\n\
         then those of their means (2: there and back, halved).\n"
    } else {
        ""
    }
}

/// The columns that any of the rows needs.
fn grid(rows: &[&PerfRow]) -> TextTable<'static> {
    let used = |column: &&PerfColumn| rows.iter().any(|row| (column.1)(row).is_some());
    let columns: Vec<&PerfColumn> = COLUMNS.iter().filter(used).collect();
    let line = |row: &&PerfRow| {
        let text = |column: &&PerfColumn| (column.1)(row).unwrap_or_else(|| "-".to_owned());
        (columns.iter().map(text).collect(), row.wrong.is_some_and(|wrong| wrong > 0))
    };
    TextTable {
        head: columns.iter().map(|(name, _)| *name).collect(),
        words: COLUMNS[..WORDS].iter().filter(used).count(),
        rows: rows.iter().map(line).collect(),
    }
}

/// By how much what is noted takes longer than what is not.
fn cost(row: &PerfRow) -> Option<String> {
    let ratio = row.ratio.filter(|_| row.test == Test::TraceCost)?;
    Some(format!("{:+.1} %", 100.0 * (ratio - 1.0)))
}

/// Where a tenth of the slices lie below and above.
fn spread(row: &PerfRow) -> Option<String> {
    let (low, high) = row.ratio_p10.zip(row.ratio_p90)?;
    Some(format!("({}..{})", three_digits(low), three_digits(high)))
}

/// Where a tenth of the slices take this many times as long as another tenth, held against the limit in the same slices, something
/// else than the test has changed meanwhile.
const TOO_WIDE: f64 = 3.0;

/// Of fewer samples nothing else is to be expected.
const LEAST_SAMPLES: u64 = 100;

/// Tells in one line, if there is reason to.
pub(crate) fn note_spread(rows: &[PerfRow]) {
    if let Some(line) = warning(rows) {
        output::note(&line);
    }
}

fn warning(rows: &[PerfRow]) -> Option<String> {
    let settled = rows.iter().filter(|row| row.samples.is_some_and(|samples| samples >= LEAST_SAMPLES));
    let spreads: Vec<_> = settled.filter_map(|row| Some((row, row.ratio_p10?, row.ratio_p90?))).collect();
    let width = |low: f64, high: f64| high / low.max(f64::MIN_POSITIVE);
    let wide = spreads.iter().filter(|(_, low, high)| width(*low, *high) > TOO_WIDE);
    let (row, low, high) = wide.clone().max_by(|a, b| width(a.1, a.2).total_cmp(&width(b.1, b.2)))?;
    let words = [
        Some(row.test.name().to_owned()),
        row.channel.map(|channel| channel.name().to_owned()),
        row.bytes.map(format_size),
    ];
    Some(format!(
        "the machine was busy, or its cores drifted: {} of {} ratios spread more than {TOO_WIDE}-fold, that of {} from {} to {}; measure again",
        wide.count(),
        spreads.len(),
        words.into_iter().flatten().collect::<Vec<_>>().join(" "),
        three_digits(*low),
        three_digits(*high)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MachineInfo;
    use crate::perf::test::{Test, TestChannel};

    #[test]
    fn only_columns_that_some_row_needs_are_shown() {
        let put = PerfRow {
            channel: Some(TestChannel::Memory),
            bytes: Some(8),
            p50_ns: Some(134.0),
            ratio: Some(1.05),
            ratio_p10: Some(1.02),
            ratio_p90: Some(1.11),
            wrong: Some(0),
            ..PerfRow::new(Test::PutLatency, 2)
        };
        let barrier = PerfRow { p50_ns: Some(1500.0), ..PerfRow::new(Test::Barrier, 8) };
        let report = PerfReport { machine: MachineInfo::detect(), rows: vec![put, barrier] };
        let text = text(Look::plain(), &report);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[0],
            ["test", "channel", "ranks", "size", "p50", "time/limit", "(p10..p90)", "wrong"]
        );
        assert_eq!(
            lines[1],
            ["put_latency", "memory", "2", "8", "B", "134", "ns", "1.05", "(1.02..1.11)", "0"]
        );
        assert_eq!(lines[2], ["barrier", "-", "8", "-", "1.50", "us", "-", "-", "-"]);
    }

    /// Every column that any test fills, in figures of full length.
    fn full(test: Test, variant: &str) -> PerfRow {
        let (ns, ratio) = (Some(123_000.0), Some(0.123));
        PerfRow {
            channel: Some(TestChannel::Memory),
            variant: Some(variant.to_owned()),
            bytes: Some(512 << 10),
            min_ns: ns,
            p50_ns: ns,
            p99_ns: ns,
            max_ns: ns,
            gb_per_s: Some(0.123),
            per_s: Some(1.23e5),
            device_cpu_ns: ns,
            fifo_depth: Some(512),
            fifo_depth_p50: Some(256),
            pushes: Some(100_000),
            stalls: Some(12_345),
            limit: Some("raw copy + flag + 2 yield hand-offs".to_owned()),
            limit_p50_ns: ns,
            ratio,
            ratio_p10: ratio,
            ratio_p90: ratio,
            wrong: Some(0),
            ..PerfRow::new(test, 64)
        }
    }

    #[test]
    fn a_terminal_of_eighty_columns_gets_a_table_per_test_and_no_line_is_longer() {
        let longest = full(Test::FifoRate, "4 producers, 4 fifos, exclusive");
        let longest = PerfRow { bytes: None, gb_per_s: None, ..longest };
        let rows = vec![full(Test::PutLatency, "LL8"), full(Test::PutLatency, "LL16"), longest];
        let report = PerfReport { machine: MachineInfo::detect(), rows };
        let text = text(Look { width: Some(80), ..Look::plain() }, &report);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        for line in &lines {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert_eq!(lines.iter().filter(|line| **line == "put_latency" || **line == "fifo_rate").count(), 2);
        assert!(lines.iter().any(|line| line.contains("p50") && line.contains("time/limit")), "{text}");
    }

    #[test]
    fn a_table_of_means_says_so() {
        let row = |count| PerfRow { operations_per_sample: Some(count), ..PerfRow::new(Test::PutLatency, 2) };
        let text = |count| {
            text(Look::plain(), &PerfReport { machine: MachineInfo::detect(), rows: vec![row(count)] })
        };
        assert!(text(32).ends_with("(2: there and back, halved).\n") && text(32).contains("ops/sample"));
        assert!(!text(1).contains("halved"));
    }

    #[test]
    fn a_report_without_rows_is_a_head_line() {
        let report = PerfReport { machine: MachineInfo::detect(), rows: vec![] };
        assert!(text(Look::plain(), &report).starts_with(&report.machine.line()));
    }

    fn row(bytes: u64, spread: Option<(f64, f64)>) -> PerfRow {
        let (ratio_p10, ratio_p90) = spread.unzip();
        PerfRow {
            bytes: Some(bytes),
            samples: Some(100),
            channel: Some(TestChannel::Memory),
            ratio_p10,
            ratio_p90,
            ..PerfRow::new(Test::PutLatency, 2)
        }
    }

    #[test]
    fn ratios_that_differ_threefold_are_told_in_one_line_by_the_widest() {
        let calm = [row(8, Some((1.0, 2.9))), row(16, None)];
        assert_eq!(warning(&calm), None);
        let busy = [&calm[..], &[row(32, Some((0.5, 2.0))), row(4096, Some((0.25, 2.5)))]].concat();
        let line = warning(&busy).unwrap();
        assert!(
            line.contains(
                "2 of 3 ratios spread more than 3-fold, that of put_latency memory 4 KiB from 0.250 to 2.50"
            ),
            "{line}"
        );
        assert!(!line.contains('\n'));
        assert!(warning(&[row(8, Some((0.0, 1.0)))]).is_some());
        assert_eq!(warning(&[PerfRow { samples: Some(99), ..row(8, Some((0.0, 1.0))) }]), None);
    }
}
