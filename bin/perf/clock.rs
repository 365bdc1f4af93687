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

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("a clock that every Linux has");
    u64::try_from(std::time::Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}
