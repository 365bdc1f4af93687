//! A time of grace, in which others may end by themselves.
//!
//! It is counted in slices: however late the launcher looks, at most one slice has passed. A pause
//! of the launcher may have paused the others too (a suspended machine, a stopped process group),
//! and that time does not count against them.

use std::time::{Duration, Instant};

/// The least number of looks while a time of grace passes.
const LOOKS: u32 = 10;

/// The shortest slice. The launcher's polls have about that resolution.
const SHORTEST: Duration = Duration::from_millis(1);

/// A time of grace that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    left: Duration,
    slice: Duration,
    looked: Instant,
}

impl Grace {
    /// One of the length `all` that begins `now`.
    pub(super) fn begin(all: Duration, now: Instant) -> Self {
        Self { left: all, slice: (all / LOOKS).max(SHORTEST), looked: now }
    }

    /// Counts the time since the last look, but at most one slice, and returns whether none is
    /// left.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked).min(self.slice);
        self.left = self.left.saturating_sub(passed);
        self.looked = now;
        self.left.is_zero()
    }

    /// Returns the time until the next look is due.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        self.left.min(self.slice).saturating_sub(now.saturating_duration_since(self.looked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Duration = Duration::from_secs(2);

    #[test]
    fn grace_passes_by_the_clock_where_looks_are_on_time() {
        let mut now = Instant::now();
        let (began, mut grace) = (now, Grace::begin(ALL, now));
        while !grace.is_over(now) {
            now += grace.patience(now);
        }
        assert_eq!(now - began, ALL);
        assert!(grace.patience(now).is_zero() && grace.is_over(now));
    }

    #[test]
    fn of_a_pause_however_long_a_tenth_counts_at_most() {
        let mut now = Instant::now();
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
        let mut now = Instant::now();
        let mut grace = Grace::begin(ALL, now);
        for step in 1..=2000 {
            now += Duration::from_millis(1);
            assert_eq!(grace.is_over(now), step == 2000);
        }
    }

    #[test]
    fn no_grace_is_over_at_once_a_short_one_soon_and_an_endless_one_never() {
        let mut now = Instant::now();
        assert!(Grace::begin(Duration::ZERO, now).is_over(now));
        let (mut short, mut endless) =
            (Grace::begin(Duration::from_nanos(5), now), Grace::begin(Duration::MAX, now));
        now += short.patience(now);
        assert!(short.is_over(now) && !endless.is_over(now));
        assert!(endless.patience(now) > ALL * 1000);
    }
}
