//! A comparison of ways as comma-separated values: one line per way and size, empty where a figure does not apply.

use super::report::{RivalReport, name};
use crate::compare::csv::number;
use crate::perf::report::PerfRow;

type Column = (&'static str, fn(&PerfRow) -> Option<String>);

const COLUMNS: [Column; 14] = [
    ("bytes", |row| row.bytes.map(|bytes| bytes.to_string())),
    ("channel", |row| row.channel.map(|channel| channel.name().to_owned())),
    ("algorithm", |row| Some(name(row).to_owned())),
    ("iterations", |row| Some(row.iterations.to_string())),
    ("min_ns", |row| number(row.min_ns)),
    ("p50_ns", |row| number(row.p50_ns)),
    ("p99_ns", |row| number(row.p99_ns)),
    ("max_ns", |row| number(row.max_ns)),
    ("algbw", |row| number(row.collective.as_ref().map(|figures| figures.algbw))),
    ("busbw", |row| number(row.collective.as_ref().map(|figures| figures.busbw))),
    ("limit_p50_ns", |row| number(row.limit_p50_ns)),
    ("ratio", |row| number(row.ratio)),
    ("probe_ns", |row| number(row.probe_ns)),
    ("wrong", |row| row.wrong.map(|wrong| wrong.to_string())),
];

/// The whole file.
pub(super) fn text(report: &RivalReport) -> String {
    let mut text = COLUMNS.map(|(name, _)| name).join(",") + "\n";
    for row in &report.rows {
        text += &(COLUMNS.map(|(_, field)| field(row).unwrap_or_default()).join(",") + "\n");
    }
    text
}
