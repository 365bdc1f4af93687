//! What a measured table changes, as a table for people.

use super::choices::{SizeChoice, noise};
use super::plan::TuneFigure;
use crate::output::Look;
use crate::perf::stats::quantile;
use crate::table::TextTable;
use crate::units::{format_ns, format_size, percent, three_digits};

/// The noise from which on the user is told what to do about it.
const NOISY: f64 = 0.05;

/// Lays out a row for each run of sizes at which one algorithm takes the place of the built-in
/// choice.
pub(super) fn text(look: Look, choices: &[SizeChoice]) -> String {
    let together = |one: &SizeChoice, next: &SizeChoice| {
        one.is_of_case(next) && (one.built_in, one.chosen) == (next.built_in, next.chosen)
    };
    let runs = choices.chunk_by(together).filter(|run| run[0].is_change());
    let head = vec![
        "operation",
        "ranks",
        "buffers",
        "size",
        "built-in",
        "best",
        "p50",
        "time/built-in",
        "(best size)",
    ];
    let rows: Vec<_> = runs.map(|run| (row(run), false)).collect();
    if rows.is_empty() {
        return "the built-in choice is as good as any other here, at all sizes\n".to_owned();
    }
    TextTable { head, words: 6, rows }.text(look, &["(best size)", "p50", "built-in"])
}

fn row(run: &[SizeChoice]) -> Vec<String> {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    let size = match (format_size(first.bytes), format_size(last.bytes)) {
        (only, end) if only == end => only,
        (start, end) => format!("{start}..{end}"),
    };
    let best = run.iter().min_by(|one, other| one.ratio.total_cmp(&other.ratio)).unwrap_or(first);
    let worst = run.iter().max_by(|one, other| one.ratio.total_cmp(&other.ratio)).unwrap_or(first);
    let ratio = match (three_digits(best.ratio), three_digits(worst.ratio)) {
        (only, end) if only == end => only,
        (least, most) => format!("{least}..{most}"),
    };
    let oversubscribed = if first.oversubscribed { ", oversubscribed" } else { "" };
    vec![
        first.operation.name().to_owned(),
        format!("{}{oversubscribed}", first.ranks),
        first.buffers.name().to_owned(),
        size,
        first.built_in.name().to_owned(),
        first.chosen.name().to_owned(),
        format_ns(best.p50_ns),
        ratio,
        format_size(best.bytes),
    ]
}

/// Says how much changes, and how far the figures can be trusted.
pub(super) fn notes(figures: &[TuneFigure], choices: &[SizeChoice]) -> Vec<String> {
    let kept = choices.iter().filter(|choice| !choice.is_change()).count();
    let mut shares: Vec<f64> = figures.iter().map(noise).collect();
    let (middle, high) =
        (quantile(&mut shares, 0.5).unwrap_or(0.0), quantile(&mut shares, 0.9).unwrap_or(0.0));
    let mut notes = vec![
        format!("the built-in choice stays at {kept} of {} sizes", choices.len()),
        format!(
            "noise, the built-in choice against itself: {} at half of the sizes or less, {} at nine of ten",
            percent(middle),
            percent(high)
        ),
    ];
    if high > NOISY {
        notes.push(
            "that is much: close other programs, or measure for longer (--time), for smaller gains to show"
                .to_owned(),
        );
    }
    notes
}
