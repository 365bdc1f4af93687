//! A rank's membership in a job: what all its communicators stand on, and what ends with the last of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::attach::OwnSegment;
use super::ports::Ports;
use super::recovery::Herald;
use super::supervision::{Number, Supervision, Tidings, has_service};
use super::workspace::Workspace;
use crate::channel::{Blamed, Fabric};
use crate::collective::RegionOwner;
use crate::error::DeviceName;
use crate::heap::{MemoryRegistrar, Region};
use crate::rank::Rank;
use crate::shm::{CellSlice, LifeLock};
use crate::sync::{ProgressCell, Revocation};

/// A rank in a job. Dropping it leaves the job; a peer that still needs this rank then gets
/// [`crate::Error::PeerLost`].
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) fabric: Arc<Fabric>,
    pub(super) ports: Ports,
    pub(super) registrar: Mutex<MemoryRegistrar>,
    /// Where communicators keep their regions.
    pub(super) workspace: Workspace,
    pub(super) life: Option<LifeLock>,
    pub(super) supervision: Option<Arc<Supervision>>,
    /// How the launcher knows each rank of this epoch; none for a rank that it has not started.
    pub(super) numbers: Vec<Option<Number>>,
    /// Whether this process takes the place of one that has died.
    pub(super) was_restarted: bool,
    pub(super) herald: Mutex<Herald>,
    pub(super) _own: Option<OwnSegment>,
}

impl Membership {
    pub(super) fn registrar(&self) -> MutexGuard<'_, MemoryRegistrar> {
        // A panic cannot leave the table half changed: each step checks first and changes last.
        self.registrar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn herald(&self) -> MutexGuard<'_, Herald> {
        // Nobody's code runs while it is locked.
        self.herald.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the launcher, where there is one.
    pub(super) fn tidings(&self) -> Option<&Tidings> {
        self.supervision.as_ref().map(|supervision| supervision.tidings())
    }

    /// Tells the launcher, where there is one, that `lost` is, so that it neither waits for that rank nor blames another one.
    pub(super) fn report_loss(&self, lost: Rank) {
        if let (Some(supervision), Some(Some(number))) = (&self.supervision, self.numbers.get(lost.index())) {
            supervision.report(DeviceName::Rank(number.rank), number.restarts);
        }
    }

    /// Tells the launcher, where there is one, by whom this rank has come to nothing although that one was not lost.
    fn report_blame(&self) {
        let Some(Blamed { rank, is_late }) = self.fabric.blamed() else { return };
        if let (Some(supervision), Some(Some(number))) = (&self.supervision, self.numbers.get(rank.index())) {
            supervision.blame(*number, is_late);
        }
    }

    /// Keeps the launcher's line that `old` has, in this new epoch, whose ranks the launcher knows by `numbers`.
    pub(super) fn succeed(&mut self, old: &Self, numbers: Vec<Option<Number>>) {
        self.numbers = numbers;
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
        if let Some(supervision) = &old.supervision {
            supervision.follow(self.fabric.world(), self.numbers.clone());
            self.supervision = Some(Arc::clone(supervision));
        }
    }
}

impl RegionOwner for Membership {
    fn take_back(&self, region: Region, departures: CellSlice<ProgressCell>) {
        self.workspace.retire(region, departures);
    }
}

impl Drop for Membership {
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
        match (&self.supervision, world.revocation().read()) {
            (_, Some(Revocation::PeerLost(lost))) if lost != rank => self.report_loss(lost),
            (Some(supervision), Some(Revocation::ProxyLost)) if has_service(world) => {
                supervision.report(DeviceName::Proxy, 0);
            }
            _ => {}
        }
    }
}
