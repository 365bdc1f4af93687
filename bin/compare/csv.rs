//! A comparison as comma-separated values: plain numbers, empty where a figure does not apply.
//! Behind each figure stand the two values between which its repetitions lie.

use shmccl_harness::report::{FIGURES, FigureOf, PerfRow};

use super::series::{Series, Subject, algorithm};

/// A name, and how the column is filled.
type CsvColumn = (&'static str, fn(&PerfRow) -> Option<String>);

/// What stands before the figures of puts, of either channel in the same line.
const OF_PUTS: [CsvColumn; 4] = [
    ("iterations", |row| Some(row.iterations.to_string())),
    ("puts_per_sample", |row| count(row.times.operations_per_sample)),
    ("pushes", |row| count(row.fifo.pushes)),
    ("wrong", |row| count(row.wrong)),
];

/// What stands before the figures of an algorithm over a channel at a size, each in a line of its
/// own.
const OF_ALGORITHMS: [CsvColumn; 7] = [
    ("bytes", |row| count(row.bytes)),
    ("channel", |row| row.channel.map(|channel| channel.name().to_owned())),
    ("algorithm", |row| Some(algorithm(row).to_owned())),
    ("iterations", |row| Some(row.iterations.to_string())),
    ("wrong", |row| count(row.wrong)),
    ("algbw", |row| number(row.collective.as_ref().map(|figures| figures.algbw))),
    ("busbw", |row| number(row.collective.as_ref().map(|figures| figures.busbw))),
];

/// Writes the whole file.
pub(super) fn text(series: &Series) -> String {
    let lines: Vec<String> = match series.subject {
        Subject::Puts { .. } => {
            let head = format!("bytes,{},{}", names(&OF_PUTS, "direct_"), names(&OF_PUTS, "proxied_"));
            let line = |row| fields(&OF_PUTS, row);
            let lines = series.points().into_iter();
            let lines =
                lines.map(|point| format!("{},{},{}", point.bytes, line(point.direct), line(point.proxied)));
            [head].into_iter().chain(lines).collect()
        }
        Subject::Operation { .. } => {
            let lines = series.report.rows.iter().map(|row| fields(&OF_ALGORITHMS, row));
            [names(&OF_ALGORITHMS, "")].into_iter().chain(lines).collect()
        }
    };
    lines.join("\n") + "\n"
}

fn names(columns: &[CsvColumn], side: &str) -> String {
    let names = columns.iter().map(|(name, _)| format!("{side}{name}"));
    let figures = FIGURES.iter().map(|(key, _)| format!("{side}{key},{side}{key}_low,{side}{key}_high"));
    names.chain(figures).collect::<Vec<_>>().join(",")
}

fn fields(columns: &[CsvColumn], row: &PerfRow) -> String {
    let figure = |(key, of): &(&str, FigureOf)| {
        let (low, high) = row.spread.get(*key).copied().unzip();
        [*of(&mut row.clone()), low, high].map(number)
    };
    let fields = columns.iter().map(|(_, field)| field(row)).chain(FIGURES.iter().flat_map(figure));
    fields.map(Option::unwrap_or_default).collect::<Vec<_>>().join(",")
}

fn number(value: Option<f64>) -> Option<String> {
    value.map(|value| format!("{value:.4}"))
}

fn count(value: Option<u64>) -> Option<String> {
    value.map(|value| value.to_string())
}
