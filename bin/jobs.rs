//! The jobs of this user on this host, as the commands name them.

use shmccl::observe::{Job, Report};

/// A job, and what its ranks were doing a moment ago.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) job: Job,
    pub(crate) report: Report,
}

/// A word that does not name one job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misnomer {
    /// It names more than one.
    #[error("{0} is more than one job; see `shmccl ps`")]
    Several(String),
    /// It names none.
    #[error("no job {0}, and no process of one; see `shmccl ps`")]
    Nobody(String),
    /// It names a coordinator.
    #[error("no job {0}, and no process of one, as a coordinator is not; see `shmccl ps`")]
    Coordinator(String),
}

/// All jobs, from the youngest to the oldest. One that ends as it is looked at is left out.
pub(crate) fn all() -> Vec<Seen> {
    let look = |job: Job| job.report().ok().map(|report| Seen { job, report });
    let mut seen: Vec<_> = Job::newest().into_iter().filter_map(look).collect();
    seen.sort_by_key(|seen| seen.report.age);
    seen
}

/// The job that `word` names: by one of its processes, or else by the beginning of its number.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) fn named(word: &str) -> Result<Seen, Misnomer> {
    let (of_process, others): (Vec<_>, Vec<_>) = all().into_iter().partition(|seen| has_process(seen, word));
    let by_number = || others.into_iter().filter(|seen| has_number(seen, word)).collect();
    let mut found = if of_process.is_empty() { by_number() } else { of_process };
    match (found.pop(), found.pop()) {
        (Some(seen), None) => Ok(seen),
        (Some(_), Some(_)) => Err(Misnomer::Several(word.to_owned())),
        _ if is_coordinator(word) => Err(Misnomer::Coordinator(word.to_owned())),
        _ => Err(Misnomer::Nobody(word.to_owned())),
    }
}

/// Whether `word` is the number of a process that was started as `shmccl coordinator`.
fn is_coordinator(word: &str) -> bool {
    let command = |process: u32| std::fs::read(format!("/proc/{process}/cmdline")).ok();
    let command = word.parse().ok().and_then(command).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    words.next().is_some_and(|program| program.ends_with(b"shmccl")) && words.next() == Some(b"coordinator")
}

fn has_process(seen: &Seen, word: &str) -> bool {
    word.parse().is_ok_and(|process| seen.job.processes().contains(&process))
}

fn has_number(seen: &Seen, word: &str) -> bool {
    let word = word.to_lowercase();
    !word.is_empty() && seen.job.numbers().any(|number| format!("{number:016x}").starts_with(&word))
}
