//! Time that is counted by looks, so that a pause does not count.
//!
//! A process that was paused for a while finds its deadlines past. What it waits for may have been
//! paused, too: the whole job was stopped, its cgroup frozen, its machine suspended. So every
//! deadline by which one process judges another is a [`Grace`].

use std::time::Duration;

/// The least number of looks while a time of grace passes.
const LOOKS: u32 = 10;

/// The shortest slice. A poll has about that resolution.
const SHORTEST: Duration = Duration::from_millis(1);

/// A time in which others may do something by themselves.
///
/// It is counted in slices: however late its owner looks, at most one slice has passed. Times are
/// those of a clock that never runs backwards. Of two times of grace, the one with less left is
/// the lesser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grace {
    left: Duration,
    slice: Duration,
    looked: Duration,
}

impl Grace {
    /// Begins a time of grace of length `all` at `now`.
    pub(crate) fn begin(all: Duration, now: Duration) -> Self {
        Self { left: all, slice: (all / LOOKS).max(SHORTEST), looked: now }
    }

    /// Begins a time that passes by the clock, whatever pauses there are.
    pub(crate) fn by_the_clock(all: Duration, now: Duration) -> Self {
        Self { left: all, slice: all, looked: now }
    }

    /// Counts the time since the last look, but at most one slice, and returns whether none is
    /// left.
    pub(crate) fn is_over(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.looked).min(self.slice);
        self.left = self.left.saturating_sub(passed);
        self.looked = now;
        self.left.is_zero()
    }

    /// Returns what is left of it, as of the last look.
    pub(crate) fn left(&self) -> Duration {
        self.left
    }

    /// Returns the time from the last look to the next one.
    pub(crate) fn next_look(&self) -> Duration {
        self.left.min(self.slice)
    }

    /// Returns the time until the next look is due.
    pub(crate) fn patience(&self, now: Duration) -> Duration {
        self.next_look().saturating_sub(now.saturating_sub(self.looked))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ALL: Duration = Duration::from_secs(2);

    #[test]
    fn grace_passes_by_the_clock_where_looks_are_on_time() {
        let mut now = Duration::from_secs(7);
        let (began, mut grace) = (now, Grace::begin(ALL, now));
        while !grace.is_over(now) {
            now += grace.patience(now);
        }
        assert_eq!(now - began, ALL);
        assert!(grace.patience(now).is_zero() && grace.is_over(now));
    }

    #[test]
    fn of_a_pause_however_long_a_tenth_counts_at_most() {
        let mut now = Duration::from_secs(7);
        let mut grace = Grace::begin(ALL, now);
        for _ in 0..9 {
            now += ALL * 1000;
            assert!(!grace.is_over(now));
        }
        assert!(!grace.is_over(now), "no time has passed");
        now += ALL / LOOKS;
        assert!(grace.is_over(now));
    }

    #[test]
    fn looks_that_come_early_count_for_what_they_are() {
        let mut now = Duration::from_secs(7);
        let mut grace = Grace::begin(ALL, now);
        for step in 1..=2000 {
            now += Duration::from_millis(1);
            assert_eq!(grace.is_over(now), step == 2000);
        }
    }

    #[test]
    fn no_grace_is_over_at_once_a_short_one_soon_and_an_endless_one_never() {
        let mut now = Duration::from_secs(7);
        assert!(Grace::begin(Duration::ZERO, now).is_over(now));
        let (mut short, mut endless) =
            (Grace::begin(Duration::from_nanos(5), now), Grace::begin(Duration::MAX, now));
        now += short.patience(now);
        assert!(short.is_over(now) && !endless.is_over(now));
        assert!(endless.patience(now) > ALL * 1000);
    }
}
