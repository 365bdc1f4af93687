//! Charts of times over sizes, drawn with characters on two logarithmic scales.

use anstyle::AnsiColor;

use crate::output::TableLook;
use crate::units::{format_about, format_ns, format_size, round_figures, without_zeros};

const WIDTH: usize = 66;
const HEIGHT: usize = 15;
/// Columns for the labels of the vertical axis.
const MARGIN: usize = 9;

/// A chart to draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart<'a> {
    /// The title.
    pub(super) title: &'a str,
    /// The sizes, in rising order.
    pub(super) sizes: &'a [u64],
    /// The lines.
    pub(super) lines: &'a [ChartLine],
    /// A size to mark as the crossover.
    pub(super) mark: Option<f64>,
}

/// A line: a time per size, in nanoseconds, with gaps.
#[derive(Clone, Debug)]
pub(super) struct ChartLine {
    /// The name in the key.
    pub(super) name: &'static str,
    /// The character at every value.
    pub(super) glyph: char,
    /// The colour, on terminals that have colour.
    pub(super) colour: AnsiColor,
    /// The times.
    pub(super) values: Vec<Option<f64>>,
}

/// A logarithmic scale onto `0..cells`.
#[derive(Clone, Copy, Debug)]
struct LogScale {
    low: f64,
    high: f64,
    cells: usize,
}

type CanvasCell = (char, Option<AnsiColor>);
type Canvas = Vec<Vec<CanvasCell>>;

/// Draws the chart; `None` if there are no two values to draw a line between.
pub(super) fn draw(look: TableLook, chart: &Chart<'_>) -> Option<String> {
    let values = || chart.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
    let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let (first, last) = (*chart.sizes.first()?, *chart.sizes.last()?);
    if first == last || first == 0 {
        return None;
    }
    let across = LogScale { low: first as f64, high: last as f64, cells: WIDTH };
    // A little room below and above, so that lines do not lie on the frame.
    let up = LogScale { low: low.max(0.1) * 0.8, high: high.max(0.2) * 1.25, cells: HEIGHT };
    let mut canvas: Canvas = vec![vec![(' ', None); WIDTH]; HEIGHT];
    if let Some(mark) = chart.mark {
        let column = across.cell(mark);
        canvas.iter_mut().for_each(|row| row[column] = ('┆', None));
    }
    for line in chart.lines {
        trace(&mut canvas, chart.sizes, line, across, up);
    }
    for line in chart.lines {
        dot(&mut canvas, chart, line, across, up);
    }
    Some(frame(look, chart, &canvas, across, up))
}

/// Draws the line between the values.
fn trace(canvas: &mut Canvas, sizes: &[u64], line: &ChartLine, across: LogScale, up: LogScale) {
    let points: Vec<(f64, f64)> =
        sizes.iter().zip(&line.values).filter_map(|(size, value)| Some((*size as f64, (*value)?))).collect();
    for pair in points.windows(2) {
        let [(from, start), (to, end)] = pair else { continue };
        for column in across.cell(*from)..=across.cell(*to) {
            let way = (across.at(column).ln() - from.ln()) / (to.ln() - from.ln());
            let value = (start.ln() + (end.ln() - start.ln()) * way.clamp(0.0, 1.0)).exp();
            *at(canvas, column, up.cell(value)) = ('·', Some(line.colour));
        }
    }
}

/// Draws the values. A cell with values of two lines says so.
fn dot(canvas: &mut Canvas, chart: &Chart<'_>, line: &ChartLine, across: LogScale, up: LogScale) {
    for (size, value) in chart.sizes.iter().zip(&line.values) {
        let Some(value) = value else { continue };
        let cell = at(canvas, across.cell(*size as f64), up.cell(*value));
        let taken = chart.lines.iter().any(|other| other.name != line.name && other.glyph == cell.0);
        *cell = if taken { ('◈', None) } else { (line.glyph, Some(line.colour)) };
    }
}

/// Returns the cell in a column, counted from the left, and a row, counted from the bottom.
fn at(canvas: &mut Canvas, column: usize, row: usize) -> &mut CanvasCell {
    &mut canvas[HEIGHT - 1 - row][column]
}

fn frame(look: TableLook, chart: &Chart<'_>, canvas: &Canvas, across: LogScale, up: LogScale) -> String {
    let mut text = format!("{}    ", chart.title);
    for line in chart.lines {
        text.push_str(&format!("{} {}   ", look.paint(&line.glyph.to_string(), line.colour), line.name));
    }
    text.push_str(match chart.mark {
        Some(_) => "◈ both   ┆ crossover\n",
        None => "◈ both\n",
    });
    let labels = up.labels();
    for (index, row) in canvas.iter().enumerate() {
        let label = labels.iter().find(|label| up.cell(**label) == HEIGHT - 1 - index);
        let (label, tick) =
            label.map_or((String::new(), '│'), |label| (without_zeros(&format_ns(*label)), '┤'));
        let cells: String = row
            .iter()
            .map(|(character, colour)| match colour {
                Some(colour) => look.paint(&character.to_string(), *colour),
                None => character.to_string(),
            })
            .collect();
        text.push_str(format!("{label:>MARGIN$} {tick}{cells}").trim_end());
        text.push('\n');
    }
    text.push_str(&axis(chart, across));
    text
}

/// Draws the horizontal axis, with as many sizes below it as there is room for.
fn axis(chart: &Chart<'_>, across: LogScale) -> String {
    let mut rule = vec!['─'; WIDTH];
    let mut labels = String::new();
    let start_of = |size: u64| across.cell(size as f64).saturating_sub(format_size(size).len() / 2);
    let last = chart.sizes.last().copied().unwrap_or_default();
    for size in chart.sizes.iter().copied() {
        let (label, start) = (format_size(size), start_of(size));
        let follows = labels.is_empty() || start >= labels.len() + 2;
        // The largest size is always named.
        if size == last || follows && start + label.len() + 2 <= start_of(last) {
            rule[across.cell(size as f64)] = '┴';
            labels = format!("{labels:start$}{label}");
        }
    }
    let indent = " ".repeat(MARGIN + 1);
    let mut text = format!("{indent}└{}\n{indent} {labels}\n", rule.iter().collect::<String>());
    if let Some(mark) = chart.mark {
        let label = format!("crossover at about {}", format_about(mark));
        let start = across.cell(mark).saturating_sub(label.len() / 2).min(WIDTH - label.len());
        text.push_str(&format!("{indent} {}{label}\n", " ".repeat(start)));
    }
    text
}

impl LogScale {
    /// Returns the cell of a value; values outside lie at the ends.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates and the cell is bounded below"
    )]
    fn cell(self, value: f64) -> usize {
        let way = (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln());
        ((way * (self.cells - 1) as f64).round() as usize).min(self.cells - 1)
    }

    /// Returns the value in the middle of a cell.
    fn at(self, cell: usize) -> f64 {
        let way = cell as f64 / (self.cells - 1) as f64;
        (self.low.ln() + (self.high.ln() - self.low.ln()) * way).exp()
    }

    /// Returns round values inside the scale.
    fn labels(self) -> Vec<f64> {
        round_figures(self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &'static str, glyph: char, values: &[f64]) -> ChartLine {
        let values = values.iter().map(|value| Some(*value)).collect();
        ChartLine { name, glyph, colour: AnsiColor::Red, values }
    }

    #[test]
    fn values_lie_at_their_place_and_the_axes_are_labelled() {
        let lines = [line("a", 'a', &[100.0, 100.0, 1e6]), line("b", 'b', &[1e4, 1e4, 1e6])];
        let chart = Chart { title: "Title", sizes: &[8, 4096, 1 << 20], lines: &lines, mark: Some(1e5) };
        let text = draw(TableLook::plain(), &chart).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[0].starts_with("Title    a a   b b   ◈ both   ┆ crossover"));
        assert!(rows[1].ends_with('◈'), "the last values of both lines fall together:\n{text}");
        assert!(rows[HEIGHT].contains('a') && !rows[HEIGHT].contains('b'), "{text}");
        for label in
            ["100 ns", "1 us", "10 us", "1 ms", "8 B", "4 KiB", "1 MiB", "crossover at about 97.7 KiB"]
        {
            assert!(text.contains(label), "{label}\n{text}");
        }
        assert!(
            rows.iter().all(|row| row.chars().count() <= MARGIN + 2 + WIDTH + 9 && *row == row.trim_end())
        );
    }

    #[test]
    fn gaps_and_extremes_do_not_break_it() {
        let line = ChartLine { values: vec![None, Some(0.0), Some(f64::MAX)], ..line("a", 'a', &[]) };
        let chart = Chart { title: "", sizes: &[1, 2, u64::MAX], lines: &[line], mark: Some(1e30) };
        assert!(draw(TableLook::plain(), &chart).is_some());
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        let one = [line("a", 'a', &[1.0])];
        let empty = ChartLine { values: vec![None, None], ..line("a", 'a', &[]) };
        let none = |sizes: &[u64], lines: &[ChartLine]| {
            draw(TableLook::plain(), &Chart { title: "", sizes, lines, mark: None }).is_none()
        };
        assert!(none(&[8], &one) && none(&[8, 16], &[empty]) && none(&[], &[]));
    }
}
