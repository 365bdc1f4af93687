//! A rank's membership in a job: what all its communicators stand on, and what ends with the last of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::attach::{OwnSegment, Supervision};
use super::ports::Ports;
use super::workspace::Workspace;
use crate::channel::Fabric;
use crate::collective::Landlord;
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
    pub(super) supervision: Option<Supervision>,
    pub(super) _own: Option<OwnSegment>,
}

impl Membership {
    pub(super) fn registrar(&self) -> MutexGuard<'_, MemoryRegistrar> {
        // A panic cannot leave the table half changed: each step checks first and changes last.
        self.registrar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Membership {
    /// Tells the launcher, where there is one, whom the others go on without.
    pub(super) fn report_losses(&self, lost: &[Rank]) {
        if let Some(Supervision { link, .. }) = &self.supervision {
            lost.iter().for_each(|lost| link.report_loss(DeviceName::Rank(*lost)));
        }
    }
}

impl Landlord for Membership {
    fn take_back(&self, region: Region, departures: CellSlice<ProgressCell>) {
        self.workspace.retire(region, departures);
    }
}

impl Drop for Membership {
    /// A rank that leaves because it panics counts as lost; one that leaves because another was lost says so.
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
        if let (Some(Supervision { link, .. }), Some(reason)) = (&self.supervision, world.revocation().read())
        {
            match reason {
                Revocation::PeerLost(lost) if lost != rank => {
                    link.report_loss(DeviceName::Rank(lost));
                }
                Revocation::ProxyLost => link.report_loss(DeviceName::Proxy),
                _ => {}
            }
        }
    }
}
