//! What is loaded into this process, by its program headers, and the range of the executable that
//! holds its static objects.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::super::PAGE;

/// The executable of this process.
pub(super) const OWN_FILE: &str = "/proc/self/exe";

/// A file that is loaded: the executable or a shared library.
#[derive(Debug)]
pub(super) struct LoadedFile {
    /// Where it can be read.
    pub(super) path: PathBuf,
    /// What is added to the addresses in the file.
    pub(super) base: u64,
    /// Where the calling thread has its thread-local objects of the file, or 0.
    pub(super) thread_locals: u64,
    pub(super) headers: Vec<libc::Elf64_Phdr>,
}

impl LoadedFile {
    /// Returns the headers of a kind.
    pub(super) fn headers_of(&self, kind: u32) -> impl Iterator<Item = &libc::Elf64_Phdr> {
        self.headers.iter().filter(move |header| header.p_type == kind)
    }

    /// Returns whether it is the executable.
    pub(super) fn is_executable(&self) -> bool {
        self.path == Path::new(OWN_FILE)
    }
}

/// Returns what is loaded, the executable first.
pub(super) fn loaded_files() -> Vec<LoadedFile> {
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

/// The writable part of the executable behind what the loader has made read-only, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExecutableRange {
    low: u64,
    high: u64,
    /// How many bytes of it come from the executable's file.
    len_in_file: u64,
    holds_c_library: bool,
}

impl ExecutableRange {
    /// Finds it, where the executable has one: in the last of its writable segments.
    pub(super) fn find(executable: &LoadedFile) -> Option<Self> {
        let is_writable = |header: &&libc::Elf64_Phdr| header.p_flags & libc::PF_W != 0;
        let segment = executable.headers_of(libc::PT_LOAD).filter(is_writable).last()?;
        let start = executable.base + segment.p_vaddr;
        let relro = executable.headers_of(libc::PT_GNU_RELRO).last();
        // The loader protects whole pages, rounded down.
        let read_only = relro.map_or(0, |relro| executable.base + relro.p_vaddr + relro.p_memsz);
        let low = start.max(read_only) / PAGE * PAGE;
        let high = (start + segment.p_memsz).next_multiple_of(PAGE);
        let len_in_file = (start + segment.p_filesz).saturating_sub(low);
        let holds_c_library = executable.headers_of(libc::PT_INTERP).next().is_none();
        (low < high).then_some(Self { low, high, len_in_file, holds_c_library })
    }

    /// Returns its first address.
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    /// Returns its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.high - self.low
    }

    pub(super) fn len_in_file(&self) -> u64 {
        self.len_in_file
    }

    /// Returns whether the C library's data lie in it: nobody loads shared libraries into a program
    /// that is linked statically.
    pub(super) fn holds_c_library(&self) -> bool {
        self.holds_c_library
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u32, flags: u32, address: u64, in_file: u64, in_memory: u64) -> libc::Elf64_Phdr {
        libc::Elf64_Phdr {
            p_type: kind,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: address,
            p_paddr: address,
            p_filesz: in_file,
            p_memsz: in_memory,
            p_align: PAGE,
        }
    }

    fn range(headers: Vec<libc::Elf64_Phdr>) -> Option<(u64, u64, u64)> {
        let executable = LoadedFile { path: OWN_FILE.into(), base: 0x10_0000, thread_locals: 0, headers };
        let range = ExecutableRange::find(&executable)?;
        Some((range.low - executable.base, range.high - executable.base, range.len_in_file))
    }

    #[test]
    fn the_range_begins_behind_what_is_read_only_and_ends_with_a_page() {
        let code = header(libc::PT_LOAD, libc::PF_X | libc::PF_R, 0, 0x3000, 0x3000);
        let data = header(libc::PT_LOAD, libc::PF_W | libc::PF_R, 0x3db8, 0x270, 0x1_1234);
        let relro = header(libc::PT_GNU_RELRO, libc::PF_R, 0x3db8, 0x248, 0x248);
        assert_eq!(range(vec![code, data, relro]), Some((0x4000, 0x1_5000, 0x28)));
        assert_eq!(range(vec![code, data]), Some((0x3000, 0x1_5000, 0x1028)), "nothing is read-only");
        assert_eq!(range(vec![code]), None);
        // A linker that gives read-only data a segment of their own.
        let read_only = header(libc::PT_LOAD, libc::PF_W | libc::PF_R, 0x3db8, 0x248, 0x248);
        let apart = header(libc::PT_LOAD, libc::PF_W | libc::PF_R, 0x5010, 0x20, 0x30);
        assert_eq!(range(vec![code, read_only, apart, relro]), Some((0x5000, 0x6000, 0x30)));
    }

    #[test]
    fn the_executable_comes_first_and_has_the_statics_of_this_test() {
        static OBJECT: std::sync::Mutex<u64> = std::sync::Mutex::new(3);
        let files = loaded_files();
        assert!(files[0].is_executable() && !files[1].is_executable());
        let range = ExecutableRange::find(&files[0]).unwrap();
        let address = std::ptr::from_ref(&OBJECT).addr() as u64;
        assert!((range.low..range.high).contains(&address), "{address:#x} in {range:x?}");
    }
}
