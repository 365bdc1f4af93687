//! The serving loop: takes triggers out of one or many fifos and hands them to a handler.
//!
//! One call of [`Service::poll`] is one turn: a bounded batch from every fifo, starting with
//! another one each time, so that no fifo starves. For each trigger: handle it, publish the
//! completed position if it carries FLUSH, pop it.
//!
//! - A trigger that the handler refuses goes the same way, so that no flush waits for it for ever.
//!   It is counted, kept in the header for reports, and passed to [`Handler::refused`].
//! - A handler that [is over](Handler::is_over) ends the turn in front of the next trigger, and a
//!   drain too.
//! - Pops are published a stretch of slots at a time, and when the batch ends. A producer that
//!   waits for room learns of one up to fifteen triggers later.
//! - When to poll again, to spin or to sleep is the caller's business.
//!
//! A service of many fifos [attends](Service::attend) to those in use before each turn; the others
//! cost nothing.
//!
//! A caller that sleeps must poll once more between announcing its sleep and sleeping. A turn that
//! returns 0 has found every fifo (in use) empty, or stopped at a position that is reserved and not
//! committed, or its handler is over.
//!
//! **What measuring costs.** Two clock reads and the end of a stretch for one position in
//! [`SAMPLE_EVERY`]; nothing for the others, which are counted by the batch. The interval is a
//! prime, so that it does not fall in step with patterns of triggers. The depth is taken as a batch
//! begins, by a look at a slot, so that `head` stays with the producers.

use core::fmt;
use core::num::NonZeroU32;
use core::ops::Deref;
use std::time::Instant;

use crate::atomic::Ordering;
use crate::consumer::{Consumer, bump, is_abandoned};
use crate::fifo::Position;
use crate::header::{BUCKETS, FifoHeader, Roster, Slot};
use crate::trigger::{Trigger, TriggerKind};

/// One position in this many is timed.
pub const SAMPLE_EVERY: u32 = 1021;

/// The most triggers that one turn takes from one fifo: a turn that served fewer has seen the end
/// of every fifo.
pub const BATCH: u64 = 64;

/// Why a handler did not execute a trigger: a number that the handler chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TriggerRefusal(NonZeroU32);

impl TriggerRefusal {
    /// The service's own: the trigger asks for nothing.
    pub const NO_KIND: Self = Self(NonZeroU32::MAX);

    /// Names a reason by any number but zero and `u32::MAX`, which is [`TriggerRefusal::NO_KIND`].
    #[must_use]
    pub const fn new(code: NonZeroU32) -> Self {
        Self(code)
    }

    /// Returns the number.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.0.get()
    }
}

/// Executes triggers.
pub trait Handler {
    /// Executes a trigger of the fifo with this index. Its ids and ranges are unchecked: they may
    /// be forged. It has a kind, or asks for a [change of a word](Trigger::word_update).
    ///
    /// # Errors
    /// A [`TriggerRefusal`] when it cannot be executed; then nothing must have been changed.
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), TriggerRefusal>;

    /// Learns of a refused trigger, before its position is popped. Does nothing unless overridden.
    fn refused(&mut self, fifo: usize, position: Position, trigger: &Trigger, refusal: TriggerRefusal) {
        let _ = (fifo, position, trigger, refusal);
    }

    /// Learns that the position of a FLUSH of this fifo was published as completed. Does nothing
    /// unless overridden.
    ///
    /// If threads sleep until a flush is done, this is when to wake them: the turn may take long
    /// from here on.
    fn completed(&mut self, fifo: usize) {
        let _ = fifo;
    }

    /// Returns whether nothing is to be executed any more. Asked before each trigger; one for which
    /// the answer is yes stays in its fifo, and so do those behind it. Never, unless overridden.
    fn is_over(&self) -> bool {
        false
    }
}

impl<F: FnMut(usize, &Trigger) -> Result<(), TriggerRefusal>> Handler for F {
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
        self(fifo, trigger)
    }
}

/// Serves one or many fifos. A fifo's index is its place in the list that the service was made
/// from.
pub struct Service<H, S> {
    /// The fifos that turns go to, then the others.
    lanes: Vec<FifoLane<H, S>>,
    /// How many lanes turns go to.
    attended: usize,
    /// The lane that the next turn starts with.
    first: usize,
    /// The count of the roster when it was last gone by.
    changes: Option<u64>,
}

/// How far a drain has to go: the heads of all fifos that were seen when it was asked for.
#[derive(Clone, Debug)]
pub struct DrainGoal(Vec<u64>);

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> Service<H, S> {
    /// Serves the fifos of `consumers`.
    pub fn new(consumers: impl IntoIterator<Item = Consumer<H, S>>) -> Self {
        let lane = |(fifo, consumer)| FifoLane { fifo, consumer, is_in_use: true, untimed: 0 };
        let lanes: Vec<_> = consumers.into_iter().enumerate().map(lane).collect();
        Self { attended: lanes.len(), lanes, first: 0, changes: None }
    }

    /// Has turns go to those fifos only that have producers, or triggers of producers that have
    /// gone, as `roster` tells.
    ///
    /// To be called before each turn: it costs one load unless producers have come or gone.
    ///
    /// # Ordering
    /// Edge F6: a producer that was told of is attended to.
    #[inline]
    pub fn attend(&mut self, roster: &Roster) {
        let changes = roster.changes();
        if self.changes != Some(changes) {
            self.changes = Some(changes);
            self.sort_by_use();
        }
    }

    /// Brings the lanes that are in use to the front.
    #[cold]
    fn sort_by_use(&mut self) {
        // Asked once each: producers come and go meanwhile, and the sorting must not notice.
        self.lanes.iter_mut().for_each(FifoLane::note_use);
        self.lanes.sort_unstable_by_key(|lane| (!lane.is_in_use, lane.fifo));
        self.attended = self.lanes.iter().take_while(|lane| lane.is_in_use).count();
        self.first = 0;
    }

    /// Returns the indices of the fifos that turns go to.
    pub fn attended(&self) -> impl Iterator<Item = usize> {
        self.lanes[..self.attended].iter().map(|lane| lane.fifo)
    }

    /// Returns how many fifos are served.
    #[must_use]
    pub fn n_fifos(&self) -> usize {
        self.lanes.len()
    }

    /// Serves one turn: up to [`BATCH`] positions of every fifo attended to. Returns how many it
    /// popped: triggers served, triggers refused, and positions that held none. The turn ends early
    /// when the handler [is over](Handler::is_over).
    #[inline]
    pub fn poll<T: Handler>(&mut self, handler: &mut T) -> u64 {
        let (attended, first) = (self.attended, self.first);
        let mut served = 0;
        for lane in (first..attended).chain(0..first) {
            served += self.lanes[lane].serve(BATCH, handler);
        }
        self.first = if first + 1 < attended { first + 1 } else { 0 };
        served
    }

    /// Notes what has been pushed so far, for [`Service::drain`].
    ///
    /// Pushes that happened before this call, as the caller knows, are within the goal.
    #[must_use]
    pub fn drain_goal(&self) -> DrainGoal {
        let mut goal = vec![0; self.lanes.len()];
        for lane in &self.lanes {
            goal[lane.fifo] = lane.consumer.position().wrapping_add(lane.consumer.depth());
        }
        DrainGoal(goal)
    }

    /// Serves what is committed within `goal` and returns how many positions are left.
    ///
    /// It returns at once. What is left was reserved and not yet committed: call again while its
    /// producers live.
    pub fn drain<T: Handler>(&mut self, goal: &DrainGoal, handler: &mut T) -> u64 {
        let mut left = 0;
        for lane in &mut self.lanes {
            // Nothing, where the goal is that of a service of fewer fifos.
            let Some(&end) = goal.0.get(lane.fifo) else { continue };
            while lane.left(end) > 0 && lane.serve(1, handler) > 0 {}
            left += lane.left(end);
        }
        left
    }

    /// Returns the shared state of one fifo.
    #[must_use]
    pub fn header(&self, fifo: usize) -> Option<&FifoHeader> {
        self.lanes.iter().find(|lane| lane.fifo == fifo).map(|lane| lane.consumer.ring().header)
    }
}

/// One fifo of a service.
struct FifoLane<H, S> {
    /// The index of the fifo.
    fifo: usize,
    consumer: Consumer<H, S>,
    /// Whether it had producers, or triggers of producers that had gone, when that was asked last.
    is_in_use: bool,
    /// How many positions go untimed before the next timed one.
    untimed: u64,
}

impl<H: Deref<Target = FifoHeader>, S: Deref<Target = [Slot]>> FifoLane<H, S> {
    /// Serves up to `limit` positions; fewer when the next one is not committed.
    fn serve<T: Handler>(&mut self, limit: u64, handler: &mut T) -> u64 {
        self.consumer.note_depth();
        let mut served = 0;
        while served < limit {
            let (popped, wanted) = if self.untimed == 0 {
                (self.serve_timed(handler), 1)
            } else {
                let wanted = self.untimed.min(limit - served);
                (self.serve_untimed(wanted, handler), wanted)
            };
            served += popped;
            if popped < wanted {
                break;
            }
        }
        served
    }

    // Not inlined, so that the loop within has the registers to itself.
    #[inline(never)]
    fn serve_untimed<T: Handler>(&mut self, limit: u64, handler: &mut T) -> u64 {
        let fifo = self.fifo;
        let popped = self.consumer.serve_batch(limit, |header, position, trigger| {
            settle(fifo, TriggerPlace { header, position }, trigger, handler, |handler| {
                handler.handle(fifo, &trigger)
            })
        });
        self.untimed -= popped;
        popped
    }

    /// Serves one position and counts how long its trigger took.
    #[cold]
    #[inline(never)]
    fn serve_timed<T: Handler>(&mut self, handler: &mut T) -> u64 {
        let fifo = self.fifo;
        let popped = self.consumer.serve_batch(1, |header, position, trigger| {
            let site = TriggerPlace { header, position };
            settle(fifo, site, trigger, handler, |handler| execute_timed(fifo, site, trigger, handler))
        });
        self.untimed = popped * u64::from(SAMPLE_EVERY - 1);
        popped
    }

    fn note_use(&mut self) {
        self.is_in_use = self.consumer.ring().is_in_use(self.consumer.position());
    }

    /// Returns how many positions there are before `end`, at most the capacity.
    fn left(&self, end: u64) -> u64 {
        let difference = end.wrapping_sub(self.consumer.position());
        if difference >= 1 << 63 { 0 } else { difference }
    }
}

/// Where a trigger was found. Two words, so that it is passed in registers.
#[derive(Clone, Copy)]
struct TriggerPlace<'h> {
    header: &'h FifoHeader,
    position: u64,
}

/// Returns all that becomes of a position before its pop; `execute` hands its trigger to the
/// handler. False when it is to stay.
#[inline(always)]
fn settle<T: Handler>(
    fifo: usize,
    site: TriggerPlace<'_>,
    trigger: Trigger,
    handler: &mut T,
    execute: impl FnOnce(&mut T) -> Result<(), TriggerRefusal>,
) -> bool {
    if handler.is_over() {
        return false;
    }
    // One look for both: where there is no trigger, nothing is asked for either.
    if trigger.is_nothing() {
        refuse_or_skip(fifo, site, trigger, handler);
    } else if let Err(refusal) = execute(handler) {
        refuse(fifo, site, trigger, refusal, handler);
    }
    if trigger.kind().contains(TriggerKind::FLUSH) {
        site.header.complete(site.position);
        handler.completed(fifo);
    }
    true
}

#[inline(never)]
fn execute_timed<T: Handler>(
    fifo: usize,
    site: TriggerPlace<'_>,
    trigger: Trigger,
    handler: &mut T,
) -> Result<(), TriggerRefusal> {
    let start = Instant::now();
    let outcome = handler.handle(fifo, &trigger);
    let elapsed = start.elapsed();
    bump(&site.header.service_time[bucket(elapsed.as_nanos())]);
    outcome
}

#[cold]
#[inline(never)]
fn refuse_or_skip<T: Handler>(fifo: usize, site: TriggerPlace<'_>, trigger: Trigger, handler: &mut T) {
    if is_abandoned(&trigger) {
        bump(&site.header.service.skipped);
    } else {
        refuse(fifo, site, trigger, TriggerRefusal::NO_KIND, handler);
    }
}

// By value: a reference that a cold function might keep would pin every trigger to the stack.
#[cold]
#[inline(never)]
fn refuse<T: Handler>(
    fifo: usize,
    site: TriggerPlace<'_>,
    trigger: Trigger,
    refusal: TriggerRefusal,
    handler: &mut T,
) {
    let service = &site.header.service;
    let [word0, word1] = trigger.words();
    let record = [site.position, word0, word1, u64::from(refusal.code())];
    for (cell, value) in service.last_refused.iter().zip(record) {
        cell.store(value, Ordering::Relaxed); // relaxed: a diagnosis; a reader may mix two refusals
    }
    bump(&service.refused);
    handler.refused(fifo, Position(site.position), &trigger, refusal);
}

/// Returns the bucket of a time: the position of its highest bit.
fn bucket(ns: u128) -> usize {
    (ns.max(1).ilog2() as usize).min(BUCKETS - 1)
}

impl<H, S> fmt::Debug for Service<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("n_fifos", &self.lanes.len()).finish_non_exhaustive()
    }
}
