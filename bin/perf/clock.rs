//! The clocks of the measurements.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds on the clock that all processes of the host share.
pub(crate) fn now_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds of CPU time that the calling thread has used.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds that reading the clock of [`now_ns`] takes.
pub(crate) fn reading_ns() -> f64 {
    const READS: u32 = 64;
    let pass = || {
        let start = now_ns();
        (2..READS).for_each(|_| {
            std::hint::black_box(now_ns());
        });
        now_ns() - start
    };
    // The quickest of some: nobody came in between.
    (0..8).map(|_| pass()).min().unwrap_or(0) as f64 / f64::from(READS)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("a clock that every Linux has");
    u64::try_from(std::time::Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}
