//! Where a coordinator is to be found: `$XDG_RUNTIME_DIR/shmccl`, or `/tmp/shmccl-UID`.
//!
//! Nobody but its user may go there: mode and owner are looked at whenever it is opened. A lock on the directory itself says that
//! a coordinator lives, and ends with it; so a socket without a lock is one of the dead, and is replaced.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::fault::Fault;
use crate::error::{Error, Result};
use crate::shm::header::Creator;

/// What the names of directories of pools begin with; the number of a process and its start time are behind it.
const POOL: &str = "pool-";

/// The private directory of a user's coordinator.
#[derive(Clone, Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

/// Says that a coordinator lives. Dropping it removes the socket.
#[derive(Debug)]
pub(super) struct Occupied {
    _lock: Flock<File>,
    socket: PathBuf,
    /// Whether the one before has left its socket, since it was killed.
    pub(super) follows_dead: bool,
}

impl RuntimeDirectory {
    /// Opens the user's, and makes it if it is not there.
    ///
    /// # Errors
    /// [`Error::Coordinator`] when it is not private, [`Error::Os`].
    pub fn open() -> Result<Self> {
        Self::at(Self::usual())
    }

    /// Where the user's is, whether it is there or not.
    fn usual() -> PathBuf {
        match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
            Some(parent) => Path::new(&parent).join("shmccl"),
            None => PathBuf::from(format!("/tmp/shmccl-{}", geteuid())),
        }
    }

    /// Finds what coordinators of this user have left that are dead, and removes it unless this is a `dry_run`: the socket of one, and the
    /// directories of [pools](super::Pool). The next one would do so as well.
    ///
    /// # Errors
    /// [`Error::Coordinator`] when the directory is not private, [`Error::Os`].
    pub fn clean(dry_run: bool) -> Result<Vec<PathBuf>> {
        let path = Self::usual();
        if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(Vec::new());
        }
        let directory = Self::at(path)?;
        let pools = Self::sweep_pools(&directory.path, dry_run)?;
        Ok(directory.sweep(dry_run)?.into_iter().chain(pools).collect())
    }

    pub(super) fn sweep(&self, dry_run: bool) -> Result<Option<PathBuf>> {
        // Whoever lives has it locked, and is not kept from locking it where there is nothing to be found.
        if !self.socket().exists() {
            return Ok(None);
        }
        let Ok(_lock) = Flock::lock(self.file()?, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
        let socket = Some(self.socket()).filter(|socket| socket.exists());
        match socket.as_ref().filter(|_| !dry_run).map(std::fs::remove_file) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
                Err(Error::os("removing the socket of a coordinator that is dead", error))
            }
            _ => Ok(socket),
        }
    }

    fn file(&self) -> Result<File> {
        File::open(&self.path)
            .map_err(|error| Error::os("opening the directory of the coordinator's socket", error))
    }

    /// Opens the one at `path`, and makes it if it is not there: for a pool that is nobody else's.
    ///
    /// # Errors
    /// Those of [`RuntimeDirectory::open`].
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::os("making the directory of the coordinator's socket", error));
            }
            _ => {}
        }
        // Not through a link: who owns that says nothing about what it leads to.
        let metadata = std::fs::symlink_metadata(&path)
            .map_err(|error| Error::os("looking at the directory of the coordinator's socket", error))?;
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

    /// Makes one that is nobody else's, within the user's, for a pool of this process. Who has made it removes it.
    ///
    /// # Errors
    /// Those of [`RuntimeDirectory::open`].
    pub(super) fn private() -> Result<Self> {
        let parent = Self::open()?.path;
        Self::sweep_pools(&parent, false)?;
        // Only this process has such a name, and nobody sweeps it while it lives.
        let number = crate::launch::fresh_job_id();
        let Creator { pid, start } = Creator::this_process();
        Self::at(parent.join(format!("{POOL}{pid}-{start}-{number:x}")))
    }

    /// Removes the directories of pools within `parent` whose processes are dead, or only finds them.
    fn sweep_pools(parent: &Path, dry_run: bool) -> Result<Vec<PathBuf>> {
        let sweep = |error| Error::os("removing what a pool that is dead has left", error);
        let mut swept = Vec::new();
        for entry in std::fs::read_dir(parent).map_err(sweep)? {
            let entry = entry.map_err(sweep)?;
            if entry.file_name().to_str().and_then(owner_of_pool).is_none_or(|owner| owner.is_alive()) {
                continue;
            }
            let directory = Self { path: entry.path() };
            // Another one may sweep as well.
            let Ok(Ok(_lock)) = directory.file().map(|it| Flock::lock(it, FlockArg::LockExclusiveNonblock))
            else {
                continue;
            };
            if !dry_run {
                directory.remove().map_err(sweep)?;
            }
            swept.push(directory.path);
        }
        Ok(swept)
    }

    /// Removes the directory of a pool that has ended.
    pub(super) fn remove(&self) -> std::io::Result<()> {
        let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
        match std::fs::remove_file(self.socket()) {
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
        std::fs::remove_dir(&self.path).or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The coordinator's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join("coordinator")
    }

    /// Takes the directory for a coordinator, and removes the socket of one that is dead.
    ///
    /// # Errors
    /// [`Fault::Running`], [`Error::Os`].
    pub(super) fn occupy(&self) -> Result<Occupied> {
        let lock =
            Flock::lock(self.file()?, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
                Errno::EWOULDBLOCK => Fault::Running { path: self.path.clone() }.error(),
                errno => Error::os("locking the directory of the coordinator's socket", errno),
            })?;
        let socket = self.socket();
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::os("removing the socket of a coordinator that is dead", error))
            }
            removed => Ok(Occupied { _lock: lock, socket, follows_dead: removed.is_ok() }),
        }
    }
}

/// The process whose pool has a directory of this name, told from a later one of the same number by its start time.
fn owner_of_pool(name: &str) -> Option<Creator> {
    let mut parts = name.strip_prefix(POOL)?.splitn(3, '-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().map(|_| Creator { pid, start })
}

impl Drop for Occupied {
    fn drop(&mut self) {
        // It may be gone; the next coordinator would remove it as well.
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("shmccl-directory-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_directory_that_is_not_private_is_refused() {
        let parent = scratch("private");
        let refused = |path: PathBuf| RuntimeDirectory::at(path).unwrap_err().to_string();
        let open = parent.join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(refused(open.clone()).contains("is open to other users"));
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o700)).unwrap();
        RuntimeDirectory::at(open.clone()).unwrap();
        symlink(&open, parent.join("link")).unwrap();
        assert!(refused(parent.join("link")).contains("is no directory"));
        std::fs::write(parent.join("file"), "").unwrap();
        assert!(refused(parent.join("file")).contains("is no directory"));
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_directory_has_one_coordinator_at_a_time_and_the_socket_of_a_dead_one_is_replaced() {
        let directory = RuntimeDirectory::at(scratch("occupied").join("shmccl")).unwrap();
        std::fs::write(directory.socket(), "").unwrap();
        let first = directory.occupy().unwrap();
        assert!(!directory.socket().exists());
        let refused = directory.occupy().unwrap_err().to_string();
        assert!(refused.contains("running already"), "{refused}");
        std::fs::write(directory.socket(), "").unwrap();
        drop(first);
        assert!(!directory.socket().exists());
        directory.occupy().unwrap();
        std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_a_pool_has_left_is_found_though_its_number_is_anothers_now_and_that_of_a_living_one_stays() {
        let parent = scratch("pools");
        let Creator { pid, start } = Creator::this_process();
        let names =
            [format!("{POOL}{pid}-{start}-a"), format!("{POOL}{pid}-{}-b", start + 1), format!("{POOL}1")];
        names.iter().for_each(|name| std::fs::create_dir(parent.join(name)).unwrap());
        let left = [parent.join(&names[1])];
        assert_eq!(RuntimeDirectory::sweep_pools(&parent, true).unwrap(), left);
        assert_eq!(RuntimeDirectory::sweep_pools(&parent, false).unwrap(), left);
        assert!(RuntimeDirectory::sweep_pools(&parent, false).unwrap().is_empty());
        assert!(parent.join(&names[0]).exists() && parent.join(&names[2]).exists());
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn the_socket_of_a_dead_coordinator_is_swept_away_and_that_of_a_living_one_stays() {
        let directory = RuntimeDirectory::at(scratch("swept").join("shmccl")).unwrap();
        assert_eq!(directory.sweep(false).unwrap(), None);
        let living = directory.occupy().unwrap();
        std::fs::write(directory.socket(), "").unwrap();
        assert_eq!(directory.sweep(false).unwrap(), None);
        assert!(directory.socket().exists());
        drop(living);
        std::fs::write(directory.socket(), "").unwrap();
        assert_eq!(directory.sweep(true).unwrap(), Some(directory.socket()));
        assert_eq!(directory.sweep(false).unwrap(), Some(directory.socket()));
        assert!(!directory.socket().exists());
        assert_eq!(directory.sweep(false).unwrap(), None);
        std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
    }
}
