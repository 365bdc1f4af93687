//! What calls read and write: bytes of a Python object, with their type.
//!
//! | object | read by | held by |
//! |---|---|---|
//! | `shmccl.Array` | its own fields | the caller's reference |
//! | NumPy arrays and all of the buffer protocol | `PyObject_GetBuffer` | the buffer, exported |
//! | `torch.Tensor` | DLPack's C functions, which its class names | the caller's reference |
//! | arrays with types that NumPy lacks | `__array_interface__` | the caller's reference |
//! | parts of all of these | their owner's way | as their owner |
//! | the rest | `__dlpack__` | the capsule |
//!
//! Nothing is copied here. Each way tells place, length, steps and type, and whether the bytes may
//! be written. What does not lie in one piece, in C's order, is refused. So is the other byte
//! order, unless the call names a type for the bytes.

mod buffer;
pub mod dlpack;
mod interface;
pub mod part;
mod tensor;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use shmccl::comm::{RecvBytes, SendBytes};
use shmccl::heap::Region;

use crate::array::Array;
use crate::dtype::Dtype;
use crate::heap_places::HeapPlaces;
use part::Part;

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
    address: usize,
    len: usize,
    /// Their type.
    pub dtype: &'static Dtype,
    /// Exported by an object of the buffer protocol.
    _buffer: Option<buffer::Exported<'py>>,
    _capsule: Option<Bound<'py, PyAny>>,
}

impl<'py> Operand<'py> {
    /// Finds the bytes of `object`, as elements of the type `asked` or of their own.
    ///
    /// # Errors
    /// `TypeError` for an object without any, and for elements of a type that the engine does not
    /// know, unless one is asked; `ValueError` for bytes in several pieces, on another device, that
    /// may not be written, or that are no whole elements of the type asked.
    #[inline]
    pub fn of(object: &Bound<'py, PyAny>, access: Access, asked: AskedType) -> PyResult<Self> {
        if let Ok(array) = object.cast_exact::<Array>() {
            return array.get().operand(asked);
        }
        // Before tensors, which have no buffer, so that nobody looks for torch in vain.
        // SAFETY: a live object, and this thread holds the interpreter.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0
            && let Some(operand) = buffer::operand(object, access, asked)?
        {
            return Ok(operand);
        }
        if let Ok(part) = object.cast_exact::<Part>() {
            return part.get().operand(object.py(), access, asked);
        }
        if let Some(tensor) = tensor::operand(object, access, asked)? {
            return Ok(tensor);
        }
        if let Some(operand) = interface::operand(object, access, asked)? {
            return Ok(operand);
        }
        if let Some(operand) = dlpack::operand(object, access, asked)? {
            return Ok(operand);
        }
        Err(no_operand(object)?)
    }

    /// Finds the bytes of `object` whatever they are, for calls that only move them.
    ///
    /// # Errors
    /// Those of [`Operand::of`] but for unknown types.
    pub fn of_any(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Self> {
        Self::of(object, access, None).or_else(|error| {
            match error.is_instance_of::<PyTypeError>(object.py()) {
                true => Self::of(object, access, Some(Dtype::bytes())),
                false => Err(error),
            }
        })
    }

    /// Makes the operand of `len` bytes at `address`, which an object keeps that outlives it.
    pub fn new(address: usize, len: usize, dtype: &'static Dtype) -> Self {
        Self { address, len, dtype, _buffer: None, _capsule: None }
    }

    /// Returns where the bytes are, for calls.
    #[inline]
    pub fn bytes(&self) -> Bytes {
        Bytes { address: self.address, len: self.len }
    }
}

/// Bytes of this process that a Python object keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Their first address.
    pub address: usize,
    /// How many there are.
    pub len: usize,
}

impl Bytes {
    /// Returns whether some of these bytes are among `other`.
    pub fn overlaps(self, other: Self) -> bool {
        let (end, other_end) = (self.address + self.len, other.address + other.len);
        self.len > 0 && other.len > 0 && self.address < other_end && other.address < end
    }

    /// Returns these bytes as the input of a call: a region of the heap, if they lie there.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing of this process writes them meanwhile but calls of the
    /// same communicator, which are executed one after the other.
    #[inline]
    pub unsafe fn send<'a>(self, heap: &HeapPlaces) -> SendBytes<'a> {
        match heap.own_region(self) {
            Some(region) => region.into(),
            // SAFETY: the caller's promise; an empty slice needs any address but zero.
            None => unsafe { std::slice::from_raw_parts(self.start(), self.len) }.into(),
        }
    }

    /// Returns these bytes as the output of a call, as [`Bytes::send`] does.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing else of this process touches them meanwhile but calls
    /// of the same communicator, which are executed one after the other.
    #[inline]
    pub unsafe fn recv<'a>(self, heap: &HeapPlaces) -> RecvBytes<'a> {
        match heap.own_region(self) {
            Some(region) => region.into(),
            // SAFETY: as in `send`.
            None => unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }.into(),
        }
    }

    /// Returns the region of these bytes in the heap of any rank.
    ///
    /// # Errors
    /// `ValueError` for bytes that lie elsewhere.
    pub fn region(self, heap: &HeapPlaces, rank: u32, what: &str) -> PyResult<Region> {
        heap.region_of(rank, self).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{what} does not lie in the heap; make it with comm.zeros or comm.empty, or take a part of such an array"
            ))
        })
    }

    /// Returns these bytes, to be read at once.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing of this process writes them meanwhile.
    unsafe fn lent<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise; an empty slice needs any address but zero.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    fn start(self) -> *mut u8 {
        if self.len == 0 {
            std::ptr::dangling_mut()
        } else {
            std::ptr::with_exposed_provenance_mut(self.address)
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
fn lies_in_order(shape: &[i64], strides: &[i64], size: i64) -> bool {
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
fn len_of(shape: &[i64], bits: u64) -> Option<usize> {
    let mut extents = shape.iter().map(|&extent| u64::try_from(extent).ok());
    let count = extents.try_fold(1_u64, |count, extent| count.checked_mul(extent?))?;
    usize::try_from(count.checked_mul(bits)?.div_ceil(8)).ok()
}

/// The error for elements that are addresses: they mean nothing elsewhere.
#[cold]
fn addresses() -> PyErr {
    PyTypeError::new_err(
        "cannot take elements that are Python objects or addresses; pickle them, and pass the bytes",
    )
}

/// The error for an object without bytes that can be found.
#[cold]
fn no_operand(object: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    if object.hasattr("__cuda_array_interface__")? {
        return Ok(dlpack::elsewhere("an array"));
    }
    Ok(PyTypeError::new_err(format!(
        "cannot take a {}: expected an array of NumPy, a tensor, a shmccl.Array, or an object of the buffer \
         protocol or DLPack; numpy.asarray(x) makes an array of numbers in lists",
        object.get_type()
    )))
}

/// The error for an object of which bytes lie in several pieces. `copy` puts them in order.
#[cold]
fn scattered(kind: &str, copy: &str, access: Access) -> PyErr {
    PyValueError::new_err(match access {
        Access::Read => format!("{kind} must be contiguous, in C's order; {copy}"),
        // A copy would be written, and lost.
        Access::Write => format!(
            "{kind} that is written must be contiguous, in C's order; pass one that is, and copy from it"
        ),
    })
}

/// The error for an object that may not be written.
#[cold]
fn read_only() -> PyErr {
    PyValueError::new_err("the output is read-only; pass one that can be written")
}
