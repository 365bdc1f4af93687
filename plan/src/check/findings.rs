//! Findings in words, each with what would mend it.

use super::machine::{Chance, CounterId, MAX_LIVE};
use super::memory::{CellAccess, Hazard, Origin, Race};
use super::report::{Finding, FindingKind};
use super::value::MAX_PARTS;
use crate::lower::{Lowered, message_of};
use crate::plan::ExecutionPlan;
use crate::problem::{Place, Problem};

/// Says that a plan takes more than a check has.
pub(super) fn too_large(what: &str, count: usize, most: usize, is_smallest: bool) -> Finding {
    let remedy = if is_smallest { FEWER } else { SMALLER };
    undecided(format!("the plan has {count} {what}, more than the {most} that a check looks at"), remedy)
}

/// What helps where no size is smaller.
const FEWER: &str = "check the same program for fewer ranks, or with fewer chunks";
/// What helps where one is.
const SMALLER: &str = "check a smaller size with --size, or the same program for fewer ranks";

/// Says that results have more parts than a check looks at.
pub(super) fn too_many_parts() -> Finding {
    undecided(
        format!("results combine more than {MAX_PARTS} parts, which is all that a check looks at"),
        FEWER,
    )
}

/// Says that a run was ended before its end.
pub(super) fn cut_short() -> Finding {
    undecided(
        format!("what blocks know of each other takes more than {MAX_LIVE} words, the most of a check"),
        FEWER,
    )
}

/// Says that the format does not define what a plan computes.
pub(super) fn unchecked(plan: &ExecutionPlan) -> Finding {
    Finding {
        kind: FindingKind::Unchecked,
        what: format!(
            "what `{}` computes is not part of the format, so results were not compared",
            plan.collective
        ),
        remedy: String::new(),
        places: Vec::new(),
    }
}

fn undecided(what: String, remedy: &str) -> Finding {
    Finding { kind: FindingKind::Undecided, what, remedy: remedy.to_owned(), places: Vec::new() }
}

/// Says that a class stands for its sizes roughly.
pub(super) fn approximate() -> Finding {
    undecided(
        "the units of pipelines do not divide what scratch wraps in, and were scaled roughly".to_owned(),
        "choose a unit that divides 64 MiB (32 MiB with two halves) by the chunks of scratch",
    )
}

/// Says from which message on operations reach beyond scratch. The chunks are the longest that is
/// right, and the next one.
pub(super) fn out_of_bounds(plan: &ExecutionPlan, right: usize, wrong: usize, problem: &Problem) -> Finding {
    let (right, wrong) = (message_of(plan, right), message_of(plan, wrong));
    Finding {
        kind: FindingKind::OutOfBounds,
        what: format!("a message of {wrong} bytes is refused, and so are longer ones: {problem}"),
        remedy: format!(
            "set `max_message_size` to {right}, or choose a `unit_size` that divides what scratch wraps in"
        ),
        places: vec![problem.place],
    }
}

/// Says that credits outlast the iterations that were tried.
pub(super) fn many_credits(lag: usize) -> Finding {
    undecided(
        format!(
            "what semaphores begin with, and what is signalled and taken outside of pipelines, adds up to {lag}, and so many iterations were not tried"
        ),
        "check one size with --size, or give semaphores a smaller `init_value`",
    )
}

/// Says that the two sides of a counter run other iterations.
pub(super) fn out_of_step(at: Place) -> Finding {
    let told = undecided(
        format!(
            "{at} is in a pipeline that does not keep step with those that signal or take the same: their iterations differ in some sizes"
        ),
        "give both sides the same `unit_size` and `num_chunks`, and as many operations in each iteration, or check one size with --size",
    );
    Finding { places: vec![at], ..told }
}

/// Says that pipelines differ in more ways than were tried.
pub(super) fn many_units() -> Finding {
    undecided(
        "pipelines have other `unit_size` or `num_chunks`, and their units lie to each other in more ways than a check looks at".to_owned(),
        "give all pipelines the same, or check one size with --size",
    )
}

/// Says that a limit of the plan was not tried as it is.
pub(super) fn untried_limit(chunk: usize) -> Finding {
    undecided(
        format!("chunks of {chunk} bytes, a limit of the plan, take more iterations than a check tries"),
        "check one size with --size",
    )
}

/// Says that slices lie to each other in more ways than were tried.
pub(super) fn too_many_cuts() -> Finding {
    undecided(
        "slices lie to each other in more ways than a check looks at, as the size varies".to_owned(),
        "cut all references into as many slices, or set `min_message_size` and `max_message_size`",
    )
}

/// Says that a size was refused that stands for others.
pub(super) fn refused_later(problem: &Problem) -> Finding {
    undecided(
        format!("a size that stands for those in which slices wrap in scratch is refused: {problem}"),
        "set `max_message_size` to the largest that the plan is for",
    )
}

/// Says that chunks of scratch overlap where nothing takes them by turns.
pub(super) fn overlapping(at: Place, wrap: usize) -> Finding {
    let told = undecided(
        format!(
            "{at} names scratch outside of a pipeline, where chunks of more than {wrap} bytes overlap, and only the shortest of those were tried"
        ),
        "move the data in a pipeline, or set `max_message_size` so that chunks are no longer",
    );
    Finding { places: vec![at], ..told }
}

/// Says that the schedule decides who signals or takes first.
pub(super) fn chance(lowered: &Lowered, chance: &Chance) -> Finding {
    let counter = counter(lowered, chance.rank, chance.counter);
    let [one, other] = chance.blocks.map(|of| Place::block(of.rank, of.block));
    let does = if chance.takes { "take from" } else { "add to" };
    Finding {
        kind: FindingKind::Undecided,
        what: format!("{one} and {other} {does} {counter} in an order that the schedule decides"),
        remedy: "give each block a channel or semaphore of its own".to_owned(),
        places: vec![one, other],
    }
}

/// Names a counter.
pub(super) fn counter(lowered: &Lowered, rank: usize, counter: CounterId) -> String {
    match counter {
        CounterId::Signals(index) => {
            let counter = lowered.ranks[rank].counters[index];
            let (kind, peer, ordinal) = (counter.kind, counter.peer, counter.ordinal);
            format!("the signals of rank {peer} to rank {rank} on {kind} channel {ordinal}")
        }
        CounterId::Semaphore(index) => format!("semaphore {index} of rank {rank}"),
    }
}

/// Describes a race, and what would order the two accesses.
pub(super) fn race(plan: &ExecutionPlan, lowered: &Lowered, kind: FindingKind, race: &Race) -> Finding {
    let [first, second] = [&race.first, &race.second].map(|access| told(lowered, access));
    let (one, other) = match race.hazard {
        Hazard::ReadAfterWrite => ("reads", "writes"),
        Hazard::WriteAfterWrite => ("overwrites", "writes"),
        Hazard::WriteAfterRead => ("overwrites", "reads"),
    };
    let spot = &race.spot;
    let first_byte = lowered.real_byte(spot.rank, spot.buffer, spot.cell * plan.alignment);
    let bytes = format!(
        "bytes {first_byte}..{} of buffer \"{}\" of rank {}",
        first_byte + lowered.real_len(plan.alignment),
        spot.buffer,
        spot.rank
    );
    let launches = match race.second.launch.cmp(&race.first.launch) {
        std::cmp::Ordering::Equal => String::new(),
        _ => format!(" (launch {} against {})", race.second.launch, race.first.launch),
    };
    let more = more_units(lowered, race.cells - 1, "");
    let places = [&race.first, &race.second].map(|access| place(lowered, access)).into_iter().collect();
    Finding {
        kind,
        what: format!("{second} {one} {bytes}{more}, which {first} {other}{launches}, in no order"),
        remedy: remedy(lowered, kind, race),
        places,
    }
}

/// Says that more units are wrong; how many, where they were not scaled down.
pub(super) fn more_units(lowered: &Lowered, more: usize, when: &str) -> String {
    match more {
        0 => String::new(),
        _ if lowered.is_scaled() => format!(", and more{when}"),
        more => format!(", and {more} more units{when}"),
    }
}

fn place(lowered: &Lowered, access: &CellAccess) -> Place {
    match access.origin {
        Origin::Input(rank) | Origin::Result(rank) => Place::rank(rank as usize),
        Origin::Operation(..) => {
            access.origin.site(lowered).map_or(Place::PLAN, |(rank, block, site)| site.place(rank, block))
        }
    }
}

fn told(lowered: &Lowered, access: &CellAccess) -> String {
    match access.origin {
        Origin::Input(rank) => format!("the caller of rank {rank} (input)"),
        Origin::Result(rank) => format!("the caller of rank {rank} (result)"),
        Origin::Operation(..) => place(lowered, access).to_string(),
    }
}

fn remedy(lowered: &Lowered, kind: FindingKind, race: &Race) -> String {
    match kind {
        FindingKind::MissingFlush => return "end with a flush of the channel, or with pwsf".to_owned(),
        FindingKind::RelaxedOrder => return "signal and wait in full where the data matter".to_owned(),
        _ => {}
    }
    let [first, second] = [&race.first, &race.second].map(|access| (access, access.origin.site(lowered)));
    match (first, second) {
        ((_, Some((rank, block, site))), (_, Some((to, other, next)))) => {
            if (rank, block) == (to, other) {
                "put a nop between the two operations".to_owned()
            } else if kind == FindingKind::RaceOnGpu {
                format!(
                    "put a nop before {next} of block {other}, behind what it waits for, and one behind {site} of block {block}"
                )
            } else if rank == to {
                format!(
                    "let block {block} meet block {other} in a barrier between the two, or release a semaphore behind {site} and acquire it before {next}"
                )
            } else {
                format!(
                    "signal rank {to} from block {block} behind {site}, and wait for it in block {other} before {next}"
                )
            }
        }
        ((_, Some((rank, block, site))), (caller, None)) => {
            let to = caller_rank(caller.origin);
            if rank == to {
                "flush the channel before the launch ends".to_owned()
            } else {
                format!(
                    "signal rank {to} from block {block} of rank {rank} behind {site}, and let rank {to} wait for it before its launch ends"
                )
            }
        }
        ((caller, None), (_, Some((to, other, next)))) => {
            let from = caller_rank(caller.origin);
            format!(
                "let rank {from} signal rank {to} at the start of a launch, and wait for it in block {other} before {next}"
            )
        }
        _ => String::new(),
    }
}

fn caller_rank(origin: Origin) -> usize {
    match origin {
        Origin::Operation(rank, ..) | Origin::Input(rank) | Origin::Result(rank) => rank as usize,
    }
}
