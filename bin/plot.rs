//! Plots as SVG: common pieces, and pages of four panels over size.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::host::MachineInfo;
use crate::units::{format_about, round_figures, three_digits, without_zeros};

/// The colour of side remarks.
pub(crate) const GREY: RGBColor = RGBColor(90, 90, 90);

/// A part of a picture.
pub(crate) type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The result of drawing.
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws a picture of this width and height on white, and returns the whole file.
///
/// # Errors
/// Returns the errors of the drawing library.
pub(crate) fn svg(width: u32, height: u32, draw: impl FnOnce(&PlotArea<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        let drawn = root.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&root));
        drawn.and_then(|()| Ok(root.present()?)).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    }
    svg.push('\n');
    Ok(svg)
}

/// Returns a text style of a height in pixels, centred at a point.
pub(crate) fn centred(height: u32, colour: &RGBColor) -> TextStyle<'static> {
    anchored(height, colour, HPos::Center)
}

/// Returns a text style of a height in pixels, beside a point.
pub(crate) fn anchored(height: u32, colour: &RGBColor, side: HPos) -> TextStyle<'static> {
    ("sans-serif", height).into_font().color(colour).pos(Pos::new(side, VPos::Center))
}

/// The width and height of a page.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 980;

/// A page: four panels under one title.
pub(crate) struct PlotPage<'a> {
    /// The title.
    pub(crate) title: &'a str,
    /// The machine, below the title.
    pub(crate) machine: &'a MachineInfo,
    /// The line below all panels.
    pub(crate) footer: String,
    /// The label of all horizontal axes.
    pub(crate) x_label: &'a str,
    /// The sizes on them, in rising order.
    pub(crate) sizes: &'a [u64],
    /// The panels.
    pub(crate) panels: [Panel<'a>; 4],
}

/// One panel of a page.
pub(crate) struct Panel<'a> {
    /// The title.
    pub(crate) title: &'a str,
    /// The label of the vertical axis.
    pub(crate) y_label: &'a str,
    /// Writes a value of the vertical axis.
    pub(crate) write: fn(f64) -> String,
    /// Whether the vertical axis is logarithmic; otherwise it is a share from 0 to 1.
    pub(crate) logarithmic: bool,
    /// The lines.
    pub(crate) lines: Vec<PlotLine<'a>>,
    /// The size of a crossover, if there is one.
    pub(crate) mark: Option<f64>,
}

/// One line of a panel.
pub(crate) struct PlotLine<'a> {
    /// The name in the key.
    pub(crate) name: &'a str,
    /// The colour.
    pub(crate) colour: RGBColor,
    /// Whether it is dashed and thin, and not in the key.
    pub(crate) dashed: bool,
    /// Sizes and values.
    pub(crate) points: Vec<(f64, f64)>,
}

/// An axis with labels at round values only.
#[derive(Clone, Debug)]
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    labels: Vec<f64>,
}

impl PlotPage<'_> {
    /// Draws the page, and returns the whole file.
    ///
    /// # Errors
    /// Returns the errors of the drawing library.
    pub(crate) fn svg(&self) -> Result<String> {
        svg(WIDTH, HEIGHT, |root| {
            let (head, rest) = root.split_vertically(84);
            let (body, foot) = rest.split_vertically(HEIGHT.saturating_sub(84 + 40));
            let centre = i32::try_from(WIDTH / 2)?;
            head.draw_text(self.title, &centred(28, &BLACK), (centre, 28))?;
            let small = centred(16, &GREY);
            head.draw_text(&self.machine.line(), &small, (centre, 60))?;
            foot.draw_text(&self.footer, &small, (centre, 16))?;
            let areas = body.split_evenly((2, 2));
            areas.iter().zip(&self.panels).try_for_each(|(area, panel)| panel.draw(area, self))
        })
    }
}

impl Panel<'_> {
    fn draw_nothing(&self, area: &PlotArea<'_>) -> Drawn {
        let (width, height) = area.dim_in_pixel();
        let centre = (i32::try_from(width / 2)?, i32::try_from(height / 2)?);
        area.draw_text(&format!("{}: not measured", self.title), &centred(18, &GREY), centre)?;
        Ok(())
    }

    fn draw(&self, area: &PlotArea<'_>, page: &PlotPage<'_>) -> Drawn {
        let values = || self.lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value));
        let (Some(low), Some(high)) = (values().reduce(f64::min), values().reduce(f64::max)) else {
            return self.draw_nothing(area);
        };
        let y = if self.logarithmic {
            Axis::decades(low.max(1e-4) * 0.7, high.max(1e-4) * 1.8)
        } else {
            Axis::shares()
        };
        let (bottom, top) = (y.low, y.high);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_right(28)
            .caption(self.title, ("sans-serif", 20))
            .x_label_area_size(54)
            .y_label_area_size(88)
            .build_cartesian_2d(Axis::sizes(page.sizes), y)?;
        let (write_x, write_y) =
            (|bytes: &f64| format_about(*bytes), |value: &f64| without_zeros(&(self.write)(*value)));
        chart
            .configure_mesh()
            .x_desc(page.x_label)
            .y_desc(self.y_label)
            .x_labels(16)
            .y_labels(16)
            .max_light_lines(0)
            .bold_line_style(RGBColor(222, 222, 222))
            .axis_desc_style(("sans-serif", 16))
            .label_style(("sans-serif", 14))
            .x_label_formatter(&write_x)
            .y_label_formatter(&write_y)
            .draw()?;
        if let Some(mark) = self.mark {
            let dashes = DashedLineSeries::new([(mark, bottom), (mark, top)], 6, 4, GREY.stroke_width(2));
            chart.draw_series(dashes)?;
            let style = ("sans-serif", 14).into_font().color(&GREY);
            // The label lies on the side of the mark that has more room.
            let right = mark < page.sizes.last().map_or(1.0, |bytes| *bytes as f64).sqrt();
            let anchor = Pos::new(if right { HPos::Left } else { HPos::Right }, VPos::Bottom);
            let label =
                Text::new(format!(" crossover: {} ", format_about(mark)), (mark, bottom), style.pos(anchor));
            chart.draw_series(std::iter::once(label))?;
        }
        for line in &self.lines {
            let colour = line.colour;
            if line.dashed {
                let dashes = DashedLineSeries::new(line.points.iter().copied(), 4, 4, colour.stroke_width(1));
                chart.draw_series(dashes)?;
                continue;
            }
            chart
                .draw_series(
                    LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(3),
                )?
                .label(line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .label_font(("sans-serif", 15))
            .draw()?;
        Ok(())
    }
}

impl Axis {
    /// Returns an axis of the sizes of a page, labelled at every third power of two.
    fn sizes(sizes: &[u64]) -> Self {
        let size = |size: Option<&u64>| size.copied().unwrap_or(1).max(1) as f64;
        let (low, high) = (size(sizes.first()), size(sizes.last()));
        let steps = (0..63).step_by(3).map(|power| f64::from(power).exp2());
        let labels = steps.filter(|label| (low..=high).contains(label)).collect();
        Self { low, high: high.max(low * 2.0), logarithmic: true, labels }
    }

    /// Returns a logarithmic axis with round labels.
    fn decades(low: f64, high: f64) -> Self {
        let labels = round_figures(low, high);
        Self { low, high, logarithmic: true, labels }
    }

    /// Returns an axis of shares of one, with a little room above and below.
    fn shares() -> Self {
        Self { low: -0.05, high: 1.3, logarithmic: false, labels: vec![0.0, 0.25, 0.5, 0.75, 1.0] }
    }

    fn scale(&self, value: f64) -> f64 {
        if self.logarithmic { value.max(1e-12).ln() } else { value }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let [low, high, value] = [self.low, self.high, *value].map(|value| self.scale(value));
        let pixel = f64::from(limit.0) + f64::from(limit.1 - limit.0) * (value - low) / (high - low);
        #[expect(clippy::cast_possible_truncation, reason = "the cast saturates far outside the picture")]
        let pixel = pixel.round() as i32;
        pixel
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        three_digits(*value)
    }
}
