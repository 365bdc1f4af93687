//! Objects that lend their memory by DLPack. They are read once for each call, which takes some
//! microseconds; NumPy and torch go other ways.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use super::{Access, Operand, scattered};
use crate::dtype::Dtype;

/// `DLDeviceType` of ordinary memory.
pub const CPU: i32 = 1;

/// The name of a capsule that nobody has taken yet.
pub const NAME: &CStr = c"dltensor";

/// `DLTensor`, of DLPack before 1.0 and since.
#[repr(C)]
pub struct Tensor {
    /// The first byte, less `byte_offset`.
    pub data: *mut c_void,
    /// `DLDeviceType`.
    pub device_type: i32,
    /// The number of the device.
    pub device_id: i32,
    /// How many dimensions.
    pub ndim: i32,
    /// The kind of number.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
    /// Numbers in an element.
    pub lanes: u16,
    /// Elements by dimension.
    pub shape: *mut i64,
    /// Steps in elements; null for C's order.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
pub struct Managed {
    /// The tensor.
    pub tensor: Tensor,
    /// The maker's own.
    pub context: *mut c_void,
    /// Gives it back.
    pub deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

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
    pub unsafe fn operand<'py>(&self, kind: &str, copy: &str, access: Access) -> PyResult<Operand<'py>> {
        if self.device_type != CPU {
            return Err(elsewhere(kind));
        }
        let dtype = Dtype::of_dlpack(self.code, self.bits)?;
        let dimensions = usize::try_from(self.ndim).unwrap_or(0);
        let extents = |start: *mut i64| match dimensions {
            0 => &[][..],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(start, dimensions) },
        };
        let shape = extents(self.shape);
        if !self.strides.is_null() && !is_contiguous(shape, extents(self.strides)) {
            return Err(scattered(kind, copy, access));
        }
        let count: i64 = shape.iter().product();
        let len = usize::try_from(count).unwrap_or(0) * dtype.size;
        let address = self.data.expose_provenance() + usize::try_from(self.byte_offset).unwrap_or(0);
        Ok(Operand::new(address, len, dtype))
    }
}

/// Returns the bytes of `object`, if it lends them by DLPack.
pub fn operand<'py>(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Option<Operand<'py>>> {
    let Some(lend) = object.getattr_opt("__dlpack__")? else { return Ok(None) };
    let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if device != CPU {
        return Err(elsewhere("an array"));
    }
    let lent = lend.call0()?;
    let capsule = lent.cast::<PyCapsule>()?;
    let managed = capsule.pointer_checked(Some(NAME))?.cast::<Managed>();
    // SAFETY: a capsule of this name points to such a structure, and keeps it until it is dropped.
    let operand = unsafe { managed.as_ref().tensor.operand("an array", "copy it first", access) }?;
    Ok(Some(Operand { _capsule: Some(lent), ..operand }))
}

/// The error for bytes that this process cannot read.
pub fn elsewhere(kind: &str) -> PyErr {
    PyValueError::new_err(format!("{kind} is on another device; copy it to the CPU first"))
}

/// Returns whether elements lie in C's order.
#[inline]
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let is_next = extent <= 1 || stride == expected;
        expected *= extent.max(1);
        is_next
    })
}
