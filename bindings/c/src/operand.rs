//! Operands: pointers of the caller's, as heap memory or as ordinary memory.

use std::ffi::c_void;

use shmccl::comm::{MemoryRange, RecvBytes, SendBytes};
use shmccl::heap::Region;

use crate::comm_state::CommState;
use crate::failure::Failure;

/// Bytes of the caller's that a call reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    start: *mut u8,
    len: usize,
    /// The bytes in this rank's heap, where they lie there.
    region: Option<Region>,
}

impl Operand {
    /// No bytes: what a rank has that is not concerned.
    pub(crate) const NONE: Self = Self { start: std::ptr::null_mut(), len: 0, region: None };

    /// Names `len` bytes at `start`, which are not null where there are any.
    pub(crate) fn new(
        state: &CommState,
        start: *const c_void,
        len: usize,
        name: &str,
    ) -> Result<Self, Failure> {
        if len == 0 {
            return Ok(Self::NONE);
        }
        if start.is_null() {
            return Err(Failure::null(name));
        }
        if start.addr().checked_add(len).is_none_or(|end| isize::try_from(len).is_err() || end == 0) {
            return Err(Failure::argument(format!("{name}: {len} bytes at {start:p} reach past all memory")));
        }
        let region = state.region_of(start.addr(), len as u64);
        Ok(Self { start: start.cast_mut().cast(), len, region })
    }

    pub(crate) fn range(&self) -> MemoryRange {
        MemoryRange { start: self.start.addr(), len: self.len }
    }

    pub(crate) const fn is_in_heap(&self) -> bool {
        self.region.is_some()
    }

    /// Returns it as the input of a call.
    ///
    /// # Safety
    /// Until the call is done the bytes can be read, and nobody writes them but calls of the same
    /// communicator, which are executed one after the other.
    pub(crate) unsafe fn input(self) -> SendBytes<'static> {
        // SAFETY: the caller's duties are the same.
        match unsafe { self.source() } {
            Ok(region) => region.into(),
            Err(bytes) => bytes.into(),
        }
    }

    /// Returns it as the source of a put: a part of this rank's heap, or ordinary memory.
    ///
    /// # Safety
    /// Until the put is done the bytes can be read, and nobody writes them.
    #[allow(clippy::disallowed_methods, reason = "it is memory of the caller's, not payload of a heap")]
    pub(crate) unsafe fn source(self) -> Result<Region, &'static [u8]> {
        match self.region {
            Some(region) => Ok(region),
            None if self.len == 0 => Err(&[]),
            // SAFETY: neither null nor too long, checked in `new`; the caller answers for the rest.
            None => Err(unsafe { std::slice::from_raw_parts(self.start, self.len) }),
        }
    }

    /// Returns it as the output of a call, or as buffer of a call in place.
    ///
    /// # Safety
    /// Until the call is done the bytes can be read and written, and nobody else does but calls of
    /// the same communicator, which are executed one after the other.
    #[allow(clippy::disallowed_methods, reason = "it is memory of the caller's, not payload of a heap")]
    pub(crate) unsafe fn output(self) -> RecvBytes<'static> {
        match self.region {
            Some(region) => region.into(),
            None if self.len == 0 => (&mut [] as &mut [u8]).into(),
            // SAFETY: neither null nor too long, checked in `new`; the caller answers for the rest.
            None => unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }.into(),
        }
    }
}
