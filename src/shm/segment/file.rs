//! The file behind a segment that is to survive: opened or made, and locked.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollTimeout, poll};

use super::limits::{self, Store};
use crate::error::{Error, Result};

/// How long a lock may be held by somebody who is about to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the lock is tried meanwhile.
const PAUSE_MS: u8 = 5;

/// Opens the file, or makes it; says whether there was one.
pub(super) fn open(path: &Path) -> Result<(File, bool)> {
    use std::os::unix::fs::OpenOptionsExt;
    let open = |create_new: bool| {
        let mut options = File::options();
        options.read(true).write(true).create_new(create_new).mode(0o600);
        // A fifo or a terminal must not block or become ours; it is refused later.
        options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path)
    };
    let refused = |source| limits::refused("opening the file of a segment", Store::File, source);
    match open(true) {
        Ok(file) => Ok((file, false)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((open(false).map_err(refused)?, true))
        }
        Err(error) => Err(refused(error)),
    }
}

/// Locks the file for as long as anybody has this opening of it, or a duplicate.
///
/// Whoever had it may be gone, and a descriptor of it left for a moment: in a process that was forked and has not executed its program
/// yet, or in a killed one of which the kernel has not closed everything. So a file that is locked is tried again for a while.
pub(super) fn lock(file: &File) -> Result<()> {
    const ACTION: &str = "locking the file of a segment";
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => return Err(Error::os(ACTION, source)),
            Err(TryLockError::WouldBlock) if began.elapsed() >= PATIENCE => {
                return Err(Error::os(ACTION, Errno::EWOULDBLOCK));
            }
            // Sleeps; a signal only shortens it.
            Err(TryLockError::WouldBlock) => _ = poll(&mut [], PollTimeout::from(PAUSE_MS)),
        }
    }
}
