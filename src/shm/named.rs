//! Segments that others find by a name: in `/dev/shm`, through the `shared_memory` crate, and in
//! files that survive.
//!
//! The crate makes, maps and unlinks; it tells no descriptor. So the name is opened a second time
//! to commit the memory, to check it as it was found, and to map it into a window.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::mman::shm_open;
use nix::sys::stat::{Mode, fstat};
use shared_memory::{ShmemConf, ShmemError};

use super::limits::{self, Store};
use super::mapping::Mapping;
use super::{segment, to_usize};
use crate::error::{Error, Result, check_layout};
use crate::files;
use crate::sync::header::Expected;

const MAX_NAME: usize = 200;
const STORE: Store = Store::SharedMemoryFileSystem;

/// A mapped named segment. The creator's mapping removes the name when its last handle is gone.
#[derive(Debug)]
pub(super) struct NamedSegment {
    mapping: Mapping,
    fd: Arc<OwnedFd>,
}

impl NamedSegment {
    /// Makes a segment of `len` bytes, all of it committed: either it is there in full or there is
    /// no trace of it.
    pub(super) fn create(name: &str, len: u64) -> Result<Self> {
        let action = "creating a named segment";
        let path = checked(name)?;
        limits::check_file_size(action, len)?;
        limits::check_memory(action, STORE, len)?;
        let create = || ShmemConf::new().os_id(&path).size(to_usize(len)).create();
        // From here on an early return drops the mapping, which removes the name.
        let mapping = Mapping::of_shmem(create).map_err(|error| match error {
            ShmemError::MappingIdExists => Error::NameInUse { name: name.to_owned(), holder: None },
            error => wrap(action, &error),
        })?;
        let fd = open(action, &path)?;
        segment::allocate(fd.as_fd(), STORE, 0, len)?;
        Ok(Self { mapping, fd: Arc::new(fd) })
    }

    /// Attaches the segment of that name, if it is this user's and has the expected length.
    pub(super) fn attach(name: &str, expected: &Expected) -> Result<Self> {
        let action = "attaching a named segment";
        let path = checked(name)?;
        let fd = open(action, &path)?;
        let stat = fstat(&fd).map_err(|errno| Error::os(action, errno))?;
        let me = nix::unistd::geteuid().as_raw();
        check_layout("owner of a named segment", me.into(), stat.st_uid.into())?;
        let len = segment::check_descriptor(fd.as_fd(), expected)?;
        let open = || ShmemConf::new().os_id(&path).open();
        let mapping = Mapping::of_shmem(open).map_err(|error| wrap(action, &error))?;
        // Not so where it was removed and made anew between the two looks.
        check_layout("segment length", len, mapping.len())?;
        Ok(Self { mapping, fd: Arc::new(fd) })
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.fd
    }
}

/// Checks that a segment can be called `name`.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(crate) fn check_name(name: &str) -> Result<()> {
    checked(name).map(drop)
}

fn checked(name: &str) -> Result<String> {
    let legal = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.bytes().all(legal) {
        return Err(Error::invalid(
            "length of a segment name",
            name.len() as u64,
            "1 to 200 letters, digits, '.', '_' and '-', not starting with '.'",
        ));
    }
    Ok(format!("/{name}"))
}

fn open(action: &'static str, path: &str) -> Result<OwnedFd> {
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
    shm_open(path, flags, Mode::empty()).map_err(|errno| limits::refused(action, STORE, errno))
}

fn wrap(action: &'static str, error: &ShmemError) -> Error {
    let errno = match *error {
        ShmemError::MapCreateFailed(errno)
        | ShmemError::MapOpenFailed(errno)
        | ShmemError::UnknownOsError(errno) => errno.cast_signed(),
        _ => libc::EINVAL,
    };
    let source = io::Error::from_raw_os_error(errno);
    if errno == libc::ENOMEM {
        limits::refused_mapping(action, source)
    } else {
        limits::refused_in_dev_shm(action, source)
    }
}

/// How long a process that has the file may take to be gone, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the file, or makes it; says whether there was one.
pub(super) fn open_file(path: &Path) -> Result<(File, bool)> {
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

/// Locks the file for as long as any process has this opening of it, or a duplicate. Waits for a
/// holder that is about to be gone.
pub(super) fn lock_file(file: &File) -> Result<()> {
    let refused = |source: io::Error| match source.kind() {
        // Another process has it.
        io::ErrorKind::WouldBlock => Error::os("locking the file of a segment", source),
        _ => limits::refused_by_file_system("locking the file of a segment", "locks on files", source),
    };
    files::lock(file, PATIENCE, || true).map_err(refused)
}
