//! A comparison as text: tables, charts, and what they mean.

use anstyle::AnsiColor;
use shmccl::heap::layout::FIFO_SLOTS;

use super::chart::{self, Chart, ChartLine};
use super::conclusions::Conclusions;
use super::crossover::Crossover;
use super::series::{Point, Series, Subject, algorithm, is_thin};
use crate::flags::ProxyPlace;
use crate::output::Look;
use crate::perf::report::PerfRow;
use crate::perf::test::TestChannel;
use crate::table::TextTable;
use crate::units::{fine_percent, format_ns, format_size, or_dash, percent, three_digits};

/// The columns that a narrow terminal goes without in the table of the quickest.
const EXPENDABLE: [&str; 4] = ["limit", "wrong", "GB/s", "direct/limit"];

/// Returns everything that goes to stdout.
pub(super) fn text(look: Look, series: &Series, conclusions: &Conclusions) -> String {
    let mut parts = vec![format!("{}\n\n{}", series.report.machine.line(), explanation(series))];
    match &series.subject {
        Subject::Puts { overlap_place } => {
            let points = series.points();
            let note = overlap_note(overlap_place.as_deref());
            parts.extend([latency_table(look, &points), device_table(look, &points) + &note]);
            parts.extend(fifo_table(look, &points));
        }
        Subject::Operation { .. } => {
            parts.push(quickest_table(look, series));
            if series.has_choice() {
                parts.push(algorithm_table(look, series, "Direct", TestChannel::Memory));
                parts.push(algorithm_table(look, series, "Proxied", TestChannel::Port));
            }
        }
    }
    parts.extend(charts(look, series, conclusions));
    parts.push(conclusions.summary.join("\n") + "\n");
    parts.join("\n")
}

/// Says what was done, and what the two channels are.
fn explanation(series: &Series) -> String {
    let place = match series.proxy {
        ProxyPlace::Thread => "a thread beside the device",
        ProxyPlace::Process => "a service process",
    };
    match &series.subject {
        Subject::Puts { .. } => format!(
            "One rank puts data into the memory of another and signals; the other waits and reads it.\n\
             direct:  the device thread copies the data itself (memory channel).\n\
             proxied: it pushes a trigger into a fifo and {place} copies (port channel).\n"
        ),
        Subject::Operation { test, n_ranks } => format!(
            "{} over {n_ranks} ranks: floats in the heap, out of place.\n\
             direct:  each rank's own core moves the data (perf --channel memory).\n\
             proxied: each rank's proxy does (perf --channel port).\n\
             Direct one_shot (up to 8 KiB) and two_shot go without channels: what lies\n\
             between them and the proxied ones is not due to the channel alone.\n",
            test.name()
        ),
    }
}

/// Lays out times one way: from the put until the receiver holds the data.
fn latency_table(look: Look, points: &[Point<'_>]) -> String {
    let head = "size, direct p50, p99, proxied p50, p99, proxied/direct, direct GB/s, proxied GB/s, wrong";
    let row = |point: &Point<'_>| {
        let Point { bytes, direct, proxied } = point;
        let wrong = direct.wrong.zip(proxied.wrong).map(|(direct, proxied)| direct.saturating_add(proxied));
        [
            format_size(*bytes),
            or_dash(direct.times.p50_ns, format_ns),
            or_dash(direct.times.p99_ns, format_ns),
            or_dash(proxied.times.p50_ns, format_ns),
            or_dash(proxied.times.p99_ns, format_ns),
            times(point.factor()),
            or_dash(direct.times.gb_per_s, three_digits),
            or_dash(proxied.times.gb_per_s, three_digits),
            or_dash(wrong, |wrong| wrong.to_string()),
        ]
    };
    let table = table_of(head, points, row).text(look, &["p99", "wrong", "proxied/direct"]);
    format!(
        "Latency of one put, from the put until the receiver holds the data; bandwidth of puts in a row\n{table}{}",
        of_means(points)
    )
}

/// Says where the proxy ran while overlap was measured.
fn overlap_note(place: Option<&str>) -> String {
    let place = match place {
        Some("proxy on other cores") => "the proxy on other cores than its device".to_owned(),
        Some(place) => format!("the {place}"),
        None => return String::new(),
    };
    format!(
        "overlap: measured by itself, with {place}; below 0, both together took longer than one after the other.\n"
    )
}

/// Says which percentiles are not of single puts.
fn of_means(points: &[Point<'_>]) -> String {
    let told = |name: &str, side: fn(&Point<'_>) -> Option<u64>| {
        let means =
            points.iter().filter_map(|point| Some((point.bytes, side(point).filter(|puts| *puts > 2)?)));
        let (bytes, puts) = means.max_by_key(|(bytes, _)| *bytes)?;
        Some(format!(
            "p50, p99: {name} up to {}, of means of {puts} puts, since one is too short for the clock.\n",
            format_size(bytes)
        ))
    };
    let direct = told("direct", |point| point.direct.times.operations_per_sample);
    let proxied = told("proxied", |point| point.proxied.times.operations_per_sample);
    direct.into_iter().chain(proxied).collect()
}

fn device_table(look: Look, points: &[Point<'_>]) -> String {
    let head = "size, CPU direct, CPU proxied, overlap direct, overlap proxied, direct/limit, proxied/limit";
    let row = |point: &Point<'_>| {
        let Point { bytes, direct, proxied } = point;
        [
            format_size(*bytes),
            or_dash(direct.cpu.p50_ns, format_ns),
            or_dash(proxied.cpu.p50_ns, format_ns),
            or_dash(direct.overlap, percent),
            or_dash(proxied.overlap, percent),
            or_dash(direct.limit.ratio, times),
            or_dash(proxied.limit.ratio, times),
        ]
    };
    let table = table_of(head, points, row).text(look, &["proxied/limit", "direct/limit"]);
    format!(
        "What one put costs the device thread; how much of it hides behind computation; latency over the machine's limit\n{table}"
    )
}

/// Lays out how full the fifo is while puts are pushed without a pause. `None` where no size was
/// small enough to fill it.
fn fifo_table(look: Look, points: &[Point<'_>]) -> Option<String> {
    let missing = points.iter().filter(|point| point.proxied.fifo.depth.is_none()).count();
    if missing == points.len() {
        return None;
    }
    let row = |point: &Point<'_>| {
        let fifo = &point.proxied.fifo;
        let count = |count: Option<u64>| or_dash(count, |count| count.to_string());
        [
            format_size(point.bytes),
            count(fifo.pushes),
            count(fifo.depth_p50),
            count(fifo.depth),
            or_dash(fifo.share_of_stalls(), fine_percent),
        ]
    };
    let table = table_of("size, pushes, depth p50, depth max, stalls", points, row).text(look, &[]);
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

/// Lays out a line for each size. Who was the quickest is told where there was a choice.
fn quickest_table(look: Look, series: &Series) -> String {
    let has_choice = series.has_choice();
    let row = |bytes: u64| {
        let of = |channel| series.quickest(bytes, channel);
        let (direct, proxied) = (of(TestChannel::Memory), of(TestChannel::Port));
        let told = |row: Option<&PerfRow>| or_dash(row.and_then(|row| row.times.p50_ns), format_ns);
        let named = |row: Option<&PerfRow>| or_dash(row, |row| algorithm(row).to_owned());
        let wrong = series.wrong_at(bytes);
        let texts = [
            format_size(bytes),
            told(direct),
            named(direct),
            told(proxied),
            named(proxied),
            or_dash(series.factor(bytes), times),
            or_dash(direct.and_then(|row| row.times.gb_per_s), three_digits),
            or_dash(direct.and_then(|row| row.limit.p50_ns), format_ns),
            or_dash(direct.and_then(|row| row.limit.ratio), times),
            or_dash(wrong, |wrong| wrong.to_string()),
        ];
        (texts.to_vec(), wrong.is_some_and(|wrong| wrong > 0))
    };
    let head = "size, direct p50, by, proxied p50, by, proxied/direct, GB/s, limit, direct/limit, wrong";
    let rows = series.sizes().into_iter().map(row).collect();
    let mut table = TextTable { head: head.split(", ").collect(), words: 0, rows };
    if !has_choice {
        table.drop_column("by");
    }
    let table = table.text(look, &EXPENDABLE);
    let title = if has_choice { "The quickest algorithm of each kind" } else { "Direct and proxied" };
    format!("{title}; bandwidth and limit are those of direct\n{table}")
}

/// Lays out median times, a column for each algorithm. An asterisk marks the quickest, unless it
/// has too few samples.
fn algorithm_table(look: Look, series: &Series, word: &str, channel: TestChannel) -> String {
    let algorithms = series.algorithms_over(channel);
    let row = |bytes: u64| {
        let best = series.quickest(bytes, channel).filter(|row| !is_thin(row)).map(algorithm);
        let cell = |name: &&str| {
            let mark = if best == Some(*name) { "*" } else { "" };
            let ns = series.row(bytes, channel, name).and_then(|row| row.times.p50_ns);
            or_dash(ns, |ns| format_ns(ns) + mark)
        };
        let texts = [format_size(bytes)].into_iter().chain(algorithms.iter().map(cell));
        (texts.collect(), false)
    };
    let table = TextTable {
        head: ["size"].into_iter().chain(algorithms.iter().copied()).collect(),
        words: 0,
        rows: series.sizes().into_iter().map(row).collect(),
    };
    format!("{word}, by algorithm (p50; * the quickest)\n{}", table.in_parts(look, 1))
}

fn charts(look: Look, series: &Series, conclusions: &Conclusions) -> Vec<String> {
    type Figure = fn(&PerfRow) -> Option<f64>;
    let (time, device_time): (Figure, Figure) = (|row| row.times.p50_ns, |row| row.cpu.p50_ns);
    let charts = match &series.subject {
        Subject::Puts { .. } => vec![
            ("Latency of one put (p50) by size", time, conclusions.mark_of_puts(|found| Some(found.latency))),
            (
                "CPU time of the device thread for one put by size",
                device_time,
                conclusions.mark_of_puts(|found| found.device_time),
            ),
        ],
        Subject::Operation { .. } => {
            let title =
                if series.has_choice() { "Time of the quickest (p50) by size" } else { "Time (p50) by size" };
            vec![(title, time, conclusions.overtaking().and_then(Crossover::mark))]
        }
    };
    let sizes = series.sizes();
    let line = |name, glyph, colour, channel, figure: Figure| {
        let values = sizes.iter().map(|bytes| series.quickest(*bytes, channel).and_then(figure)).collect();
        ChartLine { name, glyph, colour, values }
    };
    let draw = |(title, figure, mark)| {
        let lines = [
            line("direct", '●', AnsiColor::Cyan, TestChannel::Memory, figure),
            line("proxied", '◇', AnsiColor::Magenta, TestChannel::Port, figure),
        ];
        chart::draw(look, &Chart { title, sizes: &sizes, lines: &lines, mark })
    };
    charts.into_iter().filter_map(draw).collect()
}

fn times(factor: f64) -> String {
    format!("{} x", three_digits(factor))
}

/// Makes a table of points. The head has the names of all columns, with commas between.
fn table_of<'a, const N: usize>(
    head: &'a str,
    points: &[Point<'_>],
    row: impl Fn(&Point<'_>) -> [String; N],
) -> TextTable<'a> {
    let rows = points.iter().map(|point| (row(point).to_vec(), false)).collect();
    TextTable { head: head.split(", ").collect(), words: 0, rows }
}
