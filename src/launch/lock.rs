//! The right to a prefix of names in `/dev/shm`: a locked file of that prefix.
//!
//! | file `PREFIX.lock` | meaning |
//! |---|---|
//! | locked, empty | somebody is looking whether the names are free, or removes what dead jobs have left of them |
//! | locked, `shmccl` and the id of a process that lives | the names are that launcher's |
//! | locked, `shmccl` and the id of one that is dead | its janitor, or somebody else, removes what it has left |
//! | not locked | a launcher and its janitor were killed; whoever comes next removes it |
//!
//! The file is made without a name, locked, given to the janitor, and linked under its name last: whenever the launcher is
//! killed, there is no name yet or somebody who removes it. The lock belongs to the open file, which
//! launcher and janitor share. Only who has it locked removes the name, so a file that is found locked by its finder and
//! still has its name keeps it until then. Whoever removes leftovers is through in a moment, and is waited for so long.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{linkat, unlink};

use super::names::{CLAIMING, path};
use crate::error::{Error, Result};
use crate::locks;
use crate::shm::{Janitor, Sweep};
use crate::sync::header::Creator;

/// What a signed file starts with, in front of the process id.
const SIGNATURE: &str = "shmccl ";

/// How long a lock may be somebody's who does not say that the names are his: he is about to, or to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// The right to one prefix, for as long as this lives.
#[derive(Debug)]
pub(super) struct PrefixLock {
    name: String,
    file: Flock<File>,
    /// `None` where the system refuses a process; then nobody cleans up after a killed launcher but the next one.
    janitor: Option<Janitor>,
}

impl PrefixLock {
    /// Takes the lock called `name`, and starts the janitor that does `sweep` should this process be killed.
    ///
    /// # Errors
    /// [`Error::NameInUse`] when another one has it: at once where that is a launcher that lives, after a second otherwise.
    pub(super) fn take(name: String, sweep: &Sweep) -> Result<Self> {
        let file = lock(unnamed()?).map_err(|(_, errno)| Error::os(CLAIMING, errno))?;
        let janitor = Janitor::start(sweep, file.as_fd()).ok();
        while !link(&file, &name)? {
            remove_leftover(&name)?;
        }
        Ok(Self { name, file, janitor })
    }

    /// Declares that the names are this process's, which the janitor may remove from now on.
    pub(super) fn sign(&self) -> Result<()> {
        let written = (&*self.file).write_all(format!("{SIGNATURE}{}", std::process::id()).as_bytes());
        written.map_err(|error| Error::os(CLAIMING, error))
    }

    pub(super) fn janitor(&self) -> Option<&Janitor> {
        self.janitor.as_ref()
    }
}

impl Drop for PrefixLock {
    fn drop(&mut self) {
        // Still locked: it is ours to remove.
        let _ = unlink(path(&self.name).as_c_str());
    }
}

pub(super) fn unnamed() -> Result<File> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let file = open(c"/dev/shm", flags, Mode::S_IRUSR | Mode::S_IWUSR);
    file.map(File::from).map_err(|errno| Error::os(CLAIMING, errno))
}

pub(super) fn lock(file: File) -> std::result::Result<Flock<File>, (File, Errno)> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
}

/// Gives the file its name; not if there is one of that name.
pub(super) fn link(file: &Flock<File>, name: &str) -> Result<bool> {
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = AtFlags::AT_SYMLINK_FOLLOW;
    match linkat(AT_FDCWD, nameless.as_str(), AT_FDCWD, path(name).as_c_str(), follow) {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(errno) => Err(Error::os(CLAIMING, errno)),
    }
}

/// Removes the file that somebody has left who is gone; does nothing when it has gone meanwhile.
fn remove_leftover(name: &str) -> Result<()> {
    let refused = |errno| Error::os(CLAIMING, errno);
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file = match open(path(name).as_c_str(), flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(refused(errno)),
    };
    match locks::lock(&file, PATIENCE, || holder(&file).is_none()) {
        // The last holder may have removed the name between our opening and locking it.
        Ok(()) if fstat(&file).map_err(refused)?.st_nlink == 0 => Ok(()),
        Ok(()) => unlink(path(name).as_c_str()).map_err(refused),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(Error::NameInUse { name: name.to_owned(), holder: holder(&file) })
        }
        Err(error) => Err(Error::os(CLAIMING, error)),
    }
}

/// The launcher that holds a lock, unless it has not come to say so yet, or is dead.
fn holder(file: &File) -> Option<u64> {
    let mut text = [0; 64];
    let len = file.read_at(&mut text, 0).ok()?;
    let pid = signer(str::from_utf8(&text[..len]).ok()?)?;
    Creator { pid, start: 0 }.is_alive().then_some(pid)
}

/// Who has signed a file with this text.
pub(super) fn signer(text: &str) -> Option<u64> {
    text.strip_prefix(SIGNATURE)?.parse().ok()
}
