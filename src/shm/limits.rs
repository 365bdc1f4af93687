//! What the operating system leaves this process, and errors that name the resource and the remedy
//! where it refuses some.
//!
//! # Control groups
//! What the control groups of this process leave of memory, for both versions of control groups:
//!
//! | | version 1 | version 2 |
//! |---|---|---|
//! | line in `/proc/self/cgroup` | `4:memory:/path` | `0::/path` |
//! | directory below `/sys/fs/cgroup` | `memory/path` | `path` |
//! | limit | `memory.limit_in_bytes` | `memory.max` |
//! | usage | `memory.usage_in_bytes` | `memory.current` |
//! | in `memory.stat`: | | |
//! | files' pages | `total_inactive_file`, `total_active_file` | `inactive_file`, `active_file` |
//!
//! Usage counts the pages of files that were read or written as well. They fill up whatever a limit
//! leaves, in time, and the kernel drops them or writes them back before it kills any process: they
//! are room. Both lists hold pages that belong to files on disks, only; shared memory and tmpfs are
//! on those of anonymous memory.

use std::io;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use crate::error::{ALLOW_CALL, Error, Result};

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

/// Says that `needs`, a system call, is refused by a sandbox or missing, where that is what the
/// `source` of its failure means.
///
/// # Errors
/// The source, where it means something else.
pub(crate) fn refused_call(
    action: &'static str,
    needs: &'static str,
    source: io::Error,
) -> Result<Error, io::Error> {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(errno) if is_refusal(errno) => Ok(Error::Refused { action, needs, remedy: ALLOW_CALL, source }),
        _ => Err(source),
    }
}

/// Returns whether an error of a system call that anybody may make means that a sandbox refuses the
/// call, or that it is missing.
pub(crate) fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSYS | Errno::EPERM | Errno::EACCES)
}

/// Wraps the `source` of a failed call to make something in `/dev/shm`.
pub(crate) fn refused_in_dev_shm(action: &'static str, source: impl Into<io::Error>) -> Error {
    const NEEDS: &str = "a /dev/shm that this user can write to";
    const REMEDY: &str = "mount one (mount -t tmpfs -o mode=1777 tmpfs /dev/shm), or do without names";
    let source = source.into();
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::EROFS | libc::EACCES | libc::EOPNOTSUPP | libc::EISDIR) => {
            Error::Refused { action, needs: NEEDS, remedy: REMEDY, source }
        }
        _ => refused(action, Store::SharedMemoryFileSystem, source),
    }
}

/// Wraps the `source` of something that the file system of a segment cannot do.
pub(super) fn refused_by_file_system(action: &'static str, needs: &'static str, source: io::Error) -> Error {
    let remedy = "put the file on another file system, such as ext4, xfs or tmpfs";
    match source.raw_os_error() {
        Some(libc::ENODEV | libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOLCK) => {
            Error::Refused { action, needs, remedy, source }
        }
        _ => refused(action, Store::File, source),
    }
}

/// Wraps the `source` of a failed `mmap`, where want of memory means want of address space.
pub(super) fn refused_mapping(action: &'static str, source: impl Into<io::Error>) -> Error {
    let source = source.into();
    if source.raw_os_error() == Some(libc::ENOMEM) {
        return Error::ResourceLimit {
            resource: "address space",
            action,
            remedy: "raise `ulimit -v`, or the sysctl vm.max_map_count",
            source,
        };
    }
    refused_by_file_system(action, "shared mappings", source)
}

fn shortage(errno: i32, store: Store) -> Option<(&'static str, &'static str)> {
    Some(match errno {
        libc::ENOSPC | libc::ENOMEM => store.shortage(),
        libc::EDQUOT => ("disk quota", "free space, or have the quota raised"),
        libc::EAGAIN => (
            "threads",
            "raise `ulimit -u` or the pids limit of the container; `ulimit -d` or `ulimit -v`, where they are set",
        ),
        libc::EFBIG => ("file size", "raise `ulimit -f`; it also applies to shared memory"),
        _ => return None,
    })
}

/// Refuses a file length beyond `RLIMIT_FSIZE`, at which the kernel would not return an error but
/// kill the process by SIGXFSZ. Where a sandbox does not tell the limit, none is assumed.
pub(super) fn check_file_size(action: &'static str, len: u64) -> Result<()> {
    if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| len > limit) {
        return Err(refused(action, Store::File, io::Error::from_raw_os_error(libc::EFBIG)));
    }
    Ok(())
}

/// Refuses to commit more memory than the machine and the control group have: past that the kernel
/// would not return an error but kill some process.
pub(super) fn check_memory(action: &'static str, store: Store, len: u64) -> Result<()> {
    if store == Store::File || len <= available_memory() {
        return Ok(());
    }
    Err(refused(action, Store::Memory, io::Error::from_raw_os_error(libc::ENOMEM)))
}

/// Returns bytes that can be committed now; `u64::MAX` where nothing tells.
///
/// An estimate: others allocate at the same time.
pub(super) fn available_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = match field(&meminfo, "MemAvailable:") {
        Some(free) => (free + field(&meminfo, "SwapFree:").unwrap_or(0)) * 1024,
        None => u64::MAX,
    };
    let group = tightest_group(|path| std::fs::read_to_string(path).ok());
    machine.min(group.map_or(u64::MAX, GroupMemory::room))
}

/// What one control group allows of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// The limit, in bytes.
    pub limit: u64,
    /// Bytes in use that the kernel cannot take back by dropping pages of files.
    pub used: u64,
}

impl GroupMemory {
    /// Returns bytes that can still be taken.
    #[must_use]
    pub const fn room(self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Finds the control group with the least room, among those that this process is in and those above
/// them; `None` without any limit.
///
/// `read` returns the text of a file in `/proc` or `/sys`, if there is one. What is missing or
/// garbled limits nothing.
pub fn tightest_group(read: impl Fn(&str) -> Option<String>) -> Option<GroupMemory> {
    let groups = read("/proc/self/cgroup")?;
    let memories = groups.lines().filter_map(place_of).flat_map(|(version, path)| {
        let read = &read;
        above(path).filter_map(move |group| {
            let directory = format!("/sys/fs/cgroup{}{group}", version.mount);
            version.memory_of(|file| read(&format!("{directory}/{file}")))
        })
    });
    memories.min_by_key(|memory| memory.room())
}

/// What differs between the versions.
struct Version {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    file_pages: [&'static str; 2],
}

const ONE: Version = Version {
    mount: "/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    file_pages: ["total_inactive_file", "total_active_file"],
};

const TWO: Version = Version {
    mount: "",
    limit: "memory.max",
    usage: "memory.current",
    file_pages: ["inactive_file", "active_file"],
};

/// Version 1 says "no limit" by the largest multiple of a page that is an `i64`. No machine has so
/// much.
const NO_LIMIT: u64 = 1 << 62;

impl Version {
    /// Returns the memory of the group that `read` reads the files of, if it is limited. Unknown
    /// usage counts as none.
    fn memory_of(&self, read: impl Fn(&str) -> Option<String>) -> Option<GroupMemory> {
        // "max" is not a number: no limit here.
        let number = |file| read(file)?.trim().parse::<u64>().ok();
        let limit = number(self.limit).filter(|limit| *limit < NO_LIMIT)?;
        let usage = number(self.usage).unwrap_or(0);
        let stat = read("memory.stat").unwrap_or_default();
        let of_files =
            self.file_pages.iter().filter_map(|key| field(&stat, key)).fold(0, u64::saturating_add);
        Some(GroupMemory { limit, used: usage.saturating_sub(of_files) })
    }
}

/// Returns the version and the path of a line of `/proc/self/cgroup` that is about memory.
fn place_of(line: &str) -> Option<(&'static Version, &str)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    match controllers {
        "" => Some((&TWO, path)),
        _ => controllers.split(',').any(|controller| controller == "memory").then_some((&ONE, path)),
    }
}

/// Returns a path and all above it, from the innermost to the root, which is empty: each to be
/// appended to a mount point.
fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path.trim_end_matches('/')), |path| {
        path.rsplit_once('/').map(|(above, _)| above)
    })
}

/// Returns the number behind `key` in lines that begin with a key and a number.
fn field(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| (words.next()? == key).then(|| words.next()?.parse().ok())?)
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
    fn a_system_call_that_is_refused_is_named_with_its_remedy_and_nothing_else_is() {
        for errno in [libc::ENOSYS, libc::EPERM] {
            let error = refused_call("test", "fancy_call", os(errno)).unwrap();
            let told = error.to_string();
            assert!(told.starts_with("test needs fancy_call, which is refused here: allow it"), "{told}");
        }
        assert_eq!(
            refused_call("test", "fancy_call", os(libc::EMFILE)).unwrap_err().raw_os_error(),
            Some(libc::EMFILE)
        );
    }

    #[test]
    fn what_a_file_system_cannot_do_is_told_with_another_one_as_the_remedy() {
        for error in [
            refused_mapping("test", os(libc::ENODEV)),
            refused_by_file_system("test", "locks on files", os(libc::ENOLCK)),
        ] {
            let told = error.to_string();
            assert!(told.contains("refused here: put the file on another file system"), "{told}");
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
        assert_eq!(field(text, "MemAvailable:"), Some(42));
        assert_eq!(field(text, "SwapFree:"), None);
    }

    /// Returns the memory of a process in groups laid out as `files`.
    fn laid_out(files: &[(&str, &str)]) -> Option<GroupMemory> {
        tightest_group(|path| {
            files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn pages_of_files_are_room_in_both_versions() {
        let stat = "anon 300\nfile 900\nshmem 200\ninactive_anon 500\ninactive_file 400\nactive_file 250\n";
        let two = [
            ("/proc/self/cgroup", "0::/box\n"),
            ("/sys/fs/cgroup/box/memory.max", "1000\n"),
            ("/sys/fs/cgroup/box/memory.current", "1000\n"),
            ("/sys/fs/cgroup/box/memory.stat", stat),
        ];
        assert_eq!(laid_out(&two), Some(GroupMemory { limit: 1000, used: 350 }));
        let stat =
            "cache 900\ninactive_file 1\nactive_file 2\ntotal_inactive_file 400\ntotal_active_file 250\n";
        let one = [
            ("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:hugetlb,memory:/box\n0::/\n"),
            ("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/box/memory.stat", stat),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(laid_out(&one), Some(GroupMemory { limit: 1000, used: 350 }));
        assert_eq!(laid_out(&one).unwrap().room(), 650);
    }

    #[test]
    fn the_group_with_the_least_room_counts_and_not_the_one_with_the_least_limit() {
        let files = [
            ("/proc/self/cgroup", "0::/outer/inner\n"),
            ("/sys/fs/cgroup/memory.max", "max\n"),
            ("/sys/fs/cgroup/outer/memory.max", "2000\n"),
            ("/sys/fs/cgroup/outer/memory.current", "1990\n"),
            ("/sys/fs/cgroup/outer/inner/memory.max", "1000\n"),
            ("/sys/fs/cgroup/outer/inner/memory.current", "10\n"),
        ];
        assert_eq!(laid_out(&files), Some(GroupMemory { limit: 2000, used: 1990 }));
    }

    #[test]
    fn a_container_that_sees_its_own_group_as_the_root_is_limited_by_it() {
        let files = [
            ("/proc/self/cgroup", "4:memory:/docker/0123\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n"),
        ];
        assert_eq!(laid_out(&files), Some(GroupMemory { limit: 1000, used: 100 }));
    }

    #[test]
    fn no_limit_and_garbage_limit_nothing() {
        assert_eq!(laid_out(&[]), None);
        for (limit, text) in [
            ("/sys/fs/cgroup/memory.max", "max\n"),
            ("/sys/fs/cgroup/memory.max", "many\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ] {
            let groups = ("/proc/self/cgroup", "4:memory:/\n0::/\nnonsense\n");
            assert_eq!(laid_out(&[groups, (limit, text)]), None, "{limit} {text}");
        }
    }

    #[test]
    fn more_pages_of_files_than_there_are_in_use_are_all_of_them() {
        let files = [
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "1000\n"),
            ("/sys/fs/cgroup/memory.current", "100\n"),
            ("/sys/fs/cgroup/memory.stat", "inactive_file 18446744073709551615\nactive_file 5\n"),
        ];
        assert_eq!(laid_out(&files), Some(GroupMemory { limit: 1000, used: 0 }));
    }
}
