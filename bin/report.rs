//! `shmccl report`: what every rank of a job is doing, and which ranks the others wait for.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use shmccl::collective::Operation;
use shmccl::observe::{FifoView, ObservedCall, RankReport, Report};
use shmccl::rank::Rank;
use shmccl::reduce::DataType;

use crate::{failure, file, jobs, output};

/// Ends the help, with all names in the JSON.
pub(crate) const HELP: &str = "\
The JSON has all that the text has. Times are in milliseconds, and null stands for what is not there or cannot be told.
  job, epoch, creator, age_ms, state  as in `shmccl ps`
  ended                  why the epoch has ended
  held_up_by, wait_cycle the ranks that are awaited and wait for nobody; those that wait for each other in a circle
  verdict, text          the last line, and all of the text
  ranks                  of each:
    rank, process, life    absent, alive, left or lost; is_stopped
    call, last             what it is in, and the last operation that it has told of:
      call, number           in words, and which one it is of its communicator
      operation, data_type, count, operator, root, peer, calls (of a group)
      algorithm, channel     the algorithm that the caller wants, and memory or port
    step, waits_on         how many steps of the call it has taken, and the call of a channel or proxy that it waits in
    awaits, waits_ms       for whom it waits or has given up waiting (itself: for its proxy), and for how long it waits
    gave_up_ms             how long ago it gave up waiting, if it did; has_timed_out
    moved_ms, heartbeat_ms how long ago it has done something that others could see, and has beaten
    operations, signals, waited_ms  what it has done since the epoch began
    triggers, fifos        triggers in its fifos; of each one that was used: depth, pushed, refused, last
    fault, faults          the last fault that was injected, and how many were";

/// A report as programs read it. Ranks are numbers, times are milliseconds. [`HELP`] documents all
/// names.
#[derive(Debug, Serialize)]
struct JobJson {
    /// The number, in hexadecimal.
    job: String,
    epoch: u64,
    creator: u64,
    age_ms: u128,
    /// The state, as `shmccl ps` writes it.
    state: String,
    ended: Option<String>,
    ranks: Vec<RankJson>,
    held_up_by: Vec<u32>,
    wait_cycle: Vec<u32>,
    verdict: String,
    text: String,
}

#[derive(Debug, Serialize)]
struct RankJson {
    rank: u32,
    process: Option<u32>,
    life: String,
    is_stopped: bool,
    call: Option<CallJson>,
    last: Option<CallJson>,
    step: Option<u64>,
    waits_on: Option<&'static str>,
    awaits: Vec<u32>,
    waits_ms: Option<u128>,
    gave_up_ms: Option<u128>,
    has_timed_out: bool,
    moved_ms: Option<u128>,
    operations: u64,
    signals: u64,
    waited_ms: u128,
    triggers: u64,
    fifos: Vec<FifoJson>,
    heartbeat_ms: Option<u128>,
    fault: Option<String>,
    faults: u64,
}

#[derive(Debug, Serialize)]
struct CallJson {
    call: String,
    number: u64,
    operation: Option<&'static str>,
    data_type: Option<&'static str>,
    count: Option<u64>,
    operator: Option<String>,
    root: Option<u64>,
    peer: Option<u64>,
    calls: Option<u64>,
    algorithm: Option<String>,
    channel: Option<String>,
}

#[derive(Debug, Serialize)]
struct FifoJson {
    depth: u64,
    pushed: u64,
    refused: u64,
    last: String,
}

/// Flags of `shmccl report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// The job: the beginning of its number, four digits at least, or one of its processes
    #[arg(value_name = "JOB|PID")]
    pub(crate) job: String,
    /// Write the report to a file as well; - is standard output, and sends the text to standard
    /// error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// No such job; those of writing the report.
pub(crate) fn run(args: &ReportArgs) -> Result<u8> {
    if let Some(path) = &args.json {
        file::check_writable(path)?;
    }
    let report = jobs::named(&args.job)?.report;
    if let Some(path) = &args.json {
        file::write_json(path, &JobJson::of(&report))?;
    }
    output::print(&format!("{report}\n"))?;
    Ok(failure::DONE)
}

impl JobJson {
    fn of(report: &Report) -> Self {
        Self {
            job: format!("{:016x}", report.job),
            epoch: report.epoch,
            creator: report.creator.pid,
            age_ms: report.age.as_millis(),
            state: jobs::state(report),
            ended: report.why_ended(),
            ranks: report.ranks.iter().map(RankJson::of).collect(),
            held_up_by: numbers(&report.stragglers()),
            wait_cycle: numbers(&report.wait_cycle()),
            verdict: report.verdict(),
            text: report.to_string(),
        }
    }
}

impl RankJson {
    fn of(rank: &RankReport) -> Self {
        Self {
            rank: rank.rank.get(),
            process: rank.pid,
            life: format!("{:?}", rank.life).to_lowercase(),
            is_stopped: rank.is_stopped,
            call: rank.call.map(CallJson::of),
            last: rank.last.map(CallJson::of),
            step: rank.step(),
            waits_on: rank.waits_on(),
            awaits: numbers(&rank.awaits()),
            waits_ms: rank.waits_for().map(|time| time.as_millis()),
            gave_up_ms: rank.gave_up().map(|time| time.as_millis()),
            has_timed_out: rank.has_timed_out(),
            moved_ms: rank.moved.map(|time| time.as_millis()),
            operations: rank.work.operations,
            signals: rank.work.signals,
            waited_ms: rank.work.waited.as_millis(),
            triggers: rank.fifos.iter().fold(0, |sum, fifo| sum.saturating_add(fifo.depth)),
            fifos: rank.fifos.iter().map(FifoJson::of).collect(),
            heartbeat_ms: rank.heartbeat.map(|time| time.as_millis()),
            fault: rank.last_fault.map(|(last, _)| last.to_string()),
            faults: rank.last_fault.map_or(0, |(_, count)| count),
        }
    }
}

impl CallJson {
    fn of(call: ObservedCall) -> Self {
        let ObservedCall { signature, sequence: number } = call;
        let data_type = signature.data_type().map(DataType::name);
        Self {
            call: signature.to_string(),
            number,
            operation: signature.operation().map(Operation::name),
            data_type,
            // Calls without elements use the word for something else.
            count: data_type.map(|_| signature.count()),
            operator: signature.operator_name(),
            root: signature.root(),
            peer: signature.peer(),
            calls: signature.calls(),
            algorithm: signature.algorithm().map(|algorithm| algorithm.to_string()),
            channel: signature.channel_kind().map(|kind| kind.to_string()),
        }
    }
}

impl FifoJson {
    fn of(fifo: &FifoView) -> Self {
        let FifoView { depth, pushed, refused, .. } = *fifo;
        Self { depth, pushed, refused, last: fifo.last_in_words() }
    }
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.get()).collect()
}
