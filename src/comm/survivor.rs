//! A member of an epoch that has ended, in the rounds in which the survivors agree on who they are.

use std::time::Duration;

use crate::channel::{EpochMapping, MAX_ROUNDS, RankContext};
use crate::epoch_id::EpochId;
use crate::error::{Error, Result};
use crate::logs::step;
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, CellSlice, HostKernel};
use crate::sync::regroup::{OfferCell, Round, RoundCell, RoundOutcome};
use crate::sync::{LifeStatus, ParkCell, Stop, Waiting, Watch, wait_until};

use super::Communicator;
use super::epoch_commit::NoWatch;
use super::launcher_link::LauncherState;

/// How long a rank whose descriptors are gone may take to show as dead, or to say why it has hung
/// up.
const REASONS_SHOW: Duration = Duration::from_millis(500);

/// A round in which those who go on have been chosen.
pub(super) type OpenRound<'a> = Round<'a, HostKernel, &'a dyn Fn(Rank) -> bool>;

/// A member of an epoch that has ended, which goes on by `operation`.
pub(super) struct Survivor<'a> {
    pub(super) context: &'a RankContext,
    pub(super) park: CellRef<ParkCell>,
    pub(super) offers: CellSlice<OfferCell>,
    rounds: CellSlice<RoundCell>,
    operation: &'static str,
    /// The state of the launcher, if there is one. A rank without its launcher does not go on: the
    /// next epoch would end as it begins.
    launcher_state: Option<&'a LauncherState>,
}

/// Watches whether the launcher is gone: who polls sees all else.
#[derive(Debug)]
struct OrphanWatch<'a>(Option<&'a LauncherState>);

impl Watch for OrphanWatch<'_> {
    fn check(&self) -> Option<Stop> {
        self.0.is_some_and(LauncherState::is_orphaned).then_some(Stop::Revoked(None))
    }
}

impl<'a> Survivor<'a> {
    pub(super) fn new(
        context: &'a RankContext,
        operation: &'static str,
        launcher_state: Option<&'a LauncherState>,
    ) -> Self {
        let control = context.mapped().control();
        let (rounds, park) = control.rounds();
        Self { context, park, offers: control.offers(), rounds, operation, launcher_state }
    }

    /// Fails when the launcher is gone.
    pub(super) fn check_launcher(&self) -> Result<()> {
        OrphanWatch(self.launcher_state).check().map_or(Ok(()), |_| Err(Error::Revoked { by: None }))
    }

    /// Returns the communicator of the survivors, and who they are. Tries `cross` in one round
    /// after the other, until it returns a communicator.
    pub(super) fn continue_with(
        &self,
        cross: impl Fn(&OpenRound<'_>, RankSet, u64) -> Result<Option<Communicator>>,
    ) -> Result<(Communicator, RankSet)> {
        self.check_launcher()?;
        let mut candidates = RankSet::all(self.context.mapped().n_ranks());
        for (number, cell) in (0..MAX_ROUNDS).zip(&*self.rounds) {
            let (comm, chosen) = match (cell.outcome(), cell.chosen(candidates)) {
                (Some(outcome), Some(chosen)) => (self.read_finished(outcome, chosen)?, chosen),
                _ => {
                    let gone = |rank| is_gone(self.context.mapped(), rank);
                    let (rank, kernel, park) = (self.context.rank(), self.context.kernel(), &*self.park);
                    let round = Round { cell, rank, kernel, park, gone: &gone as &dyn Fn(Rank) -> bool };
                    let chosen = self.choose(&round, candidates)?;
                    (cross(&round, chosen, number)?, chosen)
                }
            };
            match comm {
                Some(comm) => return Ok((comm, chosen)),
                None => candidates = chosen,
            }
        }
        Err(Error::Exhausted { what: "rounds of agreement after a loss", limit: MAX_ROUNDS })
    }

    /// Returns the epoch that follows round `number`.
    pub(super) fn epoch_id_after(&self, number: u64) -> EpochId {
        let epoch_id = self.context.mapped().epoch_id();
        EpochId { epoch: epoch_id.epoch.wrapping_add(1 + number), ..epoch_id }
    }

    fn choose(&self, round: &OpenRound<'_>, candidates: RankSet) -> Result<RankSet> {
        step("about to come to a round");
        round.come();
        step("came to a round");
        let chosen = self.wait(|| round.choose(candidates), || round.missing(candidates))?;
        step("those who go on are chosen");
        if chosen.contains(self.context.rank()) { Ok(chosen) } else { Err(Error::Excluded) }
    }

    /// Reads a round that was over before this rank looked. It was of an earlier call, or this rank
    /// was slow and has been given up.
    fn read_finished(&self, outcome: RoundOutcome, chosen: RankSet) -> Result<Option<Communicator>> {
        match outcome {
            _ if !chosen.contains(self.context.rank()) => Err(Error::Excluded),
            RoundOutcome::Together => {
                let needs = "an epoch from which nobody has gone on";
                Err(Error::Unavailable { operation: self.operation, needs })
            }
            RoundOutcome::Repeated | RoundOutcome::Failed(_) | RoundOutcome::Lost(_) | RoundOutcome::Vain => {
                Ok(None)
            }
        }
    }

    /// Decides what follows after a round that has not brought this member into the new epoch.
    pub(super) fn after(&self, outcome: RoundOutcome) -> Result<Option<Communicator>> {
        match outcome {
            RoundOutcome::Failed(rank) => Err(Error::FailedElsewhere { operation: self.operation, rank }),
            // That survivor goes on in another way, and meets this one in the next round.
            RoundOutcome::Vain => Ok(None),
            RoundOutcome::Together | RoundOutcome::Repeated | RoundOutcome::Lost(_) => Ok(None),
        }
    }

    /// Waits for the reason why one of `chosen` cannot be reached, and returns it. Returns `None`
    /// where that rank is not seen to have died and does not say why.
    pub(super) fn await_reason(&self, round: &OpenRound<'_>, chosen: RankSet) -> Option<RoundOutcome> {
        let waiting = Waiting::new(self.context.kernel(), &NoWatch, self.context.policy(), REASONS_SHOW);
        wait_until(&waiting, &self.park, || {
            round.cell.outcome().or_else(|| round.repeat_if_one_is_gone(chosen))
        })
        .ok()
    }

    /// Waits for the others. A timeout names the rank that `awaited` returns. It ends when the
    /// launcher is gone.
    pub(super) fn wait<T>(
        &self,
        poll: impl FnMut() -> Option<T>,
        awaited: impl FnOnce() -> Option<Rank>,
    ) -> Result<T> {
        let watch = OrphanWatch(self.launcher_state);
        let waiting = self.context.waiting(&watch);
        wait_until(&waiting, &self.park, poll).map_err(|stop| waiting.error(stop, self.operation, awaited()))
    }
}

/// Returns whether `rank` was lost or has left.
pub(super) fn is_gone(mapped: &EpochMapping, rank: Rank) -> bool {
    matches!(mapped.life(rank).status(), LifeStatus::Lost | LifeStatus::Left)
}
