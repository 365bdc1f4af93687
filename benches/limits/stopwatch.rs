//! A clock for operations that take little longer than reading the system's clock.

use std::hint::black_box;

use shmccl::shm::ticks::TickSource;

/// Nanoseconds over which ticks are compared with the system's clock.
const CALIBRATION_NS: u64 = 10_000_000;

/// Reads of which one is the mean.
const READS: u32 = 64;

/// Passes over these, of which the quickest counts: it was not interrupted.
const PASSES: u32 = 32;

/// The processor's counter of ticks, the length of a tick, and the cost of a reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stopwatch {
    source: TickSource,
    ns_per_tick: f64,
    reading_ns: f64,
}

impl Stopwatch {
    /// Makes a stopwatch, in some ten milliseconds. Returns `None` where the processor has no
    /// counter that runs evenly and alike on all cores.
    #[must_use]
    pub fn new() -> Option<Self> {
        let source = TickSource::best();
        if source != TickSource::Counter {
            return None;
        }
        let (first, started) = source.pair();
        let (mut last, mut ended) = source.pair();
        while ended < started + CALIBRATION_NS {
            (last, ended) = source.pair();
        }
        let ns_per_tick =
            (ended - started) as f64 / last.checked_sub(first).filter(|ticks| *ticks > 0)? as f64;
        let pass = || {
            let start = source.now();
            (1..READS).for_each(|_| {
                black_box(source.now());
            });
            source.now().saturating_sub(start)
        };
        let ticks = (0..PASSES).map(|_| pass()).min().unwrap_or(0);
        Some(Self { source, ns_per_tick, reading_ns: ticks as f64 * ns_per_tick / f64::from(READS) })
    }

    /// Returns the ticks so far. [`Stopwatch::lap_ns`] turns them into nanoseconds.
    #[inline]
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.source.now()
    }

    /// Returns the nanoseconds from one reading to the next, without those of the reading itself.
    #[inline]
    #[must_use]
    pub fn lap_ns(&self, from: u64, to: u64) -> f64 {
        (to.saturating_sub(from) as f64 * self.ns_per_tick - self.reading_ns).max(0.0)
    }

    /// Returns the nanoseconds of a reading when one follows the other.
    #[must_use]
    pub fn reading_ns(&self) -> f64 {
        self.reading_ns
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn laps_are_as_long_as_the_systems_clock_says_less_a_look() {
        let Some(stopwatch) = Stopwatch::new() else { return };
        assert!((0.0..10_000.0).contains(&stopwatch.reading_ns()));
        let (first, started) = (stopwatch.ticks(), Instant::now());
        while started.elapsed().as_millis() < 20 {}
        // The system's clock is read first here and last there: so it cannot have seen more.
        let seen = started.elapsed().as_nanos() as f64;
        let lap = stopwatch.lap_ns(first, stopwatch.ticks());
        assert!(lap > seen * 0.99, "{lap} ns, and the system's clock saw {seen}");
        assert_eq!(stopwatch.lap_ns(5, 5), 0.0);
    }
}
