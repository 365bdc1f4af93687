//! A comparison as text: three tables, two charts, and what they mean.

use anstyle::AnsiColor;
use shmccl::heap::layout::FIFO_SLOTS;

use super::chart::{self, Chart, Series};
use super::report::{CompareReport, Point, Side};
use super::verdict::Verdict;
use crate::flags::ProxyPlace;
use crate::output::Look;
use crate::perf::report::share_of_stalls;
use crate::table::TextTable;
use crate::units::{fine_percent, format_ns, format_size, or_dash, percent, three_digits};

/// Everything that goes to stdout.
pub(crate) fn text(look: Look, report: &CompareReport) -> String {
    let verdict = Verdict::of(report);
    let mut parts = vec![head(report), latency_table(look, report), device_table(look, report)];
    parts.extend(fifo_table(look, report));
    parts.extend(charts(look, report, &verdict));
    parts.push(verdict.sentences(report).join("\n") + "\n");
    parts.join("\n")
}

fn head(report: &CompareReport) -> String {
    let place = match report.proxy {
        ProxyPlace::Thread => "a thread beside the device",
        ProxyPlace::Process => "a service process",
    };
    format!(
        "{}\n\n\
         One rank puts data into the memory of another and signals; the other waits and reads it.\n\
         direct:  the device thread copies the data itself (memory channel).\n\
         proxied: it pushes a trigger into a fifo and {place} copies (port channel).\n",
        report.machine.line()
    )
}

/// Times are one way: from the put until the receiver holds the data.
fn latency_table(look: Look, report: &CompareReport) -> String {
    let head = [
        "size",
        "direct p50",
        "p99",
        "proxied p50",
        "p99",
        "proxied/direct",
        "direct GB/s",
        "proxied GB/s",
        "wrong",
    ];
    let row = |point: &Point| {
        let Point { bytes, direct, proxied } = point;
        let wrong = direct.wrong.zip(proxied.wrong).map(|(direct, proxied)| direct.saturating_add(proxied));
        [
            format_size(*bytes),
            format_ns(direct.p50_ns),
            or_dash(direct.p99_ns, format_ns),
            format_ns(proxied.p50_ns),
            or_dash(proxied.p99_ns, format_ns),
            format!("{} x", three_digits(proxied.p50_ns / direct.p50_ns.max(1e-3))),
            three_digits(direct.gb_per_s),
            three_digits(proxied.gb_per_s),
            or_dash(wrong, |wrong| wrong.to_string()),
        ]
    };
    let table = grid(&head, report, row).text(look, &["p99", "wrong", "proxied/direct"]);
    format!(
        "Latency of one put, from the put until the receiver holds the data; bandwidth of puts in a row\n{table}{}",
        of_means(report)
    )
}

/// Where the proxy ran while overlap was measured.
fn overlap_note(report: &CompareReport) -> String {
    let place = match report.overlap_place.as_deref() {
        Some("proxy on other cores") => "the proxy on other cores than its device".to_owned(),
        Some(place) => format!("the {place}"),
        None => return String::new(),
    };
    format!(
        "overlap: measured by itself, with {place}; below 0, both together took longer than one after the other.\n"
    )
}

/// Which percentiles are not of single puts.
fn of_means(report: &CompareReport) -> String {
    let most = |side: fn(&Point) -> &Side| {
        let means =
            report.points.iter().filter(|point| side(point).puts_per_sample.is_some_and(|puts| puts > 2));
        means
            .max_by_key(|point| point.bytes)
            .and_then(|point| Some((point.bytes, side(point).puts_per_sample?)))
    };
    let tell = |name: &str, (bytes, puts): (u64, u64)| {
        format!(
            "p50, p99: {name} up to {}, of means of {puts} puts, since one is too short for the clock.\n",
            format_size(bytes)
        )
    };
    let direct = most(|point| &point.direct).map(|most| tell("direct", most));
    let proxied = most(|point| &point.proxied).map(|most| tell("proxied", most));
    direct.into_iter().chain(proxied).collect()
}

fn device_table(look: Look, report: &CompareReport) -> String {
    let head = [
        "size",
        "CPU direct",
        "CPU proxied",
        "overlap direct",
        "overlap proxied",
        "direct/limit",
        "proxied/limit",
    ];
    let row = |point: &Point| {
        let Point { bytes, direct, proxied } = point;
        let cpu = |side: &Side| or_dash(side.device_cpu_ns, format_ns);
        let overlap = |side: &Side| or_dash(side.overlap, percent);
        let limit = |side: &Side| or_dash(side.ratio, |ratio| format!("{} x", three_digits(ratio)));
        [
            format_size(*bytes),
            cpu(direct),
            cpu(proxied),
            overlap(direct),
            overlap(proxied),
            limit(direct),
            limit(proxied),
        ]
    };
    let table = grid(&head, report, row).text(look, &["proxied/limit", "direct/limit"]);
    format!(
        "What one put costs the device thread; how much of it hides behind computation; latency over the machine's limit\n{table}{}",
        overlap_note(report)
    )
}

/// How full the fifo is while puts are pushed without a pause; nothing where no size was small enough for it to fill.
fn fifo_table(look: Look, report: &CompareReport) -> Option<String> {
    let missing = report.points.iter().filter(|point| point.proxied.fifo_depth.is_none()).count();
    if missing == report.points.len() {
        return None;
    }
    let row = |point: &Point| {
        let Point { bytes, proxied, .. } = point;
        let count = |count: Option<u64>| or_dash(count, |count| count.to_string());
        [
            format_size(*bytes),
            count(proxied.pushes),
            count(proxied.fifo_depth_p50),
            count(proxied.fifo_depth),
            or_dash(share_of_stalls(proxied.stalls, proxied.pushes), fine_percent),
        ]
    };
    let table = grid(&["size", "pushes", "depth p50", "depth max", "stalls"], report, row).text(look, &[]);
    let turn = fine_percent(1.0 / FIFO_SLOTS as f64);
    let mut text = format!(
        "The fifo under proxied puts pushed as fast as they can be, without a flush\n{table}\
         depth:  triggers that wait for the proxy; there is room for {FIFO_SLOTS}.\n\
         stalls: pushes that found no room and waited, as a share of all; {turn}, one in\n        \
         {FIFO_SLOTS}, where device and proxy take turns to fill and to empty it.\n"
    );
    if missing > 0 {
        text.push_str("-:      not measured: with puts so large it takes long to fill the fifo.\n");
    }
    Some(text)
}

fn charts(look: Look, report: &CompareReport, verdict: &Verdict) -> Vec<String> {
    let series = |cost: fn(&Side) -> Option<f64>| {
        [
            Series {
                name: "direct",
                glyph: '●',
                colour: AnsiColor::Cyan,
                values: report.points.iter().map(|point| cost(&point.direct)).collect(),
            },
            Series {
                name: "proxied",
                glyph: '◇',
                colour: AnsiColor::Magenta,
                values: report.points.iter().map(|point| cost(&point.proxied)).collect(),
            },
        ]
    };
    let sizes: Vec<u64> = report.points.iter().map(|point| point.bytes).collect();
    let draw = |title: &str, series: &[Series], mark: Option<f64>| {
        chart::draw(look, &Chart { title, sizes: &sizes, series, mark })
    };
    let mut charts = Vec::new();
    charts.extend(draw(
        "Latency of one put (p50) by size",
        &series(|side| Some(side.p50_ns)),
        verdict.latency.mark(),
    ));
    let mark = verdict.device_time.and_then(super::crossing::Crossing::mark);
    charts.extend(draw(
        "CPU time of the device thread for one put by size",
        &series(|side| side.device_cpu_ns),
        mark,
    ));
    charts
}

fn grid<'a, const N: usize>(
    head: &[&'a str; N],
    report: &CompareReport,
    row: impl Fn(&Point) -> [String; N],
) -> TextTable<'a> {
    let rows = report.points.iter().map(|point| (row(point).to_vec(), false)).collect();
    TextTable { head: head.to_vec(), words: 0, rows }
}
