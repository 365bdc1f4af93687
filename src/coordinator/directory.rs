//! Where a coordinator is found: `$XDG_RUNTIME_DIR/shmccl`, or `/tmp/shmccl-UID` where this user
//! cannot make anything in the former.
//!
//! Only its user may enter the directory: mode and owner are checked whenever it is opened. A lock
//! on the directory says that a coordinator lives, and ends with it; so a socket without a lock is
//! that of a dead coordinator (`adoption/directory.rs`).

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, geteuid};

use super::error::{CoordinatorError, Result};
use super::id::DeviceId;
use crate::sync::header::Creator;
use crate::variables;

/// The variable that tells a started device the directory of its coordinator.
pub(super) const DIRECTORY: &str = "SHMCCL_POOL";

/// The name of the directory.
const NAME: &str = "shmccl";

/// The name of a coordinator's socket.
const SOCKET: &str = "coordinator";

/// The first part of the name of a pool's directory. The number of a process and its start time
/// follow.
const POOL: &str = "pool-";

/// The longest path that a socket can have: the system wants room for a zero behind it.
const MAX_SOCKET: usize = 107;

/// The private directory of a user's coordinator.
#[derive(Clone, Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

impl RuntimeDirectory {
    /// Opens the user's directory, and makes it if it is not there.
    ///
    /// # Errors
    /// [`CoordinatorError::NotPrivate`], [`CoordinatorError::LongPath`];
    /// [`CoordinatorError::Unusable`] when the system refuses to make it.
    pub fn open() -> Result<Self> {
        Self::at(Self::usual())
    }

    /// Returns where the user's directory is, whether it is there or not.
    pub(super) fn usual() -> PathBuf {
        Self::beneath(variables::get("XDG_RUNTIME_DIR").as_deref())
    }

    /// Returns where it is for a process whose runtime directory is `parent`. An empty one counts
    /// as none, and so does one that is of no use: a container, or another user (`su`), inherits
    /// the variable without the directory.
    fn beneath(parent: Option<&OsStr>) -> PathBuf {
        let beneath = parent.filter(|path| !path.is_empty()).map(|path| Path::new(path).join(NAME));
        beneath
            .filter(|path| is_of_use(path))
            .unwrap_or_else(|| PathBuf::from(format!("/tmp/{NAME}-{}", geteuid())))
    }

    /// Returns where another process of this user would look for its coordinator, if it were a
    /// device: where it was told to, or at the usual place.
    ///
    /// `None` when there is no such process, or it is another user's.
    pub fn of(process: DeviceId) -> Option<PathBuf> {
        let environment = ProcessEnvironment::of(process)?;
        let named = environment.value(DIRECTORY).map(PathBuf::from);
        let path = named.unwrap_or_else(|| Self::beneath(environment.value("XDG_RUNTIME_DIR")));
        Some(environment.resolve(&path))
    }

    /// Opens the directory at `path`, and makes it if it is not there: for a pool of one's own.
    ///
    /// # Errors
    /// Fails as [`RuntimeDirectory::open`] does.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let socket = path.join(SOCKET);
        if socket.as_os_str().len() > MAX_SOCKET {
            return Err(CoordinatorError::LongPath { path: socket, most: MAX_SOCKET });
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(CoordinatorError::at("making the directory", &path, error));
            }
            _ => {}
        }
        // Links are not followed: the owner of a link says nothing about where it leads.
        let metadata = std::fs::symlink_metadata(&path)
            .map_err(|error| CoordinatorError::at("looking at the directory", &path, error))?;
        let is = match () {
            () if !metadata.is_dir() => Some("is no directory"),
            () if metadata.uid() != geteuid().as_raw() => Some("belongs to another user"),
            () if metadata.mode() & 0o077 != 0 => Some("is open to other users"),
            () => None,
        };
        match is {
            Some(is) => Err(CoordinatorError::NotPrivate { path, is }),
            None => Ok(Self { path }),
        }
    }

    /// Names the directory at `path`, whatever is there.
    pub(super) fn unchecked(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes a directory within the user's for a pool of this process, which is to remove it.
    ///
    /// # Errors
    /// Fails as [`RuntimeDirectory::open`] does.
    pub(super) fn private() -> Result<Self> {
        let parent = Self::open()?.path;
        Self::sweep_pools(&parent, false)?;
        // Only this process makes such a name, and no process sweeps it while this one lives.
        let number = crate::epoch_id::fresh_job_id();
        let Creator { pid, start, .. } = Creator::this_process();
        Self::at(parent.join(format!("{POOL}{pid}-{start}-{number:x}")))
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the coordinator's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Returns the path of the socket of a coordinator that begins, until it takes the place of the
    /// one before. It is no longer than that one.
    pub(super) fn coming_socket(&self) -> PathBuf {
        self.path.join("coming")
    }

    pub(super) fn file(&self) -> Result<File> {
        File::open(&self.path)
            .map_err(|error| CoordinatorError::at("opening the directory", &self.path, error))
    }
}

/// The environment that a living process of this user began with.
pub(super) struct ProcessEnvironment {
    process: DeviceId,
    entries: Vec<u8>,
}

impl ProcessEnvironment {
    /// Reads the environment of `process`. A process that has ended has none any more, even before
    /// its parent has waited for it.
    pub(super) fn of(process: DeviceId) -> Option<Self> {
        let entries = std::fs::read(format!("/proc/{process}/environ")).ok()?;
        Some(Self { process, entries })
    }

    pub(super) fn value(&self, name: &str) -> Option<&OsStr> {
        let mut entries = self.entries.split(|byte| *byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.map(OsStr::from_bytes)
    }

    /// Returns what the process takes `path` for: a relative one begins at its working directory.
    pub(super) fn resolve(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/cwd", self.process)).join(path)
    }
}

/// Returns whether this user has, or can make, a directory at `path` that is short enough for a
/// socket. What a relative path means is another process's to say.
fn is_of_use(path: &Path) -> bool {
    let is_short = path.join(SOCKET).as_os_str().len() <= MAX_SOCKET;
    let may_make = |parent: &Path| access(&parent.join("."), AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    path.is_relative() || is_short && (path.is_dir() || path.parent().is_some_and(may_make))
}

/// Returns the process whose pool has a directory of this name, with its start time.
pub(super) fn owner_of_pool(name: &str) -> Option<Creator> {
    let mut parts = name.strip_prefix(POOL)?.splitn(3, '-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().map(|_| Creator { pid, start, ..Creator::this_process() })
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
    fn a_runtime_directory_that_is_of_no_use_to_this_user_counts_as_none() {
        let parent = scratch("of-no-use");
        let file = parent.join("file");
        std::fs::write(&file, "").unwrap();
        let beneath = |path: &Path| RuntimeDirectory::beneath(Some(path.as_os_str()));
        assert_eq!(beneath(&parent), parent.join("shmccl"));
        assert_eq!(beneath(Path::new("here")), Path::new("here/shmccl"));
        let long = parent.join("x".repeat(100));
        std::fs::create_dir(&long).unwrap();
        let fallback = PathBuf::from(format!("/tmp/shmccl-{}", geteuid()));
        for useless in [&parent.join("missing"), &file, &long, Path::new("")] {
            assert_eq!(beneath(useless), fallback, "{}", useless.display());
        }
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
        drop(RuntimeDirectory::at(&longest).unwrap().claim().unwrap().listen().unwrap());
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
}
