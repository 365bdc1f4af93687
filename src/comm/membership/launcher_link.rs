//! The link to the launcher, which a rank keeps from epoch to epoch.
//!
//! The launcher numbers ranks as the first epoch does. A report of the launcher, and its own end,
//! ends every epoch of the rank that it concerns. The launcher reports each event once, perhaps
//! while ranks are between two epochs. So reports are kept, and repeated to each epoch that is
//! followed later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::bootstrap::{ControlLink, LinkEvent, LinkWatch, MemberHeartbeat};
use crate::channel::EpochMapping;
use crate::epoch_id::FIRST_EPOCH;
use crate::error::{DeviceName, Result};
use crate::logs::EPOCH;
use crate::rank::Rank;
use crate::sync::{LifeStatus, Revocation};

/// The name of a process for the launcher: its rank, and how often that rank was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) struct Incarnation {
    pub(in crate::comm) rank: Rank,
    /// How often it was restarted.
    pub(in crate::comm) restarts: u32,
}

impl Incarnation {
    /// Returns those of a job that has just been started.
    pub(in crate::comm) fn first(n_ranks: u32) -> Vec<Option<Self>> {
        (0..n_ranks).map(|rank| Some(Self { rank: Rank::known(rank), restarts: 0 })).collect()
    }
}

/// A line to the launcher that is listened to.
#[derive(Debug)]
pub(in crate::comm) struct LauncherLink {
    // Dropped before the link says good-bye.
    _watch: LinkWatch,
    pub(in crate::comm) link: ControlLink,
    /// Whether the launcher restarts ranks that die.
    pub(in crate::comm) restarting: bool,
    /// The state of the launcher, kept up to date.
    pub(in crate::comm) state: LauncherState,
}

/// The state of the launcher, so that nobody waits for others in vain.
#[derive(Clone, Debug)]
pub(in crate::comm) struct LauncherState(Arc<Mutex<LauncherReports>>);

impl LauncherState {
    /// Returns whether the launcher is gone.
    pub(in crate::comm) fn is_orphaned(&self) -> bool {
        lock(&self.0).events.contains(&LinkEvent::LauncherGone)
    }

    /// Returns whether a lost rank will not be restarted.
    pub(in crate::comm) fn restarts_exhausted(&self) -> bool {
        lock(&self.0).events.iter().any(|event| matches!(event, LinkEvent::NotRestarted(_)))
    }
}

/// The reports of the launcher, and the epochs that they concern.
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
    /// The launcher's name for each of its ranks that the launcher has started.
    incarnations: Vec<Option<Incarnation>>,
    /// Whether the service process may be its proxy. All later communicators have proxy threads.
    served: bool,
}

impl LauncherLink {
    /// Listens to `link` in the epoch of `mapped`, whose ranks the launcher knows by
    /// `incarnations`, and beats by `pulse`.
    ///
    /// # Errors
    /// Fails as [`ControlLink::watch`] does.
    pub(in crate::comm) fn begin(
        link: ControlLink,
        heartbeat: Option<MemberHeartbeat>,
        restarting: bool,
        mapped: &Arc<EpochMapping>,
        incarnations: Vec<Option<Incarnation>>,
    ) -> Result<Self> {
        let followed =
            vec![FollowedEpoch { mapped: Arc::downgrade(mapped), incarnations, served: has_service(mapped) }];
        let state = LauncherState(Arc::new(Mutex::new(LauncherReports { events: Vec::new(), followed })));
        let listening = state.clone();
        let watch = link.watch(heartbeat, move |event| lock(&listening.0).receive(event))?;
        Ok(Self { _watch: watch, link, restarting, state })
    }

    /// Follows the epoch of `mapped` from now on, too, whose ranks the launcher knows by
    /// `incarnations`. Earlier reports end that epoch as far as they concern it.
    pub(super) fn follow(&self, mapped: &Arc<EpochMapping>, incarnations: Vec<Option<Incarnation>>) {
        let epoch = FollowedEpoch { mapped: Arc::downgrade(mapped), incarnations, served: false };
        // Both happen under one lock, so no event comes in between.
        let mut reports = lock(&self.state.0);
        reports.events.iter().for_each(|event| epoch.receive(*event));
        reports.followed.retain(|epoch| epoch.mapped.strong_count() > 0);
        reports.followed.push(epoch);
    }
}

impl LauncherReports {
    fn receive(&mut self, event: LinkEvent) {
        if !self.events.contains(&event) {
            self.events.push(event);
        }
        self.followed.iter().for_each(|epoch| epoch.receive(event));
    }
}

impl FollowedEpoch {
    fn receive(&self, event: LinkEvent) {
        let Some(mapped) = self.mapped.upgrade() else { return };
        let reason = match event {
            LinkEvent::Lost { device: DeviceName::Rank(rank), restarts, hangs } => {
                // A rank that was left behind before, or is back, concerns nobody here.
                let lost = Some(Incarnation { rank, restarts });
                let Some(rank) = self.incarnations.iter().position(|number| *number == lost) else { return };
                let rank = Rank::known(u32::try_from(rank).expect("at most 256 ranks"));
                // The system declares a dead rank lost. For one that hangs, this rank does.
                if hangs && mapped.life(rank).status() == LifeStatus::Alive {
                    mapped.life(rank).mark_lost(mapped.kernel());
                }
                Revocation::PeerLost(rank)
            }
            // In later epochs proxies are threads, and the service process, which may have hung for
            // long, does not matter.
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

/// Returns whether the service process may be the proxy of this epoch.
pub(super) fn has_service(mapped: &EpochMapping) -> bool {
    mapped.epoch_id().epoch == FIRST_EPOCH
}

fn lock(reports: &Mutex<LauncherReports>) -> MutexGuard<'_, LauncherReports> {
    // One thing is added as a whole: a panic leaves nothing half done.
    reports.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use bytemuck::bytes_of;

    use super::*;
    use crate::Communicator;
    use crate::bootstrap::message::{ControlMessage, Lost, PROXY};
    use crate::bootstrap::{Options, pair, send};

    const JOB: u64 = 7;

    /// A job of three in two epochs, of which this process is a rank. Reports are read in the first
    /// epoch.
    struct Job {
        /// The launcher's end of the link.
        launcher_end: Option<OwnedFd>,
        launcher: LauncherLink,
        /// The communicators of all ranks, of which none has left.
        first: Vec<Communicator>,
        next: Vec<Communicator>,
    }

    impl Job {
        fn begin() -> Self {
            let (launcher_end, own) = pair().unwrap();
            let (first, next) = (communicators(3), communicators(2));
            let link = ControlLink::new(own, JOB, 3);
            let launcher =
                LauncherLink::begin(link, None, true, mapped(&first), Incarnation::first(3)).unwrap();
            Self { launcher_end: Some(launcher_end), launcher, first, next }
        }

        fn tell(&self, member: u32, restarts: u32, hangs: bool) {
            let lost = Lost { header: Lost::header(JOB), member, restarts, hangs: hangs.into(), reserved: 0 };
            send(self.launcher_end.as_ref().unwrap().as_fd(), bytes_of(&lost), &[]).unwrap();
        }

        /// Waits until the first epoch has ended, and returns why.
        fn first_ends(&self) -> Revocation {
            loop {
                match mapped(&self.first).revocation().read() {
                    Some(reason) => return reason,
                    None => std::thread::yield_now(),
                }
            }
        }

        /// Goes on into the next epoch, whose ranks the launcher knows by these names. Returns why
        /// it has ended, if it has.
        fn goes_on(&self, incarnations: [Option<Incarnation>; 2]) -> Option<Revocation> {
            let next = mapped(&self.next);
            self.launcher.follow(next, incarnations.to_vec());
            next.revocation().read()
        }
    }

    fn communicators(n_ranks: u32) -> Vec<Communicator> {
        let options = Options { heap_len: 4 << 20, ..Options::default() };
        Communicator::init_all_with(n_ranks, &options).unwrap()
    }

    fn mapped(comms: &[Communicator]) -> &Arc<EpochMapping> {
        comms[0].context().mapped()
    }

    fn number(rank: u32, restarts: u32) -> Option<Incarnation> {
        Some(Incarnation { rank: Rank::known(rank), restarts })
    }

    #[test]
    fn a_launcher_that_dies_between_two_epochs_has_ended_the_next_one_as_it_begins() {
        let mut job = Job::begin();
        drop(job.launcher_end.take());
        assert_eq!(job.first_ends(), Revocation::Aborted(None));
        assert_eq!(job.goes_on([number(0, 0), number(1, 0)]), Some(Revocation::Aborted(None)));
    }

    #[test]
    fn a_rank_that_is_found_to_hang_between_two_epochs_is_lost_to_the_next_one_as_it_begins() {
        let job = Job::begin();
        job.tell(2, 0, true);
        assert_eq!(job.first_ends(), Revocation::PeerLost(Rank::known(2)));
        let lost = Rank::known(1);
        assert_eq!(job.goes_on([number(0, 0), number(2, 0)]), Some(Revocation::PeerLost(lost)));
        assert_eq!(mapped(&job.next).life(lost).status(), LifeStatus::Lost);
    }

    #[test]
    fn an_epoch_of_others_than_those_who_were_lost_before_goes_on() {
        let job = Job::begin();
        job.tell(2, 0, false);
        job.tell(PROXY, 0, false);
        // Heard after both of them.
        job.tell(0, 0, true);
        assert_eq!(job.first_ends(), Revocation::PeerLost(Rank::known(2)));
        while mapped(&job.first).life(Rank::known(0)).status() != LifeStatus::Lost {
            std::thread::yield_now();
        }
        assert_eq!(job.goes_on([number(1, 0), number(2, 1)]), None);
    }
}
