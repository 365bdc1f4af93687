//! The file behind a segment that is to survive: opened or made, and locked.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;

use super::limits::{self, Store};
use crate::error::{Error, Result};
use crate::locks;

/// How long whoever has the file may take to be gone, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the file, or makes it; says whether there was one.
pub(super) fn open(path: &Path) -> Result<(File, bool)> {
    use std::os::unix::fs::OpenOptionsExt;
    let open = |create_new: bool| {
        let mut options = File::options();
        options.read(true).write(true).create_new(create_new).mode(0o600);
        // A fifo or a terminal must not block or become ours; it is refused later.
        options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path)
    };
    let refused = |source| limits::refused("opening the file of a segment", Store::File, source);
    match open(true) {
        Ok(file) => Ok((file, false)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((open(false).map_err(refused)?, true))
        }
        Err(error) => Err(refused(error)),
    }
}

/// Locks the file for as long as anybody has this opening of it, or a duplicate. Waits for whoever is about to be gone.
pub(super) fn lock(file: &File) -> Result<()> {
    locks::lock(file, PATIENCE, || true).map_err(|error| Error::os("locking the file of a segment", error))
}
