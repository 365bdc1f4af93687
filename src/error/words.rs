//! The words of messages that depend on a value.

use std::path::Path;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::signal::Signal;

use super::EpochReport;
use crate::rank::Rank;

/// Says whose a name under `/dev/shm` is, and what to do.
pub(super) fn name_holder(holder: Option<u64>) -> String {
    match holder {
        Some(pid) => format!("belongs to process {pid}, which is running; choose another name"),
        None => "is another user's, or does not tell whose it is; choose another name, or remove it if nobody needs it"
            .into(),
    }
}

/// Names a signal as the system does, as far as it has a name.
pub(super) fn signal_name(signal: i32) -> String {
    let named = Signal::try_from(signal);
    named.map_or_else(|_| format!("signal {signal}"), |name| name.to_string())
}

/// A stack that the main thread of a program may well need.
const SMALL_STACK: u64 = 1 << 20;

/// Says which limit a signal stands for, and what to do.
pub(super) fn limit_passed(signal: i32) -> &'static str {
    let is_limited = || getrlimit(Resource::RLIMIT_CPU).is_ok_and(|(_, hard)| hard != RLIM_INFINITY);
    let has_small_stack = || getrlimit(Resource::RLIMIT_STACK).is_ok_and(|(soft, _)| soft < SMALL_STACK);
    match Signal::try_from(signal) {
        Ok(Signal::SIGABRT | Signal::SIGSEGV | Signal::SIGBUS) if has_small_stack() => {
            ", perhaps as its stack went past `ulimit -s`, which is small; raise that"
        }
        Ok(Signal::SIGXCPU) => ", as its CPU time went past `ulimit -t`; raise that",
        Ok(Signal::SIGXFSZ) => ", as a file of it grew past `ulimit -f`; raise that",
        Ok(Signal::SIGKILL) if is_limited() => {
            ", perhaps as its CPU time went past `ulimit -t`, which is set; raise that"
        }
        _ => "",
    }
}

/// Names the rank that was waited for, and the tag of its message.
pub(super) fn awaiting(rank: Option<Rank>, tag: Option<u32>) -> String {
    match (rank, tag) {
        (Some(rank), Some(tag)) => format!(", awaiting rank {rank} with tag {tag}"),
        (Some(rank), None) => format!(", awaiting rank {rank}"),
        (None, Some(tag)) => format!(", awaiting any rank with tag {tag}"),
        (None, None) => String::new(),
    }
}

/// Says which rank holds all up, and whether it is not alone in that, and what to do.
pub(super) fn held_up(rank: Option<Rank>, report: Option<&dyn EpochReport>) -> String {
    let Some(rank) = rank else { return String::new() };
    let all = report.map(EpochReport::stragglers).filter(|all| all.len() > 1 && all.contains(&rank));
    let Some(all) = all else {
        return format!(
            "; all is held up by rank {rank}, which waits for nobody: see what it does, or allow more time"
        );
    };
    let named: Vec<_> = all.iter().map(Rank::to_string).collect();
    format!(
        "; all is held up by ranks {}, which wait for nobody: see what they do, or allow more time",
        named.join(", ")
    )
}

/// Says of a file in a working directory that was removed what to do.
pub(super) fn in_gone_directory(file: &Path) -> &'static str {
    match file.is_relative() && std::env::current_dir().is_err() {
        true => ": the working directory was removed; change to another one, or name a path from the root",
        false => "",
    }
}

/// Says why there is no meeting: in the words of the error, unless it is the system's.
pub(super) fn why_no_meeting(source: &std::io::Error) -> String {
    match source.get_ref() {
        Some(died) => died.to_string(),
        None => "it is over, or the process that made the id has ended or is in another network namespace"
            .to_owned(),
    }
}

/// Names a line of a file.
pub(super) fn in_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}

/// Says who has revoked a communicator, and why where a wait has timed out.
pub(super) fn revoked(by: Option<Rank>, awaited: Option<Rank>) -> String {
    match (by, awaited) {
        (Some(by), Some(awaited)) => {
            format!("rank {by} timed out waiting for rank {awaited}, and has revoked the communicator")
        }
        (Some(by), None) => format!("the communicator was revoked by rank {by}"),
        (None, _) => "the communicator was revoked by the launcher".into(),
    }
}
