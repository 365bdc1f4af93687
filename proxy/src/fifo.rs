//! The fifo: a ring of slots between many producers and one consumer, and the rules they keep.
//!
//! **Position.** Entries are numbered from 0 by a `u64` that never wraps. Position `p` lives in
//! slot `p % n` during lap `p / n`. `head` counts positions reserved, `tail` positions popped;
//! `tail <= head <= tail + n`.
//!
//! **Push** happens in two steps. *Reserve* takes the position at `head`, and only when the ring
//! has room. A full ring says so and nothing is held, so a caller may give up waiting at any
//! moment. *Commit* writes word 0, then word 1 whose top bit is the parity of the lap. An exclusive
//! producer owns `head` and needs no atomic read-modify-write. Shared producers move `head` by
//! compare-exchange: a ticket by `fetch_add`, taken on a full ring, would have to be waited for or
//! leave a hole. The figures are in `benches/RESULTS.md`, "Fifo: kinds of producers".
//!
//! **Death between the steps.** A process that dies there leaves a position that nobody will
//! commit, and the consumer stops in front of it. So shared producers of one fifo are threads of
//! one process. In the engine they die together, and the epoch with them. An exclusive producer
//! takes no position before it commits.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | F1 publish | commit: word 1 | `peek`: word 1 | word 0, and all the producer wrote before |
//! | F2 reuse | `pop`, batch: tail | push into a full ring: tail | the slot was read |
//! | F3 complete | `complete` | `is_completed` | the effects of this and all earlier triggers |
//! | F5 hand over | producer dropped: place | producer made; `attend` | `head`, slots before it |
//! | F6 come and go | `Roster::count_change` | `attend` | places taken: see [`crate::header`] |
//!
//! **Trust.** The consumer keeps its position to itself and only publishes it. All that it reads
//! (words, head) is masked, compared or bounded, and is never an index or a loop limit. Forged
//! memory makes it serve triggers that nobody pushed, and nothing worse.

use core::fmt;
use core::ops::Deref;

use crate::atomic::Ordering;
use crate::consumer::Consumer;
use crate::header::{FifoHeader, Slot};
use crate::producer::{Producer, SharedProducer};
use crate::trigger::{COMMIT_SHIFT, Trigger};

/// The most slots that a fifo can have.
pub const MAX_CAPACITY: usize = 1 << 20;

/// A batch publishes its tail at least each time that it has filled a stretch of so many slots:
/// four cache lines.
pub(crate) const STRETCH: usize = 16;

/// The number of an entry since the fifo was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub(crate) u64);

impl Position {
    /// Returns the position as a number, counted from zero.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether this position and all before it were served, as the last FLUSH served has
    /// told.
    ///
    /// # Ordering
    /// Edge F3: `true` makes the effects of every trigger up to this position visible.
    #[inline]
    #[must_use]
    pub fn is_completed(self, header: &FifoHeader) -> bool {
        let completed = header.completed.load(Ordering::Acquire); // F3 complete
        // Ahead by less than half of all numbers; a plain `>` but for counters that start near the
        // end in tests.
        completed.wrapping_sub(self.0).wrapping_sub(1) < 1 << 63
    }
}

/// The ring had no room. Nothing was pushed and nothing is held: push again later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fifo is full")
    }
}

impl core::error::Error for Full {}

/// Why a fifo or one of its ends cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FifoError {
    /// The number of slots is not a power of two from 1 to [`MAX_CAPACITY`].
    Capacity {
        /// How many slots were given.
        slots: usize,
    },
    /// An exclusive producer was asked for while there is a producer, or any while there is an
    /// exclusive one.
    Taken,
    /// All places for shared producers are taken.
    NoPlace {
        /// How many there are.
        limit: usize,
    },
}

impl fmt::Display for FifoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity { slots } => {
                write!(
                    f,
                    "a fifo cannot have {slots} slots: a power of two from 1 to {MAX_CAPACITY} is expected"
                )
            }
            Self::Taken => write!(f, "the fifo has a producer that excludes this one"),
            Self::NoPlace { limit } => write!(f, "the fifo has {limit} producers already"),
        }
    }
}

impl core::error::Error for FifoError {}

/// A view of a fifo's shared state, from which its ends are made.
///
/// `H` and `S` are handles to the header and the slots, such as `&FifoHeader` and `&[Slot]`, or
/// owners of a mapping.
#[derive(Clone)]
pub struct Fifo<H, S> {
    pub(crate) header: H,
    slots: S,
    lap_shift: u32,
}

impl<H, S> Fifo<H, S>
where
    H: Deref<Target = FifoHeader>,
    S: Deref<Target = [Slot]>,
{
    /// Views `header` and `slots` as one fifo. The same pair must be used everywhere.
    ///
    /// # Errors
    /// [`FifoError::Capacity`] unless the number of slots is a power of two from 1 to
    /// [`MAX_CAPACITY`].
    pub fn new(header: H, slots: S) -> Result<Self, FifoError> {
        let capacity = slots.len();
        if !capacity.is_power_of_two() || capacity > MAX_CAPACITY {
            return Err(FifoError::Capacity { slots: capacity });
        }
        Ok(Self { header, slots, lap_shift: capacity.trailing_zeros() })
    }

    /// Returns how many triggers fit.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        1 << self.lap_shift
    }

    /// Returns the shared state.
    #[must_use]
    pub fn header(&self) -> &FifoHeader {
        &self.header
    }

    /// Makes the one producer of this fifo, the fastest kind.
    ///
    /// # Errors
    /// [`FifoError::Taken`] while there is any other producer.
    pub fn producer(&self) -> Result<Producer<H, S>, FifoError>
    where
        Self: Clone,
    {
        Producer::new(self.clone())
    }

    /// Makes a producer that shares the fifo with others like it, of the same process.
    ///
    /// # Errors
    /// [`FifoError::Taken`] while there is an exclusive producer; [`FifoError::NoPlace`] when there
    /// are [`MAX_PRODUCERS`](crate::MAX_PRODUCERS). A producer that died keeps its place.
    pub fn shared_producer(&self) -> Result<SharedProducer<H, S>, FifoError>
    where
        Self: Clone,
    {
        SharedProducer::new(self.clone())
    }

    /// Makes the consumer, which goes on at the position where the last one stopped.
    ///
    /// There must be one at a time. This is the caller's to keep: a second one serves triggers
    /// twice, though it can do no other harm.
    #[must_use]
    pub fn consumer(&self) -> Consumer<H, S>
    where
        Self: Clone,
    {
        Consumer::new(self.clone())
    }

    /// Returns the memory behind the handles, for the length of one operation.
    #[inline]
    pub(crate) fn ring(&self) -> FifoRing<'_> {
        FifoRing { header: &self.header, slots: &self.slots, lap_shift: self.lap_shift }
    }
}

/// What the protocol works on. A copy in registers: the handles are followed once per operation or
/// batch.
#[derive(Clone, Copy)]
pub(crate) struct FifoRing<'a> {
    pub(crate) header: &'a FifoHeader,
    slots: &'a [Slot],
    lap_shift: u32,
}

impl<'a> FifoRing<'a> {
    #[inline]
    pub(crate) fn capacity(self) -> u64 {
        1 << self.lap_shift
    }

    /// Returns the slot of a position, forged ones included.
    #[inline]
    pub(crate) fn slot(self, position: u64) -> &'a Slot {
        &self.slots[self.index(position)]
    }

    /// Finds the slot of a position, for callers that must not panic; `None` never comes.
    #[inline]
    pub(crate) fn find(self, position: u64) -> Option<&'a Slot> {
        self.slots.get(self.index(position))
    }

    /// Returns the slots from a position to the end of its stretch or its lap, at most `limit`.
    #[inline]
    pub(crate) fn stretch(self, position: u64, limit: u64) -> &'a [Slot] {
        let from = self.index(position);
        let rest = &self.slots[from..];
        let len = rest.len().min(STRETCH - from % STRETCH);
        &rest[..usize::try_from(limit).map_or(len, |limit| limit.min(len))]
    }

    /// Returns the index of a position's slot, which is always within the slots.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "the mask keeps the low bits, 20 at most")]
    fn index(self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// Returns the commit bit that says "written in the lap of this position".
    #[inline]
    pub(crate) fn commit_bit(self, position: u64) -> u64 {
        (!position >> self.lap_shift) << COMMIT_SHIFT
    }

    /// Returns the trigger of a position, when it is committed. Edge F1.
    #[inline]
    pub(crate) fn read(self, position: u64) -> Option<Trigger> {
        self.slot(position).read(self.commit_bit(position))
    }

    /// Returns whether a position is committed; reads nothing that it publishes.
    #[inline]
    pub(crate) fn is_committed(self, position: u64) -> bool {
        self.slot(position).is_committed(self.commit_bit(position))
    }

    /// Gives all slots before `tail` back to the producers. Edge F2.
    #[inline]
    pub(crate) fn publish_tail(self, tail: u64) {
        self.header.tail.store(tail, Ordering::Release); // F2 reuse
    }

    /// Commits `position` without a trigger.
    pub(crate) fn abandon(self, position: u64) {
        self.slot(position).publish(ABANDONED, self.commit_bit(position));
    }

    /// Returns whether the fifo has a producer, or positions from `tail` on that one has left.
    pub(crate) fn is_in_use(self, tail: u64) -> bool {
        // An old `head` beside no producer would have the service sleep in front of a trigger whose
        // bell has rung.
        let places = self.header.places.load(Ordering::Acquire); // F5 hand over
        places != 0 || self.depth(tail) != 0
    }

    /// Returns how many positions are reserved from `tail` on, at most the capacity.
    pub(crate) fn depth(self, tail: u64) -> u64 {
        let head = self.header.head.load(Ordering::Relaxed); // relaxed: an estimate, clamped
        clamp_depth(head.wrapping_sub(tail), self.capacity())
    }
}

/// The words of a position that holds no trigger: abandoned by its producer.
pub(crate) const ABANDONED: [u64; 2] = [0, 0];

/// Returns `head - tail`, where `tail` may have run ahead of the `head` that was seen, and `head`
/// may be forged.
pub(crate) fn clamp_depth(difference: u64, capacity: u64) -> u64 {
    if difference >= 1 << 63 { 0 } else { difference.min(capacity) }
}

impl<H, S> fmt::Debug for Fifo<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fifo").field("capacity", &(1_u64 << self.lap_shift)).finish_non_exhaustive()
    }
}
