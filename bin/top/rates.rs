//! What ranks did between two looks at them.

use std::time::Duration;

use shmccl::observe::{RankReport, RankWork, Report};

/// What one rank did, and what it does now.
#[derive(Clone, Debug)]
pub(super) struct Rate<'r> {
    pub(super) job: u64,
    /// Whether it is one of those that hold the others up.
    pub(super) is_straggler: bool,
    pub(super) rank: &'r RankReport,
    /// Per second, where it was there at both looks.
    pub(super) done: Option<Done>,
}

/// What a rank did, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Done {
    pub(super) operations: f64,
    pub(super) bytes: f64,
    pub(super) signals: f64,
    /// The share of the time that it has waited.
    pub(super) waiting: f64,
}

/// The ranks of all jobs that are there now.
pub(super) fn between<'r>(before: &[Report], now: &'r [Report]) -> Vec<Rate<'r>> {
    let rates = |report: &'r Report| {
        let earlier =
            before.iter().find(|earlier| (earlier.job, earlier.epoch) == (report.job, report.epoch));
        let stragglers = report.stragglers();
        report.ranks.iter().map(move |rank| Rate {
            job: report.job,
            is_straggler: stragglers.contains(&rank.rank),
            rank,
            done: earlier.and_then(|earlier| {
                let before = earlier.ranks.get(rank.rank.index())?;
                Some(Done::between(&before.work, &rank.work, report.taken.saturating_sub(earlier.taken)))
            }),
        })
    };
    now.iter().flat_map(rates).collect()
}

impl Done {
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
        let done = Done::between(&before, &now, Duration::from_secs(2));
        assert_eq!(done, Done { operations: 10.0, bytes: 2064.0, signals: 1.0, waiting: 0.5 });
    }

    #[test]
    fn numbers_that_run_backwards_are_nothing() {
        let mut before = RankWork::default();
        (before.operations, before.signals) = (u64::MAX, 7);
        let done = Done::between(&before, &RankWork::default(), Duration::ZERO);
        assert_eq!(done, Done::default());
    }
}
