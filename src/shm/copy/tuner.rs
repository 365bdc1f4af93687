//! Finds the best kernel while copying.
//!
//! No fixed rule is right. The same copy on the same two virtual cores runs best through the cache while the cores
//! share one, and up to five times faster past it while they do not; the host changes that within seconds, and the
//! pattern (does a peer read each result, or does the next copy overwrite it?) matters as much. But a slow copy shows
//! in its own duration. So every thread times some of its long copies and keeps, for each class (power of two of the
//! length, and purpose), what the candidates cost. It uses the cheapest and gives the others a trial now and then,
//! more rarely each time that this changed nothing.
//!
//! A trial is [`TRIAL`] copies, of which the last counts: behind a stream past the cache, the first copy through the
//! cache finds the target in memory and pays for what the stream did.
//!
//! A stream past the cache shifts a part of the cost to the reader, whom this thread does not see. Where the target is
//! read soon, [`reader_ns`] is added to it.
//!
//! # Invariants
//! - Where there is one candidate, and outside the lengths between the obvious ones, nothing is timed.
//! - State is per thread: no atomics, no allocation, no destructor.

use std::cell::Cell;
use std::time::Instant;

use super::plan::{MAX_CANDIDATES, Plan, TUNED};
use super::{CopyKernel, Purpose, ReadSoon};

/// Copies in a trial.
const TRIAL: u8 = 2;

/// The longest pause between two trials, in timed copies.
const MAX_PAUSE: u16 = 512;

/// Of the copies shorter than [`ALWAYS_TIMED`], one run of [`TRIAL`] in so many is timed. A power of two.
const SAMPLE: u32 = 16;

/// From this length in bytes on, two readings of the clock are nothing.
const ALWAYS_TIMED: usize = 512 << 10;

/// What must be left of the cost for another candidate to be used: a smaller difference is noise.
const NOISE: f32 = 0.93;

/// What must be left of the cost to conclude that the machine has changed, and that the rest is out of date too.
const CHANGE: f32 = 0.7;

const FIRST_CLASS: u32 = TUNED.ilog2();
const CLASSES: usize = 16;
const PURPOSES: usize = 3;

thread_local! {
    static TUNER: Tuner = const { Tuner { classes: [const { [const { Class::NEW }; CLASSES] }; PURPOSES] } };
}

struct Tuner {
    classes: [[Class; CLASSES]; PURPOSES],
}

/// What one thread knows about copies of one length and purpose.
struct Class {
    copies: Cell<u32>,
    record: Cell<Record>,
}

/// Part of a copy in the timing of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Timed, and a whole trial can follow.
    First,
    /// Timed, right behind a timed one.
    Following,
    Untimed,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Index of the candidate in use.
    best: u8,
    /// Index of the candidate in trial, or last tried; and how many copies of the trial are left.
    trial: u8,
    trial_left: u8,
    /// Timed copies until the next trial, and the pause after it.
    countdown: u16,
    pause: u16,
    /// Nanoseconds per byte; infinite where not tried.
    costs: [f32; MAX_CANDIDATES],
}

/// Runs the kernel that suits best.
///
/// # Safety
/// `len` bytes are readable at `source` and writable at `target`, and the ranges do not overlap.
#[inline]
pub(super) unsafe fn run(source: *const u8, target: *mut u8, len: usize, purpose: Purpose) {
    let plan = Plan::of_this_machine();
    if !plan.is_tuned(len) {
        let kernel = plan.first(len as u64, purpose.read_soon());
        // SAFETY: the caller's contract; candidates are supported (`Plan::new`).
        return unsafe { kernel.run(source, target, len) };
    }
    TUNER.with(|tuner| {
        let class = tuner.class(len, purpose);
        let mut record = class.record.get();
        let turn = class.turn(len);
        if turn == Turn::Untimed {
            let kernel = plan.candidates()[record.best_or_first(plan, len, purpose)];
            // SAFETY: the caller's contract; candidates are supported (`Plan::new`).
            return unsafe { kernel.run(source, target, len) };
        }
        let chosen = record.pick(plan, len, purpose, turn);
        let kernel = plan.candidates()[chosen];
        let start = Instant::now();
        // SAFETY: the caller's contract; candidates are supported (`Plan::new`).
        unsafe { kernel.run(source, target, len) };
        record.note(plan, chosen, cost(kernel, purpose, start.elapsed().as_nanos(), len));
        class.record.set(record);
    });
}

/// The kernel that this thread uses for `len` bytes now.
pub(super) fn current(len: usize, purpose: Purpose) -> CopyKernel {
    let plan = Plan::of_this_machine();
    if !plan.is_tuned(len) {
        return plan.first(len as u64, purpose.read_soon());
    }
    TUNER.with(|tuner| {
        let record = tuner.class(len, purpose).record.get();
        plan.candidates()[record.best_or_first(plan, len, purpose)]
    })
}

impl Tuner {
    #[inline]
    fn class(&self, len: usize, purpose: Purpose) -> &Class {
        let class = len.max(TUNED).ilog2() - FIRST_CLASS;
        &self.classes[purpose as usize][(class as usize).min(CLASSES - 1)]
    }
}

impl Class {
    const NEW: Self = Self { copies: Cell::new(0), record: Cell::new(Record::NEW) };

    /// What the copy at hand is good for.
    #[inline]
    fn turn(&self, len: usize) -> Turn {
        let copies = self.copies.get();
        self.copies.set(copies.wrapping_add(1));
        match copies % SAMPLE {
            _ if len >= ALWAYS_TIMED => Turn::First,
            0 => Turn::First,
            turn if turn < u32::from(TRIAL) => Turn::Following,
            _ => Turn::Untimed,
        }
    }
}

impl Record {
    const UNKNOWN: u8 = u8::MAX;
    const NEW: Self = Self {
        best: Self::UNKNOWN,
        trial: 0,
        trial_left: 0,
        countdown: 3,
        pause: 2,
        costs: [f32::INFINITY; MAX_CANDIDATES],
    };

    fn best_or_first(&self, plan: &Plan, len: usize, purpose: Purpose) -> usize {
        if self.best == Self::UNKNOWN {
            plan.first_index(len as u64, purpose.read_soon())
        } else {
            self.best.into()
        }
    }

    /// Index of the candidate for this copy: the best, or one in trial.
    fn pick(&mut self, plan: &Plan, len: usize, purpose: Purpose, turn: Turn) -> usize {
        if self.best == Self::UNKNOWN {
            self.best = index(self.best_or_first(plan, len, purpose));
            self.trial = self.best;
        }
        if self.trial_left > 0 {
            self.trial_left -= 1;
            return self.trial.into();
        }
        self.countdown = self.countdown.saturating_sub(1);
        if self.countdown > 0 || turn != Turn::First {
            return self.best.into();
        }
        self.countdown = self.pause;
        self.pause = (self.pause * 4).min(MAX_PAUSE);
        // Downwards: the streaming one, which differs most, comes first.
        let count = index(plan.candidates().len());
        self.trial = (self.trial + count - 1) % count;
        if self.trial == self.best {
            self.trial = (self.trial + count - 1) % count;
        }
        self.trial_left = TRIAL - 1;
        self.trial.into()
    }

    /// Takes in what a copy by candidate `chosen` cost, and settles which is best.
    fn note(&mut self, plan: &Plan, chosen: usize, cost: f32) {
        if self.trial_left > 0 {
            return;
        }
        let known = self.costs[chosen];
        self.costs[chosen] = if chosen == usize::from(self.best) && known.is_finite() {
            // One copy that was interrupted must not look like a change; a few slow ones are one.
            known + (cost.min(known * 1.5) - known) / 4.0
        } else {
            cost
        };
        let cheapest = (0..plan.candidates().len()).min_by(|&a, &b| self.costs[a].total_cmp(&self.costs[b]));
        let best = usize::from(self.best);
        let Some(cheapest) = cheapest.filter(|&cheapest| self.costs[cheapest] < self.costs[best] * NOISE)
        else {
            return;
        };
        if self.costs[cheapest] < self.costs[best] * CHANGE {
            self.pause = 4;
        }
        self.countdown = self.pause;
        self.best = index(cheapest);
    }
}

/// Nanoseconds per byte, with what the reader will pay.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn cost(kernel: CopyKernel, purpose: Purpose, nanos: u128, len: usize) -> f32 {
    let is_charged = kernel.is_streaming() && purpose.read_soon() == ReadSoon::Yes;
    let reader = if is_charged { reader_ns(len as f32) } else { 0.0 };
    (nanos as f32 + reader) / len as f32
}

/// What a reader pays for data that lie in memory instead of in a cache that it shares with the writer, in ns.
///
/// Measured on two cores of an AMD EPYC (Zen 3) as the difference of the times of copy and read together, less that of
/// the copies: between 0.03 and 0.04 ns a byte from 64 KiB to 8 MiB, and up to 1 us more for a short one.
fn reader_ns(len: f32) -> f32 {
    1000.0 + 0.035 * len
}

/// The index of a candidate as a record holds it.
fn index(candidate: usize) -> u8 {
    u8::try_from(candidate).expect("there are at most MAX_CANDIDATES")
}

#[cfg(test)]
mod tests;
