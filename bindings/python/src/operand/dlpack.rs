//! Objects that lend their memory by DLPack. They are read once for each call, which takes some
//! microseconds; NumPy and torch go other ways.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use super::{Operand, scattered};
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

/// Returns the bytes of `object`, if it lends them by DLPack.
pub fn operand<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Operand<'py>>> {
    let Some(lend) = object.getattr_opt("__dlpack__")? else { return Ok(None) };
    let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if device != CPU {
        return Err(PyValueError::new_err("the array is on another device; copy it to the CPU first"));
    }
    let lent = lend.call0()?;
    let capsule = lent.cast::<PyCapsule>()?;
    let managed = capsule.pointer_checked(Some(NAME))?.cast::<Managed>();
    // SAFETY: a capsule of this name points to such a structure, and keeps it until it is dropped.
    let tensor = unsafe { &managed.as_ref().tensor };
    let dtype = Dtype::of_dlpack(tensor.code, tensor.bits)?;
    let dimensions = usize::try_from(tensor.ndim).unwrap_or(0);
    let extents = |start: *mut i64| match dimensions {
        0 => &[][..],
        // SAFETY: the structure has so many extents there.
        _ => unsafe { std::slice::from_raw_parts(start, dimensions) },
    };
    let shape = extents(tensor.shape);
    if !tensor.strides.is_null() && !is_contiguous(shape, extents(tensor.strides)) {
        return Err(scattered("an array", "copy it first"));
    }
    let count: i64 = shape.iter().product();
    let len = usize::try_from(count).unwrap_or(0) * dtype.size;
    let address = tensor.data.expose_provenance() + usize::try_from(tensor.byte_offset).unwrap_or(0);
    Ok(Some(Operand { _capsule: Some(lent), ..Operand::new(address, len, dtype) }))
}

/// Returns whether elements lie in C's order.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let is_next = extent <= 1 || stride == expected;
        expected *= extent.max(1);
        is_next
    })
}
