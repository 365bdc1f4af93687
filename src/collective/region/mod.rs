//! What a communicator keeps in each member's memory, and where.
//!
//! A member's region lies in its own part of the symmetric heap, at an offset that the member has
//! chosen and told the others. So the regions of one communicator need not start alike. In bytes
//! from the start, for n members:
//!
//! | what | bytes | written by |
//! |---|---|---|
//! | park word: members asleep (member 0's is used) | 128 | all members |
//! | progress | 128 | the member |
//! | posts | [`LAP`] x 128 | the member |
//! | semaphores of pipes, one per member | n x 128 | that member |
//! | credits of pipes, one per member | n x 128 | the member |
//! | departures: which members have left (`lease`) | n x 128 | that member |
//! | mismatch reports, one per member: the call that it was found in | n x 128 | the member |
//! | waits, one per member: the last operation in which it was awaited | n x 128 | the member |
//! | deadlock notices, one per member (`rendezvous/deadlock.rs`) | n x 128 | the member |
//! | checksums of fragments (`transport/checksum.rs`), per member | n x 64 | that member |
//! | checksums of what is staged, beside each of those | n x 64 | that member, the member |
//! | inline messages, [`PIPE_SLOTS`] per member | n x slots x 128 | that member |
//! | eager slots: data of eager calls, one per post | [`LAP`] x [`EAGER_LEN`] | the member |
//! | inboxes of pipes: [`PIPE_SLOTS`] slots per member | n x slots x slot length | that member |
//! | send staging: what is made to be sent | slots x slot length | the member |
//! | staging area: what is staged, and results in its place | [`STAGING_LEN`] | all members |
//!
//! Tried by its unit tests and `scenarios communicators:: arenas::`.

pub(crate) mod lease;

use crate::error::Result;
use crate::heap::{HeapOffset, HeapView, Region};
use crate::rank::Rank;
use crate::shm::{CellRef, SharedLayout};

/// Posts in a ring: so many operations may a rank be ahead of its slowest peer.
pub(crate) const LAP: u64 = TURNS as u64;

/// [`LAP`] as a length.
pub(crate) const TURNS: usize = 8;

/// The most bytes that one operation may leave in the eager slot.
pub(crate) const EAGER_LEN: u64 = 8 << 10;

/// Slots of a pipe's inbox.
pub(crate) const PIPE_SLOTS: u64 = 4;

/// The staging area of a member, in bytes: some more than the pieces of staged data, which do not
/// begin where a line does.
pub(crate) const STAGING_LEN: u64 = (1 << 20) + (4 << 10);

/// A pair of cache lines: what one writer writes shares its pair with nobody.
const CELL: u64 = 128;

/// The parts of a region in a communicator of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommLayout {
    n_members: u64,
}

impl CommLayout {
    pub(crate) const fn new(n_members: u64) -> Self {
        Self { n_members }
    }

    /// Where the park word is.
    pub(crate) const PARK: u64 = 0;
    /// Where the progress cell is.
    pub(crate) const PROGRESS: u64 = CELL;
    /// Where the posts start.
    pub(crate) const POSTS: u64 = 2 * CELL;
    /// The most that an operation takes which is not counted where ranks tell what they do.
    pub(crate) const EAGER: u64 = EAGER_LEN;
    const SEMAPHORES: u64 = Self::POSTS + LAP * CELL;

    /// Returns where the semaphore is that `sender` raises when it has filled a slot of its inbox.
    pub(crate) const fn semaphore(self, sender: u64) -> u64 {
        Self::SEMAPHORES + sender * CELL
    }

    /// Returns where the member tells `sender` how many slots of its inbox it has emptied.
    pub(crate) const fn credit(self, sender: u64) -> u64 {
        self.semaphore(self.n_members) + sender * CELL
    }

    /// Returns where `leaver` tells the member that it has left.
    pub(crate) const fn departure(self, leaver: u64) -> u64 {
        self.credit(self.n_members) + leaver * CELL
    }

    /// Returns where the member complains about a message of `sender`.
    pub(crate) const fn mismatch_report(self, sender: u64) -> u64 {
        self.departure(self.n_members) + sender * CELL
    }

    /// Returns where the member tells that it waits for `awaited`.
    pub(crate) const fn waits_for(self, awaited: u64) -> u64 {
        self.mismatch_report(self.n_members) + awaited * CELL
    }

    /// Returns where the member puts up its notice for `reader`.
    pub(crate) const fn notice(self, reader: u64) -> u64 {
        self.waits_for(self.n_members) + reader * CELL
    }

    /// Returns where `sender` tells the checksums of what it has put into its inbox.
    pub(crate) const fn checks(self, sender: u64) -> u64 {
        self.notice(self.n_members) + sender * CELL
    }

    /// Returns where the checksums are of part number `index` of what the member stages: the other
    /// line of that pair.
    pub(crate) const fn staged_checks(self, index: u64) -> u64 {
        self.checks(index) + CELL / 2
    }

    /// Returns where the inline messages of `sender` are.
    pub(crate) const fn inline_messages(self, sender: u64) -> u64 {
        self.checks(self.n_members) + sender * PIPE_SLOTS * CELL
    }

    const fn eager_start(self) -> u64 {
        self.inline_messages(self.n_members).next_multiple_of(4096)
    }

    /// Returns where the eager slot of post number `turn` of the ring is.
    pub(crate) const fn eager_slot(self, turn: u64) -> u64 {
        self.eager_start() + turn * EAGER_LEN
    }

    /// Returns the length of a slot of a pipe in bytes: smaller where there are many members.
    pub(crate) const fn slot_len(self) -> u64 {
        let fair = ((512 << 10) / PIPE_SLOTS / self.n_members).next_power_of_two();
        // From 64 members on all inboxes take 2 MiB together.
        let least = ((2 << 20) / PIPE_SLOTS / self.n_members).next_power_of_two();
        if fair > 64 << 10 {
            64 << 10
        } else if fair < 8 << 10 {
            if least < 8 << 10 { least } else { 8 << 10 }
        } else {
            fair
        }
    }

    /// Returns the most bytes of a message in one message, its header included. So many of them can
    /// be made in the staging area that each slot of each pipe has a place of its own there.
    pub(crate) const fn fragment_len(self) -> u64 {
        let fair = STAGING_LEN / (self.n_members * PIPE_SLOTS) / CELL * CELL;
        if fair < self.slot_len() { fair } else { self.slot_len() }
    }

    /// Returns where the fragment for slot number `slot` of the inbox of `receiver` is made, where
    /// it has to be made in this member's heap.
    pub(crate) const fn bounce(self, receiver: u64, slot: u64) -> u64 {
        self.staging() + (receiver * PIPE_SLOTS + slot) * self.fragment_len()
    }

    /// Returns where slot number `slot` of the inbox for `sender` is.
    pub(crate) const fn slot(self, sender: u64, slot: u64) -> u64 {
        self.eager_slot(LAP) + (sender * PIPE_SLOTS + slot) * self.slot_len()
    }

    /// Returns where the send staging starts.
    pub(crate) const fn send_staging(self) -> u64 {
        self.slot(self.n_members, 0)
    }

    /// Returns the length of the send staging in bytes.
    pub(crate) const fn send_staging_len(self) -> u64 {
        PIPE_SLOTS * self.slot_len()
    }

    /// Returns where the staging area starts.
    pub(crate) const fn staging(self) -> u64 {
        self.send_staging() + self.send_staging_len()
    }

    /// Returns the length of the region in bytes.
    pub(crate) const fn len(self) -> u64 {
        self.staging() + STAGING_LEN
    }

    /// Returns `len` bytes at `at` of the region that starts at `base`.
    pub(crate) fn part(self, base: HeapOffset, at: u64, len: u64) -> Result<Region> {
        Region::new(base, self.len()).part(at, len)
    }
}

/// Cells that members keep for one another, as one of them sees them: by the number of the other.
#[derive(Debug)]
pub(crate) struct CellsBetween<T: SharedLayout> {
    /// What this member keeps for each.
    pub(crate) mine: Vec<CellRef<T>>,
    /// What each keeps for this member.
    pub(crate) for_me: Vec<CellRef<T>>,
}

impl<T: SharedLayout> CellsBetween<T> {
    /// Finds those of the member `me` of `ranks`, `at` that place in the keeper's region; the
    /// regions start at `bases`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] and [`crate::Error::Misaligned`] for a base that is not where a
    /// region can be.
    pub(crate) fn new(
        view: &HeapView,
        ranks: &[Rank],
        bases: &[HeapOffset],
        me: usize,
        at: impl Fn(CommLayout, u64) -> u64,
    ) -> Result<Self> {
        let layout = CommLayout::new(ranks.len() as u64);
        let cell = |keeper: usize, other: usize| {
            let place = layout.part(bases[keeper], at(layout, other as u64), CELL)?;
            view.cell(ranks[keeper], place.offset)
        };
        let all = || 0..ranks.len();
        Ok(Self {
            mine: all().map(|member| cell(me, member)).collect::<Result<_>>()?,
            for_me: all().map(|member| cell(member, me)).collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_follow_each_other_and_none_overlaps() {
        for n in [1, 2, 3, 8, 64, 65, 256] {
            let layout = CommLayout::new(n);
            let starts = [
                CommLayout::PARK,
                CommLayout::PROGRESS,
                CommLayout::POSTS,
                layout.semaphore(0),
                layout.credit(0),
                layout.departure(0),
                layout.mismatch_report(0),
                layout.waits_for(0),
                layout.notice(0),
                layout.checks(0),
                layout.inline_messages(0),
                layout.eager_slot(0),
                layout.slot(0, 0),
                layout.send_staging(),
                layout.staging(),
                layout.len(),
            ];
            assert!(
                starts.is_sorted() && starts.iter().all(|start| start.is_multiple_of(CELL)),
                "{n}: {starts:?}"
            );
            assert_eq!(layout.semaphore(n), layout.credit(0));
            assert_eq!(layout.credit(n), layout.departure(0));
            assert_eq!(layout.departure(n), layout.mismatch_report(0));
            assert_eq!(layout.mismatch_report(n), layout.waits_for(0));
            assert_eq!(layout.waits_for(n), layout.notice(0));
            assert_eq!(layout.notice(n), layout.checks(0));
            assert_eq!(layout.checks(n), layout.inline_messages(0));
            assert!(layout.inline_messages(n) <= layout.eager_slot(0));
            let least = if n > 64 { 1 << 10 } else { 4 << 10 };
            assert!(layout.bounce(n, 0) <= layout.len() && layout.fragment_len() >= least);
            assert_eq!(layout.eager_slot(LAP), layout.slot(0, 0));
            assert_eq!(layout.slot(n - 1, PIPE_SLOTS), layout.send_staging());
            assert_eq!(layout.send_staging() + layout.send_staging_len(), layout.staging());
            assert!(layout.len() < 4 << 20, "{n}: {} bytes", layout.len());
        }
    }
}
