//! What a rank keeps an eye on in a barrier: everybody who has not arrived.

use crate::channel::World;
use crate::collective::{Engine, LEFT, Summary};
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::{BarrierCell, LifeStatus, ProgressCell, Revocation, SleepWord, Stop, Watch};

/// Watches the epoch, and the lives of the ranks that are missing from generation `target`.
#[derive(Debug)]
pub(super) struct BarrierWatch<'a> {
    pub(super) rank: Rank,
    pub(super) world: &'a World,
    pub(super) cells: &'a CellSlice<BarrierCell>,
    pub(super) target: u64,
    /// Which ranks have left the communicator, where that can be told.
    pub(super) departures: Option<&'a [ProgressCell]>,
    /// What tells whether ranks are in an operation instead.
    pub(super) engine: Option<&'a Engine>,
}

impl BarrierWatch<'_> {
    /// A rank that is in an operation which this one has not come to, and what it does there.
    pub(super) fn astray(&self) -> Option<(Rank, Summary)> {
        // The cell is read after the post: who arrived and went on is not astray.
        self.engine?.ahead().find(|(rank, _)| !self.cells[rank.index()].has_reached(self.target))
    }
}

impl Watch for BarrierWatch<'_> {
    fn check(&self) -> Option<Stop> {
        if let Some(stop) = self.world.revocation().check() {
            return Some(stop);
        }
        let gone = |(rank, cell): (u32, &BarrierCell)| {
            let rank = Rank::known(rank);
            let left = self.departures.is_some_and(|words| words[rank.index()].has_reached(LEFT));
            let gone = left || matches!(self.world.life(rank).status(), LifeStatus::Lost | LifeStatus::Left);
            // The cell is read after those words: who arrived and then left is not missed.
            (gone && !cell.has_reached(self.target)).then_some(Stop::PeerLost(rank))
        };
        (0..).zip(&**self.cells).find_map(gone).or_else(|| {
            self.astray()?;
            self.world.control().revoke(self.world.kernel(), Revocation::Aborted(Some(self.rank)));
            self.world.revocation().check()
        })
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.world.revocation().bell())
    }
}
