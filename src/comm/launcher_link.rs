//! The line to the launcher, which a rank keeps from epoch to epoch.
//!
//! The launcher numbers ranks as the first epoch does. What it reports, and its own end, ends every epoch that the rank is in
//! and that concerns it; also one that the rank comes into only afterwards. It tells each thing once, and may tell it while the ranks
//! are on their way from one epoch into the next: so what was told is kept, and said again to each epoch that is followed later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::unique_id::UniqueId;
use crate::bootstrap::{ControlLink, LinkEvent, LinkWatch, MemberHeartbeat};
use crate::channel::EpochMapping;
use crate::epoch_id::FIRST_EPOCH;
use crate::error::{DeviceName, Result};
use crate::logs::EPOCH;
use crate::rank::{Rank, RankSet};
use crate::sync::{LifeStatus, Revocation};

/// As what the launcher knows a rank that it has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    pub(super) rank: Rank,
    /// How often it has been started again.
    pub(super) restarts: u32,
}

impl Incarnation {
    /// Those of a job that has just been started.
    pub(super) fn first(n_ranks: u32) -> Vec<Option<Self>> {
        (0..n_ranks).map(|rank| Some(Self { rank: Rank::known(rank), restarts: 0 })).collect()
    }
}

/// A line to the launcher that is listened to.
#[derive(Debug)]
pub(super) struct LauncherLink {
    // Dropped before the link says good-bye.
    _watch: LinkWatch,
    link: ControlLink,
    /// Whether the launcher starts ranks again that die.
    pub(super) restarting: bool,
    launcher_state: LauncherState,
}

/// What is known of the launcher, for whoever waits for others and would wait in vain.
#[derive(Clone, Debug)]
pub(super) struct LauncherState(Arc<Mutex<LauncherReports>>);

impl LauncherState {
    /// Whether the launcher is gone.
    pub(super) fn is_orphaned(&self) -> bool {
        lock(&self.0).events.contains(&LinkEvent::LauncherGone)
    }

    /// Whether a rank that is lost will not be started again.
    pub(super) fn restarts_exhausted(&self) -> bool {
        lock(&self.0).events.iter().any(|event| matches!(event, LinkEvent::NotRestarted(_)))
    }
}

/// What the launcher has told, and whom it concerns.
#[derive(Debug, Default)]
struct LauncherReports {
    /// Each thing once. No more than there were processes, and the launcher's own end.
    events: Vec<LinkEvent>,
    followed: Vec<FollowedEpoch>,
}

/// An epoch that ends with what the launcher reports.
#[derive(Debug)]
struct FollowedEpoch {
    mapped: Weak<EpochMapping>,
    /// The launcher's number of each of its ranks that the launcher has started.
    incarnations: Vec<Option<Incarnation>>,
    /// Whether the service process may be its proxy. Those of all later communicators are threads.
    served: bool,
}

impl LauncherLink {
    /// Listens to `link` in the epoch of `mapped`, whose ranks the launcher knows by `numbers`, and beats by `pulse`.
    ///
    /// # Errors
    /// Those of [`ControlLink::watch`].
    pub(super) fn begin(
        link: ControlLink,
        pulse: Option<MemberHeartbeat>,
        restarting: bool,
        mapped: &Arc<EpochMapping>,
        incarnations: Vec<Option<Incarnation>>,
    ) -> Result<Self> {
        let followed =
            vec![FollowedEpoch { mapped: Arc::downgrade(mapped), incarnations, served: has_service(mapped) }];
        let launcher_state =
            LauncherState(Arc::new(Mutex::new(LauncherReports { events: Vec::new(), followed })));
        let listening = launcher_state.clone();
        let watch = link.watch(pulse, move |event| lock(&listening.0).hear(event))?;
        Ok(Self { _watch: watch, link, restarting, launcher_state })
    }

    /// Follows the epoch of `mapped`, too, from now on, whose ranks the launcher knows by `numbers`. What the launcher has told before
    /// ends that epoch, too, as far as it concerns it.
    pub(super) fn follow(&self, mapped: &Arc<EpochMapping>, incarnations: Vec<Option<Incarnation>>) {
        lock(&self.launcher_state.0).follow(FollowedEpoch {
            mapped: Arc::downgrade(mapped),
            incarnations,
            served: false,
        });
    }

    /// What is known of the launcher, from now on, too.
    pub(super) fn launcher_state(&self) -> &LauncherState {
        &self.launcher_state
    }

    /// Tells the launcher that a device is lost, by the number that the launcher has for it.
    pub(super) fn report(&self, lost: DeviceName, restarts: u32) {
        self.link.report_loss(lost, restarts);
    }

    /// Tells the launcher why this rank fails, if it does, where that is a rank that lives or has left.
    pub(super) fn blame(&self, blamed: Incarnation, is_late: bool) {
        self.link.blame(blamed.rank, blamed.restarts, is_late);
    }

    /// How many ranks the launcher has started.
    pub(super) fn n_ranks(&self) -> u32 {
        self.link.n_ranks()
    }

    /// Has the launcher tell `ranks` that were started again where the others are to be met.
    pub(super) fn invite(&self, id: &UniqueId, ranks: RankSet) {
        self.link.invite(id.words(), ranks.bits());
    }
}

impl LauncherReports {
    fn hear(&mut self, event: LinkEvent) {
        if !self.events.contains(&event) {
            self.events.push(event);
        }
        self.followed.iter().for_each(|epoch| epoch.hear(event));
    }

    /// Nothing is told between what is said again here and the next event: both happen under one lock.
    fn follow(&mut self, epoch: FollowedEpoch) {
        self.events.iter().for_each(|event| epoch.hear(*event));
        self.followed.retain(|epoch| epoch.mapped.strong_count() > 0);
        self.followed.push(epoch);
    }
}

impl FollowedEpoch {
    fn hear(&self, event: LinkEvent) {
        let Some(mapped) = self.mapped.upgrade() else { return };
        let reason = match event {
            LinkEvent::Lost { device: DeviceName::Rank(rank), restarts, hangs } => {
                // One that was left behind before concerns nobody here, nor does one that is back.
                let lost = Some(Incarnation { rank, restarts });
                let Some(rank) = self.incarnations.iter().position(|number| *number == lost) else { return };
                let rank = Rank::known(u32::try_from(rank).expect("at most 64 ranks"));
                // The system says of a dead rank that it is; of one that hangs somebody has to.
                if hangs && mapped.life(rank).status() == LifeStatus::Alive {
                    mapped.life(rank).mark_lost(mapped.kernel());
                }
                Revocation::PeerLost(rank)
            }
            // In later epochs proxies are threads: the service process, which may have hung for long, is nobody's there.
            LinkEvent::Lost { device: DeviceName::Proxy, .. } if !self.served => return,
            LinkEvent::Lost { device: DeviceName::Proxy, .. } => Revocation::ProxyLost,
            // Its loss has ended the epoch.
            LinkEvent::NotRestarted(_) => return,
            LinkEvent::LauncherGone => Revocation::Aborted(None),
        };
        tracing::warn!(target: EPOCH, epoch = mapped.epoch_id().epoch, ?reason, "the launcher has ended the epoch");
        mapped.control().revoke(mapped.kernel(), reason);
    }
}

/// Whether the service process may be the proxy of this epoch.
pub(super) fn has_service(mapped: &EpochMapping) -> bool {
    mapped.epoch_id().epoch == FIRST_EPOCH
}

fn lock(heard: &Mutex<LauncherReports>) -> MutexGuard<'_, LauncherReports> {
    // One thing is added as a whole: a panic leaves nothing half done.
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
