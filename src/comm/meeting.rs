//! Where all ranks of a job meet: its barrier, and the comparison of what they are about to do.

use std::sync::Arc;

use super::watch::BarrierWatch;
use crate::channel::{Fabric, World};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice};
use crate::sync::{
    AGREEMENT_WORDS, Agreement, AgreementCell, Barrier, BarrierCell, ParkCell, Revocation, Waiting, Watch,
};

/// Which collective call a rank is in, as it tells the others.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(super) enum Call {
    /// One that compares nothing.
    Barrier = 0,
    Alloc = 1,
    Free = 2,
}

/// One rank's side of the meeting.
#[derive(Debug)]
pub(super) struct Meeting {
    fabric: Arc<Fabric>,
    barrier: Barrier<CellSlice<BarrierCell>, CellRef<ParkCell>>,
    agreement: Agreement<CellSlice<AgreementCell>>,
}

impl Meeting {
    pub(super) fn new(fabric: &Arc<Fabric>) -> Self {
        let world: &World = fabric.world();
        let (cells, park) = world.control().barrier();
        let member = fabric.rank().index();
        Self {
            barrier: Barrier::new(cells, park, member, 0),
            agreement: Agreement::new(world.control().agreement(), member),
            fabric: Arc::clone(fabric),
        }
    }

    /// Compares the arguments of a collective call; the last word says whether this rank has failed already.
    ///
    /// After a barrier that timed out there is no agreeing any more. A rank that gives up waiting has proposed already, and whoever comes later would take it for agreed; so
    /// giving up ends the epoch.
    pub(super) fn agree(&mut self, operation: &'static str, call: Call, arguments: [u64; 4]) -> Result<()> {
        const NAMES: [&str; 4] =
            ["the collective call", "the first argument", "the second argument", "the offset"];
        const FAILED: usize = 4;
        const NOT_COLLECTIVE: [u64; AGREEMENT_WORDS] = [Call::Barrier as u64; AGREEMENT_WORDS];
        if self.barrier.has_arrived() {
            // A barrier that timed out is still open: who passes it takes this rank's words for those of the barrier.
            self.revoke();
            return Err(Error::Revoked { by: Some(self.fabric.rank()) });
        }
        let mut mine = [0; AGREEMENT_WORDS];
        mine[0] = call as u64;
        mine[1..].copy_from_slice(&arguments);
        self.agreement.propose(self.barrier.generation(), mine);
        self.meet(operation).inspect_err(|_| self.revoke())?;
        let watch = self.fabric.watch(None);
        if let Some(stop) = watch.check() {
            return Err(self.fabric.waiting(&watch).error(self.fabric.settle(stop), operation, None));
        }
        let theirs = |rank: Rank| self.agreement.theirs(rank.index()).unwrap_or(NOT_COLLECTIVE);
        let others: Vec<_> =
            (0..self.fabric.world().n_ranks()).map(Rank::known).map(|rank| (rank, theirs(rank))).collect();
        for (rank, theirs) in &others {
            let failed = mine[FAILED] != 0 || theirs[FAILED] != 0;
            // Where an allocation failed, there is no offset to compare.
            let compared = if failed { 3 } else { 4 };
            let differs = (0..compared).find(|&word| mine[word] != theirs[word]);
            if let Some(word) = differs {
                let (what, mine, theirs) = (NAMES[word], mine[word], theirs[word]);
                return Err(Error::Mismatch { what, mine, rank: *rank, theirs });
            }
        }
        match others.into_iter().find(|(_, theirs)| theirs[FAILED] != 0) {
            Some((rank, _)) => Err(Error::FailedElsewhere { operation, rank }),
            None => Ok(()),
        }
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming a rank that is missing, [`Error::PeerLost`], [`Error::Revoked`].
    #[inline]
    pub(super) fn meet(&mut self, operation: &'static str) -> Result<()> {
        self.barrier.arrive(self.fabric.kernel());
        if self.barrier.poll() { Ok(()) } else { self.meet_slowly(operation) }
    }

    fn meet_slowly(&mut self, operation: &'static str) -> Result<()> {
        let fabric = &self.fabric;
        let cells = fabric.world().control().barrier().0;
        let watch = BarrierWatch {
            world: fabric.world(),
            cells: &cells,
            target: self.barrier.generation().wrapping_add(1),
        };
        let waiting = Waiting::new(fabric.kernel(), &watch, fabric.policy(), fabric.timeout());
        self.barrier.wait(&waiting).map_err(|stop| {
            let missing = self.barrier.missing().and_then(|rank| u32::try_from(rank).ok()).map(Rank::known);
            waiting.error(fabric.settle(stop), operation, missing)
        })
    }

    fn revoke(&self) {
        let reason = Revocation::Aborted(Some(self.fabric.rank()));
        self.fabric.world().control().revoke(self.fabric.kernel(), reason);
    }
}
