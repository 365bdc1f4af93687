//! Turns what the operating system refuses into errors that name the resource and the remedy.

use std::io;

use nix::sys::resource::{Resource, getrlimit};

use super::control_group::{self, GroupMemory};
use crate::error::{Error, Result};

/// Where the pages of a segment come from, which decides what helps when they run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// A memfd: the machine's memory.
    Memory,
    /// `/dev/shm`.
    SharedMemoryFileSystem,
    /// A file somewhere.
    File,
}

impl Store {
    const fn shortage(self) -> (&'static str, &'static str) {
        match self {
            Self::Memory => {
                ("memory", "ask for less, stop other programs, or raise the memory limit of the container")
            }
            Self::SharedMemoryFileSystem => (
                "space in /dev/shm",
                "remove what is left there, or enlarge it (mount -o remount,size=... /dev/shm; docker --shm-size)",
            ),
            Self::File => ("space in the file system", "free space, or put the file elsewhere"),
        }
    }
}

/// Wraps the `source` of a failed call; `store` is what the call was about.
pub(super) fn refused(action: &'static str, store: Store, source: impl Into<io::Error>) -> Error {
    let source = source.into();
    let Some((resource, remedy)) = source.raw_os_error().and_then(|errno| shortage(errno, store)) else {
        return Error::os(action, source);
    };
    Error::ResourceLimit { resource, action, remedy, source }
}

/// Wraps the `source` of a failed `mmap`, where want of memory means want of address space.
pub(super) fn refused_mapping(action: &'static str, source: impl Into<io::Error>) -> Error {
    let source = source.into();
    if source.raw_os_error() == Some(libc::ENOMEM) {
        return Error::ResourceLimit {
            resource: "address space",
            action,
            remedy: "raise `ulimit -v` (and vm.max_map_count; vm.overcommit_memory=2 refuses large reservations)",
            source,
        };
    }
    refused(action, Store::Memory, source)
}

fn shortage(errno: i32, store: Store) -> Option<(&'static str, &'static str)> {
    Some(match errno {
        libc::ENOSPC | libc::ENOMEM => store.shortage(),
        libc::EDQUOT => ("disk quota", "free space, or have the quota raised"),
        libc::EMFILE => ("file descriptors", "raise the limit of the process with `ulimit -n`"),
        libc::ENFILE => ("file descriptors", "raise the limit of the system, sysctl fs.file-max"),
        libc::EFBIG => ("file size", "raise `ulimit -f`; it also applies to shared memory"),
        _ => return None,
    })
}

/// Refuses a file length beyond `RLIMIT_FSIZE`, at which the kernel would not return an error but kill the process
/// by SIGXFSZ.
pub(super) fn check_file_size(action: &'static str, len: u64) -> Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE).map_err(|errno| Error::os("getrlimit", errno))?;
    if len > limit {
        return Err(refused(action, Store::File, io::Error::from_raw_os_error(libc::EFBIG)));
    }
    Ok(())
}

/// Refuses to commit more memory than the machine and the control group have: past that the kernel would not return
/// an error but kill some process.
pub(super) fn check_memory(action: &'static str, store: Store, len: u64) -> Result<()> {
    if store == Store::File || len <= available_memory() {
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    let (resource, remedy) = Store::Memory.shortage();
    Err(Error::ResourceLimit { resource, action, remedy, source })
}

/// Bytes that can be committed now; `u64::MAX` where nothing tells.
///
/// An estimate: others allocate at the same time.
pub(super) fn available_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = match field_kib(&meminfo, "MemAvailable:") {
        Some(free) => (free + field_kib(&meminfo, "SwapFree:").unwrap_or(0)) * 1024,
        None => u64::MAX,
    };
    let group = control_group::tightest(|path| std::fs::read_to_string(path).ok());
    machine.min(group.map_or(u64::MAX, GroupMemory::room))
}

fn field_kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn a_shortage_is_named_by_what_ran_out() {
        for (errno, store, expected) in [
            (libc::ENOSPC, Store::SharedMemoryFileSystem, "space in /dev/shm"),
            (libc::ENOSPC, Store::File, "space in the file system"),
            (libc::ENOMEM, Store::Memory, "memory"),
            (libc::EMFILE, Store::Memory, "file descriptors"),
            (libc::ENFILE, Store::File, "file descriptors"),
            (libc::EFBIG, Store::Memory, "file size"),
            (libc::EDQUOT, Store::File, "disk quota"),
        ] {
            match refused("test", store, os(errno)) {
                Error::ResourceLimit { resource, remedy, .. } => {
                    assert_eq!(resource, expected);
                    assert!(!remedy.is_empty());
                }
                other => panic!("errno {errno}: {other:?}"),
            }
        }
    }

    #[test]
    fn want_of_memory_in_a_mapping_is_want_of_addresses() {
        let error = refused_mapping("map", os(libc::ENOMEM));
        assert!(matches!(error, Error::ResourceLimit { resource: "address space", .. }));
    }

    #[test]
    fn what_is_no_shortage_stays_a_plain_system_error() {
        assert!(matches!(refused("test", Store::File, os(libc::EACCES)), Error::Os { .. }));
        assert!(matches!(refused_mapping("test", os(libc::EACCES)), Error::Os { .. }));
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused() {
        let error = check_memory("test", Store::Memory, 1 << 60);
        assert!(matches!(error, Err(Error::ResourceLimit { resource: "memory", .. })));
        check_memory("test", Store::Memory, 4096).unwrap();
    }

    #[test]
    fn meminfo_is_read_by_field() {
        let text = "MemTotal:  100 kB\nMemAvailable:    42 kB\n";
        assert_eq!(field_kib(text, "MemAvailable:"), Some(42));
        assert_eq!(field_kib(text, "SwapFree:"), None);
    }
}
