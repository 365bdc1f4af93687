//! Matrices as heat maps: a square for every pair, with its value and its limit, and a scale.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use shmccl_harness::report::PerfRow;

use super::cells::{Cell, Matrix};
use crate::perf::report::PerfReport;
use crate::perf::spec::MatrixFigure;
use crate::plot::{self, Drawn, GREY, PlotArea, anchored, centred};
use crate::units::{format_size, or_dash, three_digits, without_zeros};

/// The darkest colour of a scale whose lightest is white.
const DARK: RGBColor = RGBColor(0, 70, 130);

/// The diagonal.
const EMPTY: RGBColor = RGBColor(235, 235, 235);

/// Colours of a scale.
const STEPS: i32 = 50;

/// Maps beside each other: the figures of a channel.
const ACROSS: usize = MatrixFigure::OF_PAIRS.len();

/// Pixels above all maps, below them, and around the squares of one: left, right, above, below.
const HEAD: i32 = 84;
const FOOT: i32 = 70;
const MARGINS: [i32; 4] = [70, 110, 64, 48];

/// Where the squares of a map lie.
#[derive(Clone, Copy)]
struct HeatGrid {
    /// Pixels of a side of a square.
    side: i32,
    n_ranks: i32,
}

/// A place in the drawing, in pixels from the left and from the top.
#[derive(Clone, Copy)]
struct Pixel(i32, i32);

/// Draws the file.
///
/// # Errors
/// When the drawing library refuses.
pub(crate) fn text(report: &PerfReport) -> Result<String> {
    let matrices = Matrix::all(&report.rows);
    let n_ranks = i32::try_from(matrices.first().map_or(1, Matrix::n_ranks))?;
    let board = HeatGrid { side: (400 / n_ranks).clamp(46, 110), n_ranks };
    let down = i32::try_from(matrices.len().div_ceil(ACROSS))?;
    let (width, height) = board.extent();
    let size = (width * i32::try_from(ACROSS)?, HEAD + height * down + FOOT);
    plot::svg(u32::try_from(size.0)?, u32::try_from(size.1)?, |root| {
        let title = "Puts between all pairs of ranks of one host";
        root.draw_text(title, &centred(28, &BLACK), (size.0 / 2, 28))?;
        root.draw_text(&report.machine.line(), &centred(16, &GREY), (size.0 / 2, 60))?;
        for (index, matrix) in matrices.iter().enumerate() {
            let (row, column) = (i32::try_from(index / ACROSS)?, i32::try_from(index % ACROSS)?);
            board.draw(root, matrix, Pixel(column * width, HEAD + row * height))?;
        }
        for (line, text) in (0..).zip(footer(&matrices, &report.rows)) {
            let place = (size.0 / 2, size.1 - FOOT + 14 + 22 * line);
            root.draw_text(&text, &centred(15, &GREY), place)?;
        }
        Ok(())
    })
}

/// Writes what the marks mean, and the figure of all ranks at once.
fn footer(matrices: &[Matrix], rows: &[PerfRow]) -> Vec<String> {
    let shared = matrices.first().and_then(Matrix::shared);
    let shared = shared.map_or_else(String::new, |ranks| format!("; * both ranks share a core: {ranks}"));
    let mut lines = vec![format!("Second line of a square: time over the machine's limit{shared}")];
    let all: Vec<String> = rows.iter().filter_map(at_once).collect();
    if !all.is_empty() {
        lines.push(format!("All to all at once: {}", all.join("; ")));
    }
    lines
}

fn at_once(row: &PerfRow) -> Option<String> {
    if row.variant.as_deref() != Some(MatrixFigure::AllToAll.name()) {
        return None;
    }
    let (channel, block) = (row.channel?.name(), format_size(row.bytes?));
    let ratio = or_dash(row.limit.ratio, three_digits);
    Some(format!(
        "{channel} {} GB/s in blocks of {block} ({ratio} x limit)",
        three_digits(row.times.gb_per_s?)
    ))
}

impl HeatGrid {
    /// Returns width and height of a map with its margins.
    fn extent(self) -> (i32, i32) {
        let [left, right, above, below] = MARGINS;
        let squares = self.side * self.n_ranks;
        (left + squares + right, above + squares + below)
    }

    /// Returns the upper left corner of a square of a map that begins at `origin`.
    fn corner(self, origin: Pixel, from: i32, to: i32) -> Pixel {
        Pixel(origin.0 + MARGINS[0] + to * self.side, origin.1 + MARGINS[2] + from * self.side)
    }

    fn draw(self, root: &PlotArea<'_>, matrix: &Matrix, origin: Pixel) -> Drawn {
        let corner = self.corner(origin, 0, 0);
        let (squares, half) = (self.side * self.n_ranks, self.side / 2);
        let middle = corner.0 + squares / 2;
        let title = format!("{} channel: {}", matrix.channel.name(), matrix.title());
        root.draw_text(&title, &centred(15, &BLACK), (origin.0 + self.extent().0 / 2, origin.1 + 18))?;
        root.draw_text("to rank", &centred(14, &GREY), (middle, corner.1 + squares + 34))?;
        root.draw_text("from rank", &centred(14, &GREY), (origin.0 + 40, corner.1 - 14))?;
        for rank in 0..self.n_ranks {
            let label = centred(14, &BLACK);
            let along = rank * self.side + half;
            root.draw_text(&rank.to_string(), &label, (corner.0 + along, corner.1 + squares + 14))?;
            root.draw_text(&rank.to_string(), &label, (corner.0 - 16, corner.1 + along))?;
        }
        for from in 0..self.n_ranks {
            for to in 0..self.n_ranks {
                let cell = matrix.cell(usize::try_from(from)?, usize::try_from(to)?);
                self.square(root, self.corner(origin, from, to), cell, matrix.most())?;
            }
        }
        self.scale(root, matrix, Pixel(corner.0 + squares + 16, corner.1))
    }

    fn square(self, root: &PlotArea<'_>, Pixel(x, y): Pixel, cell: Option<&Cell>, most: f64) -> Drawn {
        let corners = [(x, y), (x + self.side, y + self.side)];
        let share = cell.map(|cell| cell.value / most.max(f64::MIN_POSITIVE));
        root.draw(&Rectangle::new(corners, share.map_or(EMPTY, colour).filled()))?;
        root.draw(&Rectangle::new(corners, WHITE))?;
        let Some((cell, share)) = cell.zip(share) else { return Ok(()) };
        let ink = if share > 0.5 { WHITE } else { BLACK };
        let height = u32::try_from(self.side / 4)?.clamp(12, 18);
        let (middle, upper, lower) = (x + self.side / 2, y + self.side * 2 / 5, y + self.side * 7 / 10);
        root.draw_text(&cell.text(), &centred(height, &ink), (middle, upper))?;
        if let Some(ratio) = &cell.ratio {
            let text = format!("{ratio} x");
            root.draw_text(&text, &centred(height * 3 / 4, &ink), (middle, lower))?;
        }
        Ok(())
    }

    /// Draws the scale of colours, from nothing at the bottom to the greatest value.
    fn scale(self, root: &PlotArea<'_>, matrix: &Matrix, Pixel(x, y): Pixel) -> Drawn {
        let height = self.side * self.n_ranks;
        for step in 0..STEPS {
            let (top, bottom) = (y + height * step / STEPS, y + height * (step + 1) / STEPS);
            let share = f64::from(STEPS - step) / f64::from(STEPS);
            root.draw(&Rectangle::new([(x, top), (x + 16, bottom)], colour(share).filled()))?;
        }
        root.draw(&Rectangle::new([(x, y), (x + 16, y + height)], GREY))?;
        for (share, at) in [(1.0, y), (0.5, y + height / 2), (0.0, y + height)] {
            let value = without_zeros(&three_digits(matrix.most() * share));
            let label = format!("{value} {}", matrix.unit);
            root.draw_text(&label, &anchored(13, &BLACK, HPos::Left), (x + 22, at))?;
        }
        Ok(())
    }
}

/// Returns the colour of a share of the greatest value.
fn colour(share: f64) -> RGBColor {
    let share = share.clamp(0.0, 1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 255, and the fraction does not matter"
    )]
    let mix = |dark: u8| (255.0 - (255.0 - f64::from(dark)) * share) as u8;
    RGBColor(mix(DARK.0), mix(DARK.1), mix(DARK.2))
}
