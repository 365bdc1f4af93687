//! What a rank keeps an eye on in a barrier: everybody who has not arrived.

use crate::channel::World;
use crate::collective::LEFT;
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::{BarrierCell, LifeStatus, ProgressCell, SleepWord, Stop, Watch};

/// Watches the epoch, and the lives of the ranks that are missing from generation `target`.
#[derive(Debug)]
pub(super) struct BarrierWatch<'a> {
    pub(super) world: &'a World,
    pub(super) cells: &'a CellSlice<BarrierCell>,
    pub(super) target: u64,
    /// Which ranks have left the communicator, where that can be told.
    pub(super) departures: Option<&'a [ProgressCell]>,
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
        (0..).zip(&**self.cells).find_map(gone)
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.world.revocation().bell())
    }
}
