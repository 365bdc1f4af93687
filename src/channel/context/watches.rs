//! Watches of waits: over the epoch, and over the life of the peer that is awaited.

use std::time::Duration;

use super::RankContext;
use crate::channel::epoch::EpochMapping;
use crate::channel::wait_kind::WaitKind;
use crate::rank::{Rank, RankSet};
use crate::sync::wait::LONGEST_SLEEP;
use crate::sync::{LifeStatus, SleepWord, Stop, WaitingIn, Watch};

/// Watches the epoch, and the life of the peer that is awaited.
#[derive(Debug)]
pub(crate) struct PeerWatch<'a> {
    pub(super) mapped: &'a EpochMapping,
    pub(super) awaited: Option<Rank>,
}

impl Watch for PeerWatch<'_> {
    fn check(&self) -> Option<Stop> {
        if let Some(stop) = self.mapped.revocation().check() {
            return Some(stop);
        }
        let rank = self.awaited?;
        match self.mapped.life(rank).status() {
            LifeStatus::Lost | LifeStatus::Left => Some(Stop::PeerLost(rank)),
            LifeStatus::Absent | LifeStatus::Alive => None,
        }
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.mapped.revocation().bell())
    }
}

/// A wait of a rank that may turn out long: when it is given up, and what observers see of it.
pub(crate) trait LongWait {
    /// Returns the rank that waits.
    fn context(&self) -> &RankContext;

    /// Returns a reason to stop waiting, if there is one: see [`Watch::check`].
    fn stop(&self) -> Option<Stop>;

    /// Returns the wait as observers see it.
    fn seen(&self) -> WaitingIn;

    /// Returns how long the rank sleeps at most: see [`Watch::longest_sleep`].
    fn longest_sleep(&self, slept: u32) -> Duration {
        let _ = slept;
        LONGEST_SLEEP
    }

    /// Hears that the wait has turned out long, before observers do.
    fn turned_long(&self) {}
}

/// Watches over a wait: wakes with the epoch's bell, and shows the wait to observers.
#[derive(Debug)]
pub(crate) struct EpochWatch<W>(pub(crate) W);

impl<W: LongWait> Watch for EpochWatch<W> {
    fn check(&self) -> Option<Stop> {
        self.0.stop()
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.0.context().mapped.revocation().bell())
    }

    fn longest_sleep(&self, slept: u32) -> Duration {
        self.0.longest_sleep(slept)
    }

    fn begin(&self, since: Duration) {
        self.0.turned_long();
        self.0.context().activity().begin_wait(&self.0.seen(), since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        self.0.context().tell_end(&self.0.seen(), since, stop);
    }
}

/// A wait on a channel, for a peer or a proxy.
#[derive(Debug)]
pub(crate) struct ChannelWait<'a> {
    pub(super) context: &'a RankContext,
    pub(super) kind: WaitKind,
    pub(super) awaited: Option<Rank>,
}

impl LongWait for ChannelWait<'_> {
    fn context(&self) -> &RankContext {
        self.context
    }

    fn stop(&self) -> Option<Stop> {
        self.context.watch(self.awaited).check()
    }

    fn seen(&self) -> WaitingIn {
        WaitingIn {
            call: None,
            kind: self.kind as u64,
            step: 0,
            awaited: self.awaited.into_iter().collect::<RankSet>(),
        }
    }
}
