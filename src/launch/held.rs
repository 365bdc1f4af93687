//! The file of the ranks' program, held open so that a rank that is started again runs the same.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access};

#[derive(Debug)]
pub(super) struct HeldProgram {
    name: OsString,
    path: PathBuf,
    file: File,
}

impl HeldProgram {
    /// Finds a program as the system does, and holds its file.
    pub(super) fn find(name: &OsStr) -> Option<Self> {
        let search = match name.as_bytes().contains(&b'/') {
            true => OsString::new(),
            false => std::env::var_os("PATH")?,
        };
        let mut paths = std::env::split_paths(&search).map(|directory| directory.join(name));
        let path = paths.find(|path| path.is_file() && access(path, AccessFlags::X_OK).is_ok())?;
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(&path).ok()?;
        Some(Self { name: name.to_owned(), path, file })
    }

    /// Returns by what name the file is executed: the program's, unless that stands for another
    /// file by now, or for none.
    pub(super) fn name(&self) -> OsString {
        let id = |file: Metadata| (file.dev(), file.ino());
        match (self.path.metadata().map(id), self.file.metadata().map(id)) {
            (Ok(there), Ok(held)) if there == held => self.name.clone(),
            // The interpreter of a script opens it as well, so it is not a number of its own.
            _ => format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into(),
        }
    }
}
