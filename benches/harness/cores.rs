//! The cores of threads: which ones they may run on, and moving between them.

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Returns the cores that the affinity mask of this process allows: those that are online, where
/// the system does not tell.
pub fn allowed_cpus() -> Vec<usize> {
    let online = || std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match sched_getaffinity(Pid::from_raw(0)) {
        Ok(set) => (0..CpuSet::count()).filter(|&core| has(&set, core)).collect(),
        Err(_) => parse_list(&online()),
    }
}

/// Reads a list of cores: `0-3,8`.
pub fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // No machine has more cores; a garbled file must not cost memory.
        (last < 1 << 20).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The calling thread, away from its cores. Threads that it starts meanwhile stay away.
#[derive(Debug)]
#[must_use = "the thread has to go back"]
pub struct MovedThread {
    home: CpuSet,
    has_moved: bool,
}

/// Moves the calling thread to all cores but its own, if there are others.
pub fn step_aside() -> MovedThread {
    let home = affinity();
    let mut others = CpuSet::new();
    for core in (0..CpuSet::count()).filter(|&core| !has(&home, core)) {
        others.set(core).expect("it is in range");
    }
    // The system takes those that exist. Where none does, the thread stays.
    let has_moved = sched_setaffinity(Pid::from_raw(0), &others).is_ok();
    MovedThread { home, has_moved }
}

/// Returns whether the calling thread stays on one core, with all that it starts.
pub fn is_pinned() -> bool {
    let home = affinity();
    (0..CpuSet::count()).filter(|&core| has(&home, core)).count() == 1
}

fn has(cores: &CpuSet, core: usize) -> bool {
    cores.is_set(core).unwrap_or(false)
}

impl MovedThread {
    /// Returns whether the thread has left its core: there may be no other.
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Moves the thread back.
    ///
    /// # Errors
    /// When its cores have gone.
    pub fn back(self) -> Result<()> {
        move_to(&self.home).context("moving a thread back to its core")
    }
}

/// Returns the cores that the calling thread may run on: all, where the system does not tell.
pub fn affinity() -> CpuSet {
    let mut cores = CpuSet::new();
    for core in allowed_cpus() {
        // Of the list of all there may be more than fit.
        let _ = cores.set(core);
    }
    cores
}

/// Moves the calling thread to `core`, unless a sandbox leaves that to the system.
///
/// # Errors
/// When it may not run there.
pub fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    move_to(&set).with_context(|| format!("moving a thread to core {core}"))
}

/// Moves the calling thread to some of these cores, unless a sandbox leaves that to the system.
///
/// # Errors
/// When it may run on none of them.
pub fn move_to(cores: &CpuSet) -> Result<()> {
    match sched_setaffinity(Pid::from_raw(0), cores) {
        Ok(()) | Err(Errno::ENOSYS | Errno::EPERM) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_with_ranges_and_garbage_is_skipped() {
        assert_eq!(parse_list("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("5"), [5]);
        assert_eq!(parse_list("x,2,4-y,0-99999999999"), [2]);
        assert!(parse_list("").is_empty());
    }
}
