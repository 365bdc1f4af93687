//! Memory of this process alone, put in the place of what it shares; and what a shared file has.
#![allow(unsafe_code, reason = "system calls that exchange the memory behind addresses")]

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use nix::unistd::{Whence, lseek};

use crate::PAGE;
use crate::address::{pointer, to_usize};

/// Holes of a file up to this length are copied with what is around them: each piece costs a child
/// a system call, and a process has some 65,000 of them.
const SHORT_HOLE: u64 = 64 << 10;

const WHOLE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// What is put at addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Zeros, which can be written.
    Whole,
    /// Nothing: whoever touches it ends by SIGSEGV.
    None,
}

/// Maps memory of this process's own at `address`, and takes away what is mapped there if it
/// `may_replace` that. Returns `None` where the system refuses. No bytes are nothing.
///
/// # Safety
/// Nothing uses what the call takes away, or else finds the same there.
pub unsafe fn map_private(address: u64, len: u64, access: Access, may_replace: bool) -> Option<()> {
    let (at, len) = (NonZeroUsize::new(to_usize(address)), NonZeroUsize::new(to_usize(len))?);
    let place = if may_replace { MapFlags::MAP_FIXED } else { MapFlags::MAP_FIXED_NOREPLACE };
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | place;
    let access = if access == Access::Whole { WHOLE } else { ProtFlags::PROT_NONE };
    // SAFETY: the caller answers for the addresses.
    unsafe { mmap_anonymous(at, len, access, flags) }.ok().map(drop)
}

/// Memory of this process alone at addresses that the system has chosen.
#[derive(Debug)]
pub(crate) struct PrivateMemory {
    start: u64,
    len: u64,
}

impl PrivateMemory {
    /// Takes `len` bytes, with their pages, if the system has so many.
    pub(crate) fn populated(len: u64) -> Option<Self> {
        let bytes = NonZeroUsize::new(to_usize(len))?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
        // SAFETY: the system chooses addresses where nothing is mapped.
        let start = unsafe { mmap_anonymous(None, bytes, WHOLE, flags) }.ok()?;
        Some(Self { start: start.as_ptr().expose_provenance() as u64, len })
    }

    /// Returns its first address.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Moves `len` bytes from `offset` on to `address`, in the place of what is mapped there. Where
    /// the system refuses, nothing is there: rather that than zeros.
    ///
    /// # Safety
    /// Nothing uses what is at `address`, or else finds the same there.
    pub(crate) unsafe fn move_part(&self, offset: u64, len: u64, address: u64) {
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        let (part, place, bytes) = (pointer(self.start + offset), pointer(address), to_usize(len));
        // SAFETY: the part is this memory's own, and the caller answers for the place.
        let moved = unsafe { mremap(part.cast(), bytes, bytes, flags, Some(place.cast())) };
        if moved.is_err() {
            // SAFETY: the caller answers for the place.
            let _ = unsafe { map_private(address, len, Access::None, true) };
        }
    }

    /// Leaves all of it as it is, for good.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: made in `populated`, and used by whoever has this alone.
        let _ = unsafe { munmap(pointer(self.start).cast(), to_usize(self.len)) };
    }
}

/// Returns where the bytes `start..end` of a file of memory have pages: each time the offsets of
/// start and end. Short holes count as pages.
#[must_use]
pub fn pages_of(file: &OwnedFd, start: u64, end: u64) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut at = start;
    while let Some((from, to)) = next_pages(file, at, end) {
        match found.last_mut() {
            Some(last) if from - last.1 <= SHORT_HOLE => last.1 = to,
            _ => found.push((from, to)),
        }
        at = to;
    }
    found
}

/// Finds the next pages of a file from `at` on, and before `end`. All of it, where the file system
/// does not tell.
fn next_pages(file: &OwnedFd, at: u64, end: u64) -> Option<(u64, u64)> {
    let seek = |from: u64, whence| lseek(file.as_fd(), from.cast_signed(), whence).map(i64::cast_unsigned);
    if at >= end {
        return None;
    }
    match seek(at, Whence::SeekData) {
        Err(Errno::ENXIO) => None,
        Err(_) => Some((at, end)),
        Ok(from) if from >= end => None,
        Ok(from) => {
            let to = seek(from, Whence::SeekHole).unwrap_or(end).next_multiple_of(PAGE);
            Some((from / PAGE * PAGE, to.min(end)))
        }
    }
}
