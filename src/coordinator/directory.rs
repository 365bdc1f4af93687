//! Where a coordinator is to be found: `$XDG_RUNTIME_DIR/shmccl`, or `/tmp/shmccl-UID`.
//!
//! Nobody but its user may go there: mode and owner are looked at whenever it is opened. A lock on the directory itself says that
//! a coordinator lives, and ends with it; so a socket without a lock is one of the dead, and is replaced. That is done at one stroke:
//! where no socket is, a coordinator has ended in order, or was killed and nobody is left who waits for the next one there. Then its
//! janitor has removed it (`src/shm/janitor/socket.rs`).

use std::ffi::{CString, OsStr};
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::device::{Appointed, Environment, POOL as APPOINTED};
use super::dial::Address;
use super::fault::Fault;
use super::greeting::check_peer;
use super::id::DeviceId;
use super::service::is_dead;
use crate::error::{Error, Result};
use crate::locks;
use crate::logs::COORDINATOR;
use crate::shm::header::Creator;
use crate::shm::{Mark, SocketJanitor};

/// The name of a coordinator's socket.
const SOCKET: &str = "coordinator";

/// What the names of directories of pools begin with; the number of a process and its start time are behind it.
const POOL: &str = "pool-";

/// The longest path that a socket can have: the system wants room for a zero behind it.
const MAX_SOCKET: usize = 107;

/// How long a directory may be locked in which nobody listens: whoever sweeps it has it for a moment, and a coordinator that begins.
const SWEEPING: Duration = Duration::from_secs(1);

/// The private directory of a user's coordinator.
#[derive(Clone, Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

/// What coordinators have left that are dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The sockets, and the directories of pools, that were removed or would be.
    pub removed: Vec<PathBuf>,
    /// The devices that live and wait for the next coordinator, whose socket is kept for that: without one they would end.
    pub waiting: Vec<DeviceId>,
}

/// Says that a coordinator lives. Dropping it removes its socket.
#[derive(Debug)]
pub(super) struct Occupied {
    _lock: Flock<File>,
    directory: RuntimeDirectory,
    /// Whether the socket is its own.
    listens: bool,
    /// Whether the one before has left its socket, since it was killed.
    pub(super) follows_dead: bool,
    /// Removes the socket should this process be killed, from before it is there on; if the system lets it. Last: it goes when there is
    /// nothing to be removed any more.
    janitor: Option<SocketJanitor>,
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

    /// Finds what coordinators of this user have left that are dead, and removes it unless this is a `dry_run`: the socket of one, and the
    /// directories of [pools](super::Pool). The next one would do so as well. A socket stays while a device lives that was started for
    /// it: what that has in its memory is nobody else's to end.
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
    pub(super) fn sweep(&self, dry_run: bool, may_go: impl FnOnce() -> bool) -> Result<Option<PathBuf>> {
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

    fn file(&self) -> Result<File> {
        File::open(&self.path).map_err(|error| Fault::at("opening the directory", &self.path, error))
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
        let number = crate::launch::fresh_job_id();
        let Creator { pid, start } = Creator::this_process();
        Self::at(parent.join(format!("{POOL}{pid}-{start}-{number:x}")))
    }

    /// Removes the directories of pools within `parent` whose processes are dead, or only finds them.
    fn sweep_pools(parent: &Path, dry_run: bool) -> Result<Vec<PathBuf>> {
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
    pub(super) fn remove(&self) -> std::io::Result<()> {
        remove(&self.socket())?;
        remove(&self.coming())?;
        gone(std::fs::remove_dir(&self.path))
    }

    fn employ_janitor(&self) -> std::io::Result<SocketJanitor> {
        let name = self.path.file_name().and_then(OsStr::to_str);
        let is_private = name.and_then(owner_of_pool) == Some(Creator::this_process());
        let names = [self.socket(), self.coming()].map(|path| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            CString::new(name).expect("it is one of two constants")
        });
        SocketJanitor::start(&self.path, (&names[0], &names[1]), is_private)
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

    /// Takes the directory for a coordinator. The socket of one that is dead stays until [`Occupied::listen`].
    ///
    /// # Errors
    /// [`Fault::Running`], [`Error::Os`].
    pub(super) fn occupy(&self) -> Result<Occupied> {
        let lock = self.lock(SWEEPING)?;
        let follows_dead = self.socket().symlink_metadata().is_ok();
        Ok(Occupied { _lock: lock, directory: self.clone(), listens: false, follows_dead, janitor: None })
    }

    /// Locks it, within `patience` where it is locked and nobody listens.
    fn lock(&self, patience: Duration) -> Result<Flock<File>> {
        locks::hold(self.file()?, patience, || !self.is_answered()).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => Fault::Running { path: self.path.clone() }.error(),
            _ => Fault::at("locking the directory", &self.path, error),
        })
    }

    /// Whether somebody listens, though perhaps without room for one more. Of one that was killed a child may have it open that has only
    /// just begun, and is killed with it.
    fn is_answered(&self) -> bool {
        match Address::of_path(&self.socket()).and_then(|address| address.dial_at_once()) {
            Ok(stream) => check_peer(&stream)
                .map_or(true, |listener| listener == 0 || !is_dead(DeviceId::new(listener))),
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused),
        }
    }
}

impl Occupied {
    pub(super) fn directory(&self) -> &RuntimeDirectory {
        &self.directory
    }

    /// Listens where a coordinator does, instead of one that is dead: there is no moment without a socket if that has left one.
    ///
    /// # Errors
    /// [`Fault::Unusable`], [`Error::ResourceLimit`].
    pub(super) fn listen(&mut self) -> Result<UnixListener> {
        self.janitor = self.directory.employ_janitor().inspect_err(note_refusal).ok();
        Appointed::all(&self.directory).unwrap_or_default().into_iter().for_each(|it| self.watch(it));
        let listening = |error| Fault::at("listening at", &self.directory.socket(), error);
        let listener = self.bind().map_err(listening)?;
        self.listens = true;
        Ok(listener)
    }

    /// Has the socket stay for `device` when this process was killed, if it waits there then.
    pub(super) fn note_registered(&self, device: DeviceId) {
        Appointed::of(device, &self.directory).into_iter().for_each(|it| self.watch(it));
    }

    fn watch(&self, appointed: Appointed) {
        let Some(janitor) = self.janitor.as_ref().filter(|_| appointed.assignment.outlives.is_some()) else {
            return;
        };
        if let Some(process) = appointed.hold(&self.directory) {
            janitor.watch(process.as_fd());
        }
    }

    fn bind(&self) -> std::io::Result<UnixListener> {
        let coming = self.directory.coming();
        // One that was killed at this point has left it.
        remove(&coming)?;
        let listener = UnixListener::bind(&coming)?;
        listener.set_nonblocking(true)?;
        if let Some(janitor) = &self.janitor {
            janitor.mark(Mark::of(&coming)?);
        }
        std::fs::rename(&coming, self.directory.socket())?;
        Ok(listener)
    }
}

/// What a killed coordinator leaves is then for the next one.
fn note_refusal(error: &std::io::Error) {
    tracing::warn!(target: COORDINATOR, %error, "no janitor; a kill of this process would leave its socket");
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

/// Removes a file, if it is there.
fn remove(path: &Path) -> std::io::Result<()> {
    gone(std::fs::remove_file(path))
}

/// What was to be removed is as gone if somebody else has done it, or it never was.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// The process whose pool has a directory of this name, told from a later one of the same number by its start time.
fn owner_of_pool(name: &str) -> Option<Creator> {
    let mut parts = name.strip_prefix(POOL)?.splitn(3, '-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().map(|_| Creator { pid, start })
}

impl Drop for Occupied {
    fn drop(&mut self) {
        // It may be gone; the next coordinator would replace it as well. That of another one, which could not be replaced, is not missed
        // as if it had ended in order.
        let socket = if self.listens { self.directory.socket() } else { self.directory.coming() };
        let _ = std::fs::remove_file(socket);
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
    fn what_is_wrong_with_the_way_to_a_directory_is_told_with_the_path_and_what_helps() {
        let parent = scratch("unusable");
        let refused = |path: &Path| RuntimeDirectory::at(path).unwrap_err().to_string();
        let missing = parent.join("missing/shmccl");
        let told = refused(&missing);
        let expected = format!("making the directory {} failed: No such file", missing.display());
        assert!(told.starts_with(&expected), "{told}");
        assert!(told.ends_with("; set XDG_RUNTIME_DIR to a directory of this user"), "{told}");
        let room = MAX_SOCKET - parent.as_os_str().len() - "//coordinator".len();
        let longest = parent.join("x".repeat(room));
        drop(RuntimeDirectory::at(&longest).unwrap().occupy().unwrap().listen().unwrap());
        for longer in [room + 1, 300, 5000] {
            let path = parent.join("x".repeat(longer));
            let told = refused(&path);
            let len = path.as_os_str().len() + "/coordinator".len();
            let expected = format!("the path of the socket {}/coordinator has {len} bytes", path.display());
            assert!(told.starts_with(&expected), "{told}");
            assert!(told.contains("expected 107 at most; set XDG_RUNTIME_DIR"), "{told}");
            assert!(!path.is_dir(), "nothing was made");
        }
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_directory_has_one_coordinator_at_a_time_and_the_socket_of_a_dead_one_is_replaced() {
        let directory = RuntimeDirectory::at(scratch("occupied").join("shmccl")).unwrap();
        std::fs::write(directory.socket(), "").unwrap();
        let mut first = directory.occupy().unwrap();
        assert!(first.follows_dead && directory.socket().exists(), "or else it had ended in order");
        let listener = first.listen().unwrap();
        assert!(directory.is_answered() && !directory.coming().exists());
        let refused = directory.occupy().unwrap_err().to_string();
        assert!(refused.contains("running already"), "{refused}");
        drop((listener, first));
        assert!(!directory.socket().exists());
        assert!(!directory.occupy().unwrap().follows_dead);
        std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_coordinator_that_cannot_begin_leaves_what_it_has_found() {
        let directory = RuntimeDirectory::at(scratch("in-vain").join("shmccl")).unwrap();
        std::fs::write(directory.socket(), "").unwrap();
        std::fs::create_dir(directory.coming()).unwrap();
        let mut occupied = directory.occupy().unwrap();
        occupied.listen().unwrap_err();
        drop(occupied);
        assert!(directory.socket().exists(), "devices wait for the next one");
        std::fs::remove_dir(directory.coming()).unwrap();
        std::fs::write(directory.coming(), "").unwrap();
        drop(directory.occupy().unwrap().listen().unwrap());
        std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
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
        assert_eq!(directory.sweep(false, || true).unwrap(), None);
        let mut living = directory.occupy().unwrap();
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
        std::fs::remove_dir_all(directory.path.parent().unwrap()).unwrap();
    }
}
