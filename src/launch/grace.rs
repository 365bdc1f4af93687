//! Time that is given to others to end by themselves.
//!
//! It is counted in slices: however late the launcher looks, one slice at most has passed. What has held up the launcher may have held
//! up those who are to end (a machine that was paused, a whole group of processes that was stopped), and time in which they had
//! no processor is none of theirs.

use std::time::{Duration, Instant};

/// So many looks at least have to be taken while a time of grace passes.
const LOOKS: u32 = 10;

/// The shortest slice, in which the launcher's polls count.
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

    /// Whether nothing is left of it, after the time since the last look, or a slice where that was longer.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked).min(self.slice);
        self.left = self.left.saturating_sub(passed);
        self.looked = now;
        self.left.is_zero()
    }

    /// How long until the next look, so that no time is lost where nobody is held up.
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
