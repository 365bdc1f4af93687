//! Draws all ranks of all jobs at one moment.

use comfy_table::{Attribute, Cell, Color};
use shmccl::observe::RankReport;
use shmccl::sync::LifeStatus;

use super::{RankRate, Throughput};
use crate::output::TableLook;
use crate::table;
use crate::units::{format_about, format_ns, or_dash, percent, three_digits};

const HEAD: [&str; 12] = [
    "job",
    "rank",
    "pid",
    "state",
    "in",
    "number",
    "ops/s",
    "bytes/s",
    "signals/s",
    "fifo",
    "waiting",
    "beat",
];

/// Columns that are left-aligned.
const LEFT: usize = 5;

/// Columns that a narrow terminal goes without, the first one first. All others stay.
const EXPENDABLE: [&str; 9] =
    ["fifo", "signals/s", "number", "beat", "pid", "waiting", "bytes/s", "job", "ops/s"];

/// Draws a table with a line for each rank.
pub(super) fn draw(look: TableLook, rates: &[RankRate<'_>]) -> String {
    if rates.is_empty() {
        return "no job of this user is running\n\n".to_owned();
    }
    format!("{}\n", lay_out(look, rates.iter().map(row).collect()))
}

/// Lays out the columns that have room. If even those that always stay have too little room, lines
/// are too long, and without colour, so that they can be cut anywhere.
fn lay_out(look: TableLook, rows: Vec<Vec<Cell>>) -> String {
    let kept = look.width.map_or_else(|| (0..HEAD.len()).collect(), |width| columns_within(width, &rows));
    let is_cut = look.width.is_some_and(|width| room_for(&kept, &rows) > width);
    let look = if is_cut { TableLook { width: None, colour: false, ..look } } else { look };
    let head: Vec<_> = kept.iter().map(|column| HEAD[*column]).collect();
    let left = kept.iter().filter(|column| **column < LEFT).count();
    let rows = rows.into_iter().map(|cells| {
        let cells = cells.into_iter().enumerate();
        cells.filter(|(column, _)| kept.contains(column)).map(|(_, cell)| cell).collect()
    });
    table::lay_out(look, &head, left, rows)
}

/// Returns the columns that fit into `width` without a line break.
fn columns_within(width: usize, rows: &[Vec<Cell>]) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..HEAD.len()).collect();
    for name in EXPENDABLE {
        if room_for(&kept, rows) <= width {
            break;
        }
        kept.retain(|column| HEAD[*column] != name);
    }
    kept
}

/// Returns the characters that these columns take beside each other.
fn room_for(columns: &[usize], rows: &[Vec<Cell>]) -> usize {
    let longest = |column: &usize| {
        let cells = rows.iter().filter_map(|row| row.get(*column)).map(|cell| cell.content().chars().count());
        cells.chain([HEAD[*column].len()]).max().unwrap_or(0)
    };
    columns.iter().map(longest).sum::<usize>() + table::room_between(columns.len())
}

/// Cuts a picture to `height` lines and `width` characters. The last line says how many lines are
/// missing. At least one line stays.
pub(super) fn cut(picture: &str, height: usize, width: usize) -> String {
    let (lines, height) = (picture.lines().count(), height.max(1));
    let first = if lines <= height { lines } else { height - 1 };
    let rest = (first < lines).then(|| format!("... and {} lines more", lines - first));
    let shown = picture
        .lines()
        .take(first)
        .map(|line| clip(line, width))
        .chain(rest.as_deref().map(|line| clip(line, width)));
    shown.flat_map(|line| [line, "\n"]).collect()
}

/// Returns as much of a line as fits. A line with colour was laid out to fit.
fn clip(line: &str, width: usize) -> &str {
    let end = line.char_indices().nth(width).map_or(line.len(), |(end, _)| end);
    if line.contains('\u{1b}') { line } else { &line[..end] }
}

/// Returns what draws a picture over one of `lines` lines, with the cursor at its end.
pub(super) fn over(picture: &str, lines: usize) -> String {
    let up = if lines > 0 { format!("\u{1b}[{lines}A\r") } else { String::new() };
    // Before a line: behind one that fills the terminal it would erase the last character.
    let cleared: String = picture.lines().map(|line| format!("\u{1b}[K{line}\n")).collect();
    format!("{up}{cleared}\u{1b}[J")
}

fn row(rate: &RankRate<'_>) -> Vec<Cell> {
    let RankRate { rank, done, .. } = rate;
    let per_second = |figure: fn(&Throughput) -> f64| or_dash(done.as_ref(), |done| count(figure(done)));
    let depth: u64 = rank.fifos.iter().fold(0, |sum, fifo| sum.saturating_add(fifo.depth));
    vec![
        Cell::new(format!("{:08x}", rate.job >> 32)),
        Cell::new(rank.rank),
        Cell::new(or_dash(rank.pid, |pid| pid.to_string())),
        state(rate),
        Cell::new(place(rank)),
        Cell::new(rank.work.operations),
        Cell::new(per_second(|done| done.operations)),
        Cell::new(or_dash(done.as_ref(), |done| format_about(done.bytes))),
        Cell::new(per_second(|done| done.signals)),
        Cell::new(if rank.fifos.is_empty() { "-".to_owned() } else { depth.to_string() }),
        Cell::new(or_dash(done.as_ref(), |done| percent(done.waiting))),
        Cell::new(or_dash(rank.heartbeat, |age| format_ns(age.as_secs_f64() * 1e9))),
    ]
}

/// Writes a count: `12.3`, `45.6k`, `7.89M`.
fn count(figure: f64) -> String {
    match figure {
        figure if figure >= 999_500.0 => format!("{}M", three_digits(figure / 1e6)),
        figure if figure >= 999.5 => format!("{}k", three_digits(figure / 1e3)),
        0.0 => "0".to_owned(),
        figure => three_digits(figure),
    }
}

fn state(rate: &RankRate<'_>) -> Cell {
    let rank = rate.rank;
    match rank.life {
        LifeStatus::Lost => Cell::new("lost").fg(Color::Red).add_attribute(Attribute::Bold),
        LifeStatus::Left => Cell::new("left"),
        LifeStatus::Absent => Cell::new("absent"),
        LifeStatus::Alive if rank.is_stopped => Cell::new("stopped").fg(Color::Red),
        LifeStatus::Alive if rate.is_straggler => Cell::new("awaited").fg(Color::Yellow),
        LifeStatus::Alive if rank.waits_for().is_some() => Cell::new("waits"),
        LifeStatus::Alive => Cell::new("runs").fg(Color::Green),
    }
}

/// Returns the current call of a rank in few words, or its last call in brackets.
fn place(rank: &RankReport) -> String {
    let name = |call: shmccl::observe::ObservedCall| match call.signature.operation() {
        Some(operation) => operation.name().to_owned(),
        None => "?".to_owned(),
    };
    match (rank.call.map(name), rank.waits_on(), rank.last.map(name)) {
        (Some(call), ..) => call,
        (None, Some(on), _) => on.to_owned(),
        (None, None, Some(last)) => format!("({last})"),
        (None, None, None) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_that_is_too_high_says_what_is_missing() {
        assert_eq!(cut("a\nb\nc\n", 3, 80), "a\nb\nc\n");
        assert_eq!(cut("a\nb\nc\nd\n", 3, 80), "a\nb\n... and 2 lines more\n");
        assert_eq!(cut("a\n", 0, 80), "a\n");
        assert_eq!(cut("a\nb\n", 0, 80), "... and 2 lines more\n");
    }

    /// A line without its colours.
    fn plain(line: &str) -> String {
        let mut parts = line.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        first + &parts.map(|part| part.split_once('m').unwrap().1).collect::<String>()
    }

    #[test]
    fn no_line_is_longer_than_the_smallest_terminal() {
        let words = ["0", "1", "2", "awaited", "(reduce_scatter)", "5", "6", "7", "8", "9", "10", "11"];
        let cells = || words.map(|word| Cell::new(word).fg(Color::Red)).to_vec();
        for (height, width) in (0..5).flat_map(|height| (0..40).map(move |width| (height, width))) {
            let look = TableLook { terminal: true, colour: true, width: Some(width), ..TableLook::plain() };
            let picture = cut(&lay_out(look, vec![cells(), cells()]), height, width);
            assert!((1..=height.max(1)).contains(&picture.lines().count()), "{height} by {width}: {picture}");
            let is_clipped = |line: &str| line.chars().count() <= width;
            assert!(picture.lines().all(|line| is_clipped(&plain(line))), "{height} by {width}: {picture}");
            assert!(width < 35 || height < 4 || picture.contains("(reduce_scatter)"), "{picture}");
        }
        assert_eq!(cut("äöü\n", 1, 2), "äö\n");
    }

    #[test]
    fn a_picture_is_drawn_over_the_one_before_and_leaves_nothing_of_it() {
        assert_eq!(over("a\n", 0), "\u{1b}[Ka\n\u{1b}[J");
        assert_eq!(over("a\n", 5), "\u{1b}[5A\r\u{1b}[Ka\n\u{1b}[J");
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_no_broken_words() {
        let words = [
            "01234567",
            "63",
            "1234567",
            "awaited",
            "(reduce_scatter)",
            "123456",
            "45.6k",
            "1.42 KiB",
            "7.89M",
            "12",
            "100 %",
            "499 ms",
        ];
        for (width, names) in [
            (122, HEAD.to_vec()),
            (121, HEAD.into_iter().filter(|name| *name != "fifo").collect()),
            (80, vec!["job", "rank", "state", "in", "ops/s", "bytes/s", "waiting"]),
            (60, vec!["job", "rank", "state", "in", "ops/s"]),
            (40, vec!["rank", "state", "in"]),
        ] {
            let look = TableLook { terminal: true, width: Some(width), ..TableLook::plain() };
            let text = lay_out(look, vec![words.map(Cell::new).to_vec()]);
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines.len(), 3, "a line of each kind, and none is broken: {text}");
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{text}");
            assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), names, "{width}");
            let in_line: Vec<_> =
                names.iter().map(|name| HEAD.iter().position(|it| it == name).unwrap()).collect();
            assert!(in_line.into_iter().all(|column| lines[2].contains(words[column])), "{text}");
        }
    }

    #[test]
    fn counts_are_short() {
        assert_eq!(
            [0.0, 0.5, 999.0, 45_600.0, 7_890_000.0].map(count),
            ["0", "0.500", "999", "45.6k", "7.89M"]
        );
        assert!(draw(TableLook::plain(), &[]).starts_with("no job"));
    }
}
