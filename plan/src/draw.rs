//! A plan as a picture (SVG): who sends what to whom in which step, and when each block does what.
//!
//! A *step* counts over how many hops between ranks bytes have come. Time is logical: each
//! operation takes a unit once what it waits for is there. Hovering over a box or a line tells its
//! bytes. The label of a box tells from which ranks it takes, to which it gives, and in which
//! steps.
//!
//! Tried by `plans shown::` and `command plan::`.

mod flow;
mod lanes;

use std::fmt::Write;

use crate::lower::Lowered;
use crate::plan::ExecutionPlan;
use crate::trace::trace;

/// The most steps of all blocks that are drawn.
const MAX_STEPS: usize = 20_000;

/// How to read what moves.
const EXAMPLE: &str = "0 \u{2192} 1  o[2..4] to s[0..2] (of 0+1): chunks 2 and 3 of the output of rank 0 go to chunks 0 and 1 of the scratch of rank 1; they combine the inputs of ranks 0 and 1";

/// The colours of ranks, by turns.
const COLOURS: [&str; 8] =
    ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2"];

/// Draws a plan as it runs at one size.
///
/// # Errors
/// A plan with more operations, or more bytes, than a picture shows.
pub fn draw(plan: &ExecutionPlan, lowered: &Lowered) -> Result<String, String> {
    let steps = lowered.steps();
    if steps > MAX_STEPS {
        return Err(format!(
            "the plan takes {steps} steps, and a picture shows {MAX_STEPS} at most; draw a smaller size"
        ));
    }
    let trace = trace(lowered, plan.alignment)?;
    let mut canvas = SvgCanvas::default();
    let place = if plan.in_place { "in place" } else { "out of place" };
    canvas.text(
        at(20, 30),
        20,
        "#111",
        &format!("{}: {} of {} ranks", plan.name, plan.collective, plan.ranks.len()),
    );
    let about = format!(
        "{place}, protocol {}, {} bytes, chunks of {} bytes; i, o, s: input, output, scratch",
        plan.protocol, lowered.message, lowered.chunk
    );
    canvas.text(at(20, 50), 12, "#555", &about);
    canvas.text(at(20, 66), 12, "#555", EXAMPLE);
    let below = flow::draw(&mut canvas, lowered, &trace, 96);
    lanes::draw(&mut canvas, plan, lowered, &trace, below + 30);
    Ok(canvas.finish())
}

fn colour(rank: usize) -> &'static str {
    COLOURS[rank % COLOURS.len()]
}

/// What is drawn so far, and how far it reaches.
#[derive(Debug, Default)]
struct SvgCanvas {
    body: String,
    width: usize,
    height: usize,
}

/// A point of the picture, from its upper left corner.
#[derive(Clone, Copy, Debug)]
struct SvgPoint {
    x: usize,
    y: usize,
}

/// Names a point.
fn at(x: usize, y: usize) -> SvgPoint {
    SvgPoint { x, y }
}

/// The width and the height of a rectangle.
#[derive(Clone, Copy, Debug)]
struct Extent {
    width: usize,
    height: usize,
}

impl SvgCanvas {
    fn reach(&mut self, SvgPoint { x, y }: SvgPoint) {
        self.width = self.width.max(x);
        self.height = self.height.max(y);
    }

    fn text(&mut self, SvgPoint { x, y }: SvgPoint, size: usize, fill: &str, text: &str) {
        // Letters are about 0.6 of their size wide.
        self.reach(at(x + text.chars().count() * size * 6 / 10, y + size));
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{fill}\">{text}</text>"
        );
    }

    fn line(&mut self, from: SvgPoint, to: SvgPoint, style: &str, told: &str) {
        self.reach(from);
        self.reach(to);
        let _ = writeln!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {style}><title>{}</title></line>",
            from.x,
            from.y,
            to.x,
            to.y,
            escaped(told)
        );
    }

    fn rectangle(
        &mut self,
        SvgPoint { x, y }: SvgPoint,
        Extent { width, height }: Extent,
        style: &str,
        told: &str,
    ) {
        self.reach(at(x + width, y + height));
        let told = escaped(told);
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {style}><title>{told}</title></rect>"
        );
    }

    fn finish(self) -> String {
        let (width, height) = (self.width + 20, self.height + 20);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n"
        );
        svg.push_str("<defs>\n");
        for (index, colour) in COLOURS.iter().chain(&["#999"]).enumerate() {
            let _ = writeln!(
                svg,
                "<marker id=\"head{index}\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\" fill=\"{colour}\"/></marker>"
            );
        }
        svg.push_str("</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
        svg.push_str(&self.body);
        svg.push_str("</svg>\n");
        svg
    }
}

/// Returns the style of an arrow from a rank; of none, for one without data.
fn arrow(rank: Option<usize>) -> String {
    match rank {
        Some(rank) => format!(
            "stroke=\"{}\" stroke-width=\"1.5\" marker-end=\"url(#head{})\"",
            colour(rank),
            rank % COLOURS.len()
        ),
        None => {
            format!("stroke=\"#999\" stroke-dasharray=\"3 2\" marker-end=\"url(#head{})\"", COLOURS.len())
        }
    }
}

fn escaped(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
