//! The report of `shmccl perf` as a table: a line per row, a column per figure that any row has.

use comfy_table::{Cell, Color};

use crate::output::{self, Look};
use crate::row::{Report, Row};
use crate::sizes::format_size;
use crate::units::{format_ns, percent, three_digits};

type Column = (&'static str, fn(&Row) -> Option<String>);

/// How many columns, from the first, hold words and not figures.
const WORDS: usize = 3;

const COLUMNS: [Column; 19] = [
    ("test", |row| Some(row.test.name().to_owned())),
    ("channel", |row| row.channel.map(|channel| channel.name().to_owned())),
    ("variant", |row| row.variant.clone()),
    ("ranks", |row| Some(row.ranks.to_string())),
    ("size", |row| row.bytes.map(format_size)),
    ("min", |row| row.min_ns.map(format_ns)),
    ("p50", |row| row.p50_ns.map(format_ns)),
    ("p99", |row| row.p99_ns.map(format_ns)),
    ("max", |row| row.max_ns.map(format_ns)),
    ("GB/s", |row| row.gb_per_s.map(three_digits)),
    ("M/s", |row| row.per_s.map(|per_s| three_digits(per_s / 1e6))),
    ("overlap", |row| row.overlap.map(percent)),
    ("device CPU", |row| row.device_cpu_ns.map(format_ns)),
    ("depth", |row| row.fifo_depth.map(|depth| depth.to_string())),
    ("stalls", |row| row.stalls.map(|stalls| stalls.to_string())),
    ("limit", |row| row.limit.clone()),
    ("limit p50", |row| row.limit_p50_ns.map(format_ns)),
    ("time/limit", |row| row.ratio.map(|ratio| with_spread(row, ratio))),
    ("wrong", |row| row.wrong.map(|wrong| wrong.to_string())),
];

/// The head line and the table; rows with wrong data are red where there is colour.
pub(crate) fn text(look: Look, report: &Report) -> String {
    let used = |column: &&Column| report.rows.iter().any(|row| (column.1)(row).is_some());
    let columns: Vec<&Column> = COLUMNS.iter().filter(used).collect();
    let words = COLUMNS[..WORDS].iter().filter(used).count();
    let line = |row: &Row| {
        let is_wrong = row.wrong.is_some_and(|wrong| wrong > 0);
        let cell = |column: &&Column| {
            let cell = Cell::new((column.1)(row).unwrap_or_else(|| "-".to_owned()));
            if is_wrong { cell.fg(Color::Red) } else { cell }
        };
        columns.iter().map(cell).collect::<Vec<_>>()
    };
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let table = output::table(look, &names, words, report.rows.iter().map(line));
    format!("{}\n\n{table}", report.machine.line())
}

/// The median over slices, and where a tenth of them lie below and above.
fn with_spread(row: &Row, ratio: f64) -> String {
    match row.ratio_p10.zip(row.ratio_p90) {
        Some((low, high)) => {
            format!("{} ({}..{})", three_digits(ratio), three_digits(low), three_digits(high))
        }
        None => three_digits(ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Channel, Test};
    use crate::machine::Machine;

    #[test]
    fn only_columns_that_some_row_needs_are_shown() {
        let put = Row {
            channel: Some(Channel::Memory),
            bytes: Some(8),
            p50_ns: Some(134.0),
            ratio: Some(1.05),
            ratio_p10: Some(1.02),
            ratio_p90: Some(1.11),
            wrong: Some(0),
            ..Row::new(Test::PutLatency, 2)
        };
        let barrier = Row { p50_ns: Some(1500.0), ..Row::new(Test::Barrier, 8) };
        let report = Report { machine: Machine::detect(), rows: vec![put, barrier] };
        let text = text(Look::plain(), &report);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["test", "channel", "ranks", "size", "p50", "time/limit", "wrong"]);
        assert_eq!(
            lines[1],
            ["put_latency", "memory", "2", "8", "B", "134", "ns", "1.05", "(1.02..1.11)", "0"]
        );
        assert_eq!(lines[2], ["barrier", "-", "8", "-", "1.50", "us", "-", "-"]);
    }

    #[test]
    fn a_report_without_rows_is_a_head_line() {
        let report = Report { machine: Machine::detect(), rows: vec![] };
        assert!(text(Look::plain(), &report).starts_with(&report.machine.line()));
    }
}
