//! The directory of a checkpoint: which generation counts, and what is left of others.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::Flock;

use super::{CheckpointFault, Holder, at, io};
use crate::epoch_id::EpochId;
use crate::error::Result;
use crate::files;
use crate::process;
use crate::rank::MAX_RANKS;
use crate::shm::system::within_file_size;

/// The file that names the valid generation, and its name while it is written.
const CURRENT: &str = "CURRENT";
const ASIDE: &str = "CURRENT.new";

/// The beginning of the names of generations' directories.
const GENERATION: &str = "generation-";

/// The beginning of the names of ranks' files.
const RANK: &str = "rank";

/// How long the holder of the directory may take to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

const FIRST_LINE: &str = "shmccl checkpoint 1";

/// The most bytes of `CURRENT`: a line for each rank, and some more.
const LONGEST: u64 = 64 * (MAX_RANKS as u64 + 8);

/// A directory with checkpoints.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
}

/// The contents of `CURRENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Current {
    pub(super) generation: u64,
    /// The part of each rank.
    pub(super) parts: Vec<PartDigest>,
}

/// The file that a rank has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartDigest {
    /// The checksum of all its checksums.
    pub(super) digest: u32,
    /// The length of its file.
    pub(super) len: u64,
}

impl Directory {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Makes the directory, if it is missing, and locks it until the returned value is dropped. A
    /// stopped process keeps its lock.
    pub(super) fn make(&self) -> Result<Flock<File>> {
        let make = |error| io(&self.path, "making the directory", error);
        let path = std::path::absolute(&self.path).map_err(make)?;
        let missing: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
        fs::create_dir_all(&path).map_err(make)?;
        missing.iter().filter_map(|made| made.parent()).try_for_each(sync_directory)?;
        let directory = File::open(&path).map_err(make)?;
        let refused = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock => at(&self.path, CheckpointFault::InUse { holder: self.holder() }),
            _ => io(&self.path, "locking the directory", error),
        };
        files::hold(directory, PATIENCE, || true).map_err(refused)
    }

    /// Returns the holder of the lock, where the system says it.
    fn holder(&self) -> Option<Holder> {
        let process = files::holder(&fs::metadata(&self.path).ok()?)?;
        Some(Holder { process, is_stopped: process::is_stopped(process) })
    }

    /// Returns its canonical path, the same for every process.
    pub(super) fn canonical(&self) -> Result<PathBuf> {
        self.path.canonicalize().map_err(|error| io(&self.path, "finding the directory", error))
    }

    /// Returns the file of `rank` in `generation`.
    pub(super) fn part(&self, generation: u64, rank: u64) -> PathBuf {
        self.generation(generation).join(format!("{RANK}{rank}"))
    }

    /// Returns the file of `rank` while `generation` is being written in the epoch `epoch_id`.
    pub(super) fn part_aside(&self, generation: u64, epoch_id: EpochId, rank: u64) -> PathBuf {
        self.generation_aside(generation, epoch_id).join(format!("{RANK}{rank}"))
    }

    fn generation(&self, generation: u64) -> PathBuf {
        self.path.join(format!("{GENERATION}{generation}"))
    }

    /// Returns a name to which no other epoch writes. Even a rank of an earlier epoch that wakes
    /// late does not.
    fn generation_aside(&self, generation: u64, epoch_id: EpochId) -> PathBuf {
        let EpochId { job, epoch } = epoch_id;
        self.path.join(format!("{GENERATION}{generation}.{job:016x}-{epoch}"))
    }

    /// Makes the directory in which `generation` is written in the epoch `epoch_id`.
    pub(super) fn make_generation(&self, generation: u64, epoch_id: EpochId) -> Result<()> {
        let path = self.generation_aside(generation, epoch_id);
        fs::create_dir(&path).map_err(|error| io(&path, "making the directory of a generation", error))
    }

    /// Gives the directory of a complete `generation` its own name, once the names in it are on the
    /// disk.
    pub(super) fn name_generation(&self, generation: u64, epoch_id: EpochId) -> Result<()> {
        let (aside, path) = (self.generation_aside(generation, epoch_id), self.generation(generation));
        sync_directory(&aside)?;
        fs::rename(&aside, &path).map_err(|error| io(&path, "naming the directory of a generation", error))
    }

    /// Returns the valid generation, if there is one.
    pub(super) fn current(&self) -> Result<Option<Current>> {
        let path = self.path.join(CURRENT);
        const ACTION: &str = "reading which generation counts";
        if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(None);
        }
        let (file, mut text) = (open(&path, ACTION)?, Vec::new());
        file.take(LONGEST).read_to_end(&mut text).map_err(|error| io(&path, ACTION, error))?;
        let current = std::str::from_utf8(&text).ok().and_then(Current::read);
        current
            .map(Some)
            .ok_or_else(|| at(&path, CheckpointFault::Damaged { what: "the file that names the generation" }))
    }

    /// Removes all generations but `keep`, and unfinished ones. The disk has `keep` as the valid
    /// one before.
    pub(super) fn sweep(&self, keep: u64) -> Result<()> {
        let sweep = |error| io(&self.path, "removing what is left of earlier checkpoints", error);
        // The process that named it may have died before that was on the disk.
        sync_directory(&self.path)?;
        for entry in fs::read_dir(&self.path).map_err(sweep)? {
            let entry = entry.map_err(sweep)?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| is_left_over(name, keep)) {
                remove_generation(&entry.path()).map_err(sweep)?;
            } else if name == *ASIDE {
                fs::remove_file(entry.path()).map_err(sweep)?;
            }
        }
        Ok(())
    }

    /// Writes `current` aside, and waits until it is on the disk.
    pub(super) fn write_aside(&self, current: &Current) -> Result<PathBuf> {
        let path = self.path.join(ASIDE);
        let write = |error| io(&path, "writing which generation counts", error);
        let mut file = File::create(&path).map_err(write)?;
        within_file_size(|| file.write_all(current.text().as_bytes())).map_err(write)?;
        file.sync_all().map_err(write)?;
        // The name of the generation's directory.
        sync_directory(&self.path)?;
        Ok(path)
    }

    /// Replaces the valid file by the one at `aside`.
    pub(super) fn replace(&self, aside: &Path) -> Result<()> {
        let path = self.path.join(CURRENT);
        fs::rename(aside, &path).map_err(|error| io(&path, "naming the new generation", error))?;
        sync_directory(&self.path)
    }
}

/// Opens the file at `path` to read it.
pub(super) fn open(path: &Path, action: &'static str) -> Result<File> {
    let file = files::open_regular(path).map_err(|error| io(path, action, error))?;
    file.ok_or_else(|| at(path, CheckpointFault::NoFile))
}

/// Returns the number that follows `prefix` in `name`, in its canonical form.
fn number_behind(prefix: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    digits.parse().ok().filter(|number: &u64| number.to_string() == digits)
}

/// Returns whether `name` is of a generation that is not valid, where `keep` is. An unfinished one
/// never is.
fn is_left_over(name: &str, keep: u64) -> bool {
    match name.split_once('.') {
        Some((name, writer)) => is_writer(writer) && number_behind(GENERATION, name).is_some(),
        None => number_behind(GENERATION, name).is_some_and(|number| number != keep),
    }
}

/// Returns whether this names an epoch as [`Directory::generation_aside`] writes it.
fn is_writer(text: &str) -> bool {
    let is_job = |job: &str| job.len() == 16 && job.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split_once('-').is_some_and(|(job, epoch)| is_job(job) && epoch.parse::<u64>().is_ok())
}

/// Removes a generation. It fails where there is anything that ranks do not write.
fn remove_generation(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| number_behind(RANK, name).is_some()) {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(path)
}

fn sync_directory(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| io(path, "waiting for names to be on the disk", error))
}

impl Current {
    /// Returns a checksum that differs for different contents, almost surely.
    pub(super) fn checksum(&self) -> u64 {
        crc32c::crc32c(self.text().as_bytes()).into()
    }

    /// Lines for people to read, and behind them their checksum.
    fn text(&self) -> String {
        let ranks = self.parts.len();
        let mut text = format!("{FIRST_LINE}\ngeneration {}\nranks {ranks}\n", self.generation);
        for (rank, PartDigest { digest, len }) in self.parts.iter().enumerate() {
            text += &format!("rank {rank} {len} {digest:08x}\n");
        }
        let checksum = crc32c::crc32c(text.as_bytes());
        text + &format!("crc32c {checksum:08x}\n")
    }

    /// Reads what [`Current::text`] has written; `None` for anything else.
    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines().skip(1);
        let generation = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
        let ranks: u32 = lines.next()?.strip_prefix("ranks ")?.parse().ok()?;
        if ranks > MAX_RANKS {
            return None;
        }
        let part = |rank: u32| {
            let (len, digest) = lines.next()?.strip_prefix(&format!("rank {rank} "))?.split_once(' ')?;
            Some(PartDigest { len: len.parse().ok()?, digest: u32::from_str_radix(digest, 16).ok()? })
        };
        let current = Self { generation, parts: (0..ranks).map(part).collect::<Option<_>>()? };
        // All of it, checksum and first line included.
        (current.text() == text).then_some(current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ranks_write_is_removed_with_a_generation() {
        let path = std::env::temp_dir().join(format!("shmccl-test-{}-foreign", std::process::id()));
        let directory = Directory::new(&path);
        let lock = directory.make().unwrap();
        for name in ["generation-1", "generation-007", "generation-+5", "generations-3"] {
            fs::create_dir(path.join(name)).unwrap();
            fs::write(path.join(name).join("rank0"), "").unwrap();
        }
        directory.sweep(0).unwrap();
        let left = |name: &str| path.join(name).exists();
        assert!(
            !left("generation-1") && left("generation-007") && left("generation-+5") && left("generations-3")
        );
        let epoch_id = EpochId { job: 0xabc, epoch: 3 };
        directory.make_generation(4, epoch_id).unwrap();
        fs::write(directory.part_aside(4, epoch_id, 1), "").unwrap();
        for name in
            ["generation-4.thesis", "generation-4.0000000000000abc", "generation-x.0000000000000abc-3"]
        {
            fs::create_dir(path.join(name)).unwrap();
        }
        directory.sweep(4).unwrap();
        assert!(!left("generation-4.0000000000000abc-3"), "no number counts that was written aside");
        assert!(left("generation-4.thesis") && left("generation-4.0000000000000abc"));
        assert!(left("generation-x.0000000000000abc-3"));
        fs::create_dir(path.join("generation-2")).unwrap();
        fs::write(path.join("generation-2/thesis"), "").unwrap();
        assert!(directory.sweep(0).is_err() && left("generation-2/thesis"));
        let refused = directory.make().unwrap_err();
        let Some(&CheckpointFault::InUse { holder }) = refused.detail() else { panic!("{refused}") };
        let me = Holder { process: std::process::id(), is_stopped: false };
        assert!(
            holder.is_none_or(|holder| holder == me),
            "the lock is taken, and who has it is named: {refused}"
        );
        drop(lock);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_helps_against_a_stopped_process_that_has_a_directory_is_told() {
        let told = |holder| CheckpointFault::InUse { holder }.to_string();
        assert_eq!(
            told(Some(Holder { process: 7, is_stopped: true })),
            "another job writes a checkpoint there by process 7, which is stopped: `kill -CONT 7` has it go on, `kill -KILL 7` ends it, \
             or name another directory"
        );
        assert!(told(Some(Holder { process: 7, is_stopped: false })).contains("by process 7; wait for it, "));
        assert!(told(None).starts_with("another job writes a checkpoint there; wait for it, end it"));
    }

    #[test]
    fn a_directory_whose_descriptor_a_forked_process_keeps_for_a_moment_is_waited_for() {
        let path = std::env::temp_dir().join(format!("shmccl-test-{}-kept", std::process::id()));
        let directory = Directory::new(&path);
        fs::create_dir_all(&path).unwrap();
        let kept = File::open(&path).unwrap();
        kept.lock().unwrap();
        std::thread::scope(|scope| {
            let made = scope.spawn(|| directory.make().map(drop));
            // Whether it has tried by then makes no difference.
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(30) {
                std::thread::yield_now();
            }
            drop(kept);
            made.join().unwrap().unwrap();
        });
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_names_a_generation_is_read_as_it_was_written_and_not_with_any_bit_flipped() {
        for ranks in [1, 2, 64, 256] {
            let part =
                |rank: u32| PartDigest { digest: rank.wrapping_mul(0x9e37_79b9), len: u64::from(rank) << 33 };
            let current = Current { generation: 77, parts: (0..ranks).map(part).collect() };
            let text = current.text();
            assert!(text.len() as u64 <= LONGEST);
            assert_eq!(Current::read(&text), Some(current));
            for bit in 0..text.len() * 8 {
                let mut bytes = text.clone().into_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let read = std::str::from_utf8(&bytes).ok().and_then(Current::read);
                assert_eq!(read, None, "bit {bit}");
            }
            assert_eq!(Current::read(&text[..text.len() - 1]), None);
        }
        assert_eq!(Current::read(""), None);
    }
}
