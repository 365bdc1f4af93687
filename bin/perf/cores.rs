//! Moving threads between cores, for measurements that depend on who shares one.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread, away from its cores. Threads that it starts meanwhile stay away.
#[derive(Debug)]
#[must_use = "the thread has to go back"]
pub(crate) struct MovedThread {
    home: CpuSet,
    has_moved: bool,
}

/// Moves the calling thread to all cores but its own, if there are others.
///
/// # Errors
/// When the affinity mask cannot be read.
pub(crate) fn step_aside() -> Result<MovedThread> {
    let home = affinity()?;
    let mut others = CpuSet::new();
    for core in 0..CpuSet::count() {
        if !home.is_set(core)? {
            others.set(core)?;
        }
    }
    // The system takes those that exist. Where none does, the thread stays.
    let has_moved = sched_setaffinity(Pid::from_raw(0), &others).is_ok();
    Ok(MovedThread { home, has_moved })
}

/// Returns whether the calling thread stays on one core, with all that it starts.
///
/// # Errors
/// When the affinity mask cannot be read.
pub(crate) fn is_pinned() -> Result<bool> {
    let home = affinity()?;
    Ok((0..CpuSet::count()).filter(|&core| home.is_set(core).unwrap_or(false)).count() == 1)
}

impl MovedThread {
    /// Returns whether the thread has left its core: there may be no other.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Moves the thread back.
    ///
    /// # Errors
    /// When its cores have gone.
    pub(crate) fn back(self) -> Result<()> {
        sched_setaffinity(Pid::from_raw(0), &self.home).context("moving a thread back to its core")
    }
}

/// Returns the cores that the calling thread may run on.
///
/// # Errors
/// When the system does not tell.
pub(crate) fn affinity() -> Result<CpuSet> {
    sched_getaffinity(Pid::from_raw(0)).context("reading the affinity mask")
}

/// Moves the calling thread to `core`.
///
/// # Errors
/// When it may not run there.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("moving a thread to core {core}"))
}
