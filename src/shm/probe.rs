//! Tries the system calls that a job needs, for those who look a machine over.

use std::io;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::Pid;

use super::life::check_robust_list;
use super::segment::PAGE;
use super::system::pidfd_open;

/// What trying each call gave, as this process may use them.
#[derive(Debug)]
pub struct TriedCalls {
    /// `pidfd_open`: no process is started without.
    pub pidfd_open: io::Result<()>,
    /// `memfd_create`: no job begins without.
    pub memfd_create: io::Result<()>,
    /// `fallocate`: otherwise memory is committed by writing.
    pub fallocate: io::Result<()>,
    /// `set_robust_list`: otherwise a death is seen by a lock.
    pub set_robust_list: io::Result<()>,
}

/// Tries each call.
#[must_use]
pub fn try_calls() -> TriedCalls {
    let memory = memfd_create(c"shmccl-probe", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from);
    let committed = memory.as_ref().map_or(Ok(()), |memory| {
        fallocate(memory, FallocateFlags::empty(), 0, PAGE.cast_signed()).map_err(io::Error::from)
    });
    TriedCalls {
        pidfd_open: pidfd_open(Pid::this()).map(drop),
        memfd_create: memory.map(drop),
        fallocate: committed,
        set_robust_list: check_robust_list(),
    }
}
