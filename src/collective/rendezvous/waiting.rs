//! How a member waits for another one at the board.
//!
//! Once it has waited for a while, it announces for whom, and in which operation (`waits_for`).
//!
//! A peer that waits for a message of this member looks there, since a member that waits in an
//! operation to which the peer has not come will send nothing. It stays there until the peer comes,
//! so what it has announced holds. A peer that sleeps for want of a message is woken to look.

use std::cell::Cell;

use super::board::{CallBoard, index};
use crate::channel::{EpochWatch, LongWait, RankContext};
use crate::collective::call::{CallSignature, Operation};
use crate::collective::region::lease::LEFT;
use crate::error::Result;
use crate::rank::RankSet;
use crate::sync::{Stop, Waiting, WaitingIn, Watch, wait_until};

impl CallBoard {
    #[cold]
    pub(super) fn await_sequence(&self, member: usize, sequence: u64, operation: Operation) -> Result<()> {
        let cell = &self.posts[member][index(sequence)];
        self.wait_in(sequence, member, operation, || cell.shows(sequence))
    }

    /// Waits until `poll` says yes, which `member` makes it do, in the current operation, before it
    /// calls [`CallBoard::wake`].
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    pub(crate) fn wait(&self, member: usize, operation: Operation, poll: impl FnMut() -> bool) -> Result<()> {
        self.wait_in(self.sequence, member, operation, poll)
    }

    /// Waits for what `member` does in the operation numbered `sequence`.
    fn wait_in(
        &self,
        sequence: u64,
        member: usize,
        operation: Operation,
        mut poll: impl FnMut() -> bool,
    ) -> Result<()> {
        let rank = self.ranks[member];
        let watch = self.watch(member, operation);
        watch.0.unannounced.set(Some(sequence));
        let waiting: Waiting<'_, _, _> = self.context.waiting(&watch);
        wait_until(&waiting, &self.park, || poll().then_some(())).map_err(|stop| {
            let error = self.context.error(&waiting, stop, operation.name(), Some(rank));
            self.explain(self.call(operation), error)
        })
    }

    /// Returns why a wait for `member` is in vain, if it is: the epoch has ended, or that member
    /// lives no more or has left.
    pub(crate) fn check_member(&self, member: usize) -> Option<Stop> {
        let rank = self.ranks[member];
        let left = || self.departures[member].has_reached(LEFT).then_some(Stop::PeerLost(rank));
        self.context.watch(Some(rank)).check().or_else(left)
    }

    /// Returns why a wait for any member is in vain, if one is elsewhere: the epoch ends then.
    pub(crate) fn check_barrier(&self) -> Option<Stop> {
        let (rank, theirs) = self.member_at_barrier()?;
        self.end_by_mismatch(rank, self.last_posted(), theirs);
        self.context.watch(None).check()
    }

    fn watch(&self, member: usize, operation: Operation) -> EpochWatch<MemberWait<'_>> {
        EpochWatch(MemberWait { board: self, member, operation, unannounced: Cell::new(None) })
    }

    /// Returns the call of this member that `operation` is, as far as it can be told: it may not be
    /// posted yet.
    pub(super) fn call(&self, operation: Operation) -> CallSignature {
        let posted = self.last_posted();
        if posted.operation() == Some(operation) { posted } else { CallSignature::new(operation) }
    }
}

/// Watches the epoch, whether the member that is awaited lives and has not left, and whether any is
/// elsewhere.
#[derive(Debug)]
struct MemberWait<'a> {
    board: &'a CallBoard,
    member: usize,
    /// What this member is in.
    operation: Operation,
    /// The operation that it is awaited in, until it has been told.
    unannounced: Cell<Option<u64>>,
}

impl LongWait for MemberWait<'_> {
    fn context(&self) -> &RankContext {
        &self.board.context
    }

    fn stop(&self) -> Option<Stop> {
        if let Some(sequence) = self.unannounced.take() {
            let context = &self.board.context;
            self.board.waits_for.mine[self.member].publish(sequence);
            context.mapped().cells(self.board.ranks[self.member]).message_park().wake(context.kernel());
        }
        self.board.check_member(self.member).or_else(|| self.board.check_barrier())
    }

    fn seen(&self) -> WaitingIn {
        self.board.waiting_in(self.operation, RankSet::from_iter([self.board.ranks[self.member]]))
    }
}
