//! Which core a thread of a benchmark runs on.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Binds the calling thread to the `index`-th core it may use, counted round and round.
pub(crate) fn pin(index: usize) {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).unwrap();
    let cores: Vec<_> = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect();
    let mut only = CpuSet::new();
    only.set(cores[index % cores.len()]).unwrap();
    sched_setaffinity(this, &only).unwrap();
}
