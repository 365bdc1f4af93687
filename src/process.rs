//! Children of this process, and what it owns; and the state of any process as `/proc` tells it,
//! which holds at the moment of reading only.
//!
//! Tried by its unit tests and `environments namespaces:: presence::`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "coordinator")]
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use crate::shm::state_of_process;
use crate::shm::system::{pidfd_exit, pidfd_kill, pidfd_open, unblock_all_in};

/// The end of a process; `None` inside where the system does not tell how it has ended.
///
/// Only its parent learns that before Linux 6.15, and not even the parent where another thread of
/// it has waited for all children.
pub(crate) type ProcessEnd = Option<ExitStatus>;

/// A child of this process, which is killed on drop. Its descriptor says that it has ended, as
/// waiting for it may fail.
#[derive(Debug)]
pub(crate) struct OwnedChild {
    child: Child,
    pidfd: OwnedFd,
    end: Option<ProcessEnd>,
}

/// Returns an input that has ended, for a child that is not to read this process's. It needs no
/// `/dev/null`, which some containers have not.
pub(crate) fn no_input() -> io::Result<Stdio> {
    Ok(io::pipe()?.0.into())
}

/// Starts a process of which no signal is blocked.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    unblock_all_in(command);
    command.spawn()
}

impl OwnedChild {
    /// Owns a child, which is killed if the system does not let it be watched.
    pub(crate) fn watch(mut child: Child) -> io::Result<Self> {
        match pidfd_open(pid_of(&child)) {
            Ok(pidfd) => Ok(Self { child, pidfd, end: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        pid_of(&self.child)
    }

    /// Returns its outputs, once, as far as they are pipes.
    pub(crate) fn take_outputs(&mut self) -> [Option<OwnedFd>; 2] {
        [self.child.stdout.take().map(OwnedFd::from), self.child.stderr.take().map(OwnedFd::from)]
    }

    /// Reaps it if it has ended, and returns its end.
    pub(crate) fn end(&mut self) -> Option<ProcessEnd> {
        if self.end.is_none() {
            self.end = match self.child.try_wait() {
                Ok(status) => status.map(Some),
                Err(_) => has_ended(self.as_fd()).then(|| pidfd_exit(self.as_fd()).ok().flatten()),
            };
        }
        self.end
    }

    /// Returns its end, where [`OwnedChild::end`] has found it.
    pub(crate) fn known_end(&self) -> Option<ProcessEnd> {
        self.end
    }

    /// Kills it, by its descriptor: once it was waited for, another process may have its number.
    pub(crate) fn kill(&self) {
        pidfd_kill(self.as_fd());
    }
}

impl AsFd for OwnedChild {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Returns whether the process behind a descriptor has ended.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::POLLIN)];
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(ready) if ready > 0)
}

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

    #[test]
    fn a_child_that_somebody_else_has_waited_for_has_ended_all_the_same() {
        let child = spawn(Command::new("sh").args(["-c", "read line; exit 7"]).stdin(Stdio::piped()));
        let mut child = child.unwrap();
        let stdin = child.stdin.take();
        let mut child = OwnedChild::watch(child).unwrap();
        assert_eq!(child.end(), None);
        drop(stdin);
        nix::sys::wait::waitpid(child.pid(), None).unwrap();
        let end = child.end().expect("its descriptor says so");
        assert!(end.is_none_or(|status| status.code() == Some(7)), "from Linux 6.15 on the system tells how");
    }

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
