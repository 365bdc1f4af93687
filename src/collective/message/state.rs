//! How far a parcel is at one of its ends, and what that end was called for: all of it but the elements.

use crate::collective::call::{Operation, Summary};
use crate::collective::rendezvous::members::Team;
use crate::error::Result;
use crate::heap::HeapOffset;

/// The length of a header in bytes.
pub(super) const HEADER_LEN: u64 = 32;

/// The length of a cache line in bytes.
const LINE: u64 = 64;

/// The place of a parcel whose elements are in the slots themselves.
pub(super) const HERE: u64 = u64::MAX;

/// The most bytes of elements in one message.
#[inline]
pub(super) fn capacity(team: &Team) -> u64 {
    team.layout().letter_len() - LINE
}

/// Where the elements start in the messages of a parcel of `len` bytes.
#[inline]
pub(super) fn body_at(len: u64) -> u64 {
    if len <= LINE - HEADER_LEN { HEADER_LEN } else { LINE }
}

/// One end of a parcel, whatever its elements are in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    /// What this member has called.
    pub(super) summary: Summary,
    pub(super) operation: Operation,
    /// The member at the other end.
    pub(super) peer: usize,
    /// How many bytes this member has for it, or room.
    pub(super) len: u64,
    /// Bytes that have gone into the pipe, or come out of it.
    pub(super) moved: u64,
    pub(super) stage: Stage,
}

/// How far a parcel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No message yet.
    Fresh,
    /// Some messages.
    Begun,
    /// Its only message, of this number, is in the pipe.
    Lent(u64),
    Done,
}

impl Course {
    /// Whether nothing more of it will be sent.
    #[inline]
    pub(super) fn is_in_pipe(&self) -> bool {
        matches!(self.stage, Stage::Lent(_) | Stage::Done)
    }

    /// The header of the message numbered `number`, if it has one, where the elements are `lent` from.
    #[inline]
    pub(super) fn header(&self, lent: Option<HeapOffset>, number: u64) -> Option<[u64; 4]> {
        let [signature, count] = self.summary.words();
        let place = lent.map_or(HERE, HeapOffset::get);
        (self.stage == Stage::Fresh).then_some([signature, count, place, number])
    }

    /// Holds the header of message `number` against what was called for, and returns where the elements are.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`].
    #[inline]
    pub(super) fn check(&self, team: &Team, header: [u64; 4], number: u64) -> Result<u64> {
        let [signature, count, place, sent_as] = header;
        let theirs = Summary::from_words([signature, count]);
        if self.summary.answers(theirs) && sent_as == number {
            Ok(place)
        } else {
            Err(team.board.complain(self.peer, self.summary, theirs))
        }
    }
}
