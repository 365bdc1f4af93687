//! Ending an epoch from another thread than the one that is in the middle of a call.

use std::sync::{Arc, Weak};

use super::Communicator;
use super::membership::JobMembership;
use crate::rank::Rank;
use crate::sync::{LifeStatus, Revocation};

/// Ends the epoch of a communicator, whatever that does meanwhile. Cheap to clone, and keeps nobody in the job.
#[derive(Clone, Debug)]
pub struct Aborter {
    membership: Weak<JobMembership>,
}

impl Communicator {
    /// What ends its epoch from any thread.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter { membership: Arc::downgrade(&self.membership) }
    }

    /// Whether its epoch has ended, by whatever.
    #[cfg(feature = "coordinator")]
    pub(crate) fn has_ended(&self) -> bool {
        self.context().check("looking at an epoch").is_err()
    }
}

impl Aborter {
    /// Does what [`Communicator::revoke`] does, if the communicator is still there.
    pub fn revoke(&self) {
        let Some(membership) = self.membership.upgrade() else { return };
        membership.context.abort();
    }

    /// Declares a rank of the job lost, as [`Communicator::give_up`] does, if the communicator is still there. A rank that does not
    /// exist, and this one, are left alone.
    pub fn give_up(&self, rank: Rank) {
        let Some(membership) = self.membership.upgrade() else { return };
        let context = &membership.context;
        if rank != context.rank() && rank.get() < context.mapped().n_ranks() {
            membership.give_up(rank);
        }
    }
}

impl JobMembership {
    /// Declares `lost` lost, unless it has left in peace. That ends the epoch.
    pub(super) fn give_up(&self, lost: Rank) {
        let context = &self.context;
        let life = context.mapped().life(lost);
        if matches!(life.status(), LifeStatus::Alive | LifeStatus::Lost) {
            life.mark_lost(context.kernel());
            context.mapped().control().revoke(context.kernel(), Revocation::PeerLost(lost));
            self.report_loss(lost);
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
        aborter.revoke();
        assert!(matches!(waiter.join().unwrap(), Err(Error::Revoked { .. })));
        drop(idle);
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
