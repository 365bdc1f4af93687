//! The object at an address outside the writable range, for an error that names it.

use std::path::PathBuf;

use crate::OWN_FILE;
use crate::elf::{ElfFile, ElfSymbol, SymbolKind};
use crate::loaded::{LoadedFile, loaded_files};

/// What lies at an address that is not in the writable range of the executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrayObject {
    /// The address.
    pub address: u64,
    /// What kind of memory that is.
    pub kind: ObjectKind,
    /// The file that has the object.
    pub file: Option<PathBuf>,
    /// Its name as the linker has it, where the file tells.
    pub name: Option<String>,
}

/// A kind of memory outside that range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Code or a constant of the executable.
    Constant,
    /// It belongs to a shared library.
    Library,
    /// Each thread has its own.
    ThreadLocal,
    /// No object of a file, but a stack or allocated memory.
    Other,
}

impl StrayObject {
    /// Finds what is at `address`.
    #[must_use]
    pub fn at(address: u64) -> Self {
        let files = loaded_files();
        let found = files.iter().find_map(|file| Self::in_file(file, address));
        found.unwrap_or(Self { address, kind: ObjectKind::Other, file: None, name: None })
    }

    fn in_file(file: &LoadedFile, address: u64) -> Option<Self> {
        let has = |start: u64, header: &libc::Elf64_Phdr| address.wrapping_sub(start) < header.p_memsz;
        let is_local = |header: &libc::Elf64_Phdr| has(file.thread_locals, header);
        let is_shared = |header: &libc::Elf64_Phdr| has(file.base + header.p_vaddr, header);
        let (kind, value) = if file.thread_locals != 0 && file.headers_of(libc::PT_TLS).any(is_local) {
            (ObjectKind::ThreadLocal, address - file.thread_locals)
        } else if file.headers_of(libc::PT_LOAD).any(is_shared) {
            let is_program = file.is_executable();
            let kind = if is_program { ObjectKind::Constant } else { ObjectKind::Library };
            (kind, address - file.base)
        } else {
            return None;
        };
        let symbols = ElfFile::open(&file.path).map(|elf| elf.symbols()).unwrap_or_default();
        let is_it = |symbol: &ElfSymbol| {
            (symbol.kind == SymbolKind::ThreadLocal) == (kind == ObjectKind::ThreadLocal)
                && symbol.contains(value)
        };
        let name = symbols.into_iter().find(is_it).map(|symbol| symbol.name);
        let path = if file.is_executable() { std::fs::read_link(OWN_FILE).ok() } else { None };
        Some(Self { address, kind, file: path.or_else(|| Some(file.path.clone())), name })
    }
}

impl std::fmt::Display for StrayObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.name, &self.file) {
            (Some(name), Some(file)) => write!(f, "`{name}` of {}", file.display()),
            (None, Some(file)) => write!(f, "address {:#x}, in {},", self.address, file.display()),
            _ => write!(f, "address {:#x}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Told by its name.
    #[allow(unsafe_code, reason = "no other object has the name")]
    #[unsafe(no_mangle)]
    static SHMCCL_TEST_CONSTANT: [u64; 3] = [1, 2, 3];

    #[test]
    fn what_lies_elsewhere_is_told_by_name_file_and_kind() {
        thread_local! {
            static LOCAL: std::cell::Cell<u64> = const { std::cell::Cell::new(5) };
        }
        let constant = StrayObject::at(std::ptr::from_ref(&SHMCCL_TEST_CONSTANT[1]).addr() as u64);
        assert_eq!(
            (constant.kind, constant.name.as_deref()),
            (ObjectKind::Constant, Some("SHMCCL_TEST_CONSTANT"))
        );
        assert_eq!(constant.file, std::env::current_exe().ok());
        let local = StrayObject::at(LOCAL.with(std::cell::Cell::as_ptr).addr() as u64);
        assert_eq!(local.kind, ObjectKind::ThreadLocal, "{local}");
        assert!(local.name.is_some_and(|name| name.contains("LOCAL")));
        let function = libc::getpid as *const () as u64;
        assert_eq!(StrayObject::at(function).kind, ObjectKind::Library);
        let boxed = Box::new(7_u64);
        let allocated = StrayObject::at(std::ptr::from_ref(&*boxed).addr() as u64);
        assert_eq!((allocated.kind, allocated.file), (ObjectKind::Other, None));
    }
}
