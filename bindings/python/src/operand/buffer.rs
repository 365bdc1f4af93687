//! Objects of the buffer protocol.

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::held::{Access, AskedType, Operand, addresses, lies_in_order, read_only, scattered, typed};
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
pub fn operand<'py>(
    object: &Bound<'py, PyAny>,
    access: Access,
    asked: AskedType,
) -> PyResult<Option<Operand<'py>>> {
    // Without strides, the exporter gives one piece in C's order or an error.
    let writable = if access == Access::Write { ffi::PyBUF_WRITABLE } else { 0 };
    let Some(exported) = export(object, ffi::PyBUF_ND | ffi::PyBUF_FORMAT | writable) else {
        return explained(object, access);
    };
    let (view, format) = (&exported.view, exported.format());
    let (address, len) = (view.buf.expose_provenance(), usize::try_from(view.len).unwrap_or(0));
    let size = usize::try_from(view.itemsize).unwrap_or(1);
    let dtype = match typed(len, asked, || Dtype::of_format(format, size)) {
        Ok(dtype) if is_number(format) => dtype,
        dtype => valid_elsewhere(format, dtype)?,
    };
    Ok(Some(Operand { address, len, dtype, _buffer: Some(exported), _capsule: None }))
}

/// Asks `object` for a buffer. `None` leaves its exception set.
#[inline]
fn export<'py>(object: &Bound<'py, PyAny>, flags: c_int) -> Option<Exported<'py>> {
    let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
    // SAFETY: a live object, room for the structure, and this thread holds the interpreter.
    let done = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
    // SAFETY: filled, as the result says.
    (done == 0).then(|| Exported { view: unsafe { view.assume_init() }, held: PhantomData })
}

impl Exported<'_> {
    /// Returns the code of its elements.
    #[inline]
    fn format(&self) -> &[u8] {
        if self.view.format.is_null() {
            return b"B";
        }
        // SAFETY: asked for, and a string that the exporter keeps.
        let format = unsafe { CStr::from_ptr(self.view.format) };
        format.to_bytes()
    }

    /// Returns whether its elements lie in C's order without gaps.
    fn lies_in_order(&self) -> bool {
        let dimensions = usize::try_from(self.view.ndim).unwrap_or(0);
        let extents = |start: *mut ffi::Py_ssize_t| -> Vec<i64> {
            if start.is_null() {
                return Vec::new();
            }
            // SAFETY: the protocol has as many extents and steps as dimensions.
            unsafe { std::slice::from_raw_parts(start, dimensions) }.iter().map(|&it| it as i64).collect()
        };
        let (shape, strides) = (extents(self.view.shape), extents(self.view.strides));
        self.view.suboffsets.is_null() && lies_in_order(&shape, &strides, self.view.itemsize as i64)
    }
}

/// Returns whether `format` is certainly that of a number.
#[inline]
fn is_number(format: &[u8]) -> bool {
    matches!(format, [b'B'..=b'N' | b'a'..=b'q' | b'?'] | [b'<' | b'=' | b'@' | b'Z', b'a'..=b'q'])
}

/// Returns `dtype`, unless elements of `format` mean nothing to another process.
#[cold]
fn valid_elsewhere(format: &[u8], dtype: PyResult<&'static Dtype>) -> PyResult<&'static Dtype> {
    if holds_addresses(format) { Err(addresses()) } else { dtype }
}

/// Returns whether elements of `format` have parts that are objects or addresses.
#[cold]
fn holds_addresses(format: &[u8]) -> bool {
    // Names stand between colons.
    let codes = format.split(|&byte| byte == b':').step_by(2).flatten();
    codes.into_iter().any(|code| b"O&PzX".contains(code))
}

/// Says why `object` has given no buffer; `None` where it may be read in another way.
#[cold]
fn explained<'py>(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Option<Operand<'py>>> {
    let py = object.py();
    let error = PyErr::fetch(py);
    if !error.is_instance_of::<PyBufferError>(py) && !error.is_instance_of::<PyValueError>(py) {
        return Err(error);
    }
    let Some(exported) = export(object, ffi::PyBUF_FULL_RO) else {
        let theirs = PyErr::fetch(py);
        // NumPy has types that it cannot tell by a buffer.
        return if object.hasattr("__array_interface__")? { Ok(None) } else { Err(theirs) };
    };
    Err(if !exported.lies_in_order() {
        scattered("an array", "pass numpy.ascontiguousarray(x)", access)
    } else if access == Access::Write && exported.view.readonly != 0 {
        read_only()
    } else {
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_addresses_are_seen_among_numbers_and_names() {
        for format in ["O", "T{i:a:O:b:}", "&<i", "T{T{(2)O:x:}:O:}", "z", "X{}"] {
            assert!(holds_addresses(format.as_bytes()), "{format}");
        }
        for format in ["T{i:O:=d:P:}", ">d", "3w", "T{>i:a:(2)=d:b:}", "Zg"] {
            assert!(!holds_addresses(format.as_bytes()), "{format}");
        }
    }
}
