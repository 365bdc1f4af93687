//! Where a coordinator is to be found: `$XDG_RUNTIME_DIR/shmccl`, or `/tmp/shmccl-UID`.
//!
//! Nobody but its user may go there: mode and owner are looked at whenever it is opened. A lock on the directory itself says that
//! a coordinator lives, and ends with it; so a socket without a lock is one of the dead, and is replaced. That is done at one stroke:
//! where no socket is, a coordinator has ended in order, or was killed and nobody is left who waits for the next one there. Then its
//! janitor has removed it (`src/shm/janitor/socket.rs`).

mod occupied;
mod sweep;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::device::{Environment, POOL as APPOINTED};
use super::fault::Fault;
use super::id::DeviceId;
use crate::error::Result;
use crate::sync::header::Creator;
pub(super) use occupied::Occupied;
pub use sweep::Swept;

/// The name of a coordinator's socket.
const SOCKET: &str = "coordinator";

/// What the names of directories of pools begin with; the number of a process and its start time are behind it.
const POOL: &str = "pool-";

/// The longest path that a socket can have: the system wants room for a zero behind it.
const MAX_SOCKET: usize = 107;

/// The private directory of a user's coordinator.
#[derive(Clone, Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

impl RuntimeDirectory {
    /// Opens the user's, and makes it if it is not there.
    ///
    /// # Errors
    /// [`Error::Coordinator`](crate::Error::Coordinator) when it is not private, or the system refuses to make it.
    pub fn open() -> Result<Self> {
        Self::at(Self::usual())
    }

    /// Where the user's is, whether it is there or not.
    fn usual() -> PathBuf {
        Self::beneath(std::env::var_os("XDG_RUNTIME_DIR").as_deref())
    }

    /// Where it is for a process whose runtime directory is `parent`; empty or missing there is none.
    fn beneath(parent: Option<&OsStr>) -> PathBuf {
        match parent.filter(|path| !path.is_empty()) {
            Some(parent) => Path::new(parent).join("shmccl"),
            None => PathBuf::from(format!("/tmp/shmccl-{}", geteuid())),
        }
    }

    /// Where another process of this user would look for its coordinator, were it a device: where it was told to, or at the usual
    /// place. `None` when there is no such process, or it is somebody else's.
    pub fn of(process: DeviceId) -> Option<PathBuf> {
        let environment = Environment::of(process)?;
        let told = environment.value(APPOINTED).map(PathBuf::from);
        let path = told.unwrap_or_else(|| Self::beneath(environment.value("XDG_RUNTIME_DIR")));
        Some(environment.resolve(&path))
    }

    /// Opens the one at `path`, and makes it if it is not there: for a pool that is nobody else's.
    ///
    /// # Errors
    /// Those of [`RuntimeDirectory::open`].
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        check_length(&path.join(SOCKET))?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Fault::at("making the directory", &path, error));
            }
            _ => {}
        }
        // Not through a link: who owns that says nothing about what it leads to.
        let metadata = std::fs::symlink_metadata(&path)
            .map_err(|error| Fault::at("looking at the directory", &path, error))?;
        let is = match () {
            () if !metadata.is_dir() => Some("is no directory"),
            () if metadata.uid() != geteuid().as_raw() => Some("belongs to another user"),
            () if metadata.mode() & 0o077 != 0 => Some("is open to other users"),
            () => None,
        };
        match is {
            Some(is) => Err(Fault::Directory { path, is }.error()),
            None => Ok(Self { path }),
        }
    }

    /// One of this path, whatever is there.
    #[cfg(test)]
    pub(super) fn unchecked(path: &str) -> Self {
        Self { path: path.into() }
    }

    /// Makes one that is nobody else's, within the user's, for a pool of this process. Who has made it removes it.
    ///
    /// # Errors
    /// Those of [`RuntimeDirectory::open`].
    pub(super) fn private() -> Result<Self> {
        let parent = Self::open()?.path;
        Self::sweep_pools(&parent, false)?;
        // Only this process has such a name, and nobody sweeps it while it lives.
        let number = crate::epoch_id::fresh_job_id();
        let Creator { pid, start } = Creator::this_process();
        Self::at(parent.join(format!("{POOL}{pid}-{start}-{number:x}")))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The coordinator's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// The socket of a coordinator that begins, until it takes the place of the one before. The name is no longer than that one.
    fn coming(&self) -> PathBuf {
        self.path.join("coming")
    }

    fn file(&self) -> Result<File> {
        File::open(&self.path).map_err(|error| Fault::at("opening the directory", &self.path, error))
    }
}

/// # Errors
/// [`Fault::LongPath`].
fn check_length(socket: &Path) -> Result<()> {
    match socket.as_os_str().len() {
        len if len > MAX_SOCKET => {
            Err(Fault::LongPath { path: socket.to_owned(), len, most: MAX_SOCKET }.error())
        }
        _ => Ok(()),
    }
}
