//! Objects that lend their memory by DLPack. They are read once for each call, which takes some
//! microseconds; NumPy and torch go other ways.

use std::ptr::NonNull;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};

use super::held::{Access, AskedType, Operand, len_of, lies_in_order, read_only, scattered, typed};
use crate::dlpack_layout::{CPU, Managed, NAME, READ_ONLY, Tensor, VERSION, VERSIONED, Versioned};
use crate::dtype::Dtype;

impl Tensor {
    /// Returns the bytes, which `kind` has and `copy` would put in order.
    ///
    /// # Errors
    /// `ValueError` for bytes in several pieces or on another device, `TypeError` for elements of
    /// another type.
    ///
    /// # Safety
    /// It is as DLPack asks: shape and steps have `ndim` entries.
    #[inline]
    pub unsafe fn operand<'py>(
        &self,
        kind: &str,
        copy: &str,
        access: Access,
        asked: AskedType,
    ) -> PyResult<Operand<'py>> {
        if self.device_type != CPU {
            return Err(elsewhere(kind));
        }
        let dimensions = usize::try_from(self.ndim).unwrap_or(0);
        let extents = |start: *mut i64| match dimensions {
            0 => &[][..],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(start, dimensions) },
        };
        let shape = extents(self.shape);
        if !self.strides.is_null() && !lies_in_order(shape, extents(self.strides), 1) {
            return Err(scattered(kind, copy, access));
        }
        let bits = u64::from(self.bits) * u64::from(self.lanes);
        let len = len_of(shape, bits).ok_or_else(|| {
            PyValueError::new_err(format!("{kind} of shape {shape:?} is longer than all memory"))
        })?;
        let dtype = typed(len, asked, || Dtype::of_dlpack(self.code, self.bits, self.lanes))?;
        let address = self.data.expose_provenance() + usize::try_from(self.byte_offset).unwrap_or(0);
        Ok(Operand::new(address, len, dtype))
    }
}

/// Returns the bytes of `object`, if it lends them by DLPack.
pub fn operand<'py>(
    object: &Bound<'py, PyAny>,
    access: Access,
    asked: AskedType,
) -> PyResult<Option<Operand<'py>>> {
    let Some(lend) = object.getattr_opt("__dlpack__")? else { return Ok(None) };
    let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if device != CPU {
        return Err(elsewhere("an array"));
    }
    let lent = lent_by(&lend)?;
    let (tensor, flags) = tensor_of(lent.cast::<PyCapsule>()?)?;
    if access == Access::Write && flags & READ_ONLY != 0 {
        return Err(read_only());
    }
    // SAFETY: the capsule keeps such a structure until it is dropped.
    let operand = unsafe { tensor.as_ref().operand("an array", "copy it first", access, asked) }?;
    Ok(Some(Operand { _capsule: Some(lent), ..operand }))
}

/// Asks for a capsule that tells its version; for any from objects that know none.
fn lent_by<'py>(lend: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = lend.py();
    let version = PyDict::new(py);
    version.set_item("max_version", VERSION)?;
    lend.call((), Some(&version)).or_else(|error| match error.is_instance_of::<PyTypeError>(py) {
        true => lend.call0(),
        false => Err(error),
    })
}

/// Returns the tensor of a capsule, and its flags.
fn tensor_of(capsule: &Bound<'_, PyCapsule>) -> PyResult<(NonNull<Tensor>, u64)> {
    if !capsule.is_valid_checked(Some(VERSIONED)) {
        let managed = capsule.pointer_checked(Some(NAME))?.cast::<Managed>();
        // SAFETY: a capsule of this name points to such a structure.
        return Ok((NonNull::from(unsafe { &managed.as_ref().tensor }), 0));
    }
    let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<Versioned>();
    // SAFETY: a capsule of this name points to such a structure; its version comes first whatever
    // follows.
    let managed = unsafe { managed.as_ref() };
    if managed.major != VERSION.0 {
        let (theirs, ours) = (managed.major, VERSION.0);
        return Err(PyValueError::new_err(format!(
            "an array lends by version {theirs} of DLPack, expected {ours}"
        )));
    }
    Ok((NonNull::from(&managed.tensor), managed.flags))
}

/// Returns the error for bytes that this process cannot read.
pub fn elsewhere(kind: &str) -> PyErr {
    PyValueError::new_err(format!("{kind} is on another device; copy it to the CPU first"))
}
