//! What dead coordinators have left, found and removed. Whoever removes anything has the directory locked, so that nobody begins there
//! meanwhile.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::{POOL, RuntimeDirectory};
use crate::coordinator::device::Appointed;
use crate::coordinator::fault::Fault;
use crate::coordinator::id::DeviceId;
use crate::error::{Error, Result};
use crate::sync::header::Creator;

/// What coordinators have left that are dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The sockets, and the directories of pools, that were removed or would be.
    pub removed: Vec<PathBuf>,
    /// The devices that live and wait for the next coordinator, whose socket is kept for that: without one they would end.
    pub waiting: Vec<DeviceId>,
}

impl RuntimeDirectory {
    /// Finds what coordinators of this user have left that are dead, and removes it unless this is a `dry_run`: the socket of one, and the
    /// directories of [pools](crate::coordinator::Pool). The next one would do so as well. A socket stays while a device lives that was
    /// started for it: what that has in its memory is nobody else's to end.
    ///
    /// # Errors
    /// [`Error::Coordinator`] when the directory is not private, [`Error::Os`].
    pub fn clean(dry_run: bool) -> Result<Swept> {
        let path = Self::usual();
        if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(Swept::default());
        }
        let directory = Self::at(path)?;
        let pools = Self::sweep_pools(&directory.path, dry_run)?;
        let mut waiting = Ok(Vec::new());
        let is_awaited_by_nobody = || {
            waiting = Appointed::all(&directory);
            matches!(&waiting, Ok(all) if all.is_empty())
        };
        let socket = directory.sweep(dry_run, is_awaited_by_nobody)?;
        let waiting = waiting.map_err(|error| Error::os("looking for devices that live", error))?;
        let removed = socket.into_iter().chain(pools).collect();
        Ok(Swept { removed, waiting: waiting.iter().map(|it| it.device).collect() })
    }

    /// Removes the socket of a coordinator that is dead, if it is one and `may_go`, which is asked when no other one can begin.
    pub(in crate::coordinator) fn sweep(
        &self,
        dry_run: bool,
        may_go: impl FnOnce() -> bool,
    ) -> Result<Option<PathBuf>> {
        // Whoever lives has it locked, and is not kept from locking it where there is nothing to be found.
        if !self.socket().exists() && !self.coming().exists() {
            return Ok(None);
        }
        let Ok(_lock) = Flock::lock(self.file()?, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
        if !dry_run {
            // One that was killed as it began may have left it.
            let _ = remove(&self.coming());
        }
        let socket = Some(self.socket()).filter(|socket| socket.exists() && may_go());
        let removed = socket.as_deref().filter(|_| !dry_run).map_or(Ok(()), remove);
        removed.map_err(|error| Fault::at("removing", &self.socket(), error))?;
        Ok(socket)
    }

    /// Removes the directories of pools within `parent` whose processes are dead, or only finds them.
    pub(super) fn sweep_pools(parent: &Path, dry_run: bool) -> Result<Vec<PathBuf>> {
        let sweep = |error| Fault::at("removing what pools that are dead have left in", parent, error);
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
    pub(in crate::coordinator) fn remove(&self) -> std::io::Result<()> {
        remove(&self.socket())?;
        remove(&self.coming())?;
        gone(std::fs::remove_dir(&self.path))
    }
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> std::io::Result<()> {
    gone(std::fs::remove_file(path))
}

/// What was to be removed is as gone if somebody else has done it, or it never was.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// The process whose pool has a directory of this name, told from a later one of the same number by its start time.
pub(super) fn owner_of_pool(name: &str) -> Option<Creator> {
    let mut parts = name.strip_prefix(POOL)?.splitn(3, '-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().map(|_| Creator { pid, start })
}
