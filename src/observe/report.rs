//! A whole epoch at a moment, and who holds it up.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::copy::copy_of;
use super::rank::{RankReport, Wait};
use super::straggler::{WaitState, stragglers, wait_cycle, worst_straggler};
use crate::channel::{CONTROL_LEN, Control, EpochMapping};
use crate::error::{DeviceName, EpochReport, Error, Result};
use crate::faults::FaultHit;
use crate::rank::Rank;
use crate::shm::{Expected, HostKernel, SegmentHeader};
use crate::sync::Revocation;
use crate::sync::header::Creator;

/// A report of every rank of an epoch: the answer to why nothing goes on. It prints as a line for
/// each rank and one that names who holds the others up.
///
/// Numbers are those of a moment each, and only as good as what ranks have told: they tell of waits
/// that have turned out long, after some microseconds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The job.
    pub job: u64,
    /// Which incarnation of it.
    pub epoch: u64,
    /// The maker of its control segment: the launcher, the host of a meeting, or a rank.
    pub creator: Creator,
    /// How long it has run.
    pub age: Duration,
    /// The time of the look, by the system's monotonic clock.
    pub taken: Duration,
    /// Why it has ended, if it has.
    pub ended: Option<Revocation>,
    /// The ranks, in order.
    pub ranks: Vec<RankReport>,
}

impl Report {
    /// Looks at the epoch of `mapped`, from within.
    ///
    /// # Errors
    /// Fails as [`Report::take`] does, or with [`Error::Unavailable`] where its control segment has
    /// no descriptor.
    #[cold]
    pub(crate) fn of(mapped: &EpochMapping) -> Result<Self> {
        let missing = Error::Unavailable { operation: "report", needs: "the control segment" };
        let control = mapped.control().descriptor().ok_or(missing)?;
        Self::take(control, |rank| Some(mapped.segment(rank).as_ref()))
    }

    /// Looks at the epoch with this control segment, and at the segments of its ranks, as far as
    /// there is a descriptor of them.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] when it is no control segment of this version;
    /// [`crate::Error::InvalidArgument`] when it says that it has no ranks, or too many;
    /// [`crate::Error::Os`] when it cannot be read.
    pub(crate) fn take<S: AsFd>(
        control: BorrowedFd<'_>,
        segment: impl Fn(Rank) -> Option<S>,
    ) -> Result<Self> {
        let copy = copy_of(control, 0, CONTROL_LEN)?;
        let header = copy.cell::<SegmentHeader>(0)?;
        header.check(&Expected { len: Some(CONTROL_LEN), identity: None })?;
        let control = Control::of_copy(copy)?;
        let now = HostKernel::clock();
        let (lives, activities) = (control.lives(), control.activities());
        let rank = |rank: Rank| {
            let (life, activity) = (&lives[rank.index()], activities[rank.index()].read());
            let segment = segment(rank);
            let report = RankReport::new(
                rank,
                control.n_ranks(),
                life,
                &activity,
                segment.as_ref().map(AsFd::as_fd),
                now,
            );
            let beat = control.beat(DeviceName::Rank(rank));
            let ago = |time: Option<Duration>| time.map(|time| now.saturating_sub(time));
            let last_fault = FaultHit::told(&control.faults(rank));
            RankReport { last_fault, heartbeat: ago(beat.last()), moved: ago(beat.last_moved()), ..report }
        };
        let identity = header.identity();
        Ok(Self {
            job: identity.job,
            epoch: identity.epoch,
            creator: header.creator(),
            age: now.saturating_sub(control.began()),
            taken: now,
            ended: control.revocation().read(),
            ranks: (0..control.n_ranks()).map(Rank::known).map(rank).collect(),
        })
    }

    /// Returns the ranks that hold all up: they are awaited, directly or by way of others, and wait
    /// for nobody. None while all goes well, or when ranks wait in a circle.
    #[must_use]
    pub fn stragglers(&self) -> Vec<Rank> {
        stragglers(&self.wait_states()).iter().collect()
    }

    /// Returns the ranks that live and wait for nobody.
    pub(crate) fn idle(&self) -> Vec<Rank> {
        let states = self.ranks.iter().map(|rank| (rank.rank, rank.wait_state()));
        let idle = states.filter(|(_, state)| matches!(state, WaitState::Busy | WaitState::Stopped));
        idle.map(|(rank, _)| rank).collect()
    }

    /// Returns the ranks that wait for each other in a circle, and those that wait for them, where
    /// all of them have waited for 100 ms: ranks are looked at one after the other, so that shorter
    /// waits can seem a circle although all goes well.
    #[must_use]
    pub fn wait_cycle(&self) -> Vec<Rank> {
        let wait_cycle = wait_cycle(&self.wait_states());
        let is_settled = |rank: Rank| self.ranks[rank.index()].wait.as_ref().is_some_and(Wait::is_settled);
        if wait_cycle.iter().all(is_settled) { wait_cycle.iter().collect() } else { Vec::new() }
    }

    /// Returns whether the deadline of some rank's last long wait has passed.
    #[must_use]
    pub fn has_timed_out(&self) -> bool {
        self.ranks.iter().any(RankReport::has_timed_out)
    }

    /// Returns whether somebody waits, or has given up waiting, for one that has not come, has
    /// left, or is dead.
    pub(super) fn is_anybody_gone_awaited(&self) -> bool {
        let wait_states = self.wait_states();
        let is_gone = |rank: Rank| wait_states.get(rank.index()) == Some(&WaitState::Gone);
        self.ranks.iter().any(|rank| rank.awaits().into_iter().any(is_gone))
    }

    fn wait_states(&self) -> Vec<WaitState> {
        self.ranks.iter().map(RankReport::wait_state).collect()
    }
}

impl EpochReport for Report {
    fn straggler(&self) -> Option<Rank> {
        worst_straggler(&self.wait_states())
    }

    fn stragglers(&self) -> Vec<Rank> {
        self.stragglers()
    }

    fn has_timed_out(&self) -> bool {
        self.has_timed_out()
    }

    /// Each rank of the circle shows no other communicator than the one of its call, so that it has
    /// one thread that waits in calls.
    fn next_in_circle(&self, rank: Rank) -> Option<(Rank, [u64; 2])> {
        let circle = self.wait_cycle();
        let waits_in_call = |rank: &Rank| self.ranks[rank.index()].waits_in_only_call();
        if !circle.contains(&rank) || !circle.iter().all(waits_in_call) {
            return None;
        }
        let next = self.ranks[rank.index()].awaits().into_iter().find(|next| circle.contains(next))?;
        Some((next, self.ranks[next.index()].call?.signature.words()))
    }
}

/// Looks at the epoch of `mapped`, for an error: what a
/// [`RankContext`](crate::channel::RankContext) is given.
#[cold]
pub(crate) fn report_of(mapped: &EpochMapping) -> Option<Box<dyn EpochReport>> {
    Some(Box::new(Report::of(mapped).ok()?))
}
