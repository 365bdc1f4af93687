//! What a job may leave behind beyond its own processes, and its removal: processes that ranks started, and names in
//! `/dev/shm` whose creators were killed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use shmccl::bootstrap::SegmentBacking;
use shmccl::shm::{Expected, Segment};

use crate::output;

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

/// The names that a job's segments get. A rank removes its own as it ends, unless it is killed; then this does.
#[derive(Debug)]
pub(super) struct Names(Vec<String>);

impl Names {
    /// Sees to it that segments with names or in files can be made.
    ///
    /// # Errors
    /// When a name is taken, or the directory is not there.
    pub(super) fn claim(backing: &SegmentBacking, n_ranks: u32) -> Result<Self> {
        match backing {
            SegmentBacking::Anonymous => Ok(Self(Vec::new())),
            SegmentBacking::Named(prefix) => {
                let names: Vec<_> = (0..n_ranks).map(|rank| format!("{prefix}.{rank}")).collect();
                names.iter().try_for_each(|name| free(name))?;
                Ok(Self(names))
            }
            SegmentBacking::Files(directory) => {
                let metadata = std::fs::metadata(directory);
                let metadata = metadata.with_context(|| format!("cannot keep segments in {directory}"))?;
                if !metadata.is_dir() {
                    bail!("cannot keep segments in {directory}: it is not a directory");
                }
                Ok(Self(Vec::new()))
            }
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = shm_unlink(format!("/{name}").as_str());
        }
    }
}

/// Sees to it that a name can be taken: one whose creator is gone is removed, since nobody else ever will.
fn free(name: &str) -> Result<()> {
    let path = format!("/{name}");
    match shm_open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno).with_context(|| format!("cannot look at /dev/shm/{name}")),
        Ok(_) => {}
    }
    match Segment::attach_named(name, &Expected { len: None, identity: None }) {
        Ok(segment) if !segment.header().creator().is_alive() => {
            output::note(&format!(
                "removing /dev/shm/{name}, whose process {} was killed",
                segment.header().creator().pid
            ));
            shm_unlink(path.as_str()).with_context(|| format!("cannot remove /dev/shm/{name}"))
        }
        Ok(segment) => {
            let pid = segment.header().creator().pid;
            bail!("/dev/shm/{name} belongs to process {pid}, which is running; choose another name than its")
        }
        Err(_) => {
            bail!("/dev/shm/{name} is no finished segment of this library; choose another name, or rm it")
        }
    }
}
