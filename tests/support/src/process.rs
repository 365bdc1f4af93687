//! Whether processes are still there.

use std::time::{Duration, Instant};

use nix::unistd::Pid;

/// No condition takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether there is such a process and it is more than an entry that its parent has not taken note
/// of.
pub fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// Returns when the condition holds, and panics when it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
