//! What the system tells of processes, in `/proc`.
//!
//! All of it is read at a moment, and may be over at the next.

use crate::shm::state_of_process;

/// The process that `thread` belongs to, be it one of many.
pub(crate) fn of_thread(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Whether `process` was stopped, by a signal or a debugger, and does nothing until it is told to go on.
pub(crate) fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    matches!(state_of_process(&stat), Some("T" | "t"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leads_to_its_process_and_a_number_that_nobody_has_to_none() {
        let me = std::process::id();
        let thread = std::thread::spawn(|| nix::unistd::gettid().as_raw().unsigned_abs()).join().unwrap();
        assert!(of_thread(thread).is_none_or(|process| process == me), "it has ended meanwhile");
        assert_eq!(of_thread(nix::unistd::gettid().as_raw().unsigned_abs()), Some(me));
        assert_eq!((of_thread(u32::MAX), is_stopped(u32::MAX), is_stopped(me)), (None, false, false));
    }
}
