//! The report of `shmccl perf` as a table: a line per row, a column per figure that any row has.

use shmccl_harness::report::{PerfRow, legend};
use shmccl_harness::test::Test;

use super::report::PerfReport;
use crate::output::TableLook;
use crate::table::TextTable;
use crate::units::{fine_percent, format_ns, format_size, percent, three_digits, whole};

type PerfColumn = (&'static str, fn(&PerfRow) -> Option<String>);

/// How many columns, from the first, hold words and not figures.
const WORDS: usize = 3;

const COLUMNS: [PerfColumn; 24] = [
    (TEST, |row| Some(row.test.name().to_owned())),
    ("channel", |row| row.channel.map(|channel| channel.name().to_owned())),
    ("variant", |row| row.variant.clone()),
    ("ranks", |row| Some(row.ranks.to_string())),
    ("size", |row| row.bytes.map(format_size)),
    (TOGETHER, |row| row.times.operations_per_sample.map(|count| count.to_string())),
    ("min", |row| row.told("min_ns", format_ns)),
    ("p50", |row| row.told("p50_ns", format_ns)),
    ("p99", |row| row.told("p99_ns", format_ns)),
    ("max", |row| row.told("max_ns", format_ns)),
    ("GB/s", |row| row.told("gb_per_s", three_digits)),
    ("M/s", |row| row.told("per_s", |per_s| three_digits(per_s / 1e6))),
    ("most/least", |row| row.told("share_ratio", three_digits)),
    ("overlap", |row| row.told("overlap", percent)),
    ("device CPU", |row| row.told("device_cpu_ns", format_ns)),
    ("depth p50", |row| row.told("fifo_depth_p50", whole)),
    ("depth max", |row| row.told("fifo_depth", whole)),
    ("stalls", |row| row.told("stall_share", fine_percent)),
    ("limit", |row| row.limit.name.clone()),
    ("limit p50", |row| row.told("limit_p50_ns", format_ns)),
    ("cost", cost),
    ("time/limit", |row| row.told_ratio("")),
    ("(spread)", PerfRow::ratio_spread),
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
    "(spread)",
    "device CPU",
    "limit",
    "p99",
    "channel",
];

/// Writes the head line and the table. Rows with wrong data are red where there is colour. Where
/// the terminal is too narrow for one table, each test gets its own.
pub(crate) fn text(look: TableLook, report: &PerfReport) -> String {
    let whole = grid(&report.rows.iter().collect::<Vec<_>>());
    let head = report.machine.line();
    if whole.fits(look) {
        let table = whole.text(look, &[]);
        return format!("{head}\n\n{table}{}{}", note(report), legend(&table));
    }
    let mut tests: Vec<_> = report.rows.iter().map(|row| row.test).collect();
    tests.dedup();
    let table = |test: &Test| {
        let mut grid = grid(&report.rows.iter().filter(|row| row.test == *test).collect::<Vec<_>>());
        grid.drop_column(TEST);
        format!("{}\n{}", test.name(), grid.text(look, &EXPENDABLE))
    };
    let tables = tests.iter().map(table).collect::<Vec<_>>().join("\n");
    format!("{head}\n\n{tables}{}{}", note(report), legend(&tables))
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
    let told = row.told("ratio", |ratio| format!("{:+.1} %", 100.0 * (ratio - 1.0)));
    told.filter(|_| row.test == Test::TraceCost)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::MachineInfo;
    use shmccl_harness::report::{FIGURES, RowFifo, RowLimit, RowTimes};
    use shmccl_harness::test::{Test, TestChannel};

    fn ratio(median: f64) -> RowLimit {
        RowLimit { ratio: Some(median), ..RowLimit::default() }
    }

    /// All figures with the same spread.
    fn spread(low: f64, high: f64) -> BTreeMap<String, (f64, f64)> {
        FIGURES.into_iter().map(|(key, _)| (key.to_owned(), (low, high))).collect()
    }

    #[test]
    fn only_columns_that_some_row_needs_are_shown() {
        let put = PerfRow {
            channel: Some(TestChannel::Memory),
            bytes: Some(8),
            times: RowTimes { p50_ns: Some(134.0), ..RowTimes::default() },
            limit: ratio(1.05),
            spread: spread(1.02, 1.11),
            wrong: Some(0),
            ..PerfRow::new(Test::PutLatency, 2)
        };
        let mut barrier = PerfRow::new(Test::Barrier, 8);
        barrier.times.p50_ns = Some(1500.0);
        let report = PerfReport { machine: MachineInfo::detect(), rows: vec![put, barrier] };
        let text = text(TableLook::plain(), &report);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["test", "channel", "ranks", "size", "p50", "time/limit", "(spread)", "wrong"]);
        assert_eq!(
            lines[1],
            ["put_latency", "memory", "2", "8", "B", "134", "ns", "1.05", "(1.02..1.11)", "0"]
        );
        assert_eq!(lines[2], ["barrier", "-", "8", "-", "~1.50", "us", "-", "-", "-"]);
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
            device_cpu_ns: ns,
            fifo: RowFifo {
                depth: Some(512.0),
                depth_p50: Some(256.0),
                stall_share: Some(0.123_45),
                ..RowFifo::default()
            },
            spread: spread(0.123, 0.987),
            limit: RowLimit {
                name: Some("raw copy + flag + 2 yield hand-offs".to_owned()),
                p50_ns: ns,
                ..ratio(0.123)
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
        let text = text(TableLook { width: Some(80), ..TableLook::plain() }, &report);
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
            text(TableLook::plain(), &PerfReport { machine: MachineInfo::detect(), rows: vec![row(count)] })
        };
        assert!(text(32).ends_with("(2: there and back, halved).\n") && text(32).contains("ops/sample"));
        assert!(!text(1).contains("halved"));
    }

    #[test]
    fn a_report_without_rows_is_a_head_line() {
        let report = PerfReport { machine: MachineInfo::detect(), rows: vec![] };
        assert!(text(TableLook::plain(), &report).starts_with(&report.machine.line()));
    }
}
