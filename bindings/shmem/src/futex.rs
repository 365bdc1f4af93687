//! Sleeping on half a word in shared memory, and waking who sleeps there.

use std::ffi::c_int;
use std::time::Duration;

/// Sleeps while the half is `value`, and for `longest` at most.
pub(crate) fn wait(half: *const u32, value: u32, longest: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: longest.subsec_nanos().into(),
    };
    // SAFETY: the kernel reads both, and checks the address.
    unsafe { libc::syscall(libc::SYS_futex, half, libc::FUTEX_WAIT, value, &raw const time) };
}

/// Wakes all that sleep on the half.
pub(crate) fn wake(half: *const u32) {
    // SAFETY: the kernel looks for sleepers by the address.
    unsafe { libc::syscall(libc::SYS_futex, half, libc::FUTEX_WAKE, c_int::MAX) };
}
