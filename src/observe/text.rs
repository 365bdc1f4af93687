//! How a report reads.

use std::fmt;
use std::time::Duration;

use super::rank::{FifoView, ObservedCall, RankReport, Wait};
use super::report::Report;
use crate::channel::WaitKind;
use crate::proxy::{Trigger, TriggerKind};
use crate::rank::{Rank, RankSet};
use crate::sync::{LifeStatus, Revocation};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_ranks = self.ranks.len();
        write!(f, "job {:016x}, epoch {}, {n_ranks} ranks, for {}", self.job, self.epoch, Elapsed(self.age))?;
        match self.why_ended() {
            Some(reason) => writeln!(f, "; ended: {reason}")?,
            None => writeln!(f)?,
        }
        self.ranks.iter().try_for_each(|rank| writeln!(f, "{rank}"))?;
        write!(f, "{}", self.verdict())
    }
}

impl Report {
    /// Why it has ended, if it has: `rank 1 was lost`.
    #[must_use]
    pub fn why_ended(&self) -> Option<String> {
        self.ended.map(|reason| Reason(reason).to_string())
    }

    /// Writes which rank holds all up, if one does: `held up by rank 0, which waits for nobody`.
    #[must_use]
    pub fn verdict(&self) -> String {
        Conclusion(self).to_string()
    }
}

/// The last line of a report.
struct Conclusion<'a>(&'a Report);

impl fmt::Display for Conclusion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        let (stragglers, wait_cycle) = (report.stragglers(), report.wait_cycle());
        if !stragglers.is_empty() {
            let waits = if stragglers.len() == 1 { "waits" } else { "wait" };
            return write!(f, "held up by {}, which {waits} for nobody", Ranks(&stragglers));
        }
        if !wait_cycle.is_empty() {
            return write!(f, "nobody goes on: {} wait for each other", Ranks(&wait_cycle));
        }
        if report.has_timed_out() && report.is_anybody_gone_awaited() {
            return write!(f, "whoever held them up has left");
        }
        write!(f, "nobody is held up by another rank")
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
            (Some(call), _) => write!(f, "in {call}{}", Within(self))?,
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
    /// For how long one that does not wait has done nothing that others could see, as far as its
    /// heartbeats tell.
    fn write_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (None, Some(moved)) = (&self.wait, self.moved) else { return Ok(()) };
        // A beat finds what was done since the one before.
        match (self.call, moved.as_secs()) {
            (Some(_), 0) => write!(f, "; went on less than 1 s ago"),
            (Some(_), _) => write!(f, "; went on about {} ago", Elapsed(moved)),
            (None, 0) => write!(f, " for less than 1 s"),
            (None, _) => write!(f, " for about {}", Elapsed(moved)),
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
        if others.is_empty() {
            write!(f, "; {verb} for its proxy")?;
        } else {
            write!(f, "; {verb} for {}", Ranks(&others))?;
        }
        write!(f, " {} {}", Elapsed(wait.lasts), if wait.given_up { "ago" } else { "by now" })
    }
}

/// The addition of a rank's wait to the name of the call that it is in.
struct Within<'a>(&'a RankReport);

impl fmt::Display for Within<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.step().map_or(Ok(()), |step| write!(f, ", step {step}"))?;
        self.0.waits_on().map_or(Ok(()), |on| write!(f, ", there in {on}"))
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
        let (depth, pushed) = (self.depth, self.pushed);
        write!(f, "{depth} of {pushed} triggers in its fifo, the last {}", Words(&self.last))?;
        match self.refused {
            0 => Ok(()),
            refused => write!(f, ", {refused} triggers refused"),
        }
    }
}

impl FifoView {
    /// The last trigger that was pushed, in words: `put of 4096 bytes, signal`.
    #[must_use]
    pub fn last_in_words(&self) -> String {
        Words(&self.last).to_string()
    }
}

/// A trigger in words.
struct Words<'a>(&'a Trigger);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.0.kind();
        let put = format!("put of {} bytes", self.0.transfer().len);
        let parts = [
            (TriggerKind::DATA, put.as_str()),
            (TriggerKind::SIGNAL, "signal"),
            (TriggerKind::FLUSH, "flush"),
        ];
        let said: Vec<_> =
            parts.into_iter().filter(|(part, _)| kind.contains(*part)).map(|(_, word)| word).collect();
        f.write_str(if kind.is_none() { "nothing" } else { "" })?;
        f.write_str(&said.join(", "))
    }
}

/// `rank 3`, `ranks 1, 2 and 5`.
struct Ranks<'a>(&'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("nobody"),
            [only] => write!(f, "rank {only}"),
            [rest @ .., last] => {
                let rest: Vec<_> = rest.iter().map(Rank::to_string).collect();
                write!(f, "ranks {} and {last}", rest.join(", "))
            }
        }
    }
}

/// Why an epoch has ended.
struct Reason(Revocation);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Revocation::PeerLost(rank) => write!(f, "rank {rank} was lost"),
            Revocation::ProxyLost => f.write_str("the proxy was lost"),
            Revocation::Aborted(Some(rank)) => write!(f, "rank {rank} has ended it"),
            Revocation::Aborted(None) => f.write_str("the launcher has ended it"),
            Revocation::Corrupted(rank) => write!(f, "a put of rank {rank} was corrupted"),
        }
    }
}

/// A time that people wait: `350 ms`, `2.1 s`, `3 min 20 s`, `5 h 2 min`.
struct Elapsed(Duration);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 => write!(f, "{} ms", self.0.as_millis()),
            1..60 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            60..3600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            _ => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
        }
    }
}
