//! Memory of the observer's own with the contents of a part of somebody's segment.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::uio::pread;

use crate::error::{Error, Result};
use crate::shm::Mapping;

/// Reads `len` bytes at `offset` of the file behind `descriptor`.
///
/// # Errors
/// [`Error::Os`] when they cannot be read; [`Error::OutOfRange`] when the file ends before.
pub(super) fn copy_of(descriptor: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Mapping> {
    let failed = |errno| Error::os("looking into a segment", errno);
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| failed(Errno::EOVERFLOW))?];
    let mut filled = 0;
    while filled < bytes.len() {
        let at = i64::try_from(offset.saturating_add(filled as u64)).map_err(|_| failed(Errno::EOVERFLOW))?;
        match pread(descriptor, &mut bytes[filled..], at) {
            Ok(0) => {
                let limit = offset.saturating_add(filled as u64);
                return Err(Error::OutOfRange { what: "segment", offset, len, limit });
            }
            Ok(count) => filled += count,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    let mapping = Mapping::boxed(len)?;
    mapping.span(0, len)?.copy_in(0, &bytes)?;
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_copy_holds_what_was_asked_for_and_no_more_than_there_is() {
        let path = std::env::temp_dir().join(format!("shmccl-copy-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut bytes = [0; 4];
        copy_of(file.as_fd(), 3, 4).unwrap().span(0, 4).unwrap().copy_out(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"3456");
        assert!(matches!(copy_of(file.as_fd(), 8, 4), Err(Error::OutOfRange { limit: 10, .. })));
        assert!(copy_of(file.as_fd(), u64::MAX, 4).is_err());
    }
}
