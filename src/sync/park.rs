//! Going to sleep, and waking sleepers, at no cost to a waker when nobody sleeps.
//!
//! A [`ParkCell`] is one word: bit 0 says that somebody sleeps or is about to, the bits above count
//! wakes.
//!
//! ```text
//! sleeper                                waker
//!   1 announce: set bit 0, remember word   a publish (a store to some other cell)
//!   2 heavy barrier                        b light barrier
//!   3 look for news; leave if there is     c load the word: even => done
//!   4 futex wait while the word is as in 1 d odd => word + 1, futex wake all
//! ```
//!
//! | edge | one side | other side | carries |
//! |---|---|---|---|
//! | P1 asleep | sleeper: 1, barrier, 3 | waker: a, barrier, c | either 3 sees a, or c sees 1 |
//! | P2 wake | waker: d | sleeper: 4 | the futex call does not begin, or ends |
//!
//! P1 is a store-load pair on each side ("mine first, then look at yours"), which release and
//! acquire do not order: both could look before the other's store is out of its store buffer. It
//! takes a sequentially consistent fence on each side. With both fences, one of the two comes first
//! in their total order, and the later looker sees.
//!
//! The waker's fence would sit on the path of every signal. So the sleeper, who has time, pays for
//! both. `membarrier` runs a full barrier on every core that runs a registered process, at a moment
//! between 1 and 3. At that moment the waker may be past its publish: then 3 sees it. Or it is not
//! yet there: then its c comes later and sees the bit. The waker keeps only a compiler barrier, so
//! that the program order a, c survives compilation. Models try both: the two fences, which run
//! where there is no `membarrier`, and the lopsided pair (`models/membarrier.rs`).
//!
//! The count defeats this: sleeper A announces; a waker clears the bit and wakes nobody; sleeper B,
//! who waits for something else, sets the bit again; A now goes to sleep on "bit is set" and sleeps
//! through its news.
//!
//! The word itself carries no data: after waking, a sleeper looks for its news through that news'
//! own edge. So all accesses to the word are relaxed. A waker that dies between a and d is not
//! noticed here. The rank that finds out about the death revokes, and the bell of
//! [`RevokeCell`](super::revoke::RevokeCell) wakes every sleeper.
//!
//! A [`Latch`] is the simpler case: a word that opens once, to be waited for.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | T1 open | `open` | `is_open` | everything before, such as pushes before a stop of the proxy |

use super::{
    atomic::{AtomicU32, Ordering, Reserved, fence},
    kernel::{Kernel, SleepWord},
};

const SLEEPING: u32 = 1;

/// Where the waiters for one thing (or for several) leave word that they sleep.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | word | 0..4 | sleepers, wakers | sleepers, wakers |
/// | reserved | 4..8 | nobody | nobody |
#[repr(C, align(8))]
#[derive(Debug, Default)]
pub struct ParkCell {
    word: AtomicU32,
    reserved: Reserved<1>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ParkCell>() == 8 && std::mem::offset_of!(ParkCell, word) == 0);

impl ParkCell {
    /// Wakes all sleepers on this cell. To be called after publishing what they may be waiting for.
    #[inline]
    pub fn wake<K: Kernel + ?Sized>(&self, kernel: &K) {
        if self.has_sleepers(kernel) {
            self.wake_sleepers(kernel);
        }
    }

    /// Returns whether a thread slept here a moment ago, or was about to. It shows how busy the
    /// cell is, and does not decide about a wake.
    #[inline]
    pub(crate) fn is_slept_on(&self) -> bool {
        // Relaxed: an estimate.
        self.word.load(Ordering::Relaxed) & SLEEPING != 0
    }

    /// Returns how often sleepers were woken.
    #[cfg(test)]
    pub(crate) fn wakes(&self) -> u32 {
        self.word.load(Ordering::Relaxed) >> 1 // Relaxed: for tests
    }

    /// Takes steps b and c: returns whether a sleeper (or a thread about to sleep) may have missed
    /// what was just published.
    #[inline]
    pub(crate) fn has_sleepers<K: Kernel + ?Sized>(&self, kernel: &K) -> bool {
        kernel.light_barrier(); // P1 asleep
        // Relaxed: ordered after the publishing store by the barrier (P1).
        self.word.load(Ordering::Relaxed) & SLEEPING != 0
    }

    /// Takes step d.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake_sleepers<K: Kernel + ?Sized>(&self, kernel: &K) {
        // Relaxed, as the word carries no data; the futex call orders itself against the sleeper's
        // (P2).
        let bump = |word: u32| (word & SLEEPING != 0).then(|| word.wrapping_add(1));
        if self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, bump).is_ok() {
            kernel.wake_all(&self.word);
        }
    }

    /// Takes steps 1 and 2. The caller must then look for its news once more before it sleeps on
    /// the result.
    pub(crate) fn announce<K: Kernel + ?Sized>(&self, kernel: &K) -> SleepWord<'_> {
        // Relaxed: ordered before the look at the news by the barrier (P1).
        let before = self.word.fetch_or(SLEEPING, Ordering::Relaxed);
        kernel.heavy_barrier(); // P1 asleep
        SleepWord { word: &self.word, expected: before | SLEEPING }
    }
}

const SHUT: u32 = 0;
const OPEN: u32 = 1;

/// Shut, then open for ever.
///
/// No thread can fall asleep on it once it is open, as the futex call compares the word itself. So
/// opening needs no announcement by the sleeper, only an unconditional wake.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Latch {
    word: AtomicU32,
}

impl Latch {
    /// Opens it and wakes all its sleepers. Publishes everything before (T1).
    pub fn open<K: Kernel + ?Sized>(&self, kernel: &K) {
        self.word.store(OPEN, Ordering::Release); // T1 open
        kernel.wake_all(&self.word);
    }

    /// Returns whether it is open; if so, acquires everything before it was opened (T1).
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.word.load(Ordering::Acquire) != SHUT // T1 open
    }

    /// Returns what to sleep on until it opens.
    #[must_use]
    pub fn until_open(&self) -> SleepWord<'_> {
        SleepWord { word: &self.word, expected: SHUT }
    }
}

/// Makes the waker's half of P1 where the sleeper's half covers both.
#[cfg(not(loom))]
#[inline]
pub(crate) fn compiler_barrier() {
    super::atomic::compiler_fence(Ordering::SeqCst); // keeps a before c in the program
}

/// Makes the waker's half of P1 where there is no `membarrier`.
#[inline]
pub(crate) fn waker_fence() {
    fence(Ordering::SeqCst); // P1 asleep
}

/// Makes the sleeper's half of P1 where there is no `membarrier`.
pub(crate) fn sleeper_fence() {
    fence(Ordering::SeqCst); // P1 asleep
}
