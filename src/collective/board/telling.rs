//! What a member tells of its operations to whoever looks on from outside.
//!
//! Of a small operation it tells when a wait in it has turned out long, and otherwise nothing: its post is there to be read. Larger ones
//! take microseconds, so that a few words of the member's own cost nothing: it tells when they begin and when they are over.

use super::Board;
use crate::collective::operation::{Operation, Summary};
use crate::rank::RankSet;
use crate::sync::WaitingIn;

impl Board {
    /// Tells that this member is in the call `summary`; again when it is known how that is done.
    pub(crate) fn tell_operation(&mut self, summary: Summary) {
        let first = *self.large.get_or_insert(self.sequence);
        self.fabric.activity().begin_operation(summary.words(), first.wrapping_add(1));
    }

    /// Tells that the operation is over, into which this member has put `len` bytes.
    pub(crate) fn tell_done(&mut self, len: u64) {
        if self.large.take().is_some() {
            self.fabric.activity().end_operation(len);
        }
    }

    /// Tells that all members have refused the operation.
    pub(crate) fn tell_refused(&mut self) {
        if self.large.take().is_some() {
            self.fabric.activity().drop_operation();
        }
    }

    /// What this member tells of a wait for `awaited` in `operation`.
    pub(super) fn waiting_in(&self, operation: Operation, awaited: RankSet) -> WaitingIn {
        let small = || (self.call(operation).words(), self.posted);
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
        if self.is_shown {
            self.fabric.activity().hide_board(self.base.get(), self.sequence);
        }
    }
}
