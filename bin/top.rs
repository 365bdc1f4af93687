//! `shmccl top`: what the ranks of all jobs do, again and again.
//!
//! Each picture comes from two reads of the shared words, an interval apart. On a terminal a
//! picture is drawn over the previous one. The mode of the terminal stays as it is, so any end of
//! the command leaves it intact.
//!
//! Tried by its unit tests and `command seeing::`.

mod picture;

use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shmccl::observe::{RankReport, RankWork, Report};

use crate::failure;
use crate::grpc;
use crate::jobs::{self, JobNameError};
use crate::output::{self, TableLook};
use crate::units::parse_timeout;

/// Ends the help.
pub(crate) const HELP: &str = "\
Numbers are those of the last interval. Operations are collective ones. Bytes are the contributions \
of this rank; small ones count by the mean of the last eight. Signals are those that the rank has \
received. Waiting is the share of the interval in waits of more than some microseconds. Beat is the \
age of the last heartbeat, which comes twice a second. If the output is no terminal, pictures follow \
each other as plain text.";

/// The lines and columns of a terminal that does not report them.
const USUAL: (usize, usize) = (24, 80);

/// Flags of `shmccl top`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// One job only: the beginning of its number, four digits at least, or one of its processes
    #[arg(value_name = "JOB|PID")]
    pub(crate) job: Option<String>,
    /// The time between two pictures, such as 500ms or 2s
    #[arg(short, long, value_name = "TIME", value_parser = parse_timeout, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print one picture, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Show all jobs and the pool on a page for a browser instead, by the program shmccl-grpc
    #[arg(long, conflicts_with_all = ["job", "interval", "once"])]
    pub(crate) page: bool,
}

/// What one rank did in an interval, and what it does now.
#[derive(Clone, Debug)]
struct RankRate<'r> {
    job: u64,
    /// Whether other ranks wait for it.
    is_straggler: bool,
    rank: &'r RankReport,
    /// What it did per second, if it was there in both reads.
    done: Option<Throughput>,
}

/// What a rank did, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Throughput {
    operations: f64,
    bytes: f64,
    signals: f64,
    /// The share of the time that it waited.
    waiting: f64,
}

/// Runs the command.
///
/// # Errors
/// No such job; those of stdout; no program for a page.
pub(crate) fn run(args: &TopArgs) -> Result<u8> {
    if args.page {
        return grpc::become_front(&["--page", "--only-page"]);
    }
    let mut before = look(args)?;
    let mut lines_up = 0;
    loop {
        pause(args.interval);
        let now = match look(args) {
            Ok(now) => now,
            // The job has ended, or the word now names a second job as well.
            Err(error @ JobNameError::Several(_)) => return Err(error.into()),
            Err(_) => return Ok(failure::DONE),
        };
        let (look, (height, width)) = (TableLook::of_tables(), USUAL);
        let (height, width) = (look.height.unwrap_or(height), look.width.unwrap_or(width));
        let look = TableLook { width: Some(width).filter(|_| look.terminal), ..look };
        let picture = picture::draw(look, &rates_between(&before, &now));
        if look.terminal && !args.once {
            // The cursor takes a line of its own.
            let picture = picture::cut(&picture, height.saturating_sub(1), width);
            let lines = picture.lines().count();
            output::print(&picture::over(&picture, lines_up))?;
            lines_up = lines;
        } else {
            output::print(&picture)?;
        }
        if args.once {
            return Ok(failure::DONE);
        }
        before = now;
    }
}

/// Returns reports on all jobs, or on the named one.
fn look(args: &TopArgs) -> Result<Vec<Report>, JobNameError> {
    match &args.job {
        Some(word) => Ok(vec![jobs::named(word)?.report]),
        None => Ok(jobs::all().into_iter().map(|seen| seen.report).collect()),
    }
}

fn pause(interval: Duration) {
    let (_nobody_sends, never) = mpsc::channel::<()>();
    let _timeout = never.recv_timeout(interval);
}

/// Returns the ranks of all jobs of `now`, with what they did since `before`.
fn rates_between<'r>(before: &[Report], now: &'r [Report]) -> Vec<RankRate<'r>> {
    let rates = |report: &'r Report| {
        let earlier =
            before.iter().find(|earlier| (earlier.job, earlier.epoch) == (report.job, report.epoch));
        let stragglers = report.stragglers();
        report.ranks.iter().map(move |rank| RankRate {
            job: report.job,
            is_straggler: stragglers.contains(&rank.rank),
            rank,
            done: earlier.and_then(|earlier| {
                let before = earlier.ranks.get(rank.rank.index())?;
                Some(Throughput::between(
                    &before.work,
                    &rank.work,
                    report.taken.saturating_sub(earlier.taken),
                ))
            }),
        })
    };
    now.iter().flat_map(rates).collect()
}

impl Throughput {
    fn between(before: &RankWork, now: &RankWork, time: Duration) -> Self {
        let more = |before: u64, now: u64| now.saturating_sub(before) as f64;
        let seconds = time.as_secs_f64().max(1e-9);
        let operations = more(before.operations, now.operations);
        let large = more(before.large_operations, now.large_operations);
        let small_bytes = (operations - large).max(0.0) * now.small_len as f64;
        let bytes = more(before.large_bytes, now.large_bytes) + small_bytes;
        Self {
            operations: operations / seconds,
            bytes: bytes / seconds,
            signals: more(before.signals, now.signals) / seconds,
            waiting: (now.waited.saturating_sub(before.waited).as_secs_f64() / seconds).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_told_per_second_and_small_operations_by_their_mean() {
        let mut before = RankWork::default();
        let mut now = RankWork::default();
        (before.operations, now.operations, now.large_operations) = (10, 30, 4);
        (now.large_bytes, now.small_len, now.signals) = (4000, 8, 2);
        now.waited = Duration::from_secs(1);
        let done = Throughput::between(&before, &now, Duration::from_secs(2));
        assert_eq!(done, Throughput { operations: 10.0, bytes: 2064.0, signals: 1.0, waiting: 0.5 });
    }

    #[test]
    fn numbers_that_run_backwards_are_nothing() {
        let mut before = RankWork::default();
        (before.operations, before.signals) = (u64::MAX, 7);
        let done = Throughput::between(&before, &RankWork::default(), Duration::ZERO);
        assert_eq!(done, Throughput::default());
    }
}
