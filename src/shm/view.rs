//! Payload: bytes in a mapping that are copied in and out, never lent.

mod exchange;

use std::ptr::NonNull;

use bytemuck::Pod;

pub(crate) use exchange::{GivenBytes, TakenBytes};

use super::cells::SharedLayout;
use super::copy::{self, CacheHint, CopyKernel, StorePurpose};
use super::mapping::Owned;
use super::{forks, in_bounds, to_usize};
use crate::error::{Error, Result};
use crate::sync::AtomicWord;
use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// How many bytes are checksummed at a time: they stay in the nearest cache.
const CRC_CHUNK: usize = 8 << 10;

/// A range of payload bytes; keeps its mapping alive. Every access is bounds-checked.
///
/// Accesses are plain copies: they order nothing between processes. The bytes of a peer are there
/// after the wait for its signal. A peer that writes at the same time makes the bytes that both
/// touch a mixture. A range of zero bytes is legal at any offset in `0..=len`.
#[derive(Clone, Debug)]
pub struct Span {
    start: NonNull<u8>,
    len: usize,
    owner: Owned,
}

// SAFETY: `start` is an address in memory that `owner` (Send) keeps mapped. Through a span bytes
// are only copied, by accesses that cope with concurrent writers as the trust model at the head of
// `shm` says.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// # Safety
    /// `len` bytes at `start` are mapped as long as `owner` lives.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize, owner: Owned) -> Self {
        Self { start, len, owner }
    }

    /// Has children of a fork find in it what it holds then: the program has it from now on.
    pub(crate) fn lend(&self) {
        forks::lend(self.start.as_ptr().addr() as u64, self.len());
    }

    /// Takes [`Span::lend`] back: the program has none of it any more.
    pub(crate) fn take_back(&self) {
        forks::take_back(self.start.as_ptr().addr() as u64, self.len());
    }

    /// Returns its length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether it has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its first address in this process.
    #[inline]
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the bytes `offset..offset + len` as a span of their own. Costs an atomic increment.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        let start = self.locate(offset, len)?;
        // SAFETY: `locate` found the bytes in bounds; `owner` keeps them mapped.
        let start = unsafe { NonNull::new_unchecked(start) };
        Ok(Self { start, len: to_usize(len), owner: self.owner.clone() })
    }

    /// Copies `source` to `offset`, in the way that is best when a peer reads it next.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    #[inline]
    pub fn copy_in(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.copy_in_for(offset, source, CacheHint::Keep)
    }

    /// Copies `source` to `offset`, in the cache or past it as `cache_hint` says.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    #[inline]
    pub fn copy_in_for(&self, offset: u64, source: &[u8], cache_hint: CacheHint) -> Result<()> {
        let target = self.locate(offset, source.len() as u64)?;
        // SAFETY: `locate` found `source.len()` mapped bytes at `target`; a caller's slice does not
        // overlap payload (only the unsafe `as_mut_slice` and `as_slice` make slices of it, and
        // their contracts exclude this).
        unsafe { copy::copy(source.as_ptr(), target, source.len(), cache_hint.into()) };
        Ok(())
    }

    /// Copies the bytes at `offset` into `target`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    #[inline]
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let source = self.locate(offset, target.len() as u64)?;
        // SAFETY: `locate` found `target.len()` mapped bytes at `source`; no overlap, as in
        // `copy_in_for`.
        unsafe { copy::copy(source, target.as_mut_ptr(), target.len(), StorePurpose::Get) };
        Ok(())
    }

    /// Returns whether the bytes at `offset` are those `expected`, compared where they lie.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub fn equals(&self, offset: u64, expected: &[u8]) -> Result<bool> {
        let found = self.locate(offset, expected.len() as u64)?;
        // SAFETY: `locate` found as many mapped bytes at `found`; any bytes are initialised.
        let order = unsafe { libc::memcmp(found.cast(), expected.as_ptr().cast(), expected.len()) };
        Ok(order == 0)
    }

    /// Copies `len` bytes from `offset` to `target_offset` of `target`. The ranges may overlap.
    ///
    /// Overlap is seen by address: two mappings of one segment at different addresses are taken for
    /// distinct memory, and a copy between overlapping ranges of them leaves a mixture.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    #[inline]
    pub fn copy_to(
        &self,
        offset: u64,
        target: &Self,
        target_offset: u64,
        len: u64,
        cache_hint: CacheHint,
    ) -> Result<()> {
        let source = self.locate(offset, len)?;
        let target = target.locate(target_offset, len)?;
        // SAFETY: both ranges were found in bounds by `locate`.
        unsafe { copy::copy_overlapping(source, target, to_usize(len), cache_hint.into()) };
        Ok(())
    }

    /// Copies where both ranges end at `limit` or before. Otherwise it changes nothing and returns
    /// `false`.
    #[inline]
    #[must_use]
    pub(crate) fn try_copy_below(
        &self,
        limit: u64,
        offset: u64,
        target: &Self,
        target_offset: u64,
        len: u64,
        cache_hint: CacheHint,
    ) -> bool {
        let limit = limit.min(self.len()).min(target.len());
        if !in_bounds(offset.max(target_offset), len, limit) {
            return false;
        }
        // SAFETY: the further of the two ranges, which are of one length, is in bounds of both
        // spans, checked just above.
        let source = unsafe { self.start.as_ptr().add(to_usize(offset)) };
        // SAFETY: the same.
        let target = unsafe { target.start.as_ptr().add(to_usize(target_offset)) };
        // SAFETY: both ranges are in bounds.
        unsafe { copy::copy_overlapping(source, target, to_usize(len), cache_hint.into()) };
        true
    }

    /// Copies all bytes to the start of `target` by one particular kernel, to compare with the
    /// copies that choose.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when `target` is shorter; [`Error::InvalidArgument`] when the
    /// processor lacks the kernel's instructions, or the ranges overlap. Nothing was changed.
    pub fn copy_with(&self, kernel: CopyKernel, target: &Self) -> Result<()> {
        let sink = target.locate(0, self.len())?;
        let source = self.start.as_ptr();
        if !kernel.is_supported() || source.addr().abs_diff(sink.addr()) < self.len {
            let expected = "one that this processor supports, between ranges that do not overlap";
            return Err(Error::InvalidArgument { name: "copy kernel", value: kernel as u64, expected });
        }
        // SAFETY: `locate` found the target in bounds, the source is all of `self`; no overlap and
        // a supported kernel, checked just above.
        unsafe { kernel.run(source, sink, self.len) };
        Ok(())
    }

    /// Reads the element at `offset`, which need not be aligned. 1, 2, 4 or 8 bytes are one
    /// atomic load if aligned.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub fn read<T: Pod>(&self, offset: u64) -> Result<T> {
        if let Some(value) = self.read_word(offset) {
            return Ok(value);
        }
        let mut value = T::zeroed();
        self.copy_out(offset, bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// Writes `value` at `offset`, which need not be aligned. 1, 2, 4 or 8 bytes are one
    /// atomic store if aligned.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    #[inline]
    pub fn write<T: Pod>(&self, offset: u64, value: T) -> Result<()> {
        if self.write_word(offset, value) {
            return Ok(());
        }
        self.copy_in(offset, bytemuck::bytes_of(&value))
    }

    /// Reads an element that is a word and lies like one. `None` for any other.
    #[inline]
    pub(crate) fn read_word<T: Pod>(&self, offset: u64) -> Option<T> {
        match size_of::<T>() {
            1 => self.read_as::<AtomicU8, T>(offset),
            2 => self.read_as::<AtomicU16, T>(offset),
            4 => self.read_as::<AtomicU32, T>(offset),
            8 => self.read_as::<AtomicU64, T>(offset),
            _ => None,
        }
    }

    #[inline]
    fn read_as<W: AtomicWord<Bits: Pod> + SharedLayout, T: Pod>(&self, offset: u64) -> Option<T> {
        bytemuck::try_cast(self.word::<W>(offset)?.read()).ok()
    }

    /// Writes an element that is a word and lies like one. It does nothing with any other, and
    /// returns `false`.
    #[inline]
    pub(crate) fn write_word<T: Pod>(&self, offset: u64, value: T) -> bool {
        match size_of::<T>() {
            1 => self.write_as::<AtomicU8, T>(offset, value),
            2 => self.write_as::<AtomicU16, T>(offset, value),
            4 => self.write_as::<AtomicU32, T>(offset, value),
            8 => self.write_as::<AtomicU64, T>(offset, value),
            _ => false,
        }
    }

    #[inline]
    fn write_as<W: AtomicWord<Bits: Pod> + SharedLayout, T: Pod>(&self, offset: u64, value: T) -> bool {
        let (Some(word), Ok(bits)) = (self.word::<W>(offset), bytemuck::try_cast(value)) else {
            return false;
        };
        word.write(bits);
        true
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<()> {
        let target = self.locate(offset, len)?;
        // SAFETY: `locate` found the bytes in bounds.
        unsafe { target.write_bytes(byte, to_usize(len)) };
        Ok(())
    }

    /// Returns the CRC32C of the `len` bytes at `offset`, as if they followed bytes whose checksum
    /// is `before`; 0 stands for none.
    ///
    /// Bytes that are written meanwhile are seen as they were, as they are, or as a mixture.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn crc32c(&self, before: u32, offset: u64, len: u64) -> Result<u32> {
        let (mut checksum, mut at, mut left) = (before, offset, len);
        let mut buffer = [0; CRC_CHUNK];
        // A range out of bounds is refused as a whole.
        self.part(offset, len)?;
        while left > 0 {
            let now = usize::try_from(left).map_or(CRC_CHUNK, |left| left.min(CRC_CHUNK));
            self.copy_out(at, &mut buffer[..now])?;
            checksum = crc32c::crc32c_append(checksum, &buffer[..now]);
            at += now as u64;
            left -= now as u64;
        }
        Ok(checksum)
    }

    /// Returns the 8 bytes at `offset` as an atomic.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> Result<&AtomicU64> {
        self.atomic(offset)
    }

    /// Returns the bytes at `offset` as an atomic, or several.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    #[inline]
    pub(crate) fn atomic<T: SharedLayout>(&self, offset: u64) -> Result<&T> {
        self.word(offset).ok_or_else(|| self.no_word::<T>(offset))
    }

    /// Returns the bytes at `offset` as an atomic, if they are in bounds and aligned.
    // Fast path: no error is made to be dropped.
    #[inline]
    pub(crate) fn word<T: SharedLayout>(&self, offset: u64) -> Option<&T> {
        let is_in_bounds = in_bounds(offset, size_of::<T>() as u64, self.len as u64);
        let cell = self.start.as_ptr().wrapping_add(to_usize(offset)).cast::<T>();
        if !is_in_bounds || !cell.is_aligned() {
            return None;
        }
        // SAFETY: in bounds and aligned, just checked; mapped while `self` is borrowed; any bytes
        // are a T (`SharedLayout`).
        Some(unsafe { &*cell })
    }

    /// Returns the `count` 8-byte words at `offset` as atomics.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    #[inline]
    pub fn atomics_u64(&self, offset: u64, count: u64) -> Result<&[AtomicU64]> {
        self.atomics(offset, count)
    }

    /// Returns the bytes at `offset` as `count` atomics in a row.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    #[inline]
    pub(crate) fn atomics<T: SharedLayout>(&self, offset: u64, count: u64) -> Result<&[T]> {
        let first = self.locate_aligned::<T>(offset, count)?;
        #[expect(clippy::disallowed_methods, reason = "this is one of the checked views")]
        // SAFETY: as in `word`, for `count` of them.
        Ok(unsafe { std::slice::from_raw_parts(first, to_usize(count)) })
    }

    /// Returns the `count` elements at `offset`, in place.
    ///
    /// # Safety
    /// As long as the slice lives, nobody writes to these bytes: neither this process (through any
    /// span, or `as_mut_slice`) nor a peer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub unsafe fn as_slice<T: Pod>(&self, offset: u64, count: u64) -> Result<&[T]> {
        let first = self.locate_aligned::<T>(offset, count)?;
        #[expect(clippy::disallowed_methods, reason = "this is one of the checked views")]
        // SAFETY: in bounds and aligned, just checked; mapped while `self` is borrowed; any bytes
        // are a T (Pod); that nobody writes is the caller's duty.
        Ok(unsafe { std::slice::from_raw_parts(first, to_usize(count)) })
    }

    /// Returns the `count` elements at `offset`, in place and writable.
    ///
    /// # Safety
    /// As long as the slice lives, nobody else reads or writes these bytes: neither this process
    /// (through any span or another slice) nor a peer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    #[expect(clippy::mut_from_ref, reason = "exclusiveness is the caller's duty, across processes")]
    pub unsafe fn as_mut_slice<T: Pod>(&self, offset: u64, count: u64) -> Result<&mut [T]> {
        let first = self.locate_aligned::<T>(offset, count)?;
        #[expect(clippy::disallowed_methods, reason = "this is one of the checked views")]
        // SAFETY: in bounds and aligned, just checked; mapped while `self` is borrowed; any bytes
        // are a T (Pod); that nobody else touches them is the caller's duty.
        Ok(unsafe { std::slice::from_raw_parts_mut(first, to_usize(count)) })
    }

    #[inline]
    pub(super) fn locate(&self, offset: u64, len: u64) -> Result<*mut u8> {
        if !in_bounds(offset, len, self.len as u64) {
            return Err(self.out_of_range(offset, len));
        }
        // SAFETY: `offset <= self.len`, checked just above.
        Ok(unsafe { self.start.as_ptr().add(to_usize(offset)) })
    }

    #[inline]
    fn locate_aligned<T>(&self, offset: u64, count: u64) -> Result<*mut T> {
        let Some(len) = count.checked_mul(size_of::<T>() as u64) else {
            return Err(self.out_of_range(offset, u64::MAX));
        };
        let first = self.locate(offset, len)?.cast::<T>();
        if first.is_aligned() { Ok(first) } else { Err(misaligned::<T>(offset)) }
    }

    #[cold]
    fn no_word<T>(&self, offset: u64) -> Error {
        let len = size_of::<T>() as u64;
        let is_in_bounds = in_bounds(offset, len, self.len as u64);
        if is_in_bounds { misaligned::<T>(offset) } else { self.out_of_range(offset, len) }
    }

    #[cold]
    fn out_of_range(&self, offset: u64, len: u64) -> Error {
        Error::OutOfRange { what: "payload", offset, len, limit: self.len() }
    }
}

fn misaligned<T>(offset: u64) -> Error {
    Error::Misaligned { what: "payload", offset, align: align_of::<T>() as u64 }
}

#[cfg(test)]
mod tests;
