//! Control structures in shared memory: typed, borrowed from the mapping, made of atomics only.

use std::ops::Deref;
use std::ptr::NonNull;

use super::forks;
use super::mapping::Owned;
use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use crate::sync::header::SegmentHeader;
use crate::sync::regroup::{OfferCell, RoundCell};
use crate::sync::{
    ActivityCell, AgreementCell, BarrierCell, CursorCell, HeartbeatCell, LifeCell, ParkCell, PostCell,
    ProgressCell, RecordCell, RevokeCell, SemaphoreCell, WishCell,
};

/// A type that may be looked at in memory which other processes write at the same time.
///
/// # Safety
/// The type is `repr(C)` or `repr(transparent)`, valid for every bit pattern (in particular all
/// zero), and consists of atomics (and padding) only: nothing of it is a pointer, a `usize`, a
/// `bool` or an enum.
pub unsafe trait SharedLayout: Send + Sync + 'static {}

// SAFETY: an atomic integer is valid for every bit pattern.
unsafe impl SharedLayout for AtomicU8 {}
// SAFETY: an atomic integer is valid for every bit pattern.
unsafe impl SharedLayout for AtomicU16 {}
// SAFETY: an atomic integer is valid for every bit pattern.
unsafe impl SharedLayout for AtomicU32 {}
// SAFETY: an atomic integer is valid for every bit pattern.
unsafe impl SharedLayout for AtomicU64 {}
// SAFETY: `repr(C)`, atomic integers and padding made of atomic integers (see its field table).
unsafe impl SharedLayout for SegmentHeader {}
// SAFETY: `repr(C)` and atomic integers throughout (see its field table).
unsafe impl SharedLayout for ActivityCell {}
// SAFETY: `repr(C)` and atomic integers throughout.
unsafe impl SharedLayout for AgreementCell {}
// SAFETY: `repr(C)`, atomic integers, and padding at the end.
unsafe impl SharedLayout for OfferCell {}
// SAFETY: `repr(C)`, atomic integers in transparent wrappers, and padding made of atomic integers.
unsafe impl SharedLayout for RoundCell {}
// SAFETY: `repr(C)` and atomic integers throughout, the reserved ones included (see its field
// table).
unsafe impl SharedLayout for CursorCell {}
// SAFETY: `repr(C)` and atomic integers throughout, the reserved ones included (see its field
// table).
unsafe impl SharedLayout for BarrierCell {}
// SAFETY: `repr(C)`, an atomic integer, and padding at the end.
unsafe impl SharedLayout for HeartbeatCell {}
// SAFETY: `repr(C)` and atomic integers throughout, the reserved ones included (see its field
// table).
unsafe impl SharedLayout for LifeCell {}
// SAFETY: `repr(C)` and atomic integers throughout, the reserved ones included (see its field
// table).
unsafe impl SharedLayout for ParkCell {}
// SAFETY: `repr(C)` and atomic integers throughout (see its field table).
unsafe impl SharedLayout for PostCell {}
// SAFETY: `repr(C)` and atomic integers throughout, the reserved ones included (see its field
// table).
unsafe impl SharedLayout for ProgressCell {}
// SAFETY: `repr(C)` and atomic integers throughout (see its field table).
unsafe impl SharedLayout for RecordCell {}
// SAFETY: `repr(C)` and atomic integers throughout, the reserved ones included (see its field
// table).
unsafe impl SharedLayout for RevokeCell {}
// SAFETY: `repr(C)` and atomic integers throughout, the reserved ones included (see its field
// table).
unsafe impl SharedLayout for SemaphoreCell {}
// SAFETY: as above.
unsafe impl SharedLayout for WishCell {}
// SAFETY: `repr(C)` and atomic integers throughout (see its field table).
unsafe impl SharedLayout for shmccl_proxy::FifoHeader {}
// SAFETY: `repr(C)` and an atomic integer (see its field table).
unsafe impl SharedLayout for shmccl_proxy::Roster {}
// SAFETY: `repr(C)` and atomic integers throughout (see its field table).
unsafe impl SharedLayout for shmccl_proxy::Slot {}

/// A control structure in a mapping, kept mapped by this handle. Cheap to clone; dereferencing
/// costs nothing.
#[derive(Debug)]
pub struct CellRef<T> {
    cell: NonNull<T>,
    owner: Owned,
}

/// An array of control structures in a mapping, kept mapped by this handle.
#[derive(Debug)]
pub struct CellSlice<T> {
    cells: NonNull<[T]>,
    owner: Owned,
}

// SAFETY: the handle gives out `&T` only, T is Sync (by `SharedLayout`), and `owner` may be dropped
// on any thread.
unsafe impl<T: SharedLayout> Send for CellRef<T> {}
// SAFETY: as above.
unsafe impl<T: SharedLayout> Sync for CellRef<T> {}
// SAFETY: as above, for `&[T]`.
unsafe impl<T: SharedLayout> Send for CellSlice<T> {}
// SAFETY: as above, for `&[T]`.
unsafe impl<T: SharedLayout> Sync for CellSlice<T> {}

/// Has the processor fetch `cell`, which is written soon, and does not wait for it.
#[inline]
pub(crate) fn prefetch_for_write<T: SharedLayout>(cell: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: every processor of this architecture has the instruction, which reads nothing as
        // far as the program can tell.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(cell).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = cell;
}

impl<T: SharedLayout> CellRef<T> {
    /// # Safety
    /// `cell` is aligned and points to a T within memory that `owner` keeps mapped.
    pub(super) unsafe fn new(cell: NonNull<T>, owner: Owned) -> Self {
        Self { cell, owner }
    }

    /// Has children of a fork find in it what it holds then.
    pub(crate) fn lend(&self) {
        forks::lend(self.cell.as_ptr().addr() as u64, size_of::<T>() as u64);
    }
}

impl<T: SharedLayout> CellSlice<T> {
    /// # Safety
    /// `first` is aligned and points to `count` T within memory that `owner` keeps mapped.
    pub(super) unsafe fn new(first: NonNull<T>, count: usize, owner: Owned) -> Self {
        Self { cells: NonNull::slice_from_raw_parts(first, count), owner }
    }

    /// Returns the cell at `index` with a handle of its own, if there is one.
    #[must_use]
    pub fn get_ref(&self, index: usize) -> Option<CellRef<T>> {
        let cell = NonNull::from(self.get(index)?);
        // SAFETY: it is an element of this slice, which `owner` keeps mapped.
        Some(unsafe { CellRef::new(cell, self.owner.clone()) })
    }
}

impl<T: SharedLayout> Deref for CellRef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: aligned, in bounds and mapped as long as `owner` lives (contract of `new`,
        // established in `Mapping::cell`); any bytes are a T, and other processes change only
        // atomics (`SharedLayout`).
        unsafe { self.cell.as_ref() }
    }
}

impl<T: SharedLayout> Deref for CellSlice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: as for CellRef; established in `Mapping::cells`.
        unsafe { self.cells.as_ref() }
    }
}

impl<T> Clone for CellRef<T> {
    fn clone(&self) -> Self {
        Self { cell: self.cell, owner: self.owner.clone() }
    }
}

impl<T> Clone for CellSlice<T> {
    fn clone(&self) -> Self {
        Self { cells: self.cells, owner: self.owner.clone() }
    }
}
