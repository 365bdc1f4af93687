//! Matrices as tables, which a terminal of 80 characters has room for up to eight ranks.

use super::cells::{Cell, Matrix};
use super::figure::Figure;
use crate::args::Channel;
use crate::fit::Grid;
use crate::output::Look;
use crate::row::{Report, Row};
use crate::sizes::format_size;
use crate::units::{format_ns, or_dash, three_digits};

/// Characters of a column of a rank and behind it, where the terminal is narrow; and of those before them.
const COLUMN: usize = 8;
const BEFORE: usize = 14;

/// What a narrow terminal goes without in the table of all ranks at once.
const EXPENDABLE: [&str; 3] = ["limit", "(p10..p90)", "time"];

/// Everything that goes to stdout.
pub(crate) fn text(look: Look, report: &Report) -> String {
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
    parts.join("\n")
}

fn head(matrix: &Matrix) -> String {
    let kind = match matrix.channel {
        Channel::Memory => "Memory channel (direct)",
        Channel::Port => "Port channel (proxied)",
    };
    let shared = match matrix.shared() {
        Some(ranks) => format!("* both ranks share a core: {ranks}"),
        None if matrix.cores.contains(&None) => "The scheduler decides who shares a core.".to_owned(),
        None => "No two ranks share a core.".to_owned(),
    };
    format!("{kind}: the rank of a row puts to the rank of a column.\n{shared}\n")
}

/// Values and, beside them where there is room, how many times its limit each takes.
fn tables(look: Look, matrix: &Matrix) -> String {
    let names: Vec<String> = (0..matrix.n_ranks()).map(|rank| rank.to_string()).collect();
    let whole: Vec<usize> = (0..matrix.n_ranks()).collect();
    let sheet = |half: Half, ranks: &[usize]| sheet(matrix, &names, half, ranks);
    let beside = sheet(Half::Values, &whole).beside(sheet(Half::Ratios, &whole)).grid();
    if beside.fits(look) {
        return beside.text(look, &[]);
    }
    let per_table = look.width.map_or(usize::MAX, |width| (width.saturating_sub(BEFORE) / COLUMN).max(1));
    let part = |half| {
        let tables = whole.chunks(per_table).map(move |ranks| sheet(half, ranks).grid().text(look, &[]));
        tables.collect::<String>()
    };
    part(Half::Values) + &part(Half::Ratios)
}

/// What cells show.
#[derive(Clone, Copy)]
enum Half {
    Values,
    Ratios,
}

/// A table in the making.
struct Sheet<'a> {
    head: Vec<&'a str>,
    rows: Vec<Vec<String>>,
}

/// A row for each rank, a column for each of `ranks`, and before them who a row is.
fn sheet<'a>(matrix: &Matrix, names: &'a [String], half: Half, ranks: &[usize]) -> Sheet<'a> {
    let mut head = match half {
        Half::Values => vec!["rank", "core"],
        Half::Ratios => vec!["time/limit"],
    };
    head.extend(ranks.iter().map(|rank| names[*rank].as_str()));
    let write = |cell: &Cell| match half {
        Half::Values => cell.text(),
        Half::Ratios => or_dash(cell.ratio, three_digits),
    };
    let row = |from: usize| {
        let mut texts = vec![names[from].clone()];
        if matches!(half, Half::Values) {
            texts.push(or_dash(matrix.cores[from], |core| core.to_string()));
        }
        texts.extend(ranks.iter().map(|to| or_dash(matrix.cell(from, *to), write)));
        texts
    };
    Sheet { head, rows: (0..matrix.n_ranks()).map(row).collect() }
}

impl<'a> Sheet<'a> {
    fn beside(mut self, right: Self) -> Self {
        self.head.extend(right.head);
        self.rows.iter_mut().zip(right.rows).for_each(|(row, more)| row.extend(more));
        self
    }

    fn grid(self) -> Grid<'a> {
        Grid { head: self.head, words: 0, rows: self.rows.into_iter().map(|row| (row, false)).collect() }
    }
}

/// All ranks at once, a row for each channel.
fn at_once(look: Look, rows: &[Row]) -> String {
    let all: Vec<&Row> =
        rows.iter().filter(|row| row.variant.as_deref() == Some(Figure::AllToAll.name())).collect();
    let line = |row: &&Row| {
        let per_rank = row.gb_per_s.map(|whole| whole / f64::from(row.ranks));
        let spread = row.ratio_p10.zip(row.ratio_p90);
        let texts = vec![
            or_dash(row.channel, |channel| channel.name().to_owned()),
            or_dash(row.bytes, format_size),
            or_dash(row.p50_ns, format_ns),
            or_dash(row.gb_per_s, three_digits),
            or_dash(per_rank, three_digits),
            or_dash(row.limit.clone(), |limit| limit),
            or_dash(row.ratio, three_digits),
            or_dash(spread, |(low, high)| format!("({}..{})", three_digits(low), three_digits(high))),
        ];
        (texts, row.wrong.is_some_and(|wrong| wrong > 0))
    };
    let head =
        vec!["channel", "block", "time", "GB/s in all", "per rank", "limit", "time/limit", "(p10..p90)"];
    let grid = Grid { head, words: 1, rows: all.iter().map(line).collect() };
    format!("all to all: every rank puts a block to every other at once\n{}", grid.text(look, &EXPENDABLE))
}

/// Whether the data were right, and where they were not.
fn faults(rows: &[Row]) -> String {
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
