//! How far a message is at one of its ends, and what that end was called for: all of it but the
//! elements.

use crate::collective::call::{CallSignature, Operation};
use crate::collective::rendezvous::members::Members;
use crate::error::Result;
use crate::heap::HeapOffset;

/// The length of a header in bytes.
pub(super) const HEADER_LEN: u64 = 32;

/// The length of a cache line in bytes.
const LINE: u64 = 64;

/// The place of a message whose elements are in the slots themselves.
pub(super) const HERE: u64 = u64::MAX;

/// The peer of a receive from any member that has no message yet.
pub(super) const ANY_SOURCE: usize = usize::MAX;

/// What is in front of a pipe, for the receive that looks there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front<T> {
    /// Nothing that it can tell of.
    Nothing,
    /// The message of this receive.
    Own(T),
    /// A message that it passes over.
    Other,
}

/// Returns the most bytes of elements in one fragment.
#[inline]
pub(super) fn capacity(members: &Members) -> u64 {
    members.layout().fragment_len() - LINE
}

/// Returns where the elements start in the fragments of a message of `len` bytes.
#[inline]
pub(super) fn body_at(len: u64) -> u64 {
    if len <= LINE - HEADER_LEN { HEADER_LEN } else { LINE }
}

/// One end of a message, whatever its elements are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageState {
    /// What this member has called.
    pub(crate) signature: CallSignature,
    pub(crate) operation: Operation,
    /// The member at the other end, or [`ANY_SOURCE`].
    pub(crate) peer: usize,
    /// How many bytes this member has for it, or room.
    pub(crate) len: u64,
    /// Bytes that have gone into the pipe, or come out of it.
    pub(crate) moved: u64,
    pub(crate) stage: MessageStage,
}

/// How far a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageStage {
    /// No fragment yet.
    Fresh,
    /// Some fragments.
    Begun,
    /// Its only fragment, of this number, is in the pipe.
    AwaitsGet(u64),
    Done,
}

impl MessageState {
    /// Returns whether there is nothing left to do at this end.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.stage == MessageStage::Done
    }

    /// Returns whether it may receive a message of `source`.
    pub(super) fn may_come_from(&self, source: usize) -> bool {
        self.peer == source || self.peer == ANY_SOURCE
    }

    /// Returns whether it is to receive a message of `source` that was sent like `sent`.
    pub(super) fn is_for(&self, source: usize, sent: CallSignature) -> bool {
        self.may_come_from(source) && self.signature.receives(sent)
    }

    /// Returns whether nothing was done for it yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.stage == MessageStage::Fresh
    }

    /// Returns whether nothing more of it will be sent: a later one may follow.
    #[inline]
    pub(super) fn is_in_pipe(&self) -> bool {
        matches!(self.stage, MessageStage::AwaitsGet(_) | MessageStage::Done)
    }

    /// Returns the header of the fragment numbered `number`, if it has one; `exposed` is where a
    /// rendezvous get finds the elements.
    #[inline]
    pub(super) fn header(&self, exposed: Option<HeapOffset>, number: u64) -> Option<[u64; 4]> {
        let [signature, count] = self.signature.words();
        let place = exposed.map_or(HERE, HeapOffset::get);
        (self.stage == MessageStage::Fresh).then_some([signature, count, place, number])
    }

    /// Holds the header of fragment `number` against what was called for, and returns where the
    /// elements are.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`].
    #[inline]
    pub(super) fn check(&self, members: &Members, header: [u64; 4], number: u64) -> Result<Front<u64>> {
        let [signature, count, place, sent_as] = header;
        let theirs = CallSignature::from_words([signature, count]);
        if self.signature.answers(theirs) && sent_as == number {
            Ok(Front::Own(place))
        } else {
            self.other(members, theirs)
        }
    }

    /// Says that a message like `theirs`, which is not the one that was called for, is another's.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] where it cannot be.
    #[cold]
    pub(super) fn other<T>(&self, members: &Members, theirs: CallSignature) -> Result<Front<T>> {
        if theirs.may_be_passed_over() && !self.signature.receives(theirs) {
            return Ok(Front::Other);
        }
        Err(members.board.report_mismatch(self.peer, self.signature, theirs))
    }
}
