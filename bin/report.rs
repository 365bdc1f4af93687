//! `shmccl report`: what every rank of a job is doing, and who holds the others up.

use anyhow::Result;
use serde::Serialize;
use shmccl::observe::{Call, RankReport, Report};
use shmccl::rank::Rank;

use crate::args::ReportArgs;
use crate::{failure, file, jobs, output};

/// A report as programs read it. Ranks are numbers, times milliseconds.
#[derive(Debug, Serialize)]
struct Told {
    /// Its number, in hexadecimal.
    job: String,
    epoch: u64,
    creator: u64,
    age_ms: u128,
    /// As `shmccl ps` has it.
    state: String,
    ranks: Vec<ToldRank>,
    /// Who is awaited and waits for nobody.
    held_up_by: Vec<u32>,
    /// Who waits for each other in a circle.
    knot: Vec<u32>,
    /// All of it as the command prints it.
    text: String,
}

#[derive(Debug, Serialize)]
struct ToldRank {
    rank: u32,
    process: Option<u32>,
    /// absent, alive, left or lost.
    life: String,
    is_stopped: bool,
    /// The call that it is in.
    call: Option<ToldCall>,
    last: Option<ToldCall>,
    /// What its wait is on, where that is a channel or a proxy.
    waits_on: Option<&'static str>,
    awaits: Vec<u32>,
    waits_ms: Option<u128>,
    has_timed_out: bool,
    operations: u64,
    signals: u64,
    waited_ms: u128,
    /// Triggers in its fifos.
    triggers: u64,
    heartbeat_ms: Option<u128>,
}

#[derive(Debug, Serialize)]
struct ToldCall {
    call: String,
    number: u64,
}

/// Runs the command.
///
/// # Errors
/// When there is no such job, or its report cannot be written.
pub(crate) fn run(args: &ReportArgs) -> Result<u8> {
    if let Some(path) = &args.json {
        file::check_writable(path)?;
    }
    let report = jobs::named(&args.job)?.report;
    if let Some(path) = &args.json {
        file::write_json(path, &Told::of(&report))?;
    }
    output::print(&format!("{report}\n"))?;
    Ok(failure::DONE)
}

impl Told {
    fn of(report: &Report) -> Self {
        Self {
            job: format!("{:016x}", report.job),
            epoch: report.epoch,
            creator: report.creator.pid,
            age_ms: report.age.as_millis(),
            state: jobs::state(report),
            ranks: report.ranks.iter().map(ToldRank::of).collect(),
            held_up_by: numbers(&report.stragglers()),
            knot: numbers(&report.knot()),
            text: report.to_string(),
        }
    }
}

impl ToldRank {
    fn of(rank: &RankReport) -> Self {
        Self {
            rank: rank.rank.get(),
            process: rank.pid,
            life: format!("{:?}", rank.life).to_lowercase(),
            is_stopped: rank.is_stopped,
            call: rank.call.map(ToldCall::of),
            last: rank.last.map(ToldCall::of),
            waits_on: rank.waits_on(),
            awaits: numbers(&rank.awaits()),
            waits_ms: rank.waits_for().map(|time| time.as_millis()),
            has_timed_out: rank.has_timed_out(),
            operations: rank.work.operations,
            signals: rank.work.signals,
            waited_ms: rank.work.waited.as_millis(),
            triggers: rank.fifos.iter().fold(0, |sum, fifo| sum.saturating_add(fifo.depth)),
            heartbeat_ms: rank.heartbeat.map(|time| time.as_millis()),
        }
    }
}

impl ToldCall {
    fn of(call: Call) -> Self {
        Self { call: call.summary.to_string(), number: call.sequence }
    }
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.get()).collect()
}
