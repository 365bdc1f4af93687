//! The directory of a coordinator that is dead: what it has left is taken over, or removed.
//!
//! A coordinator claims its directory by a lock, which ends with it. Its socket takes the place of
//! that of a dead one at one stroke, so that waiting devices never find the place empty. A janitor
//! removes the socket of a coordinator that was killed when no device waits at it any more
//! (`src/shm/janitor/socket.rs`). Whatever is removed is removed under the lock, so that no
//! coordinator begins there meanwhile.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::coordinator::assignment::{StartedDevice, is_dead};
use crate::coordinator::deadline_stream::Address;
use crate::coordinator::directory::{RuntimeDirectory, owner_of_pool};
use crate::coordinator::error::{CoordinatorError, Result};
use crate::coordinator::handshake::check_peer;
use crate::coordinator::id::DeviceId;
use crate::error::Error;
use crate::files;
use crate::logs::COORDINATOR;
use crate::shm::unforked::Unforked;
use crate::shm::{SocketFileId, SocketJanitor};
use crate::sync::header::Creator;

/// How long a directory may be locked in which no coordinator listens: a sweep, or a coordinator
/// that begins, has it for a moment.
const SWEEPING: Duration = Duration::from_secs(1);

/// The directory of a living coordinator. Dropping it removes the socket.
#[derive(Debug)]
pub(in crate::coordinator) struct ClaimedDirectory {
    _lock: Flock<File>,
    directory: RuntimeDirectory,
    /// Whether the socket is its own.
    listens: bool,
    /// Whether the coordinator before has left its socket, since it was killed.
    pub(in crate::coordinator) follows_dead: bool,
    /// Removes the socket if this process is killed, if the system allows a janitor. It is the last
    /// field, so that it ends when there is nothing left to remove.
    janitor: Option<SocketJanitor>,
}

impl RuntimeDirectory {
    /// Claims the directory for a coordinator. The socket of a dead one stays until
    /// [`ClaimedDirectory::listen`].
    ///
    /// # Errors
    /// [`CoordinatorError::AlreadyRunning`], [`Error::Os`].
    pub(in crate::coordinator) fn claim(&self) -> Result<ClaimedDirectory> {
        let lock = self.lock(SWEEPING)?;
        let follows_dead = self.socket().symlink_metadata().is_ok();
        Ok(ClaimedDirectory {
            _lock: lock,
            directory: self.clone(),
            listens: false,
            follows_dead,
            janitor: None,
        })
    }

    /// Locks the directory, within `patience` where it is locked and no coordinator listens.
    fn lock(&self, patience: Duration) -> Result<Flock<File>> {
        files::hold(self.file()?, patience, || !self.is_answered()).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => CoordinatorError::AlreadyRunning { path: self.path().to_owned() },
            _ => CoordinatorError::at("locking the directory", self.path(), error),
        })
    }

    /// Returns whether a living process listens, be its backlog full.
    ///
    /// A child of a killed coordinator may have the socket open for a moment, until it is killed as
    /// well.
    fn is_answered(&self) -> bool {
        match Address::of_path(&self.socket()).and_then(|address| address.connect_at_once()) {
            Ok(stream) => check_peer(&stream)
                .map_or(true, |listener| listener == 0 || !is_dead(DeviceId::new(listener))),
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused),
        }
    }

    fn start_janitor(&self) -> io::Result<SocketJanitor> {
        let name = self.path().file_name().and_then(OsStr::to_str);
        let is_private = name.and_then(owner_of_pool) == Some(Creator::this_process());
        let [socket, coming] = [self.socket(), self.coming_socket()].map(|path| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            CString::new(name).expect("it is one of two constants")
        });
        SocketJanitor::start(self.path(), &socket, &coming, is_private)
    }
}

impl ClaimedDirectory {
    pub(in crate::coordinator) fn directory(&self) -> &RuntimeDirectory {
        &self.directory
    }

    /// Listens in the place of a dead coordinator, if that has left its socket without a moment in
    /// which there is none.
    ///
    /// # Errors
    /// [`CoordinatorError::Unusable`], [`Error::ResourceLimit`].
    pub(in crate::coordinator) fn listen(&mut self) -> Result<Unforked<UnixListener>> {
        self.janitor = self.directory.start_janitor().inspect_err(note_refusal).ok();
        StartedDevice::all(&self.directory).unwrap_or_default().into_iter().for_each(|it| self.watch(it));
        let listener = self
            .bind()
            .map_err(|error| CoordinatorError::at("listening at", &self.directory.socket(), error))?;
        self.listens = true;
        Ok(listener)
    }

    /// Has the socket outlast this process for `device`, which has registered, if the device does.
    pub(in crate::coordinator) fn note_registered(&self, device: DeviceId) {
        StartedDevice::of(device, &self.directory).into_iter().for_each(|it| self.watch(it));
    }

    fn watch(&self, device: StartedDevice) {
        let Some(janitor) = self.janitor.as_ref().filter(|_| device.assignment.outlives.is_some()) else {
            return;
        };
        if let Some(process) = device.hold(&self.directory) {
            janitor.watch(process.as_fd());
        }
    }

    fn bind(&self) -> io::Result<Unforked<UnixListener>> {
        let coming = self.directory.coming_socket();
        // A coordinator that was killed at this point has left it.
        remove_file(&coming)?;
        let listener = Unforked::open(|| UnixListener::bind(&coming))?;
        listener.set_nonblocking(true)?;
        if let Some(janitor) = &self.janitor {
            janitor.mark(SocketFileId::of(&coming)?);
        }
        std::fs::rename(&coming, self.directory.socket())?;
        Ok(listener)
    }
}

impl Drop for ClaimedDirectory {
    fn drop(&mut self) {
        // The socket of a dead coordinator that could not be replaced stays: without it devices
        // would take that coordinator for one that has ended in order.
        let socket = if self.listens { self.directory.socket() } else { self.directory.coming_socket() };
        let _ = std::fs::remove_file(socket);
    }
}

fn note_refusal(error: &io::Error) {
    tracing::warn!(target: COORDINATOR, %error, "no janitor; a kill of this process would leave its socket");
}

/// What dead coordinators have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The sockets, and the directories of pools, that were removed or would be.
    pub removed: Vec<PathBuf>,
    /// The living devices that wait for the next coordinator. Its socket is kept for them: without
    /// one they would end.
    pub waiting: Vec<DeviceId>,
}

impl RuntimeDirectory {
    /// Finds what dead coordinators of this user have left, and removes it unless this is a
    /// `dry_run`.
    ///
    /// That is the socket of a coordinator, and the directories of
    /// [pools](crate::coordinator::Pool). The next coordinator would remove them as well. A socket
    /// stays while a device lives that was started for it, so that its memory is not lost.
    ///
    /// # Errors
    /// [`CoordinatorError::NotPrivate`], [`Error::Os`].
    pub fn clean(dry_run: bool) -> Result<Swept> {
        let path = Self::usual();
        if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(Swept::default());
        }
        let directory = Self::at(path)?;
        let pools = Self::sweep_pools(directory.path(), dry_run)?;
        let mut waiting = Ok(Vec::new());
        let is_unused = || {
            waiting = StartedDevice::all(&directory);
            matches!(&waiting, Ok(all) if all.is_empty())
        };
        let socket = directory.sweep(dry_run, is_unused)?;
        let waiting = waiting.map_err(|error| Error::os("looking for devices that live", error))?;
        let removed = socket.into_iter().chain(pools).collect();
        Ok(Swept { removed, waiting: waiting.iter().map(|it| it.device).collect() })
    }

    /// Removes the socket of a dead coordinator, if there is one and `may_go`, which is called
    /// under the lock.
    pub(super) fn sweep(&self, dry_run: bool, may_go: impl FnOnce() -> bool) -> Result<Option<PathBuf>> {
        // Without the lock at first: where there is nothing to find, no coordinator is kept from
        // it.
        if !self.socket().exists() && !self.coming_socket().exists() {
            return Ok(None);
        }
        let Ok(_lock) = Flock::lock(self.file()?, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
        if !dry_run {
            // A coordinator that was killed as it began may have left it.
            let _ = remove_file(&self.coming_socket());
        }
        let socket = Some(self.socket()).filter(|socket| socket.exists() && may_go());
        let removed = socket.as_deref().filter(|_| !dry_run).map_or(Ok(()), remove_file);
        removed.map_err(|error| CoordinatorError::at("removing", &self.socket(), error))?;
        Ok(socket)
    }

    /// Finds the directories of pools within `parent` whose processes are dead, and removes them
    /// unless this is a `dry_run`.
    pub(in crate::coordinator) fn sweep_pools(parent: &Path, dry_run: bool) -> Result<Vec<PathBuf>> {
        let failed =
            |error| CoordinatorError::at("removing what pools that are dead have left in", parent, error);
        let mut swept = Vec::new();
        for entry in std::fs::read_dir(parent).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_str().and_then(owner_of_pool).is_none_or(|owner| owner.is_alive()) {
                continue;
            }
            let directory = Self::unchecked(entry.path());
            // Another process may sweep as well.
            let Ok(Ok(_lock)) = directory.file().map(|it| Flock::lock(it, FlockArg::LockExclusiveNonblock))
            else {
                continue;
            };
            if !dry_run {
                directory.remove().map_err(failed)?;
            }
            swept.push(entry.path());
        }
        Ok(swept)
    }

    /// Removes the directory of a pool that has ended.
    pub(in crate::coordinator) fn remove(&self) -> io::Result<()> {
        remove_file(&self.socket())?;
        remove_file(&self.coming_socket())?;
        or_gone(std::fs::remove_dir(self.path()))
    }
}

/// Removes a file, if it is there.
fn remove_file(path: &Path) -> io::Result<()> {
    or_gone(std::fs::remove_file(path))
}

/// Takes a file that was not there for one that was removed.
fn or_gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("shmccl-adoption-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_directory_has_one_coordinator_at_a_time_and_the_socket_of_a_dead_one_is_replaced() {
        let directory = RuntimeDirectory::at(scratch("claimed").join("shmccl")).unwrap();
        std::fs::write(directory.socket(), "").unwrap();
        let mut first = directory.claim().unwrap();
        assert!(first.follows_dead && directory.socket().exists(), "or else it had ended in order");
        let listener = first.listen().unwrap();
        assert!(directory.is_answered() && !directory.coming_socket().exists());
        let refused = directory.claim().unwrap_err().to_string();
        assert!(refused.contains("running already"), "{refused}");
        drop((listener, first));
        assert!(!directory.socket().exists());
        assert!(!directory.claim().unwrap().follows_dead);
        std::fs::remove_dir_all(directory.path().parent().unwrap()).unwrap();
    }

    #[test]
    fn a_coordinator_that_cannot_begin_leaves_what_it_has_found() {
        let directory = RuntimeDirectory::at(scratch("in-vain").join("shmccl")).unwrap();
        std::fs::write(directory.socket(), "").unwrap();
        std::fs::create_dir(directory.coming_socket()).unwrap();
        let mut claimed = directory.claim().unwrap();
        claimed.listen().unwrap_err();
        drop(claimed);
        assert!(directory.socket().exists(), "devices wait for the next one");
        std::fs::remove_dir(directory.coming_socket()).unwrap();
        std::fs::write(directory.coming_socket(), "").unwrap();
        drop(directory.claim().unwrap().listen().unwrap());
        std::fs::remove_dir_all(directory.path().parent().unwrap()).unwrap();
    }

    #[test]
    fn a_coordinator_begins_though_somebody_sweeps_at_that_moment() {
        let directory = RuntimeDirectory::at(scratch("sweeping").join("shmccl")).unwrap();
        let sweeping = directory.lock(Duration::ZERO).unwrap();
        let refused = directory.lock(Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains("running already"), "{refused}");
        std::thread::scope(|scope| {
            let beginning = scope.spawn(|| directory.lock(Duration::from_secs(60)).map(drop));
            nix::poll::poll(&mut [], 20_u8).unwrap();
            assert!(!beginning.is_finished(), "it waits until that is done");
            drop(sweeping);
            beginning.join().unwrap().unwrap();
        });
        std::fs::remove_dir_all(directory.path().parent().unwrap()).unwrap();
    }

    #[test]
    fn what_a_pool_has_left_is_found_though_its_number_is_anothers_now_and_that_of_a_living_one_stays() {
        let parent = scratch("pools");
        let Creator { pid, start, .. } = Creator::this_process();
        let names =
            [format!("pool-{pid}-{start}-a"), format!("pool-{pid}-{}-b", start + 1), "pool-1".to_owned()];
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
        assert_eq!(directory.sweep(false, || true).unwrap(), None);
        let mut living = directory.claim().unwrap();
        let listener = living.listen().unwrap();
        assert_eq!(directory.sweep(false, || true).unwrap(), None);
        assert!(directory.socket().exists());
        drop((listener, living));
        std::fs::write(directory.socket(), "").unwrap();
        assert_eq!(directory.sweep(false, || false).unwrap(), None);
        assert!(directory.socket().exists(), "somebody waits there");
        assert_eq!(directory.sweep(true, || true).unwrap(), Some(directory.socket()));
        assert_eq!(directory.sweep(false, || true).unwrap(), Some(directory.socket()));
        assert!(!directory.socket().exists());
        assert_eq!(directory.sweep(false, || true).unwrap(), None);
        std::fs::remove_dir_all(directory.path().parent().unwrap()).unwrap();
    }
}
