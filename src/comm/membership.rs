//! A rank's membership in a job: what all its communicators stand on, and what ends with the last of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Communicator;
use super::attach::OwnSegment;
use super::launcher_link::{Incarnation, LauncherLink, LauncherState, has_service};
use super::ports::Ports;
use super::recovery::RecoveryCallbacks;
use super::workspace::Workspace;
use crate::channel::{Blamed, Fabric};
use crate::collective::Landlord;
use crate::error::DeviceName;
use crate::heap::{MemoryRegistrar, Region};
use crate::rank::Rank;
use crate::shm::{CellSlice, LifeLock};
use crate::sync::{LifeStatus, ProgressCell, Revocation};

/// A rank in a job. Dropping it leaves the job; a peer that still needs this rank then gets
/// [`crate::Error::PeerLost`].
#[derive(Debug)]
pub(super) struct JobMembership {
    pub(super) fabric: Arc<Fabric>,
    pub(super) ports: Ports,
    pub(super) registrar: Mutex<MemoryRegistrar>,
    /// Where communicators keep their regions.
    pub(super) workspace: Workspace,
    pub(super) life: Option<LifeLock>,
    pub(super) launcher: Option<Arc<LauncherLink>>,
    /// How the launcher knows each rank of this epoch; none for a rank that it has not started.
    pub(super) incarnations: Vec<Option<Incarnation>>,
    /// Whether this process takes the place of one that has died.
    pub(super) was_restarted: bool,
    pub(super) recovery_callbacks: Mutex<RecoveryCallbacks>,
    pub(super) _own: Option<OwnSegment>,
}

impl JobMembership {
    pub(super) fn registrar(&self) -> MutexGuard<'_, MemoryRegistrar> {
        // A panic cannot leave the table half changed: each step checks first and changes last.
        self.registrar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn recovery_callbacks(&self) -> MutexGuard<'_, RecoveryCallbacks> {
        // Nobody's code runs while it is locked.
        self.recovery_callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the launcher, where there is one.
    pub(super) fn launcher_state(&self) -> Option<&LauncherState> {
        self.launcher.as_ref().map(|launcher| launcher.launcher_state())
    }

    /// Tells the launcher, where there is one, that `lost` is, so that it neither waits for that rank nor blames another one.
    pub(super) fn report_loss(&self, lost: Rank) {
        if let (Some(launcher), Some(Some(number))) = (&self.launcher, self.incarnations.get(lost.index())) {
            launcher.report(DeviceName::Rank(number.rank), number.restarts);
        }
    }

    /// Tells the launcher, where there is one, by whom this rank has come to nothing although that one was not lost.
    fn report_blame(&self) {
        let Some(Blamed { rank, is_late }) = self.fabric.blamed() else { return };
        if let (Some(launcher), Some(Some(number))) = (&self.launcher, self.incarnations.get(rank.index())) {
            launcher.blame(*number, is_late);
        }
    }

    /// Keeps the launcher's line that `old` has, in this new epoch, whose ranks the launcher knows by `numbers`.
    pub(super) fn succeed(&mut self, old: &Self, incarnations: Vec<Option<Incarnation>>) {
        self.incarnations = incarnations;
        if let Some(recorder) = old.fabric.any_recorder() {
            self.fabric.record(recorder.in_epoch(self.fabric.world().era().epoch));
            self.fabric.set_tracing(old.fabric.recorder().is_some());
        }
        if let Some(injector) = old.fabric.injector() {
            self.fabric.inject(Arc::clone(injector));
        }
        if old.fabric.takes_checksums() {
            self.fabric.take_checksums();
        }
        if let Some(launcher) = &old.launcher {
            launcher.follow(self.fabric.world(), self.incarnations.clone());
            self.launcher = Some(Arc::clone(launcher));
        }
    }
}

impl Landlord for JobMembership {
    fn take_back(&self, region: Region, departures: CellSlice<ProgressCell>) {
        self.workspace.retire(region, departures);
    }
}

impl Drop for JobMembership {
    /// A rank that leaves because it panics counts as lost; one that leaves because another was lost, has left, or
    /// held it up says so.
    fn drop(&mut self) {
        let world = self.fabric.world();
        let rank = self.fabric.rank();
        if std::thread::panicking() {
            world.life(rank).mark_lost(self.fabric.kernel());
        }
        self.ports.stop();
        self.fabric.leave();
        drop(self.life.take());
        // The service process ends when nobody is left.
        world.control().proxy_doorbell().wake(self.fabric.kernel());
        self.report_blame();
        match (&self.launcher, world.revocation().read()) {
            (_, Some(Revocation::PeerLost(lost))) if lost != rank => self.report_loss(lost),
            (Some(launcher), Some(Revocation::ProxyLost)) if has_service(world) => {
                launcher.report(DeviceName::Proxy, 0);
            }
            _ => {}
        }
    }
}

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
        self.fabric().check("looking at an epoch").is_err()
    }
}

impl Aborter {
    /// Does what [`Communicator::revoke`] does, if the communicator is still there.
    pub fn revoke(&self) {
        let Some(membership) = self.membership.upgrade() else { return };
        membership.fabric.abort();
    }

    /// Declares a rank of the job lost, as [`Communicator::give_up`] does, if the communicator is still there. A rank that does not
    /// exist, and this one, are left alone.
    pub fn give_up(&self, rank: Rank) {
        let Some(membership) = self.membership.upgrade() else { return };
        let fabric = &membership.fabric;
        if rank != fabric.rank() && rank.get() < fabric.world().n_ranks() {
            membership.give_up(rank);
        }
    }
}

impl JobMembership {
    /// Declares `lost` lost, unless it has left in peace. That ends the epoch.
    pub(super) fn give_up(&self, lost: Rank) {
        let fabric = &self.fabric;
        let life = fabric.world().life(lost);
        if matches!(life.status(), LifeStatus::Alive | LifeStatus::Lost) {
            life.mark_lost(fabric.kernel());
            fabric.world().control().revoke(fabric.kernel(), Revocation::PeerLost(lost));
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
