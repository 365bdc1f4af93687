//! A comparison of puts as a plot that can go into a report: four panels over size.

use anyhow::Result;
use plotters::style::RGBColor;

use super::panel::{Line, Page, Panel};
use super::report::{CompareReport, Side};
use super::verdict::Verdict;
use crate::units::{format_about, format_ns, percent, three_digits};

pub(super) const DIRECT: RGBColor = RGBColor(0, 99, 163);
pub(super) const PROXIED: RGBColor = RGBColor(196, 78, 0);

/// The whole file.
///
/// # Errors
/// When the drawing library refuses.
pub(crate) fn text(report: &CompareReport) -> Result<String> {
    let verdict = Verdict::of(report);
    let sizes: Vec<u64> = report.points.iter().map(|point| point.bytes).collect();
    let page = Page {
        title: "Direct and proxied puts between two processes of one host",
        machine: &report.machine,
        footer: footer(&verdict),
        x_label: "size of a put",
        sizes: &sizes,
        panels: panels(report, &verdict),
    };
    page.svg()
}

fn footer(verdict: &Verdict) -> String {
    match verdict.crossover().mark() {
        Some(mark) => format!(
            "Dashed vertical line: crossover, at about {} for device time. p99 is dashed.",
            format_about(mark)
        ),
        None if verdict.too_few.is_some() => "Too few samples for a crossover. p99 is dashed.".to_owned(),
        None => "There is no crossover within these sizes. p99 is dashed.".to_owned(),
    }
}

fn panels(report: &CompareReport, verdict: &Verdict) -> [Panel<'static>; 4] {
    let line = |name, colour, dashed, proxied: bool, value: fn(&Side) -> Option<f64>| Line {
        name,
        colour,
        dashed,
        points: report
            .points
            .iter()
            .filter_map(|point| {
                let side = if proxied { &point.proxied } else { &point.direct };
                Some((point.bytes.max(1) as f64, value(side)?))
            })
            .collect(),
    };
    let both = |value: fn(&Side) -> Option<f64>| {
        vec![line("direct", DIRECT, false, false, value), line("proxied", PROXIED, false, true, value)]
    };
    let p99: fn(&Side) -> Option<f64> = |side| side.p99_ns;
    let mut latency = both(|side| Some(side.p50_ns));
    latency.extend([
        line("direct p99", DIRECT, true, false, p99),
        line("proxied p99", PROXIED, true, true, p99),
    ]);
    let time = |title, lines, mark| Panel {
        title,
        y_label: "time per put",
        write: format_ns,
        logarithmic: true,
        lines,
        mark,
    };
    [
        time("Latency, one way", latency, verdict.latency.mark()),
        time(
            "CPU time of the device thread",
            both(|side| side.device_cpu_ns),
            verdict.device_time.and_then(|crossing| crossing.mark()),
        ),
        Panel {
            title: "Bandwidth",
            y_label: "GB/s",
            write: three_digits,
            logarithmic: true,
            lines: both(|side| Some(side.gb_per_s)),
            mark: verdict.bandwidth.mark(),
        },
        Panel {
            title: "Transfer hidden behind computation",
            y_label: "share of the transfer",
            write: percent,
            logarithmic: false,
            lines: both(|side| side.overlap),
            mark: None,
        },
    ]
}
