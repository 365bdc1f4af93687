//! Programs for a user who may not enter the directories that they were built in.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::copy_program;

use crate::job::with_environment_of;

/// A user that owns nothing.
pub(crate) const STRANGER: u32 = 65534;

/// Returns the program of `command` where every user can execute it: itself, or a copy.
fn for_all(program: &Path, directory: &Path) -> PathBuf {
    let may_enter = |above: &Path| above.metadata().is_ok_and(|found| found.permissions().mode() & 1 != 0);
    if program.ancestors().all(may_enter) {
        return program.to_owned();
    }
    let copy = directory.join(program.file_name().unwrap());
    if !copy.exists() {
        copy_program(program, &copy);
    }
    copy
}

/// Returns a directory that every user may write to, and nobody has.
pub(crate) fn open_scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("shmccl-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o1777)).unwrap();
    directory
}

/// Returns `command`, with programs that a user can execute who may enter `directory`.
pub(crate) fn executable_by_all(command: &Command, directory: &Path) -> Command {
    let there = |word: &std::ffi::OsStr| match Path::new(word) {
        path if path.is_absolute() && path.is_file() => for_all(path, directory).into_os_string(),
        _ => word.to_owned(),
    };
    let mut copy = Command::new(there(command.get_program()));
    copy.args(command.get_args().map(there)).current_dir(directory);
    with_environment_of(command, copy)
}
