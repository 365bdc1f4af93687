//! Writes the device memory of a job to a directory, and reads it back.
//!
//! ```text
//! DIRECTORY/CURRENT              names the valid generation; renamed when its files are there
//! DIRECTORY/generation-7/rank0   the heap of rank 0 (`file.rs`)
//! DIRECTORY/generation-7/rank1
//! ```
//!
//! A generation is written in a directory whose name has the epoch in it, and gets its own name
//! when all files are there. A rank that was stopped, given up, and wakes during the next attempt
//! has another directory. It also checks first whether its epoch has ended.
//!
//! All ranks take part, and tell each other after every step whether it went well. So all succeed
//! or none does:
//!
//! | step | by | action |
//! |---|---|---|
//! | 1 | the first rank | removes leftovers, makes the directory of the next generation |
//! | 2 | each | writes its file, and waits until it is on the disk |
//! | 3 | the first rank | names the generation; writes the new `CURRENT` under another name |
//! | 4 | the first rank | waits until it and all names are on the disk; renames it |
//! | 5 | the first rank | removes the previous generation |
//!
//! The rename is the one moment at which the new checkpoint replaces the old one. Whichever rank
//! dies at any time, `CURRENT` names a whole checkpoint. A failure after the rename is still an
//! error, though the new checkpoint is valid.
//!
//! Restoring checks everything first, on all ranks: the number of ranks, allocations, lengths,
//! checksums. Only then a byte of memory changes.
//!
//! A checkpoint holds the heap of each rank, or a [`DeviceMemory`] that each has beside it
//! (`held.rs`).
//!
//! Tried by its unit tests, `scenarios checkpoints::` and `checkpoints`.

mod directory;
mod file;
mod held;

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;

use super::Communicator;
use super::calls::settings::all_same;
use crate::collective::Operation;
use crate::epoch_id::EpochId;
use crate::error::{Error, Result};
use crate::faults::{FILE, FaultPoint};
use crate::heap::DeviceMemory;
use crate::rank::Rank;
use directory::{Current, Directory, PartDigest};
use file::PartReader;
use held::CheckpointSource;

/// The process that writes a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The number of the process.
    pub process: u32,
    /// Whether it is stopped. It keeps the directory until it continues or is killed.
    pub is_stopped: bool,
}

/// Tells the remedy against the process that writes a checkpoint.
fn remedy(holder: Option<Holder>) -> String {
    match holder {
        Some(Holder { process, is_stopped: true }) => format!(
            " by process {process}, which is stopped: `kill -CONT {process}` has it go on, `kill -KILL {process}` ends it"
        ),
        Some(Holder { process, .. }) => {
            format!(" by process {process}; wait for it, `kill {process}` if it hangs")
        }
        None => "; wait for it, end it if it hangs".into(),
    }
}

/// The reason why a checkpoint failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointFault {
    /// There is none.
    #[error("there is no checkpoint; write one first, or name another directory")]
    Missing,
    /// Another process is writing one there, or was stopped while it did.
    #[error("another job writes a checkpoint there{}, or name another directory", remedy(*.holder))]
    InUse {
        /// The process, where the system names it.
        holder: Option<Holder>,
    },
    /// The system refused an action.
    #[error("{action} failed: {source}; {remedy}")]
    Io {
        /// The action.
        action: &'static str,
        /// The remedy.
        remedy: &'static str,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The name of a file belongs to something else, which might keep a reader waiting for ever.
    #[error("it is no regular file; remove it, or name another directory")]
    NoFile,
    /// A file is not what was written.
    #[error(
        "{what} is not what was written; the file is damaged: restore it from a copy, or use an older checkpoint"
    )]
    Damaged {
        /// The damaged part.
        what: &'static str,
    },
    /// It is one of a job of another size.
    #[error("it is of {found} ranks, and this job has {expected}; start as many")]
    Ranks {
        /// The number of its ranks.
        found: u64,
        /// The number of ranks now.
        expected: u64,
    },
    /// It is one of another kind of memory.
    #[error("it is of {found}, and {expected} is to be restored; name another directory")]
    Kind {
        /// The kind that it holds.
        found: &'static str,
        /// The kind to be restored.
        expected: &'static str,
    },
    /// It is one of a device with more or less memory.
    #[error(
        "it is of a device with addresses up to {found:#x}, and this one has them up to {expected:#x}; start devices with as much memory"
    )]
    Memory {
        /// One past the highest address then.
        found: u64,
        /// One past the highest address of this rank's device.
        expected: u64,
    },
    /// The allocations of now are not those of then.
    #[error(
        "it holds {found} allocations, the first that differs {}, and this job has {expected}; allocate the same, in the same \
         order, before it is restored", start_of(*.place)
    )]
    Layout {
        /// The number of its allocations.
        found: u64,
        /// The number of allocations now.
        expected: u64,
        /// The start of the first allocation that differs, if there is one.
        place: Option<u64>,
    },
}

/// Tells where the allocation starts that differs.
fn start_of(allocation: Option<u64>) -> String {
    allocation.map_or_else(|| "being missing now".into(), |offset| format!("at {offset}"))
}

/// Returns the error of the checkpoint, or its file, at `path`.
fn at(path: &Path, fault: CheckpointFault) -> Error {
    Error::Checkpoint { path: path.to_owned(), fault: Box::new(fault) }
}

/// Returns the error of the system for `action` on `path`.
fn io(path: &Path, action: &'static str, source: std::io::Error) -> Error {
    let remedy = match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "free space there, or name a directory with more"
        }
        std::io::ErrorKind::FileTooLarge => {
            "raise the limit on the length of a file (`ulimit -f`), or name a directory that takes longer ones"
        }
        _ => "see that the directory is there and may be read and written",
    };
    at(path, CheckpointFault::Io { action, remedy, source })
}

impl Communicator {
    /// Writes all allocations in the heaps of all ranks to `directory`, which it makes if need be.
    /// Returns the number of the checkpoint there, from 1 on. Collective, through a communicator of
    /// all ranks of the job. Each rank names the same directory and writes its own part.
    ///
    /// Enqueued calls are done first. Puts of others are included if this rank has waited for them,
    /// and no put may be in flight. One job at a time can use the directory. An earlier checkpoint
    /// stays valid until the new one is whole and on the disk, and is removed then.
    ///
    /// ```
    /// # fn main() -> shmccl::Result<()> {
    /// # let place = std::env::temp_dir().join(format!("shmccl-doc-{}", std::process::id()));
    /// # let directory = place.as_path();
    /// shmccl::launch::launch_threads(2, &Default::default(), |comm| {
    ///     let weights = comm.alloc::<f32>(1000)?;
    ///     weights.fill(1.5);
    ///     comm.checkpoint(directory)?;
    ///     weights.fill(0.0);
    ///     // ... or in another job of as many ranks, which has allocated the same:
    ///     comm.restore(directory)?;
    ///     assert_eq!(weights.get(999)?, 1.5);
    ///     Ok(())
    /// })?;
    /// # std::fs::remove_dir_all(directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Checkpoint`] on the rank that failed, [`Error::FailedElsewhere`] on the others,
    ///   [`Error::Mismatch`] for different directories. All can go on and try again.
    /// - [`Error::InvalidArgument`] for a communicator of some ranks.
    /// - Otherwise those of [`Communicator::barrier`], which end the epoch.
    pub fn checkpoint(&mut self, directory: impl AsRef<Path>) -> Result<u64> {
        self.write_checkpoint(CheckpointSource::Heap, directory.as_ref())
    }

    /// Writes the used parts of a memory that each rank has beside the heap, like
    /// [`Communicator::checkpoint`]. Bytes that are copied there meanwhile may or may not be
    /// included.
    ///
    /// # Errors
    /// Fails as [`Communicator::checkpoint`] does.
    pub fn checkpoint_memory(&mut self, memory: &DeviceMemory, directory: impl AsRef<Path>) -> Result<u64> {
        self.write_checkpoint(CheckpointSource::Device(memory), directory.as_ref())
    }

    fn write_checkpoint(&mut self, source: CheckpointSource<'_>, directory: &Path) -> Result<u64> {
        self.check_all_ranks()?;
        self.as_one(Operation::Checkpoint, |comm| {
            let directory = Directory::new(directory);
            let mut writing = Writing { comm, source, directory, lock: None };
            let generation = writing.begin()?;
            let parts = writing.write(generation)?;
            writing.commit(generation, parts)?;
            Ok(generation)
        })
    }

    /// Reads the checkpoint in `directory` back into the heaps of all ranks, and returns its
    /// number. Collective. The job has as many ranks as then, and has made the same allocations in
    /// the same order.
    ///
    /// All ranks check everything first, lengths and checksums included. If anything is wrong, no
    /// byte has changed on any rank, and all can go on.
    ///
    /// # Errors
    /// - [`Error::Checkpoint`] with the reason, [`Error::FailedElsewhere`] on the other ranks.
    ///   Nothing has changed.
    /// - An error of the same kind ends the epoch when a file changes between check and reading.
    /// - Otherwise those of [`Communicator::checkpoint`].
    pub fn restore(&mut self, directory: impl AsRef<Path>) -> Result<u64> {
        self.read_checkpoint(CheckpointSource::Heap, directory.as_ref())
    }

    /// Reads the checkpoint of [`Communicator::checkpoint_memory`] in `directory` back into a
    /// memory of each rank. Bytes used since then become zero. Each rank has as much memory as
    /// then.
    ///
    /// # Errors
    /// Fails as [`Communicator::restore`] does. The memory's contents have not changed then, but
    /// more of it may have been taken.
    pub fn restore_memory(&mut self, memory: &DeviceMemory, directory: impl AsRef<Path>) -> Result<u64> {
        self.read_checkpoint(CheckpointSource::Device(memory), directory.as_ref())
    }

    fn read_checkpoint(&mut self, source: CheckpointSource<'_>, directory: &Path) -> Result<u64> {
        self.check_all_ranks()?;
        self.as_one(Operation::Restore, |comm| {
            comm.step()?;
            let checked = comm.open_part(source, &Directory::new(directory));
            let words = |(_, current): &(_, Current)| [current.generation, current.checksum()];
            let (told, (mut reader, current)) = comm.in_step_with(Operation::Restore, checked, words)?;
            same(&told, 0, "the number of the checkpoint", current.generation)?;
            same(&told, 1, "the checkpoint (by a checksum of what names it)", current.checksum())?;
            comm.step()?;
            source.load(comm, &mut reader).inspect_err(|_| comm.revoke())?;
            comm.in_step_with(Operation::Restore, Ok(()), |()| [0; 2])?;
            Ok(current.generation)
        })
    }

    /// Opens this rank's part of the valid checkpoint, and checks that it is whole and fits.
    fn open_part(
        &self,
        source: CheckpointSource<'_>,
        directory: &Directory,
    ) -> Result<(PartReader, Current)> {
        let current = directory.current()?.ok_or_else(|| at(&directory.path, CheckpointFault::Missing))?;
        let expected = u64::from(self.n_ranks());
        let found = current.parts.len() as u64;
        if found != expected {
            return Err(at(&directory.path, CheckpointFault::Ranks { found, expected }));
        }
        let mut reader = PartReader::open(
            &directory.part(current.generation, self.own_number()),
            &source.header(self, current.generation),
        )?;
        let part = reader.check()?;
        if part != current.parts[self.context().rank().index()] {
            return Err(at(&reader.path, CheckpointFault::Damaged { what: "the whole" }));
        }
        source.make_room(&reader)?;
        Ok((reader, current))
    }

    /// Returns this rank as the job numbers it.
    fn own_number(&self) -> u64 {
        self.context().rank().get().into()
    }

    /// Passes a step at which an injected fault may hit.
    fn step(&self) -> Result<()> {
        if self.context().is_faulty() { self.context().inject(FaultPoint::Step) } else { Ok(()) }
    }

    /// Tells all ranks whether `outcome` is a success, and `words` of it; goes on when it is one on
    /// all of them. Returns the words of each, in the order of the job's ranks.
    fn in_step_with<R>(
        &mut self,
        operation: Operation,
        outcome: Result<R>,
        words: impl FnOnce(&R) -> [u64; 2],
    ) -> Result<(Vec<[u64; 2]>, R)> {
        // A rank that a fault kills tells nobody.
        let outcome = match outcome {
            Err(error @ Error::FaultInjected { .. }) => return Err(error),
            outcome => outcome,
        };
        let [first, second] = outcome.as_ref().map_or([0; 2], words);
        let told = self.exchange(operation, &[outcome.is_err().into(), first, second])?;
        let outcome = outcome?;
        if let Some(member) = told.iter().position(|words| words[0] != 0) {
            return Err(self.context().failed_elsewhere(operation.name(), self.members[member]));
        }
        let mut by_rank = vec![[0; 2]; told.len()];
        for (member, words) in self.members.iter().zip(told) {
            by_rank[member.index()] = [words[1], words[2]];
        }
        Ok((by_rank, outcome))
    }
}

/// A checkpoint on its way.
struct Writing<'c> {
    comm: &'c mut Communicator,
    source: CheckpointSource<'c>,
    directory: Directory,
    /// The first rank's lock, from its first step to its last.
    lock: Option<Flock<File>>,
}

impl Writing<'_> {
    /// Returns whether this rank does the common work.
    fn is_first(&self) -> bool {
        self.comm.context().rank().get() == 0
    }

    fn epoch_id(&self) -> EpochId {
        self.comm.context().mapped().epoch_id()
    }

    fn in_step<R>(
        &mut self,
        outcome: Result<R>,
        words: impl FnOnce(&R) -> [u64; 2],
    ) -> Result<(Vec<[u64; 2]>, R)> {
        self.comm.in_step_with(Operation::Checkpoint, outcome, words)
    }

    /// Makes room for the next generation, and returns its number.
    fn begin(&mut self) -> Result<u64> {
        self.comm.step()?;
        let next = if self.is_first() { self.make() } else { Ok(0) };
        let (told, _) = self.in_step(next, |next| [*next, 0])?;
        Ok(told[0][0])
    }

    fn make(&mut self) -> Result<u64> {
        self.lock = Some(self.directory.make()?);
        let before = self.directory.current()?.map_or(0, |current| current.generation);
        self.directory.sweep(before)?;
        self.comm.step()?;
        let next = before.saturating_add(1);
        self.directory.make_generation(next, self.epoch_id())?;
        Ok(next)
    }

    /// Writes this rank's part, and returns what all have written.
    fn write(&mut self, generation: u64) -> Result<Vec<PartDigest>> {
        self.agree_on_place().inspect_err(|error| self.sweep(error))?;
        let written = self.write_part(generation);
        let told = self.in_step(written, |part| [part.digest.into(), part.len]);
        let (told, _) = told.inspect_err(|error| self.sweep(error))?;
        Ok(told.iter().map(|&[digest, len]| PartDigest { digest: low(digest), len }).collect())
    }

    /// Looks whether all mean the same directory, before anybody writes to it.
    fn agree_on_place(&mut self) -> Result<()> {
        let checksum = |place: PathBuf| crc32c::crc32c(place.as_os_str().as_encoded_bytes());
        let (place, kind) = (self.directory.canonical().map(checksum), self.source.kind() as u64);
        let (told, place) = self.in_step(place, |place| [(*place).into(), kind])?;
        same(&told, 0, "the directory of the checkpoint (by a checksum of its path)", place.into())?;
        same(&told, 1, "what the checkpoint is of", kind)
    }

    fn write_part(&self, generation: u64) -> Result<PartDigest> {
        let comm = &*self.comm;
        comm.step()?;
        let path = self.directory.part_aside(generation, self.epoch_id(), comm.own_number());
        let header = self.source.header(comm, generation);
        // A rank that was stopped and given up meanwhile writes nothing any more.
        comm.context().check(Operation::Checkpoint.name())?;
        let mut writer = file::PartWriter::create(&path, &header)?;
        for region in header.regions {
            let span = self.source.span(comm, region)?;
            for chunk in file::chunks(region.len) {
                writer.write(&span, chunk, |bytes| comm.context().spoil(FILE, bytes))?;
                comm.step()?;
            }
        }
        let part = writer.finish()?;
        comm.step()?;
        Ok(part)
    }

    /// Makes `generation` the valid one.
    fn commit(&mut self, generation: u64, parts: Vec<PartDigest>) -> Result<()> {
        self.comm.step()?;
        let current = Current { generation, parts };
        let committed = if self.is_first() { self.replace(&current) } else { Ok(()) };
        self.in_step(committed, |()| [0; 2]).inspect_err(|error| self.sweep(error)).map(drop)
    }

    fn replace(&self, current: &Current) -> Result<()> {
        // A rank that was given up meanwhile names nothing any more.
        self.comm.context().check(Operation::Checkpoint.name())?;
        self.directory.name_generation(current.generation, self.epoch_id())?;
        let aside = self.directory.write_aside(current)?;
        self.comm.step()?;
        self.comm.context().check(Operation::Checkpoint.name())?;
        self.directory.replace(&aside)?;
        self.comm.step()?;
        // The next checkpoint removes what cannot be removed now.
        let _later = self.directory.sweep(current.generation);
        Ok(())
    }

    /// Removes the files of a failed attempt, unless they are valid or a planned fault has killed
    /// this rank. The next checkpoint removes what cannot be removed now.
    fn sweep(&self, error: &Error) {
        if self.lock.is_some()
            && !matches!(error, Error::FaultInjected { .. })
            && let Ok(current) = self.directory.current()
        {
            let _later = self.directory.sweep(current.map_or(0, |current| current.generation));
        }
    }
}

/// Checks that all ranks have told `mine` as this word.
fn same(told: &[[u64; 2]], word: usize, what: &'static str, mine: u64) -> Result<()> {
    all_same(what, mine, Rank::of_each(told).map(|(rank, words)| (rank, words[word])))
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is asked for")]
const fn low(word: u64) -> u32 {
    word as u32
}
