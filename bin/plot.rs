//! What every plot is drawn on and with.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// What is said in passing.
pub(crate) const GREY: RGBColor = RGBColor(90, 90, 90);

/// A part of a picture.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What drawing comes to.
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A picture of this width and height on white, as a whole file.
///
/// # Errors
/// When the drawing library refuses.
pub(crate) fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let drawn = root.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&root));
        drawn.and_then(|()| Ok(root.present()?)).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    }
    svg.push('\n');
    Ok(svg)
}

/// Text of a height in pixels with its middle at a point.
pub(crate) fn centred(height: u32, colour: &RGBColor) -> TextStyle<'static> {
    anchored(height, colour, HPos::Center)
}

/// Text of a height in pixels beside a point.
pub(crate) fn anchored(height: u32, colour: &RGBColor, side: HPos) -> TextStyle<'static> {
    ("sans-serif", height).into_font().color(colour).pos(Pos::new(side, VPos::Center))
}
