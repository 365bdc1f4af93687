//! A comparison as comma-separated values: one line per size, plain numbers, empty where a figure does not apply.

use super::report::{CompareReport, Side};

type Column = (&'static str, fn(&Side) -> Option<String>);

const COLUMNS: [Column; 18] = [
    ("iterations", |side| Some(side.iterations.to_string())),
    ("puts_per_sample", |side| side.puts_per_sample.map(|puts| puts.to_string())),
    ("min_ns", |side| number(Some(side.min_ns))),
    ("p50_ns", |side| number(Some(side.p50_ns))),
    ("p99_ns", |side| number(side.p99_ns)),
    ("max_ns", |side| number(Some(side.max_ns))),
    ("gb_per_s", |side| number(Some(side.gb_per_s))),
    ("device_cpu_ns", |side| number(side.device_cpu_ns)),
    ("device_cpu_p10_ns", |side| number(side.device_cpu_spread.map(|(low, _)| low))),
    ("device_cpu_p90_ns", |side| number(side.device_cpu_spread.map(|(_, high)| high))),
    ("overlap", |side| number(side.overlap)),
    ("fifo_depth", |side| side.fifo_depth.map(|depth| depth.to_string())),
    ("fifo_depth_p50", |side| side.fifo_depth_p50.map(|depth| depth.to_string())),
    ("pushes", |side| side.pushes.map(|pushes| pushes.to_string())),
    ("stalls", |side| side.stalls.map(|stalls| stalls.to_string())),
    ("limit_p50_ns", |side| number(side.limit_p50_ns)),
    ("ratio", |side| number(side.ratio)),
    ("wrong", |side| side.wrong.map(|wrong| wrong.to_string())),
];

/// The whole file.
pub(crate) fn text(report: &CompareReport) -> String {
    let names = |side: &str| COLUMNS.map(|(name, _)| format!("{side}_{name}")).join(",");
    let mut text = format!("bytes,{},{}\n", names("direct"), names("proxied"));
    for point in &report.points {
        let fields = |side: &Side| COLUMNS.map(|(_, field)| field(side).unwrap_or_default()).join(",");
        text.push_str(&format!("{},{},{}\n", point.bytes, fields(&point.direct), fields(&point.proxied)));
    }
    text
}

/// A plain number, where there is one.
pub(super) fn number(value: Option<f64>) -> Option<String> {
    value.map(|value| format!("{value:.4}"))
}
