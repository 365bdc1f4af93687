//! A copy of shared memory that the child of a fork takes over.
//!
//! It is made before the fork, in memory that the parent has for that moment. The child moves it to
//! where the memory was, and allocates nothing and frees nothing as it does. So the two do not talk
//! to each other, and neither waits for the other.
#![allow(unsafe_code, reason = "the child's copy is moved over what is mapped there")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::address::pointer;
use crate::private::{Access, PrivateMemory, map_private};

/// A copy for the next child of a fork, in pieces.
#[derive(Debug)]
pub struct ChildCopy {
    pieces: Vec<Piece>,
    memory: Option<PrivateMemory>,
    /// There is no memory for a copy.
    is_short: bool,
}

/// A piece of memory that a child has a copy of.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Where it belongs.
    address: u64,
    /// Where it is in the copy.
    offset: u64,
    len: u64,
}

/// A piece of memory, and the place of its copy.
#[derive(Clone, Copy, Debug)]
pub struct CopiedPiece {
    /// Where it is.
    pub from: NonNull<u8>,
    /// Where its copy is.
    pub to: NonNull<u8>,
    /// The length of both in bytes.
    pub len: u64,
}

impl ChildCopy {
    /// Returns a copy of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: Vec::new(), memory: None, is_short: false }
    }

    /// Makes room for a copy of `pieces`, each an address and a length, in ascending order, in
    /// place of what it had before. `has_room` says whether there is memory for so many bytes.
    pub fn plan(&mut self, pieces: impl IntoIterator<Item = (u64, u64)>, has_room: impl FnOnce(u64) -> bool) {
        self.pieces.clear();
        let mut total = 0;
        for (address, len) in pieces {
            self.pieces.push(Piece { address, offset: total, len });
            total += len;
        }
        self.memory = if total > 0 && has_room(total) { PrivateMemory::populated(total) } else { None };
        self.is_short = total > 0 && self.memory.is_none();
    }

    /// Returns the pieces, and where each is to be copied to. None where there is no memory.
    pub fn pieces(&self) -> impl Iterator<Item = CopiedPiece> + '_ {
        self.memory.iter().flat_map(|memory| {
            self.pieces.iter().map(|piece| CopiedPiece {
                from: pointer(piece.address),
                to: pointer(memory.start() + piece.offset),
                len: piece.len,
            })
        })
    }

    /// Returns whether there is no memory for the copy.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Gives the memory back.
    pub fn release(&mut self) {
        self.memory = None;
    }

    /// Reads all pieces from a `file` that is mapped from `base` on.
    pub(crate) fn read_from(&mut self, file: &OwnedFd, base: u64) {
        if !self.pieces().all(|piece| piece.read_from(file, base)) {
            self.release();
            self.is_short = true;
        }
    }

    /// Moves all pieces to where they belong.
    ///
    /// # Safety
    /// Nothing but views of the program looks at these places.
    pub unsafe fn move_to_its_place(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        for piece in &self.pieces {
            // SAFETY: the caller answers for the places.
            unsafe { memory.move_part(piece.offset, piece.len, piece.address) };
        }
        memory.forget();
    }

    /// Moves all pieces to where they belong in the `len` bytes at `start`, and maps zeros in
    /// between. Where there is no memory for the copy, nothing is there afterwards. What this needs
    /// to run is in one place or the other at any time.
    ///
    /// # Safety
    /// The pieces lie in the range, and are all that has pages there.
    pub(crate) unsafe fn replace(&mut self, start: u64, len: u64) {
        let access = if self.is_short { Access::None } else { Access::Whole };
        let mut at = start;
        if let Some(memory) = self.memory.take() {
            for piece in &self.pieces {
                // SAFETY: there are no pages between the pieces: what was there reads as zero.
                let _ = unsafe { map_private(at, piece.address - at, access, true) };
                // SAFETY: the copy is what was there.
                unsafe { memory.move_part(piece.offset, piece.len, piece.address) };
                at = piece.address + piece.len;
            }
            memory.forget();
        }
        // SAFETY: as above; or there is no memory for what was there.
        let _ = unsafe { map_private(at, start + len - at, access, true) };
    }
}

impl Default for ChildCopy {
    fn default() -> Self {
        Self::new()
    }
}

impl CopiedPiece {
    /// Reads the piece into its copy from a `file` that is mapped from `base` on, and returns
    /// whether there was all of it. It asks the system itself: sanitizers find gaps between objects
    /// when somebody reads all of them.
    fn read_from(&self, file: &OwnedFd, base: u64) -> bool {
        let offset = self.from.as_ptr().addr() as u64 - base;
        let mut done = 0;
        while done < self.len {
            let (target, left) = (self.to.as_ptr().addr() as u64 + done, self.len - done);
            let call = libc::SYS_pread64;
            // SAFETY: the system writes to the copy, which `plan` has made for this piece.
            let read = unsafe { libc::syscall(call, file.as_raw_fd(), target, left, offset + done) };
            match u64::try_from(read) {
                Ok(read @ 1..) => done += read,
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::num::NonZeroUsize;
    use std::os::unix::fs::FileExt;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;
    use crate::PAGE;
    use crate::address::to_usize;
    use crate::private::pages_of;

    /// 64 pages of shared memory.
    const LEN: u64 = 64 * PAGE;

    /// Shared memory with a byte of 7 on each of some pages, mapped.
    struct SharedPages {
        file: OwnedFd,
        start: u64,
    }

    impl SharedPages {
        fn with(pages: &[u64]) -> Self {
            let file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap());
            file.set_len(LEN).unwrap();
            pages.iter().for_each(|page| file.write_all_at(&[7], page * PAGE).unwrap());
            let file = OwnedFd::from(file);
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let len = NonZeroUsize::new(to_usize(LEN)).unwrap();
            // SAFETY: the system chooses addresses where nothing is mapped.
            let start = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
            Self { start: start.as_ptr().expose_provenance() as u64, file }
        }

        fn pieces(&self) -> Vec<(u64, u64)> {
            pages_of(&self.file, 0, LEN)
                .into_iter()
                .map(|(from, to)| (self.start + from, to - from))
                .collect()
        }

        fn first_byte(&self, page: u64) -> u8 {
            // SAFETY: mapped in `with`, or by what has replaced that.
            unsafe { pointer(self.start + page * PAGE).read_volatile() }
        }

        fn in_file(&self, page: u64) -> u8 {
            let mut byte = [0];
            let file = File::from(self.file.try_clone().unwrap());
            file.read_exact_at(&mut byte, page * PAGE).unwrap();
            byte[0]
        }

        /// How the system has mapped the first page.
        fn access(&self) -> String {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let begin = format!("{:x}-", self.start);
            let line = maps.lines().find(|line| line.starts_with(&begin)).unwrap();
            line.split(' ').nth(1).unwrap().to_owned()
        }
    }

    impl Drop for SharedPages {
        fn drop(&mut self) {
            // SAFETY: nothing but this looks there.
            let _ = unsafe { munmap(pointer(self.start).cast(), to_usize(LEN)) };
        }
    }

    #[test]
    fn what_has_pages_is_replaced_by_its_copy_and_all_else_by_zeros() {
        let shared = SharedPages::with(&[1, 3, 40]);
        assert_eq!(shared.pieces().len(), 2, "a short hole is copied as well");
        let mut copy = ChildCopy::new();
        copy.plan(shared.pieces(), |_| true);
        copy.read_from(&shared.file, shared.start);
        assert!(!copy.is_short());
        // SAFETY: the pieces are all that has pages.
        unsafe { copy.replace(shared.start, LEN) };
        for page in 0..64 {
            assert_eq!(
                shared.first_byte(page),
                if [1, 3, 40].contains(&page) { 7 } else { 0 },
                "page {page}"
            );
            // SAFETY: private memory since.
            unsafe { pointer(shared.start + page * PAGE).write_volatile(9) };
        }
        assert_eq!([0, 1, 40].map(|page| shared.in_file(page)), [0, 7, 7], "it is shared no more");
    }

    #[test]
    fn where_there_is_no_memory_nothing_is_there_afterwards() {
        let shared = SharedPages::with(&[1]);
        let mut copy = ChildCopy::new();
        copy.plan(shared.pieces(), |_| false);
        assert!(copy.is_short() && copy.pieces().next().is_none());
        // SAFETY: the pieces are all that has pages.
        unsafe { copy.replace(shared.start, LEN) };
        assert_eq!(shared.access(), "---p");
        // A file that has become shorter.
        let shared = SharedPages::with(&[1]);
        copy.plan(shared.pieces(), |_| true);
        File::from(shared.file.try_clone().unwrap()).set_len(PAGE).unwrap();
        copy.read_from(&shared.file, shared.start);
        assert!(copy.is_short());
        copy.plan(None, |_| false);
        assert!(!copy.is_short(), "nothing needs no memory");
    }

    #[test]
    fn pieces_are_moved_to_where_they_belong_and_given_back_otherwise() {
        let shared = SharedPages::with(&[0, 50]);
        let mut copy = ChildCopy::new();
        copy.plan(shared.pieces(), |total| total == 2 * PAGE);
        copy.read_from(&shared.file, shared.start);
        let places: Vec<_> = copy.pieces().collect();
        assert_eq!(places.iter().map(|piece| piece.len).sum::<u64>(), 2 * PAGE);
        // SAFETY: nothing but this test looks there.
        unsafe { copy.move_to_its_place() };
        assert_eq!([0, 50].map(|page| shared.first_byte(page)), [7, 7]);
        assert_eq!(shared.access(), "rw-p");
        copy.plan(shared.pieces(), |_| true);
        copy.release();
        assert!(copy.pieces().next().is_none());
    }
}
