//! `shmccl report`: what every rank of a job is doing, and which ranks the others wait for.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::ser::{Serialize, SerializeMap, Serializer};
use shmccl::collective::Operation;
use shmccl::observe::{FifoView, ObservedCall, RankReport, Report};
use shmccl::rank::Rank;
use shmccl::reduce::DataType;

use crate::{failure, file, jobs, output};

/// Ends the help, with all names in the JSON.
pub(crate) const HELP: &str = "\
The JSON has all that the text has. Times are in milliseconds; null stands for what is not there or
not known.
  job, epoch, creator, age_ms, state  as in `shmccl ps`
  ended                  why the epoch has ended
  held_up_by, wait_cycle ranks that others wait for and that wait for none; ranks that wait in a circle
  verdict, text          the last line, and the whole text
  ranks                  of each:
    rank, process, life    absent, alive, left or lost; is_stopped
    call, last             the call that it is in, and the last operation that it has announced:
      call, number           in words, and its number within the communicator
      operation, data_type, count, operator, root, peer, tag, calls (of a group)
      algorithm, channel     the algorithm that the caller wants, and memory or port
    step, waits_on         steps of the call so far, and the call of a channel or proxy that it waits in
    awaits, waits_ms       ranks that it waits for, or did (itself: its proxy), and for how long
    gave_up_ms             how long ago it gave up waiting, if it did; has_timed_out
    moved_ms, heartbeat_ms how long ago others could see it act, and how long ago its last heartbeat was
    operations, signals, waited_ms  what it has done since the epoch began
    triggers, fifos        triggers in its fifos; of each used one: depth, pushed, refused, last
    fault, faults          the last injected fault, and their number";

/// A report as programs read it. Ranks are numbers, times are milliseconds. [`HELP`] documents all
/// names.
struct JobJson<'r>(&'r Report);
struct RankJson<'r>(&'r RankReport);
struct CallJson(ObservedCall);
struct FifoJson<'r>(&'r FifoView);

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
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<u8> {
    if let Some(path) = &args.json {
        file::check_writable(path)?;
    }
    let report = jobs::named(&args.job)?.report;
    if let Some(path) = &args.json {
        file::write_json(path, &JobJson(&report))?;
    }
    output::print(&format!("{report}\n"))?;
    Ok(failure::DONE)
}

impl Serialize for JobJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("job", &format!("{:016x}", report.job))?;
        map.serialize_entry("epoch", &report.epoch)?;
        map.serialize_entry("creator", &report.creator.pid)?;
        map.serialize_entry("age_ms", &report.age.as_millis())?;
        map.serialize_entry("state", &jobs::state(report))?;
        map.serialize_entry("ended", &report.why_ended())?;
        map.serialize_entry("ranks", &report.ranks.iter().map(RankJson).collect::<Vec<_>>())?;
        map.serialize_entry("held_up_by", &numbers(&report.stragglers()))?;
        map.serialize_entry("wait_cycle", &numbers(&report.wait_cycle()))?;
        map.serialize_entry("verdict", &report.verdict())?;
        map.serialize_entry("text", &report.to_string())?;
        map.end()
    }
}

impl Serialize for RankJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rank = self.0;
        let ms = |time: Option<Duration>| time.map(|time| time.as_millis());
        let triggers: u64 = rank.fifos.iter().fold(0, |sum, fifo| sum.saturating_add(fifo.depth));
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("rank", &rank.rank.get())?;
        map.serialize_entry("process", &rank.pid)?;
        map.serialize_entry("life", &format!("{:?}", rank.life).to_lowercase())?;
        map.serialize_entry("is_stopped", &rank.is_stopped)?;
        map.serialize_entry("call", &rank.call.map(CallJson))?;
        map.serialize_entry("last", &rank.last.map(CallJson))?;
        map.serialize_entry("step", &rank.step())?;
        map.serialize_entry("waits_on", &rank.waits_on())?;
        map.serialize_entry("awaits", &numbers(&rank.awaits()))?;
        map.serialize_entry("waits_ms", &ms(rank.waits_for()))?;
        map.serialize_entry("gave_up_ms", &ms(rank.gave_up()))?;
        map.serialize_entry("has_timed_out", &rank.has_timed_out())?;
        map.serialize_entry("moved_ms", &ms(rank.moved))?;
        map.serialize_entry("operations", &rank.work.operations)?;
        map.serialize_entry("signals", &rank.work.signals)?;
        map.serialize_entry("waited_ms", &rank.work.waited.as_millis())?;
        map.serialize_entry("triggers", &triggers)?;
        map.serialize_entry("fifos", &rank.fifos.iter().map(FifoJson).collect::<Vec<_>>())?;
        map.serialize_entry("heartbeat_ms", &ms(rank.heartbeat))?;
        map.serialize_entry("fault", &rank.last_fault.map(|(last, _)| last.to_string()))?;
        map.serialize_entry("faults", &rank.last_fault.map_or(0, |(_, count)| count))?;
        map.end()
    }
}

impl Serialize for CallJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ObservedCall { signature, sequence } = self.0;
        let data_type = signature.data_type().map(DataType::name);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("call", &signature.to_string())?;
        map.serialize_entry("number", &sequence)?;
        map.serialize_entry("operation", &signature.operation().map(Operation::name))?;
        map.serialize_entry("data_type", &data_type)?;
        // Calls without elements use the word for something else.
        map.serialize_entry("count", &data_type.map(|_| signature.count()))?;
        map.serialize_entry("operator", &signature.operator_name())?;
        map.serialize_entry("root", &signature.root())?;
        map.serialize_entry("peer", &signature.peer())?;
        map.serialize_entry("tag", &signature.tag())?;
        map.serialize_entry("calls", &signature.calls())?;
        map.serialize_entry("algorithm", &signature.algorithm().map(|algorithm| algorithm.to_string()))?;
        map.serialize_entry("channel", &signature.channel_kind().map(|kind| kind.to_string()))?;
        map.end()
    }
}

impl Serialize for FifoJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("depth", &self.0.depth)?;
        map.serialize_entry("pushed", &self.0.pushed)?;
        map.serialize_entry("refused", &self.0.refused)?;
        map.serialize_entry("last", &self.0.last_in_words())?;
        map.end()
    }
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.get()).collect()
}
