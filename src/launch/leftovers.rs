//! Finds and removes what dead jobs have left in `/dev/shm`.
//!
//! Normal operation never needs it. Ranks, launcher and janitor remove the names of a job, as long
//! as not all of them are killed. A leftover says whose it was: the header of a segment has its
//! creator and the creator's start time, and the file of a claim has the launcher's process id.
//!
//! Invariant: nothing of a living job is touched. A name is removed only when its prefix is not
//! locked, its creator is dead, and no process has it open. Removing happens under the lock of the
//! prefix, so nobody can have taken the name anew meanwhile.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::fcntl::{Flock, OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::unlink;

use super::names::path;
use super::names::{link, lock, signer, unnamed};
use crate::error::{Error, Result};
use crate::rank::MAX_RANKS;
use crate::shm::{SegmentHeader, check_name};

/// The action that errors name.
const CLEANING: &str = "removing what dead jobs have left";

/// A name that a dead process has left in `/dev/shm`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// The name.
    pub name: String,
    /// The job that it belonged to, where that is known.
    pub job: Option<u64>,
    /// The process that made it, where that is known.
    pub creator: Option<u64>,
}

/// Finds what dead jobs of this user have left, and calls `on_found` for each name. Removes the
/// name before that call, unless this is a `dry_run`. `only` limits it to jobs whose names have
/// that prefix.
///
/// # Errors
/// - [`Error::InvalidArgument`] when no name can begin with `only`, such as a path: nothing is
///   searched.
/// - [`Error::Os`] when `/dev/shm` cannot be read, or a name in it cannot be removed.
/// - [`Error::Unavailable`] where `/proc` does not show who has a name open.
pub fn clean(only: Option<&str>, dry_run: bool, on_found: &mut dyn FnMut(&Leftover)) -> Result<()> {
    only.map_or(Ok(()), check_name)?;
    let open_files = open_files()?;
    let wanted = |prefix: &str| only.is_none_or(|only| only == prefix);
    for (prefix, names) in candidates()?.into_iter().filter(|(prefix, _)| wanted(prefix)) {
        let Some(claim) = SweepClaim::take(&prefix, dry_run)? else { continue };
        let gone = |name: &String| claim.leftover(name, &open_files);
        let left: Vec<_> = names.iter().filter_map(gone).chain(claim.own()).collect();
        for leftover in left {
            if !dry_run {
                remove(&leftover.name)?;
            }
            on_found(&leftover);
        }
    }
    Ok(())
}

/// Returns the names that look like a job's, by prefix.
fn candidates() -> Result<BTreeMap<String, Vec<String>>> {
    let mut candidates: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let entries = match std::fs::read_dir("/dev/shm") {
        // Where there is none, nothing has a name.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(candidates),
        entries => entries.map_err(|error| Error::os(CLEANING, error))?,
    };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if let Some(prefix) = name.strip_suffix(".lock") {
            candidates.entry(prefix.to_owned()).or_default();
        } else if let Some(prefix) = prefix_of(&name) {
            candidates.entry(prefix.to_owned()).or_default().push(name);
        }
    }
    candidates.retain(|prefix, names| {
        check_name(prefix).is_ok() && names.iter().all(|name| check_name(name).is_ok())
    });
    Ok(candidates)
}

/// Returns the part of a segment's name in front of the rank.
fn prefix_of(name: &str) -> Option<&str> {
    let (prefix, rank) = name.rsplit_once('.')?;
    let is_rank = rank.parse().is_ok_and(|number: u32| number < MAX_RANKS && number.to_string() == rank);
    is_rank.then_some(prefix)
}

/// The lock of a prefix that nobody else has.
struct SweepClaim {
    /// Held while this lives; `None` where nobody has left a file, and none is needed.
    _lock: Option<Flock<File>>,
    name: String,
    /// The dead process that had claimed the prefix.
    signer: Option<u64>,
    /// Whether the file was made for this claim.
    is_new: bool,
}

impl SweepClaim {
    /// Takes the prefix. Returns `None` when another process has it, or uses the file of that name
    /// for something else.
    fn take(prefix: &str, dry_run: bool) -> Result<Option<Self>> {
        let name = format!("{prefix}.lock");
        let Some((mut file, _)) = open_own(&name) else {
            return if exists(&name) { Ok(None) } else { Self::fresh(name, dry_run) };
        };
        let mut text = String::new();
        let signer = file.read_to_string(&mut text).ok().and_then(|_| signer(&text));
        // A process killed between making a claim and signing it left an empty file, which is in
        // the way.
        if signer.is_none() && !text.is_empty() {
            return Ok(None);
        }
        // Its last holder may have removed it meanwhile.
        let Ok(lock) = lock(file) else { return Ok(None) };
        let is_there = fstat(&*lock).is_ok_and(|stat| stat.st_nlink > 0);
        let is_new = signer.is_none() && !dry_run;
        Ok(is_there.then_some(Self { _lock: Some(lock), name, signer, is_new }))
    }

    fn fresh(name: String, dry_run: bool) -> Result<Option<Self>> {
        if dry_run {
            return Ok(Some(Self { _lock: None, name, signer: None, is_new: false }));
        }
        let file = lock(unnamed()?).map_err(|(_, errno)| Error::os(CLEANING, errno))?;
        let is_ours = link(&file, &name)?;
        Ok(is_ours.then_some(Self { _lock: Some(file), name, signer: None, is_new: true }))
    }

    /// Returns the leftover called `name`, if it is one. It is a segment whose creator is dead, or
    /// one without a header under the claim of a dead launcher.
    fn leftover(&self, name: &str, open_files: &HashSet<(u64, u64)>) -> Option<Leftover> {
        let (mut file, stat) = open_own(name)?;
        if open_files.contains(&(stat.st_dev, stat.st_ino)) {
            return None;
        }
        let mut bytes = [0; size_of::<SegmentHeader>()];
        let is_whole = file.read_exact(&mut bytes).is_ok();
        let (job, creator) = match SegmentHeader::origin_in(&bytes) {
            Some((job, creator)) if creator.is_dead() => (Some(job), Some(creator.pid)),
            None if self.signer.is_some() && (!is_whole || bytes == [0; _]) => (None, None),
            _ => return None,
        };
        Some(Leftover { name: name.to_owned(), job, creator })
    }

    /// Returns the claim file itself, where a dead launcher has left it.
    fn own(&self) -> Option<Leftover> {
        let creator = self.signer?;
        Some(Leftover { name: self.name.clone(), job: None, creator: Some(creator) })
    }
}

impl Drop for SweepClaim {
    fn drop(&mut self) {
        if self.is_new {
            let _ = unlink(path(&self.name).as_c_str());
        }
    }
}

/// Opens a regular file of this user in `/dev/shm`.
fn open_own(name: &str) -> Option<(File, FileStat)> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::from(open(path(name).as_c_str(), flags, Mode::empty()).ok()?);
    let stat = fstat(&file).ok()?;
    let is_regular = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    (is_regular && stat.st_uid == nix::unistd::geteuid().as_raw()).then_some((file, stat))
}

fn exists(name: &str) -> bool {
    std::path::Path::new("/dev/shm").join(name).symlink_metadata().is_ok()
}

fn remove(name: &str) -> Result<()> {
    match unlink(path(name).as_c_str()) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Error::os(CLEANING, errno)),
    }
}

/// Returns the files that processes of this user have open or mapped with a descriptor, by file
/// system and inode.
///
/// # Errors
/// [`Error::Unavailable`] where that cannot be told: that nothing is shown is no proof.
fn open_files() -> Result<HashSet<(u64, u64)>> {
    if !std::path::Path::new("/proc/self/fd").exists() {
        let needs = "/proc, which shows what processes have open; mount one (mount -t proc proc /proc)";
        return Err(Error::Unavailable { operation: "clean", needs });
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let descriptors = processes.filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok());
    let files = descriptors.flatten().flatten().filter_map(|descriptor| {
        let target = std::fs::read_link(descriptor.path()).ok()?;
        let metadata =
            target.starts_with("/dev/shm").then(|| std::fs::metadata(descriptor.path()).ok())??;
        Some((metadata.dev(), metadata.ino()))
    });
    Ok(files.collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::names::ClaimedNames;
    use super::*;
    use crate::bootstrap::SegmentBacking;
    use crate::shm::{Backing, Identity, Segment};
    use crate::sync::header::Creator;

    fn prefix(test: &str) -> String {
        format!("shmccl-left-{test}-{}", std::process::id())
    }

    /// Finds the leftovers of one prefix only, since other tests leave some of their own.
    fn found(prefix: &str, dry_run: bool) -> Vec<Leftover> {
        let mut found = Vec::new();
        clean(Some(prefix), dry_run, &mut |left| found.push(left.clone())).unwrap();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }

    /// Waits until there are `n` leftovers, and removes nothing. A process that another test has
    /// just forked keeps this test's files open for a moment.
    fn found_in_time(prefix: &str, n: usize) -> Vec<Leftover> {
        let began = std::time::Instant::now();
        loop {
            let found = found(prefix, true);
            if found.len() >= n || began.elapsed() > std::time::Duration::from_secs(60) {
                return found;
            }
            std::thread::yield_now();
        }
    }

    /// Returns a process id that is dead and gone.
    fn dead() -> u64 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id().into()
    }

    /// Leaves a segment as its dead creator would.
    fn leave_segment(name: &str, creator: Creator) {
        let segment =
            Segment::create(&Backing::Named(name.to_owned()), 4096, Identity { job: 7, epoch: 1, owner: 1 })
                .unwrap();
        segment.header().describe(Identity { job: 7, epoch: 1, owner: 1 }, 4096, creator);
        let copy = std::fs::read(format!("/dev/shm/{name}")).unwrap();
        drop(segment);
        std::fs::write(format!("/dev/shm/{name}"), copy).unwrap();
    }

    #[test]
    fn what_dead_processes_have_left_is_found_and_removed_once() {
        let prefix = prefix("dead");
        let pid = dead();
        let [first, second, claim] = ["0", "1", "lock"].map(|end| format!("{prefix}.{end}"));
        leave_segment(&first, Creator { pid, start: 1, namespace: 0 });
        std::fs::write(format!("/dev/shm/{second}"), [0; 4096]).unwrap();
        std::fs::write(format!("/dev/shm/{claim}"), format!("shmccl {pid}")).unwrap();
        let left = |name: &String, job, creator| Leftover { name: name.clone(), job, creator };
        let all =
            [left(&first, Some(7), Some(pid)), left(&second, None, None), left(&claim, None, Some(pid))];
        assert_eq!(found_in_time(&prefix, all.len()), all);
        assert_eq!(found(&prefix, false), all);
        assert_eq!(found(&prefix, false), []);
        assert!(![first, second, claim].iter().any(|name| exists(name)));
    }

    #[test]
    fn a_number_that_another_process_has_by_now_does_not_keep_a_name() {
        let prefix = prefix("reborn");
        let name = format!("{prefix}.3");
        let me = Creator::this_process();
        leave_segment(&name, Creator { start: me.start + 1, ..me });
        assert_eq!(found_in_time(&prefix, 1).len(), 1);
        assert_eq!(found(&prefix, false).len(), 1);
        assert!(!exists(&name) && !exists(&format!("{prefix}.lock")));
    }

    #[test]
    fn names_of_the_living_stay_be_it_by_lock_by_creator_or_by_use() {
        let prefixes = ["claimed", "created", "used"].map(prefix);
        let names = prefixes.each_ref().map(|prefix| format!("{prefix}.0"));
        let claim =
            ClaimedNames::claim(&SegmentBacking::Named(prefixes[0].clone()), 1, 7, &mut |_, _| {}).unwrap();
        let pid = dead();
        leave_segment(&names[0], Creator { pid, start: 1, namespace: 0 });
        leave_segment(&names[1], Creator::this_process());
        leave_segment(&names[2], Creator { pid, start: 1, namespace: 0 });
        let user = File::open(format!("/dev/shm/{}", names[2])).unwrap();
        for (prefix, name) in prefixes.iter().zip(&names) {
            assert_eq!(found(prefix, false), [], "{name}");
            assert!(exists(name), "{name}");
        }
        drop((claim, user));
        names[1..].iter().for_each(|name| remove(name).unwrap());
    }

    #[test]
    fn a_prefix_that_no_name_has_is_refused_and_never_leads_out_of_the_directory() {
        for prefix in ["../x", "x/../y", "/dev/shm/x", "", ".", "..", "a b", "x\n"] {
            let refused = clean(Some(prefix), false, &mut |left| panic!("{left:?}"));
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{prefix:?}: {refused:?}");
        }
    }

    #[test]
    fn a_job_that_starts_while_leftovers_of_its_prefix_are_removed_waits_for_that() {
        let prefix = prefix("swept");
        let dead_claim =
            |_: &str| std::fs::write(format!("/dev/shm/{prefix}.lock"), format!("shmccl {}", dead()));
        for leave in [&(|_: &str| Ok(())) as &dyn Fn(&str) -> std::io::Result<()>, &dead_claim] {
            leave(&prefix).unwrap();
            let sweeping = SweepClaim::take(&prefix, false).unwrap().unwrap();
            let backing = SegmentBacking::Named(prefix.clone());
            let starting = std::thread::spawn(move || ClaimedNames::claim(&backing, 1, 7, &mut |_, _| {}));
            let began = std::time::Instant::now();
            while !starting.is_finished() && began.elapsed() < std::time::Duration::from_millis(30) {
                std::thread::yield_now();
            }
            sweeping.own().into_iter().for_each(|left| remove(&left.name).unwrap());
            drop(sweeping);
            drop(starting.join().unwrap().unwrap());
            assert!(!exists(&format!("{prefix}.lock")));
        }
    }

    #[test]
    fn files_of_others_stay_whatever_they_are_called() {
        let prefix = prefix("foreign");
        let [number, lock] = ["1", "lock"].map(|end| format!("/dev/shm/{prefix}.{end}"));
        std::fs::write(&number, [0; 4096]).unwrap();
        std::fs::write(&lock, dead().to_string()).unwrap();
        assert_eq!(found(&prefix, false), []);
        std::fs::remove_file(lock).unwrap();
        assert_eq!(found(&prefix, false), []);
        std::fs::remove_file(number).unwrap();
    }
}
