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
//!
//! Tried by `test_operands.py` and `test_torch_operands.py`.

mod buffer;
mod dlpack;
mod held;
mod interface;
pub mod part;
mod tensor;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use shmccl::comm::MemoryRange;

use crate::array::Array;
use crate::dtype::Dtype;
use held::typed;
pub use held::{Access, AskedType, Operand};
use part::Part;

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
            let (array, MemoryRange { start: address, len }) = (array.get(), array.get().bytes());
            return Ok(Self::new(address, len, typed(len, asked, || Ok(array.dtype))?));
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
    /// Fails as [`Operand::of`] does, but not for unknown types.
    pub fn of_any(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Self> {
        Self::of(object, access, None).or_else(|error| {
            match error.is_instance_of::<PyTypeError>(object.py()) {
                true => Self::of(object, access, Some(Dtype::bytes())),
                false => Err(error),
            }
        })
    }
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
