//! Reports of a member on its operations, for onlookers outside the job.
//!
//! Of a small operation it tells when a wait in it has turned out long, and otherwise nothing: its
//! post is there to be read. Larger ones take microseconds, so that a few words of the member's own
//! cost nothing: it tells when they begin and when they are over.

use super::board::CallBoard;
use crate::collective::call::{CallSignature, Operation};
use crate::rank::RankSet;
use crate::sync::WaitingIn;

impl CallBoard {
    /// Tells that this member is in the call `signature`, the next one.
    pub(crate) fn report_call(&mut self, signature: CallSignature) {
        self.report_as(self.number().wrapping_add(1), signature);
    }

    /// Tells that this member is in the call `signature`, which it has just posted and puts `len`
    /// bytes into, and how that is done as far as it knows.
    pub(crate) fn report_posted(&mut self, signature: CallSignature, len: u64) {
        self.report_choice(signature);
        self.context.activity().count_operation(len);
    }

    /// Tells that this member has delivered all messages of a batch.
    #[inline]
    pub(crate) fn report_delivered(&self) {
        self.progress[self.me].count_delivery();
    }

    /// Tells the same when all members know better.
    pub(crate) fn report_choice(&mut self, signature: CallSignature) {
        self.report_as(self.number(), signature);
    }

    fn report_as(&mut self, number: u64, signature: CallSignature) {
        let number = *self.reported_call.get_or_insert(number);
        self.context.activity().begin_operation(signature.words(), number);
    }

    /// Returns how many operations the caller has begun here.
    pub(crate) fn number(&self) -> u64 {
        self.sequence.wrapping_sub(self.inner_steps)
    }

    /// Takes `n` numbers, of the past or the next ones, for steps within an operation that is
    /// counted as one.
    pub(crate) fn count_inner_steps(&mut self, n: u64) {
        self.inner_steps = self.inner_steps.wrapping_add(n);
        self.progress[self.me].set_inner_steps(self.inner_steps);
    }

    /// Tells that the operation is over.
    pub(crate) fn report_done(&mut self) {
        if self.reported_call.take().is_some() {
            self.context.activity().end_operation();
        }
    }

    /// Tells that the operation, which has taken several numbers and no [`CallBoard::step`], is
    /// over: it counts as one.
    pub(crate) fn report_end_of_several(&mut self, is_done: bool) {
        let Some(number) = self.reported_call else { return };
        self.count_inner_steps(self.number().saturating_sub(number));
        match (is_done, self.context.mapped().revocation().read()) {
            (true, _) => {
                self.context.activity().count_operation(0);
                self.report_done();
            }
            (false, None) => self.report_refused(),
            // The report keeps what the wait was about that was given up.
            (false, Some(_)) => self.reported_call = None,
        }
    }

    /// Tells that all numbers so far were those of steps.
    pub(crate) fn report_none(&mut self) {
        self.count_inner_steps(self.number());
        self.report_refused();
    }

    /// Tells that all members have refused the operation.
    pub(crate) fn report_refused(&mut self) {
        if self.reported_call.take().is_some() {
            self.context.activity().drop_operation();
        }
    }

    /// Returns what this member tells of a wait for `awaited` in `operation`.
    pub(super) fn waiting_in(&self, operation: Operation, awaited: RankSet) -> WaitingIn {
        let small = || (self.call(operation).words(), self.number());
        WaitingIn {
            call: self.reported_call.is_none().then(small),
            kind: 0,
            step: self.reported_call.map_or(0, |_| self.sequence.wrapping_sub(self.posted)),
            awaited,
        }
    }
}

impl Drop for CallBoard {
    fn drop(&mut self) {
        let _held = self.context.mapped().hold_boards();
        self.context.activity().hide_board(self.base.get(), self.number());
    }
}
