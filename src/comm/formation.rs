//! The last step of a meeting: all are members of the new epoch, or none is.
//!
//! That all are ready the host tells them one after the other, and it may die in the midst of that. So they settle it among
//! themselves as well, by a word of the new epoch's control segment (see [`regroup`](crate::sync::regroup)): it says that they
//! begin together, or by whose loss or failure they do not, and all read the same.

use std::sync::Arc;
use std::time::Duration;

use crate::channel::World;
use crate::error::{Error, Result};
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, HostKernel};
use crate::sync::regroup::{Outcome, Round, RoundCell};
use crate::sync::{LifeStatus, ParkCell, Stop, WaitPolicy, Waiting, Watch, wait_until};

/// What all of them are in.
const MEETING: &str = "meeting the other ranks";

/// How long it may take until a rank is seen to be dead whose descriptors are gone.
pub(super) const DEATHS_SHOW: Duration = Duration::from_millis(500);

/// One rank's side of it.
#[derive(Debug)]
pub(super) struct Formation {
    world: Arc<World>,
    rank: Rank,
    policy: WaitPolicy,
    timeout: Duration,
    cell: CellRef<RoundCell>,
    park: CellRef<ParkCell>,
}

impl Formation {
    /// The side of `rank`, which is alive in `world` already.
    pub(super) fn new(world: &Arc<World>, rank: Rank, spinners: u32, timeout: Duration) -> Self {
        let (cell, park) = world.control().formation();
        let policy = WaitPolicy::for_spinners(spinners);
        Self { world: Arc::clone(world), rank, policy, timeout, cell, park }
    }

    /// Says that this rank is ready, and returns when all are.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::FailedElsewhere`], the same rank for all; [`Error::Timeout`].
    ///
    /// # Ordering
    /// What all did before they called it has happened before it returns.
    pub(super) fn complete(&self) -> Result<()> {
        let all = RankSet::all(self.world.n_ranks());
        let round = self.round();
        round.ready();
        let late = |stop| self.waiting(self.timeout).error(stop, MEETING, round.unready(all));
        match self.wait(self.timeout, || round.poll_start(all)) {
            Ok(outcome) => self.read(outcome),
            // The others may have begun at the last moment: then this one is with them.
            Err(stop) => match self.conclude(self.rank) {
                Outcome::Failed(rank) if rank == self.rank => Err(late(stop)),
                outcome => self.read(outcome),
            },
        }
    }

    /// Ends it for all, before this rank was ready, because of `error`. Returns what it has failed by: that, or what came before.
    pub(super) fn abandon(&self, error: Error) -> Error {
        let cause = match error {
            // All who have not been told so learn it here.
            Error::PeerLost { rank } => {
                self.conclude(rank);
                return error;
            }
            Error::Revoked { by: None } => self.dead_host().unwrap_or(self.rank),
            _ => self.rank,
        };
        match self.conclude(cause) {
            Outcome::Failed(rank) if rank != self.rank => {
                self.read(Outcome::Failed(rank)).err().unwrap_or(error)
            }
            _ => error,
        }
    }

    /// Who has died, where the host has hung up and was one of them.
    fn dead_host(&self) -> Option<Rank> {
        let all = RankSet::all(self.world.n_ranks());
        self.wait(DEATHS_SHOW, || all.iter().find(|rank| self.is_lost(*rank))).ok()
    }

    fn conclude(&self, cause: Rank) -> Outcome {
        self.round().conclude(Outcome::Failed(cause))
    }

    fn read(&self, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Together => Ok(()),
            Outcome::Failed(rank) => Err(self.blame(rank)),
            // Forged: nobody settles for it.
            Outcome::Repeated => Err(Error::Revoked { by: None }),
        }
    }

    /// The error of all for what `rank` has failed by: its death, or else an error of its own. Who fails leaves; who is dying may
    /// be known to others already, by another epoch.
    fn blame(&self, rank: Rank) -> Error {
        let gone = || matches!(self.status(rank), LifeStatus::Lost | LifeStatus::Left).then_some(());
        let _ = self.wait(DEATHS_SHOW, gone);
        if self.is_lost(rank) {
            Error::PeerLost { rank }
        } else {
            Error::FailedElsewhere { operation: MEETING, rank }
        }
    }

    fn status(&self, rank: Rank) -> LifeStatus {
        self.world.life(rank).status()
    }

    fn is_lost(&self, rank: Rank) -> bool {
        self.status(rank) == LifeStatus::Lost
    }

    fn round(&self) -> Round<'_, HostKernel, impl Fn(Rank) -> bool> {
        let gone = |rank| matches!(self.status(rank), LifeStatus::Lost | LifeStatus::Left);
        Round { cell: &self.cell, rank: self.rank, kernel: self.world.kernel(), park: &self.park, gone }
    }

    fn waiting(&self, timeout: Duration) -> Waiting<'_, HostKernel, NoWatch> {
        Waiting::new(self.world.kernel(), &NoWatch, self.policy, timeout)
    }

    fn wait<T>(&self, timeout: Duration, poll: impl FnMut() -> Option<T>) -> Result<T, Stop> {
        wait_until(&self.waiting(timeout), &self.park, poll)
    }
}

/// Watches nothing: who polls sees who is gone.
#[derive(Debug)]
pub(super) struct NoWatch;

impl Watch for NoWatch {
    fn check(&self) -> Option<Stop> {
        None
    }
}
