//! Recovering from a loss: the survivors come together with the dead ranks, which the launcher has
//! restarted.
//!
//! The survivors agree on who they are in the same rounds as for a shrink. In each round, the first
//! survivor makes the id of a meeting and offers it to the others. The launcher passes it on to the
//! restarted ranks. Then all meet like processes without a launcher, and decide in the same way
//! whether they begin. A death spoils the meeting and the round. The next round is among those that
//! are left, and the launcher restarts one more rank.

use super::exchange::{RankProgress, assemble, is_worth_another_try};
use super::survivor::{OpenRound, Survivor};
use crate::bootstrap::{Options, RankClaim, WaitGuard, meet};
use crate::comm::Communicator;
use crate::comm::membership::attach::name_hang_up;
use crate::comm::membership::launcher_link::{Incarnation, LauncherLink};
use crate::error::{Error, Result};
use crate::logs::{EPOCH, step};
use crate::rank::{Rank, RankSet};
use crate::sync::LifeStatus;
use crate::sync::regroup::RoundOutcome;

const RECOVER: &str = "recover";

impl Communicator {
    /// Brings back the lost ranks: the survivors come together with the processes that the launcher
    /// has started in their place, in a new epoch with the same ranks. All survivors call it on the
    /// job's first communicator, once a call has failed. It ends the epoch where that has not
    /// ended.
    ///
    /// Each survivor passes the number of its last `completed` step. All get the least of them
    /// ([`Communicator::on_recovery`]), and go on from there. [`comm::failure`](super::failure)
    /// says more.
    ///
    /// # Panics
    /// If the callback does.
    ///
    /// # Errors
    /// - [`Error::Unavailable`]: no launcher restarts ranks
    ///   ([`Launch::restart`](crate::launch::Launch::restart)), or no restart is left, or a rank
    ///   has left and is not restarted. Or this is not the job's first communicator, or
    ///   has shrunk, grown or gone on already.
    /// - [`Error::Timeout`] names a rank that has neither called it nor died, or was restarted and
    ///   does not come. It can be called again, and so can [`Communicator::shrink`].
    /// - [`Error::Revoked`]: the launcher is gone, and nobody goes on.
    /// - [`Error::Excluded`], [`Error::ResourceLimit`], [`Error::Os`], [`Error::FailedElsewhere`],
    ///   [`Error::Exhausted`]: as in [`Communicator::shrink`].
    pub fn recover(&mut self, completed: u64) -> Result<Self> {
        self.context().here(RECOVER)?;
        let unavailable = |needs| Err(Error::Unavailable { operation: RECOVER, needs });
        if self.job_barrier.is_none() {
            return unavailable("the first communicator of the job");
        }
        let membership = self.membership.clone();
        let Some(launcher) = membership.launcher.as_ref().filter(|launcher| launcher.restarting) else {
            return unavailable(
                "a launcher that starts dead ranks again: `shmccl run --restart N`, or Launch::restart",
            );
        };
        let Some(own) = own_number(&membership.incarnations, launcher.link.n_ranks(), self.rank) else {
            return unavailable("all ranks that the launcher has started, and no others");
        };
        self.revoke();
        self.reclaim_engine();
        let mine = RankProgress { completed: Some(completed), restarts: own.restarts };
        let survivor = Survivor::new(self.context(), RECOVER, Some(&launcher.state));
        let meet = |open: &OpenRound<'_>| RecoveryRound { open, mine, launcher }.assemble(self);
        let (mut comm, _) = survivor.continue_with(meet)?;
        tracing::info!(target: EPOCH, rank = %comm.rank(), n_ranks = comm.n_ranks(), "recovered");
        let callback = self.membership.recovery_callbacks().callback.take();
        callback.into_iter().for_each(|callback| comm.set_recovery_callback(callback));
        Ok(comm)
    }
}

/// Returns the launcher's name of `rank`, if these are all `n_started` ranks of the launcher in its
/// order.
fn own_number(incarnations: &[Option<Incarnation>], n_started: u32, rank: Rank) -> Option<Incarnation> {
    let as_started =
        |(rank, number): (u32, &Option<Incarnation>)| number.is_some_and(|it| it.rank.get() == rank);
    let are_all = incarnations.len() == n_started as usize && (0..).zip(incarnations).all(as_started);
    are_all.then(|| incarnations.get(rank.index()).copied().flatten())?
}

/// A survivor's way to those who were started again, in one round.
struct RecoveryRound<'s> {
    open: &'s OpenRound<'s>,
    mine: RankProgress,
    launcher: &'s LauncherLink,
}

impl RecoveryRound<'_> {
    /// Meets the others; `None` when the round has to be repeated.
    fn assemble(&self, old: &Communicator) -> Result<Option<Communicator>> {
        let Self { open, .. } = self;
        self.check_departures()?;
        let own = match open.host() {
            Ok(own) => own,
            Err(error) => {
                let stands = open.round.conclude(open.own_failure());
                return if stands == open.own_failure() { Err(error) } else { self.after(stands) };
            }
        };
        if let Some(outcome) = open.offer(|| self.poll_offers())? {
            return self.after(outcome);
        }
        if let Some(id) = &own {
            step("about to invite");
            self.launcher.link.invite(id.words(), self.missing());
            step("invited");
        }
        let comm = match self.meet(old) {
            Ok(comm) => comm,
            Err(error) => return self.fail(error),
        };
        step("about to conclude the round");
        open.round.conclude(RoundOutcome::Together);
        step("concluded the round");
        Ok(Some(comm))
    }

    /// Ends the round with the reason why this member's meeting has failed, unless the round has
    /// ended. All survivors learn of a survivor's failure; a death makes them repeat the round.
    fn fail(&self, error: Error) -> Result<Option<Communicator>> {
        let OpenRound { survivor, round, chosen, .. } = self.open;
        if let Err(orphaned) = survivor.check_launcher() {
            round.conclude(RoundOutcome::Repeated);
            return Err(orphaned);
        }
        if let Some(stands) = self.end_in_vain() {
            return self.after(stands);
        }
        if !is_worth_another_try(&error) {
            round.conclude(self.open.own_failure());
            return Err(error);
        }
        let (own, says_why) = match error {
            Error::FailedElsewhere { rank, .. } if chosen.contains(rank) => {
                (RoundOutcome::Failed(rank), true)
            }
            Error::PeerLost { rank } => (RoundOutcome::Repeated, chosen.contains(rank)),
            // The host is one of them; or another member has cancelled it, and is about to say why.
            Error::NoMeeting { .. } => (RoundOutcome::Repeated, true),
            _ => (RoundOutcome::Repeated, false),
        };
        // That member may live. It says itself whether it has failed, or waited in vain for
        // another.
        let told = says_why.then(|| self.open.await_reason()).flatten();
        self.after(told.unwrap_or_else(|| round.conclude(own)))
    }

    /// Decides what follows after a round that has not brought this member to the others.
    fn after(&self, outcome: RoundOutcome) -> Result<Option<Communicator>> {
        if outcome == RoundOutcome::Vain { Err(Error::not_restarted()) } else { self.open.after(outcome) }
    }

    /// Polls like [`Round::poll_offers`](crate::sync::regroup::Round::poll_offers), while all
    /// missing ranks can still come.
    fn poll_offers(&self) -> Option<Option<RoundOutcome>> {
        self.end_in_vain().map(Some).or_else(|| self.open.round.poll_offers(self.open.chosen))
    }

    /// Ends the round for all when the launcher has said that a rank will not come back, though the
    /// others may not know it yet. A survivor that goes on in another way meets them in the next
    /// round. Returns the outcome that stands.
    fn end_in_vain(&self) -> Option<RoundOutcome> {
        let is_vain = self.launcher.state.restarts_exhausted();
        is_vain.then(|| self.open.round.conclude(RoundOutcome::Vain))
    }

    /// Returns the ranks that are to come back.
    fn missing(&self) -> RankSet {
        RankSet::all(self.open.survivor.context.mapped().n_ranks()).without(self.open.chosen)
    }

    /// Checks that no rank has left: such a rank is not restarted.
    fn check_departures(&self) -> Result<()> {
        let mapped = self.open.survivor.context.mapped();
        let has_left = |rank| mapped.life(rank).status() == LifeStatus::Left;
        let needs = "all ranks, but one has left the job; call shrink to go on without it";
        if self.missing().iter().any(has_left) {
            return Err(Error::Unavailable { operation: RECOVER, needs });
        }
        Ok(())
    }

    fn meet(&self, old: &Communicator) -> Result<Communicator> {
        let context = self.open.survivor.context;
        let (mapped, rank) = (context.mapped(), context.rank());
        let (heap_len, timeout) = (mapped.shape().len(), context.timeout());
        let options = Options { heap_len, timeout, ..Options::default() };
        let n_ranks = mapped.n_ranks();
        let part = RankClaim { rank, n_ranks, n_members: n_ranks };
        let met = meet(&self.open.meeting_point()?, part, &options, Some(self.guard()));
        let met = met.and_then(|joining| assemble(joining, self.mine, Some(mapped)));
        let (mut comm, incarnations) = met.map_err(name_hang_up)?;
        comm.succeed(old, incarnations);
        Ok(comm)
    }

    /// Watches the other survivors, and the launcher, which has to start the lost ranks.
    fn guard(&self) -> WaitGuard {
        let launcher_state = self.launcher.state.clone();
        let (mapped, chosen) = (self.open.survivor.context.mapped().clone(), self.open.chosen);
        let guard = WaitGuard::new(move || chosen.iter().find(|rank| mapped.life(*rank).status().is_gone()));
        guard.unless(move || launcher_state.is_orphaned() || launcher_state.restarts_exhausted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_communicator_has_its_launchers_numbers_only_while_all_are_there_and_nobody_else() {
        let (all, own) = (Incarnation::first(3), Rank::known(1));
        assert_eq!(own_number(&all, 3, own), all[1]);
        assert_eq!(own_number(&all[..2], 3, own), None, "the highest is gone");
        assert_eq!(own_number(&[all[1], all[2], all[0]], 3, own), None);
        assert_eq!(own_number(&[&all[..], &[None]].concat(), 3, own), None, "a joiner");
    }
}
