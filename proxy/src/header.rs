//! What lies in shared memory: the header of a fifo, its slots, and the roster of the fifos of one
//! service.
//!
//! Atomic integers only. All-zero bytes are the valid initial state. Each group of fields that has
//! one writer has a pair of cache lines of its own (128 bytes: the adjacent-line prefetcher pairs
//! lines). So counting costs the writer a store into a line that it owns.
//!
//! | field | bytes | written by | read by |
//! |---|---|---|---|
//! | `head` | 0..128 | producers: positions reserved | a draining consumer, snapshot |
//! | `tail` | 128..256 | consumer: positions popped | producers of a full ring, snapshot |
//! | `completed` | 256..384 | consumer: one past the last flushed position | flushing producers |
//! | `places` | 384..512 | producers that come and go: bit `i` = stalls `i` | producers, service |
//! | `service` | 512..640 | consumer: refusals, skips, depth | snapshot |
//! | `service_time` | 640..896 | consumer: bucket `i` counts times of `2^i` ns and up | snapshot |
//! | `stalls` | 896..4992 | producer with the place: pushes that found the ring full | snapshot |
//!
//! A slot is two words, see [`crate::trigger`]. Bit 63 of word 1 is the parity of the lap: a slot
//! at position `p` of a ring of `n` is committed when the bit is the opposite of bit 0 of `p / n`.
//! Slots are never cleared.
//!
//! **Roster.** A service may be responsible for many fifos of which few have producers. A look at
//! each of them in every turn would cost the fifos that are in use. So every producer that takes a
//! place in a fifo, or has given one back, adds one to a word that all fifos of the service share.
//! Only when a turn finds another number there, the service goes through the headers.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | F6 come and go | `count_change`: count | `attend` | place taken or given back; `head` then |
//!
//! A producer is counted before its first push. So a service that finds the trigger's doorbell rung
//! finds the count changed. A forged count makes the service go through the headers in vain.

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU64, Ordering};
use crate::trigger::{COMMIT_BIT, Trigger};

/// How many [`SharedProducer`](crate::SharedProducer)s one fifo takes at a time.
pub const MAX_PRODUCERS: usize = if cfg!(loom) { 3 } else { 32 };

/// How many buckets the service-time histogram has; the last one counts everything from 2^31 ns up.
pub const BUCKETS: usize = if cfg!(loom) { 2 } else { 32 };

/// The shared state of a fifo, apart from its slots. See the field table of [this module](self).
#[derive(Debug, Default)]
#[repr(C)]
pub struct FifoHeader {
    pub(crate) head: CachePadded<AtomicU64>,
    pub(crate) tail: CachePadded<AtomicU64>,
    pub(crate) completed: CachePadded<AtomicU64>,
    pub(crate) places: CachePadded<AtomicU64>,
    pub(crate) service: CachePadded<ServiceCounters>,
    pub(crate) service_time: CachePadded<[AtomicU64; BUCKETS]>,
    /// Pushes of each producer that found the ring full.
    pub(crate) stalls: [CachePadded<AtomicU64>; MAX_PRODUCERS],
}

impl FifoHeader {
    /// Publishes that `position` and all before it were served. Edge F3.
    #[inline]
    pub(crate) fn complete(&self, position: u64) {
        self.completed.store(position.wrapping_add(1), Ordering::Release); // F3 complete
    }
}

/// What the consumer counts apart from its position.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ServiceCounters {
    /// Triggers refused.
    pub(crate) refused: AtomicU64,
    /// Positions that held no trigger: abandoned by their producer.
    pub(crate) skipped: AtomicU64,
    /// The most positions that were seen in flight.
    pub(crate) depth_high_water: AtomicU64,
    /// The last refused trigger: its position, both words, the reason.
    pub(crate) last_refused: [AtomicU64; 4],
}

/// One entry of the ring.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Slot {
    word0: AtomicU64,
    word1: AtomicU64,
}

impl Slot {
    /// Writes `words` with the commit bit `commit`. Only the holder of the position calls this.
    #[inline]
    pub(crate) fn publish(&self, words: [u64; 2], commit: u64) {
        self.word0.store(words[0], Ordering::Relaxed); // relaxed: the store of word 1 publishes it
        self.word1.store(words[1] | commit, Ordering::Release); // F1 publish
    }

    /// Reads the trigger, when the commit bit is `commit`.
    #[inline]
    pub(crate) fn read(&self, commit: u64) -> Option<Trigger> {
        let word1 = self.word1.load(Ordering::Acquire); // F1 publish
        if !shows(word1, commit) {
            return None;
        }
        let word0 = self.word0.load(Ordering::Relaxed); // relaxed: the load of word 1 acquired it
        Some(Trigger::from_words([word0, word1]))
    }

    /// Reads the trigger of whichever lap it is; for reports, as what is being written may come out
    /// mixed.
    #[must_use]
    pub fn read_any_lap(&self) -> Trigger {
        let words = [&self.word0, &self.word1];
        Trigger::from_words(words.map(|word| word.load(Ordering::Relaxed))) // relaxed: nothing is concluded from it
    }

    /// Returns whether the commit bit is `commit`; reads nothing that the slot publishes.
    #[inline]
    pub(crate) fn is_committed(&self, commit: u64) -> bool {
        let word1 = self.word1.load(Ordering::Relaxed); // relaxed: only the bit counts, no data are read
        shows(word1, commit)
    }
}

/// Returns whether the commit bit of `word1` is `commit`: a look at a sign, which needs no mask in
/// a register.
#[inline]
fn shows(word1: u64, commit: u64) -> bool {
    word1 ^ commit < COMMIT_BIT
}

/// How often producers have come to the fifos of one service, or gone.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | `changes` | 0..8 | producers of any fifo that come or go | the service, every turn |
#[derive(Debug, Default)]
#[repr(C)]
pub struct Roster {
    changes: AtomicU64,
}

impl Roster {
    /// Tells the service that a producer was made, before its first push, or dropped.
    ///
    /// # Ordering
    /// Edge F6.
    pub fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Release); // F6 come and go
    }

    /// Returns the count, which tells whether anything has changed since another look.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire) // F6 come and go
    }
}

#[cfg(all(not(loom), any(target_arch = "x86_64", target_arch = "aarch64")))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(offset_of!(FifoHeader, head) == 0);
    assert!(offset_of!(FifoHeader, tail) == 128);
    assert!(offset_of!(FifoHeader, completed) == 256);
    assert!(offset_of!(FifoHeader, places) == 384);
    assert!(offset_of!(FifoHeader, service) == 512);
    assert!(offset_of!(FifoHeader, service_time) == 640);
    assert!(offset_of!(FifoHeader, stalls) == 896);
    assert!(size_of::<FifoHeader>() == 4992 && align_of::<FifoHeader>() == 128);
    assert!(offset_of!(ServiceCounters, refused) == 0);
    assert!(offset_of!(ServiceCounters, skipped) == 8);
    assert!(offset_of!(ServiceCounters, depth_high_water) == 16);
    assert!(offset_of!(ServiceCounters, last_refused) == 24);
    assert!(offset_of!(Slot, word0) == 0 && offset_of!(Slot, word1) == 8);
    assert!(size_of::<Slot>() == 16 && align_of::<Slot>() == 16);
    assert!(size_of::<Roster>() == 8);
};
