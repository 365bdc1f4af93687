//! The quickest clock there is: the processor's counter of ticks, where it runs evenly and alike on
//! all cores.
//!
//! Ticks are turned into time by two pairs of ticks and system time, one taken early and one late.
//! Where there is no such counter, ticks are nanoseconds of the system's monotonic clock.

#![allow(unsafe_code, reason = "the processor's counter of ticks")]

use super::kernel::HostKernel;
use crate::sync::plain::nanos;

/// Which clock ticks are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickSource {
    /// The system's monotonic clock, in nanoseconds.
    System,
    /// The processor's counter.
    Counter,
}

impl TickSource {
    /// Returns the best one on this machine.
    #[must_use]
    pub fn best() -> Self {
        if has_even_counter() { Self::Counter } else { Self::System }
    }

    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    /// Returns the source with this code; the system's clock for any other number.
    pub(crate) fn from_code(code: u64) -> Self {
        if code == Self::Counter as u64 { Self::Counter } else { Self::System }
    }

    /// Returns the ticks so far.
    #[inline]
    #[must_use]
    pub fn now(self) -> u64 {
        match self {
            Self::Counter => counter(),
            Self::System => system(),
        }
    }

    /// Returns ticks and nanoseconds of the system's monotonic clock at the same moment, as nearly
    /// as can be had.
    #[must_use]
    pub fn pair(self) -> (u64, u64) {
        let attempt = || {
            let (before, time, after) = (self.now(), system(), self.now());
            (after.saturating_sub(before), before.midpoint(after), time)
        };
        // The quickest of some: the thread was not interrupted.
        let (_, ticks, time) = (0..8).map(|_| attempt()).min().unwrap_or_default();
        (ticks, time)
    }
}

#[cold]
fn system() -> u64 {
    nanos(HostKernel::clock())
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every processor of this architecture has the instruction; the system lets programs
    // use it (it kills those that it does not let, with a flag that no program inherits unasked).
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn counter() -> u64 {
    system()
}

/// Returns whether the counter runs at one pace whatever the cores do: what the system goes by as
/// well, where it trusts it.
#[cfg(target_arch = "x86_64")]
fn has_even_counter() -> bool {
    const LEAF: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    let cpuid = core::arch::x86_64::__cpuid;
    cpuid(0x8000_0000).eax >= LEAF && cpuid(LEAF).edx & INVARIANT != 0 && is_trusted()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_even_counter() -> bool {
    false
}

/// Returns whether the system's own clock is made of the counter: it looks whether cores differ.
#[cfg(target_arch = "x86_64")]
fn is_trusted() -> bool {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|name| ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"].contains(&name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_either_source_pass_with_time() {
        for source in [TickSource::System, TickSource::best()] {
            assert_eq!(TickSource::from_code(source.code()), source);
            let (ticks, time) = source.pair();
            let mut later = source.pair();
            while later.1 < time + 1_000_000 {
                later = source.pair();
            }
            assert!(later.0 > ticks, "{source:?}: {ticks} and then {later:?}");
        }
    }
}
