//! Notices that one rank puts up for all its peers to read, and how far it has come.
//!
//! A rank owns a ring of [`PostCell`]s, one per sequence number of its team's operations in turn,
//! and one [`ProgressCell`]. A post carries a few words in the same pair of cache lines as its
//! *stamp*. So a reader that polls the stamp has the words with it: one line moves from core to
//! core, and nothing else.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | C1 post | `post`: stamp | `shows` | the words, and everything the rank did before |
//! | C2 done | `publish` | `has_reached` | everything the rank did up to that sequence |
//!
//! # Reuse
//! A slot is written again after a whole lap, while a slow reader may still look at its words. The
//! owner of the ring has to know that no reader does. A rank that has *posted* sequence s is done
//! with all reads of the posts before s, since it executes one operation after the other. So a rank
//! may post s when it has acquired (C1) from every peer some post numbered s - lap + 1 or later.
//! The board in `src/collective` keeps that account. Its look for a mismatch reads older posts too,
//! and believes of them what the next post vouches for.
//!
//! Sequence numbers start at 1, so that all zero bytes show nothing. A slot that shows a later
//! sequence than the one asked for (its owner has run ahead) says as much about the earlier one.

use super::atomic::{AtomicU64, Ordering, Reserved};
use super::semaphore::reached;

/// How many words a post carries.
#[cfg(not(loom))]
pub const POST_WORDS: usize = 15;
/// How many words a post carries in a model.
#[cfg(loom)]
pub const POST_WORDS: usize = 2;

/// One notice.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | stamp | 0..8 | its rank, last | all ranks |
/// | words | 8..128 | its rank | all ranks, after the stamp |
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct PostCell {
    stamp: AtomicU64,
    words: [AtomicU64; POST_WORDS],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<PostCell>() == 128 && align_of::<PostCell>() == 128);
    assert!(std::mem::offset_of!(PostCell, stamp) == 0 && std::mem::offset_of!(PostCell, words) == 8);
};

impl PostCell {
    /// Puts up `head` and then `data` as the notice of `sequence`; the words past them keep what
    /// they were.
    ///
    /// The caller is the only writer, and the words of the lap before are not read any more (see
    /// the module's head).
    ///
    /// # Panics
    /// When there are more words than [`POST_WORDS`].
    ///
    /// # Ordering
    /// Publishes everything before it (C1). Non-temporal stores need their own fence first.
    #[inline]
    pub fn post<const N: usize>(&self, sequence: u64, head: [u64; N], data: &[u64]) {
        let count = N + data.len();
        assert!(count <= POST_WORDS, "{count} words in a post");
        // In two loops, as the compiler unrolls the one of known length.
        let (first, rest) = self.words.split_at(N);
        for (cell, word) in first.iter().zip(head) {
            cell.store(word, Ordering::Relaxed); // Relaxed: published by the stamp
        }
        for (cell, word) in rest.iter().zip(data) {
            cell.store(*word, Ordering::Relaxed); // Relaxed: published by the stamp
        }
        self.stamp.store(sequence, Ordering::Release); // C1 post
    }

    /// Brings the cache line to this core ahead of the next notice: it would have to be fetched
    /// from the readers of the last one. `first` is the first word of the last notice, so that
    /// readers see no difference.
    ///
    /// # Ordering
    /// None.
    #[inline]
    pub fn fetch(&self, first: u64) {
        self.words[0].store(first, Ordering::Relaxed); // Relaxed: nothing changes
    }

    /// Returns whether the notice of `sequence` is up, or was.
    ///
    /// # Ordering
    /// When true, acquires everything the rank did before it (C1).
    #[inline]
    #[must_use]
    pub fn shows(&self, sequence: u64) -> bool {
        reached(self.stamp.load(Ordering::Acquire), sequence) // C1 post
    }

    /// Returns the sequence that is up, now or a moment ago; for reports.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed) // Relaxed: what is read besides may be of another notice
    }

    /// Returns word `index` of the notice that [`PostCell::shows`] has found.
    ///
    /// # Panics
    /// When `index` is not below [`POST_WORDS`].
    #[inline]
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::Relaxed) // Relaxed: ordered after the stamp by its acquire
    }
}

/// How far one rank has come, alone in its two cache lines.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | done | 0..8 | its rank | all ranks |
/// | inner_steps | 8..16 | its rank | onlookers: how many numbers were those of inner steps |
/// | delivered | 16..24 | its rank | its life thread: how many groups of messages were delivered |
/// | reserved | 24..128 | nobody | nobody |
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct ProgressCell {
    done: AtomicU64,
    inner_steps: AtomicU64,
    delivered: AtomicU64,
    reserved: Reserved<26>,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ProgressCell>() == 128 && offset_of!(ProgressCell, done) == 0);
    assert!(offset_of!(ProgressCell, inner_steps) == 8 && offset_of!(ProgressCell, delivered) == 16);
};

impl ProgressCell {
    /// Returns the cell of a rank that has come to `done`; at 0 the same as all zero bytes.
    #[must_use]
    pub fn new(done: u64) -> Self {
        Self { done: AtomicU64::new(done), ..Self::default() }
    }

    /// Tells that this rank has come to `done`. It is the only writer.
    ///
    /// # Ordering
    /// Publishes everything before it (C2). Non-temporal stores need their own fence first.
    #[inline]
    pub fn publish(&self, done: u64) {
        self.done.store(done, Ordering::Release); // C2 done
    }

    /// Returns how far the rank has come, now or a moment ago; for reports.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed) // Relaxed: nothing is read because of it
    }

    /// Tells how many numbers so far were those of steps within an operation, for reports.
    #[inline]
    pub fn set_inner_steps(&self, inner_steps: u64) {
        self.inner_steps.store(inner_steps, Ordering::Relaxed); // Relaxed: nothing is read because of it
    }

    /// Returns how many numbers so far were those of inner steps, now or a moment ago.
    #[must_use]
    pub fn inner_steps(&self) -> u64 {
        self.inner_steps.load(Ordering::Relaxed) // Relaxed: nothing is read because of it
    }

    /// Counts messages that were put together, and are all delivered. The rank is the only writer.
    #[inline]
    pub fn count_delivery(&self) {
        // A load and a store cost less than a read-modify-write, and there is no other writer.
        let delivered = self.delivered().wrapping_add(1);
        self.delivered.store(delivered, Ordering::Relaxed); // Relaxed: nothing is read because of it
    }

    /// Returns how often that was, now or a moment ago.
    #[inline]
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed) // Relaxed: nothing is read because of it
    }

    /// Returns whether the rank has come to `done`, or further.
    ///
    /// # Ordering
    /// When true, acquires everything the rank did up to there (C2).
    #[inline]
    #[must_use]
    pub fn has_reached(&self, done: u64) -> bool {
        reached(self.done.load(Ordering::Acquire), done) // C2 done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_post_shows_its_own_sequence_and_those_before() {
        let cell = PostCell::default();
        assert!(!cell.shows(1));
        cell.post(1, [7], &[8]);
        assert!(cell.shows(1) && !cell.shows(9));
        assert_eq!((cell.word(0), cell.word(1), cell.word(14)), (7, 8, 0));
        cell.fetch(7);
        assert_eq!((cell.shows(1), cell.shows(9), cell.word(0)), (true, false, 7));
        cell.post(9, [3], &[]);
        assert!(cell.shows(9) && cell.shows(1) && !cell.shows(10));
        assert_eq!((cell.word(0), cell.word(1)), (3, 8));
    }

    #[test]
    fn a_post_can_be_empty_or_full() {
        let cell = PostCell::default();
        cell.post(u64::MAX, [], &[]);
        assert!(cell.shows(u64::MAX));
        cell.post(0, [5; 4], &[5; POST_WORDS - 4]);
        assert!(cell.shows(0) && (0..POST_WORDS).all(|index| cell.word(index) == 5));
    }

    #[test]
    #[should_panic(expected = "16 words")]
    fn more_words_than_a_post_has_are_refused() {
        PostCell::default().post(1, [0], &[0; POST_WORDS]);
    }

    #[test]
    fn progress_only_grows_and_wraps() {
        let cell = ProgressCell::new(u64::MAX);
        assert!(cell.has_reached(u64::MAX) && !cell.has_reached(0));
        cell.publish(0);
        assert!(cell.has_reached(u64::MAX) && cell.has_reached(0) && !cell.has_reached(1));
        cell.set_inner_steps(3);
        cell.count_delivery();
        assert_eq!((cell.inner_steps(), cell.done(), cell.delivered()), (3, 0, 1));
    }
}
