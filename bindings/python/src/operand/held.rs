//! Operands once they are found, and the checks that all ways to find them share.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use shmccl::comm::MemoryRange;

use super::buffer::Exported;
use crate::dtype::Dtype;
use crate::heap_places::start;

/// What a call does with an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it, and may read it.
    Write,
}

/// The type that a call names by `dtype=`, whatever the object says.
pub type AskedType = Option<&'static Dtype>;

/// Bytes of a Python object, there while the operand is.
pub struct Operand<'py> {
    pub(super) address: usize,
    pub(super) len: usize,
    /// Their type.
    pub dtype: &'static Dtype,
    /// Exported by an object of the buffer protocol.
    pub(super) _buffer: Option<Exported<'py>>,
    pub(super) _capsule: Option<Bound<'py, PyAny>>,
}

impl Operand<'_> {
    /// Makes the operand of `len` bytes at `address`, which an object keeps that outlives it.
    pub fn new(address: usize, len: usize, dtype: &'static Dtype) -> Self {
        Self { address, len, dtype, _buffer: None, _capsule: None }
    }

    /// Returns where the bytes are, for calls.
    #[inline]
    pub fn bytes(&self) -> MemoryRange {
        MemoryRange { start: self.address, len: self.len }
    }

    /// Returns the bytes, to be read. The program leaves them alone meanwhile, as the manual says.
    #[inline]
    pub fn read(&self) -> &[u8] {
        // SAFETY: the operand holds them, and nothing of this process writes them meanwhile.
        unsafe { std::slice::from_raw_parts(start(self.bytes()), self.len) }
    }

    /// Returns the bytes, to be written. The program leaves them alone meanwhile. It is for those
    /// operands that were found for [`Access::Write`].
    pub fn written(&mut self) -> &mut [u8] {
        // SAFETY: as in `read`, and nothing of this process reads them meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start(self.bytes()), self.len) }
    }

    /// Makes the operand of `bytes`.
    pub fn over<'a>(bytes: &'a [u8]) -> Operand<'a> {
        Operand::new(bytes.as_ptr().expose_provenance(), bytes.len(), Dtype::bytes())
    }

    /// Replaces the bytes by those of `from`, as many as both have.
    #[inline]
    pub fn copy(&self, from: &Operand<'_>) {
        let target: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: both operands hold their bytes, which may overlap.
        unsafe {
            target.copy_from(std::ptr::with_exposed_provenance(from.address), from.len.min(self.len));
        }
    }
}

/// Returns the type of `len` bytes: the one that is asked, or their `own`.
///
/// # Errors
/// `ValueError` where they are no whole elements of the one asked; those of `own`.
#[inline]
pub fn typed(
    len: usize,
    asked: AskedType,
    own: impl FnOnce() -> PyResult<&'static Dtype>,
) -> PyResult<&'static Dtype> {
    let Some(dtype) = asked else { return own() };
    if len.is_multiple_of(dtype.size) {
        return Ok(dtype);
    }
    let (name, size) = (dtype.name, dtype.size);
    Err(PyValueError::new_err(format!(
        "{len} bytes are no whole number of elements of {name}, which take {size}; dtype=\"uint8\" takes any number"
    )))
}

/// Returns whether elements of `size` lie in C's order without gaps, where `strides` counts in the
/// unit of `size`.
#[inline]
pub fn lies_in_order(shape: &[i64], strides: &[i64], size: i64) -> bool {
    let mut expected = size;
    let is_next = |(&extent, &stride): (&i64, &i64)| {
        let is_next = extent <= 1 || stride == expected;
        expected = expected.saturating_mul(extent.max(1));
        is_next
    };
    shape.len() == strides.len() && (shape.contains(&0) || shape.iter().zip(strides).rev().all(is_next))
}

/// Returns the bytes of elements of `bits` each; `None` for more than there can be.
#[inline]
pub fn len_of(shape: &[i64], bits: u64) -> Option<usize> {
    let mut extents = shape.iter().map(|&extent| u64::try_from(extent).ok());
    let count = extents.try_fold(1_u64, |count, extent| count.checked_mul(extent?))?;
    usize::try_from(count.checked_mul(bits)?.div_ceil(8)).ok()
}

/// Returns the error for elements that are addresses: they mean nothing elsewhere.
#[cold]
pub fn addresses() -> PyErr {
    PyTypeError::new_err(
        "cannot take elements that are Python objects or addresses; pickle them, and pass the bytes",
    )
}

/// Returns the error for an object of which bytes lie in several pieces. `copy` puts them in order.
#[cold]
pub fn scattered(kind: &str, copy: &str, access: Access) -> PyErr {
    PyValueError::new_err(match access {
        Access::Read => format!("{kind} must be contiguous, in C's order; {copy}"),
        // A copy would be written, and lost.
        Access::Write => format!(
            "{kind} that is written must be contiguous, in C's order; pass one that is, and copy from it"
        ),
    })
}

/// Returns the error for an object that may not be written.
#[cold]
pub fn read_only() -> PyErr {
    PyValueError::new_err("the output is read-only; pass one that can be written")
}
