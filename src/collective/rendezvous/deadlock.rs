//! Two members that wait for messages of each other, of which none will come: both receive, or both
//! send more than has room, or one sends what the other can pass over no more.
//!
//! Only the two members move the messages between them, each in the one call that has the
//! communicator's engine. So if each of them has only receives from the other left, or only sends
//! to it, and nothing of the other's to take, both wait for ever. That has to be certain: a member
//! that tells of its wait may be about to go on, since what it waits for has just come. So each
//! looks twice, in a wait that has come to its first sleep:
//!
//! 1. A member posts a *notice* for the other: that it waits, in what call, in which direction. The
//!    notices to one member are numbered, and a wait in which anything moves ends. So while notice
//!    n is up, its member does nothing for the other.
//! 2. A member that reads notice m of the other looks for messages once more. If there are none, it
//!    tells in its own notice n that it has *seen* m: it has taken all that the other did before m,
//!    and still waits (C1).
//! 3. A member that finds its own number n seen in notice m of the other, and has seen m itself,
//!    has proof. Each of them waits with nothing left to take of what the other did before its
//!    notice, and neither has done anything since.
//!
//! What a proxy moves for a member has moved when that member waits: it has flushed before.
//!
//! Circles of more than two members are not detected here, and end with the deadline.

use crate::collective::call::CallSignature;
use crate::collective::region::CellsBetween;
use crate::sync::PostCell;

/// Which way all messages go that are left between two members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageDirection {
    Sent = 1,
    Received,
    /// Received, behind a message for which there is no room.
    Stalled,
}

impl MessageDirection {
    /// Returns whether a member that waits so and one that waits so in turn both get nothing.
    fn opposes(self, theirs: u64) -> bool {
        let is = |direction: Self| theirs == direction as u64;
        match self {
            Self::Sent => is(Self::Sent) || is(Self::Stalled),
            Self::Received => is(Self::Received) || is(Self::Stalled),
            Self::Stalled => is(Self::Sent) || is(Self::Received) || is(Self::Stalled),
        }
    }
}

/// What a member has put up for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeadlockNotice {
    pub(crate) number: u64,
    /// The call that it waits in.
    pub(crate) call: CallSignature,
    /// The [mark](stamp_of) of the other one's notice that it has seen, and still waits; 0 for
    /// none.
    pub(crate) seen: u64,
    direction: u64,
}

/// The notices between one member and the others.
#[derive(Debug)]
pub(crate) struct DeadlockNotices(pub(super) CellsBetween<PostCell>);

impl DeadlockNotices {
    /// Puts up a new notice for `member`.
    pub(crate) fn post(&self, member: usize, call: CallSignature, direction: MessageDirection) {
        let number = self.0.mine[member].sequence() + 1;
        write(&self.0.mine[member], DeadlockNotice { number, call, seen: 0, direction: direction as u64 });
    }

    /// Tells `member`, for which a notice is up, that its notice `number` was seen; whether that is
    /// news.
    pub(crate) fn tell_seen(&self, member: usize, number: u64) -> bool {
        let (mine, seen) = (read(&self.0.mine[member]), stamp_of(number));
        let is_news = mine.seen != seen;
        if is_news {
            write(&self.0.mine[member], DeadlockNotice { seen, ..mine });
        }
        is_news
    }

    /// Takes the notice for `member` down.
    pub(crate) fn withdraw(&self, member: usize) {
        write(&self.0.mine[member], DeadlockNotice { direction: 0, seen: 0, ..read(&self.0.mine[member]) });
    }

    /// Returns whether `theirs`, a notice of `member`, tells that the one for it was seen.
    pub(crate) fn is_seen(&self, member: usize, theirs: DeadlockNotice) -> bool {
        theirs.seen == stamp_of(self.0.mine[member].sequence())
    }

    /// Returns the notice of `member`, if that waits for something that it does not get from this
    /// one, which waits in `direction`.
    ///
    /// # Ordering
    /// When there is one, acquires everything that member did before it put that up (C1).
    pub(crate) fn opposing(&self, member: usize, direction: MessageDirection) -> Option<DeadlockNotice> {
        let notice = read(&self.0.for_me[member]);
        direction.opposes(notice.direction).then_some(notice)
    }
}

/// Returns the half of a word that tells a notice from any other that may be up at the same time,
/// and from none.
fn stamp_of(number: u64) -> u64 {
    const ANY: u64 = 1 << (STAMP_BITS - 1);
    number & (ANY - 1) | ANY
}

/// The bits of half a word.
const STAMP_BITS: u32 = 32;

fn write(cell: &PostCell, DeadlockNotice { number, call, seen, direction }: DeadlockNotice) {
    let [signature, count] = call.words();
    cell.post(number, [seen << STAMP_BITS | stamp_of(number), direction, signature, count], &[]);
}

/// Returns what is in `cell`. A notice that is just written over may be read as neither this nor
/// that one. But what it has seen is in one word with its own stamp, and counts with that alone. A
/// member whose notice has seen one that is seen goes on no more, so that its notice is whole.
fn read(cell: &PostCell) -> DeadlockNotice {
    let number = cell.sequence();
    // It shows that, or a later one: this is for the edge.
    let _shown = cell.shows(number);
    let call = CallSignature::from_words([cell.word(2), cell.word(3)]);
    let word = cell.word(0);
    let is_its_own = word & ((1 << STAMP_BITS) - 1) == stamp_of(number);
    DeadlockNotice {
        number,
        call,
        seen: if is_its_own { word >> STAMP_BITS } else { 0 },
        direction: cell.word(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;

    #[test]
    fn what_a_notice_has_seen_counts_with_its_own_number_alone() {
        let cell = PostCell::default();
        assert_eq!(read(&cell).seen, 0);
        for number in [1, 7, (1 << 31) - 1, 1 << 31, 1 << 32, u64::MAX] {
            let call = CallSignature::new(Operation::Recv);
            let notice = DeadlockNotice { number, call, seen: stamp_of(number), direction: 2 };
            write(&cell, notice);
            assert_eq!(read(&cell), notice);
            write(&cell, DeadlockNotice { seen: 0, ..notice });
            assert_eq!(read(&cell).seen, 0);
            // The next one is being written, or was, since the number was read.
            let next = stamp_of(3) << STAMP_BITS | stamp_of(number.wrapping_add(1));
            cell.post(number, [next, 2, 0, 0], &[]);
            assert_eq!(read(&cell).seen, 0, "{number}");
        }
    }
}
