//! The consumer: the one reader of a fifo.
//!
//! It keeps its position in its own memory and publishes it through `tail`. Everything it reads may be forged; see
//! the trust paragraph of [`crate::fifo`].

use core::fmt;
use core::ops::Deref;

use crate::atomic::{AtomicU64, Ordering};
use crate::fifo::{Fifo, Position};
use crate::header::{FifoHeader, Owner, Slot};
use crate::producer::ABANDONED;
use crate::trigger::Trigger;

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
        let trigger = self.read()?;
        if trigger.words()[1] == ABANDONED[1] {
            return self.peek_past_abandoned();
        }
        self.peeked = true;
        Some((Position(self.tail), trigger))
    }

    /// Gives the slot of the trigger last shown back to the producers; does nothing when none was.
    ///
    /// # Ordering
    /// Edge F2: the slot is overwritten only by who has seen this.
    #[inline]
    pub fn pop(&mut self) {
        if self.peeked {
            self.advance();
        }
    }

    /// Publishes that `position` and all before it were served. Call it after the trigger's effects and before its pop.
    ///
    /// # Ordering
    /// Edge F3: the effects are visible to who sees the position completed.
    pub fn complete(&mut self, position: Position) {
        let next = position.0.wrapping_add(1);
        self.fifo.header.completed.store(next, Ordering::Release); // F3 complete
    }

    /// How many positions are reserved and not popped, at most the capacity.
    #[must_use]
    pub fn depth(&self) -> u64 {
        let head = self.fifo.header.head.load(Ordering::Relaxed); // relaxed: an estimate, clamped
        clamp_depth(head.wrapping_sub(self.tail), self.fifo.capacity())
    }

    /// Steps over the next position if it was reserved by an owner that died before its commit.
    ///
    /// `is_dead` is asked about every owner that may hold the position, and all of them have to be dead. Nothing happens
    /// when the position is committed, free, or held by the living. Call it when a death is known or nothing moves,
    /// not on the fast path; call it again for the next position.
    ///
    /// `is_dead` may say yes only when the owner will never run another instruction, and whoever learns it must see all
    /// that the owner wrote (a kernel's word for it does: a robust futex, a pidfd, a reaped child).
    pub fn skip_stuck(&mut self, mut is_dead: impl FnMut(Owner) -> bool) -> Option<Position> {
        let stuck = self.tail;
        let head = self.fifo.header.head.load(Ordering::Acquire); // F4 reserve
        if clamp_depth(head.wrapping_sub(stuck), self.fifo.capacity()) == 0 {
            return None;
        }
        let mut holders = 0;
        for cell in &self.fifo.header.producers {
            let next = cell.reserving.load(Ordering::Acquire); // F4 reserve
            if next == stuck.wrapping_add(1) {
                let owner = cell.owner.load(Ordering::Relaxed); // relaxed: the announcement acquired it
                if !Owner::from_shared(owner).is_some_and(&mut is_dead) {
                    return None;
                }
                holders += 1;
            }
        }
        // Read after the announcements: a holder that has moved on released its commit with its next announcement.
        if holders == 0 || self.fifo.slot(stuck).is_committed(self.fifo.commit_bit(stuck)) {
            return None;
        }
        self.fifo.abandon(stuck);
        self.step_over();
        Some(Position(stuck))
    }

    pub(crate) fn header(&self) -> &FifoHeader {
        &self.fifo.header
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.fifo.capacity()
    }

    pub(crate) fn position(&self) -> u64 {
        self.tail
    }

    #[inline]
    fn read(&self) -> Option<Trigger> {
        self.fifo.slot(self.tail).read(self.fifo.commit_bit(self.tail))
    }

    #[inline]
    fn advance(&mut self) {
        self.peeked = false;
        self.tail = self.tail.wrapping_add(1);
        self.fifo.header.tail.store(self.tail, Ordering::Release); // F2 reuse
    }

    fn step_over(&mut self) {
        bump(&self.fifo.header.service.skipped);
        self.advance();
    }

    /// `peek` where the next position holds no trigger. One turn of the ring at most, so that a forger cannot keep the
    /// consumer here; honest producers never leave more.
    #[cold]
    fn peek_past_abandoned(&mut self) -> Option<(Position, Trigger)> {
        for _ in 0..self.fifo.capacity() {
            let trigger = self.read()?;
            if trigger.words()[1] != ABANDONED[1] {
                self.peeked = true;
                return Some((Position(self.tail), trigger));
            }
            self.step_over();
        }
        None
    }
}

impl<H, S> fmt::Debug for Consumer<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("tail", &self.tail).finish_non_exhaustive()
    }
}

/// Adds one to a counter that only the caller writes.
pub(crate) fn bump(counter: &AtomicU64) {
    let count = counter.load(Ordering::Relaxed); // relaxed: the caller is the only writer
    counter.store(count.wrapping_add(1), Ordering::Relaxed); // relaxed: a counter
}

/// `head - tail`, where `tail` may have run ahead of the `head` that was seen, and `head` may be forged.
pub(crate) fn clamp_depth(difference: u64, capacity: u64) -> u64 {
    if difference >= 1 << 63 { 0 } else { difference.min(capacity) }
}
