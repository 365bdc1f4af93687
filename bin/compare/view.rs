//! A comparison as text: tables, charts, and what they mean.

use anstyle::AnsiColor;
use shmccl::heap::layout::FIFO_SLOTS;
use shmccl_harness::report::{LEVEL, PerfRow, legend};
use shmccl_harness::test::TestChannel;

use super::chart::{self, Chart, ChartLine};
use super::conclusions::Conclusions;
use super::crossover::Crossover;
use super::series::{BesidePuts, Point, Series, Subject, algorithm, is_thin};
use crate::flags::ProxyPlace;
use crate::output::TableLook;
use crate::table::TextTable;
use crate::units::{fine_percent, format_ns, format_size, or_dash, percent, three_digits, whole};

/// The columns that a narrow terminal goes without in the table of the quickest.
const EXPENDABLE: [&str; 4] = ["limit", "wrong", "GB/s", "direct/limit"];

/// Columns of a line where nothing else is known: of a report, a mail, a terminal.
const WIDTH: usize = 100;

/// Returns everything that goes to stdout: first what it comes to, then the figures.
pub(super) fn text(look: TableLook, series: &Series, conclusions: &Conclusions) -> String {
    let look = TableLook { width: Some(look.width.unwrap_or(WIDTH)), ..look };
    let summary = conclusions.summary.iter().map(|sentence| wrapped(sentence, look)).collect::<String>();
    let machine = wrapped(&series.report.machine.line(), look);
    let mut parts = vec![machine, summary, explanation(series)];
    match &series.subject {
        Subject::Puts { .. } => {
            let points = series.points();
            parts.extend([latency_table(look, &points), device_table(look, &points)]);
            parts.extend(fifo_table(look, &points));
        }
        Subject::Operation { .. } => {
            parts.push(quickest_table(look, series));
            if series.has_choice() {
                parts.push(algorithm_table(look, series, "Direct", TestChannel::Memory));
                parts.push(algorithm_table(look, series, "Proxied", TestChannel::Port));
            }
            parts.extend(puts_table(look, &series.beside_puts()));
        }
    }
    let legend = legend(&parts.join(""));
    parts.extend((!legend.is_empty()).then_some(legend));
    parts.extend(charts(look, series, conclusions));
    parts.join("\n")
}

/// Breaks a sentence into lines. All but the first are indented.
fn wrapped(sentence: &str, look: TableLook) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in sentence.split(' ') {
        let len = word.chars().count();
        let gap = match column {
            0 => "",
            column if column + 1 + len > look.width.unwrap_or(WIDTH) => "\n  ",
            _ => " ",
        };
        column = if gap.len() > 1 { 2 + len } else { column + gap.len() + len };
        text.extend([gap, word]);
    }
    text + "\n"
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
fn latency_table(look: TableLook, points: &[Point<'_>]) -> String {
    let head = "size, direct p50, p99, proxied p50, p99, proxied/direct, direct GB/s, proxied GB/s, wrong";
    let row = |point: &Point<'_>| {
        let Point { bytes, direct, proxied } = point;
        let wrong = direct.wrong.zip(proxied.wrong).map(|(direct, proxied)| direct.saturating_add(proxied));
        [
            format_size(*bytes),
            told(direct, "p50_ns", format_ns),
            told(direct, "p99_ns", format_ns),
            told(proxied, "p50_ns", format_ns),
            told(proxied, "p99_ns", format_ns),
            point.told_factor(),
            told(direct, "gb_per_s", three_digits),
            told(proxied, "gb_per_s", three_digits),
            or_dash(wrong, |wrong| wrong.to_string()),
        ]
    };
    let mut table = table_of(head, points, row);
    if points.iter().all(|point| (point.direct.wrong, point.proxied.wrong) == (Some(0), Some(0))) {
        table.drop_column("wrong");
    }
    let table = table.text(look, &["p99", "proxied/direct"]);
    format!(
        "Latency of one put, until the receiver holds the data; bandwidth of puts in a row\n{table}{}",
        of_means(points)
    )
}

/// Says up to which size percentiles are not of single puts.
fn of_means(points: &[Point<'_>]) -> String {
    let is_mean = |row: &PerfRow| row.times.operations_per_sample > Some(2);
    let means = points.iter().rfind(|point| is_mean(point.direct) || is_mean(point.proxied));
    means.map_or_else(String::new, |last| {
        format!(
            "p50, p99: up to {} of means of several puts, since one is too short for the clock.\n",
            format_size(last.bytes)
        )
    })
}

fn device_table(look: TableLook, points: &[Point<'_>]) -> String {
    let head = "size, CPU direct, CPU proxied, overlap proxied, direct/limit, proxied/limit";
    let row = |point: &Point<'_>| {
        let Point { bytes, direct, proxied } = point;
        [
            format_size(*bytes),
            told(direct, "device_cpu_ns", format_ns),
            told(proxied, "device_cpu_ns", format_ns),
            told(proxied, "overlap", percent),
            or_dash(direct.told_ratio(" x"), |told| told),
            or_dash(proxied.told_ratio(" x"), |told| told),
        ]
    };
    let mut table = table_of(head, points, row);
    let (mut overlap, mut hidden) = ("how much of it hides behind computation; ", points.iter());
    if hidden.all(|point| point.proxied.overlap.is_none()) {
        overlap = "";
        table.drop_column("overlap proxied");
    }
    let table = table.text(look, &["proxied/limit", "direct/limit"]);
    format!("What a put costs the device thread; {overlap}latency over its limit\n{table}")
}

/// Lays out how full the fifo is while puts are pushed without a pause, at all sizes that are small
/// enough to fill it. `None` where there is none.
fn fifo_table(look: TableLook, points: &[Point<'_>]) -> Option<String> {
    let filled: Vec<_> = points.iter().copied().filter(|point| point.proxied.fifo.depth.is_some()).collect();
    let row = |point: &Point<'_>| {
        [
            format_size(point.bytes),
            told(point.proxied, "fifo_depth_p50", whole),
            told(point.proxied, "fifo_depth", whole),
            told(point.proxied, "stall_share", fine_percent),
        ]
    };
    let table = table_of("size, depth p50, depth max, stalls", &filled, row).text(look, &[]);
    let turn = fine_percent(1.0 / FIFO_SLOTS as f64);
    let text = format!(
        "The fifo under proxied puts pushed as fast as they can be, without a flush\n{table}\
         depth:  triggers that wait for the proxy; there is room for {FIFO_SLOTS}.\n\
         stalls: pushes that found no room and waited, as a share of all; {turn}, one in\n        \
         {FIFO_SLOTS}, where device and proxy take turns to fill and to empty it.\n"
    );
    (!filled.is_empty()).then_some(text)
}

/// Lays out a line for each size. Who was the quickest is told where there was a choice.
fn quickest_table(look: TableLook, series: &Series) -> String {
    let has_choice = series.has_choice();
    let row = |bytes: u64| {
        let of = |channel| series.quickest(bytes, channel);
        let (direct, proxied) = (of(TestChannel::Memory), of(TestChannel::Port));
        let told = |row: Option<&PerfRow>, key, write: fn(f64) -> String| {
            or_dash(row.and_then(|row| row.told(key, write)), |told| told)
        };
        let named = |row: Option<&PerfRow>| or_dash(row, |row| algorithm(row).to_owned());
        let wrong = series.wrong_at(bytes);
        let texts = [
            format_size(bytes),
            told(direct, "p50_ns", format_ns),
            named(direct),
            told(proxied, "p50_ns", format_ns),
            named(proxied),
            or_dash(series.even_point(bytes), |point| point.told_factor()),
            told(direct, "gb_per_s", three_digits),
            told(direct, "limit_p50_ns", format_ns),
            or_dash(direct.and_then(|row| row.told_ratio(" x")), |told| told),
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
fn algorithm_table(look: TableLook, series: &Series, word: &str, channel: TestChannel) -> String {
    let algorithms = series.algorithms_over(channel);
    let row = |bytes: u64| {
        let best = series.quickest(bytes, channel).filter(|row| !is_thin(row)).map(algorithm);
        let cell = |name: &&str| {
            let mark = if best == Some(*name) { "*" } else { "" };
            let row = series.row(bytes, channel, name);
            or_dash(row.and_then(|row| row.told("p50_ns", format_ns)), |told| told + mark)
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

/// Lays out puts of a program's own beside the collective, and which of the two to use at each
/// size. `None` where puts were not measured.
fn puts_table(look: TableLook, beside: &[BesidePuts<'_>]) -> Option<String> {
    let row = |beside: &BesidePuts<'_>| {
        let BesidePuts { bytes, puts, collective } = beside;
        let wrong =
            puts.wrong.zip(collective.wrong).map(|(puts, collective)| puts.saturating_add(collective));
        let texts = [
            format_size(*bytes),
            told(puts, "p50_ns", format_ns),
            told(collective, "p50_ns", format_ns),
            beside.told_factor(),
            told(puts, "gb_per_s", three_digits),
            told(collective, "gb_per_s", three_digits),
            advice(beside).to_owned(),
        ];
        (texts.to_vec(), wrong.is_some_and(|wrong| wrong > 0))
    };
    let head = "size, puts p50, collective p50, puts/collective, puts GB/s, collective GB/s, use";
    let rows = beside.iter().map(row).collect();
    let table = TextTable { head: head.split(", ").collect(), words: 0, rows };
    let table = table.text(look, &["collective GB/s", "puts GB/s"]);
    let text = format!(
        "Puts of a program's own, to every rank and with a signal, or the collective\n{table}\
         either: within {} of each other, too few samples, or wrong data.\n",
        percent(LEVEL)
    );
    (!beside.is_empty()).then_some(text)
}

/// Returns which of the two is the quicker at a size.
fn advice(beside: &BesidePuts<'_>) -> &'static str {
    match beside.factor() {
        _ if !beside.is_telling() => "either",
        factor if factor < 1.0 - LEVEL => "puts",
        factor if factor * (1.0 - LEVEL) > 1.0 => "collective",
        _ => "either",
    }
}

fn charts(look: TableLook, series: &Series, conclusions: &Conclusions) -> Vec<String> {
    type Figure = fn(&PerfRow) -> Option<f64>;
    let (time, device_time): (Figure, Figure) = (|row| row.times.p50_ns, |row| row.device_cpu_ns);
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

fn told(row: &PerfRow, key: &str, write: impl FnOnce(f64) -> String) -> String {
    or_dash(row.told(key, write), |told| told)
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
