//! A lane for each block and proxy: what it does, and whom it waits for.

use std::collections::{BTreeMap, BTreeSet};

use super::{Extent, SvgCanvas, arrow, at, colour};
use crate::lower::{Lowered, StepAction};
use crate::plan::{BlockOperation, ExecutionPlan};
use crate::show::{chunks, line};
use crate::trace::{Trace, TracedStep};

const LANE: usize = 24;
const LEFT: usize = 150;
/// The most lanes that are drawn.
const MAX_LANES: usize = 160;

/// The widest that all lanes are drawn, where boxes are wide enough for their labels.
const WIDTH: usize = 9000;

/// Draws all lanes from `top` on.
pub(super) fn draw(
    canvas: &mut SvgCanvas,
    plan: &ExecutionPlan,
    lowered: &Lowered,
    trace: &Trace,
    top: usize,
) {
    canvas.text(at(20, top), 15, "#111", "What each block does, in logical time");
    legend(canvas, top + 20);
    let unit = (WIDTH / trace.end.max(1)).clamp(12, 120);
    let lanes = Lanes { lowered, trace, lanes: lanes(trace), unit, top: top + 70 };
    lanes.names(canvas);
    // Arrows of data lie above the boxes, as there are few; others below, as they would hide names.
    lanes.arrows(canvas, false);
    lanes.boxes(canvas, plan);
    lanes.arrows(canvas, true);
    let count = lanes.lanes.len();
    if count > MAX_LANES {
        let below = at(24, lanes.row(MAX_LANES));
        canvas.text(below, 12, "#555", &format!("and {} more lanes", count - MAX_LANES));
    }
    if trace.is_stuck {
        let below = lanes.row(count.min(MAX_LANES) + 1);
        canvas.text(at(24, below), 13, "#c00", "Some blocks wait for ever: plan check says why.");
    }
}

/// Where everything lies.
struct Lanes<'a> {
    lowered: &'a Lowered,
    trace: &'a Trace,
    /// By rank and block or proxy, which lane it has.
    lanes: BTreeMap<Key, usize>,
    /// The width of a unit of time.
    unit: usize,
    top: usize,
}

/// A block of a rank, or its proxy.
type Key = (usize, usize, bool);

impl Lanes<'_> {
    fn x(&self, time: usize) -> usize {
        LEFT + time * self.unit
    }

    fn row(&self, lane: usize) -> usize {
        self.top + lane * LANE
    }

    /// Returns the gap between two boxes, in which arrows slope.
    fn gap(&self) -> usize {
        (self.unit / 5).max(3)
    }

    /// Returns where the lane of an event lies, if it is drawn.
    fn row_of(&self, event: &TracedStep) -> Option<usize> {
        let lane = self.lanes[&key(event)];
        (lane < MAX_LANES).then(|| self.row(lane))
    }

    fn names(&self, canvas: &mut SvgCanvas) {
        for (&(rank, block, by_proxy), &lane) in self.lanes.iter().filter(|(_, lane)| **lane < MAX_LANES) {
            let name =
                if by_proxy { format!("rank {rank} proxy") } else { format!("rank {rank} block {block}") };
            let shade = if rank % 2 == 0 { "fill=\"#f4f6f9\"" } else { "fill=\"#ffffff\"" };
            let row = self.row(lane);
            canvas.rectangle(
                at(20, row - 15),
                Extent { width: self.x(self.trace.end) - 10, height: LANE },
                shade,
                "",
            );
            canvas.text(at(24, row), 12, colour(rank), &name);
        }
    }

    fn boxes(&self, canvas: &mut SvgCanvas, plan: &ExecutionPlan) {
        for event in self.trace.events.iter().filter(|event| event.end > event.ready) {
            let Some(row) = self.row_of(event) else { continue };
            let width = ((event.end - event.ready) * self.unit).saturating_sub(self.gap());
            let corner = at(self.x(event.ready), row - 13);
            let fill = fill(&event.action);
            let style = format!("rx=\"3\" fill=\"{fill}\" stroke=\"#666\" stroke-width=\"0.5\"");
            canvas.rectangle(
                corner,
                Extent { width, height: LANE - 6 },
                &style,
                &told(plan, self.lowered, event),
            );
            // Letters of size 10 are about 5.5 wide.
            if let Some(label) = label(self.lowered, event, width * 2 / 11) {
                canvas.text(at(corner.x + 3, corner.y + 12), 10, "#000", &label);
            }
        }
    }

    /// Draws arrows from what events have waited for: data of other ranks, or all else.
    fn arrows(&self, canvas: &mut SvgCanvas, of_data: bool) {
        for event in &self.trace.events {
            for cause in event.causes.iter().map(|&cause| &self.trace.events[cause]) {
                let is_near = cause.rank == event.rank && cause.block == event.block && !event.by_proxy;
                let is_data = !cause.movements.is_empty() && cause.rank != event.rank;
                let (Some(from), Some(to)) = (self.row_of(cause), self.row_of(event)) else { continue };
                if is_near || is_data != of_data {
                    continue;
                }
                let told = format!(
                    "{} of rank {} before {} of rank {}",
                    cause.site, cause.rank, event.site, event.rank
                );
                let from = at(self.x(cause.end).saturating_sub(self.gap()), from - 4);
                let style = arrow(is_data.then_some(cause.rank));
                canvas.line(from, at(self.x(event.ready), to - 4), &style, &told);
            }
        }
    }
}

fn key(event: &TracedStep) -> Key {
    // The proxy of a rank is one, whoever pushes.
    (event.rank, if event.by_proxy { usize::MAX } else { event.block }, event.by_proxy)
}

fn lanes(trace: &Trace) -> BTreeMap<Key, usize> {
    let mut lanes: BTreeMap<_, usize> = trace.events.iter().map(|event| (key(event), 0)).collect();
    lanes.values_mut().enumerate().for_each(|(index, lane)| *lane = index);
    lanes
}

/// Where a box takes from and gives to.
const FROM: char = '\u{2190}';
const TO: char = '\u{2192}';
const BOTH: char = '\u{2194}';

/// The kinds of boxes: name and colour.
const KINDS: [(&str, &str); 5] = [
    ("copy or put", "#9ecae1"),
    ("reduction", "#fdae6b"),
    ("signal or release", "#c7e9c0"),
    ("wait, acquire, barrier or flush", "#dadaeb"),
    ("handed to the proxy", "#fff3b0"),
];

fn fill(action: &StepAction) -> &'static str {
    KINDS[match action {
        StepAction::Move(transfer) if transfer.sources > 1 => 1,
        StepAction::Move(_) => 0,
        StepAction::Signal { .. } | StepAction::Release { .. } => 2,
        StepAction::Push { .. } | StepAction::PushSignal { .. } => 4,
        _ => 3,
    }]
    .1
}

fn legend(canvas: &mut SvgCanvas, top: usize) {
    let mut left = 20;
    for (name, fill) in KINDS {
        canvas.rectangle(
            at(left, top - 9),
            Extent { width: 12, height: 12 },
            &format!("fill=\"{fill}\" stroke=\"#666\""),
            "",
        );
        canvas.text(at(left + 17, top + 2), 12, "#333", name);
        left += 40 + name.len() * 7;
    }
    canvas.line(at(left, top - 4), at(left + 30, top - 4), &arrow(Some(0)), "");
    canvas.text(at(left + 36, top + 2), 12, "#333", "data that is waited for");
    canvas.line(at(left + 200, top - 4), at(left + 230, top - 4), &arrow(None), "");
    canvas.text(at(left + 236, top + 2), 12, "#333", "order only");
    let told = format!(
        "put {TO}1 (2): to rank 1, in step 2; rre {FROM}1: takes from rank 1; rres {BOTH}1: takes from and gives to it"
    );
    canvas.text(at(20, top + 20), 12, "#333", &told);
}

/// Labels a box in at most so many letters: the name, the other ranks, and the step.
fn label(lowered: &Lowered, event: &TracedStep, most: usize) -> Option<String> {
    let name = event.site.code.name();
    let with_peers = [name.to_owned(), peers(lowered, event)].join(" ").trim_end().to_owned();
    let moved = event.movements.iter().filter(|movement| movement.from.rank != movement.to.rank);
    let steps: BTreeSet<_> = moved.map(|movement| movement.hop.to_string()).collect();
    let steps = steps.into_iter().collect::<Vec<_>>().join(",");
    let in_steps = if steps.is_empty() { with_peers.clone() } else { format!("{with_peers} ({steps})") };
    let fits = |label: &String| label.chars().count() <= most;
    [in_steps, with_peers, name.to_owned()].into_iter().find(fits)
}

/// Tells from which ranks an event takes something, and to which it gives.
fn peers(lowered: &Lowered, event: &TracedStep) -> String {
    let ends = |is_from: bool| -> BTreeSet<usize> {
        let ranks = match event.action {
            StepAction::Signal { peer, .. } | StepAction::PushSignal { peer, .. } if !is_from => vec![peer],
            StepAction::Wait { counter, .. } if is_from => {
                vec![lowered.ranks[event.rank].counters[counter].peer]
            }
            _ => (event.movements.iter())
                .map(|movement| if is_from { movement.from.rank } else { movement.to.rank })
                .collect(),
        };
        ranks.into_iter().filter(|&rank| rank != event.rank).collect()
    };
    let list = |arrow: char, ranks: &BTreeSet<usize>| {
        let ranks: Vec<_> = ranks.iter().map(ToString::to_string).collect();
        format!("{arrow}{}", ranks.join(","))
    };
    let (from, to) = (ends(true), ends(false));
    match (from.is_empty(), to.is_empty()) {
        (true, true) => String::new(),
        (false, true) => list(FROM, &from),
        (true, false) => list(TO, &to),
        (false, false) if from == to => list(BOTH, &to),
        (false, false) => format!("{} {}", list(FROM, &from), list(TO, &to)),
    }
}

fn told(plan: &ExecutionPlan, lowered: &Lowered, event: &TracedStep) -> String {
    let block = &plan.ranks[event.rank].blocks[event.block];
    let operation: Option<&BlockOperation> = block
        .operations
        .get(event.site.operation)
        .and_then(|outer| event.site.inner.map_or(Some(outer), |inner| outer.inner().get(inner)));
    let what = operation.map_or(String::new(), |operation| line(plan, event.rank, block, operation));
    let moved = event.movements.iter().take(8).map(|movement| {
        let [from, to] = [movement.from, movement.to]
            .map(|span| format!("{} of rank {}", chunks(lowered, span), span.rank));
        format!("; {from} to {to}")
    });
    format!("{}: {what}{}", event.site, moved.collect::<String>())
}
