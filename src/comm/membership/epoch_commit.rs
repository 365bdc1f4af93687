//! The last step of a meeting: all ranks become members of the new epoch, or none does.
//!
//! The host tells the ranks one after the other that all are ready, and may die in between. So the
//! ranks also decide it among themselves, by a word of the new epoch's control segment (see
//! [`regroup`](crate::sync::regroup)). The word says that they begin together, or whose loss or
//! failure prevents that, or that it was cancelled. All ranks read the same.

use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::WaitGuard;
use crate::channel::EpochMapping;
use crate::error::{Error, Result};
use crate::logs::step;
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, HostKernel};
use crate::sync::regroup::{Round, RoundCell, RoundOutcome};
use crate::sync::{LifeStatus, ParkCell, Stop, WaitPolicy, Waiting, Watch, wait_until};

/// The operation that errors name.
const MEETING: &str = "meeting the other ranks";

/// One rank's side of it.
#[derive(Debug)]
pub(super) struct EpochCommit {
    mapped: Arc<EpochMapping>,
    rank: Rank,
    policy: WaitPolicy,
    timeout: Duration,
    /// Ends its wait, besides.
    guard: Option<WaitGuard>,
    cell: CellRef<RoundCell>,
    park: CellRef<ParkCell>,
}

impl EpochCommit {
    /// Makes the side of `rank`, which is alive in `mapped` already.
    pub(super) fn new(
        mapped: &Arc<EpochMapping>,
        rank: Rank,
        spinners: u32,
        timeout: Duration,
        guard: Option<WaitGuard>,
    ) -> Self {
        let (cell, park) = mapped.control().formation();
        let policy = WaitPolicy::for_spinners(spinners);
        Self { mapped: Arc::clone(mapped), rank, policy, timeout, guard, cell, park }
    }

    /// Declares this rank ready, and returns when all are.
    ///
    /// # Errors
    /// - [`Error::PeerLost`] or [`Error::FailedElsewhere`], the same rank for all.
    /// - [`Error::Timeout`].
    /// - [`Error::Revoked`] by nobody when the meeting was cancelled, or its host has died.
    ///
    /// # Ordering
    /// Everything that all ranks did before they called it has happened before it returns.
    pub(super) fn complete(&self) -> Result<()> {
        let all = RankSet::all(self.mapped.n_ranks());
        let round = self.round();
        step("about to be ready");
        round.ready();
        step("ready");
        let watch = CancelWatch(|| self.guard.as_ref().is_some_and(WaitGuard::is_cancelled));
        let waiting = Waiting::new(self.mapped.kernel(), &watch, self.policy, self.timeout);
        let settled = wait_until(&waiting, &self.park, || round.poll_start(all));
        step("the meeting is settled");
        match settled {
            Ok(outcome) => self.read(outcome),
            Err(stop) => {
                // No rank that is here has failed in a cancelled meeting.
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

    /// Ends it for all because of `error`, before this rank was ready. Returns the error that
    /// counts: this one, or an earlier one.
    pub(super) fn abandon(&self, error: Error) -> Error {
        let (cause, error) = match (error, self.dead_host()) {
            (Error::PeerLost { rank }, _) | (Error::Revoked { by: None, .. }, Some(rank)) => {
                (RoundOutcome::Lost(rank), Error::PeerLost { rank })
            }
            (error @ Error::Revoked { by: None, .. }, None) => (RoundOutcome::Repeated, error),
            (error, _) => (RoundOutcome::Failed(self.rank), error),
        };
        match self.round().conclude(cause) {
            stands if stands == cause => error,
            stands => self.read(stands).err().unwrap_or(error),
        }
    }

    /// Returns a dead rank, if there is one. It may be the host that hung up: a death shows before
    /// its sockets close.
    fn dead_host(&self) -> Option<Rank> {
        let is_lost = |rank: &Rank| self.mapped.life(*rank).status() == LifeStatus::Lost;
        RankSet::all(self.mapped.n_ranks()).iter().find(is_lost)
    }

    fn read(&self, outcome: RoundOutcome) -> Result<()> {
        match outcome {
            RoundOutcome::Together => Ok(()),
            RoundOutcome::Lost(rank) => Err(Error::PeerLost { rank }),
            RoundOutcome::Failed(rank) => Err(Error::FailedElsewhere { operation: MEETING, rank }),
            // The host has died, and was none of them; or the meeting was called off.
            RoundOutcome::Repeated | RoundOutcome::Vain => Err(Error::Revoked { by: None, awaited: None }),
        }
    }

    fn round(&self) -> Round<'_, HostKernel, impl Fn(Rank) -> bool> {
        let gone = |rank| self.mapped.life(rank).status().is_gone();
        Round { cell: &self.cell, rank: self.rank, kernel: self.mapped.kernel(), park: &self.park, gone }
    }
}

/// Watches whether what is waited for was called off: who polls sees who is gone.
pub(in crate::comm) struct CancelWatch<F>(pub(in crate::comm) F);

impl<F: Fn() -> bool> Watch for CancelWatch<F> {
    fn check(&self) -> Option<Stop> {
        (self.0)().then_some(Stop::Revoked(None))
    }
}
