//! Finding the jobs of this host, without anybody who keeps a list of them.
//!
//! The processes of a job keep its segments open. So whoever may look at a process finds, among its
//! descriptors in `/proc`, those of segments, and their headers say of which job and epoch they
//! are; whoever looks on has them open for reading only, and does not count. That way jobs of
//! launchers are found, of processes that have met by themselves, and of threads; and when the last
//! process of a job is gone there is nothing left to find.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;

use super::copy::copy_of;
use super::report::Report;
use crate::channel::{CONTROL_LEN, Control};
use crate::error::Result;
use crate::rank::{MAX_RANKS, Rank};
use crate::shm::{Expected, Identity, SegmentHeader};
use crate::sync::header::HEADER_LEN;

/// One epoch of a job, which some processes of this host have open.
#[derive(Debug)]
#[non_exhaustive]
pub struct Job {
    /// The number of the job. A job that was recovered has another one than it began with.
    pub id: u64,
    /// Which incarnation of the job it is.
    pub epoch: u64,
    /// The processes that have a segment of it open, its launcher among them.
    pub processes: BTreeSet<u32>,
    /// The begin of the epoch, and the job that it goes on from, where that is known.
    began: Duration,
    origin: Option<u64>,
    /// The numbers of the jobs that it goes on from.
    earlier: Vec<u64>,
    control: File,
    segments: BTreeMap<Rank, File>,
}

impl Job {
    /// Returns all epochs of all jobs that this process may look at: those of the same user, as a
    /// rule. In the order of their numbers.
    ///
    /// Segments of another layout version are passed over.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut finds = Finds::default();
        for process in processes() {
            finds.look_at(process);
        }
        finds.jobs()
    }

    /// Returns the newest epoch of each job, be it that ranks went on without others, or that those
    /// came back. It stands for the earlier ones: it [goes by](Self::goes_by) their numbers, too,
    /// and their [`processes`](Self#structfield.processes) are among its own.
    #[must_use]
    pub fn newest() -> Vec<Self> {
        let mut newest: BTreeMap<u64, Self> = BTreeMap::new();
        for job in Self::all() {
            match newest.entry(job.origin.unwrap_or(job.id)) {
                btree_map::Entry::Vacant(first) => _ = first.insert(job),
                btree_map::Entry::Occupied(mut other) => other.get_mut().join(job),
            }
        }
        newest.into_values().collect()
    }

    /// Becomes the newer one of the two, which stands for both.
    fn join(&mut self, other: Self) {
        let earlier = if self.began < other.began { std::mem::replace(self, other) } else { other };
        self.earlier.extend(earlier.earlier.into_iter().chain([earlier.id]).chain(earlier.origin));
        self.processes.extend(earlier.processes);
    }

    /// Returns whether `number` is that of this job, or of one that it goes on from.
    #[must_use]
    pub fn goes_by(&self, number: u64) -> bool {
        self.numbers().any(|own| own == number)
    }

    /// Returns the number of the job, and those of the jobs that it goes on from, as far as they
    /// are known.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        [self.id].into_iter().chain(self.origin).chain(self.earlier.iter().copied())
    }

    /// Reports what its ranks are doing.
    ///
    /// # Errors
    /// [`crate::Error::Layout`], [`crate::Error::InvalidArgument`] or [`crate::Error::OutOfRange`]
    /// when its control segment makes no sense; [`crate::Error::Os`] when it cannot be read.
    pub fn report(&self) -> Result<Report> {
        Report::take(self.control.as_fd(), |rank| self.segments.get(&rank))
    }
}

/// The segments that were found, by file system and number of their file.
#[derive(Default)]
struct Finds(HashMap<(u64, u64), Find>);

struct Find {
    file: File,
    /// The owner; `None` for what is no segment.
    identity: Option<Identity>,
    len: u64,
    processes: BTreeSet<u32>,
}

impl Finds {
    fn look_at(&mut self, process: u32) {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return };
        for descriptor in descriptors.flatten() {
            let path = descriptor.path();
            if !std::fs::read_link(&path).is_ok_and(|target| may_be_segment(&target)) || !is_writable(&path) {
                continue;
            }
            // It may be closed meanwhile, and the whole process may be gone.
            let Ok(metadata) = std::fs::metadata(&path) else { continue };
            if !metadata.is_file() {
                continue;
            }
            let find = match self.0.entry((metadata.dev(), metadata.ino())) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => match Find::open(&path, metadata.len()) {
                    Ok(find) => new.insert(find),
                    Err(_) => continue,
                },
            };
            find.processes.insert(process);
        }
    }

    fn jobs(self) -> Vec<Job> {
        let mut jobs: BTreeMap<(u64, u64), Job> = BTreeMap::new();
        let mut segments = Vec::new();
        for find in self.0.into_values() {
            let Some(identity) = find.identity else { continue };
            let key = (identity.job, identity.epoch);
            if identity.owner == 0 && find.len == CONTROL_LEN {
                let (control, processes) = (find.file, find.processes);
                let (id, epoch) = key;
                // One that makes no sense is an error for who asks for its report.
                let known = copy_of(control.as_fd(), 0, CONTROL_LEN).and_then(Control::of_copy).ok();
                let (began, origin) =
                    known.map_or((Duration::ZERO, None), |known| (known.began(), known.origin()));
                let (earlier, segments) = (Vec::new(), BTreeMap::new());
                jobs.insert(key, Job { id, epoch, began, origin, earlier, control, segments, processes });
            } else if let Some(rank) = rank_of(identity.owner) {
                segments.push((key, rank, find));
            }
        }
        for (key, rank, find) in segments {
            if let Some(job) = jobs.get_mut(&key) {
                job.processes.extend(find.processes);
                job.segments.insert(rank, find.file);
            }
        }
        jobs.into_values().collect()
    }
}

impl Find {
    fn open(path: &Path, len: u64) -> Result<Self> {
        let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = opened.map_err(|error| crate::Error::os("opening a segment of another process", error))?;
        let identity = identity_in(&file).ok();
        Ok(Self { file, identity, len, processes: BTreeSet::new() })
    }
}

fn identity_in(file: &File) -> Result<Identity> {
    let copy = copy_of(file.as_fd(), 0, HEADER_LEN)?;
    let header = copy.cell::<SegmentHeader>(0)?;
    header.check(&Expected::default())?;
    Ok(header.identity())
}

fn rank_of(owner: u64) -> Option<Rank> {
    let rank = u32::try_from(owner.checked_sub(1)?).ok()?;
    Rank::new(rank, MAX_RANKS).ok()
}

/// Returns whether a descriptor that leads there is worth a look: of memory without a name, with
/// one, or of a file that the launcher has named.
fn may_be_segment(target: &Path) -> bool {
    let text = target.to_string_lossy();
    text.starts_with("/memfd:shmccl") || text.starts_with("/dev/shm/") || text.ends_with(".shmccl")
}

/// Returns whether a descriptor is for writing, too, as those of members are, who could not map a
/// segment otherwise. One that is not is that of somebody who looks on, another observer or a
/// launcher that has lost a rank, and makes no job of theirs of it.
fn is_writable(descriptor: &Path) -> bool {
    const WRITE: u32 = 0o200;
    std::fs::symlink_metadata(descriptor).is_ok_and(|link| link.mode() & WRITE != 0)
}

/// Returns the processes of this user.
fn processes() -> impl Iterator<Item = u32> {
    let me = nix::unistd::geteuid().as_raw();
    let entries = std::fs::read_dir(PathBuf::from("/proc")).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        (entry.metadata().ok()?.uid() == me).then_some(process)
    })
}
