//! Who sends what to whom, step by step.

use std::collections::BTreeMap;

use super::{Extent, SvgCanvas, arrow, at, colour};
use crate::lower::Lowered;
use crate::show::{by_step, told};
use crate::trace::Trace;

const ROW: usize = 26;
const LINE: usize = 15;
const WIDTH: usize = 330;
/// The most lines of text below a step.
const MAX_LINES: usize = 64;

/// Draws a panel for each step, with lines of text below. Returns the lowest point.
pub(super) fn draw(canvas: &mut SvgCanvas, lowered: &Lowered, trace: &Trace, top: usize) -> usize {
    let steps = by_step(trace);
    canvas.text(at(20, top), 15, "#111", "Who sends what to whom, step by step");
    if steps.is_empty() {
        canvas.text(at(20, top + 24), 12, "#555", "nothing moves between ranks");
        return top + 40;
    }
    let ranks = lowered.ranks.len();
    let mut left = 20;
    let mut lowest = 0;
    for (step, pairs) in &steps {
        let top = top + 30;
        canvas.text(at(left, top), 13, "#111", &format!("step {step}"));
        let row = |rank: usize| top + 22 + rank * ROW;
        for rank in 0..ranks {
            for side in [left, left + 190] {
                canvas.rectangle(
                    at(side, row(rank) - 11),
                    Extent { width: 62, height: 20 },
                    &format!("rx=\"4\" fill=\"{}\"", colour(rank)),
                    "",
                );
                canvas.text(at(side + 10, row(rank) + 4), 12, "#fff", &format!("rank {rank}"));
            }
        }
        let mut below = row(ranks) + 8;
        let mut widest = WIDTH;
        for (index, ((from, to), movements)) in pairs.iter().enumerate() {
            let line = format!("{from} \u{2192} {to}  {}", told(lowered, movements));
            canvas.line(at(left + 64, row(*from)), at(left + 188, row(*to)), &arrow(Some(*from)), &line);
            if index < MAX_LINES {
                canvas.text(at(left, below), 12, colour(*from), &line);
                widest = widest.max(line.chars().count() * 12 * 6 / 10 + 20);
                below += LINE;
            }
        }
        if pairs.len() > MAX_LINES {
            canvas.text(at(left, below), 12, "#555", &format!("and {} more pairs", pairs.len() - MAX_LINES));
            below += LINE;
        }
        lowest = lowest.max(below);
        left += widest;
    }
    lowest + totals(canvas, lowered, trace, lowest + 10)
}

/// Draws how many bytes go from each rank to each. Returns the height.
fn totals(canvas: &mut SvgCanvas, lowered: &Lowered, trace: &Trace, top: usize) -> usize {
    let mut bytes: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for movement in trace.events.iter().flat_map(|event| &event.movements) {
        *bytes.entry((movement.from.rank, movement.to.rank)).or_default() += movement.to.bytes;
    }
    let ranks = lowered.ranks.len();
    if ranks > 16 {
        return 0;
    }
    canvas.text(at(20, top + 10), 13, "#111", "Bytes from rank (row) to rank (column)");
    for rank in 0..ranks {
        canvas.text(at(74 + rank * 62, top + 30), 12, colour(rank), &format!("{rank}"));
        canvas.text(at(20, top + 50 + rank * 20), 12, colour(rank), &format!("rank {rank}"));
        for to in (0..ranks).filter(|&to| to != rank) {
            let told = bytes.get(&(rank, to)).map_or("-".to_owned(), usize::to_string);
            canvas.text(at(74 + to * 62, top + 50 + rank * 20), 12, "#333", &told);
        }
    }
    60 + ranks * 20
}
