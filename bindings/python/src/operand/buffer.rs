//! Objects of the buffer protocol.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::{Access, Operand, read_only, scattered};
use crate::dtype::Dtype;

/// A buffer that an object has exported, until this is dropped.
pub struct Exported<'py> {
    view: ffi::Py_buffer,
    /// Dropped only where the interpreter is held.
    held: PhantomData<Bound<'py, PyAny>>,
}

impl Drop for Exported<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: filled by `export`, released once. Exporters find themselves by `obj` and
        // `internal`, so the structure may have moved.
        unsafe { ffi::PyBuffer_Release(&raw mut self.view) };
    }
}

/// Returns the bytes of `object`; `None` for a type that the protocol cannot express.
#[inline]
pub fn operand<'py>(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Option<Operand<'py>>> {
    let Some(exported) = export(object, access)? else { return Ok(None) };
    let view = &exported.view;
    let size = usize::try_from(view.itemsize).unwrap_or(1);
    // SAFETY: asked for, so it is null for unsigned bytes or a string that the exporter keeps.
    let format = if view.format.is_null() { c"B" } else { unsafe { CStr::from_ptr(view.format) } };
    let dtype = Dtype::of_format(format.to_bytes(), size)?;
    let (address, len) = (view.buf.expose_provenance(), usize::try_from(view.len).unwrap_or(0));
    Ok(Some(Operand { address, len, dtype, _buffer: Some(exported), _capsule: None }))
}

#[inline]
fn export<'py>(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Option<Exported<'py>>> {
    let writable = if access == Access::Write { ffi::PyBUF_WRITABLE } else { 0 };
    let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
    // Without strides, the exporter gives one piece in C's order or an error.
    let flags = ffi::PyBUF_ND | ffi::PyBUF_FORMAT | writable;
    // SAFETY: a live object, room for the structure, and this thread holds the interpreter.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
        return explained(object, access);
    }
    // SAFETY: filled, as the result says.
    Ok(Some(Exported { view: unsafe { view.assume_init() }, held: PhantomData }))
}

#[cold]
fn explained<'py>(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Option<Exported<'py>>> {
    let py = object.py();
    let error = PyErr::fetch(py);
    if !error.is_instance_of::<PyBufferError>(py) && !error.is_instance_of::<PyValueError>(py) {
        return Err(error);
    }
    if object.hasattr("__array_interface__")? {
        let text = error.value(py).str()?.to_string();
        return if text.contains("contiguous") {
            Err(scattered("an array", "pass numpy.ascontiguousarray(x)", access))
        } else if access == Access::Write && text.contains("read-only") {
            Err(read_only())
        } else {
            Ok(None)
        };
    }
    Err(if access == Access::Write { read_only() } else { error })
}
