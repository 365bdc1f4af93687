//! Limits of signals, fifos and barriers: a flag, a ring and a barrier with only what the machine
//! has to do.
//!
//! A flag costs the way of a cache line from core to core, and the delay until the next poll. The
//! ring and the barrier are the plainest, not the quickest: a ring that frees several slots at a
//! time can beat this one, and so can a barrier that polls less often.
//!
//! There is no deadline, no watch and no sleep: a peer that dies leaves its partner spinning.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | Y1 flag | `BareFlag::set` | `BareFlag::spin` | everything before |
//! | Y2 commit | `BareProducer::push` | `BareConsumer::peek` | the slot's first word |
//! | Y3 reuse | `BareConsumer::pop` | `BareProducer::has_room` | the slot may be overwritten |
//! | Y4 meet | `BareBarrier::meet`: the add | its last load | everything before |
//! | Y5 add | `BareFlag::add` | `BareFlag::spin` | everything before |

use std::ops::Deref;
#[cfg(not(loom))]
use std::thread::yield_now;

#[cfg(loom)]
use loom::thread::yield_now;
use shmccl::sync::atomic::{AtomicU64, Ordering, spin_loop};

/// Polls of a flag without a pause in between. A pause takes as long as a line from core to core,
/// so a flag that is set at once is seen a tenth earlier. One under loom, which would try each of
/// them.
const POLLS: u32 = if cfg!(loom) { 1 } else { 20 };

/// One word alone in its two cache lines.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct BareFlag {
    value: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<BareFlag>() == 128 && align_of::<BareFlag>() == 128);

impl BareFlag {
    /// Makes a flag that shows `value`.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self { value: AtomicU64::new(value) }
    }

    /// Sets `value`, and publishes everything before (Y1).
    #[inline]
    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Release); // Y1 flag
    }

    /// Adds `value`, and publishes everything before (Y5). It takes until this core has the line,
    /// for which a store need not wait.
    #[inline]
    pub fn add(&self, value: u64) {
        self.value.fetch_add(value, Ordering::Release); // Y5 add
    }

    /// Returns whether the flag shows `value` or more, acquiring everything before it (Y1, Y5).
    #[inline]
    #[must_use]
    pub fn shows(&self, value: u64) -> bool {
        self.value.load(Ordering::Acquire) >= value // Y1 flag
    }

    /// Spins until the flag shows `value` or more: a few polls at once, then with pauses in
    /// between.
    #[inline]
    pub fn spin(&self, value: u64) {
        if (0..POLLS).any(|_| self.shows(value)) {
            return;
        }
        while !self.shows(value) {
            spin_loop();
        }
    }

    /// Waits like [`spin`](Self::spin), but yields to other threads of this core between two polls.
    #[inline]
    pub fn spin_yielding(&self, value: u64) {
        while !self.shows(value) {
            yield_now();
        }
    }
}

impl Default for BareFlag {
    fn default() -> Self {
        Self::new(0)
    }
}

/// A slot of the bare ring: a word of payload, and a word whose top bit is the parity of the lap.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct BareSlot {
    first: AtomicU64,
    second: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<BareSlot>() == 16);

impl BareSlot {
    /// Makes an empty slot.
    #[must_use]
    pub fn new() -> Self {
        Self { first: AtomicU64::new(0), second: AtomicU64::new(0) }
    }
}

impl Default for BareSlot {
    fn default() -> Self {
        Self::new()
    }
}

const COMMIT_BIT: u32 = 63;

/// Returns the slot of `position` in a ring of `len` slots (a power of two), and the commit bit of
/// its lap.
#[inline]
fn place(position: u64, len: usize) -> (usize, u64) {
    debug_assert!(len.is_power_of_two());
    let index = usize::try_from(position & (len as u64 - 1)).unwrap_or(0);
    let lap = position >> len.trailing_zeros();
    (index, (!lap & 1) << COMMIT_BIT)
}

/// The only producer of a bare ring; `T` holds the flag that shows the consumer's tail.
#[derive(Debug)]
pub struct BareProducer<S, T> {
    slots: S,
    tail: T,
    head: u64,
    tail_seen: u64,
}

impl<S: Deref<Target = [BareSlot]>, T: Deref<Target = BareFlag>> BareProducer<S, T> {
    /// Takes the producing side of an empty ring of all zero bytes.
    ///
    /// # Panics
    /// When the number of slots is no power of two.
    pub fn new(slots: S, tail: T) -> Self {
        assert!(slots.len().is_power_of_two(), "a ring of {} slots", slots.len());
        Self { slots, tail, head: 0, tail_seen: 0 }
    }

    /// Returns whether a push would find a free slot.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let len = self.slots.len() as u64;
        if self.head - self.tail_seen < len {
            return true;
        }
        self.tail_seen = self.tail.value.load(Ordering::Acquire); // Y3 reuse
        self.head - self.tail_seen < len
    }

    /// Spins for room, then pushes two words; the top bit of the second is the ring's own.
    #[inline]
    pub fn push(&mut self, first: u64, second: u64) {
        while !self.has_room() {
            spin_loop();
        }
        let (index, commit) = place(self.head, self.slots.len());
        let slot = &self.slots[index];
        slot.first.store(first, Ordering::Relaxed); // Relaxed: published by the second word
        let second = second & !(1 << COMMIT_BIT) | commit;
        slot.second.store(second, Ordering::Release); // Y2 commit
        self.head += 1;
    }
}

/// The only consumer of a bare ring.
#[derive(Debug)]
pub struct BareConsumer<S, T> {
    slots: S,
    tail_flag: T,
    tail: u64,
}

impl<S: Deref<Target = [BareSlot]>, T: Deref<Target = BareFlag>> BareConsumer<S, T> {
    /// Takes the consuming side of an empty ring of all zero bytes.
    ///
    /// # Panics
    /// When the number of slots is no power of two.
    pub fn new(slots: S, tail_flag: T) -> Self {
        assert!(slots.len().is_power_of_two(), "a ring of {} slots", slots.len());
        Self { slots, tail_flag, tail: 0 }
    }

    /// Returns the two words at the tail, if they have been pushed.
    #[inline]
    pub fn peek(&self) -> Option<(u64, u64)> {
        let (index, commit) = place(self.tail, self.slots.len());
        let slot = &self.slots[index];
        let second = slot.second.load(Ordering::Acquire); // Y2 commit
        // Relaxed: ordered after the second word by its acquire.
        (second & 1 << COMMIT_BIT == commit).then(|| (slot.first.load(Ordering::Relaxed), second))
    }

    /// Frees the slot at the tail. Only after a `peek` that found words there.
    #[inline]
    pub fn pop(&mut self) {
        self.tail += 1;
        self.tail_flag.value.store(self.tail, Ordering::Release); // Y3 reuse
    }
}

/// A barrier over one shared counter.
#[derive(Debug)]
pub struct BareBarrier<F> {
    counter: F,
    n_ranks: u64,
    target: u64,
}

impl<F: Deref<Target = BareFlag>> BareBarrier<F> {
    /// Makes one of `n_ranks` sides of a barrier over a counter that starts at zero.
    pub fn new(counter: F, n_ranks: u32) -> Self {
        Self { counter, n_ranks: u64::from(n_ranks), target: 0 }
    }

    /// Arrives, and yields to other threads of this core until all have arrived.
    #[inline]
    pub fn meet(&mut self) {
        self.target += self.n_ranks;
        self.counter.value.fetch_add(1, Ordering::Release); // Y4 meet
        while !self.complete() {
            yield_now();
        }
    }

    #[inline]
    fn complete(&self) -> bool {
        self.counter.value.load(Ordering::Acquire) >= self.target // Y4 meet
    }
}

#[cfg(not(loom))]
#[allow(unsafe_code, reason = "these live in shared memory")]
mod layouts {
    use shmccl::shm::SharedLayout;

    use super::{BareFlag, BareSlot};

    // SAFETY: `repr(C)`, an atomic integer, and padding at the end.
    unsafe impl SharedLayout for BareFlag {}
    // SAFETY: `repr(C)` and atomic integers throughout.
    unsafe impl SharedLayout for BareSlot {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_bare_ring_keeps_order_over_many_laps() {
        let slots: Vec<_> = (0..4).map(|_| BareSlot::new()).collect();
        let tail = BareFlag::default();
        let mut producer = BareProducer::new(&slots[..], &tail);
        let mut consumer = BareConsumer::new(&slots[..], &tail);
        assert_eq!(consumer.peek(), None);
        for lap in 0..5 {
            for i in 0..4 {
                assert!(producer.has_room());
                producer.push(lap * 4 + i, u64::MAX);
            }
            assert!(!producer.has_room());
            for i in 0..4 {
                assert_eq!(consumer.peek().unwrap().0, lap * 4 + i);
                consumer.pop();
            }
            assert_eq!(consumer.peek(), None);
        }
    }
}
