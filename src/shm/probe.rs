//! Tries the system calls that a job needs, for those who look a machine over.

use std::io;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::get_pdeathsig;
use nix::unistd::Pid;

use super::life::check_robust_list;
use super::limits::check_file_size;
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
    /// The seals of `fcntl`: otherwise nothing proves that a segment keeps its length.
    pub seals: io::Result<()>,
    /// `prctl`: otherwise a program that never joins outlives a launcher that is killed.
    pub prctl: io::Result<()>,
    /// `sched_getaffinity` and `sched_setaffinity`: otherwise no process is pinned.
    pub affinity: io::Result<()>,
}

/// Tries each call.
#[must_use]
pub fn try_calls() -> TriedCalls {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memory = memfd_create(c"shmccl-probe", flags).map_err(io::Error::from);
    // Past `ulimit -f` it would not return.
    let room = memory.as_ref().ok().filter(|_| check_file_size("", PAGE).is_ok());
    let committed =
        room.map_or(Ok(()), |memory| fallocate(memory, FallocateFlags::empty(), 0, PAGE.cast_signed()));
    let seal = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK);
    let sealed = memory.as_ref().map_or(Ok(0), |memory| fcntl(memory, seal));
    let this = Pid::from_raw(0);
    let moved = sched_getaffinity(this).and_then(|cores| sched_setaffinity(this, &cores));
    TriedCalls {
        pidfd_open: pidfd_open(Pid::this()).map(drop),
        memfd_create: memory.map(drop),
        fallocate: committed.map_err(io::Error::from),
        set_robust_list: check_robust_list(),
        seals: sealed.map(drop).map_err(io::Error::from),
        prctl: get_pdeathsig().map(drop).map_err(io::Error::from),
        affinity: moved.map_err(io::Error::from),
    }
}
