//! Shrinking after a loss: the survivors agree on who they are and come together in a new epoch.
//!
//! They agree in rounds, in the old epoch's control segment (see
//! [`regroup`](crate::sync::regroup)). In each round the first survivor hosts a meeting, like that
//! of processes without a launcher, and offers its id to the others. So no launcher is needed. A
//! rank that was given up and wakes later maps only the old epoch, and learns by its next wait that
//! it was not chosen.

use std::sync::Arc;

use super::survivor::{OpenRound, Survivor};
use crate::bootstrap::{Options, RankClaim, WaitGuard, meet};
use crate::comm::Communicator;
use crate::comm::membership::attach::{join_assembled, name_hang_up};
use crate::error::{Error, Result};
use crate::logs::{EPOCH, step};
use crate::rank::{Rank, RankSet};
use crate::sync::LifeStatus;
use crate::sync::regroup::RoundOutcome;

const SHRINK: &str = "shrink";

/// The result of [`Communicator::shrink`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Shrunk {
    /// The communicator of the ranks that go on.
    pub comm: Communicator,
    /// The other ranks as the communicator before numbers them, in order. They are the same on all
    /// ranks that go on.
    pub lost: Vec<Rank>,
}

impl Communicator {
    /// Goes on without the lost ranks: the survivors come together in a new epoch and are numbered
    /// anew in the order of their ranks. All survivors call it on the job's first communicator,
    /// once a call has failed. It ends the epoch where that has not ended.
    ///
    /// It waits until every rank of this communicator has called it, has left, or is lost. All that
    /// go on get the same list of lost ranks. [`comm::failure`](super::failure) says more.
    ///
    /// # Errors
    /// - [`Error::Timeout`] names a rank that has neither called it nor died. It can be called
    ///   again, after [`Communicator::give_up`] if that rank is not to be waited for.
    /// - [`Error::Excluded`]: the others have given this rank up, and go on without it.
    /// - [`Error::Revoked`]: the launcher is gone, and nobody goes on.
    /// - [`Error::ResourceLimit`], [`Error::Os`] here; [`Error::FailedElsewhere`] when it was on
    ///   another rank. All ranks get an error then, and can call it again.
    /// - [`Error::Unavailable`]: this is not the job's first communicator, or has gone on already.
    /// - [`Error::Exhausted`]: it has failed too often.
    pub fn shrink(&mut self) -> Result<Shrunk> {
        self.context().here(SHRINK)?;
        if self.job_barrier.is_none() {
            return Err(Error::Unavailable { operation: SHRINK, needs: "the first communicator of the job" });
        }
        self.revoke();
        self.reclaim_engine();
        let survivor = Survivor::new(self.context(), SHRINK, self.membership.launcher_state());
        let (mut comm, chosen) = survivor.continue_with(enter)?;
        comm.succeed(self, chosen.iter().map(|rank| self.membership.incarnations[rank.index()]).collect());
        let mapped = self.context().mapped();
        let lost: Vec<_> = RankSet::all(mapped.n_ranks()).without(chosen).iter().collect();
        tracing::info!(target: EPOCH, rank = %comm.rank(), n_ranks = comm.n_ranks(), ?lost, "gone on without the lost");
        // The launcher has not lost ranks that left.
        let is_lost = |rank: &&Rank| mapped.life(**rank).status() == LifeStatus::Lost;
        lost.iter().filter(is_lost).for_each(|lost| self.membership.report_loss(*lost));
        Ok(Shrunk { comm, lost })
    }

    /// Declares `rank` lost, though it may live: it hangs, or is stopped. That ends the epoch like
    /// a death. The others can go on without it ([`Communicator::shrink`]). If it wakes, it gets
    /// [`Error::Excluded`], and reaches nothing that the others share from then on.
    ///
    /// Two ranks that give each other up are both lost. Where each may wait for the other, let one
    /// decide.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::InvalidArgument`] for this rank itself; [`Error::Excluded`]
    /// when it was given up itself.
    pub fn give_up(&self, rank: Rank) -> Result<()> {
        let context = self.context();
        let lost = self.member(rank)?;
        if lost == context.rank() {
            let expected = "another rank than the caller's own";
            return Err(Error::invalid("rank", rank.get().into(), expected));
        }
        if context.mapped().life(context.rank()).status() == LifeStatus::Lost {
            return Err(Error::Excluded);
        }
        self.membership.give_up(lost);
        Ok(())
    }
}

/// Joins the epoch of those who were chosen; `None` when the round has to be repeated.
fn enter(open: &OpenRound<'_>) -> Result<Option<Communicator>> {
    let OpenRound { round, chosen, .. } = open;
    if let Err(error) = open.host() {
        return fail(open, error);
    }
    if let Some(outcome) = open.offer(|| round.poll_offers(*chosen))? {
        return open.after(outcome);
    }
    let comm = match meet_chosen(open) {
        Ok(comm) => comm,
        Err(error) => return fail(open, by_old_numbers(open, error)),
    };
    step("about to be ready to go on");
    round.ready();
    step("ready to go on");
    let outcome = open.wait(|| round.poll_outcome(*chosen)).or_else(|late| {
        // The others may have come together at the last moment: then this one is with them.
        match round.conclude(RoundOutcome::Repeated) {
            RoundOutcome::Together => Ok(RoundOutcome::Together),
            _ => Err(late),
        }
    })?;
    if outcome == RoundOutcome::Together { Ok(Some(comm)) } else { open.after(outcome) }
}

/// Meets the others who were chosen. Errors name ranks by their places among them.
fn meet_chosen(open: &OpenRound<'_>) -> Result<Communicator> {
    let OpenRound { survivor, chosen, .. } = open;
    let (context, n_ranks) = (survivor.context, chosen.len());
    let options = Options {
        heap_len: context.mapped().shape().len(),
        timeout: context.timeout(),
        ..Options::default()
    };
    let rank = Rank::new(chosen.place_of(context.rank()), n_ranks)?;
    let part = RankClaim { rank, n_ranks, n_members: n_ranks };
    meet(&open.meeting_point()?, part, &options, Some(guard(open)))
        .and_then(|joining| join_assembled(joining, context.told_cores()))
        .map_err(name_hang_up)
}

/// Watches the others who were chosen, and the launcher.
fn guard(open: &OpenRound<'_>) -> WaitGuard {
    let (mapped, chosen) = (Arc::clone(open.survivor.context.mapped()), open.chosen);
    let lost = move || (0..).zip(chosen.iter()).find(|(_, rank)| mapped.life(*rank).status().is_gone());
    let guard = WaitGuard::new(move || lost().map(|(place, _)| Rank::known(place)));
    match open.survivor.launcher_state.cloned() {
        Some(launcher_state) => guard.unless(move || launcher_state.is_orphaned()),
        None => guard,
    }
}

/// Names ranks as the old communicator does. Where a meeting does not say who is late, that is its
/// host.
fn by_old_numbers(open: &OpenRound<'_>, error: Error) -> Error {
    let old = |place: Rank| open.chosen.iter().nth(place.index()).unwrap_or(place);
    match error {
        Error::PeerLost { rank } => Error::PeerLost { rank: old(rank) },
        Error::FailedElsewhere { operation, rank } => Error::FailedElsewhere { operation, rank: old(rank) },
        Error::Timeout { awaited, waited, .. } => {
            let host = Some(open.first()).filter(|host| *host != open.survivor.context.rank());
            Error::timed_out(SHRINK, awaited.map(old).or(host), waited)
        }
        other => other,
    }
}

/// Ends the round with the reason why this member's meeting has failed, unless it has ended.
fn fail(open: &OpenRound<'_>, error: Error) -> Result<Option<Communicator>> {
    let (own, round) = (open.own_failure(), &open.round);
    let orphaned = open.survivor.check_launcher().err();
    if orphaned.is_some() || matches!(error, Error::Timeout { .. } | Error::Cancelled { .. }) {
        round.conclude(RoundOutcome::Repeated);
        return Err(orphaned.unwrap_or(error));
    }
    let cause = match error {
        // That member says itself whether it has failed, or has waited in vain for another one.
        Error::FailedElsewhere { rank, .. } => open.await_reason().unwrap_or(RoundOutcome::Failed(rank)),
        // A member that has hung up may live, and have an error that it is about to say.
        Error::PeerLost { .. } | Error::NoMeeting { .. } => {
            open.await_reason().unwrap_or(RoundOutcome::Repeated)
        }
        _ => own,
    };
    match round.conclude(cause) {
        stands if stands == own => Err(error),
        stands => open.after(stands),
    }
}
