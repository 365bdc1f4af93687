//! The waiting loop of the engine: poll, spin, yield, sleep.
//!
//! ```text
//! poll once ──► spin (a while) ──► yield ──► ... until park_after ──► announce, sleep ──► ...
//!  inline        └─ after each: poll; each round, or now and then: watch, clock ─┘
//! ```
//!
//! The caller supplies the poll (one acquire load, as a rule), so this loop has no edge of its own.
//! What it adds is the order in which it looks. It looks at the watch *before* the last poll: a
//! signal that a peer sent before it died is received, and only then is the peer's loss reported
//! (edge R1 of [`revoke`](super::revoke)). It sleeps through the protocol of [`park`](super::park),
//! on its own cell and on the bell of the watch.
//!
//! # Invariants
//! - Every wait has a deadline and a watch. A pause of the waiter hardly counts (`grace`): what it
//!   waits for may have been paused, too.
//! - The first poll costs what it costs to poll. Neither clock nor watch is touched before a whole
//!   burst of polls has failed, or eight polls with a yield before each.
//! - A sleep is never longer than [`LONGEST_SLEEP`], as a second line of defence behind the wake.
//!   The watch may ask for shorter ones.
//!
//! A very short wait, such as for one cache line of another core, may have one burst of polls in
//! front of the loop, in line with its caller: [`spin_until`].

use std::time::Duration;

use super::{
    atomic::spin_loop,
    grace::Grace,
    interrupt::{INTERRUPT_INTERVAL, interrupt_check},
    kernel::{Kernel, SleepWord},
    park::ParkCell,
};
use crate::{error::Error, rank::Rank};

/// The longest that a waiter sleeps before it looks around, wake or no wake.
pub const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// The longest sleep beside a watch without a bell, which nothing can wake.
pub const LONGEST_SLEEP_WITHOUT_BELL: Duration = Duration::from_millis(20);

/// How long a waiter with a core to itself keeps it. A yield costs nothing where no other thread
/// wants the core. Otherwise it costs the slice of that thread, some milliseconds: too much for a
/// wait as long as a copy of a MiB takes. Where the waiter is mistaken, and its peer shares its
/// core, this is the cost of the mistake.
const KEEP: Duration = Duration::from_micros(200);

/// Yields between two looks at the watch and the clock, which cost a tenth of a yield or more. The
/// first look comes after as many, so that a short wait never takes one.
const YIELDS_PER_LOOK: u32 = 8;

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The deadline passed.
    Timeout,
    /// A rank of the epoch died, or left while it was needed.
    PeerLost(Rank),
    /// The proxy service process died, or the handler of a proxy thread panicked.
    ProxyLost,
    /// The epoch was aborted; `None` when it was the launcher.
    Revoked(Option<Rank>),
    /// The first rank has ended the epoch, as a wait of it for the second one has timed out.
    TimedOut(Rank, Rank),
    /// What a proxy has copied for a rank is not what was to be copied.
    Corrupted(Rank),
    /// The program has ended the waits of this thread: see [`interrupt`](super::interrupt).
    Cancelled,
}

/// What a waiter keeps an eye on besides what it waits for. Only looked at once a wait turns out to
/// be long.
pub trait Watch {
    /// Returns a reason to stop waiting, if there is one. A cheap load of shared words.
    fn check(&self) -> Option<Stop>;

    /// Returns a word that is woken when `check` has something to tell, to be slept on beside the
    /// waiter's own cell. Without one the waiter looks up every [`LONGEST_SLEEP_WITHOUT_BELL`].
    fn bell(&self) -> Option<SleepWord<'_>> {
        None
    }

    /// Returns how long the waiter sleeps at most before it looks around, when it has slept `slept`
    /// times already. It is shorter where what is waited for may come without a wake.
    fn longest_sleep(&self, slept: u32) -> Duration {
        let _ = slept;
        self.bell().map_or(LONGEST_SLEEP_WITHOUT_BELL, |_| LONGEST_SLEEP)
    }

    /// Hears that the wait has turned out long, and that the clock was read first at `since`; again
    /// before each sleep.
    fn begin(&self, since: Duration) {
        let _ = since;
    }

    /// Hears that a wait of which [`Watch::begin`] has told is over, and why where it was given up.
    fn end(&self, since: Duration, stop: Option<Stop>) {
        let _ = (since, stop);
    }
}

/// How a waiter spends its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// Polls between two looks around (none: eight yields, and a poll after each), and between two
    /// yields once the core is not kept any longer.
    pub spins: u32,
    /// How long to wait before going to sleep; zero sleeps as soon as the first poll has failed.
    pub park_after: Duration,
}

/// How long a waiter stays awake. Waking a sleeper on another core of a virtual machine takes some
/// 50 us, and costs the waker half of that. After a millisecond awake this is a twentieth of the
/// time that was waited already.
const AWAKE: Duration = Duration::from_millis(1);

impl WaitPolicy {
    /// The policy of a waiter with a core to itself: it spins, yields now and then after a while in
    /// case it is mistaken, and sleeps late.
    pub const DEDICATED: Self = Self { spins: 1000, park_after: AWAKE };

    /// The policy of a waiter that shares its core: every poll that fails gives way to the others.
    pub const OVERSUBSCRIBED: Self = Self { spins: 0, park_after: AWAKE };

    /// The policy of a helper thread of a program that computes meanwhile: to stay awake would cost
    /// the program more than to be woken costs the helper.
    pub const IN_BACKGROUND: Self = Self { spins: 0, park_after: Duration::from_micros(50) };

    /// Returns the policy for a waiter on a core that `sharing` waiters share in all, itself
    /// included.
    #[must_use]
    pub const fn for_spinners(sharing: u32) -> Self {
        if sharing <= 1 { Self::DEDICATED } else { Self::OVERSUBSCRIBED }
    }
}

/// Everything that a wait needs besides what it waits for; one per communicator serves all its
/// waits.
#[derive(Debug)]
pub struct Waiting<'a, K: ?Sized, W: ?Sized> {
    /// The operating system.
    pub kernel: &'a K,
    /// What else may end the wait.
    pub watch: &'a W,
    /// How to spend the time.
    pub policy: WaitPolicy,
    /// How long to wait at most.
    pub timeout: Duration,
}

impl<K: ?Sized, W: ?Sized> Clone for Waiting<'_, K, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized, W: ?Sized> Copy for Waiting<'_, K, W> {}

impl<'a, K: ?Sized, W: ?Sized> Waiting<'a, K, W> {
    /// Puts the four together.
    pub fn new(kernel: &'a K, watch: &'a W, policy: WaitPolicy, timeout: Duration) -> Self {
        Self { kernel, watch, policy, timeout }
    }

    /// Returns the error of an `operation` that a wait in this context gave up, while it waited for
    /// `awaited`.
    #[must_use]
    pub fn error(&self, stop: Stop, operation: &'static str, awaited: Option<Rank>) -> Error {
        match stop {
            Stop::Timeout => Error::timed_out(operation, awaited, self.timeout),
            Stop::PeerLost(rank) => Error::PeerLost { rank },
            Stop::ProxyLost => Error::ProxyLost,
            Stop::Revoked(by) => Error::Revoked { by, awaited: None },
            Stop::TimedOut(by, awaited) => Error::Revoked { by: Some(by), awaited: Some(awaited) },
            Stop::Corrupted(rank) => Error::PutCorrupted { rank },
            Stop::Cancelled => Error::Cancelled { operation },
        }
    }
}

/// Makes one burst of polls, as many as `policy` makes between two looks around, and returns
/// whether `poll` said yes in the end.
///
/// What comes after a `no` is [`wait_until`], which has the deadline and the watch.
#[inline]
pub fn spin_until(policy: WaitPolicy, mut poll: impl FnMut() -> bool) -> bool {
    (0..policy.spins).any(|_| {
        spin_loop();
        poll()
    })
}

/// Waits until `poll` returns something.
///
/// The thread that makes `poll` succeed must call [`ParkCell::wake`] on `park` afterwards.
///
/// # Errors
/// The reason to stop that came first: the watch's, or [`Stop::Timeout`]. `poll` was called once
/// more after that reason had been seen.
#[inline]
pub fn wait_until<T, K, W>(
    context: &Waiting<'_, K, W>,
    park: &ParkCell,
    mut poll: impl FnMut() -> Option<T>,
) -> Result<T, Stop>
where
    K: Kernel + ?Sized,
    W: Watch + ?Sized,
{
    match poll() {
        Some(value) => Ok(value),
        None => {
            LongWait { context, begun: None, check: interrupt_check(), asked: None }.wait(park, &mut poll)
        }
    }
}

/// A wait after its first poll has failed.
struct LongWait<'a, 'c, K: ?Sized, W: ?Sized> {
    context: &'a Waiting<'c, K, W>,
    /// When the clock was read first, and how much of the time to wait is left.
    begun: Option<(Duration, Grace)>,
    /// The question of the program whether to give up.
    check: Option<fn() -> bool>,
    /// When the wait began, or that question was asked last.
    asked: Option<Duration>,
}

/// What became of a stretch of waiting.
enum AwakeOutcome<T> {
    News(T),
    Stopped(Stop),
    TimeToPark,
}

impl<K: Kernel + ?Sized, W: Watch + ?Sized> LongWait<'_, '_, K, W> {
    #[cold]
    #[inline(never)]
    fn wait<T>(mut self, park: &ParkCell, poll: &mut impl FnMut() -> Option<T>) -> Result<T, Stop> {
        let waited = self.out(park, poll);
        if let Some((since, _)) = self.begun {
            self.context.watch.end(since, waited.as_ref().err().copied());
        }
        waited
    }

    #[inline]
    fn out<T>(&mut self, park: &ParkCell, poll: &mut impl FnMut() -> Option<T>) -> Result<T, Stop> {
        let mut slept = 0;
        let mut awake_until = self.context.policy.park_after;
        let stop = loop {
            match self.awake(awake_until, poll) {
                AwakeOutcome::News(value) => return Ok(value),
                AwakeOutcome::Stopped(stop) => break stop,
                AwakeOutcome::TimeToPark => {}
            }
            match self.asleep(&mut slept, park, poll) {
                Ok(Some(value)) => return Ok(value),
                // A cell may be that of many words. Who is woken for another one stays awake as
                // long as at first: so it costs wakers one wake in such a time.
                Ok(None) => awake_until = self.waited() + self.context.policy.park_after,
                Err(stop) => break stop,
            }
        };
        poll().ok_or(stop)
    }

    /// Spins and yields until the wait has lasted until `park_at`: then it is time to sleep.
    #[inline]
    fn awake<T>(&mut self, park_at: Duration, poll: &mut impl FnMut() -> Option<T>) -> AwakeOutcome<T> {
        let policy = self.context.policy;
        let rounds_per_look = if policy.spins == 0 { YIELDS_PER_LOOK } else { 1 };
        if policy.park_after.is_zero() {
            return AwakeOutcome::TimeToPark;
        }
        let mut round = 0_u32;
        loop {
            round = round.wrapping_add(1);
            for _ in 0..policy.spins {
                spin_loop();
                if let Some(value) = poll() {
                    return AwakeOutcome::News(value);
                }
            }
            if round.is_multiple_of(rounds_per_look) {
                if let Some(stop) = self.context.watch.check() {
                    return AwakeOutcome::Stopped(stop);
                }
                if self.is_cancelled() {
                    return AwakeOutcome::Stopped(Stop::Cancelled);
                }
                let waited = self.waited();
                if waited >= self.context.timeout {
                    return AwakeOutcome::Stopped(Stop::Timeout);
                }
                if waited >= park_at {
                    return AwakeOutcome::TimeToPark;
                }
                if policy.spins > 0 && waited < KEEP {
                    continue;
                }
            }
            self.context.kernel.yield_now();
            if let Some(value) = poll() {
                return AwakeOutcome::News(value);
            }
        }
    }

    /// Sleeps until there is news, or a wake for nothing.
    fn asleep<T>(
        &mut self,
        slept: &mut u32,
        park: &ParkCell,
        poll: &mut impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Stop> {
        let kernel = self.context.kernel;
        loop {
            let own = park.announce(kernel);
            if let Some(value) = poll() {
                return Ok(Some(value));
            }
            if let Some(stop) = self.context.watch.check() {
                return Err(stop);
            }
            if self.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            let remaining = self.remaining()?;
            if let Some((since, _)) = self.begun {
                self.context.watch.begin(since);
            }
            let at_most = remaining.min(self.context.watch.longest_sleep(*slept));
            let begun = kernel.now();
            match self.context.watch.bell() {
                Some(bell) => kernel.sleep(&[own, bell], at_most),
                None => kernel.sleep(&[own], at_most),
            }
            *slept = slept.saturating_add(1);
            // Before announcing again: that costs a barrier, and the next waker a wake.
            if let Some(value) = poll() {
                return Ok(Some(value));
            }
            if kernel.now().saturating_sub(begun) < at_most {
                return Ok(None);
            }
        }
    }

    /// Counts the time until now, and returns how long the wait has lasted, pauses left aside.
    fn waited(&mut self) -> Duration {
        self.context.timeout - self.look().left()
    }

    /// Returns how long the waiter may sleep until it looks again.
    fn remaining(&mut self) -> Result<Duration, Stop> {
        let grace = self.look();
        let longest = self.check.map_or(Duration::MAX, |_| INTERRUPT_INTERVAL);
        if grace.left().is_zero() { Err(Stop::Timeout) } else { Ok(grace.next_look().min(longest)) }
    }

    /// Asks the program now and then whether to give up.
    fn is_cancelled(&mut self) -> bool {
        let Some(check) = self.check else { return false };
        let now = self.context.kernel.now();
        let is_due = now.saturating_sub(*self.asked.get_or_insert(now)) >= INTERRUPT_INTERVAL;
        if is_due {
            self.asked = Some(now);
        }
        is_due && check()
    }

    fn look(&mut self) -> Grace {
        let Waiting { kernel, watch, timeout, .. } = *self.context;
        let now = kernel.now();
        let (_, grace) = self.begun.get_or_insert_with(|| {
            watch.begin(now);
            (now, Grace::begin(timeout, now))
        });
        grace.is_over(now);
        *grace
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
