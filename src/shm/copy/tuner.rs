//! Finds the best store policy while copying ([`StorePurpose::policies`]): through the cache, past
//! it, or forwarded. No fixed rule is right; why, and the figures behind all rules here, are in
//! `benches/RESULTS.md`, "Store policies".
//!
//! Every thread times long copies and keeps, for each class (power of two of the length, and
//! purpose), the [`Trials`] of its policies. The cheapest policy is in use. A trial is up to
//! [`TRIAL`] copies, of which the best counts. A trial ends early where it is hopeless.
//! Combinations of elements store their results by a policy too. All ranks try the policies of
//! these at once, in the first combinations of each [`PERIOD`].
//!
//! # Invariants
//! - Where there is one policy, where copies are short, and where combinations are too long for any
//!   cache, nothing is timed.
//! - Of a thread's time at most one part in [`REST`] goes into the trials of a class, besides those
//!   that a slowdown of the policy in use prompts. Of combinations, [`TRIAL`] in a [`PERIOD`] go by
//!   each of the other policies.
//! - Which combinations are a joint trial, and by which policy each of those goes, follows from
//!   their number, length and purpose alone. Combinations that have one policy are not counted.
//! - State is per thread: no atomics, no allocation, no destructor.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::StorePurpose;
use super::strategy::{CopyStrategy, SHORT, StorePolicy};
use crate::sync::plain;
use crate::trials::{Alternative, Trials};

/// Copies in a trial.
const TRIAL: u8 = 3;

/// The policy in use has slowed down when so many copies in a row did.
const MEMORY: usize = 3;

/// A trial ends with its first copy when that costs so many times the cost of the policy in use.
/// The state that the policy in use left behind costs less.
const HOPELESS: f32 = 2.0;

/// After a trial none is made without a reason for so many times as long as it took.
const REST: u32 = 100;

/// Copies after a trial before the next one without a reason, where a stream past the cache is in
/// use. A stream costs the same wherever the cores are. So only a trial finds out that the cores
/// have come to share a cache.
const SHORT_PAUSE: u64 = 16;

/// Copies after a trial before the next one otherwise. Stores through the cache slow down by
/// themselves when cores no longer share one. Copies that do not fit into the cache gain little
/// when cores do.
const LONG_PAUSE: u64 = 128;

/// Returns N where one run of [`TRIAL`] copies in N is timed, by length; a power of two. Shorter
/// copies are timed less often, as two readings of the clock cost some percent of them.
const fn sample(len: usize) -> u64 {
    match len >> 10 {
        0..256 => 64,
        256..2048 => 16,
        _ => 1,
    }
}

/// After a copy that took so long the next one is timed, too: readings of the clock are less than 1
/// % of it.
const LONG: Duration = Duration::from_micros(20);

/// So many copies of a class are timed before sampling begins.
const EAGER: u64 = 32;

/// Combinations of a class from one joint trial to the next. A multiple of all [`sample`]s.
const PERIOD: u64 = 1024;

const FIRST_CLASS: u32 = SHORT.ilog2();
const CLASSES: usize = 17;
const PURPOSES: usize = 6;
const POLICIES: usize = 3;

thread_local! {
    static TUNER: Tuner = const { Tuner { classes: [const { [const { Class::NEW }; CLASSES] }; PURPOSES] } };
}

struct Tuner {
    classes: [[Class; CLASSES]; PURPOSES],
}

/// What one thread knows about copies of one length and purpose.
struct Class {
    /// How many there have been.
    copies: Cell<u64>,
    /// Whether the next copy is timed in any case: one of a trial, or one that takes long.
    is_prompted: Cell<bool>,
    /// Nothing before the first copy.
    record: Cell<Option<PolicyTrials>>,
}

/// Part of a copy in the timing of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyTiming {
    /// Timed, and a whole trial can follow.
    First,
    /// Timed, right behind a timed one.
    Following,
    /// Timed, as this one, from 0 on, of a joint trial.
    Joint(u8),
    Untimed,
}

/// What is known of the policies for one class of copies, and when the next trial is due.
#[derive(Clone, Copy, Debug)]
struct PolicyTrials {
    /// What the copies are for: which policies there are, and whether all ranks try them at once.
    purpose: StorePurpose,
    /// The policy to begin with.
    first: StorePolicy,
    /// Costs are in nanoseconds per byte.
    trials: Trials<StorePolicy, POLICIES, MEMORY>,
    /// How long the trial has taken so far.
    spent: Duration,
    /// The copy, and the time, before which there is no other trial without a reason.
    pause_until: u64,
    rest_until: Option<Instant>,
    /// How many copies a pause takes where a stream past the cache is in use.
    past_pause: u64,
}

/// Runs the kernel that suits best.
///
/// # Safety
/// `len` bytes are readable at `source` and writable at `target`, and the ranges do not overlap.
#[inline]
pub(super) unsafe fn run(source: *const u8, target: *mut u8, len: usize, purpose: StorePurpose) {
    with_measured_policy(len, len, purpose, |policy| {
        let kernel = CopyStrategy::of_this_machine().kernel_between(policy, source, target, len);
        // SAFETY: the caller's contract; its kernels are supported (`CopyStrategy::new`).
        unsafe { kernel.run(source, target, len) };
    });
}

/// Does `work`, which is like a copy of `len` bytes, by the policy that has turned out best among
/// those of `most` bytes. Of a joint combination, `most` is the share of the rank that does most.
#[inline]
pub(in crate::shm) fn with_measured_policy(
    most: usize,
    len: usize,
    purpose: StorePurpose,
    work: impl FnOnce(StorePolicy),
) {
    let strategy = CopyStrategy::of_this_machine();
    let first = strategy.first(most as u64, purpose.cache_hint());
    if !strategy.is_tuned(most, purpose) || purpose.is_joint() && !strategy.stays_in_cache(most) {
        return work(first);
    }
    TUNER.with(|tuner| {
        let class = tuner.class(most, purpose);
        let (turn, copies) = (class.turn(most, purpose), class.copies.get());
        if turn == CopyTiming::Untimed {
            return work(class.best().unwrap_or(first));
        }
        let new = || PolicyTrials::new(purpose, first, past_pause(strategy, most));
        let mut record = class.record.get().unwrap_or_else(new);
        let start = Instant::now();
        let policy = record.pick(turn, copies, start);
        work(policy);
        if purpose.is_for_peer() {
            // Past the cache the kernel has waited for them.
            plain::drain_stores();
        }
        let end = Instant::now();
        record.note(turn, cost(policy, purpose, end - start, len), end - start, copies, end);
        class.keep(record, end - start);
    });
}

impl Tuner {
    #[inline]
    fn class(&self, len: usize, purpose: StorePurpose) -> &Class {
        let class = len.max(SHORT).ilog2() - FIRST_CLASS;
        &self.classes[purpose as usize][(class as usize).min(CLASSES - 1)]
    }
}

impl Class {
    #[expect(clippy::declare_interior_mutable_const, reason = "every use is to be a new one")]
    const NEW: Self = Self { copies: Cell::new(0), is_prompted: Cell::new(false), record: Cell::new(None) };

    /// Returns the policy in use, if there have been copies.
    #[inline]
    fn best(&self) -> Option<StorePolicy> {
        self.record.get().map(|record| record.trials.in_use())
    }

    #[inline]
    fn keep(&self, record: PolicyTrials, took: Duration) {
        self.is_prompted.set(record.is_prompted() || took >= LONG);
        self.record.set(Some(record));
    }

    /// Returns the part of the copy at hand in the timing of its class.
    #[inline]
    fn turn(&self, len: usize, purpose: StorePurpose) -> CopyTiming {
        let copies = self.copies.get();
        self.copies.set(copies.wrapping_add(1));
        if purpose.is_joint()
            && let Ok(number) = u8::try_from(copies % PERIOD)
            && usize::from(number) < joint_trial(purpose)
        {
            return CopyTiming::Joint(number);
        }
        match copies % sample(len) {
            _ if copies < EAGER || self.is_prompted.get() => CopyTiming::First,
            0 => CopyTiming::First,
            turn if turn < u64::from(TRIAL) => CopyTiming::Following,
            _ => CopyTiming::Untimed,
        }
    }
}

impl PolicyTrials {
    /// Begins with a trial of `first`.
    const fn new(purpose: StorePurpose, first: StorePolicy, past_pause: u64) -> Self {
        Self {
            purpose,
            first,
            trials: Trials::new(purpose.policies(), first, TRIAL),
            spent: Duration::ZERO,
            pause_until: 0,
            rest_until: None,
            past_pause,
        }
    }

    /// Picks the policy for this copy: the one in use, or one in trial.
    fn pick(&mut self, turn: CopyTiming, copies: u64, now: Instant) -> StorePolicy {
        if let CopyTiming::Joint(number) = turn {
            return self.pick_jointly(number);
        }
        if !self.trials.is_trial() && turn == CopyTiming::First && self.is_due(copies, now) {
            self.trials.begin(self.trials.rival(), TRIAL);
            self.spent = Duration::ZERO;
        }
        self.trials.current()
    }

    /// Picks first the policy to begin with and then the others, whichever is in use.
    fn pick_jointly(&mut self, number: u8) -> StorePolicy {
        if number.is_multiple_of(TRIAL) {
            let others = self.purpose.policies().iter().copied().filter(|policy| *policy != self.first);
            let mut in_turn = [self.first].into_iter().chain(others);
            self.trials.begin(in_turn.nth(usize::from(number / TRIAL)).unwrap_or(self.first), TRIAL);
        }
        self.trials.tried()
    }

    /// Returns whether a trial of another policy begins now: what is known of it is better, or
    /// nothing, or old.
    fn is_due(&self, copies: u64, now: Instant) -> bool {
        let is_old = !self.purpose.is_joint()
            && copies >= self.pause_until
            && self.rest_until.is_none_or(|until| now >= until);
        self.trials.may_be_beaten() || is_old
    }

    /// Returns whether the next copy is of a trial, or the first of one.
    fn is_prompted(&self) -> bool {
        self.trials.is_trial() || self.trials.may_be_beaten()
    }

    /// Takes in what the copy at hand cost, and settles which policy is in use.
    fn note(&mut self, turn: CopyTiming, cost: f32, took: Duration, copies: u64, now: Instant) {
        let is_over = self.trials.note(cost, least);
        match turn {
            // A joint trial has no early end: a rank that went on alone would find out what the
            // policy costs alone.
            CopyTiming::Joint(number) if usize::from(number) + 1 == joint_trial(self.purpose) => {
                self.trials.settle_all();
            }
            CopyTiming::Joint(_) => {}
            _ => self.note_alone(is_over, cost, took, copies, now),
        }
    }

    /// Ends a trial of this rank's own, if it is over or hopeless.
    fn note_alone(&mut self, is_over: bool, cost: f32, took: Duration, copies: u64, now: Instant) {
        if !is_over && !self.trials.is_trial() {
            return;
        }
        self.spent += took;
        let in_use = self.trials.cost_of(self.trials.in_use());
        let is_hopeless = cost > in_use * HOPELESS && !self.purpose.is_joint();
        if !is_over && !is_hopeless {
            return;
        }
        self.trials.settle();
        let pause = match self.trials.in_use() {
            StorePolicy::NonTemporal => self.past_pause,
            StorePolicy::Cached | StorePolicy::CopyForward => LONG_PAUSE,
        };
        self.pause_until = copies + pause;
        self.rest_until = now.checked_add(self.spent * REST);
    }
}

impl Alternative for StorePolicy {
    fn index(self) -> usize {
        self as usize
    }
}

/// Returns the cost that is typical of several copies: the least. What costs more was interrupted,
/// or found new memory.
fn least(costs: &mut [f32; MEMORY]) -> f32 {
    costs.iter().copied().fold(f32::INFINITY, f32::min)
}

/// Returns how many combinations a joint trial of all policies takes.
const fn joint_trial(purpose: StorePurpose) -> usize {
    TRIAL as usize * purpose.policies().len()
}

/// Returns for how many copies of `len` bytes past the cache no trial is made.
fn past_pause(strategy: &CopyStrategy, len: usize) -> u64 {
    if strategy.stays_in_cache(len) { SHORT_PAUSE } else { LONG_PAUSE }
}

/// Returns nanoseconds per byte of `len`, with what the reader of a copy will pay. Where the copy
/// is so long that its reader finds it in memory anyway, the reader pays the same for both
/// policies.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn cost(policy: StorePolicy, purpose: StorePurpose, took: Duration, len: usize) -> f32 {
    let is_charged = policy == StorePolicy::NonTemporal
        && matches!(purpose, StorePurpose::PutReadSoon | StorePurpose::Get)
        && CopyStrategy::of_this_machine().stays_in_cache(len);
    let reader = if is_charged { reader_ns(len as f32) } else { 0.0 };
    (took.as_nanos() as f32 + reader) / len as f32
}

/// Returns what a reader pays for data that lie in memory instead of in a cache that it shares with
/// the writer, in ns.
///
/// A fit of measurements between hyper-threads: see `benches/RESULTS.md`, "Store policies". Between
/// cores that share no cache a reader pays less than nothing, and the writer's own cost decides.
fn reader_ns(len: f32) -> f32 {
    f32::min(100.0 + 0.05 * len, 1000.0 + 0.035 * len)
}

#[cfg(test)]
mod tests;
