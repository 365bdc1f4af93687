//! The process that owns a thing; and the state of processes, read in `/proc`, which holds at the
//! moment of reading only.

#[cfg(feature = "coordinator")]
use std::os::unix::process::ExitStatusExt;
#[cfg(feature = "coordinator")]
use std::process::ExitStatus;

use crate::shm::state_of_process;

/// The process that owns a thing. A child of a fork has a copy, and ends nothing of its parent's by
/// dropping it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerProcess(u32);

impl OwnerProcess {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    pub(crate) fn is_this(self) -> bool {
        self == Self::this()
    }
}

/// Returns the process that `thread` belongs to.
pub(crate) fn of_thread(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Returns whether `process` is stopped by a signal or a debugger.
pub(crate) fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    matches!(state_of_process(&stat), Some("T" | "t"))
}

/// Returns how `process` has ended, if it has and nobody has waited for it. It may be anybody's
/// child.
#[cfg(feature = "coordinator")]
pub(crate) fn exit_of_unreaped(process: u32) -> Option<ExitStatus> {
    const STATE: usize = 3;
    const EXIT_CODE: usize = 52;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let has_ended = state_of_process(&stat) == Some("Z");
    // The name, which is field 2, may have anything in it.
    let code = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(EXIT_CODE - STATE)?;
    code.parse().ok().filter(|_| has_ended).map(ExitStatus::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "coordinator")]
    #[test]
    fn how_a_process_has_ended_can_be_told_before_its_parent_has_waited_for_it() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        crate::testing::wait_until("it has ended", || exit_of_unreaped(child.id()).is_some());
        assert_eq!(exit_of_unreaped(child.id()), Some(child.wait().unwrap()));
        assert_eq!((exit_of_unreaped(child.id()), exit_of_unreaped(std::process::id())), (None, None));
    }

    #[test]
    fn a_thread_leads_to_its_process_and_a_number_that_nobody_has_to_none() {
        let me = std::process::id();
        let thread = std::thread::spawn(|| nix::unistd::gettid().as_raw().unsigned_abs()).join().unwrap();
        assert!(of_thread(thread).is_none_or(|process| process == me), "it has ended meanwhile");
        assert_eq!(of_thread(nix::unistd::gettid().as_raw().unsigned_abs()), Some(me));
        assert_eq!((of_thread(u32::MAX), is_stopped(u32::MAX), is_stopped(me)), (None, false, false));
    }
}
