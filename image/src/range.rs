//! The range of the executable that holds its static objects.

use crate::PAGE;
use crate::loaded::{LoadedFile, loaded_files};

/// The writable part of the executable behind what the loader has made read-only, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutableRange {
    start: u64,
    len: u64,
    /// How many bytes of it come from the executable's file.
    len_in_file: u64,
    /// What is added to the addresses in the file.
    base: u64,
    holds_c_library: bool,
}

impl ExecutableRange {
    /// Finds that of this process, if its executable has one.
    #[must_use]
    pub fn find() -> Option<Self> {
        loaded_files().first().and_then(Self::of)
    }

    /// Finds it in the last of the writable segments.
    fn of(executable: &LoadedFile) -> Option<Self> {
        let base = executable.base;
        let is_writable = |header: &&libc::Elf64_Phdr| header.p_flags & libc::PF_W != 0;
        let segment = executable.headers_of(libc::PT_LOAD).filter(is_writable).last()?;
        let first = base + segment.p_vaddr;
        let relro = executable.headers_of(libc::PT_GNU_RELRO).last();
        // The loader protects whole pages, rounded down.
        let read_only = relro.map_or(0, |relro| base + relro.p_vaddr + relro.p_memsz);
        let start = first.max(read_only) / PAGE * PAGE;
        let end = (first + segment.p_memsz).next_multiple_of(PAGE);
        let len_in_file = (first + segment.p_filesz).saturating_sub(start);
        let holds_c_library = executable.headers_of(libc::PT_INTERP).next().is_none();
        let len = end.checked_sub(start).filter(|len| *len > 0)?;
        Some(Self { start, len, len_in_file, base, holds_c_library })
    }

    /// Returns its first address.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns its first address, as the executable's file numbers it.
    #[must_use]
    pub fn start_in_file(&self) -> u64 {
        self.start - self.base
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `false`: there is a page at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(crate) fn len_in_file(&self) -> u64 {
        self.len_in_file
    }

    /// Returns whether the C library's data lie in it: nobody loads shared libraries into a program
    /// that is linked statically.
    pub(crate) fn holds_c_library(&self) -> bool {
        self.holds_c_library
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OWN_FILE;

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
        let range = ExecutableRange::of(&executable)?;
        let start = range.start_in_file();
        Some((start, start + range.len, range.len_in_file))
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
    fn the_range_has_the_statics_of_this_test() {
        static OBJECT: std::sync::Mutex<u64> = std::sync::Mutex::new(3);
        let range = ExecutableRange::find().unwrap();
        let address = std::ptr::from_ref(&OBJECT).addr() as u64;
        assert!(address.wrapping_sub(range.start) < range.len, "{address:#x} in {range:x?}");
    }
}
