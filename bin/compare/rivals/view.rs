//! A comparison of ways as text: three tables, a chart, and what they mean.

use anstyle::AnsiColor;

use super::report::{RivalReport, name};
use super::verdict::{Verdict, is_thin};
use crate::compare::chart::{self, Chart, Series};
use crate::output::Look;
use crate::perf::report::PerfRow;
use crate::perf::test::TestChannel;
use crate::table::TextTable;
use crate::units::{format_ns, format_size, or_dash, three_digits};

/// What a narrow terminal goes without in the table of the quickest.
const EXPENDABLE: [&str; 4] = ["limit", "wrong", "GB/s", "direct/limit"];

/// Everything that goes to stdout.
pub(super) fn text(look: Look, report: &RivalReport) -> String {
    let verdict = Verdict::of(report);
    let mut parts = vec![head(report), quickest(look, report)];
    if report.has_choice() {
        parts.push(by_algorithm(look, report, "Direct", TestChannel::Memory));
        parts.push(by_algorithm(look, report, "Proxied", TestChannel::Port));
    }
    parts.extend(drawing(look, report, &verdict));
    parts.push(verdict.sentences(report).join("\n") + "\n");
    parts.join("\n")
}

fn head(report: &RivalReport) -> String {
    format!(
        "{}\n\n\
         {} over {} ranks: floats in the heap, out of place.\n\
         direct:  each rank's own core moves the data (perf --channel memory).\n\
         proxied: each rank's proxy does (perf --channel port).\n\
         Direct one_shot (up to 8 KiB) and two_shot go without channels: what lies\n\
         between them and the proxied ones is not due to the channel alone.\n",
        report.machine.line(),
        report.test.name(),
        report.n_ranks
    )
}

/// A line for each size; who was the quickest is told where there was a choice.
fn quickest(look: Look, report: &RivalReport) -> String {
    let has_choice = report.has_choice();
    let row = |bytes: u64| {
        let of = |channel| report.quickest(bytes, channel);
        let (direct, proxied) = (of(TestChannel::Memory), of(TestChannel::Port));
        let told = |row: Option<&PerfRow>| or_dash(row.and_then(|row| row.p50_ns), format_ns);
        let named = |row: Option<&PerfRow>| has_choice.then(|| or_dash(row, |row| name(row).to_owned()));
        let times = |value: f64| format!("{} x", three_digits(value));
        let texts = [
            Some(format_size(bytes)),
            Some(told(direct)),
            named(direct),
            Some(told(proxied)),
            named(proxied),
            Some(or_dash(report.factor(bytes), times)),
            Some(or_dash(direct.and_then(|row| row.gb_per_s), three_digits)),
            Some(or_dash(direct.and_then(|row| row.limit_p50_ns), format_ns)),
            Some(or_dash(direct.and_then(|row| row.ratio), times)),
            Some(or_dash(report.wrong_at(bytes), |wrong| wrong.to_string())),
        ];
        (texts.into_iter().flatten().collect(), report.wrong_at(bytes).is_some_and(|wrong| wrong > 0))
    };
    let by = has_choice.then_some("by");
    let head = [
        Some("size"),
        Some("direct p50"),
        by,
        Some("proxied p50"),
        by,
        Some("proxied/direct"),
        Some("GB/s"),
        Some("limit"),
        Some("direct/limit"),
        Some("wrong"),
    ];
    let head = head.into_iter().flatten().collect();
    let rows = report.sizes().into_iter().map(row).collect();
    let table = TextTable { head, words: 0, rows }.text(look, &EXPENDABLE);
    let title = if has_choice { "The quickest algorithm of each kind" } else { "Direct and proxied" };
    format!("{title}; bandwidth and limit are those of direct\n{table}")
}

/// Median times, a column for each algorithm; an asterisk marks the quickest, where there are samples enough of it to tell.
fn by_algorithm(look: Look, report: &RivalReport, word: &str, channel: TestChannel) -> String {
    let algorithms = report.algorithms_over(channel);
    let row = |bytes: u64| {
        let best = report.quickest(bytes, channel).filter(|row| !is_thin(row)).map(name);
        let cell = |algorithm: &&str| {
            let mark = if best == Some(*algorithm) { "*" } else { "" };
            let ns = report.row(bytes, channel, algorithm).and_then(|row| row.p50_ns);
            or_dash(ns, |ns| format_ns(ns) + mark)
        };
        let texts = [format_size(bytes)].into_iter().chain(algorithms.iter().map(cell));
        (texts.collect(), false)
    };
    let grid = TextTable {
        head: ["size"].into_iter().chain(algorithms.iter().copied()).collect(),
        words: 0,
        rows: report.sizes().into_iter().map(row).collect(),
    };
    format!("{word}, by algorithm (p50; * the quickest)\n{}", grid.in_parts(look, 1))
}

fn drawing(look: Look, report: &RivalReport, verdict: &Verdict) -> Option<String> {
    let sizes = report.sizes();
    let series = |name, glyph, colour, channel| Series {
        name,
        glyph,
        colour,
        values: sizes.iter().map(|bytes| report.quickest(*bytes, channel)?.p50_ns).collect(),
    };
    let series = [
        series("direct", '●', AnsiColor::Cyan, TestChannel::Memory),
        series("proxied", '◇', AnsiColor::Magenta, TestChannel::Port),
    ];
    let mark = verdict.too_few.is_none().then(|| verdict.overtaking.mark()).flatten();
    let title = if report.has_choice() { "Time of the quickest (p50) by size" } else { "Time (p50) by size" };
    chart::draw(look, &Chart { title, sizes: &sizes, series: &series, mark })
}
