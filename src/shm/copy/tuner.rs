//! Finds the best kernel while copying.
//!
//! No fixed rule is right. The same copy on the same two virtual cores runs best through the cache while the cores
//! share one, and up to five times faster past it while they do not; the host changes that within seconds, and the
//! pattern (does a peer read each result, or does the next copy overwrite it?) matters as much. But a slow copy shows
//! in its own duration. So every thread times some of its long copies and keeps, for each class (power of two of the
//! length, and purpose), what the candidates cost. It uses the cheapest and gives the others a trial now and then: the
//! rarer, the more the trial costs.
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

/// What the trials of one candidate may cost: this part of the time.
const BUDGET: f32 = 0.01;

/// The pauses between two trials of a candidate, in timed copies, however cheap or costly it is.
const PAUSE: std::ops::RangeInclusive<f32> = 16.0..=1000.0;

/// Of the copies shorter than [`ALWAYS_TIMED`], one run of [`TRIAL`] in so many is timed. A power of two.
const SAMPLE: u32 = 64;

/// So many copies of a class are timed before sampling begins.
const EAGER: u32 = 32;

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
    /// For each candidate, timed copies until its next trial.
    countdown: [u16; MAX_CANDIDATES],
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
    #[expect(clippy::declare_interior_mutable_const, reason = "every use is to be a new one")]
    const NEW: Self = Self { copies: Cell::new(0), record: Cell::new(Record::NEW) };

    /// What the copy at hand is good for.
    #[inline]
    fn turn(&self, len: usize) -> Turn {
        let copies = self.copies.get();
        self.copies.set(copies.wrapping_add(1));
        match copies % SAMPLE {
            _ if len >= ALWAYS_TIMED || copies < EAGER => Turn::First,
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
        // The last, the streaming one, differs most and comes first.
        countdown: [9, 6, 3],
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
        let best = usize::from(self.best);
        let mut due = None;
        for candidate in (0..plan.candidates().len()).filter(|&candidate| candidate != best) {
            self.countdown[candidate] = self.countdown[candidate].saturating_sub(1);
            if self.countdown[candidate] == 0 {
                due = Some(candidate);
            }
        }
        match due {
            Some(candidate) if turn == Turn::First => {
                self.trial = index(candidate);
                self.trial_left = TRIAL - 1;
                candidate
            }
            _ => best,
        }
    }

    /// Takes in what a copy by candidate `chosen` cost, and settles which is best.
    fn note(&mut self, plan: &Plan, chosen: usize, cost: f32) {
        if self.trial_left > 0 {
            return;
        }
        let best = usize::from(self.best);
        if chosen != best {
            self.costs[chosen] = cost;
            self.countdown[chosen] = pause(cost / self.costs[best]);
        } else if self.costs[best].is_finite() {
            // One copy that was interrupted must not look like a change; a few slow ones are one.
            let known = self.costs[best];
            self.costs[best] = known + (cost.min(known * 1.5) - known) / 4.0;
        } else {
            self.costs[best] = cost;
        }
        let cheapest = (0..plan.candidates().len()).min_by(|&a, &b| self.costs[a].total_cmp(&self.costs[b]));
        let Some(cheapest) = cheapest.filter(|&cheapest| self.costs[cheapest] < self.costs[best] * NOISE)
        else {
            return;
        };
        let is_change = self.costs[cheapest] < self.costs[best] * CHANGE;
        for countdown in &mut self.countdown {
            *countdown = if is_change { 4 } else { (*countdown).max(4) };
        }
        self.best = index(cheapest);
    }
}

/// Timed copies until the next trial of a candidate that costs `ratio` times as much as the best one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within PAUSE")]
fn pause(ratio: f32) -> u16 {
    let regret = f32::from(TRIAL) * (ratio - 1.0) / BUDGET;
    // Not a number while nothing is known of the best: the shortest pause.
    regret.max(*PAUSE.start()).min(*PAUSE.end()) as u16
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
