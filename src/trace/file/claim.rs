//! A file for each who writes a trace without a launcher, though all are told the same name.
//!
//! Nobody hands out names: two communicators of one process, or two jobs of one program, come with the same name and rank. Each file is
//! locked until it is written. Who finds it locked, or has written it itself before, takes the next number; a file that an earlier run
//! has left is written anew, as it is by a launcher.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What this process has claimed.
static CLAIMED: Mutex<Claimed> = Mutex::new(Claimed { files: BTreeSet::new(), last: BTreeMap::new() });

struct Claimed {
    files: BTreeSet<PathBuf>,
    /// By the name that it came with, the number of the last file: those before it are its own, or were somebody else's.
    last: BTreeMap<PathBuf, u64>,
}

/// Makes the file of that name, or of the first one after it that is nobody else's: `trace.json`, `trace-2.json`, ...
pub(super) fn claim(name: &Path) -> io::Result<(File, PathBuf)> {
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut number = claimed.last.get(name).copied().unwrap_or(0);
    loop {
        number += 1;
        let path = numbered(name, number);
        if claimed.files.contains(&path) {
            continue;
        }
        let file = File::options().write(true).create(true).truncate(false).open(&path)?;
        // A terminal or /dev/null is for everybody.
        if file.metadata()?.is_file() {
            match file.try_lock() {
                Ok(()) => file.set_len(0)?,
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(error),
            }
            claimed.files.insert(path.clone());
            claimed.last.insert(name.to_owned(), number);
        }
        return Ok((file, path));
    }
}

/// Whether this process has claimed a file of that name.
pub(super) fn has_claimed(name: &Path) -> bool {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).last.contains_key(name)
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

    #[test]
    fn each_who_claims_a_name_gets_a_file_of_its_own_and_what_an_earlier_run_has_left_is_written_anew() {
        let stem = format!("shmccl-claim-{}", std::process::id());
        let [first, second, third] =
            [".0", ".0-2", ".0-3"].map(|end| std::env::temp_dir().join(format!("{stem}{end}.json")));
        // As of another run.
        std::fs::write(&first, "old").unwrap();
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
