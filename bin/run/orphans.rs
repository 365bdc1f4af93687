//! Processes that the ranks of a job have started and not ended, and their end.

use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// How long killed processes may take to go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes this process the parent of whatever its descendants leave behind, and ends all that when it is dropped. Children
/// that it had before (an `exec` keeps them) are none of its business.
#[derive(Debug)]
pub(super) struct Orphans {
    spared: Vec<Pid>,
}

impl Orphans {
    pub(super) fn adopt() -> Self {
        // Refused, it leaves orphans to init, as they would be anyway.
        let _ = set_child_subreaper(true);
        Self { spared: children() }
    }

    fn left(&self) -> Vec<Pid> {
        children().into_iter().filter(|child| !self.spared.contains(child)).collect()
    }
}

impl Drop for Orphans {
    /// Kills one generation after the other: the children of whoever is killed become children of this process.
    fn drop(&mut self) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            for child in left {
                let _ = kill(child, Signal::SIGKILL);
                // Gone or not yet: the list tells.
                let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
            }
            std::thread::yield_now();
        }
    }
}

/// The children of this process; it has one thread, which is the parent of them all.
fn children() -> Vec<Pid> {
    let me = Pid::this();
    let list = std::fs::read_to_string(format!("/proc/{me}/task/{me}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}
