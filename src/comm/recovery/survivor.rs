//! A member of an epoch that has ended, in the rounds in which the survivors agree on who they are.

use std::time::Duration;

use nix::errno::Errno;

use crate::channel::{MAX_ROUNDS, RankContext};
use crate::epoch_id::EpochId;
use crate::error::{Error, Result};
use crate::logs::step;
use crate::rank::{Rank, RankSet};
use crate::shm::system::{may_be_one_namespace, namespace};
use crate::shm::{CellRef, CellSlice, HostKernel};
use crate::sync::regroup::{OfferCell, Round, RoundCell, RoundOutcome};
use crate::sync::{ParkCell, Waiting, wait_until};

use crate::bootstrap::MeetingPoint;
use crate::comm::Communicator;
use crate::comm::membership::epoch_commit::CancelWatch;
use crate::comm::membership::launcher_link::LauncherState;
use crate::comm::membership::unique_id::UniqueId;

/// How long a rank whose descriptors are gone may take to show as dead, or to say why it has hung
/// up.
const REASONS_SHOW: Duration = Duration::from_millis(500);

/// A member of an epoch that has ended, which goes on by `operation`.
pub(super) struct Survivor<'a> {
    pub(super) context: &'a RankContext,
    offers: CellSlice<OfferCell>,
    park: CellRef<ParkCell>,
    rounds: CellSlice<RoundCell>,
    operation: &'static str,
    /// The state of the launcher, if there is one. A rank without its launcher does not go on: the
    /// next epoch would end as it begins.
    pub(super) launcher_state: Option<&'a LauncherState>,
}

/// A round in which those who go on have been chosen, this member among them.
pub(super) struct OpenRound<'a> {
    pub(super) survivor: &'a Survivor<'a>,
    pub(super) chosen: RankSet,
    /// The epoch that they go on into.
    pub(super) epoch_id: EpochId,
    pub(super) round: Round<'a, HostKernel, &'a dyn Fn(Rank) -> bool>,
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
        if self.is_orphaned() { Err(Error::Revoked { by: None, awaited: None }) } else { Ok(()) }
    }

    fn is_orphaned(&self) -> bool {
        self.launcher_state.is_some_and(LauncherState::is_orphaned)
    }

    /// Returns the communicator of the survivors, and who they are. Tries `cross` in one round
    /// after the other, until it returns a communicator.
    pub(super) fn continue_with(
        &self,
        cross: impl Fn(&OpenRound<'_>) -> Result<Option<Communicator>>,
    ) -> Result<(Communicator, RankSet)> {
        self.check_launcher()?;
        let gone = |rank| self.context.mapped().life(rank).status().is_gone();
        let mut candidates = RankSet::all(self.context.mapped().n_ranks());
        for (number, cell) in (0..MAX_ROUNDS).zip(&*self.rounds) {
            if let (Some(outcome), Some(chosen)) = (cell.outcome(), cell.chosen(candidates)) {
                self.check_finished(outcome, chosen)?;
                candidates = chosen;
                continue;
            }
            let (rank, kernel, park) = (self.context.rank(), self.context.kernel(), &*self.park);
            let round = Round { cell, rank, kernel, park, gone: &gone as &dyn Fn(Rank) -> bool };
            candidates = self.choose(&round, candidates)?;
            let epoch_id = self.epoch_id_after(number);
            let open = OpenRound { survivor: self, chosen: candidates, epoch_id, round };
            if let Some(comm) = cross(&open)? {
                // Observers from outside find it by the number that the job had at first.
                let mapped = self.context.mapped();
                let origin = mapped.control().origin().unwrap_or(mapped.epoch_id().job);
                comm.context().mapped().control().go_on_from(origin);
                return Ok((comm, candidates));
            }
        }
        Err(Error::Exhausted { what: "rounds of agreement after a loss", limit: MAX_ROUNDS })
    }

    /// Returns the epoch that follows round `number`.
    fn epoch_id_after(&self, number: u64) -> EpochId {
        let epoch_id = self.context.mapped().epoch_id();
        EpochId { epoch: epoch_id.epoch.wrapping_add(1 + number), ..epoch_id }
    }

    fn choose(
        &self,
        round: &Round<'_, HostKernel, impl Fn(Rank) -> bool>,
        candidates: RankSet,
    ) -> Result<RankSet> {
        step("about to come to a round");
        round.come();
        step("came to a round");
        let chosen = self.wait(|| round.choose(candidates), || round.missing(candidates))?;
        step("those who go on are chosen");
        if chosen.contains(self.context.rank()) { Ok(chosen) } else { Err(Error::Excluded) }
    }

    /// Checks a round that was over before this rank looked. It was of an earlier call, or this
    /// rank was slow and has been given up.
    fn check_finished(&self, outcome: RoundOutcome, chosen: RankSet) -> Result<()> {
        if !chosen.contains(self.context.rank()) {
            return Err(Error::Excluded);
        }
        let needs = "an epoch from which nobody has gone on";
        match outcome {
            RoundOutcome::Together => Err(Error::Unavailable { operation: self.operation, needs }),
            RoundOutcome::Repeated | RoundOutcome::Failed(_) | RoundOutcome::Lost(_) | RoundOutcome::Vain => {
                Ok(())
            }
        }
    }

    /// Waits for the others. A timeout names the rank that `awaited` returns. It ends when the
    /// launcher is gone.
    fn wait<T>(&self, poll: impl FnMut() -> Option<T>, awaited: impl FnOnce() -> Option<Rank>) -> Result<T> {
        let watch = CancelWatch(|| self.is_orphaned());
        let waiting = self.context.waiting(&watch);
        wait_until(&waiting, &self.park, poll).map_err(|stop| waiting.error(stop, self.operation, awaited()))
    }
}

impl OpenRound<'_> {
    /// Makes the id under which they meet and writes it into this member's offer, if this is the
    /// first of the chosen. Returns the id then.
    ///
    /// # Errors
    /// Fails as [`UniqueId::new`] does.
    pub(super) fn host(&self) -> Result<Option<UniqueId>> {
        let context = self.survivor.context;
        if self.first() != context.rank() {
            return Ok(None);
        }
        // If the round fails, nobody may come. The others may take one timeout until they have
        // offered, and one more to come.
        let id = UniqueId::good_for(context.timeout().saturating_mul(2), self.epoch_id.epoch)?;
        let [high, low] = id.words();
        let offer = [high, low, self.seal([high, low]), namespace("net")];
        self.survivor.offers[context.rank().index()].write(offer);
        Ok(Some(id))
    }

    /// Returns where they meet, once all have offered.
    ///
    /// # Errors
    /// - [`Error::NoMeeting`] when the round is over, and the host may be in the next one.
    /// - [`Error::Unavailable`] when the host cannot be reached from here.
    pub(super) fn meeting_point(&self) -> Result<MeetingPoint> {
        let [high, low, seal, network] = self.survivor.offers[self.first().index()].read();
        if seal != self.seal([high, low]) {
            return Err(Error::NoMeeting { source: Errno::ESTALE.into() });
        }
        if !may_be_one_namespace(network, namespace("net")) {
            let needs = "one network namespace for all ranks";
            return Err(Error::Unavailable { operation: self.survivor.operation, needs });
        }
        Ok(UniqueId::from_words([high, low]).meeting_point())
    }

    /// Returns the word that tells an id of this round from that of another one, and from a torn
    /// one. A rank that was given up must not come to a meeting of the others.
    fn seal(&self, [high, low]: [u64; 2]) -> u64 {
        high ^ low ^ self.epoch_id.epoch
    }

    /// Returns the member that hosts the meeting.
    pub(super) fn first(&self) -> Rank {
        self.chosen.iter().next().expect("this rank is one of them")
    }

    /// Returns the outcome of a failure of this member.
    pub(super) fn own_failure(&self) -> RoundOutcome {
        RoundOutcome::Failed(self.round.rank)
    }

    /// Offers what this member has made, and waits until `poll` returns what came of that. A round
    /// that takes too long is repeated.
    pub(super) fn offer<T>(&self, poll: impl FnMut() -> Option<T>) -> Result<T> {
        step("about to offer");
        self.round.offer();
        step("offered");
        self.wait(poll).inspect_err(|_| _ = self.round.conclude(RoundOutcome::Repeated))
    }

    /// Waits for the others in this round.
    pub(super) fn wait<T>(&self, poll: impl FnMut() -> Option<T>) -> Result<T> {
        self.survivor.wait(poll, || self.round.first_incomplete(self.chosen))
    }

    /// Decides what follows after a round that has not brought this member into the new epoch.
    pub(super) fn after(&self, outcome: RoundOutcome) -> Result<Option<Communicator>> {
        match outcome {
            RoundOutcome::Failed(rank) => {
                Err(Error::FailedElsewhere { operation: self.survivor.operation, rank })
            }
            // In a round that was in vain a survivor goes on in another way, and meets this one in
            // the next.
            RoundOutcome::Together | RoundOutcome::Repeated | RoundOutcome::Lost(_) | RoundOutcome::Vain => {
                Ok(None)
            }
        }
    }

    /// Waits for the reason why one of the chosen cannot be reached, and returns it. Returns `None`
    /// where that rank is not seen to have died and does not say why.
    pub(super) fn await_reason(&self) -> Option<RoundOutcome> {
        let (round, Survivor { context, park, .. }) = (&self.round, self.survivor);
        let watch = CancelWatch(|| false);
        let waiting = Waiting::new(context.kernel(), &watch, context.policy(), REASONS_SHOW);
        let known = || round.cell.outcome().or_else(|| round.repeat_if_one_is_gone(self.chosen));
        wait_until(&waiting, park, known).ok()
    }
}
