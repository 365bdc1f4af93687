//! A stretch of this process's address space with shared memory behind it.

use std::alloc::Layout;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use memmap2::MmapRaw;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use shared_memory::Shmem;
use shmccl_image::SharedImage;

use super::cells::{CellRef, CellSlice, SharedLayout};
use super::view::Span;
use super::{forks, in_bounds, to_usize};
use crate::error::{Error, Result};

/// Addresses that are mapped readable and writable, and what keeps them so.
///
/// Cheap to clone. The memory is unmapped when the last clone, cell and span over it is gone.
/// Whether it is *committed* (a store cannot fail) is known to the [`Segment`](super::Segment), not
/// to the mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    owner: Owned,
}

/// What cells and spans hold to keep their memory mapped.
#[derive(Clone)]
pub(super) struct Owned(#[expect(dead_code, reason = "held for its drop")] Arc<MappingOwner>);

/// What unmaps the memory when it is dropped.
pub(super) enum MappingOwner {
    /// A mapped descriptor.
    Mmap(MmapRaw),
    /// Addresses, and whatever was mapped there since.
    Reserved(ReservedAddresses),
    /// A named segment, and the number of the process that has made or attached it.
    Shmem(Shmem, u32),
    /// Memory that is never unmapped.
    Lasting,
    /// Memory of this process alone.
    Heap(#[expect(dead_code, reason = "held for its drop")] HeapBlock),
}

/// Addresses that this process has set aside.
pub(super) struct ReservedAddresses {
    base: NonNull<u8>,
    len: usize,
}

/// Zeroed memory from the allocator, for tests and for interpreters that know no `mmap`.
pub(super) struct HeapBlock {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the addresses stay valid in every thread until the owner is dropped. The owners move
// between threads: MmapRaw is Send and Sync by itself. A HeapBlock is exclusively owned memory of
// the global allocator, and ReservedAddresses are addresses that nobody else unmaps. A Shmem is a
// pointer, a descriptor and strings that nothing touches until `drop`, which may run on any thread.
unsafe impl Send for Owned {}
// SAFETY: as above; through `&Owned` nothing of the owner can be reached at all.
unsafe impl Sync for Owned {}
// SAFETY: `base` is an address within memory that `owner` (Send) keeps mapped; what is done through
// it is the business of cells and spans.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out cells (Sync by `SharedLayout`) and spans (raw-pointer
// copies).
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Alignment of a mapping made by [`Mapping::boxed`], in bytes.
    const BOXED_ALIGN: usize = 4096;

    /// Makes a zeroed mapping out of this process's own heap, which no other process shares.
    ///
    /// For tests, threads within one process, and interpreters that know no `mmap`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `len` is zero or more than any address space holds;
    /// [`Error::ResourceLimit`] when the allocator has not so much.
    pub fn boxed(len: u64) -> Result<Self> {
        let invalid = || Error::invalid("mapping length", len, "from 1 byte to what the address space holds");
        let bytes = usize::try_from(len).map_err(|_| invalid())?;
        let layout = Layout::from_size_align(bytes, Self::BOXED_ALIGN).map_err(|_| invalid())?;
        if bytes == 0 {
            return Err(invalid());
        }
        // SAFETY: the size is not zero, checked just above.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or_else(|| Error::ResourceLimit {
            resource: "memory",
            action: "allocating a mapping of this process's own",
            remedy: "ask for less",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        // SAFETY: `alloc_zeroed` returned `bytes` bytes at `base`, which the HeapBlock frees when
        // dropped.
        Ok(unsafe { Self::new(base, bytes, MappingOwner::Heap(HeapBlock { base, layout })) })
    }

    /// Sets `len` bytes of addresses aside, without access from the start: the system counts no
    /// memory for them, however strictly it counts.
    pub(super) fn reserve(len: u64) -> Result<Self, Errno> {
        let len = to_usize(len);
        let bytes = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: the system chooses addresses where nothing is mapped.
        let base = unsafe { mmap_anonymous(None, bytes, ProtFlags::PROT_NONE, flags) }?.cast();
        // SAFETY: `len` bytes at `base` were reserved just above, and are until the owner is
        // dropped. `Window` makes them accessible before it hands them out.
        Ok(unsafe { Self::new(base, len, MappingOwner::Reserved(ReservedAddresses { base, len })) })
    }

    /// Wraps the mapping of a descriptor that `map` makes, from the first byte on, and keeps it out
    /// of core dumps and of forks.
    ///
    /// # Errors
    /// Fails as `map` does.
    pub(super) fn of_mmap<E>(
        descriptor: &Arc<OwnedFd>,
        map: impl FnOnce() -> Result<MmapRaw, E>,
    ) -> Result<Self, E> {
        let mut registry = forks::hold();
        let map = map()?;
        let base = NonNull::new(map.as_mut_ptr()).expect("mmap does not return null");
        let len = map.len();
        // SAFETY: memmap2 mapped `len` bytes at `base` and unmaps them when the owner is dropped;
        // the mapping is readable and writable because this module's callers use `map_raw` only.
        let mapping = unsafe { Self::new(base, len, MappingOwner::Mmap(map)) };
        registry.add(base, len, !mapping.keep_out_of_forks(), Arc::downgrade(descriptor));
        Ok(mapping.kept_out_of_dumps())
    }

    /// Wraps a mapping that the `shared_memory` crate makes in `map`, and keeps it out of core
    /// dumps and of forks.
    ///
    /// # Errors
    /// Fails as `map` does.
    pub(super) fn of_shmem<E>(map: impl FnOnce() -> Result<Shmem, E>) -> Result<Self, E> {
        let mut registry = forks::hold();
        let shmem = map()?;
        let base = NonNull::new(shmem.as_ptr()).expect("a live Shmem is mapped");
        let len = shmem.len();
        let owner = MappingOwner::Shmem(shmem, std::process::id());
        // SAFETY: the crate mapped `len` bytes at `base` readable and writable, and unmaps them in
        // its drop.
        let mapping = unsafe { Self::new(base, len, owner) };
        registry.add(base, len, !mapping.keep_out_of_forks(), Weak::new());
        Ok(mapping.kept_out_of_dumps())
    }

    /// Wraps the static objects of this process, which are never unmapped.
    pub(super) fn of_image(image: &SharedImage) -> Self {
        let (base, len) = (image.base(), to_usize(image.range().len()));
        // SAFETY: the image is mapped readable and writable for as long as the process lives, as
        // its type says. The program has asked for its objects to be reached so.
        unsafe { Self::new(base, len, MappingOwner::Lasting) }
    }

    /// # Safety
    /// `len` bytes at `base` are mapped readable and writable, do not exceed `isize::MAX`, stay so
    /// until `owner` is dropped, and are reached by no Rust reference other than those that this
    /// module hands out.
    unsafe fn new(base: NonNull<u8>, len: usize, owner: MappingOwner) -> Self {
        #[expect(clippy::arc_with_non_send_sync, reason = "`Owned` argues why it is both")]
        let owner = Owned(Arc::new(owner));
        Self { base, len, owner }
    }

    /// Returns a part of this mapping that keeps the whole alive.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        let base = self.locate("mapping", offset, len)?;
        Ok(Self { base, len: to_usize(len), owner: self.owner.clone() })
    }

    /// Keeps its bytes out of the core dumps of this process.
    ///
    /// The system writes shared memory into a dump page by page, and gives memory to pages that
    /// have none. Peers learn of a death when the dump is written, not before.
    pub(super) fn kept_out_of_dumps(self) -> Self {
        self.advise(MmapAdvise::MADV_DONTDUMP);
        self
    }

    /// Keeps it out of children of a fork, and returns whether the system does so.
    pub(super) fn keep_out_of_forks(&self) -> bool {
        self.advise(MmapAdvise::MADV_DONTFORK)
    }

    /// Takes the bytes `offset..offset + len` into the core dumps of this process.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub(crate) fn take_into_dumps(&self, offset: u64, len: u64) -> Result<()> {
        self.part(offset, len)?.advise(MmapAdvise::MADV_DODUMP);
        Ok(())
    }

    /// Advises the system on all its pages, and returns whether it takes the advice.
    pub(super) fn advise(&self, advice: MmapAdvise) -> bool {
        // SAFETY: the bytes are this mapping's own, mapped while it lives. None of the advices that
        // this directory gives changes contents.
        unsafe { madvise(self.base.cast(), self.len, advice) }.is_ok()
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether it has no bytes, which only a [`part`](Self::part) can have.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its first address in this process.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the control structure at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn cell<T: SharedLayout>(&self, offset: u64) -> Result<CellRef<T>> {
        let cell = self.place::<T>(offset, 1)?;
        // SAFETY: `place` found one aligned T in bounds, which `owner` keeps mapped.
        Ok(unsafe { CellRef::new(cell, self.owner.clone()) })
    }

    /// Returns the `count` control structures that start at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn cells<T: SharedLayout>(&self, offset: u64, count: u64) -> Result<CellSlice<T>> {
        let first = self.place::<T>(offset, count)?;
        // SAFETY: `place` found `count` aligned T in bounds, which `owner` keeps mapped.
        Ok(unsafe { CellSlice::new(first, to_usize(count), self.owner.clone()) })
    }

    /// Returns the payload bytes `offset..offset + len`, of which a child of a fork has a copy.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn span(&self, offset: u64, len: u64) -> Result<Span> {
        let span = self.unlent_span(offset, len)?;
        span.lend();
        Ok(span)
    }

    /// Returns the payload bytes `offset..offset + len`, of which a child of a fork finds only what
    /// is [lent](Span::lend) of them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub(crate) fn unlent_span(&self, offset: u64, len: u64) -> Result<Span> {
        let start = self.locate("mapping", offset, len)?;
        // SAFETY: `locate` found the bytes in bounds, and `owner` keeps them mapped.
        Ok(unsafe { Span::new(start, to_usize(len), self.owner.clone()) })
    }

    fn locate(&self, what: &'static str, offset: u64, len: u64) -> Result<NonNull<u8>> {
        let limit = self.len();
        if !in_bounds(offset, len, limit) {
            return Err(Error::OutOfRange { what, offset, len, limit });
        }
        // SAFETY: `offset <= limit`, checked just above, stays within (or one past) the mapped
        // bytes.
        Ok(unsafe { self.base.add(to_usize(offset)) })
    }

    fn place<T: SharedLayout>(&self, offset: u64, count: u64) -> Result<NonNull<T>> {
        let what = "control structure";
        let size = size_of::<T>() as u64;
        let len = count.checked_mul(size).ok_or(Error::OutOfRange {
            what,
            offset,
            len: u64::MAX,
            limit: self.len(),
        })?;
        let start = self.locate(what, offset, len)?.cast::<T>();
        if !start.is_aligned() {
            return Err(Error::Misaligned { what, offset, align: align_of::<T>() as u64 });
        }
        Ok(start)
    }
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl Drop for MappingOwner {
    fn drop(&mut self) {
        let (base, len) = match self {
            Self::Mmap(map) => (map.as_mut_ptr(), map.len()),
            Self::Reserved(reserved) => (reserved.base.as_ptr(), reserved.len),
            Self::Shmem(shmem, process) => {
                // A child of a fork has a copy, and the name is its parent's.
                if *process != std::process::id() {
                    shmem.set_owner(false);
                }
                (shmem.as_ptr(), shmem.len())
            }
            Self::Lasting | Self::Heap(_) => return,
        };
        forks::forget(base.addr() as u64, len as u64);
    }
}

impl Drop for ReservedAddresses {
    fn drop(&mut self) {
        // SAFETY: reserved in `Mapping::reserve` and unmapped only here, when no mapping, cell or
        // span in it is left.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this `layout` in `Mapping::boxed`, and is
        // freed only here.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    #[test]
    fn a_boxed_mapping_is_zero_and_page_aligned() {
        let mapping = Mapping::boxed(100).unwrap();
        assert_eq!(mapping.base().as_ptr() as usize % 4096, 0);
        let mut bytes = [1; 100];
        mapping.span(0, 100).unwrap().copy_out(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 100]);
        assert!(matches!(Mapping::boxed(0), Err(Error::InvalidArgument { .. })));
        assert!(matches!(Mapping::boxed(u64::MAX), Err(Error::InvalidArgument { .. })));
        // A length that no process has room for, and no layout forbids.
        assert!(matches!(Mapping::boxed(1 << 62), Err(Error::ResourceLimit { resource: "memory", .. })));
    }

    #[test]
    fn a_cell_must_lie_within_the_mapping() {
        let mapping = Mapping::boxed(64).unwrap();
        assert!(mapping.cell::<AtomicU64>(0).is_ok());
        assert!(mapping.cell::<AtomicU64>(56).is_ok());
        for offset in [57, 64, 72, u64::MAX, u64::MAX - 7] {
            assert!(
                matches!(mapping.cell::<AtomicU64>(offset), Err(Error::OutOfRange { .. })),
                "offset {offset}"
            );
        }
    }

    #[test]
    fn a_cell_must_be_aligned() {
        let mapping = Mapping::boxed(64).unwrap();
        assert!(matches!(mapping.cell::<AtomicU64>(4), Err(Error::Misaligned { offset: 4, align: 8, .. })));
        assert!(mapping.cell::<AtomicU32>(4).is_ok());
        assert!(mapping.part(4, 8).unwrap().cell::<AtomicU64>(0).is_err());
    }

    #[test]
    fn a_cell_slice_may_be_empty_but_not_reach_past_the_end() {
        let mapping = Mapping::boxed(64).unwrap();
        assert_eq!(mapping.cells::<AtomicU64>(0, 8).unwrap().len(), 8);
        assert_eq!(mapping.cells::<AtomicU64>(64, 0).unwrap().len(), 0);
        for (offset, count) in [(0, 9), (8, 8), (64, 1), (0, u64::MAX), (0, 1 << 61), (u64::MAX, 0)] {
            assert!(
                matches!(mapping.cells::<AtomicU64>(offset, count), Err(Error::OutOfRange { .. })),
                "{count} at {offset}"
            );
        }
    }

    #[test]
    fn cells_and_spans_over_one_place_are_the_same_memory() {
        let mapping = Mapping::boxed(64).unwrap();
        let cell = mapping.cell::<AtomicU64>(8).unwrap();
        let span = mapping.span(8, 8).unwrap();
        drop(mapping);
        cell.store(0x0102_0304_0506_0708, Ordering::Relaxed); // same thread
        assert_eq!(span.read::<u64>(0).unwrap(), 0x0102_0304_0506_0708);
    }

    #[test]
    fn a_mapping_can_be_used_from_another_thread() {
        let mapping = Mapping::boxed(64).unwrap();
        let cell = mapping.cell::<AtomicU64>(0).unwrap();
        std::thread::spawn(move || cell.store(7, Ordering::Relaxed)).join().unwrap(); // join orders it
        assert_eq!(mapping.cell::<AtomicU64>(0).unwrap().load(Ordering::Relaxed), 7); // join orders it
    }
}
