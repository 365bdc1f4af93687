//! A lane for each block and proxy: what it does, and whom it waits for.

use std::collections::BTreeMap;

use super::{Canvas, arrow, colour};
use crate::lower::{Action, Lowered};
use crate::plan::{Operation, Plan};
use crate::show::{chunks, line};
use crate::trace::{Event, Trace};

const LANE: usize = 24;
const LEFT: usize = 150;
/// The most lanes that are drawn.
const MAX_LANES: usize = 160;

/// Draws all lanes from `top` on.
pub(super) fn draw(canvas: &mut Canvas, plan: &Plan, lowered: &Lowered, trace: &Trace, top: usize) {
    canvas.text((20, top), 15, "#111", "What each block does, in logical time");
    legend(canvas, top + 20);
    let unit = (1800 / trace.end.max(1)).clamp(12, 120);
    let lanes = lanes(trace);
    // Arrows slope in the gap between two boxes.
    let gap = (unit / 5).max(3);
    let x = |time: usize| LEFT + time * unit;
    let row = |lane: usize| top + 50 + lane * LANE;
    for (&(rank, block, by_proxy), &lane) in lanes.iter().filter(|(_, lane)| **lane < MAX_LANES) {
        let name = if by_proxy { format!("rank {rank} proxy") } else { format!("rank {rank} block {block}") };
        let shade = if rank % 2 == 0 { "fill=\"#f4f6f9\"" } else { "fill=\"#ffffff\"" };
        canvas.rectangle((20, row(lane) - 15), (x(trace.end) - 10, LANE), shade, "");
        canvas.text((24, row(lane)), 12, colour(rank), &name);
    }
    let lane_of = |event: &Event| lanes[&key(event)];
    for event in trace.events.iter().filter(|event| lane_of(event) < MAX_LANES && event.end > event.ready) {
        let width = ((event.end - event.ready) * unit).saturating_sub(gap);
        let at = (x(event.ready), row(lane_of(event)) - 13);
        let style = format!("rx=\"3\" fill=\"{}\" stroke=\"#666\" stroke-width=\"0.5\"", fill(&event.action));
        canvas.rectangle(at, (width, LANE - 6), &style, &told(plan, lowered, event));
        if let Some(label) = label(event, width / 6) {
            canvas.text((at.0 + 3, at.1 + 12), 10, "#000", &label);
        }
    }
    for event in trace.events.iter().filter(|event| lane_of(event) < MAX_LANES) {
        for cause in event.causes.iter().map(|&cause| &trace.events[cause]) {
            let is_near = cause.rank == event.rank && cause.block == event.block && !event.by_proxy;
            if lane_of(cause) >= MAX_LANES || is_near {
                continue;
            }
            let from = (x(cause.end).saturating_sub(gap), row(lane_of(cause)) - 4);
            let data = !cause.movements.is_empty() && cause.rank != event.rank;
            let of =
                format!("{} of rank {} before {} of rank {}", cause.site, cause.rank, event.site, event.rank);
            canvas.line(
                from,
                (x(event.ready), row(lane_of(event)) - 4),
                &arrow(data.then_some(cause.rank)),
                &of,
            );
        }
    }
    let hidden = lanes.len().saturating_sub(MAX_LANES);
    if hidden > 0 {
        canvas.text((24, row(MAX_LANES)), 12, "#555", &format!("and {hidden} more lanes"));
    }
    if trace.is_stuck {
        let below = row(lanes.len().min(MAX_LANES) + 1);
        canvas.text((24, below), 13, "#c00", "Some blocks wait for ever: plan check says why.");
    }
}

fn key(event: &Event) -> (usize, usize, bool) {
    // The proxy of a rank is one, whoever pushes.
    (event.rank, if event.by_proxy { usize::MAX } else { event.block }, event.by_proxy)
}

fn lanes(trace: &Trace) -> BTreeMap<(usize, usize, bool), usize> {
    let mut lanes: BTreeMap<_, usize> = trace.events.iter().map(|event| (key(event), 0)).collect();
    lanes.values_mut().enumerate().for_each(|(index, lane)| *lane = index);
    lanes
}

/// The kinds of boxes: name and colour.
const KINDS: [(&str, &str); 5] = [
    ("copy or put", "#9ecae1"),
    ("reduction", "#fdae6b"),
    ("signal or release", "#c7e9c0"),
    ("wait, acquire, barrier or flush", "#dadaeb"),
    ("handed to the proxy", "#fff3b0"),
];

fn fill(action: &Action) -> &'static str {
    KINDS[match action {
        Action::Move(transfer) if transfer.sources > 1 => 1,
        Action::Move(_) => 0,
        Action::Signal { .. } | Action::Release { .. } => 2,
        Action::Push { .. } | Action::PushSignal { .. } => 4,
        _ => 3,
    }]
    .1
}

fn legend(canvas: &mut Canvas, top: usize) {
    let mut left = 20;
    for (name, fill) in KINDS {
        canvas.rectangle((left, top - 9), (12, 12), &format!("fill=\"{fill}\" stroke=\"#666\""), "");
        canvas.text((left + 17, top + 2), 12, "#333", name);
        left += 40 + name.len() * 7;
    }
    canvas.line((left, top - 4), (left + 30, top - 4), &arrow(Some(0)), "");
    canvas.text((left + 36, top + 2), 12, "#333", "data that is waited for");
    canvas.line((left + 200, top - 4), (left + 230, top - 4), &arrow(None), "");
    canvas.text((left + 236, top + 2), 12, "#333", "order only");
}

/// Labels a box in at most so many letters: the name, and the other rank.
fn label(event: &Event, most: usize) -> Option<String> {
    let name = event.site.code.name();
    let mut others: Vec<usize> = match event.action {
        Action::Signal { peer, .. } | Action::PushSignal { peer, .. } => vec![peer],
        _ => {
            let ends = event.movements.iter().flat_map(|movement| [movement.from.rank, movement.to.rank]);
            ends.filter(|&rank| rank != event.rank).collect()
        }
    };
    others.sort_unstable();
    others.dedup();
    let peers = others.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let with_peers = if peers.is_empty() { name.to_owned() } else { format!("{name} {peers}") };
    [with_peers, name.to_owned()].into_iter().find(|label| label.len() <= most)
}

fn told(plan: &Plan, lowered: &Lowered, event: &Event) -> String {
    let block = &plan.ranks[event.rank].blocks[event.block];
    let operation: Option<&Operation> = block
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
