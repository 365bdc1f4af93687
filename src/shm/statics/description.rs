//! What a rank tells of the layout of its static objects, at the end of their file, and how two
//! layouts differ.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use shmccl_image::{ElfFile, ElfSymbol, ExecutableRange, OWN_FILE, SymbolKind};

use super::super::PAGE;
use super::fault::{LayoutDifference, ObjectDifference};
use crate::error::{Error, Result, check_layout};
use crate::rank::Rank;
use crate::shm::segment::{check_descriptor, check_seals};
use crate::sync::header::Expected;

/// "SMST".
const MAGIC: u32 = u32::from_le_bytes(*b"SMST");

const VERSION: u32 = 1;

const MAX_BUILD_ID: usize = 64;

const MAX_PATH: usize = 2048;

/// The last page of the file.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic, version | 4, 4 | [`MAGIC`], [`VERSION`] |
/// | len | 8 | length of the range |
/// | start | 8 | its first address, as the executable's file numbers it |
/// | device, node | 8, 8 | which file the executable is; 0 where the system does not tell |
/// | lens | 4, 4 | of the build id and of the path |
/// | build id | 64 | what the linker has given the build |
/// | path | 2048 | the executable |
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DescriptionPage {
    magic: u32,
    version: u32,
    len: u64,
    start: u64,
    device: u64,
    node: u64,
    lens: [u32; 2],
    build_id: [u8; MAX_BUILD_ID],
    path: [u8; MAX_PATH],
}

const _: () = assert!(size_of::<DescriptionPage>() == 48 + MAX_BUILD_ID + MAX_PATH);
const _: () = assert!((size_of::<DescriptionPage>() as u64) < PAGE);

/// The layout of the static objects of a rank.
pub(super) struct LayoutDescription(Box<DescriptionPage>);

impl LayoutDescription {
    pub(super) fn of(range: &ExecutableRange) -> Self {
        let mut page = Box::new(DescriptionPage {
            magic: MAGIC,
            version: VERSION,
            len: range.len(),
            start: range.start_in_file(),
            ..DescriptionPage::zeroed()
        });
        if let Ok(file) = std::fs::metadata(OWN_FILE) {
            (page.device, page.node) = (file.dev(), file.ino());
        }
        let build_id = ElfFile::open(Path::new(OWN_FILE)).and_then(|file| file.build_id());
        let path = std::fs::read_link(OWN_FILE).unwrap_or_default();
        page.lens = [
            keep(&mut page.build_id, &build_id.unwrap_or_default()),
            keep(&mut page.path, path.as_os_str().as_bytes()),
        ];
        Self(page)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&*self.0)
    }

    /// Reads what a peer tells at the end of its `file`, and checks that the file can be mapped.
    ///
    /// # Errors
    /// [`Error::Layout`] for what is no such file.
    pub(super) fn read(file: &OwnedFd) -> Result<Self> {
        let found = check_descriptor(file.as_fd(), &Expected::default())?;
        check_seals(file.as_fd())?;
        let file = file.try_clone().map_err(|source| Error::os("duplicating a descriptor", source))?;
        let file = File::from(file);
        let mut page = Box::new(DescriptionPage::zeroed());
        let read = file.read_exact_at(bytemuck::bytes_of_mut(&mut *page), found - PAGE);
        read.map_err(|source| Error::os("reading the layout of static objects", source))?;
        check_layout("magic of static objects", MAGIC.into(), page.magic.into())?;
        check_layout("version of static objects", VERSION.into(), page.version.into())?;
        check_layout("length of static objects", found - PAGE, page.len)?;
        Ok(Self(page))
    }

    /// Returns the length of the range in bytes.
    pub(super) fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns how the layout of `rank` differs from this one, of rank 0, if it does. Two builds
    /// may have one layout. Their files tell, where they have symbols.
    pub(super) fn difference(&self, other: &Self, rank: Rank) -> Option<LayoutDifference> {
        if self.is_same_build(other) {
            return None;
        }
        let (mine, theirs) = (self.objects(), other.objects());
        let object = mine.as_ref().zip(theirs.as_ref());
        let object = object.map(|(mine, theirs)| first_difference(mine, theirs));
        match object {
            Some(None) if self.0.len == other.0.len => None,
            _ => Some(LayoutDifference {
                rank,
                files: [self.path(), other.path()],
                lens: [self.0.len, other.0.len],
                object: object.flatten(),
            }),
        }
    }

    fn is_same_build(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.0, &other.0);
        let is_same_file = mine.node != 0 && (mine.device, mine.node) == (theirs.device, theirs.node);
        let is_same_id = !self.build_id().is_empty() && self.build_id() == other.build_id();
        (is_same_file || is_same_id) && (mine.len, mine.start) == (theirs.len, theirs.start)
    }

    fn build_id(&self) -> &[u8] {
        self.0.build_id.get(..self.0.lens[0] as usize).unwrap_or_default()
    }

    fn path(&self) -> PathBuf {
        let bytes = self.0.path.get(..self.0.lens[1] as usize).unwrap_or_default();
        std::ffi::OsStr::from_bytes(bytes).into()
    }

    /// Returns the objects in the range, by their offset in it, as the executable's file tells of
    /// them. `None` where it tells of none, or is another one by now.
    fn objects(&self) -> Option<Vec<ElfSymbol>> {
        let path = self.path();
        let metadata = std::fs::metadata(&path).ok()?;
        let file = ElfFile::open(&path)?;
        let is_it = match self.build_id() {
            [] => (metadata.dev(), metadata.ino()) == (self.0.device, self.0.node),
            id => file.build_id().is_some_and(|found| found == id),
        };
        let mut objects = file.symbols();
        objects.retain_mut(|symbol| {
            symbol.value = symbol.value.wrapping_sub(self.0.start);
            symbol.kind == SymbolKind::Object && symbol.value < self.0.len
        });
        objects.sort_by(|one, other| (one.value, &one.name).cmp(&(other.value, &other.name)));
        (is_it && !objects.is_empty()).then_some(objects)
    }
}

/// Copies what has room, and returns how much that was.
fn keep(target: &mut [u8], source: &[u8]) -> u32 {
    let len = target.len().min(source.len());
    target[..len].copy_from_slice(&source[..len]);
    u32::try_from(len).unwrap_or(0)
}

/// Returns the first object that lies elsewhere among `theirs` than among `mine`, or is longer or
/// shorter, or missing. Both are sorted by their offsets.
fn first_difference(mine: &[ElfSymbol], theirs: &[ElfSymbol]) -> Option<ObjectDifference> {
    let index = (0..mine.len().max(theirs.len())).find(|&index| mine.get(index) != theirs.get(index))?;
    let odd = [mine.get(index), theirs.get(index)].into_iter().flatten();
    let name = odd.min_by_key(|symbol| symbol.value).map(|symbol| symbol.name.clone())?;
    let place = |objects: &[ElfSymbol]| {
        let found = objects.iter().find(|symbol| symbol.name == name)?;
        Some((found.value, found.len))
    };
    Some(ObjectDifference { places: [place(mine), place(theirs)], name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(places: &[(&str, u64, u64)]) -> Vec<ElfSymbol> {
        let symbol = |&(name, value, len): &(&str, u64, u64)| ElfSymbol {
            name: name.to_owned(),
            kind: SymbolKind::Object,
            value,
            len,
        };
        places.iter().map(symbol).collect()
    }

    #[test]
    fn the_first_object_is_named_that_has_moved_grown_or_is_missing() {
        let mine = objects(&[("a", 0, 8), ("b", 8, 8), ("c", 16, 4)]);
        assert!(first_difference(&mine, &mine).is_none());
        let said = |theirs: &[(&str, u64, u64)]| {
            let found = first_difference(&mine, &objects(theirs)).unwrap();
            (found.name, found.places)
        };
        let moved = said(&[("a", 0, 8), ("b", 16, 8), ("c", 24, 4)]);
        assert_eq!(moved, ("b".to_owned(), [Some((8, 8)), Some((16, 8))]));
        let grown = said(&[("a", 0, 8), ("b", 8, 8), ("c", 16, 8)]);
        assert_eq!(grown, ("c".to_owned(), [Some((16, 4)), Some((16, 8))]));
        let missing = said(&[("a", 0, 8), ("b", 8, 8)]);
        assert_eq!(missing, ("c".to_owned(), [Some((16, 4)), None]));
        let added = said(&[("a", 0, 8), ("b", 8, 4), ("x", 12, 4), ("c", 16, 4)]);
        assert_eq!(added, ("b".to_owned(), [Some((8, 8)), Some((8, 4))]));
    }
}
