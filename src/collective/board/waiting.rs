//! How a member waits for another one at the board.

use std::cell::Cell;
use std::time::Duration;

use super::{Board, index};
use crate::channel::PeerWatch;
use crate::collective::lease::LEFT;
use crate::collective::operation::{Operation, Summary};
use crate::error::Result;
use crate::rank::{Rank, RankSet};
use crate::sync::{ProgressCell, SleepWord, Stop, Waiting, WaitingIn, Watch, wait_until};

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
        let waiting: Waiting<'_, _, _> = self.fabric.waiting(&watch);
        wait_until(&waiting, &self.park, || poll().then_some(())).map_err(|stop| {
            let error = self.fabric.error(&waiting, stop, operation.name(), Some(rank));
            self.explain(self.call(operation), error)
        })
    }

    /// Refuses to go on in `operation`, which all members have posted, when the epoch has ended: some of them may have given it up since.
    ///
    /// # Errors
    /// Those of [`Board::await_post`], as a wait that began now would have them.
    pub(crate) fn check_epoch(&self, operation: Operation) -> Result<()> {
        let checked = self.fabric.check(operation.name());
        checked.map_err(|error| self.explain(self.call(operation), error))
    }

    /// Why a wait for `member` in `operation` is in vain, if it is.
    pub(crate) fn check(&self, member: usize, operation: Operation) -> Option<Stop> {
        self.watch(member, operation).check()
    }

    fn watch(&self, member: usize, operation: Operation) -> MemberWatch<'_> {
        let rank = self.members[member];
        let peer = self.fabric.watch(Some(rank));
        MemberWatch {
            board: self,
            peer,
            rank,
            member,
            departure: &self.departures[member],
            operation,
            untold: Cell::new(None),
        }
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
    peer: PeerWatch<'a>,
    rank: Rank,
    member: usize,
    departure: &'a ProgressCell,
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
        let left = || self.departure.has_reached(LEFT).then_some(Stop::PeerLost(self.rank));
        self.peer.check().or_else(left).or_else(|| {
            let (rank, theirs) = self.board.absent()?;
            self.board.convict(rank, self.board.last_posted(), theirs);
            self.peer.check()
        })
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        self.peer.bell()
    }

    fn begin(&self, since: Duration) {
        self.board.fabric.activity().begin_wait(&self.wait(), since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        self.board.fabric.tell_end(&self.wait(), since, stop);
    }
}

impl MemberWatch<'_> {
    fn wait(&self) -> WaitingIn {
        self.board.waiting_in(self.operation, RankSet::from_iter([self.rank]))
    }
}
