//! Moving threads between cores, for measurements that depend on who shares one.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread, away from the cores it belongs to. Threads that it starts meanwhile stay away.
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
    // The system takes what exists of them. Where nothing does, there is no aside, and the thread stays.
    let has_moved = sched_setaffinity(Pid::from_raw(0), &others).is_ok();
    Ok(MovedThread { home, has_moved })
}

/// Whether the calling thread stays on one core, and with it whatever it starts.
///
/// # Errors
/// When the affinity mask cannot be read.
pub(crate) fn is_pinned() -> Result<bool> {
    let home = affinity()?;
    Ok((0..CpuSet::count()).filter(|&core| home.is_set(core).unwrap_or(false)).count() == 1)
}

impl MovedThread {
    /// Whether there is another core than that of the thread, where it was.
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

/// The cores that the calling thread may run on.
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
