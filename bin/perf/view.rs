//! The report of `shmccl perf` as a table: a line per row, a column per figure that any row has.
//! And a warning where what was measured differs too much from itself.

use super::report::{PerfReport, PerfRow};
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
    (TOGETHER, |row| row.times.operations_per_sample.map(|count| count.to_string())),
    ("min", |row| row.times.min_ns.map(format_ns)),
    ("p50", |row| row.times.p50_ns.map(format_ns)),
    ("p99", |row| row.times.p99_ns.map(format_ns)),
    ("max", |row| row.times.max_ns.map(format_ns)),
    ("GB/s", |row| row.times.gb_per_s.map(three_digits)),
    ("M/s", |row| row.times.per_s.map(|per_s| three_digits(per_s / 1e6))),
    ("overlap", |row| row.overlap.map(percent)),
    ("device CPU", |row| row.cpu.p50_ns.map(format_ns)),
    ("depth p50", |row| row.fifo.depth_p50.map(|depth| depth.to_string())),
    ("depth max", |row| row.fifo.depth.map(|depth| depth.to_string())),
    ("stalls", |row| row.fifo.share_of_stalls().map(fine_percent)),
    ("limit", |row| row.limit.name.clone()),
    ("limit p50", |row| row.limit.p50_ns.map(format_ns)),
    ("cost", cost),
    ("time/limit", |row| row.limit.ratio.map(three_digits)),
    ("(p10..p90)", spread),
    ("wrong", |row| row.wrong.map(|wrong| wrong.to_string())),
];

const TEST: &str = "test";

const TOGETHER: &str = "ops/sample";

/// Columns that a narrow terminal goes without, the first to go first. The others fit in 80
/// characters for every test.
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

/// Writes the head line and the table. Rows with wrong data are red where there is colour. Where
/// the terminal is too narrow for one table, each test gets its own.
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

/// Returns a note on samples that are means of several operations, if there are any.
fn note(report: &PerfReport) -> &'static str {
    let is_mean = |row: &PerfRow| row.times.operations_per_sample.is_some_and(|count| count > 1);
    if report.rows.iter().any(is_mean) {
        "ops/sample: operations that were timed together; min, p50, p99 and max are\n\
         then those of their means (2: there and back, halved).\n"
    } else {
        ""
    }
}

/// Makes a table of the columns that any of the rows needs.
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

/// Writes by how much a traced operation takes longer.
fn cost(row: &PerfRow) -> Option<String> {
    let ratio = row.limit.ratio.filter(|_| row.test == Test::TraceCost)?;
    Some(format!("{:+.1} %", 100.0 * (ratio - 1.0)))
}

/// Writes the tenth and the ninetieth percentile of the ratio.
fn spread(row: &PerfRow) -> Option<String> {
    let (low, high) = row.limit.ratio_p10.zip(row.limit.ratio_p90)?;
    Some(format!("({}..{})", three_digits(low), three_digits(high)))
}

/// A ninetieth percentile of a ratio that is more than so many times the tenth: something else than
/// the test has changed meanwhile.
const TOO_WIDE: f64 = 3.0;

/// Ratios of fewer samples spread in any case.
const LEAST_SAMPLES: u64 = 100;

/// Warns in one line, if there is reason to.
pub(crate) fn note_spread(rows: &[PerfRow]) {
    if let Some(line) = warning(rows) {
        output::note(&line);
    }
}

fn warning(rows: &[PerfRow]) -> Option<String> {
    let settled = rows.iter().filter(|row| row.times.samples.is_some_and(|samples| samples >= LEAST_SAMPLES));
    let spreads: Vec<_> =
        settled.filter_map(|row| Some((row, row.limit.ratio_p10?, row.limit.ratio_p90?))).collect();
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
    use crate::host::MachineInfo;
    use crate::perf::report::{RowCpu, RowFifo, RowLimit, RowTimes};
    use crate::perf::test::{Test, TestChannel};

    fn ratio(median: f64, p10: f64, p90: f64) -> RowLimit {
        let [ratio, ratio_p10, ratio_p90] = [median, p10, p90].map(Some);
        RowLimit { ratio, ratio_p10, ratio_p90, ..RowLimit::default() }
    }

    #[test]
    fn only_columns_that_some_row_needs_are_shown() {
        let put = PerfRow {
            channel: Some(TestChannel::Memory),
            bytes: Some(8),
            times: RowTimes { p50_ns: Some(134.0), ..RowTimes::default() },
            limit: ratio(1.05, 1.02, 1.11),
            wrong: Some(0),
            ..PerfRow::new(Test::PutLatency, 2)
        };
        let mut barrier = PerfRow::new(Test::Barrier, 8);
        barrier.times.p50_ns = Some(1500.0);
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

    /// Fills every column that any test fills, in figures of full length.
    fn full(test: Test, variant: &str) -> PerfRow {
        let ns = Some(123_000.0);
        PerfRow {
            channel: Some(TestChannel::Memory),
            variant: Some(variant.to_owned()),
            bytes: Some(512 << 10),
            times: RowTimes {
                min_ns: ns,
                p50_ns: ns,
                p99_ns: ns,
                max_ns: ns,
                gb_per_s: Some(0.123),
                per_s: Some(1.23e5),
                ..RowTimes::default()
            },
            cpu: RowCpu { p50_ns: ns, ..RowCpu::default() },
            fifo: RowFifo {
                depth: Some(512),
                depth_p50: Some(256),
                pushes: Some(100_000),
                stalls: Some(12_345),
            },
            limit: RowLimit {
                name: Some("raw copy + flag + 2 yield hand-offs".to_owned()),
                p50_ns: ns,
                ..ratio(0.123, 0.123, 0.123)
            },
            wrong: Some(0),
            ..PerfRow::new(test, 64)
        }
    }

    #[test]
    fn a_terminal_of_eighty_columns_gets_a_table_per_test_and_no_line_is_longer() {
        let mut longest = full(Test::FifoRate, "4 producers, 4 fifos, exclusive");
        (longest.bytes, longest.times.gb_per_s) = (None, None);
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
        let row = |count| {
            let mut row = PerfRow::new(Test::PutLatency, 2);
            row.times.operations_per_sample = Some(count);
            row
        };
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
            channel: Some(TestChannel::Memory),
            times: RowTimes { samples: Some(100), ..RowTimes::default() },
            limit: RowLimit { ratio_p10, ratio_p90, ..RowLimit::default() },
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
        let mut few = row(8, Some((0.0, 1.0)));
        few.times.samples = Some(99);
        assert_eq!(warning(&[few]), None);
    }
}
