//! Files that are read whatever somebody may have put in their place.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens the regular file at `path` to read it; `None` for anything else that has the name.
///
/// # Errors
/// What the system says of opening it.
pub(crate) fn open(path: &Path) -> io::Result<Option<File>> {
    // A pipe without a writer would be waited for, perhaps for ever.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}
