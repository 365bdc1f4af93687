//! What a file of the format ELF tells of its build and its objects. Whatever is not as it should
//! be tells nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytemuck::{Pod, Zeroable};

/// The most bytes of notes that are read.
const MAX_NOTES: u64 = 64 << 10;

/// The most bytes of a table that are read.
const MAX_TABLE: u64 = 256 << 20;

const NOTES: u32 = 4;
const SYMBOLS: u32 = 2;
const DYNAMIC_SYMBOLS: u32 = 11;

/// The kind of note that is a build id, and its owner.
const BUILD_ID: u32 = 3;
const OWNER: &[u8] = b"GNU\0";

/// `Elf64_Ehdr`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FileHead {
    ident: [u8; 16],
    kinds: [u16; 2],
    version: u32,
    entry: u64,
    programs: u64,
    sections: u64,
    flags: u32,
    lens: [u16; 2],
    n_programs: u16,
    section_len: u16,
    n_sections: u16,
    names: u16,
}

/// `Elf64_Phdr`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ProgramHead {
    kind: u32,
    flags: u32,
    offset: u64,
    addresses: [u64; 2],
    len: u64,
    memory_len: u64,
    align: u64,
}

/// `Elf64_Shdr`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SectionHead {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    len: u64,
    link: u32,
    info: u32,
    align: u64,
    entry_len: u64,
}

/// `Elf64_Sym`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SymbolEntry {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    len: u64,
}

const _: () = assert!(size_of::<FileHead>() == 64 && size_of::<ProgramHead>() == 56);
const _: () = assert!(size_of::<SectionHead>() == 64 && size_of::<SymbolEntry>() == 24);

/// What a symbol stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolKind {
    /// An object that all threads have in common.
    Object,
    /// A function.
    Function,
    /// An object that each thread has for itself.
    ThreadLocal,
}

/// A symbol that has a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfSymbol {
    /// Its name, as the linker has it.
    pub name: String,
    /// What it stands for.
    pub kind: SymbolKind,
    /// Its address in the file; of a thread-local object the offset among those.
    pub value: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl ElfSymbol {
    /// Returns whether a place, numbered as its own, is in it.
    #[must_use]
    pub fn contains(&self, value: u64) -> bool {
        value.wrapping_sub(self.value) < self.len
    }
}

/// A file.
#[derive(Debug)]
pub struct ElfFile {
    file: File,
    head: FileHead,
}

impl ElfFile {
    /// Opens the file at `path`, if it is of this format, and of 64 bits.
    #[must_use]
    pub fn open(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let head: FileHead = read(&file, 0)?;
        let is_known = head.ident.starts_with(b"\x7fELF") && head.ident[4] == 2;
        is_known.then_some(Self { file, head })
    }

    /// Returns the number that the linker has given the build, if it has.
    #[must_use]
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let programs: Vec<ProgramHead> = table(&self.file, self.head.programs, self.head.n_programs.into())?;
        let notes = programs.into_iter().filter(|program| program.kind == NOTES);
        notes.filter_map(|notes| self.build_id_in(&notes)).next()
    }

    fn build_id_in(&self, notes: &ProgramHead) -> Option<Vec<u8>> {
        let bytes: Vec<u8> = table(&self.file, notes.offset, notes.len.min(MAX_NOTES))?;
        let align = if notes.align == 8 { 8 } else { 4 };
        let mut rest = &*bytes;
        loop {
            let (head, behind) = rest.split_first_chunk::<12>()?;
            let [name_len, len, kind]: [u32; 3] = bytemuck::pod_read_unaligned(head);
            let (name_len, len) = (name_len as usize, len as usize);
            let start = name_len.next_multiple_of(4);
            let (name, text) = (behind.get(..name_len)?, behind.get(start..start.checked_add(len)?)?);
            if kind == BUILD_ID && name == OWNER {
                return Some(text.to_vec());
            }
            rest = behind.get((12 + start + len).next_multiple_of(align) - 12..)?;
        }
    }

    /// Returns its symbols: all of them, or those that the loader knows where the others were
    /// stripped off.
    #[must_use]
    pub fn symbols(&self) -> Vec<ElfSymbol> {
        let sections: Option<Vec<SectionHead>> =
            table(&self.file, self.head.sections, self.head.n_sections.into());
        let sections = sections.unwrap_or_default();
        let of = |kind| sections.iter().find(|section| section.kind == kind);
        let symbols = of(SYMBOLS).or_else(|| of(DYNAMIC_SYMBOLS));
        symbols.and_then(|symbols| self.symbols_in(symbols, &sections)).unwrap_or_default()
    }

    fn symbols_in(&self, symbols: &SectionHead, sections: &[SectionHead]) -> Option<Vec<ElfSymbol>> {
        let names = sections.get(symbols.link as usize)?;
        let names: Vec<u8> = table(&self.file, names.offset, names.len)?;
        let count = symbols.len / size_of::<SymbolEntry>() as u64;
        let entries: Vec<SymbolEntry> = table(&self.file, symbols.offset, count)?;
        Some(entries.iter().filter_map(|entry| symbol(entry, &names)).collect())
    }
}

fn symbol(entry: &SymbolEntry, names: &[u8]) -> Option<ElfSymbol> {
    let kind = match entry.info & 0xf {
        1 => SymbolKind::Object,
        2 => SymbolKind::Function,
        6 => SymbolKind::ThreadLocal,
        _ => return None,
    };
    let name = names.get(entry.name as usize..)?.split(|byte| *byte == 0).next()?;
    let name = String::from_utf8_lossy(name).into_owned();
    let is_there = entry.section != 0 && entry.len > 0;
    is_there.then_some(ElfSymbol { name, kind, value: entry.value, len: entry.len })
}

fn read<T: Pod>(file: &File, offset: u64) -> Option<T> {
    table(file, offset, 1)?.pop()
}

fn table<T: Pod>(file: &File, offset: u64, count: u64) -> Option<Vec<T>> {
    let is_short = count.checked_mul(size_of::<T>() as u64)? <= MAX_TABLE.min(file.metadata().ok()?.len());
    let mut entries = vec![T::zeroed(); usize::try_from(count).ok().filter(|_| is_short)?];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut entries), offset).ok()?;
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object that is looked for by its name.
    #[allow(unsafe_code, reason = "no other object has the name")]
    #[unsafe(no_mangle)]
    static SHMCCL_TEST_OBJECT: [u32; 5] = [7; 5];

    #[test]
    fn the_symbols_of_this_program_are_found_with_their_lengths() {
        let file = ElfFile::open(Path::new("/proc/self/exe")).unwrap();
        assert_eq!(SHMCCL_TEST_OBJECT[0], 7);
        let symbols = file.symbols();
        let found = symbols.iter().find(|symbol| symbol.name == "SHMCCL_TEST_OBJECT").unwrap();
        assert_eq!((found.kind, found.len), (SymbolKind::Object, 20));
        assert!(found.contains(found.value + 19) && !found.contains(found.value + 20));
    }

    #[test]
    fn a_file_that_is_none_or_is_damaged_tells_nothing() {
        let path = std::env::temp_dir().join(format!("shmccl-elf-{}", std::process::id()));
        let whole = std::fs::read("/proc/self/exe").unwrap();
        assert!(ElfFile::open(Path::new("/proc/self/status")).is_none());
        for len in [0, 10, 64, 65, 200, 5000, whole.len() / 2] {
            std::fs::write(&path, &whole[..len]).unwrap();
            let said = ElfFile::open(&path).map(|file| (file.build_id(), file.symbols().len()));
            assert!(said.is_none_or(|(_, symbols)| symbols == 0), "{len} bytes");
        }
        // Each byte of the head is overwritten: it may tell nothing, and does nothing else.
        let mut part = whole[..whole.len().min(1 << 20)].to_vec();
        for at in 4..64 {
            let was = std::mem::replace(&mut part[at], 0xff);
            std::fs::write(&path, &part).unwrap();
            let _ = ElfFile::open(&path).map(|file| (file.build_id(), file.symbols()));
            part[at] = was;
        }
        std::fs::remove_file(&path).unwrap();
    }
}
