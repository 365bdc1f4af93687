//! Checkpoints: the device memory of a job in a directory, and back.
//!
//! ```text
//! DIRECTORY/CURRENT              names the generation that counts: written aside, renamed when all files of it are there
//! DIRECTORY/generation-7/rank0   what rank 0 had in its heap (`file.rs`)
//! DIRECTORY/generation-7/rank1
//! ```
//!
//! A generation is written in a directory that is named for the epoch, too, and gets its own name when all files are there. So a rank that
//! was stopped, was given up, and wakes when the others are at the next attempt, meets none of them there; and it looks first whether its
//! epoch has ended.
//!
//! All ranks take part, and tell each other after every step whether it went well, so that all succeed or none does:
//!
//! | step | by | what |
//! |---|---|---|
//! | 1 | the first rank | removes what is left of attempts that failed, and makes the directory of the next generation |
//! | 2 | each | writes its file, and waits until it is on the disk |
//! | 3 | the first rank | names the generation, writes the new `CURRENT` aside, waits until that and the names of all files are on the disk, renames it |
//! | 4 | the first rank | removes the generation before |
//!
//! The rename is the one moment at which the new checkpoint takes the place of the old one. Whoever dies, whenever: what `CURRENT`
//! names is whole. A failure after the rename is one all the same, though the new checkpoint counts.
//!
//! Restoring looks at everything first, on all ranks: the ranks, what is allocated, lengths, checksums. Only then a byte of memory
//! changes.
//!
//! It is the heap of each rank that is written, or a [`DeviceMemory`] that each has beside it (`held.rs`).

mod directory;
mod file;
mod held;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;

use super::Communicator;
use crate::collective::Operation;
use crate::epoch_id::EpochId;
use crate::error::{Error, Result};
use crate::faults::{FILE, FaultPoint};
use crate::heap::DeviceMemory;
use directory::{Current, Directory, PartDigest};
use file::PartReader;
use held::CheckpointSource;

/// The process that writes a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its number.
    pub process: u32,
    /// It was stopped, and has the directory until it goes on or is killed.
    pub is_stopped: bool,
}

/// What helps against whoever writes one.
struct Remedy(Option<Holder>);

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Holder { process, is_stopped: true }) => write!(
                f,
                " by process {process}, which is stopped: `kill -CONT {process}` has it go on, `kill -KILL {process}` ends it"
            ),
            Some(Holder { process, .. }) => {
                write!(f, " by process {process}; wait for it, `kill {process}` if it hangs")
            }
            None => f.write_str("; wait for it, end it if it hangs"),
        }
    }
}

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointFault {
    /// There is none.
    #[error("there is no checkpoint; write one first, or name another directory")]
    Missing,
    /// Somebody else is writing one there, or was stopped while it did.
    #[error("another job writes a checkpoint there{}, or name another directory", Remedy(*.holder))]
    InUse {
        /// Who that is, where the system tells it.
        holder: Option<Holder>,
    },
    /// The system refused something.
    #[error("{action} failed: {source}; {remedy}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// What helps.
        remedy: &'static str,
        /// The system's own error.
        source: std::io::Error,
    },
    /// What has the name of a file is something else, which might keep a reader waiting for ever.
    #[error("it is no regular file; remove it, or name another directory")]
    NoFile,
    /// A file is not what was written.
    #[error(
        "{what} is not what was written; the file is damaged: restore it from a copy, or use an older checkpoint"
    )]
    Damaged {
        /// What part of it.
        what: &'static str,
    },
    /// It is one of a job of another size.
    #[error("it is of {found} ranks, and this job has {expected}; start as many")]
    Ranks {
        /// How many it is of.
        found: u64,
        /// How many there are.
        expected: u64,
    },
    /// It is one of another kind of memory.
    #[error("it is of {found}, and {expected} is to be restored; name another directory")]
    Kind {
        /// What it is of.
        found: &'static str,
        /// What is to be restored.
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
    /// What is allocated now is not what was allocated then.
    #[error(
        "it holds {found} allocations, the first that differs {place}, and this job has {expected}; allocate the same, in the same \
         order, before it is restored"
    )]
    Layout {
        /// How many allocations it holds.
        found: u64,
        /// How many there are.
        expected: u64,
        /// Where the first one that differs starts in the heap, as far as there is one.
        place: FirstDifference,
    },
}

/// Where an allocation starts, for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstDifference(Option<u64>);

impl std::fmt::Display for FirstDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(offset) => write!(f, "at {offset}"),
            None => f.write_str("being one that is not there"),
        }
    }
}

/// The error of the checkpoint, or its file, at `path`.
fn at(path: &Path, fault: CheckpointFault) -> Error {
    Error::Checkpoint { path: path.to_owned(), fault: Box::new(fault) }
}

/// What the system says about `action` on `path`.
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
    /// Writes all that is allocated in the heaps of all ranks to `directory`, which it makes if need be, and returns the number of the
    /// checkpoint there, from 1 on. Collective, through a communicator that all ranks of the job belong to; each names the same
    /// directory, and writes its own part.
    ///
    /// What was enqueued is done first; puts of others count that this rank has waited for, and nothing may be under way. The directory
    /// is for one job at a time, which is seen to. A checkpoint that was there before stays valid until the new one is whole and on the disk, whatever
    /// happens, and is removed then.
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
    /// [`Error::Checkpoint`] where it failed, [`Error::FailedElsewhere`] on the other ranks, [`Error::Mismatch`] for different
    /// directories: all can go on and try again. [`Error::InvalidArgument`] for a communicator of some ranks. Otherwise those of
    /// [`Communicator::barrier`], which end the epoch.
    pub fn checkpoint(&mut self, directory: impl AsRef<Path>) -> Result<u64> {
        self.write_checkpoint(CheckpointSource::Heap, directory.as_ref())
    }

    /// As [`Communicator::checkpoint`], but of a memory that each rank has beside the heap: of what was used of it, that is, copied to
    /// or from. What is copied there meanwhile may or may not be in it.
    ///
    /// # Errors
    /// Those of [`Communicator::checkpoint`].
    pub fn checkpoint_memory(&mut self, memory: &DeviceMemory, directory: impl AsRef<Path>) -> Result<u64> {
        self.write_checkpoint(CheckpointSource::Device(memory), directory.as_ref())
    }

    fn write_checkpoint(&mut self, source: CheckpointSource<'_>, directory: &Path) -> Result<u64> {
        self.check_all_ranks()?;
        self.context().enter(Operation::Checkpoint.name())?;
        self.as_one(Operation::Checkpoint, |comm| {
            let directory = Directory::new(directory);
            let mut writing = Writing { comm, source, directory, lock: None };
            let generation = writing.begin()?;
            let parts = writing.write(generation)?;
            writing.commit(generation, parts)?;
            Ok(generation)
        })
    }

    /// Reads back into the heaps of all ranks what [`Communicator::checkpoint`] has written to `directory`, and returns its number.
    /// Collective. The job has as many ranks as then, and has allocated the same: the same lengths in the same order.
    ///
    /// Everything is checked first, on all ranks, lengths and checksums among it. Where anything is wrong no byte has changed on
    /// any rank, and all can go on.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with what is wrong, [`Error::FailedElsewhere`] on the other ranks; nothing has changed. An error of the same
    /// kind ends the epoch when a file changes between the check and the reading. Otherwise those of [`Communicator::checkpoint`].
    pub fn restore(&mut self, directory: impl AsRef<Path>) -> Result<u64> {
        self.read_checkpoint(CheckpointSource::Heap, directory.as_ref())
    }

    /// Reads back into a memory of each rank what [`Communicator::checkpoint_memory`] has written to `directory`; what has been used since
    /// is zero again. Each rank has as much memory as then.
    ///
    /// # Errors
    /// Those of [`Communicator::restore`]. What memory holds has not changed then; more of it may have been asked for.
    pub fn restore_memory(&mut self, memory: &DeviceMemory, directory: impl AsRef<Path>) -> Result<u64> {
        self.read_checkpoint(CheckpointSource::Device(memory), directory.as_ref())
    }

    fn read_checkpoint(&mut self, source: CheckpointSource<'_>, directory: &Path) -> Result<u64> {
        self.check_all_ranks()?;
        self.context().enter(Operation::Restore.name())?;
        self.as_one(Operation::Restore, |comm| comm.read_all_parts(source, directory))
    }

    fn read_all_parts(&mut self, source: CheckpointSource<'_>, directory: &Path) -> Result<u64> {
        self.step()?;
        let checked = self.open_part(source, &Directory::new(directory));
        let own = checked.as_ref().map_or([0; 2], |(_, current)| [current.generation, current.checksum()]);
        let (told, (mut reader, _)) = self.in_step_with(Operation::Restore, own, checked)?;
        let [generation, checksum] = own;
        self.same(&told, "the number of the checkpoint", generation)?;
        let checksums: Vec<_> = told.iter().map(|words| [words[1], 0]).collect();
        self.same(&checksums, "the checkpoint (by a checksum of what names it)", checksum)?;
        self.step()?;
        source.load(self, &mut reader).inspect_err(|_| self.revoke())?;
        self.in_step_with(Operation::Restore, [0; 2], Ok(()))?;
        Ok(generation)
    }

    /// Opens this rank's part of the checkpoint that counts, and looks whether it is whole and fits.
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

    /// This rank as the job numbers it.
    fn own_number(&self) -> u64 {
        self.context().rank().get().into()
    }

    /// A step at which a fault may strike.
    fn step(&self) -> Result<()> {
        if self.context().is_faulty() { self.context().inject(FaultPoint::Step) } else { Ok(()) }
    }

    /// Tells all ranks `words` and whether `outcome` is one; goes on when it is on all of them. Returns what each has told, by the
    /// numbers of the job.
    fn in_step_with<R>(
        &mut self,
        operation: Operation,
        words: [u64; 2],
        outcome: Result<R>,
    ) -> Result<(Vec<[u64; 2]>, R)> {
        let failed = u64::from(outcome.is_err());
        let told = self.engine()?.exchange(operation, &[failed, words[0], words[1]])?;
        self.context().check(operation.name())?;
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

    /// Looks whether all have `told` the same first word.
    fn same(&self, told: &[[u64; 2]], what: &'static str, mine: u64) -> Result<()> {
        let other = told.iter().position(|words| words[0] != mine);
        other.map_or(Ok(()), |index| {
            let rank = *self.members.iter().find(|rank| rank.index() == index).expect("all have told");
            Err(Error::Mismatch { what, mine, rank, theirs: told[index][0] })
        })
    }
}

/// A checkpoint on its way.
struct Writing<'c> {
    comm: &'c mut Communicator,
    source: CheckpointSource<'c>,
    directory: Directory,
    /// The first rank's, from its first step to its last.
    lock: Option<Flock<File>>,
}

impl Writing<'_> {
    /// Whether this rank does what one does for all.
    fn is_first(&self) -> bool {
        self.comm.context().rank().get() == 0
    }

    fn epoch_id(&self) -> EpochId {
        self.comm.context().mapped().epoch_id()
    }

    fn in_step<R>(&mut self, words: [u64; 2], outcome: Result<R>) -> Result<(Vec<[u64; 2]>, R)> {
        self.comm.in_step_with(Operation::Checkpoint, words, outcome)
    }

    /// Makes room for the next generation, and returns its number.
    fn begin(&mut self) -> Result<u64> {
        self.comm.step()?;
        let next = if self.is_first() { self.make() } else { Ok(0) };
        let next = settle(next)?;
        let (told, _) = self.in_step([*next.as_ref().unwrap_or(&0), 0], next)?;
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
        self.agree_on_place().inspect_err(|_| self.sweep())?;
        let written = settle(self.write_part(generation))?;
        let words = written.as_ref().map_or([0; 2], |part| [part.digest.into(), part.len]);
        let (told, _) = self.in_step(words, written).inspect_err(|_| self.sweep())?;
        Ok(told.iter().map(|&[digest, len]| PartDigest { digest: low(digest), len }).collect())
    }

    /// Looks whether all mean the same directory, before anybody writes to it.
    fn agree_on_place(&mut self) -> Result<()> {
        let checksum = |place: PathBuf| crc32c::crc32c(place.as_os_str().as_encoded_bytes());
        let place = settle(self.directory.canonical().map(checksum))?;
        let own = u64::from(*place.as_ref().unwrap_or(&0));
        let (told, _) = self.in_step([own, self.source.kind() as u64], place)?;
        self.comm.same(&told, "the directory of the checkpoint (by a checksum of its path)", own)?;
        let kinds: Vec<_> = told.iter().map(|words| [words[1], 0]).collect();
        self.comm.same(&kinds, "what the checkpoint is of", self.source.kind() as u64)
    }

    fn write_part(&self, generation: u64) -> Result<PartDigest> {
        let comm = &*self.comm;
        comm.step()?;
        let path = self.directory.part_aside(generation, self.epoch_id(), comm.own_number());
        let header = self.source.header(comm, generation);
        // Who was stopped and given up meanwhile writes nothing any more.
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

    /// Makes `generation` the one that counts.
    fn commit(&mut self, generation: u64, parts: Vec<PartDigest>) -> Result<()> {
        self.comm.step()?;
        let current = Current { generation, parts };
        let committed = if self.is_first() { self.replace(&current) } else { Ok(()) };
        let committed = settle(committed)?;
        self.in_step([0; 2], committed).inspect_err(|_| self.sweep()).map(drop)
    }

    fn replace(&self, current: &Current) -> Result<()> {
        // Who was given up meanwhile names nothing any more.
        self.comm.context().check(Operation::Checkpoint.name())?;
        self.directory.name_generation(current.generation, self.epoch_id())?;
        let aside = self.directory.write_aside(current)?;
        self.comm.step()?;
        self.comm.context().check(Operation::Checkpoint.name())?;
        self.directory.replace(&aside)?;
        self.comm.step()?;
        // What cannot be removed now is by the next checkpoint.
        let _later = self.directory.sweep(current.generation);
        Ok(())
    }

    /// Removes what was written by an attempt that has failed, if it does not count. What cannot be removed now is by the next one.
    fn sweep(&self) {
        if self.lock.is_some()
            && let Ok(current) = self.directory.current()
        {
            let _later = self.directory.sweep(current.map_or(0, |current| current.generation));
        }
    }
}

/// What is to be told to the others, unless this rank was killed: then it tells nobody.
fn settle<R>(outcome: Result<R>) -> Result<Result<R>> {
    match outcome {
        Err(error @ Error::FaultInjected { .. }) => Err(error),
        outcome => Ok(outcome),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is asked for")]
const fn low(word: u64) -> u32 {
    word as u32
}
