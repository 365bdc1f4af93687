//! The last step of a meeting: all are members of the new epoch, or none is.
//!
//! That all are ready the host tells them one after the other, and it may die in the midst of that. So they settle it among
//! themselves as well, by a word of the new epoch's control segment (see [`regroup`](crate::sync::regroup)): it says that they
//! begin together, or by whose loss or failure they do not, or that it was called off, and all read the same.

use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::WaitGuard;
use crate::channel::World;
use crate::error::{Error, Result};
use crate::logs::step;
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, HostKernel};
use crate::sync::regroup::{Round, RoundCell, RoundOutcome};
use crate::sync::{LifeStatus, ParkCell, Stop, WaitPolicy, Waiting, Watch, wait_until};

/// What all of them are in.
const MEETING: &str = "meeting the other ranks";

/// One rank's side of it.
#[derive(Debug)]
pub(super) struct EpochCommit {
    world: Arc<World>,
    rank: Rank,
    policy: WaitPolicy,
    timeout: Duration,
    /// What ends its wait, besides.
    guard: Option<WaitGuard>,
    cell: CellRef<RoundCell>,
    park: CellRef<ParkCell>,
}

impl EpochCommit {
    /// The side of `rank`, which is alive in `world` already.
    pub(super) fn new(
        world: &Arc<World>,
        rank: Rank,
        spinners: u32,
        timeout: Duration,
        guard: Option<WaitGuard>,
    ) -> Self {
        let (cell, park) = world.control().formation();
        let policy = WaitPolicy::for_spinners(spinners);
        Self { world: Arc::clone(world), rank, policy, timeout, guard, cell, park }
    }

    /// Says that this rank is ready, and returns when all are.
    ///
    /// # Errors
    /// [`Error::PeerLost`] or [`Error::FailedElsewhere`], the same rank for all; [`Error::Timeout`]; [`Error::Revoked`] by nobody when the
    /// meeting was called off, or its host has died.
    ///
    /// # Ordering
    /// What all did before they called it has happened before it returns.
    pub(super) fn complete(&self) -> Result<()> {
        let all = RankSet::all(self.world.n_ranks());
        let round = self.round();
        step("about to be ready");
        round.ready();
        step("ready");
        let watch = EndWatch(self.guard.as_ref());
        let waiting = Waiting::new(self.world.kernel(), &watch, self.policy, self.timeout);
        let settled = wait_until(&waiting, &self.park, || round.poll_start(all));
        step("the meeting is settled");
        match settled {
            Ok(outcome) => self.read(outcome),
            Err(stop) => {
                // A meeting that was called off has failed by nobody who is here.
                let is_cancelled = matches!(stop, Stop::Revoked(_));
                let cause =
                    if is_cancelled { RoundOutcome::Repeated } else { RoundOutcome::Failed(self.rank) };
                // The others may have begun at the last moment: then this one is with them.
                match round.conclude(cause) {
                    stands if stands == cause => Err(waiting.error(stop, MEETING, round.unready(all))),
                    stands => self.read(stands),
                }
            }
        }
    }

    /// Ends it for all, before this rank was ready, because of `error`. Returns what it has failed by: that, or what came before.
    pub(super) fn abandon(&self, error: Error) -> Error {
        let (cause, error) = match (error, self.dead_host()) {
            (Error::PeerLost { rank }, _) | (Error::Revoked { by: None }, Some(rank)) => {
                (RoundOutcome::Lost(rank), Error::PeerLost { rank })
            }
            (error @ Error::Revoked { by: None }, None) => (RoundOutcome::Repeated, error),
            (error, _) => (RoundOutcome::Failed(self.rank), error),
        };
        match self.round().conclude(cause) {
            stands if stands == cause => error,
            stands => self.read(stands).err().unwrap_or(error),
        }
    }

    /// Who has died, which may be why the host has hung up: a death shows before its sockets are closed.
    fn dead_host(&self) -> Option<Rank> {
        RankSet::all(self.world.n_ranks()).iter().find(|rank| self.is_lost(*rank))
    }

    fn read(&self, outcome: RoundOutcome) -> Result<()> {
        match outcome {
            RoundOutcome::Together => Ok(()),
            RoundOutcome::Lost(rank) => Err(Error::PeerLost { rank }),
            RoundOutcome::Failed(rank) => Err(Error::FailedElsewhere { operation: MEETING, rank }),
            // The host has died, and was none of them; or the meeting was called off.
            RoundOutcome::Repeated | RoundOutcome::Vain => Err(Error::Revoked { by: None }),
        }
    }

    fn is_lost(&self, rank: Rank) -> bool {
        self.world.life(rank).status() == LifeStatus::Lost
    }

    fn round(&self) -> Round<'_, HostKernel, impl Fn(Rank) -> bool> {
        let gone = |rank| matches!(self.world.life(rank).status(), LifeStatus::Lost | LifeStatus::Left);
        Round { cell: &self.cell, rank: self.rank, kernel: self.world.kernel(), park: &self.park, gone }
    }
}

/// Watches whether the meeting was called off: who polls sees who is gone.
#[derive(Debug)]
struct EndWatch<'a>(Option<&'a WaitGuard>);

impl Watch for EndWatch<'_> {
    fn check(&self) -> Option<Stop> {
        self.0.is_some_and(WaitGuard::is_cancelled).then_some(Stop::Revoked(None))
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
