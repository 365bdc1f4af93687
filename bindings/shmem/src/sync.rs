//! Synchronisation of a group of ranks by words of each of them.
//!
//! In round k a member adds one to word k of the member 2^k places behind it, and takes one from
//! its own (Hensgen, Finkel and Manber, 1988). Each word has one sender, who is ahead by one
//! synchronisation at most. So a group may come together again at once, and leaves zeros behind.
//!
//! A sender wakes the receiver's rank behind its add, if a thread of that rank sleeps.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | round k | the sender's add | the receiver's load | what the sender has written or heard of |

use std::sync::atomic::{self, Ordering};

use shmccl::sync::atomic::AtomicU64;

use crate::control::WORLD_SLOT;
use crate::wait::{self, AwaitedWord};
use crate::world::world;

/// Ranks that call something together: each so many after the one before.
#[derive(Clone, Copy)]
pub(crate) struct StridedRanks {
    pub(crate) start: isize,
    pub(crate) stride: isize,
    pub(crate) size: usize,
}

impl StridedRanks {
    /// Returns the rank in the job of a member.
    #[inline]
    pub(crate) fn member(self, index: usize) -> usize {
        (self.start + index.cast_signed() * self.stride).cast_unsigned()
    }

    /// Returns which member a rank of the job is.
    pub(crate) fn index_of(self, rank: usize) -> Option<usize> {
        (0..self.size).find(|index| self.member(*index) == rank)
    }
}

/// A group that synchronises: its ranks, which of them this one is, and its words here.
#[derive(Clone, Copy)]
pub(crate) struct TeamGroup {
    pub(crate) ranks: StridedRanks,
    pub(crate) me: usize,
    pub(crate) words: *const AtomicU64,
}

impl TeamGroup {
    /// Returns where member `index` has what this rank has at `address`.
    #[inline]
    pub(crate) fn at<T>(&self, address: *const T, index: usize) -> *mut T {
        world().at(address, self.ranks.member(index))
    }

    /// Returns a word of a member.
    fn word(&self, word: usize, index: usize) -> &AtomicU64 {
        // SAFETY: each member has these words in its mapped heap as long as the group.
        unsafe { &*self.at(self.words.wrapping_add(word), index) }
    }

    /// Shows a number to the others, once they have come together.
    pub(crate) fn show(&self, word: usize, value: u64) {
        // Relaxed: the next synchronisation carries it.
        self.word(word, self.me).store(value, Ordering::Relaxed);
    }

    /// Returns what a member has shown before the last synchronisation.
    pub(crate) fn shown(&self, word: usize, index: usize) -> u64 {
        // Relaxed: that synchronisation has carried it.
        self.word(word, index).load(Ordering::Relaxed)
    }

    /// Returns when all members have called it.
    pub(crate) fn sync(&self, call: &'static str) {
        let size = self.ranks.size;
        for round in (0..).take_while(|round| 1 << round < size) {
            let distance = 1 << round;
            let behind = (self.me + distance) % size;
            // The round's release.
            self.word(round, behind).fetch_add(1, Ordering::Release);
            world().wake(self.ranks.member(behind));
            let own = self.word(round, self.me);
            let sender = self.ranks.member((self.me + size - distance) % size);
            // The round's acquire.
            let has_come = || own.load(Ordering::Acquire) > 0;
            wait::until(AwaitedWord { call, rank: Some(sender) }, has_come);
            // Relaxed: only the sender of this word and this rank change it.
            own.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns the group of all ranks.
fn all() -> TeamGroup {
    let world = world();
    let ranks = StridedRanks { start: 0, stride: 1, size: world.n };
    TeamGroup { ranks, me: world.me, words: world.control.slot(WORLD_SLOT) }
}

pub(crate) fn sync_all() {
    all().sync("shmem_sync_all");
}

pub(crate) fn barrier_all() {
    // What a rank has written before is in order before its first release.
    atomic::fence(Ordering::SeqCst);
    all().sync("shmem_barrier_all");
}
