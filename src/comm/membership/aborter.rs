//! What any thread of the process may do with a communicator, also while another one is in a call.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::JobMembership;
use crate::comm::Communicator;
use crate::error::Result;
use crate::observe::Report;
use crate::rank::Rank;
use crate::shm::forks::RankProcess;
use crate::sync::Revocation;

/// Ends the epoch of a communicator from any thread, even within a call, or says why it has ended.
/// It also tells from there what needs no call of this rank to end. It is cheap to clone, and keeps
/// nobody in the job.
#[derive(Clone, Debug)]
pub struct Aborter {
    membership: Weak<JobMembership>,
    process: RankProcess,
}

impl Communicator {
    /// Returns a handle that ends its epoch from any thread.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter { membership: Arc::downgrade(&self.membership), process: RankProcess::this() }
    }

    /// Returns whether its epoch has ended, for whatever reason.
    #[cfg(feature = "coordinator")]
    pub(crate) fn has_ended(&self) -> bool {
        self.context().check("looking at an epoch").is_err()
    }
}

impl Aborter {
    /// Refuses `operation` in a child that the rank has forked.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`].
    #[inline]
    pub fn check_process(&self, operation: &'static str) -> Result<()> {
        self.process.check(operation)
    }

    /// Does what [`Communicator::revoke`] does, if the communicator is still there.
    pub fn revoke(&self) {
        let Some(membership) = self.membership.upgrade() else { return };
        membership.context.abort();
    }

    /// Revokes it because this rank has waited for `awaited` for longer than it would: the others
    /// read so. A rank that does not exist, and this one, are nobody in particular.
    pub fn revoke_awaiting(&self, awaited: Rank) {
        let Some(membership) = self.membership.upgrade() else { return };
        let context = &membership.context;
        if awaited != context.rank() && awaited.get() < context.mapped().n_ranks() {
            context.abort_awaiting(awaited);
        } else {
            context.abort();
        }
    }

    /// Returns those of `members` that hold the others up, as [`Communicator::report`] tells, or
    /// else those that this rank has awaited last. In a call of all ranks of the job, all that wait
    /// for nobody are late. Empty if the communicator is gone.
    #[must_use]
    pub fn stragglers(&self, members: &[Rank]) -> Vec<Rank> {
        let Some(membership) = self.membership.upgrade() else { return Vec::new() };
        let own = membership.context.rank();
        let Ok(report) = Report::of(membership.context.mapped()) else { return Vec::new() };
        let others = |mut ranks: Vec<Rank>| {
            ranks.retain(|rank| *rank != own && members.contains(rank));
            ranks
        };
        let is_of_all = members.len() == report.ranks.len() && report.ranks[own.index()].call.is_some();
        let stragglers = others(if is_of_all { report.idle() } else { report.stragglers() });
        if stragglers.is_empty() { others(report.ranks[own.index()].awaits()) } else { stragglers }
    }

    /// Returns the reason why the epoch ended, as [`Communicator::revoked`] does, if the
    /// communicator is still there.
    #[must_use]
    pub fn revoked(&self) -> Option<Revocation> {
        self.membership.upgrade()?.context.mapped().revocation().read()
    }

    /// Returns what [`Communicator::timeout`] does, if the communicator is still there.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        Some(self.membership.upgrade()?.context.timeout())
    }

    /// Does what [`Communicator::set_timeout`] does, if the communicator is still there.
    ///
    /// # Errors
    /// Its own.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        self.membership.upgrade().map_or(Ok(()), |membership| membership.set_timeout(timeout))
    }

    /// Returns what [`Communicator::staged_bytes`] does, if the communicator is still there.
    #[must_use]
    pub fn staged_bytes(&self) -> Option<u64> {
        Some(self.membership.upgrade()?.context.staged())
    }

    /// Reports what [`Communicator::report`] does, if the communicator is still there.
    ///
    /// # Errors
    /// Its own.
    pub fn report(&self) -> Result<Option<Report>> {
        self.membership.upgrade().map(|membership| Report::of(membership.context.mapped())).transpose()
    }

    /// Declares a rank of the job lost like [`Communicator::give_up`], if the communicator is still
    /// there. A rank that does not exist, and this one, are left alone.
    pub fn give_up(&self, rank: Rank) {
        let Some(membership) = self.membership.upgrade() else { return };
        let context = &membership.context;
        if rank != context.rank() && rank.get() < context.mapped().n_ranks() {
            membership.give_up(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Options;
    use crate::error::Error;

    #[test]
    fn a_wait_ends_when_another_thread_ends_the_epoch() {
        let options = Options { heap_len: 4 << 20, ..Options::default() };
        let mut comms = Communicator::init_all_with(2, &options).unwrap();
        let (mut waiting, idle) = (comms.remove(0), comms.remove(0));
        let aborter = waiting.aborter();
        let waiter = std::thread::spawn(move || waiting.barrier());
        assert_eq!(aborter.revoked(), None);
        aborter.set_timeout(Duration::from_secs(7)).unwrap();
        assert!(aborter.set_timeout(Duration::ZERO).is_err());
        assert_eq!((aborter.timeout(), aborter.staged_bytes()), (Some(Duration::from_secs(7)), Some(0)));
        assert!(aborter.report().unwrap().is_some());
        aborter.revoke();
        assert!(matches!(waiter.join().unwrap(), Err(Error::Revoked { .. })));
        assert_eq!(idle.aborter().revoked(), Some(Revocation::Aborted(Some(Rank::known(0)))));
        drop(idle);
        assert_eq!(aborter.revoked(), None, "nobody is in the job any more");
        assert_eq!((aborter.timeout(), aborter.staged_bytes()), (None, None));
        aborter.revoke();
    }

    #[test]
    fn a_rank_that_is_given_up_by_another_thread_is_lost() {
        let options = Options { heap_len: 4 << 20, ..Options::default() };
        let mut comms = Communicator::init_all_with(2, &options).unwrap();
        let (mut waiting, idle) = (comms.remove(0), comms.remove(0));
        let aborter = waiting.aborter();
        let waiter = std::thread::spawn(move || waiting.barrier());
        aborter.give_up(Rank::known(0));
        aborter.give_up(Rank::known(7));
        aborter.give_up(Rank::known(1));
        assert!(matches!(waiter.join().unwrap(), Err(Error::PeerLost { rank }) if rank == Rank::known(1)));
        drop(idle);
    }
}
