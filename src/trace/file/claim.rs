//! A file for each who writes a trace without a launcher, though all are told the same name.
//!
//! Nobody hands out names: two communicators of one process, two jobs of one program, or devices of
//! a pool whose communicators have the same ranks one after the other, come with the same name.
//! Each file is locked until it is written, and says then who has written it. Whoever comes with
//! its name leaves it alone, and takes the next number, if it
//!
//! - is locked, or was written by this process before;
//! - was written by a process that still lives;
//! - was written since this process began, whoever did it: they were there at the same time.
//!
//! Anything else is of an earlier run, or empty, and is written anew, as it is by a launcher: the
//! same command leaves the same names.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use serde::Deserialize;

use super::super::json::WRITER;
use crate::shm::undivided::ForkMutex;
use crate::sync::header::Creator;

/// The head of a file, in which its writer stands.
const HEAD: u64 = 1 << 10;

/// The files that this process has claimed.
static CLAIMED: ForkMutex<Claimed> =
    ForkMutex::new(Claimed { files: BTreeSet::new(), last: BTreeMap::new() });

struct Claimed {
    files: BTreeSet<PathBuf>,
    /// By the name that it came with, the number of the last file: those before it are its own, or
    /// were somebody else's.
    last: BTreeMap<PathBuf, u64>,
}

/// Makes the file of that name, or of the first one after it that is nobody else's: `trace.json`,
/// `trace-2.json`, ...
pub(super) fn claim(name: &Path) -> io::Result<(File, PathBuf)> {
    let mut number = CLAIMED.with(|claimed| claimed.last.get(name).copied().unwrap_or(0));
    loop {
        number += 1;
        let path = numbered(name, number);
        if CLAIMED.with(|claimed| claimed.files.contains(&path)) {
            continue;
        }
        // Outside any step: a pipe is opened when somebody reads it.
        let file = File::options().write(true).create(true).truncate(false).open(&path)?;
        // A terminal or /dev/null is for everybody.
        if file.metadata()?.is_file() {
            match file.try_lock() {
                Ok(()) if is_of_this_run(&path) => continue,
                Ok(()) => file.set_len(0)?,
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            CLAIMED.with(|claimed| {
                claimed.files.insert(path.clone());
                claimed.last.insert(name.to_owned(), number);
            });
        }
        return Ok((file, path));
    }
}

/// Returns whether this process has claimed a file of that name.
pub(super) fn has_claimed(name: &Path) -> bool {
    CLAIMED.with(|claimed| claimed.last.contains_key(name))
}

/// Returns whether something stands in this file that a process has written which lives, or while
/// this one did.
fn is_of_this_run(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    let began = || Some(metadata.modified().ok()? >= began(&Creator::this_process())?);
    metadata.len() > 0 && (began().unwrap_or(false) || writer(path).is_some_and(|writer| writer.is_alive()))
}

/// When a process began, rounded up by a step of the system's: what was written just before it
/// began is older than that. (What a peer writes within that step, and ends, is taken for older,
/// too.) A pause of this thread makes it earlier, not later.
fn began(process: &Creator) -> Option<SystemTime> {
    let steps = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok().filter(|steps| *steps > 0)?;
    let since_boot = Duration::from_nanos(
        u64::try_from((u128::from(process.start) + 1) * 1_000_000_000 / u128::from(steps)).ok()?,
    );
    let now = SystemTime::now();
    let ago = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?).checked_sub(since_boot);
    Some(now - ago.unwrap_or_default())
}

/// Returns the process that has written this trace, where the file says so.
fn writer(path: &Path) -> Option<Creator> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let head = String::from_utf8_lossy(&head);
    let (_, writer) = head.split_once(&format!("\"{WRITER}\":"))?;
    Creator::deserialize(&mut serde_json::Deserializer::from_str(writer)).ok()
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().map_or_else(OsString::new, OsString::from);
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long before any process of this run began.
    fn make_old(path: &Path) {
        File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    fn head_by(writer: Creator) -> String {
        let writer = serde_json::to_string(&writer).unwrap();
        format!(r#"{{"displayTimeUnit":"ns","otherData":{{"{WRITER}":{writer},"overwritten":{{}}"#)
    }

    #[test]
    fn what_others_have_written_is_left_alone_while_they_live_and_if_it_was_since_this_process_began() {
        let stem = format!("shmccl-others-{}", std::process::id());
        let path = |end: &str| std::env::temp_dir().join(format!("{stem}{end}.json"));
        let (living, dead) =
            (Creator::this_process(), Creator { pid: u64::from(u32::MAX), ..Creator::default() });
        for (end, head, is_old, is_kept) in [
            (".0", head_by(living), true, true),
            (".1", head_by(dead), false, true),
            (".2", head_by(dead), true, false),
            (".3", head_by(Creator { start: living.start + 1, ..living }), true, false),
            (".4", String::new(), false, false),
        ] {
            let (name, next) = (path(end), path(&format!("{end}-2")));
            std::fs::write(&name, &head).unwrap();
            if is_old {
                make_old(&name);
            }
            let expected = if is_kept { next } else { name.clone() };
            assert_eq!(claim(&name).unwrap().1, expected, "{head}, {is_old}");
            let left = if is_kept { head.len() } else { 0 };
            assert_eq!(std::fs::read(&name).unwrap().len(), left);
            std::fs::remove_file(&expected).unwrap();
            let _ = std::fs::remove_file(name);
        }
    }

    #[test]
    fn each_who_claims_a_name_gets_a_file_of_its_own_and_what_an_earlier_run_has_left_is_written_anew() {
        let stem = format!("shmccl-claim-{}", std::process::id());
        let [first, second, third] =
            [".0", ".0-2", ".0-3"].map(|end| std::env::temp_dir().join(format!("{stem}{end}.json")));
        // As of another run.
        std::fs::write(&first, "old").unwrap();
        make_old(&first);
        let (file, path) = claim(&first).unwrap();
        assert_eq!((&path, std::fs::read(&path).unwrap().len()), (&first, 0));
        drop(file);
        let elsewhere = File::create(&second).unwrap();
        elsewhere.lock().unwrap();
        let (_, path) = claim(&first).unwrap();
        assert_eq!(path, third, "the first is this process's own, the second somebody else's");
        for path in [first, second, third] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn there_are_as_many_files_of_a_name_as_are_claimed() {
        let directory = std::env::temp_dir().join(format!("shmccl-claims-{}", std::process::id()));
        // A failed run may have left it whose process had the same number.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let name = directory.join("trace.json");
        assert!(!has_claimed(&name));
        for number in 1..=1100 {
            assert_eq!(claim(&name).unwrap().1, numbered(&name, number));
        }
        assert!(has_claimed(&name));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(claim(&name).is_err(), "where there is no directory");
    }

    #[test]
    fn a_device_has_one_name_for_all() {
        for _ in 0..2 {
            assert_eq!(claim(Path::new("/dev/null")).unwrap().1, Path::new("/dev/null"));
        }
    }
}
