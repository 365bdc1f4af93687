//! The consumer: the one reader of a fifo.
//!
//! It keeps its position in its own memory and publishes it through `tail`. Everything it reads may
//! be forged; see the trust paragraph of [`crate::fifo`].

use core::fmt;
use core::ops::Deref;

use crate::atomic::{AtomicU64, Ordering};
use crate::fifo::{ABANDONED, Fifo, FifoRing, Position};
use crate::header::{FifoHeader, Slot};
use crate::trigger::Trigger;

/// How many slots a cache line holds.
const SLOTS_PER_LINE: usize = 64 / size_of::<Slot>();

/// The reading end of a fifo.
pub struct Consumer<H, S> {
    fifo: Fifo<H, S>,
    /// The next position to serve.
    tail: u64,
    /// Whether the trigger there was shown by [`Consumer::peek`].
    peeked: bool,
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Consumer<H, S> {
    pub(crate) fn new(fifo: Fifo<H, S>) -> Self {
        let tail = fifo.header.tail.load(Ordering::Relaxed); // relaxed: the caller orders one consumer after another
        Self { fifo, tail, peeked: false }
    }

    /// Shows the next trigger and leaves it in the fifo.
    ///
    /// Positions that hold no trigger are stepped over. `None`: the next position is not committed.
    ///
    /// # Ordering
    /// Edge F1: what the producer wrote before the push is visible.
    #[inline]
    pub fn peek(&mut self) -> Option<(Position, Trigger)> {
        let mut trigger = self.fifo.ring().read(self.tail)?;
        if is_abandoned(&trigger) {
            self.step_over_abandoned();
            trigger = self.fifo.ring().read(self.tail).filter(|trigger| !is_abandoned(trigger))?;
        }
        self.peeked = true;
        Some((Position(self.tail), trigger))
    }

    /// Gives the slot of the trigger last shown back to the producers; does nothing when none was.
    ///
    /// # Ordering
    /// Edge F2: a producer overwrites the slot only after it has seen this.
    #[inline]
    pub fn pop(&mut self) {
        if self.peeked {
            self.advance();
        }
    }

    /// Publishes that `position` and all before it were served. Call it after the trigger's effects
    /// and before its pop.
    ///
    /// # Ordering
    /// Edge F3: a producer that sees the position completed sees the effects.
    pub fn complete(&mut self, position: Position) {
        self.fifo.ring().header.complete(position.0);
    }

    /// Returns how many positions are reserved and not popped, at most the capacity.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.fifo.ring().depth(self.tail)
    }

    pub(crate) fn ring(&self) -> FifoRing<'_> {
        self.fifo.ring()
    }

    pub(crate) fn position(&self) -> u64 {
        self.tail
    }

    /// Shows up to `limit` positions to `serve`, those without a trigger too, and pops each one
    /// after it, until `serve` says that one is to stay. Returns how many it popped.
    ///
    /// It does what `peek` and `pop` do, with the position in a register and `tail` published a
    /// stretch at a time. A producer that waits for room reads `tail` again and again, and each
    /// store would have to win the line back from it. A `serve` that panics leaves the consumer in
    /// front of the position that it did not finish, and all before it popped.
    #[inline(always)]
    pub(crate) fn serve_batch(
        &mut self,
        limit: u64,
        mut serve: impl FnMut(&FifoHeader, u64, Trigger) -> bool,
    ) -> u64 {
        let ring = self.fifo.ring();
        let start = self.tail;
        let mut progress = BatchProgress { ring, tail: &mut self.tail, next: start };
        while progress.served_since(start) < limit {
            let commit = ring.commit_bit(progress.next);
            let stretch = ring.stretch(progress.next, limit - progress.served_since(start));
            fetch(stretch, commit);
            let first = progress.next;
            for (slot, ahead) in stretch.iter().zip(0..) {
                progress.next = first.wrapping_add(ahead);
                let Some(trigger) = slot.read(commit) else { return progress.served_since(start) };
                if !serve(ring.header, progress.next, trigger) {
                    return progress.served_since(start);
                }
            }
            progress.next = first.wrapping_add(stretch.len() as u64);
            ring.publish_tail(progress.next);
        }
        limit
    }

    /// Takes the depth for the counters.
    ///
    /// It looks at one slot, which is committed when there are more in flight than ever before.
    /// `head` would tell outright, but producers write it at each push, and would have to win its
    /// line back.
    #[inline]
    pub(crate) fn note_depth(&self) {
        let ring = self.fifo.ring();
        let before = ring.header.service.depth_high_water.load(Ordering::Relaxed); // relaxed: its only writer reads it
        if before < ring.capacity() && ring.is_committed(self.tail.wrapping_add(before)) {
            self.raise_high_water(before);
        }
    }

    #[cold]
    #[inline(never)]
    fn raise_high_water(&self, before: u64) {
        let ring = self.fifo.ring();
        let is_free = |depth: &u64| !ring.is_committed(self.tail.wrapping_add(*depth));
        let depth = (before + 1..ring.capacity()).find(is_free).unwrap_or(ring.capacity());
        ring.header.service.depth_high_water.store(depth, Ordering::Relaxed); // relaxed: a counter
    }

    #[inline]
    fn advance(&mut self) {
        self.peeked = false;
        self.tail = self.tail.wrapping_add(1);
        self.fifo.ring().publish_tail(self.tail);
    }

    fn step_over(&mut self) {
        bump(&self.fifo.header.service.skipped);
        self.advance();
    }

    /// Steps over positions that hold no trigger.
    ///
    /// One turn of the ring at most, so that a forger cannot keep the consumer here; honest
    /// producers never leave more.
    #[cold]
    #[inline(never)]
    fn step_over_abandoned(&mut self) {
        for _ in 0..self.fifo.capacity() {
            if !self.fifo.ring().read(self.tail).is_some_and(|trigger| is_abandoned(&trigger)) {
                return;
            }
            self.step_over();
        }
    }
}

/// How far a batch has come: stored and published when the batch ends, be it by a panic.
struct BatchProgress<'c> {
    ring: FifoRing<'c>,
    /// The consumer's own position, as it was when the batch began.
    tail: &'c mut u64,
    /// The next position to serve.
    next: u64,
}

impl BatchProgress<'_> {
    #[inline]
    fn served_since(&self, start: u64) -> u64 {
        self.next.wrapping_sub(start)
    }
}

impl Drop for BatchProgress<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.tail = self.next;
        self.ring.publish_tail(self.next);
    }
}

impl<H, S> fmt::Debug for Consumer<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("tail", &self.tail).finish_non_exhaustive()
    }
}

/// Asks for the cache lines of `stretch` all together, so that they come while the first triggers
/// are served.
///
/// It stops at a line that is not full yet: a producer writes there, and would lose the line in the
/// middle of it.
#[inline]
fn fetch(stretch: &[Slot], commit: u64) {
    for last_of_line in stretch.iter().skip(SLOTS_PER_LINE - 1).step_by(SLOTS_PER_LINE) {
        if !last_of_line.is_committed(commit) {
            return;
        }
    }
}

/// Adds one to a counter that only the caller writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64) {
    let count = counter.load(Ordering::Relaxed); // relaxed: the caller is the only writer
    counter.store(count.wrapping_add(1), Ordering::Relaxed); // relaxed: a counter
}

#[inline]
pub(crate) fn is_abandoned(trigger: &Trigger) -> bool {
    trigger.words()[1] == ABANDONED[1]
}
