//! Locks on files and directories, whose last holder may be about to be gone.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};

/// How long a lock may be held by somebody who is about to be gone, on a machine that is busy. Tests wait it out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// How often the lock is tried meanwhile.
const PAUSE_MS: u8 = 5;

/// Locks the file for as long as anybody has this opening of it, or a duplicate; somebody else may have it so long at most.
///
/// Whoever had it may be gone, and a descriptor of it left for a moment: in a process that was forked and has not executed its program
/// yet, or in a killed one of which the kernel has not closed everything. So a file that is locked is tried again for a while.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when somebody else has it all the time; what the system says of locking it.
pub(crate) fn lock(file: &File, patience: Duration) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if began.elapsed() >= patience => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Sleeps; a signal only shortens it.
            Err(TryLockError::WouldBlock) => _ = poll(&mut [], PollTimeout::from(PAUSE_MS)),
        }
    }
}
