//! What a rank lives by where the system refuses robust lists: a lock on a byte of a file that all
//! ranks have, the control segment. The system takes the lock back when it closes the files of a
//! process that has ended.
//!
//! The lock belongs to one opening of the file. What peers were sent is the same opening as this
//! rank has, and would keep the lock; so the rank opens the file anew, by its entry in `/proc`. A
//! child that was forked and executes nothing keeps the lock, and the death from others.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::fcntl::{FcntlArg, fcntl};

use crate::rank::Rank;

/// The lock of one rank.
#[derive(Debug)]
pub(super) struct PresenceLock(#[expect(dead_code, reason = "held for its drop")] File);

impl PresenceLock {
    /// Locks the byte of `rank` in `file`.
    ///
    /// # Errors
    /// The system's, such as that there is no `/proc`.
    pub(super) fn take(file: BorrowedFd<'_>, rank: Rank) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let own = File::options().read(true).write(true).open(path)?;
        fcntl(own.as_fd(), FcntlArg::F_OFD_SETLK(&byte_of(rank)))?;
        Ok(Self(own))
    }
}

/// Returns whether somebody has the lock of `rank`; yes where the system does not tell.
pub(super) fn is_present(file: BorrowedFd<'_>, rank: Rank) -> bool {
    let mut found = byte_of(rank);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found)).is_err() || i32::from(found.l_type) != libc::F_UNLCK
}

/// Returns the exclusive lock of the byte of `rank`.
fn byte_of(rank: Rank) -> libc::flock {
    #[expect(clippy::cast_possible_truncation, reason = "small constants of the C library")]
    let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: rank.get().into(), l_len: 1, l_pid: 0 }
}
