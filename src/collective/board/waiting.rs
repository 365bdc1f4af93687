//! How a member waits for another one at the board.

use std::cell::Cell;
use std::time::Duration;

use super::{Board, index};
use crate::collective::lease::LEFT;
use crate::collective::operation::{Operation, Summary};
use crate::error::Result;
use crate::rank::RankSet;
use crate::sync::{SleepWord, Stop, Waiting, WaitingIn, Watch, wait_until};

impl Board {
    #[cold]
    pub(super) fn await_sequence(&self, member: usize, sequence: u64, operation: Operation) -> Result<()> {
        let cell = &self.posts[member][index(sequence)];
        self.wait_in(sequence, member, operation, || cell.shows(sequence))
    }

    /// Waits until `poll` says yes, which `member` makes it do, in the current operation, before it calls [`Board::wake`].
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    pub(crate) fn wait(&self, member: usize, operation: Operation, poll: impl FnMut() -> bool) -> Result<()> {
        self.wait_in(self.sequence, member, operation, poll)
    }

    /// The same, for what `member` does in the operation numbered `sequence`.
    fn wait_in(
        &self,
        sequence: u64,
        member: usize,
        operation: Operation,
        mut poll: impl FnMut() -> bool,
    ) -> Result<()> {
        let rank = self.members[member];
        let watch = self.watch(member, operation);
        watch.untold.set(Some(sequence));
        let waiting: Waiting<'_, _, _> = self.context.waiting(&watch);
        wait_until(&waiting, &self.park, || poll().then_some(())).map_err(|stop| {
            let error = self.context.error(&waiting, stop, operation.name(), Some(rank));
            self.explain(self.call(operation), error)
        })
    }

    /// Refuses to go on in `operation`, which all members have posted, when the epoch has ended: some of them may have given it up since.
    ///
    /// # Errors
    /// Those of [`Board::await_post`], as a wait that began now would have them.
    pub(crate) fn check_epoch(&self, operation: Operation) -> Result<()> {
        let checked = self.context.check(operation.name());
        checked.map_err(|error| self.explain(self.call(operation), error))
    }

    /// Why a wait for `member` is in vain, if it is: the epoch has ended, or that member lives no more or has left.
    pub(crate) fn check_member(&self, member: usize) -> Option<Stop> {
        let rank = self.members[member];
        let left = || self.departures[member].has_reached(LEFT).then_some(Stop::PeerLost(rank));
        self.context.watch(Some(rank)).check().or_else(left)
    }

    /// Why a wait for any member is in vain, if one is elsewhere: the epoch ends then.
    pub(crate) fn check_absence(&self) -> Option<Stop> {
        let (rank, theirs) = self.absent()?;
        self.convict(rank, self.last_posted(), theirs);
        self.context.watch(None).check()
    }

    fn watch(&self, member: usize, operation: Operation) -> MemberWatch<'_> {
        MemberWatch { board: self, member, operation, untold: Cell::new(None) }
    }

    /// The call of this member that `operation` is, as far as it can be told: it may not be posted yet.
    pub(super) fn call(&self, operation: Operation) -> Summary {
        let posted = self.last_posted();
        if posted.operation() == Some(operation) { posted } else { Summary::new(operation) }
    }
}

/// Watches the epoch, whether the member that is awaited lives and has not left, and whether any is elsewhere.
#[derive(Debug)]
struct MemberWatch<'a> {
    board: &'a Board,
    member: usize,
    /// What this member is in.
    operation: Operation,
    /// The operation that it is awaited in, until it has been told.
    untold: Cell<Option<u64>>,
}

impl Watch for MemberWatch<'_> {
    fn check(&self) -> Option<Stop> {
        if let Some(sequence) = self.untold.take() {
            self.board.awaits.tell(self.member, sequence);
        }
        self.board.check_member(self.member).or_else(|| self.board.check_absence())
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.board.context.mapped().revocation().bell())
    }

    fn begin(&self, since: Duration) {
        self.board.context.activity().begin_wait(&self.wait(), since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        self.board.context.tell_end(&self.wait(), since, stop);
    }
}

impl MemberWatch<'_> {
    fn wait(&self) -> WaitingIn {
        self.board.waiting_in(self.operation, RankSet::from_iter([self.board.members[self.member]]))
    }
}
