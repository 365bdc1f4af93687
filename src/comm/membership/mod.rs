//! A rank's membership in a job, which all its communicators share, and the end of it with the last
//! of them.
//!
//! [`attach`] makes a rank a member of an epoch, with or without a launcher. [`init`] meets the
//! other ranks without one, under a [`unique_id`] or a name. [`epoch_commit`] has all ranks of a
//! meeting begin together. While the rank is a member, the [`launcher_link`] and the [`heartbeat`]
//! show that it lives, and the [`job_barrier`] is where all ranks meet.
//!
//! Tried by its unit tests, `launch`, `meet` and `scenarios barriers:: agreements:: departures::`.

pub(super) mod aborter;
pub(super) mod attach;
pub(super) mod core_set;
pub(super) mod epoch_commit;
pub(super) mod heartbeat;
pub(super) mod init;
pub(super) mod job_barrier;
pub(super) mod launcher_link;
pub(super) mod ports;
pub(super) mod recovery_callbacks;
pub(super) mod unique_id;
pub(super) mod workspace;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::channel::{Blamed, Port, RankContext};
use crate::collective::{OpenPorts, RegionOwner};
use crate::error::{DeviceName, Error, Result};
use crate::heap::{ArenaBuffer, MemoryRegistrar, Region};
use crate::rank::Rank;
use crate::shm::{CellSlice, LifeLock, Segment};
use crate::sync::{LifeStatus, ProgressCell, Revocation};
use launcher_link::{Incarnation, LauncherLink, LauncherState, has_service};
use ports::{ChannelUser, Ports};
use recovery_callbacks::RecoveryCallbacks;
use workspace::Workspace;

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
