//! The jobs of this user on this host, and how users name them.

use shmccl::observe::{Job, Report};
use shmccl::sync::{LifeStatus, Revocation};

/// A job, and what its ranks were doing a moment ago.
#[derive(Debug)]
pub(crate) struct ObservedJob {
    pub(crate) job: Job,
    pub(crate) report: Report,
}

/// Digits that a word needs to name a job. A shorter one would often match a job by chance.
const MIN_DIGITS: usize = 4;

/// The most jobs that an error names.
const NAMED: usize = 8;

/// A word that does not name one job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JobNameError {
    /// It names several jobs.
    #[error("{0} is more than one job; see `shmccl ps`")]
    Several(String),
    /// It may begin the number of a job, but is too short.
    #[error(
        "{word} is no process of a job, and too short for a job's number: give {} digits at least of {jobs}; see `shmccl ps`",
        MIN_DIGITS
    )]
    Short {
        /// The word.
        word: String,
        /// The numbers of all jobs, as far as they fit in a line.
        jobs: String,
    },
    /// It is empty.
    #[error("an empty word names no job; see `shmccl ps`")]
    Empty,
    /// It names no job.
    #[error("no job {0}, and no process of one; see `shmccl ps`")]
    Nobody(String),
    /// It names a coordinator.
    #[error("no job {0}, and no process of one, as a coordinator is not; see `shmccl ps`")]
    Coordinator(String),
}

/// Returns all jobs, from the youngest to the oldest. A job that ends meanwhile is left out.
pub(crate) fn all() -> Vec<ObservedJob> {
    let look = |job: Job| job.report().ok().map(|report| ObservedJob { job, report });
    let mut seen: Vec<_> = Job::newest().into_iter().filter_map(look).collect();
    seen.sort_by_key(|seen| seen.report.age);
    seen
}

/// Returns the job that `word` names, by one of its processes or by the beginning of its number.
///
/// # Errors
/// No such job, or several.
pub(crate) fn named(word: &str) -> Result<ObservedJob, JobNameError> {
    let (of_process, others): (Vec<_>, Vec<_>) = all().into_iter().partition(|seen| has_process(seen, word));
    let numbers = numbers(&others);
    let by_number = || others.into_iter().filter(|seen| has_number(seen, word)).collect();
    let mut found = if of_process.is_empty() { by_number() } else { of_process };
    match (found.pop(), found.pop()) {
        (Some(seen), None) => Ok(seen),
        (Some(_), Some(_)) => Err(JobNameError::Several(word.to_owned())),
        _ if word.is_empty() => Err(JobNameError::Empty),
        _ if is_coordinator(word) => Err(JobNameError::Coordinator(word.to_owned())),
        _ if is_short(word) => Err(JobNameError::Short { word: word.to_owned(), jobs: numbers }),
        _ => Err(JobNameError::Nobody(word.to_owned())),
    }
}

/// Describes the state of a job: `running`, `ended: rank 1 lost`, ...
pub(crate) fn state(report: &Report) -> String {
    let lives = |status| report.ranks.iter().any(|rank| rank.life == status);
    match report.ended {
        Some(Revocation::PeerLost(rank)) => format!("ended: rank {rank} lost"),
        Some(Revocation::ProxyLost) => "ended: proxy lost".to_owned(),
        Some(Revocation::Aborted(Some(rank))) => format!("ended by rank {rank}"),
        Some(Revocation::Aborted(None)) => "ended by its launcher".to_owned(),
        Some(Revocation::Corrupted(rank)) => format!("ended: a put of rank {rank} corrupted"),
        Some(_) => "ended".to_owned(),
        None if lives(LifeStatus::Absent) => "starting".to_owned(),
        None if !lives(LifeStatus::Alive) => "over".to_owned(),
        None if lives(LifeStatus::Left) => "ending".to_owned(),
        None => "running".to_owned(),
    }
}

/// Whether `word` is the number of a process that was started as `shmccl coordinator`.
fn is_coordinator(word: &str) -> bool {
    let command = |process: u32| std::fs::read(format!("/proc/{process}/cmdline")).ok();
    let command = word.parse().ok().and_then(command).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    words.next().is_some_and(|program| program.ends_with(b"shmccl")) && words.next() == Some(b"coordinator")
}

fn has_process(seen: &ObservedJob, word: &str) -> bool {
    word.parse().is_ok_and(|process| seen.job.processes.contains(&process))
}

/// Lists the numbers of jobs: `0123456789abcdef, 1123456789abcdef and 3 more`.
fn numbers(jobs: &[ObservedJob]) -> String {
    let first: Vec<_> = jobs.iter().take(NAMED).map(|seen| format!("{:016x}", seen.report.job)).collect();
    match jobs.len().saturating_sub(NAMED) {
        _ if jobs.is_empty() => "one (none is running)".to_owned(),
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Whether a word consists of hexadecimal digits, but too few of them.
fn is_short(word: &str) -> bool {
    (1..MIN_DIGITS).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn has_number(seen: &ObservedJob, word: &str) -> bool {
    let word = word.to_lowercase();
    word.len() >= MIN_DIGITS && seen.job.numbers().any(|number| format!("{number:016x}").starts_with(&word))
}
