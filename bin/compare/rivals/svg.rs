//! A comparison of ways as a plot: the algorithms of either kind, the quickest of both, and how far they are from the limit.

use anyhow::Result;
use plotters::style::RGBColor;

use super::report::{BY_DEFAULT, RivalReport};
use super::verdict::Verdict;
use crate::compare::panel::{Line, Page, Panel};
use crate::compare::svg::{DIRECT, PROXIED};
use crate::perf::report::PerfRow;
use crate::perf::test::TestChannel;
use crate::plot::GREY;
use crate::units::{format_about, format_ns, three_digits};

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

/// The whole file.
///
/// # Errors
/// When the drawing library refuses.
pub(super) fn text(report: &RivalReport) -> Result<String> {
    let (verdict, sizes) = (Verdict::of(report), report.sizes());
    let what = if report.has_choice() { "by algorithm" } else { "direct and proxied" };
    let title = format!("{} over {} ranks of one host, {what}", report.test.name(), report.n_ranks);
    let page = Page {
        title: &title,
        machine: &report.machine,
        footer: footer(&verdict, report.has_choice()),
        x_label: "size",
        sizes: &sizes,
        panels: panels(report, &sizes, &verdict),
    };
    page.svg()
}

fn footer(verdict: &Verdict, has_choice: bool) -> String {
    let dashes = match has_choice {
        true => "Dashed: what the library chooses by itself, and below the machine's limit.",
        false => "Dashed: the machine's limit.",
    };
    match verdict.overtaking.mark() {
        _ if verdict.too_few.is_some() => format!("Too few samples for a crossover. {dashes}"),
        _ if verdict.compared.is_none() => {
            format!("No size tells whether proxied overtakes direct. {dashes}")
        }
        Some(mark) => format!("Proxied overtakes direct at about {}. {dashes}", format_about(mark)),
        None => format!("Proxied and direct do not cross within these sizes. {dashes}"),
    }
}

fn panels<'a>(report: &'a RivalReport, sizes: &[u64], verdict: &Verdict) -> [Panel<'a>; 4] {
    let time = |row: &PerfRow| row.p50_ns;
    let mark = verdict.too_few.is_none().then(|| verdict.overtaking.mark()).flatten();
    let both = |value: fn(&PerfRow) -> Option<f64>| {
        let best = |channel| move |bytes| report.quickest(bytes, channel).and_then(value);
        vec![
            line("direct", DIRECT, false, sizes, best(TestChannel::Memory)),
            line("proxied", PROXIED, false, sizes, best(TestChannel::Port)),
        ]
    };
    let mut quickest = both(time);
    let limit = |bytes| report.quickest(bytes, TestChannel::Memory).and_then(|row| row.limit_p50_ns);
    quickest.push(line("limit", GREY, true, sizes, limit));
    let [times, bandwidths] = match report.has_choice() {
        true => ["The quickest of each", "Bandwidth of the quickest"],
        false => ["Both", "Bandwidth"],
    };
    let panel =
        |title, y_label, write, lines, mark| Panel { title, y_label, write, logarithmic: true, lines, mark };
    [
        panel("Direct", "time", format_ns, algorithms(report, sizes, TestChannel::Memory), None),
        panel("Proxied", "time", format_ns, algorithms(report, sizes, TestChannel::Port), None),
        panel(times, "time", format_ns, quickest, mark),
        panel(bandwidths, "GB/s", three_digits, both(|row| row.gb_per_s), None),
    ]
}

/// A line for each algorithm, in the same colour over both channels; that of the default is dashed beside others.
fn algorithms<'a>(report: &'a RivalReport, sizes: &[u64], channel: TestChannel) -> Vec<Line<'a>> {
    let of = |name: &'a str, colour| {
        let value = |bytes| report.row(bytes, channel, name).and_then(|row| row.p50_ns);
        line(name, colour, name == BY_DEFAULT && report.has_choice(), sizes, value)
    };
    let named = report.algorithms().into_iter().filter(|name| *name != BY_DEFAULT);
    let lines = named.zip(COLOURS.into_iter().cycle()).map(|(name, colour)| of(name, colour));
    lines.chain([of(BY_DEFAULT, GREY)]).filter(|line| !line.points.is_empty()).collect()
}

fn line<'a>(
    name: &'a str,
    colour: RGBColor,
    dashed: bool,
    sizes: &[u64],
    value: impl Fn(u64) -> Option<f64>,
) -> Line<'a> {
    let point = |bytes: &u64| Some(((*bytes).max(1) as f64, value(*bytes)?));
    Line { name, colour, dashed, points: sizes.iter().filter_map(point).collect() }
}
