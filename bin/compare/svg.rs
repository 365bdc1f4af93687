//! A comparison as a plot that can go into a report: four panels over size.

use anyhow::Result;
use plotters::style::RGBColor;
use shmccl_harness::report::PerfRow;
use shmccl_harness::test::TestChannel;

use super::conclusions::Conclusions;
use super::crossover::Crossover;
use super::series::{BY_DEFAULT, Series, Subject};
use crate::plot::{GREY, Panel, PlotLine, PlotPage};
use crate::units::{format_about, format_ns, percent, three_digits};

const DIRECT: RGBColor = RGBColor(0, 99, 163);
const PROXIED: RGBColor = RGBColor(196, 78, 0);

/// One for each algorithm: colours that most eyes tell apart, and printers too.
const COLOURS: [RGBColor; 8] = [
    RGBColor(51, 34, 136),
    RGBColor(204, 102, 119),
    RGBColor(17, 119, 51),
    RGBColor(221, 170, 51),
    RGBColor(136, 204, 238),
    RGBColor(170, 68, 153),
    RGBColor(68, 170, 153),
    RGBColor(153, 51, 0),
];

/// Writes the whole file.
///
/// # Errors
/// When the drawing library refuses.
pub(super) fn text(series: &Series, conclusions: &Conclusions) -> Result<String> {
    let (title, x_label, footer, panels) = match &series.subject {
        Subject::Puts { .. } => (
            "Direct and proxied puts between two processes of one host".to_owned(),
            "size of a put",
            footer_of_puts(conclusions),
            panels_of_puts(series, conclusions),
        ),
        Subject::Operation { test, n_ranks } => {
            let what = if series.has_choice() { "by algorithm" } else { "direct and proxied" };
            (
                format!("{} over {n_ranks} ranks of one host, {what}", test.name()),
                "size",
                footer_of_algorithms(conclusions, series.has_choice()),
                panels_of_algorithms(series, conclusions),
            )
        }
    };
    let (machine, sizes) = (&series.report.machine, &series.sizes());
    PlotPage { title: &title, machine, footer, x_label, sizes, panels }.svg()
}

fn footer_of_puts(conclusions: &Conclusions) -> String {
    match conclusions.mark_of_puts(|found| Some(found.main())) {
        Some(mark) => format!(
            "Dashed vertical line: crossover, at about {} for device time. p99 is dashed.",
            format_about(mark)
        ),
        None if conclusions.crossovers.is_none() => {
            "Too few samples for a crossover. p99 is dashed.".to_owned()
        }
        None => "There is no crossover within these sizes. p99 is dashed.".to_owned(),
    }
}

fn footer_of_algorithms(conclusions: &Conclusions, has_choice: bool) -> String {
    let dashes = match has_choice {
        true => "Dashed: what the library chooses by itself, and below the machine's limit.",
        false => "Dashed: the machine's limit.",
    };
    match conclusions.overtaking() {
        _ if conclusions.crossovers.is_none() => format!("Too few samples for a crossover. {dashes}"),
        None => format!("No size tells whether proxied overtakes direct. {dashes}"),
        Some(Crossover::Between { estimate, .. }) => {
            format!("Proxied overtakes direct at about {}. {dashes}", format_about(estimate))
        }
        Some(_) => format!("Proxied and direct do not cross within these sizes. {dashes}"),
    }
}

fn panels_of_puts(series: &Series, conclusions: &Conclusions) -> [Panel<'static>; 4] {
    let p99 = |channel| move |bytes| series.quickest(bytes, channel)?.times.p99_ns;
    let mut latency = both(series, |row| row.times.p50_ns);
    latency.extend([
        line("direct p99", DIRECT, true, series, p99(TestChannel::Memory)),
        line("proxied p99", PROXIED, true, series, p99(TestChannel::Port)),
    ]);
    let latency_mark = conclusions.mark_of_puts(|found| Some(found.latency));
    let device_mark = conclusions.mark_of_puts(|found| found.device_time);
    let bandwidth_mark = conclusions.mark_of_puts(|found| Some(found.bandwidth));
    let (device_time, bandwidth) =
        (both(series, |row| row.device_cpu_ns), both(series, |row| row.times.gb_per_s));
    let overlap = both(series, |row| row.overlap).split_off(1);
    [
        panel("Latency, one way", "time per put", format_ns, latency, latency_mark),
        panel("CPU time of the device thread", "time per put", format_ns, device_time, device_mark),
        panel("Bandwidth", "GB/s", three_digits, bandwidth, bandwidth_mark),
        Panel {
            logarithmic: false,
            ..panel("Transfer hidden behind computation", "share of the transfer", percent, overlap, None)
        },
    ]
}

fn panels_of_algorithms<'s>(series: &'s Series, conclusions: &Conclusions) -> [Panel<'s>; 4] {
    let mark = conclusions.overtaking().and_then(Crossover::mark);
    let mut quickest = both(series, |row| row.times.p50_ns);
    let limit = |bytes| series.quickest(bytes, TestChannel::Memory)?.limit.p50_ns;
    quickest.push(line("limit", GREY, true, series, limit));
    let [times, bandwidths] = match series.has_choice() {
        true => ["The quickest of each", "Bandwidth of the quickest"],
        false => ["Both", "Bandwidth"],
    };
    [
        panel("Direct", "time", format_ns, algorithms(series, TestChannel::Memory), None),
        panel("Proxied", "time", format_ns, algorithms(series, TestChannel::Port), None),
        panel(times, "time", format_ns, quickest, mark),
        panel(bandwidths, "GB/s", three_digits, both(series, |row| row.times.gb_per_s), None),
    ]
}

fn panel<'a>(
    title: &'a str,
    y_label: &'a str,
    write: fn(f64) -> String,
    lines: Vec<PlotLine<'a>>,
    mark: Option<f64>,
) -> Panel<'a> {
    Panel { title, y_label, write, logarithmic: true, lines, mark }
}

/// Returns a line for each algorithm, in the same colour over both channels. That of the default is
/// dashed beside others.
fn algorithms(series: &Series, channel: TestChannel) -> Vec<PlotLine<'_>> {
    let of = |name, colour| {
        let value = |bytes| series.row(bytes, channel, name)?.times.p50_ns;
        line(name, colour, name == BY_DEFAULT && series.has_choice(), series, value)
    };
    let named = series.algorithms().into_iter().filter(|name| *name != BY_DEFAULT);
    let lines = named.zip(COLOURS.into_iter().cycle()).map(|(name, colour)| of(name, colour));
    lines.chain([of(BY_DEFAULT, GREY)]).filter(|line| !line.points.is_empty()).collect()
}

/// Returns the lines of both channels, each at its quickest.
fn both(series: &Series, value: fn(&PerfRow) -> Option<f64>) -> Vec<PlotLine<'static>> {
    let best = |channel| move |bytes| series.quickest(bytes, channel).and_then(value);
    vec![
        line("direct", DIRECT, false, series, best(TestChannel::Memory)),
        line("proxied", PROXIED, false, series, best(TestChannel::Port)),
    ]
}

fn line<'a>(
    name: &'a str,
    colour: RGBColor,
    dashed: bool,
    series: &Series,
    value: impl Fn(u64) -> Option<f64>,
) -> PlotLine<'a> {
    let point = |bytes: u64| Some((bytes.max(1) as f64, value(bytes)?));
    PlotLine { name, colour, dashed, points: series.sizes().into_iter().filter_map(point).collect() }
}
