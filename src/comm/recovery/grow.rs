//! Growing: the members of a communicator and joining ranks meet, and come together in a new,
//! larger one.
//!
//! It is a meeting like that of processes without a launcher. Members claim the ranks that they
//! have, and joining ranks get those behind. Before it, the members exchange the new number of
//! ranks and the id. During it, they watch each other by the epoch that they are in, so that none
//! waits for a member that never came.

use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::{CancelToken, Options, RankClaim, WaitGuard, meet, meet_as_joiner};
use crate::channel::EpochMapping;
use crate::collective::Operation;
use crate::comm::Communicator;
use crate::comm::calls::settings::all_same;
use crate::comm::membership::attach::{Overrides, join_assembled, name_hang_up};
use crate::comm::membership::launcher_link::LauncherState;
use crate::comm::membership::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::logs::step;
use crate::rank::{MAX_RANKS, Rank};
use crate::sync::Stop;

impl Communicator {
    /// Comes together with joining ranks in a new communicator of `n_ranks` ranks. Collective.
    /// Joining ranks call [`Communicator::join`] with an id that one member makes
    /// ([`UniqueId::new`]) and passes as `invitation`; the other members may pass `None`. It
    /// returns when all have come.
    ///
    /// [`comm::failure`](super::failure) says how an epoch goes on into the next one, and what is
    /// new in it.
    ///
    /// # Errors
    /// Ranks are named as the new communicator numbers them.
    /// - [`Error::InvalidArgument`] when `n_ranks` is no larger than now or too large.
    /// - [`Error::Mismatch`] when the members do not agree on it or on the id.
    /// - [`Error::Unavailable`] when none of them passes an id. All members get these three.
    /// - [`Error::PeerLost`]: a member or a joining rank has died or left meanwhile.
    /// - [`Error::NoMeeting`]: the maker of the id has died and was no member, or a joining process
    ///   has died before it had a rank. Or another member has cancelled the meeting because its
    ///   launcher is gone.
    /// - [`Error::Timeout`] names the missing rank, unless the host was held up and did not say
    ///   which.
    /// - [`Error::FailedElsewhere`], [`Error::ResourceLimit`], [`Error::Os`].
    /// - [`Error::Revoked`]: the launcher is gone, which ends the epoch.
    /// - Those of a barrier, which end the epoch: the members did not all call it.
    pub fn grow(&mut self, n_ranks: u32, invitation: Option<&UniqueId>) -> Result<Self> {
        self.grow_until(n_ranks, invitation, None)
    }

    /// Grows like [`Communicator::grow`], unless `off` ends the meeting first. The members' epoch
    /// goes on then.
    ///
    /// # Errors
    /// Fails as [`Communicator::grow`] does, or with [`Error::NoMeeting`] when it was cancelled.
    pub(crate) fn grow_until(
        &mut self,
        n_ranks: u32,
        invitation: Option<&UniqueId>,
        off: Option<CancelToken>,
    ) -> Result<Self> {
        step("about to grow");
        let id = self.agree_on_growth(n_ranks, invitation)?;
        step("agreed on growing");
        let options = Options {
            heap_len: self.context().mapped().shape().len(),
            timeout: self.timeout(),
            ..Options::default()
        };
        let part = RankClaim { rank: self.rank, n_ranks, n_members: self.n_ranks() };
        let guard = self.guard();
        let watched = guard.clone().or_until(off);
        let watched = match self.membership.launcher_state().cloned() {
            Some(launcher_state) => watched.unless(move || launcher_state.is_orphaned()),
            None => watched,
        };
        let met = meet(&id.meeting_point(), part, &options, Some(watched));
        let met = met.and_then(|joining| join_assembled(joining, self.context().told_cores()));
        let mut comm = met.map_err(|error| self.explain(error, &guard))?;
        let mut incarnations: Vec<_> =
            self.members.iter().map(|member| self.membership.incarnations[member.index()]).collect();
        incarnations.resize(n_ranks as usize, None);
        comm.succeed(self, incarnations);
        step("grown");
        Ok(comm)
    }

    /// Joins the members of a communicator that [grow](Communicator::grow) under `id`, as one of
    /// the ranks behind theirs. It returns when all have come, and waits for the timeout of the
    /// default [`Options`]. The heap is as long as the members'.
    ///
    /// # Errors
    /// Fails as [`Communicator::join_within`] does.
    pub fn join(id: &UniqueId) -> Result<Self> {
        Self::join_within(id, Options::default().timeout)
    }

    /// Joins like [`Communicator::join`], but with this timeout, now and in the communicator's
    /// operations. The shortest timeout ends the meeting for all, so a joining rank should have at
    /// least that of the members.
    ///
    /// # Errors
    /// - [`Error::NoMeeting`]: the id is not one, is used up, or its host or another process that
    ///   was to join has ended. Or a member has cancelled the meeting because its launcher is gone.
    /// - [`Error::NoPlace`]: as many ranks are joining already as the members wait for.
    /// - [`Error::PeerLost`], [`Error::Timeout`], [`Error::FailedElsewhere`]: they did not come
    ///   together, and no member has the new communicator either. A timeout names no rank where the
    ///   host was held up.
    /// - [`Error::Layout`]: the host is another version of this library, or runs as another user.
    /// - [`Error::ResourceLimit`], [`Error::Os`].
    pub fn join_within(id: &UniqueId, timeout: Duration) -> Result<Self> {
        Self::join_until(id, timeout, None)
    }

    /// Joins as [`Communicator::join_within`] does, unless `off` ends that first.
    ///
    /// # Errors
    /// Fails as [`Communicator::join_within`] does, or with [`Error::NoMeeting`] when it was called
    /// off.
    pub(crate) fn join_until(id: &UniqueId, timeout: Duration, off: Option<CancelToken>) -> Result<Self> {
        let overrides = Overrides::of(&Options::default())?;
        let met = meet_as_joiner(&id.meeting_point(), timeout, off.map(WaitGuard::until))
            .and_then(|joining| join_assembled(joining, overrides.cores));
        met.inspect(|comm| comm.apply(&overrides, false)).map_err(name_hang_up)
    }

    /// Returns the processes of all members, in the order of their ranks.
    #[cfg(feature = "coordinator")]
    pub(crate) fn processes(&self) -> Vec<u64> {
        let mapped = self.context().mapped();
        self.members.iter().map(|member| mapped.segment(*member).header().creator().pid).collect()
    }

    /// Agrees with all members on their number and on the id. At least one member has to pass an
    /// id.
    fn agree_on_growth(&mut self, n_ranks: u32, invitation: Option<&UniqueId>) -> Result<UniqueId> {
        let [high, low] = invitation.map_or([0; 2], UniqueId::words);
        let words = [u64::from(n_ranks), invitation.is_some().into(), high, low];
        self.enter(Operation::Grow)?;
        let told = self.exchange(Operation::Grow, &words)?;
        let members = || Rank::of_each(&told);
        let sizes = members().map(|(rank, words)| (rank, words[0]));
        all_same("the number of ranks to grow to", n_ranks.into(), sizes)?;
        if n_ranks <= self.n_ranks() || n_ranks > MAX_RANKS {
            let expected = "more ranks than there are, and at most 256";
            return Err(Error::invalid("n_ranks", n_ranks.into(), expected));
        }
        let mut invited = members().filter(|(_, words)| words[1] == 1);
        let needs = "an id from at least one member";
        let (_, first) = invited.next().ok_or(Error::Unavailable { operation: "grow", needs })?;
        if let Some((rank, other)) = invited.find(|(_, words)| words[2..] != first[2..]) {
            let (what, mine, theirs) = ("the unique id to grow by", first[2], other[2]);
            return Err(Error::Mismatch { what, mine, rank, theirs });
        }
        Ok(UniqueId::from_words([first[2], first[3]]))
    }

    /// Looks after the members by the epoch that they are in.
    fn guard(&self) -> WaitGuard {
        let (mapped, members) = (Arc::clone(self.context().mapped()), Arc::clone(&self.members));
        WaitGuard::new(move || first_gone(&mapped, &members))
    }

    /// Returns the reason why the meeting has failed. The death of a member ends this epoch, too.
    fn explain(&self, error: Error, guard: &WaitGuard) -> Error {
        // It has ended this epoch, and the one that was to come.
        if self.membership.launcher_state().is_some_and(LauncherState::is_orphaned) {
            return Error::Revoked { by: None, awaited: None };
        }
        let error = match name_hang_up(error) {
            // If the host was a member, its death shows before its sockets are closed.
            error @ Error::NoMeeting { .. } => guard.lost().map_or(error, |rank| Error::PeerLost { rank }),
            error => error,
        };
        if let Error::PeerLost { rank } = error
            && let Some(member) = self.members.get(rank.index())
        {
            self.context().settle(Stop::PeerLost(*member));
        }
        error
    }
}

/// Returns the first of `members` that has died or left, by its place among them.
fn first_gone(mapped: &EpochMapping, members: &[Rank]) -> Option<Rank> {
    let is_gone = |(_, member): &(u32, &Rank)| mapped.life(**member).status().is_gone();
    (0..).zip(members).find(is_gone).map(|(rank, _)| Rank::known(rank))
}

#[cfg(all(test, feature = "coordinator"))]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_calls_growing_off_ends_it_for_all_and_the_members_go_on_as_they_are() {
        let options = Options { heap_len: 4 << 20, ..Options::default() };
        let comms = Communicator::init_all_with(2, &options).unwrap();
        let (id, off) = (UniqueId::new().unwrap(), CancelToken::default());
        let grow = |mut comm: Communicator| {
            let own = (comm.rank().get() == 1).then(|| off.clone());
            std::thread::spawn(move || {
                let error = comm.grow_until(3, Some(&id), own).unwrap_err();
                comm.barrier().unwrap();
                (error, comm.processes())
            })
        };
        let threads: Vec<_> = comms.into_iter().map(grow).collect();
        off.cancel();
        let mut ends = threads.into_iter().map(|thread| thread.join().unwrap());
        let (other, processes) = ends.next().unwrap();
        assert!(matches!(other, Error::PeerLost { rank } if rank == Rank::known(1)), "{other}");
        assert_eq!(processes, [u64::from(std::process::id()); 2]);
        let (own, _) = ends.next().unwrap();
        assert!(matches!(own, Error::NoMeeting { .. }), "{own}");
    }
}
