//! A comparison as comma-separated values: plain numbers, empty where a figure does not apply.

use super::series::{Series, Subject, algorithm};
use crate::perf::report::PerfRow;

/// A name, and how the column is filled.
type CsvColumn = (&'static str, fn(&PerfRow) -> Option<String>);

/// What is told of puts, of either channel in the same line.
const OF_PUTS: [CsvColumn; 18] = [
    ("iterations", |row| Some(row.iterations.to_string())),
    ("puts_per_sample", |row| count(row.times.operations_per_sample)),
    ("min_ns", |row| number(row.times.min_ns)),
    ("p50_ns", |row| number(row.times.p50_ns)),
    ("p99_ns", |row| number(row.times.p99_ns)),
    ("max_ns", |row| number(row.times.max_ns)),
    ("gb_per_s", |row| number(row.times.gb_per_s)),
    ("device_cpu_ns", |row| number(row.cpu.p50_ns)),
    ("device_cpu_p10_ns", |row| number(row.cpu.p10_ns)),
    ("device_cpu_p90_ns", |row| number(row.cpu.p90_ns)),
    ("overlap", |row| number(row.overlap)),
    ("fifo_depth", |row| count(row.fifo.depth)),
    ("fifo_depth_p50", |row| count(row.fifo.depth_p50)),
    ("pushes", |row| count(row.fifo.pushes)),
    ("stalls", |row| count(row.fifo.stalls)),
    ("limit_p50_ns", |row| number(row.limit.p50_ns)),
    ("ratio", |row| number(row.limit.ratio)),
    ("wrong", |row| count(row.wrong)),
];

/// What is told of an algorithm over a channel at a size, each in a line of its own.
const OF_ALGORITHMS: [CsvColumn; 14] = [
    ("bytes", |row| count(row.bytes)),
    ("channel", |row| row.channel.map(|channel| channel.name().to_owned())),
    ("algorithm", |row| Some(algorithm(row).to_owned())),
    ("iterations", |row| Some(row.iterations.to_string())),
    ("min_ns", |row| number(row.times.min_ns)),
    ("p50_ns", |row| number(row.times.p50_ns)),
    ("p99_ns", |row| number(row.times.p99_ns)),
    ("max_ns", |row| number(row.times.max_ns)),
    ("algbw", |row| number(row.collective.as_ref().map(|figures| figures.algbw))),
    ("busbw", |row| number(row.collective.as_ref().map(|figures| figures.busbw))),
    ("limit_p50_ns", |row| number(row.limit.p50_ns)),
    ("ratio", |row| number(row.limit.ratio)),
    ("probe_ns", |row| number(row.cores.probe_ns)),
    ("wrong", |row| count(row.wrong)),
];

/// Writes the whole file.
pub(super) fn text(series: &Series) -> String {
    let lines: Vec<String> = match series.subject {
        Subject::Puts { .. } => {
            let names = |side: &str| OF_PUTS.map(|(name, _)| format!("{side}_{name}")).join(",");
            let head = format!("bytes,{},{}", names("direct"), names("proxied"));
            let lines = series.points().into_iter().map(|point| {
                format!(
                    "{},{},{}",
                    point.bytes,
                    fields(&OF_PUTS, point.direct),
                    fields(&OF_PUTS, point.proxied)
                )
            });
            [head].into_iter().chain(lines).collect()
        }
        Subject::Operation { .. } => {
            let head = OF_ALGORITHMS.map(|(name, _)| name).join(",");
            let lines = series.report.rows.iter().map(|row| fields(&OF_ALGORITHMS, row));
            [head].into_iter().chain(lines).collect()
        }
    };
    lines.join("\n") + "\n"
}

fn fields(columns: &[CsvColumn], row: &PerfRow) -> String {
    columns.iter().map(|(_, field)| field(row).unwrap_or_default()).collect::<Vec<_>>().join(",")
}

fn number(value: Option<f64>) -> Option<String> {
    value.map(|value| format!("{value:.4}"))
}

fn count(value: Option<u64>) -> Option<String> {
    value.map(|value| value.to_string())
}
