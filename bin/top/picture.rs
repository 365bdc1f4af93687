//! How a moment of all jobs looks.

use comfy_table::{Attribute, Cell, Color};
use shmccl::observe::RankReport;
use shmccl::sync::LifeStatus;

use super::rates::{Done, Rate};
use crate::output::{self, Look};
use crate::sizes::format_about;
use crate::units::{format_ns, or_dash, percent, three_digits};

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

/// How many of the columns are on the left.
const LEFT: usize = 5;

/// Which columns go first where a terminal is too narrow for all. Those that are not here stay.
const EXPENDABLE: [&str; 9] =
    ["fifo", "signals/s", "number", "beat", "pid", "waiting", "bytes/s", "job", "ops/s"];

/// A table with a line for each rank.
pub(super) fn draw(look: Look, rates: &[Rate<'_>]) -> String {
    if rates.is_empty() {
        return "no job of this user is running\n\n".to_owned();
    }
    format!("{}\n", lay_out(look, rates.iter().map(row).collect()))
}

/// The columns for which there is room.
fn lay_out(look: Look, rows: Vec<Vec<Cell>>) -> String {
    let kept = look.width.map_or_else(|| (0..HEAD.len()).collect(), |width| columns_within(width, &rows));
    let head: Vec<_> = kept.iter().map(|column| HEAD[*column]).collect();
    let left = kept.iter().filter(|column| **column < LEFT).count();
    let rows = rows.into_iter().map(|cells| {
        let cells = cells.into_iter().enumerate();
        cells.filter(|(column, _)| kept.contains(column)).map(|(_, cell)| cell).collect()
    });
    output::table(look, &head, left, rows)
}

/// The columns that fit into so many characters beside each other, as none is to be broken into lines.
fn columns_within(width: usize, rows: &[Vec<Cell>]) -> Vec<usize> {
    let longest = |column: &usize| {
        let cells = rows.iter().filter_map(|row| row.get(*column)).map(|cell| cell.content().chars().count());
        cells.chain([HEAD[*column].len()]).max().unwrap_or(0)
    };
    let mut kept: Vec<usize> = (0..HEAD.len()).collect();
    for name in EXPENDABLE {
        if kept.iter().map(longest).sum::<usize>() + output::room_between(kept.len()) <= width {
            break;
        }
        kept.retain(|column| HEAD[*column] != name);
    }
    kept
}

/// The first `height` lines of a picture, the last of which says how many there were beyond.
pub(super) fn cut(picture: &str, height: usize) -> String {
    let lines = picture.lines().count();
    if lines <= height || height == 0 {
        return picture.to_owned();
    }
    let first: String = picture.split_inclusive('\n').take(height - 1).collect();
    format!("{first}... and {} lines more\n", lines - height + 1)
}

/// What draws a picture over one of so many lines, at the end of which the cursor is.
pub(super) fn over(picture: &str, lines: usize) -> String {
    let up = if lines > 0 { format!("\u{1b}[{lines}A\r") } else { String::new() };
    let cleared = picture.replace('\n', "\u{1b}[K\n");
    format!("{up}{cleared}\u{1b}[J")
}

fn row(rate: &Rate<'_>) -> Vec<Cell> {
    let Rate { rank, done, .. } = rate;
    let per_second = |figure: fn(&Done) -> f64| or_dash(done.as_ref(), |done| count(figure(done)));
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

/// `12.3`, `45.6k`, `7.89M`.
fn count(figure: f64) -> String {
    match figure {
        figure if figure >= 999_500.0 => format!("{}M", three_digits(figure / 1e6)),
        figure if figure >= 999.5 => format!("{}k", three_digits(figure / 1e3)),
        0.0 => "0".to_owned(),
        figure => three_digits(figure),
    }
}

fn state(rate: &Rate<'_>) -> Cell {
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

/// What a rank is in, in few words; otherwise what it was in last, in brackets.
fn place(rank: &RankReport) -> String {
    let name = |call: shmccl::observe::Call| match call.summary.operation() {
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
        assert_eq!(cut("a\nb\nc\n", 3), "a\nb\nc\n");
        assert_eq!(cut("a\nb\nc\nd\n", 3), "a\nb\n... and 2 lines more\n");
        assert_eq!(cut("a\n", 0), "a\n");
    }

    #[test]
    fn a_picture_is_drawn_over_the_one_before_and_leaves_nothing_of_it() {
        assert_eq!(over("a\n", 0), "a\u{1b}[K\n\u{1b}[J");
        assert_eq!(over("a\n", 5), "\u{1b}[5A\ra\u{1b}[K\n\u{1b}[J");
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
            let look = Look { terminal: true, width: Some(width), ..Look::plain() };
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
        assert!(draw(Look::plain(), &[]).starts_with("no job"));
    }
}
