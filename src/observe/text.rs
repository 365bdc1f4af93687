//! How a report reads.

use std::fmt;
use std::time::Duration;

use super::rank::{FifoView, ObservedCall, RankReport, Wait};
use super::report::Report;
use crate::channel::WaitKind;
use crate::proxy::TriggerKind;
use crate::rank::{Rank, RankSet};
use crate::sync::{LifeStatus, Revocation};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_ranks = self.ranks.len();
        write!(f, "job {:016x}, epoch {}, {n_ranks} ranks, for {}", self.job, self.epoch, elapsed(self.age))?;
        match self.why_ended() {
            Some(reason) => writeln!(f, "; ended: {reason}")?,
            None => writeln!(f)?,
        }
        self.ranks.iter().try_for_each(|rank| writeln!(f, "{rank}"))?;
        write!(f, "{}", self.verdict())
    }
}

impl Report {
    /// Returns why it has ended, if it has: `rank 1 was lost`.
    #[must_use]
    pub fn why_ended(&self) -> Option<String> {
        Some(match self.ended? {
            Revocation::PeerLost(rank) => format!("rank {rank} was lost"),
            Revocation::ProxyLost => "the proxy was lost".into(),
            Revocation::Aborted(Some(rank)) => format!("rank {rank} has ended it"),
            Revocation::Aborted(None) => "the launcher has ended it".into(),
            Revocation::Corrupted(rank) => format!("a put of rank {rank} was corrupted"),
            Revocation::TimedOut { by, awaited } => {
                format!("rank {by} has timed out waiting for rank {awaited}")
            }
        })
    }

    /// Writes which rank holds all up, if one does: `held up by rank 0, which waits for nobody`.
    #[must_use]
    pub fn verdict(&self) -> String {
        let (stragglers, wait_cycle) = (self.stragglers(), self.wait_cycle());
        if !stragglers.is_empty() {
            let waits = if stragglers.len() == 1 { "waits" } else { "wait" };
            format!("held up by {}, which {waits} for nobody", named(&stragglers))
        } else if !wait_cycle.is_empty() {
            format!("nobody goes on: {} wait for each other", named(&wait_cycle))
        } else if self.has_timed_out() && self.is_anybody_gone_awaited() {
            "whoever held them up has left".into()
        } else {
            "nobody is held up by another rank".into()
        }
    }
}

/// `rank 2 (process 17): in all_reduce of 8 f32 by sum, number 5; waits for rank 1 2.1 s by now`.
impl fmt::Display for RankReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let Some(pid) = self.pid {
            write!(f, " (process {pid}{})", if self.is_stopped { ", stopped" } else { "" })?;
        }
        match self.life {
            LifeStatus::Absent => return write!(f, ": has not come yet"),
            LifeStatus::Left if self.wait.is_none() => return write!(f, ": has left"),
            LifeStatus::Left => write!(f, ": has left; was ")?,
            LifeStatus::Lost => write!(f, ": lost; was ")?,
            LifeStatus::Alive => write!(f, ": ")?,
        }
        match (self.call, &self.wait) {
            (Some(call), _) => {
                write!(f, "in {call}")?;
                self.step().map_or(Ok(()), |step| write!(f, ", step {step}"))?;
                self.waits_on().map_or(Ok(()), |on| write!(f, ", there in {on}"))?;
            }
            (None, Some(wait)) => write!(f, "in {}", wait.on.map_or("an unknown wait", WaitKind::name))?,
            (None, None) => write!(f, "in no operation")?,
        }
        self.write_rest(f)?;
        if let Some(wait) = &self.wait {
            self.write_wait(f, wait)?;
        }
        if let (None, Some(last)) = (self.call, self.last) {
            write!(f, "; the last was {last}")?;
        }
        self.fifos.iter().try_for_each(|fifo| write!(f, "; {fifo}"))?;
        match self.last_fault {
            Some((last, 1)) => write!(f, "; fault injected: {last}"),
            Some((last, count)) => write!(f, "; {count} faults injected, the last: {last}"),
            None => Ok(()),
        }
    }
}

impl RankReport {
    /// Writes how long a rank that does not wait has done nothing that others could see, as far as
    /// its heartbeats tell.
    fn write_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (None, Some(moved)) = (&self.wait, self.moved) else { return Ok(()) };
        // A beat finds what was done since the one before.
        match (self.call, moved.as_secs()) {
            (Some(_), 0) => write!(f, "; went on less than 1 s ago"),
            (Some(_), _) => write!(f, "; went on about {} ago", elapsed(moved)),
            (None, 0) => write!(f, " for less than 1 s"),
            (None, _) => write!(f, " for about {}", elapsed(moved)),
        }
    }

    fn write_wait(&self, f: &mut fmt::Formatter<'_>, wait: &Wait) -> fmt::Result {
        let others = wait.awaited.without(RankSet::from_iter([self.rank]));
        let others: Vec<_> = others.iter().collect();
        let verb = match wait {
            Wait { timed_out: true, .. } => "timed out waiting",
            Wait { given_up: true, .. } => "gave up waiting",
            _ => "waits",
        };
        let awaited = if others.is_empty() { "its proxy".into() } else { named(&others) };
        let (lasts, when) = (elapsed(wait.lasts), if wait.given_up { "ago" } else { "by now" });
        write!(f, "; {verb} for {awaited} {lasts} {when}")
    }
}

impl fmt::Display for ObservedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.signature)?;
        if self.sequence == 0 { Ok(()) } else { write!(f, ", number {}", self.sequence) }
    }
}

impl fmt::Display for FifoView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (depth, pushed, last) = (self.depth, self.pushed, self.last_in_words());
        write!(f, "{depth} of {pushed} triggers in its fifo, the last {last}")?;
        match self.refused {
            0 => Ok(()),
            refused => write!(f, ", {refused} triggers refused"),
        }
    }
}

impl FifoView {
    /// Tells the last trigger that was pushed, in words: `put of 4096 bytes, signal`.
    #[must_use]
    pub fn last_in_words(&self) -> String {
        if self.last.word_update().is_some() {
            return "atomic".into();
        }
        let kind = self.last.kind();
        let put = format!("put of {} bytes", self.last.transfer().len.get());
        let parts = [
            (TriggerKind::DATA, put.as_str()),
            (TriggerKind::SIGNAL, "signal"),
            (TriggerKind::FLUSH, "flush"),
        ];
        let said: Vec<_> =
            parts.into_iter().filter(|(part, _)| kind.contains(*part)).map(|(_, word)| word).collect();
        if said.is_empty() { "nothing".into() } else { said.join(", ") }
    }
}

/// Names ranks: `rank 3`, `ranks 1, 2 and 5`.
fn named(ranks: &[Rank]) -> String {
    match ranks {
        [] => "nobody".into(),
        [only] => format!("rank {only}"),
        [rest @ .., last] => {
            let rest: Vec<_> = rest.iter().map(Rank::to_string).collect();
            format!("ranks {} and {last}", rest.join(", "))
        }
    }
}

/// Tells a time that people wait: `350 ms`, `2.1 s`, `3 min 20 s`, `5 h 2 min`.
fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
