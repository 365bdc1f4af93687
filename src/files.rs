//! Locks on files and directories, whose last holder may be about to be gone; and reading of
//! regular files, where anything may have their name.
//!
//! Tried by its unit tests and `environments defaults::`.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::poll::{PollTimeout, poll};
use nix::sys::stat::{major, minor};

use crate::sync::grace::Grace;

/// The pause before another try of a held lock.
const PAUSE_MS: u8 = 5;

/// Locks the file for as long as anybody has this open file description. Another holder may keep it
/// for the time of `patience`, and as long as `may_go` says.
///
/// An earlier holder may be gone and have left a descriptor for a moment: in a forked process that
/// has not executed its program yet, or in a killed one that the kernel has not closed down. So a
/// locked file is tried again for a while.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when another holder has it all the time; the system's error for
/// locking it.
pub(crate) fn lock(file: &File, patience: Duration, may_go: impl Fn() -> bool) -> io::Result<()> {
    let (began, mut grace) = (Instant::now(), Grace::begin(patience, Duration::ZERO));
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if grace.is_over(began.elapsed()) || !may_go() => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Sleeps; a signal only shortens it.
            Err(TryLockError::WouldBlock) => _ = poll(&mut [], PollTimeout::from(PAUSE_MS)),
        }
    }
}

/// Returns the process that has locked the file with this metadata, as far as the system lists it.
/// `/proc/locks` names the process that took the lock first, and files by device and inode; some
/// file systems have no single device number.
pub(crate) fn holder(locked: &Metadata) -> Option<u32> {
    let (device, inode) = (locked.dev(), locked.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| holder_in(line, &place))
}

/// Returns the holder of a lock in this line of `/proc/locks`, if it is on the file at `place`,
/// such as `1: FLOCK ADVISORY WRITE 17 fd:01:42 0 EOF`. A waiting process has an arrow in front.
fn holder_in(line: &str, place: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let (kind, process) = (words.next()?, words.nth(2)?);
    let is_it = kind == "FLOCK" && words.next() == Some(place);
    process.parse().ok().filter(|process| is_it && *process > 0)
}

/// Locks the file like [`lock`], but until the returned value is dropped, even if another process
/// has a duplicate.
///
/// # Errors
/// As for [`lock`].
pub(crate) fn hold(file: File, patience: Duration, may_go: impl Fn() -> bool) -> io::Result<Flock<File>> {
    lock(&file, patience, may_go)?;
    // It is locked already: this only says when that ends.
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Opens the regular file at `path` to read it; `None` for anything else that has the name.
///
/// # Errors
/// What the system says of opening it.
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<File>> {
    // A pipe without a writer would be waited for, perhaps for ever.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_lock_is_found_by_the_place_of_the_file_and_who_only_waits_for_it_is_not() {
        let line = "17: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF";
        assert_eq!(holder_in(line, "fd:01:1234"), Some(4711));
        assert_eq!(holder_in(line, "fd:01:123"), None);
        for other in [
            "17: -> FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF",
            "17: POSIX  ADVISORY  WRITE 4711 fd:01:1234 0 EOF",
            "17: FLOCK  ADVISORY  WRITE -1 fd:01:1234 0 EOF",
            "17: FLOCK  ADVISORY  WRITE 0 fd:01:1234 0 EOF",
            "17: FLOCK",
            "",
        ] {
            assert_eq!(holder_in(other, "fd:01:1234"), None, "{other}");
        }
    }
}
