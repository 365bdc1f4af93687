//! Exchanges: bytes that a peer has written into a place are taken, and bytes that it is to read
//! are put there instead.
//!
//! Where a place goes back and forth between two cores, its lines are loaded before they are stored
//! to. Loads of many lines are under way at a time, while stores to lines that another core has
//! wait for one another. So all of this goes by loops, whatever the length.

use super::{Span, copy};
use crate::error::{Error, Result};
use crate::shm::CacheHint;
use crate::shm::to_usize;

/// Bytes that are put into a place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GivenBytes<'a> {
    Slice(&'a [u8]),
    Shared { span: &'a Span, offset: u64, len: u64 },
}

/// Where the bytes go that are taken from a place.
#[derive(Debug)]
pub(crate) enum TakenBytes<'a> {
    Slice(&'a mut [u8]),
    Shared { span: &'a Span, offset: u64, len: u64 },
}

impl GivenBytes<'_> {
    fn locate(&self) -> Result<(*const u8, usize)> {
        match *self {
            Self::Slice(bytes) => Ok((bytes.as_ptr(), bytes.len())),
            Self::Shared { span, offset, len } => Ok((span.locate(offset, len)?.cast_const(), to_usize(len))),
        }
    }
}

impl TakenBytes<'_> {
    fn locate(&mut self) -> Result<(*mut u8, usize)> {
        match self {
            Self::Slice(bytes) => Ok((bytes.as_mut_ptr(), bytes.len())),
            Self::Shared { span, offset, len } => Ok((span.locate(*offset, *len)?, to_usize(*len))),
        }
    }
}

impl Span {
    /// Copies the bytes at `offset` into `taken`, and `given` in their place, in one pass. Where a
    /// peer has written the taken bytes, and reads the given ones, this is quicker than one after
    /// the other. The taken bytes go past the cache where `cache_hint` says so and the processor
    /// can.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `given` is not as long as `taken`; [`Error::OutOfRange`];
    /// nothing was changed.
    pub fn exchange(&self, offset: u64, taken: &mut [u8], given: &[u8], cache_hint: CacheHint) -> Result<()> {
        self.exchange_any(offset, TakenBytes::Slice(taken), GivenBytes::Slice(given), cache_hint)
    }

    /// Exchanges like [`exchange`](Self::exchange), wherever the bytes are. Where places overlap,
    /// seen by address as in [`copy_to`](Self::copy_to), all bytes are taken first, and then all
    /// given.
    ///
    /// # Errors
    /// Fails as [`exchange`](Self::exchange) does.
    pub(crate) fn exchange_any(
        &self,
        offset: u64,
        mut taken: TakenBytes<'_>,
        given: GivenBytes<'_>,
        cache_hint: CacheHint,
    ) -> Result<()> {
        let ((target, len), (source, n_given)) = (taken.locate()?, given.locate()?);
        if n_given != len {
            return Err(Error::invalid("bytes given", n_given as u64, "as many as are taken"));
        }
        let shared = self.locate(offset, len as u64)?;
        let is_apart = |one: *const u8, other: *const u8| one.addr().abs_diff(other.addr()) >= len;
        if is_apart(shared, target) && is_apart(shared, source) && is_apart(target, source) {
            // SAFETY: `len` bytes are mapped or borrowed at each place, which were located just
            // above, and no two of them overlap.
            unsafe { copy::exchange(shared, target, source, len, cache_hint) };
            return Ok(());
        }
        self.take(offset, taken, cache_hint)?;
        self.give(offset, given)
    }

    /// Copies `given` to `offset`, the second half of an [`exchange`](Self::exchange): by a loop,
    /// if the processor has one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    pub(crate) fn give(&self, offset: u64, given: GivenBytes<'_>) -> Result<()> {
        let (source, len) = given.locate()?;
        let target = self.locate(offset, len as u64)?;
        // SAFETY: `len` bytes are mapped or borrowed at both places, which were located just above.
        unsafe { copy_half(source, target, len, CacheHint::Keep) };
        Ok(())
    }

    /// Copies the bytes at `offset` to where they are `taken`, the first half of an
    /// [`exchange`](Self::exchange): by a loop, if the processor has one, and past the cache if
    /// `cache_hint` says so.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing was changed.
    pub(crate) fn take(&self, offset: u64, mut taken: TakenBytes<'_>, cache_hint: CacheHint) -> Result<()> {
        let (target, len) = taken.locate()?;
        let source = self.locate(offset, len as u64)?;
        // SAFETY: `len` bytes are mapped or borrowed at both places, which were located just above.
        unsafe { copy_half(source, target, len, cache_hint) };
        Ok(())
    }
}

/// # Safety
/// `len` bytes are readable at `source` and writable at `target`.
unsafe fn copy_half(source: *const u8, target: *mut u8, len: usize, cache_hint: CacheHint) {
    if source.addr().abs_diff(target.addr()) < len {
        // SAFETY: the caller's contract; `ptr::copy` allows overlap.
        unsafe { std::ptr::copy(source, target, len) };
    } else {
        // SAFETY: the caller's contract; the ranges are at least `len` apart.
        unsafe { copy::exchange_half(source, target, len, cache_hint) };
    }
}
