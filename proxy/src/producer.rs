//! The producers: one that has the fifo to itself, or several that share it.
//!
//! Both look at the consumer's `tail` only when the ring looks full by the last `tail` that they
//! saw. So a push into a ring with room touches the slot, `head`, and nothing else that another
//! core writes.
//!
//! A push into an exclusive fifo makes no call and cannot panic. So nothing in a loop that pushes
//! needs the producer's address: a producer that is a local of the loop's function lives in
//! registers. A producer behind a reference has to load its position right after storing it, which
//! takes longer than the rest of a push.

use core::fmt;
use core::mem;
use core::ops::Deref;

use crate::atomic::Ordering;
use crate::consumer::bump;
use crate::fifo::{Fifo, FifoError, Full, Position};
use crate::header::{FifoHeader, MAX_PRODUCERS, Slot};
use crate::trigger::Trigger;

/// The bit of `places` that an exclusive producer sets; it has the first count of stalls.
const EXCLUSIVE: u64 = 1 << 63;

/// How often a shared producer tries to take a position for one push. A try fails only because
/// another producer has taken the position. It does not fail so often in a row, unless `head` is
/// written by something that is no producer.
const TRIES: u32 = 4096;

/// What both kinds of producer do.
pub trait Push {
    /// Pushes a trigger, or says at once that there is no room.
    ///
    /// # Errors
    /// [`Full`]: nothing was pushed and nothing is held.
    ///
    /// # Ordering
    /// Edge F1: what the caller wrote before is visible to the handler of this trigger.
    fn try_push(&mut self, trigger: Trigger) -> Result<Position, Full>;

    /// Returns the shared state, for [`Position::is_completed`].
    fn header(&self) -> &FifoHeader;
}

/// The only producer of a fifo.
///
/// It never holds a position without a trigger in it, so its death at any instruction wedges
/// nothing.
pub struct Producer<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> {
    end: ProducerEnd<H, S>,
    /// The next position; `head` follows it.
    next: u64,
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Producer<H, S> {
    pub(crate) fn new(fifo: Fifo<H, S>) -> Result<Self, FifoError> {
        take_place(&fifo.header, |places| (places == 0).then_some(EXCLUSIVE).ok_or(FifoError::Taken))?;
        let next = fifo.header.head.load(Ordering::Relaxed); // relaxed: taking the place acquired it
        Ok(Self { end: ProducerEnd::new(fifo, EXCLUSIVE, 0), next })
    }
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Push for Producer<H, S> {
    #[inline]
    fn try_push(&mut self, trigger: Trigger) -> Result<Position, Full> {
        let position = self.next;
        if !self.end.seems_free(position) {
            if !self.end.has_room(position) {
                self.end.note_stall();
                return Err(Full);
            }
            // Whatever stalled comes past here before it is pushed; a push that finds room at once
            // stores nothing.
            self.end.stalled = false;
        }
        let ring = self.end.fifo.ring();
        // A ring without slots has no room. None is without, but so this cannot panic.
        let Some(slot) = ring.find(position) else { return Err(Full) };
        slot.publish(trigger.words(), ring.commit_bit(position));
        self.next = position.wrapping_add(1);
        let head = &self.end.fifo.header.head;
        head.store(self.next, Ordering::Relaxed); // relaxed: a count; the slot's own bit publishes the trigger
        Ok(Position(position))
    }

    fn header(&self) -> &FifoHeader {
        &self.end.fifo.header
    }
}

/// One of several producers of a fifo, in one process: if they were in several, the death of one
/// between the steps of a push would stop the others. Each thread makes its own.
pub struct SharedProducer<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> {
    end: ProducerEnd<H, S>,
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> SharedProducer<H, S> {
    pub(crate) fn new(fifo: Fifo<H, S>) -> Result<Self, FifoError> {
        let place = take_place(&fifo.header, |places| {
            let free = (!places).trailing_zeros() as usize;
            match places & EXCLUSIVE {
                0 if free < MAX_PRODUCERS => Ok(1 << free),
                0 => Err(FifoError::NoPlace { limit: MAX_PRODUCERS }),
                _ => Err(FifoError::Taken),
            }
        })?;
        Ok(Self { end: ProducerEnd::new(fifo, place, place.trailing_zeros() as usize) })
    }

    /// Takes a position, or says at once that there is no room.
    ///
    /// The position must be committed soon: the consumer stops in front of it. A reservation that
    /// is dropped is abandoned, and the consumer steps over it. A reservation that is forgotten, or
    /// whose process dies, stops the consumer for good.
    ///
    /// # Errors
    /// [`Full`]: nothing is held. Also where some thousand tries have each found that `head` had
    /// moved, which other producers do not bring about. Try again later.
    #[inline]
    pub fn reserve(&mut self) -> Result<Reservation<'_, H, S>, Full> {
        for _ in 0..TRIES {
            let head = &self.end.fifo.header.head;
            let position = head.load(Ordering::Relaxed); // relaxed: a stale value fails the exchange below
            if !self.end.has_room(position) {
                let now = self.end.fifo.header.head.load(Ordering::Relaxed); // relaxed: only compared
                if now != position {
                    // `tail` was compared with a `head` that had moved on: compare again.
                    continue;
                }
                self.end.note_stall();
                return Err(Full);
            }
            let next = position.wrapping_add(1);
            let order = Ordering::Relaxed; // relaxed: a count; the slot's own bit publishes the trigger
            if self.end.fifo.header.head.compare_exchange(position, next, order, order).is_ok() {
                self.end.stalled = false;
                return Ok(Reservation { end: &mut self.end, position });
            }
        }
        Err(Full)
    }
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Push for SharedProducer<H, S> {
    #[inline]
    fn try_push(&mut self, trigger: Trigger) -> Result<Position, Full> {
        self.reserve().map(|reservation| reservation.commit(trigger))
    }

    fn header(&self) -> &FifoHeader {
        &self.end.fifo.header
    }
}

/// A position taken and not yet committed.
#[must_use = "a reservation that is dropped is abandoned"]
pub struct Reservation<'p, H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> {
    end: &'p mut ProducerEnd<H, S>,
    position: u64,
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Reservation<'_, H, S> {
    /// Returns the position taken.
    #[must_use]
    pub fn position(&self) -> Position {
        Position(self.position)
    }

    /// Puts the trigger into the position. Edge F1.
    #[inline]
    pub fn commit(self, trigger: Trigger) -> Position {
        self.end.commit(self.position, trigger);
        let position = Position(self.position);
        mem::forget(self);
        position
    }
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Drop for Reservation<'_, H, S> {
    fn drop(&mut self) {
        self.end.fifo.ring().abandon(self.position);
    }
}

/// What both producers hold.
pub(crate) struct ProducerEnd<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> {
    pub(crate) fifo: Fifo<H, S>,
    /// The bit of `places` to give back.
    place: u64,
    /// Which count of stalls is this producer's own.
    cell: usize,
    /// How many slots there are.
    capacity: u64,
    /// The last `tail` seen.
    tail: u64,
    /// Whether the push under way has been counted as a stall.
    stalled: bool,
    /// The process whose place it is, and not that of a fork of it.
    process: u32,
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> ProducerEnd<H, S> {
    fn new(fifo: Fifo<H, S>, place: u64, cell: usize) -> Self {
        // A `tail` that makes any position look full, so that the first push reads the real one.
        let capacity = fifo.capacity();
        let tail = fifo.header.head.load(Ordering::Relaxed).wrapping_sub(capacity); // relaxed: a guess
        Self { fifo, place, cell, capacity, tail, stalled: false, process: std::process::id() }
    }

    /// Returns whether `position` can be written without overwriting what the consumer has not
    /// popped.
    #[inline]
    fn has_room(&mut self, position: u64) -> bool {
        if self.seems_free(position) {
            return true;
        }
        self.tail = self.fifo.header.tail.load(Ordering::Acquire); // F2 reuse
        self.seems_free(position)
    }

    /// Returns the same by the last `tail` seen, which may be old.
    #[inline]
    fn seems_free(&self, position: u64) -> bool {
        position.wrapping_sub(self.tail) < self.capacity
    }

    #[inline]
    fn commit(&mut self, position: u64, trigger: Trigger) {
        let ring = self.fifo.ring();
        ring.slot(position).publish(trigger.words(), ring.commit_bit(position));
    }

    /// Counts a push that found the ring full, once however often it is tried again.
    #[inline]
    fn note_stall(&mut self) {
        if !mem::replace(&mut self.stalled, true) {
            // It is within; said again so that this cannot panic.
            bump(&self.fifo.header.stalls[self.cell % MAX_PRODUCERS]);
        }
    }
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Drop for ProducerEnd<H, S> {
    #[inline]
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.fifo.header.places.fetch_and(!self.place, Ordering::Release); // F5 hand over
    }
}

/// Sets the bit of `places` that `choose` picks, or returns its error.
fn take_place(header: &FifoHeader, choose: impl Fn(u64) -> Result<u64, FifoError>) -> Result<u64, FifoError> {
    let mut places = header.places.load(Ordering::Relaxed); // relaxed: the exchange below checks and acquires
    loop {
        let place = choose(places)?;
        let success = Ordering::Acquire; // F5 hand over
        let failure = Ordering::Relaxed; // relaxed: the value is only tried again
        match header.places.compare_exchange(places, places | place, success, failure) {
            Ok(_) => return Ok(place),
            Err(now) => places = now,
        }
    }
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> fmt::Debug for Producer<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> fmt::Debug for SharedProducer<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedProducer").field("place", &self.end.cell).finish_non_exhaustive()
    }
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> fmt::Debug for Reservation<'_, H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("position", &self.position).finish_non_exhaustive()
    }
}
