//! Lends an array by DLPack.

use std::ffi::c_void;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::array::Array;
use crate::dtype::Dtype;
use crate::operand::dlpack::{CPU, Managed, NAME, Tensor};

/// Type and number of the device.
pub const DEVICE: (i32, i32) = (CPU, 0);

/// A lent array, and what keeps it.
#[repr(C)]
struct Lent {
    managed: Managed,
    extents: Vec<i64>,
    array: Py<Array>,
}

/// Makes the capsule of `array`.
///
/// # Errors
/// `MemoryError`.
pub fn capsule<'py>(
    array: &Bound<'py, Array>,
    address: usize,
    dtype: &Dtype,
    mut extents: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = Tensor {
        data: std::ptr::with_exposed_provenance_mut::<c_void>(address),
        device_type: CPU,
        device_id: 0,
        ndim: extents.len() as i32,
        code: dtype.dlpack,
        bits: (dtype.size * 8) as u8,
        lanes: 1,
        shape: extents.as_mut_ptr(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Managed { tensor, context: std::ptr::null_mut(), deleter: Some(give_back) };
    let lent = Box::into_raw(Box::new(Lent { managed, extents, array: array.clone().unbind() }));
    // SAFETY: a pointer that is not null, a name that stays; the destructor takes it back.
    let made = unsafe { ffi::PyCapsule_New(lent.cast(), NAME.as_ptr(), Some(forget)) };
    if made.is_null() {
        // SAFETY: made just above, and nobody else has it.
        drop(unsafe { Box::from_raw(lent) });
    }
    // SAFETY: a new reference, or null and an exception.
    unsafe { Bound::from_owned_ptr_or_err(array.py(), made) }
}

/// Gives the array back, from whatever thread.
unsafe extern "C" fn give_back(managed: *mut Managed) {
    // SAFETY: the first field of what `capsule` has boxed; DLPack calls it once.
    let lent = unsafe { Box::from_raw(managed.cast::<Lent>()) };
    if Python::try_attach(|_| ()).is_none() {
        // The interpreter has ended, and nothing is counted any more.
        std::mem::forget(lent);
        return;
    }
    Python::attach(|py| {
        let Lent { array, extents, .. } = *lent;
        drop(extents);
        array.drop_ref(py);
    });
}

/// Gives the array back where nobody has taken the capsule.
unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: a live capsule.
    if unsafe { ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) } == 0 {
        return;
    }
    // SAFETY: valid by that name, as seen just above.
    let lent = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) };
    // SAFETY: nobody has taken it: a taker renames the capsule.
    unsafe { give_back(lent.cast()) };
}
