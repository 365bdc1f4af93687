//! The clocks of the measurements, and random delays between them.

use std::hint::black_box;

use nix::time::{ClockId, clock_gettime};

/// Reads the clock that all processes of the host share, in nanoseconds.
#[inline]
pub fn now_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns the nanoseconds of CPU time that the calling thread has used.
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Measures the nanoseconds that a reading of [`now_ns`] takes.
pub fn reading_ns() -> f64 {
    const READS: u32 = 64;
    let pass = || {
        let start = now_ns();
        (2..READS).for_each(|_| {
            std::hint::black_box(now_ns());
        });
        now_ns() - start
    };
    // The quickest of some was not interrupted.
    (0..8).map(|_| pass()).min().unwrap_or(0) as f64 / f64::from(READS)
}

#[inline]
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("a clock that every Linux has");
    u64::try_from(std::time::Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}

/// A sequence of random delays up to about 50 ns, some periods of a polling loop.
///
/// Two loops that wait for each other would otherwise fall in step: each polls its flag every dozen
/// nanoseconds. A short message would arrive at one point of that period, for whole runs. With a
/// delay before each, it arrives at any point, as a message does that was worked on before.
#[derive(Clone, Debug)]
pub struct Dither {
    state: u64,
}

impl Dither {
    /// The multiplier and the increment of Knuth's MMIX generator. Its upper bits have the longest
    /// period.
    const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
    const INCREMENT: u64 = 1_442_695_040_888_963_407;

    /// The binary logarithm of the most steps of a delay. A step is a multiplication and a store.
    const STEPS_LOG2: u32 = 5;

    /// Starts the sequence from its beginning.
    pub fn start() -> Self {
        Self { state: 1 }
    }

    /// Lets the next delay pass, once `arrived` is there. Without that dependency a processor would
    /// begin the delay before the awaited word has come.
    #[inline]
    pub fn pass(&mut self, arrived: u64) {
        self.state = self.state.wrapping_mul(Self::MULTIPLIER).wrapping_add(Self::INCREMENT);
        let steps = self.state >> (u64::BITS - Self::STEPS_LOG2);
        black_box((0..steps).fold(arrived, |product, _| black_box(product.wrapping_mul(3))));
    }

    /// Measures the nanoseconds of the next `count` delays and a reading of the clock, without
    /// using the delays up.
    pub fn cost(&self, count: u64) -> u64 {
        let pass = |_| {
            let mut ahead = self.clone();
            let start = now_ns();
            (0..count).for_each(|_| ahead.pass(count));
            now_ns() - start
        };
        // The quicker of two was not interrupted.
        (0..2).map(pass).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_of_all_lengths_and_looking_at_their_cost_takes_none_of_them() {
        let mut dither = Dither::start();
        let mut seen = [0_u32; 1 << Dither::STEPS_LOG2];
        for _ in 0..3200 {
            let before = dither.state;
            dither.cost(3);
            assert_eq!(dither.state, before);
            dither.pass(0);
            seen[usize::try_from(dither.state >> (u64::BITS - Dither::STEPS_LOG2)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&times| (50..200).contains(&times)), "{seen:?}");
    }
}
