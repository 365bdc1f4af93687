//! A rank's membership in a job, which all its communicators share, and the end of it with the last
//! of them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::Communicator;
use super::launcher_link::{Incarnation, LauncherLink, LauncherState, has_service};
use super::ports::{ChannelUser, Ports};
use super::recovery::RecoveryCallbacks;
use super::workspace::Workspace;
use crate::channel::{Blamed, Port, RankContext};
use crate::collective::{OpenPorts, RegionOwner};
use crate::error::{DeviceName, Error, Result};
use crate::heap::{ArenaBuffer, MemoryRegistrar, Region};
use crate::observe::Report;
use crate::rank::Rank;
use crate::shm::forks::RankProcess;
use crate::shm::{CellSlice, LifeLock, Segment};
use crate::sync::{LifeStatus, ProgressCell, Revocation};

/// A rank in a job. Dropping it leaves the job; a peer that still needs this rank then gets
/// [`crate::Error::PeerLost`].
#[derive(Debug)]
pub(super) struct JobMembership {
    pub(super) context: Arc<RankContext>,
    pub(super) ports: Ports,
    pub(super) registrar: Mutex<MemoryRegistrar>,
    /// The heap memory in which communicators keep their regions.
    pub(super) workspace: Workspace,
    pub(super) life: Option<LifeLock>,
    pub(super) launcher: Option<Arc<LauncherLink>>,
    /// The launcher's name for each rank of this epoch; `None` for a rank that it has not started.
    pub(super) incarnations: Vec<Option<Incarnation>>,
    /// Whether this process replaces one that has died.
    pub(super) was_restarted: bool,
    pub(super) recovery_callbacks: Mutex<RecoveryCallbacks>,
    pub(super) _own: Option<OwnSegment>,
}

/// A process's own segment, kept because its name goes with it, where it has one.
#[derive(Debug)]
pub(super) struct OwnSegment {
    pub(super) _segment: Segment,
    /// Let go of when the name is gone: until then the launcher's janitor waits.
    pub(super) _hold: Option<OwnedFd>,
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

    /// Returns what is known of the launcher, if there is one.
    pub(super) fn launcher_state(&self) -> Option<&LauncherState> {
        self.launcher.as_ref().map(|launcher| &launcher.state)
    }

    /// Tells the launcher, if there is one, that `lost` is lost. The launcher neither waits for
    /// that rank then nor blames another one.
    pub(super) fn report_loss(&self, lost: Rank) {
        if let (Some(launcher), Some(Some(number))) = (&self.launcher, self.incarnations.get(lost.index())) {
            launcher.link.report_loss(DeviceName::Rank(number.rank), number.restarts);
        }
    }

    /// Tells the launcher, if there is one, which rank is to blame for this rank's failure without
    /// being lost.
    fn report_blame(&self) {
        let Some(Blamed { rank, is_late }) = self.context.blamed() else { return };
        if let (Some(launcher), Some(Some(number))) = (&self.launcher, self.incarnations.get(rank.index())) {
            launcher.link.blame(number.rank, number.restarts, is_late);
        }
    }

    /// Keeps the launcher link of `old` in this new epoch, whose ranks the launcher knows by
    /// `incarnations`.
    pub(super) fn succeed(&mut self, old: &Self, incarnations: Vec<Option<Incarnation>>) {
        self.incarnations = incarnations;
        if let Some(recorder) = old.context.any_recorder() {
            self.context.set_recorder(recorder.in_epoch(self.context.mapped().epoch_id().epoch));
            self.context.set_tracing(old.context.recorder().is_some());
        }
        if let Some(injector) = old.context.injector() {
            self.context.plan_faults(Arc::clone(injector));
        }
        if old.context.takes_checksums() {
            self.context.take_checksums();
        }
        if let Some(launcher) = &old.launcher {
            launcher.follow(self.context.mapped(), self.incarnations.clone());
            self.launcher = Some(Arc::clone(launcher));
        }
    }

    /// Gives waits that begin from now on so much time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no time at all.
    pub(super) fn set_timeout(&self, timeout: Duration) -> Result<()> {
        if timeout.is_zero() {
            return Err(Error::invalid("timeout", 0, "more than no time"));
        }
        self.context.set_timeout(timeout);
        Ok(())
    }

    /// Declares `lost` lost, unless it has left. That ends the epoch.
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

impl RegionOwner for JobMembership {
    fn take_back(&self, region: Region, memory: Vec<ArenaBuffer<u8>>, departures: CellSlice<ProgressCell>) {
        self.workspace.retire(region, memory, departures);
    }
}

impl OpenPorts for JobMembership {
    fn open_port(&self) -> Result<Port> {
        self.ports.open(&self.context, ChannelUser::Pipe)
    }
}

impl Drop for JobMembership {
    /// Leaves the job. A rank that panics counts as lost. A rank that leaves because of another
    /// one, which was lost, has left or held it up, says so.
    fn drop(&mut self) {
        let mapped = self.context.mapped();
        let rank = self.context.rank();
        if std::thread::panicking() {
            mapped.life(rank).mark_lost(self.context.kernel());
        }
        self.ports.stop();
        self.context.leave();
        drop(self.life.take());
        // The service process ends when nobody is left.
        mapped.control().proxy_doorbell().wake(self.context.kernel());
        self.report_blame();
        match (&self.launcher, mapped.revocation().read()) {
            (_, Some(Revocation::PeerLost(lost))) if lost != rank => self.report_loss(lost),
            (Some(launcher), Some(Revocation::ProxyLost)) if has_service(mapped) => {
                launcher.link.report_loss(DeviceName::Proxy, 0);
            }
            _ => {}
        }
    }
}

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
    /// [`Error::Unavailable`].
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
