//! Processes that the ranks of a job have started and not ended, and their end.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How long killed processes may take to go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes this process the parent of whatever its descendants leave behind, and ends all that when it is dropped.
#[derive(Debug)]
pub(super) struct Orphans(());

impl Orphans {
    pub(super) fn adopt() -> Self {
        // Refused, it leaves orphans to init, as they would be anyway.
        let _ = set_child_subreaper(true);
        Self(())
    }
}

impl Drop for Orphans {
    /// Kills one generation after the other: the children of whoever is killed become children of this process.
    fn drop(&mut self) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            for child in children() {
                let _ = kill(child, Signal::SIGKILL);
            }
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => std::thread::yield_now(),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The children of this process; it has one thread, which is the parent of them all.
fn children() -> Vec<Pid> {
    let me = Pid::this();
    let list = std::fs::read_to_string(format!("/proc/{me}/task/{me}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}
