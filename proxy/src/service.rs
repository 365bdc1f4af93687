//! The serving loop: takes triggers out of one or many fifos and hands them to a handler.
//!
//! One call of [`Service::poll`] is one turn: a bounded batch from every fifo, starting with another one each time, so
//! that no fifo starves. For each trigger: handle it, publish the completed position if it carries FLUSH, pop it. A trigger
//! that the handler refuses goes the same way, so that nobody waits for it for ever; it is counted, kept in the
//! header for whoever asks, and told to [`Handler::refused`]. When to poll again, to spin or to sleep is the
//! caller's business.
//!
//! A sleeping caller must poll once more between saying that it sleeps and sleeping. A turn that returns 0 has found
//! every fifo empty, or stopped at a position that is reserved and not committed.
//!
//! **What measuring costs.** Two clock reads and a look at `head` for one trigger in [`SAMPLE_EVERY`], a countdown in
//! local memory for the others. The interval is a prime, so that it does not fall in step with patterns of triggers.

use core::fmt;
use core::num::NonZeroU32;
use core::ops::Deref;
use std::time::Instant;

use crate::atomic::Ordering;
use crate::consumer::{Consumer, bump};
use crate::fifo::{MAX_CAPACITY, Position, clamp_depth};
use crate::header::{BUCKETS, FifoHeader, Owner, Slot};
use crate::trigger::{Kind, Trigger};

/// One trigger in this many is timed.
pub const SAMPLE_EVERY: u32 = 509;

/// The most triggers that one turn takes from one fifo.
pub const BATCH: u64 = 64;

/// Why a handler did not execute a trigger: a number that the handler chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal(NonZeroU32);

impl Refusal {
    /// The service's own: the trigger asks for nothing.
    pub const NO_KIND: Self = Self(NonZeroU32::MAX);

    /// Names a reason by any number but zero and `u32::MAX`, which is [`Refusal::NO_KIND`].
    #[must_use]
    pub const fn new(code: NonZeroU32) -> Self {
        Self(code)
    }

    /// The number.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.0.get()
    }
}

/// Executes triggers.
pub trait Handler {
    /// Executes a trigger of the fifo with this index. Its ids and ranges are unchecked: they may be forged.
    ///
    /// # Errors
    /// A [`Refusal`] when it cannot be executed; then nothing must have been changed.
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), Refusal>;

    /// Learns of a refused trigger, before its position is popped. Does nothing unless overridden.
    fn refused(&mut self, fifo: usize, position: Position, trigger: &Trigger, refusal: Refusal) {
        let _ = (fifo, position, trigger, refusal);
    }
}

impl<F: FnMut(usize, &Trigger) -> Result<(), Refusal>> Handler for F {
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), Refusal> {
        self(fifo, trigger)
    }
}

/// Serves one or many fifos. A fifo's index is its place in the list that the service was made from.
pub struct Service<H, S> {
    lanes: Vec<Lane<H, S>>,
    /// The fifo that the next turn starts with.
    first: usize,
}

/// How far a drain has to go: the heads that were seen when it was asked for.
#[derive(Clone, Debug)]
pub struct DrainGoal(Vec<u64>);

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Service<H, S> {
    /// Serves the fifos of `consumers`.
    pub fn new(consumers: impl IntoIterator<Item = Consumer<H, S>>) -> Self {
        let lanes = consumers.into_iter().map(|consumer| Lane { consumer, countdown: 0 }).collect();
        Self { lanes, first: 0 }
    }

    /// How many fifos are served.
    #[must_use]
    pub fn n_fifos(&self) -> usize {
        self.lanes.len()
    }

    /// One turn: serves up to [`BATCH`] positions of every fifo and returns how many it popped: triggers served, triggers
    /// refused, and positions that held none.
    #[inline]
    pub fn poll<T: Handler>(&mut self, handler: &mut T) -> u64 {
        let (n_fifos, first) = (self.lanes.len(), self.first);
        let mut served = 0;
        for fifo in (first..n_fifos).chain(0..first) {
            served += self.lanes[fifo].serve(fifo, BATCH, handler);
        }
        self.first = if first + 1 < n_fifos { first + 1 } else { 0 };
        served
    }

    /// Notes what has been pushed so far, for [`Service::drain`].
    ///
    /// Pushes that happened before this call, as the caller knows, are within the goal.
    #[must_use]
    pub fn drain_goal(&self) -> DrainGoal {
        let goal = |lane: &Lane<H, S>| lane.consumer.position().wrapping_add(lane.consumer.depth());
        DrainGoal(self.lanes.iter().map(goal).collect())
    }

    /// Serves what is committed within `goal` and returns how many positions are left.
    ///
    /// It returns at once. What is left was reserved and not yet committed: call again while its producers live, and
    /// [`Service::skip_stuck`] when they may have died.
    pub fn drain<T: Handler>(&mut self, goal: &DrainGoal, handler: &mut T) -> u64 {
        let mut left = 0;
        for ((fifo, lane), &end) in self.lanes.iter_mut().enumerate().zip(&goal.0) {
            while lane.left(end) > 0 && lane.serve(fifo, 1, handler) > 0 {}
            left += lane.left(end);
        }
        left
    }

    /// Steps over positions whose producers died before their commit, in every fifo; returns how many.
    ///
    /// See [`Consumer::skip_stuck`] for what `is_dead` promises. It is called with the fifo's index.
    pub fn skip_stuck(&mut self, mut is_dead: impl FnMut(usize, Owner) -> bool) -> usize {
        let mut skipped = 0;
        for (fifo, lane) in self.lanes.iter_mut().enumerate() {
            // No more than a ring holds, so that a forger cannot keep the service here.
            for _ in 0..lane.consumer.ring().capacity() {
                if lane.consumer.skip_stuck(|owner| is_dead(fifo, owner)).is_none() {
                    break;
                }
                skipped += 1;
            }
        }
        skipped
    }

    /// The shared state of one fifo.
    #[must_use]
    pub fn header(&self, fifo: usize) -> Option<&FifoHeader> {
        self.lanes.get(fifo).map(|lane| lane.consumer.ring().header)
    }
}

/// One fifo of a service.
struct Lane<H, S> {
    consumer: Consumer<H, S>,
    /// How many triggers go untimed before the next timed one.
    countdown: u32,
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Lane<H, S> {
    // Not inlined, so that the loop within has the registers to itself.
    #[inline(never)]
    fn serve<T: Handler>(&mut self, fifo: usize, limit: u64, handler: &mut T) -> u64 {
        // A local, so that counting down stays in a register.
        let mut countdown = self.countdown;
        let served = self.consumer.serve_batch(limit, |header, position, trigger| {
            let outcome = if countdown == 0 {
                countdown = SAMPLE_EVERY;
                execute_timed(header, fifo, position, trigger, handler)
            } else {
                execute(fifo, trigger, handler)
            };
            countdown -= 1;
            if let Err(refusal) = outcome {
                refuse(header, fifo, position, trigger, refusal, handler);
            }
            if trigger.kind().contains(Kind::FLUSH) {
                header.complete(position);
            }
        });
        self.countdown = countdown;
        served
    }

    /// How many positions there are before `end`, at most the capacity.
    fn left(&self, end: u64) -> u64 {
        let difference = end.wrapping_sub(self.consumer.position());
        if difference >= 1 << 63 { 0 } else { difference }
    }
}

#[cold]
#[inline(never)]
fn execute_timed<T: Handler>(
    header: &FifoHeader,
    fifo: usize,
    position: u64,
    trigger: Trigger,
    handler: &mut T,
) -> Result<(), Refusal> {
    let head = header.head.load(Ordering::Relaxed); // relaxed: an estimate
    let depth = clamp_depth(head.wrapping_sub(position), MAX_CAPACITY as u64);
    let start = Instant::now();
    let outcome = execute(fifo, trigger, handler);
    let elapsed = start.elapsed();
    let high_water = &header.service.depth_high_water;
    let before = high_water.load(Ordering::Relaxed); // relaxed: this service is the only writer
    if depth > before {
        high_water.store(depth, Ordering::Relaxed); // relaxed: a counter
    }
    bump(&header.service_time[bucket(elapsed.as_nanos())]);
    outcome
}

#[cold]
#[inline(never)]
fn refuse<T: Handler>(
    header: &FifoHeader,
    fifo: usize,
    position: u64,
    trigger: Trigger,
    refusal: Refusal,
    handler: &mut T,
) {
    let service = &header.service;
    let [word0, word1] = trigger.words();
    let record = [position, word0, word1, u64::from(refusal.code())];
    for (cell, value) in service.last_refused.iter().zip(record) {
        cell.store(value, Ordering::Relaxed); // relaxed: a diagnosis; a reader may mix two refusals
    }
    bump(&service.refused);
    handler.refused(fifo, Position(position), &trigger, refusal);
}

// By value: a reference that a cold function might keep would pin every trigger to the stack.
#[inline]
fn execute<T: Handler>(fifo: usize, trigger: Trigger, handler: &mut T) -> Result<(), Refusal> {
    if trigger.kind().is_none() { Err(Refusal::NO_KIND) } else { handler.handle(fifo, &trigger) }
}

/// The bucket of a time: the position of its highest bit.
fn bucket(ns: u128) -> usize {
    (ns.max(1).ilog2() as usize).min(BUCKETS - 1)
}

impl<H, S> fmt::Debug for Service<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("n_fifos", &self.lanes.len()).finish_non_exhaustive()
    }
}
