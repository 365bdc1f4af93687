//! What a member tells of its operations to whoever looks on from outside.
//!
//! Of a small operation it tells when a wait in it has turned out long, and otherwise nothing: its post is there to be read. Larger ones
//! take microseconds, so that a few words of the member's own cost nothing: it tells when they begin and when they are over.

use super::Board;
use crate::collective::operation::{Operation, Summary};
use crate::rank::RankSet;
use crate::sync::WaitingIn;

impl Board {
    /// Tells that this member is in the call `summary`, the next one.
    pub(crate) fn tell_operation(&mut self, summary: Summary) {
        self.tell_operation_as(self.number().wrapping_add(1), summary);
    }

    /// Tells that this member is in the call `summary`, which it has just posted and puts `len` bytes into, and how that is done as far
    /// as it knows.
    pub(crate) fn tell_posted(&mut self, summary: Summary, len: u64) {
        self.tell_again(summary);
        self.context.activity().count_operation(len);
    }

    /// Tells that this member has delivered all messages of a batch.
    #[inline]
    pub(crate) fn tell_delivered(&self) {
        self.progress[self.me].count_delivery();
    }

    /// Tells the same when all members know better.
    pub(crate) fn tell_again(&mut self, summary: Summary) {
        self.tell_operation_as(self.number(), summary);
    }

    fn tell_operation_as(&mut self, number: u64, summary: Summary) {
        let number = *self.large.get_or_insert(number);
        self.context.activity().begin_operation(summary.words(), number);
    }

    /// How many operations the caller has begun here.
    pub(crate) fn number(&self) -> u64 {
        self.sequence.wrapping_sub(self.aside)
    }

    /// Takes `n` numbers, of the past or the next ones, for steps within an operation that is counted as one.
    pub(crate) fn set_aside(&mut self, n: u64) {
        self.aside = self.aside.wrapping_add(n);
        self.progress[self.me].set_inner_steps(self.aside);
    }

    /// Tells that the operation is over.
    pub(crate) fn tell_done(&mut self) {
        if self.large.take().is_some() {
            self.context.activity().end_operation();
        }
    }

    /// Tells that the operation, which has taken several numbers and no [`Board::step`], is over: it counts as one.
    pub(crate) fn tell_end_of_several(&mut self, is_done: bool) {
        let Some(number) = self.large else { return };
        self.set_aside(self.number().saturating_sub(number));
        match (is_done, self.context.mapped().revocation().read()) {
            (true, _) => {
                self.context.activity().count_operation(0);
                self.tell_done();
            }
            (false, None) => self.tell_refused(),
            // What the wait that was given up was about stays.
            (false, Some(_)) => self.large = None,
        }
    }

    /// Tells that all numbers so far were those of steps.
    pub(crate) fn tell_as_none(&mut self) {
        self.set_aside(self.number());
        self.tell_refused();
    }

    /// Tells that all members have refused the operation.
    pub(crate) fn tell_refused(&mut self) {
        if self.large.take().is_some() {
            self.context.activity().drop_operation();
        }
    }

    /// What this member tells of a wait for `awaited` in `operation`.
    pub(super) fn waiting_in(&self, operation: Operation, awaited: RankSet) -> WaitingIn {
        let small = || (self.call(operation).words(), self.number());
        WaitingIn {
            call: self.large.is_none().then(small),
            kind: 0,
            step: self.large.map_or(0, |_| self.sequence.wrapping_sub(self.posted)),
            awaited: awaited.bits(),
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _held = self.context.mapped().hold_boards();
        self.context.activity().hide_board(self.base.get(), self.number());
    }
}
