//! What calls read and write: bytes of a Python object, with their type.
//!
//! | object | read by | held by |
//! |---|---|---|
//! | `shmccl.Array` | its own fields | the caller's reference |
//! | NumPy arrays and all of the buffer protocol | `PyObject_GetBuffer` | the buffer, exported |
//! | `torch.Tensor` | DLPack's C functions, which its class names | the caller's reference |
//! | arrays with types that NumPy lacks | `__array_interface__` | the caller's reference |
//! | the rest | `__dlpack__` | the capsule |
//!
//! Nothing is copied here. What does not lie in one piece, in C's order, is refused.

mod buffer;
pub mod dlpack;
mod interface;
mod tensor;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use shmccl::comm::{RecvBytes, SendBytes};
use shmccl::heap::Region;

use crate::array::Array;
use crate::dtype::Dtype;
use crate::heap_places::HeapPlaces;

/// What a call does with an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it, and may read it.
    Write,
}

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
    /// Finds the bytes of `object`.
    ///
    /// # Errors
    /// `TypeError` for an object without any, or of a type that the engine does not know;
    /// `ValueError` for bytes in several pieces, on another device, or that may not be written.
    #[inline]
    pub fn of(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Self> {
        if let Ok(array) = object.cast_exact::<Array>() {
            return Ok(array.get().operand());
        }
        // Before tensors, which have no buffer, so that nobody looks for torch in vain.
        // SAFETY: a live object, and this thread holds the interpreter.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0
            && let Some(operand) = buffer::operand(object, access)?
        {
            return Ok(operand);
        }
        if let Some(tensor) = tensor::operand(object, access)? {
            return Ok(tensor);
        }
        if let Some(operand) = interface::operand(object, access)? {
            return Ok(operand);
        }
        dlpack::operand(object, access)?.ok_or_else(|| {
            PyTypeError::new_err(format!(
                "cannot take a {}: expected an array of NumPy, a tensor, a shmccl.Array, or an object of the buffer \
                 protocol or DLPack",
                object.get_type()
            ))
        })
    }

    /// Makes the operand of `len` bytes at `address`, which an object keeps that outlives it.
    pub fn new(address: usize, len: usize, dtype: &'static Dtype) -> Self {
        Self { address, len, dtype, _buffer: None, _capsule: None }
    }

    /// Takes the bytes for elements of `dtype`.
    ///
    /// # Errors
    /// `ValueError` where they are not whole elements.
    pub fn reinterpreted(mut self, dtype: Option<&'static Dtype>) -> PyResult<Self> {
        if let Some(dtype) = dtype {
            if !self.len.is_multiple_of(dtype.size) {
                return Err(PyValueError::new_err(format!(
                    "{} bytes are no whole number of elements of {}, which take {}",
                    self.len, dtype.name, dtype.size
                )));
            }
            self.dtype = dtype;
        }
        Ok(self)
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

    fn start(self) -> *mut u8 {
        if self.len == 0 {
            std::ptr::dangling_mut()
        } else {
            std::ptr::with_exposed_provenance_mut(self.address)
        }
    }
}

/// The error for an object of which bytes lie in several pieces. `copy` puts them in order.
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
fn read_only() -> PyErr {
    PyValueError::new_err("the output is read-only; pass one that can be written")
}
