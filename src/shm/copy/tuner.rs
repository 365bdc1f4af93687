//! Finds the best kernel while copying.
//!
//! No fixed rule is right. The same copy on the same two virtual cores runs best through the cache while the cores
//! share one, and up to five times faster past it while they do not; the host changes that within seconds, and the
//! pattern (does a peer read each result, or does the next copy overwrite it?) matters as much. But a slow copy shows
//! in its own duration. So every thread times its long copies and keeps, for each class (power of two of the length,
//! and purpose), what the candidates cost. It uses the cheapest, and tries another now and then, more rarely each time
//! that changed nothing.
//!
//! A stream past the cache shifts a part of the cost to the reader, whom this thread does not see. Where the target is
//! read soon, it therefore has to be [`READER_SHARE`] times faster to be preferred.
//!
//! # Invariants
//! - Wherever there is one candidate, nothing is timed.
//! - State is per thread: no atomics, no allocation, no destructor.

use std::cell::Cell;

use super::plan::{MAX_CANDIDATES, Plan, SHORT};
use super::{CopyKernel, Purpose, ReadSoon};

/// By how much a streaming kernel must be faster if the target is read soon: measured as the ratio of copy times at
/// which the times of copy and read together are equal (1.5 near, less far; see the bench `copy`).
const READER_SHARE: f32 = 1.5;

/// The longest pause between two trials, in timed copies.
const MAX_PAUSE: u16 = 256;

/// Of the copies of a class below [`ALWAYS_TIMED`], one in so many is timed.
const SAMPLE: u32 = 8;

/// From this length in bytes on, two readings of the clock are nothing.
const ALWAYS_TIMED: usize = 128 << 10;

const FIRST_CLASS: u32 = SHORT.ilog2();
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

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Index of the candidate in use; of the one in trial.
    best: u8,
    trial: u8,
    /// Timed copies until the next trial, and the pause after it.
    countdown: u16,
    pause: u16,
    /// Clock ticks per byte, weighted by purpose; infinite where not tried.
    costs: [f32; MAX_CANDIDATES],
}

/// Runs the kernel that suits best.
///
/// # Safety
/// As for `CopyKernel::run`, but for the kernel, which is one that is supported.
#[inline]
pub(super) unsafe fn run(source: *const u8, target: *mut u8, len: usize, purpose: Purpose) {
    let plan = Plan::of_this_machine();
    if let &[only] = plan.candidates() {
        // SAFETY: the caller's contract; candidates are supported (`Plan::new`).
        return unsafe { only.run(source, target, len) };
    }
    TUNER.with(|tuner| {
        let class = tuner.class(len, purpose);
        let mut record = class.record.get();
        if !class.is_timed(len) {
            let kernel = plan.candidates()[record.best_or_first(plan, len, purpose)];
            // SAFETY: the caller's contract; candidates are supported (`Plan::new`).
            return unsafe { kernel.run(source, target, len) };
        }
        let chosen = record.pick(plan, len, purpose);
        let kernel = plan.candidates()[chosen];
        let start = ticks();
        // SAFETY: the caller's contract; candidates are supported (`Plan::new`).
        unsafe { kernel.run(source, target, len) };
        record.note(plan, chosen, cost(kernel, purpose, ticks().wrapping_sub(start), len));
        class.record.set(record);
    });
}

/// The kernel that this thread uses for `len` bytes now.
pub(super) fn current(len: usize, purpose: Purpose) -> CopyKernel {
    let plan = Plan::of_this_machine();
    TUNER.with(|tuner| {
        let record = tuner.class(len, purpose).record.get();
        plan.candidates()[record.best_or_first(plan, len, purpose)]
    })
}

impl Tuner {
    fn class(&self, len: usize, purpose: Purpose) -> &Class {
        let class = len.max(SHORT).ilog2() - FIRST_CLASS;
        &self.classes[purpose as usize][(class as usize).min(CLASSES - 1)]
    }
}

impl Class {
    const NEW: Self = Self { copies: Cell::new(0), record: Cell::new(Record::NEW) };

    /// Whether the copy at hand is to be timed. The first ones are, and so the record is in use afterwards.
    fn is_timed(&self, len: usize) -> bool {
        let copies = self.copies.get();
        self.copies.set(copies.wrapping_add(1));
        len >= ALWAYS_TIMED || copies.is_multiple_of(SAMPLE)
    }
}

impl Record {
    const UNKNOWN: u8 = u8::MAX;
    const NEW: Self = Self {
        best: Self::UNKNOWN,
        trial: 0,
        countdown: 1,
        pause: 1,
        costs: [f32::INFINITY; MAX_CANDIDATES],
    };

    fn best_or_first(&self, plan: &Plan, len: usize, purpose: Purpose) -> usize {
        if self.best == Self::UNKNOWN {
            plan.first(len as u64, purpose.read_soon())
        } else {
            self.best.into()
        }
    }

    /// Index of the candidate for this copy: the best, or one in trial.
    fn pick(&mut self, plan: &Plan, len: usize, purpose: Purpose) -> usize {
        if self.best == Self::UNKNOWN {
            self.best = u8::try_from(self.best_or_first(plan, len, purpose)).unwrap_or(0);
            self.trial = self.best;
        }
        if self.countdown > 0 {
            self.countdown -= 1;
            return self.best.into();
        }
        self.countdown = self.pause;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        let count = u8::try_from(plan.candidates().len()).unwrap_or(1);
        self.trial = (self.trial + 1) % count;
        if self.trial == self.best {
            self.trial = (self.trial + 1) % count;
        }
        self.trial.into()
    }

    /// Takes in what a copy by candidate `chosen` cost, and settles which is best.
    fn note(&mut self, plan: &Plan, chosen: usize, cost: f32) {
        let known = self.costs[chosen];
        self.costs[chosen] = if chosen == usize::from(self.best) && known.is_finite() {
            // One copy that was interrupted must not look like a change; a few slow ones are one.
            known + (cost.min(known * 1.5) - known) / 4.0
        } else {
            cost
        };
        let cheapest = (0..plan.candidates().len()).min_by(|&a, &b| self.costs[a].total_cmp(&self.costs[b]));
        let best = usize::from(self.best);
        // Three in a hundred is noise.
        if let Some(cheapest) = cheapest
            && cheapest != best
            && self.costs[cheapest] < self.costs[best] * 0.97
        {
            self.best = u8::try_from(cheapest).unwrap_or(0);
            self.pause = 4;
            self.countdown = 4;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn cost(kernel: CopyKernel, purpose: Purpose, ticks: u64, len: usize) -> f32 {
    let weight =
        if kernel.is_streaming() && purpose.read_soon() == ReadSoon::Yes { READER_SHARE } else { 1.0 };
    ticks as f32 / len as f32 * weight
}

/// A clock that costs next to nothing to read, in whatever unit.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn ticks() -> u64 {
    // SAFETY: reads the time stamp counter, which every x86-64 processor has and Linux leaves readable.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn ticks() -> u64 {
    // There is one candidate only; nothing is timed.
    0
}

#[cfg(test)]
mod tests;
