//! What a wait keeps an eye on: the epoch, and the life of the peer that is awaited.

use std::time::Duration;

use super::RankContext;
use crate::channel::epoch::EpochMapping;
use crate::channel::occupation;
use crate::rank::{Rank, RankSet};
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

/// The same for a wait on a channel, of which it tells whoever looks on.
#[derive(Debug)]
pub(crate) struct ChannelWatch<'a> {
    pub(super) context: &'a RankContext,
    pub(super) operation: &'static str,
    pub(super) awaited: Option<Rank>,
}

impl Watch for ChannelWatch<'_> {
    fn check(&self) -> Option<Stop> {
        self.context.watch(self.awaited).check()
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.context.mapped.revocation().bell())
    }

    fn begin(&self, since: Duration) {
        self.context.activity().begin_wait(&self.wait(), since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        self.context.tell_end(&self.wait(), since, stop);
    }
}

impl ChannelWatch<'_> {
    fn wait(&self) -> WaitingIn {
        WaitingIn {
            call: None,
            kind: occupation::code_of(self.operation),
            step: 0,
            awaited: self.awaited.into_iter().collect::<RankSet>().bits(),
        }
    }
}
