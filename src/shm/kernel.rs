//! The operating system's side of waiting: futex, membarrier, yield, clock.
//!
//! All futexes are shared ones (no `FUTEX_PRIVATE_FLAG`): the system finds sleepers by the page
//! behind the word, so that any process that maps it can wake them, at whatever address. A private
//! one would work in every test that uses threads, and never between processes.
//!
//! What the system offers is found out once, in [`HostKernel::detect`], by trying: a container may
//! refuse a call that the running version has.
//!
//! | call | since | without it |
//! |---|---|---|
//! | `membarrier` global expedited | 4.16 | a fence in every signal |
//! | `futex_waitv` | 5.16 | sleeps on several words look up every 20 ms |
//!
//! Barriers pair across processes, and each process finds out for itself. A signaller without
//! `membarrier` uses a fence, which serves any sleeper. A sleeper without it cannot know whether
//! its signallers use one, so it never sleeps long at a time. A process that is refused the call
//! later, by a filter that was installed meanwhile, goes on like that.

use std::sync::OnceLock;
use std::time::Duration;

use nix::time::clock_gettime;
use rustix::io::Errno;
use rustix::thread::futex::{self, ClockId, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::sync::{Kernel, SleepWord, atomic::AtomicU32, park};

/// How long a sleep lasts at most when no wake can be relied upon.
/// Eight waiters that look up this often use one percent of a core; at 5 ms they used four.
const BLIND_SLEEP: Duration = Duration::from_millis(20);

/// The most words that one `futex_waitv` takes.
const MAX_WORDS: usize = libc::FUTEX_WAITV_MAX as usize;

/// Set when `membarrier` has failed in a process that had been allowed it. What its sleepers cannot
/// force on others has to be found out by looking. Barriers of other processes reach this one as
/// before.
static REFUSED_SINCE: OnceLock<()> = OnceLock::new();

/// The calls of this host, as this process may use them.
#[derive(Clone, Copy, Debug)]
pub struct HostKernel {
    membarrier: bool,
    waitv: bool,
}

impl HostKernel {
    /// Finds out what this system offers, and registers the process to take part in other
    /// processes' barriers.
    #[must_use]
    pub fn detect() -> Self {
        Self { membarrier: register_membarrier(), waitv: has_waitv() }
    }

    /// Returns these calls without `membarrier`: signals pay a fence.
    #[must_use]
    pub fn without_membarrier(self) -> Self {
        Self { membarrier: false, ..self }
    }

    /// Returns these calls without `futex_waitv`: sleeps on several words look up every 20 ms.
    #[must_use]
    pub fn without_waitv(self) -> Self {
        Self { waitv: false, ..self }
    }

    /// Returns the time of the system's monotonic clock. All processes read the same clock, since
    /// the times of waits that they tell are compared. `futex_waitv` measures its deadline by it,
    /// too.
    #[inline]
    pub(crate) fn clock() -> Duration {
        // It cannot be missing.
        clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
    }

    /// Returns whether signals are free of fences.
    #[must_use]
    pub fn has_membarrier(&self) -> bool {
        self.membarrier
    }

    /// Returns whether one sleep can wait for several words.
    #[must_use]
    pub fn has_waitv(&self) -> bool {
        self.waitv
    }
}

impl Kernel for HostKernel {
    #[inline]
    fn light_barrier(&self) {
        if self.membarrier {
            park::compiler_barrier();
        } else {
            park::waker_fence();
        }
    }

    fn heavy_barrier(&self) {
        if self.membarrier && membarrier(MembarrierCommand::GlobalExpedited).is_ok() {
            return;
        }
        if self.membarrier {
            REFUSED_SINCE.get_or_init(|| ());
        }
        park::sleeper_fence();
    }

    fn sleep(&self, words: &[SleepWord<'_>], timeout: Duration) {
        // The barrier of this sleep has come before, and may have been the first that was refused.
        let relies_on_wakes = self.membarrier && REFUSED_SINCE.get().is_none();
        let timeout = if relies_on_wakes { timeout } else { timeout.min(BLIND_SLEEP) };
        match words {
            [] => {}
            [only] => futex_wait(only, timeout),
            several if self.waitv && several.len() <= MAX_WORDS => futex_waitv(several, timeout),
            [first, others @ ..] => {
                // Relaxed look, as the call would take: a change that it misses is seen after the
                // nap.
                if others.iter().all(SleepWord::is_unchanged) {
                    futex_wait(first, timeout.min(BLIND_SLEEP));
                }
            }
        }
    }

    fn wake_all(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX.cast_unsigned());
    }

    #[inline]
    fn yield_now(&self) {
        std::thread::yield_now();
    }

    #[inline]
    fn now(&self) -> Duration {
        Self::clock()
    }
}

/// Registers this process, then makes one barrier to see that it is allowed.
fn register_membarrier() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Asks for a wait on no words at all: an invalid argument where the call exists and is allowed.
fn has_waitv() -> bool {
    futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) == Err(Errno::INVAL)
}

/// Sleeps on one word. Every outcome (woken, changed, timeout, signal) means the same: look again.
fn futex_wait(word: &SleepWord<'_>, timeout: Duration) {
    let _ = futex::wait(word.word, futex::Flags::empty(), word.expected, Some(&timespec(timeout)));
}

/// Sleeps on several words, at most [`MAX_WORDS`]; as [`futex_wait`].
fn futex_waitv(words: &[SleepWord<'_>], timeout: Duration) {
    let mut waiters = [const { Wait::new() }; MAX_WORDS];
    for (waiter, word) in waiters.iter_mut().zip(words) {
        waiter.val = u64::from(word.expected);
        waiter.uaddr = WaitPtr::new(word.word.as_ptr().cast());
        waiter.flags = WaitFlags::SIZE_U32;
    }
    let deadline = timespec(HostKernel::clock().saturating_add(timeout));
    let waiters = &waiters[..words.len()];
    let _ = futex::waitv(waiters, WaitvFlags::empty(), Some(&deadline), ClockId::Monotonic);
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests;
