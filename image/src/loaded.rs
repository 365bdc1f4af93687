//! What is loaded into this process, by its program headers.
#![allow(unsafe_code, reason = "the loader's own memory is read in its callback")]

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::OWN_FILE;

/// A file that is loaded: the executable or a shared library.
#[derive(Debug)]
pub(crate) struct LoadedFile {
    /// Where it can be read.
    pub(crate) path: PathBuf,
    /// What is added to the addresses in the file.
    pub(crate) base: u64,
    /// Where the calling thread has its thread-local objects of the file, or 0.
    pub(crate) thread_locals: u64,
    pub(crate) headers: Vec<libc::Elf64_Phdr>,
}

impl LoadedFile {
    /// Returns the headers of a kind.
    pub(crate) fn headers_of(&self, kind: u32) -> impl Iterator<Item = &libc::Elf64_Phdr> {
        self.headers.iter().filter(move |header| header.p_type == kind)
    }

    /// Returns whether it is the executable.
    pub(crate) fn is_executable(&self) -> bool {
        self.path == Path::new(OWN_FILE)
    }
}

/// Returns what is loaded, the executable first.
pub(crate) fn loaded_files() -> Vec<LoadedFile> {
    let mut files = Vec::new();
    // SAFETY: `note` takes what the C library gives it, and `files` lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut files).cast()) };
    files
}

/// # Safety
/// `info` describes a loaded file, and `files` is a vector of the caller's that nobody else uses.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _len: usize, files: *mut c_void) -> c_int {
    // SAFETY: the caller answers for it.
    let files = unsafe { &mut *files.cast::<Vec<LoadedFile>>() };
    // SAFETY: as above.
    let info = unsafe { &*info };
    let path = if files.is_empty() || info.dlpi_name.is_null() {
        OWN_FILE.into()
    } else {
        // SAFETY: the name of a loaded file ends with a zero.
        OsStr::from_bytes(unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()).into()
    };
    #[expect(clippy::disallowed_methods, reason = "it is memory of the loader's, not payload")]
    // SAFETY: a loaded file has as many headers there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let thread_locals = info.dlpi_tls_data.addr() as u64;
    files.push(LoadedFile { path, base: info.dlpi_addr, thread_locals, headers: headers.to_vec() });
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_comes_first() {
        let files = loaded_files();
        assert!(files[0].is_executable() && !files[1].is_executable());
    }
}
