//! Claims the names of a job's segments in `/dev/shm` before it starts, and removes them when it is
//! over.
//!
//! A rank removes its own name as it leaves. A killed rank cannot, so the launcher does it. A
//! killed launcher cannot, so its janitor does (`src/shm/janitor.rs`). Launchers with the same
//! prefix must not take each other's names for leftovers: the owner of a prefix keeps the file
//! `PREFIX.lock` locked for as long as the job lives ([`PrefixLock`]).
//!
//! Invariants:
//! - While a claim lives there is no other of that prefix. It ends when launcher and janitor are
//!   gone.
//! - A name is removed only when its creator is dead, or when it is of the claim's own job. A
//!   process that takes such a name without the lock may lose it while its segment has no header
//!   yet.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{linkat, unlink};

use crate::bootstrap::SegmentBacking;
use crate::channel::segment_name;
use crate::error::{Error, Result};
use crate::files;
use crate::rank::Rank;
use crate::shm::limits::refused_in_dev_shm;
use crate::shm::system::within_file_size;
use crate::shm::{Expected, Janitor, Segment, Sweep, check_name};
use crate::sync::header::Creator;

/// The action that errors name.
pub(super) const CLAIMING: &str = "claiming the names of the segments";

/// The claimed names of one job. It is `None` where its segments have no names.
#[derive(Debug)]
pub(super) struct ClaimedNames(Option<PrefixClaim>);

impl ClaimedNames {
    /// Claims the names that the segments of `job` will get. Removes names that killed processes
    /// have left, and calls `on_stale` with each one and its creator.
    ///
    /// # Errors
    /// [`Error::NameInUse`] when a name or the prefix is in use, [`Error::InvalidArgument`] when
    /// the prefix makes no name. No name was removed then.
    pub(super) fn claim(
        backing: &SegmentBacking,
        n_ranks: u32,
        job: u64,
        on_stale: &mut dyn FnMut(&str, u64),
    ) -> Result<Self> {
        let SegmentBacking::Named(prefix) = backing else { return Ok(Self(None)) };
        let names: Vec<_> = (0..n_ranks).map(|rank| segment_name(prefix, Rank::known(rank))).collect();
        names.iter().try_for_each(|name| check_name(name))?;
        let lock_name = format!("{prefix}.lock");
        let segments = names.iter().map(|name| path(name)).collect();
        let sweep = Sweep::new(job, segments, path(&lock_name));
        let lock = PrefixLock::take(lock_name, &sweep)?;
        let creators = names.iter().map(|name| dead_creator(name)).collect::<Result<Vec<_>>>()?;
        for (name, creator) in names.iter().zip(creators) {
            if let Some(creator) = creator {
                on_stale(name, creator);
                unlink(path(name).as_c_str()).map_err(|errno| Error::os(CLAIMING, errno))?;
            }
        }
        lock.sign()?;
        Ok(Self(Some(PrefixClaim { sweep, lock })))
    }

    /// Returns the descriptor that every process holds that may make one of the names: see
    /// [`Janitor::hold`].
    pub(super) fn hold(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref()?.lock.janitor.as_ref().map(Janitor::hold)
    }
}

#[derive(Debug)]
struct PrefixClaim {
    sweep: Sweep,
    /// Given back after the names are gone.
    lock: PrefixLock,
}

impl Drop for PrefixClaim {
    fn drop(&mut self) {
        self.sweep.segments();
    }
}

/// Returns the dead creator of a segment of that name, or `None` when there is no such name.
///
/// # Errors
/// [`Error::NameInUse`] when the creator lives or is unknown.
fn dead_creator(name: &str) -> Result<Option<u64>> {
    match open(path(name).as_c_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(None),
        Ok(_) | Err(Errno::EACCES | Errno::ELOOP) => {}
        Err(errno) => return Err(Error::os(CLAIMING, errno)),
    }
    let in_use = |holder| Err(Error::NameInUse { name: name.to_owned(), holder });
    match Segment::attach_named(name, &Expected::default()) {
        Ok(segment) => match segment.header().creator() {
            creator if creator.is_dead() => Ok(Some(creator.pid)),
            creator => in_use(creator.pid_here()),
        },
        Err(_) => in_use(None),
    }
}

/// Returns the path of a name that `check_name` has accepted.
pub(super) fn path(name: &str) -> CString {
    CString::new(format!("/dev/shm/{name}")).expect("names consist of letters, digits and the like")
}

/// The text in front of the process id in a signed file.
const SIGNATURE: &str = "shmccl ";

/// How long an unsigned lock may be held: its holder is about to sign it, or about to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// The right to one prefix of names in `/dev/shm`: a locked file.
///
/// | file `PREFIX.lock` | meaning |
/// |---|---|
/// | locked, empty | a process checks whether the names are free, or removes leftovers |
/// | locked, `shmccl` and the id of a living process | the names are that launcher's |
/// | locked, `shmccl` and the id of a dead process | a janitor or a launcher removes leftovers |
/// | not locked | launcher and janitor were killed; the next process removes it |
///
/// The file is made without a name, locked, given to the janitor, and linked under its name last.
/// So whenever the launcher is killed, there is no name yet, or somebody who removes it. The lock
/// belongs to the open file, which launcher and janitor share. Only the holder of the lock removes
/// the name: a file that its finder has locked and that still has its name keeps it. Removing
/// leftovers takes a moment, and is waited for so long.
#[derive(Debug)]
pub(super) struct PrefixLock {
    name: String,
    file: Flock<File>,
    /// It is `None` where the system refuses a process. Then the next launcher cleans up after a
    /// killed one.
    janitor: Option<Janitor>,
}

impl PrefixLock {
    /// Takes the lock called `name`, and starts the janitor that does `sweep` if this process is
    /// killed.
    ///
    /// # Errors
    /// [`Error::NameInUse`] when another process has it: at once if that is a living launcher,
    /// otherwise after a second.
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
        let signature = format!("{SIGNATURE}{}", std::process::id());
        let written = within_file_size(|| (&*self.file).write_all(signature.as_bytes()));
        written.map_err(|error| Error::os(CLAIMING, error))
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
    file.map(File::from).map_err(|errno| refused_in_dev_shm(CLAIMING, errno))
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

/// Removes the file of a process that is gone; does nothing when the file has gone meanwhile.
fn remove_leftover(name: &str) -> Result<()> {
    let refused = |errno| Error::os(CLAIMING, errno);
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file = match open(path(name).as_c_str(), flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EACCES | Errno::ELOOP) => {
            return Err(Error::NameInUse { name: name.to_owned(), holder: None });
        }
        Err(errno) => return Err(refused(errno)),
    };
    match files::lock(&file, PATIENCE, || holder(&file).is_none()) {
        // The last holder may have removed the name between our opening and locking it.
        Ok(()) if fstat(&file).map_err(refused)?.st_nlink == 0 => Ok(()),
        Ok(()) => unlink(path(name).as_c_str()).map_err(refused),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(Error::NameInUse { name: name.to_owned(), holder: holder(&file) })
        }
        Err(error) => Err(Error::os(CLAIMING, error)),
    }
}

/// Returns the living launcher that holds a lock and has signed it.
fn holder(file: &File) -> Option<u64> {
    let mut text = [0; 64];
    let len = file.read_at(&mut text, 0).ok()?;
    let pid = signer(str::from_utf8(&text[..len]).ok()?)?;
    Creator { pid, ..Creator::default() }.is_alive().then_some(pid)
}

/// Returns the process that has signed a file with this text.
pub(super) fn signer(text: &str) -> Option<u64> {
    text.strip_prefix(SIGNATURE)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Backing, Identity};

    /// Returns a prefix that no other test and no other run has.
    fn prefix(test: &str) -> String {
        format!("shmccl-names-{test}-{}", std::process::id())
    }

    fn claim(prefix: &str, job: u64) -> Result<ClaimedNames> {
        ClaimedNames::claim(&SegmentBacking::Named(prefix.to_owned()), 2, job, &mut |_, _| {})
    }

    fn exists(name: &str) -> bool {
        std::path::Path::new("/dev/shm").join(name).exists()
    }

    fn segment(name: &str, job: u64) -> Segment {
        let identity = Identity { job, epoch: 1, owner: 1 };
        let segment = Segment::create(&Backing::Named(name.to_owned()), 4096, identity).unwrap();
        segment.header().publish();
        segment
    }

    #[test]
    fn a_prefix_has_one_claim_at_a_time_and_leaves_nothing() {
        let prefix = prefix("once");
        let first = claim(&prefix, 1).unwrap();
        let refused = claim(&prefix, 2).unwrap_err();
        let me = u64::from(std::process::id());
        assert!(
            matches!(&refused, Error::NameInUse { name, holder } if *name == format!("{prefix}.lock") && *holder == Some(me)),
            "{refused}"
        );
        drop(first);
        drop(claim(&prefix, 3).unwrap());
        assert!(!exists(&format!("{prefix}.lock")));
    }

    #[test]
    fn of_launchers_that_race_for_a_prefix_none_removes_the_living_names_of_another() {
        let prefix = prefix("race");
        let name = format!("{prefix}.0");
        let wins = std::sync::Mutex::new(0);
        std::thread::scope(|scope| {
            for job in 1..=4 {
                let (prefix, name, wins) = (&prefix, &name, &wins);
                scope.spawn(move || {
                    for _ in 0..300 {
                        let Ok(names) = claim(prefix, job) else { continue };
                        let segment = segment(name, job);
                        std::thread::yield_now();
                        assert!(exists(name), "somebody removed the name of job {job}");
                        // As a rank that is killed: the name stays until the launcher goes.
                        std::mem::forget(segment);
                        drop(names);
                        *wins.lock().unwrap() += 1;
                    }
                });
            }
        });
        assert!(*wins.lock().unwrap() > 0);
        assert!(!exists(&name) && !exists(&format!("{prefix}.lock")));
    }

    #[test]
    fn a_name_of_another_job_stays_when_it_came_without_asking_for_the_lock() {
        let prefix = prefix("foreign");
        let (own, foreign) = (format!("{prefix}.0"), format!("{prefix}.1"));
        let names = claim(&prefix, 1).unwrap();
        let segments = [segment(&own, 1), segment(&foreign, 2)];
        drop(names);
        assert!(!exists(&own) && exists(&foreign));
        let refused = claim(&prefix, 3).unwrap_err();
        assert!(
            matches!(&refused, Error::NameInUse { name, holder: Some(_) } if *name == foreign),
            "{refused}"
        );
        drop(segments);
        assert!(!exists(&foreign));
    }

    #[test]
    fn a_prefix_that_makes_no_name_is_refused_and_nothing_is_made() {
        for prefix in ["", ".hidden", "a/b"] {
            assert!(matches!(claim(prefix, 1), Err(Error::InvalidArgument { .. })), "{prefix}");
        }
        assert!(!exists(".lock"));
    }
}
