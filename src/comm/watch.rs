//! What a rank keeps an eye on in a barrier: everybody who has not arrived.

use std::time::Duration;

use crate::channel::{Fabric, PREPARING, occupation_code};
use crate::collective::{CallSignature, Engine, LEFT, Operation, call_met};
use crate::rank::{Rank, RankSet};
use crate::shm::CellSlice;
use crate::sync::{BarrierCell, LifeStatus, ProgressCell, SleepWord, Stop, WaitingIn, Watch};

/// Watches the epoch, and the lives of the ranks that are missing from generation `target`.
#[derive(Debug)]
pub(super) struct BarrierWatch<'a> {
    pub(super) fabric: &'a Fabric,
    /// What this rank is in.
    pub(super) operation: Operation,
    /// Which of the caller's operations that is; `None` within one of which this rank has told.
    pub(super) number: Option<u64>,
    pub(super) cells: &'a CellSlice<BarrierCell>,
    pub(super) target: u64,
    /// Which ranks have left the communicator, where that can be told.
    pub(super) departures: Option<&'a [ProgressCell]>,
    /// What tells whether ranks are in an operation instead.
    pub(super) engine: Option<&'a Engine>,
}

impl BarrierWatch<'_> {
    /// A rank that has arrived for something else than this one, and what that is.
    ///
    /// Where `mine` tells that this rank is to hear what others propose, and theirs that they only meet, or the other way
    /// round, nobody passes; so all find each other here, and what they find stays.
    pub(super) fn beside(&self) -> Option<(Rank, CallSignature)> {
        let mine = self.cells[self.fabric.rank().index()].purpose(self.target);
        let differs =
            |cell: &BarrierCell| cell.purpose(self.target).is_some_and(|theirs| Some(theirs) != mine);
        let (rank, _) = Rank::of_each(self.cells.iter()).find(|(_, cell)| differs(cell))?;
        let proposals = self.fabric.world().control().agreement();
        Some((rank, call_met(&proposals[rank.index()], self.target.wrapping_sub(1))))
    }

    /// A rank that is in an operation which this one has not come to, and what it does there.
    pub(super) fn astray(&self) -> Option<(Rank, CallSignature)> {
        // The cell is read after the post: who arrived and went on is not astray.
        self.engine?.gone_on().find(|(rank, _)| !self.cells[rank.index()].has_reached(self.target))
    }

    /// The wait, as this rank tells of it: for all who have not arrived.
    fn wait(&self) -> WaitingIn {
        let ranks = Rank::of_each(self.cells.iter());
        let missing = ranks.filter(|(_, cell)| !cell.has_reached(self.target)).map(|(rank, _)| rank);
        WaitingIn {
            call: self.number.map(|number| (CallSignature::new(self.operation).words(), number)),
            kind: if self.number.is_none() { occupation_code(PREPARING) } else { 0 },
            step: 0,
            awaited: missing.collect::<RankSet>().bits(),
        }
    }
}

impl Watch for BarrierWatch<'_> {
    fn check(&self) -> Option<Stop> {
        let world = self.fabric.world();
        if let Some(stop) = world.revocation().check() {
            return Some(stop);
        }
        let gone = |(rank, cell): (u32, &BarrierCell)| {
            let rank = Rank::known(rank);
            let left = self.departures.is_some_and(|words| words[rank.index()].has_reached(LEFT));
            let gone = left || matches!(world.life(rank).status(), LifeStatus::Lost | LifeStatus::Left);
            // The cell is read after those words: who arrived and then left is not missed.
            (gone && !cell.has_reached(self.target)).then_some(Stop::PeerLost(rank))
        };
        (0..).zip(&**self.cells).find_map(gone).or_else(|| {
            let (rank, theirs) = self.beside().or_else(|| self.astray())?;
            if let Some(engine) = self.engine {
                engine.end_by_mismatch(rank, CallSignature::new(self.operation), theirs);
            }
            self.fabric.abort();
            world.revocation().check()
        })
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.fabric.world().revocation().bell())
    }

    fn begin(&self, since: Duration) {
        self.fabric.activity().begin_wait(&self.wait(), since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        self.fabric.tell_end(&self.wait(), since, stop);
    }
}
