//! Matrices as tables, which a terminal of 80 characters has room for up to eight ranks.

use shmccl_harness::report::{PerfRow, legend};
use shmccl_harness::test::TestChannel;

use super::cells::{Cell, Matrix};
use crate::output::TableLook;
use crate::perf::report::PerfReport;
use crate::perf::spec::MatrixFigure;
use crate::table::TextTable;
use crate::units::{format_ns, format_size, or_dash, three_digits};

/// Columns that a narrow terminal goes without, in the table of all ranks at once.
const EXPENDABLE: [&str; 3] = ["limit", "(spread)", "time"];

/// Writes everything that goes to stdout.
pub(crate) fn text(look: TableLook, report: &PerfReport) -> String {
    let matrices = Matrix::all(&report.rows);
    let mut parts = vec![format!("{}\n", report.machine.line())];
    let mut channel = None;
    for matrix in &matrices {
        if channel != Some(matrix.channel) {
            channel = Some(matrix.channel);
            parts.push(head(matrix));
        }
        parts.push(format!("{}\n{}", matrix.title(), tables(look, matrix)));
    }
    parts.push(at_once(look, &report.rows));
    parts.push(faults(&report.rows));
    let text = parts.join("\n");
    format!("{text}{}", legend(&text))
}

fn head(matrix: &Matrix) -> String {
    let kind = match matrix.channel {
        TestChannel::Memory => "Memory channel (direct)",
        TestChannel::Port => "Port channel (proxied)",
    };
    let shared = match matrix.shared() {
        Some(ranks) => format!("* both ranks share a core: {ranks}"),
        None if matrix.cores.contains(&None) => "The scheduler decides who shares a core.".to_owned(),
        None => "No two ranks share a core.".to_owned(),
    };
    format!("{kind}: the rank of a row puts to the rank of a column.\n{shared}\n")
}

/// Writes the values and, beside them where there is room, how many times its limit each takes.
fn tables(look: TableLook, matrix: &Matrix) -> String {
    let names: Vec<String> = (0..matrix.n_ranks()).map(|rank| rank.to_string()).collect();
    let core = |from: usize| or_dash(matrix.cores[from], |core| core.to_string());
    let values =
        grid(matrix, &["rank", "core"], &names, &|from| vec![names[from].clone(), core(from)], &Cell::text);
    let ratio = |cell: &Cell| or_dash(cell.ratio.clone(), |told| told);
    let ratios = grid(matrix, &["time/limit"], &names, &|from| vec![names[from].clone()], &ratio);
    let beside = values.clone().beside(ratios.clone());
    if beside.fits(look) {
        beside.text(look, &[])
    } else {
        values.in_parts(look, 2) + &ratios.in_parts(look, 1)
    }
}

/// Makes a table with a row for each rank, `first` of it under `head`, and a column for each rank.
fn grid<'a>(
    matrix: &Matrix,
    head: &[&'a str],
    names: &'a [String],
    first: &dyn Fn(usize) -> Vec<String>,
    write: &dyn Fn(&Cell) -> String,
) -> TextTable<'a> {
    let row = |from: usize| {
        let cells = (0..matrix.n_ranks()).map(|to| or_dash(matrix.cell(from, to), write));
        (first(from).into_iter().chain(cells).collect(), false)
    };
    TextTable {
        head: head.iter().copied().chain(names.iter().map(String::as_str)).collect(),
        words: 0,
        rows: (0..matrix.n_ranks()).map(row).collect(),
    }
}

/// Writes the table of all ranks at once, a row for each channel.
fn at_once(look: TableLook, rows: &[PerfRow]) -> String {
    let all: Vec<&PerfRow> =
        rows.iter().filter(|row| row.variant.as_deref() == Some(MatrixFigure::AllToAll.name())).collect();
    let line = |row: &&PerfRow| {
        let per_rank = |whole| three_digits(whole / f64::from(row.ranks));
        let texts = vec![
            or_dash(row.channel, |channel| channel.name().to_owned()),
            or_dash(row.bytes, format_size),
            or_dash(row.told("p50_ns", format_ns), |told| told),
            or_dash(row.told("gb_per_s", three_digits), |told| told),
            or_dash(row.told("gb_per_s", per_rank), |told| told),
            or_dash(row.limit.name.clone(), |limit| limit),
            or_dash(row.told_ratio(""), |told| told),
            or_dash(row.ratio_spread(), |told| told),
        ];
        (texts, row.wrong.is_some_and(|wrong| wrong > 0))
    };
    let head = vec!["channel", "block", "time", "GB/s in all", "per rank", "limit", "time/limit", "(spread)"];
    let grid = TextTable { head, words: 1, rows: all.iter().map(line).collect() };
    format!("all to all: every rank puts a block to every other at once\n{}", grid.text(look, &EXPENDABLE))
}

/// Writes whether the data were right, and where they were not.
fn faults(rows: &[PerfRow]) -> String {
    let Some(wrong) = rows.iter().map(|row| row.wrong).sum::<Option<u64>>() else {
        return "The data were not checked.\n".to_owned();
    };
    let mut text = format!("Data checked: {wrong} words wrong.\n");
    for row in rows.iter().filter(|row| row.wrong != Some(0)) {
        let place =
            row.place.map_or_else(String::new, |place| format!(" from {} to {}", place.from, place.to));
        let (figure, words) = (row.variant.as_deref().unwrap_or_default(), row.wrong.unwrap_or(0));
        text += &format!("wrong: {figure}{place}, {words} words\n");
    }
    text
}
