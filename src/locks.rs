//! Locks on files and directories, whose last holder may be about to be gone.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollTimeout, poll};

/// How often a lock is tried that somebody else has.
const PAUSE_MS: u8 = 5;

/// Locks the file for as long as anybody has this opening of it, or a duplicate. Somebody else may have it for the time of `patience`, and
/// as long as he `may_go`.
///
/// Whoever had it may be gone, and a descriptor of it left for a moment: in a process that was forked and has not executed its program
/// yet, or in a killed one of which the kernel has not closed everything. So a file that is locked is tried again for a while.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when somebody else has it all the time; what the system says of locking it.
pub(crate) fn lock(file: &File, patience: Duration, may_go: impl Fn() -> bool) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if began.elapsed() >= patience || !may_go() => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Sleeps; a signal only shortens it.
            Err(TryLockError::WouldBlock) => _ = poll(&mut [], PollTimeout::from(PAUSE_MS)),
        }
    }
}

/// The same, until what is returned is dropped, whoever has a duplicate.
///
/// # Errors
/// As for [`lock`].
pub(crate) fn hold(file: File, patience: Duration, may_go: impl Fn() -> bool) -> io::Result<Flock<File>> {
    lock(&file, patience, may_go)?;
    // It is locked already: this only says when that ends.
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}
