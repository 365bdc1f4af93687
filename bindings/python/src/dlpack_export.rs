//! Lends an array by DLPack, or a copy of it.

use std::ffi::c_void;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use shmccl::shm::Span;

use crate::dlpack_layout::{CPU, Managed, NAME, Tensor};
use crate::dtype::Dtype;
use crate::error::exception;

/// Type and number of the device.
pub const DEVICE: (i32, i32) = (CPU, 0);

/// What is lent: the bytes at an address, and what keeps them.
pub struct Loan {
    address: usize,
    owner: Owner,
}

/// Keeps what is lent.
enum Owner {
    Array(Py<PyAny>),
    Copy(#[expect(dead_code, reason = "its bytes are used by their address")] Vec<Line>),
}

/// Bytes of a copy, aligned as DLPack asks.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Line([u8; 256]);

impl Loan {
    /// Lends the bytes of `array` at `address`.
    pub fn of(array: &Bound<'_, PyAny>, address: usize) -> Self {
        Self { address, owner: Owner::Array(array.clone().unbind()) }
    }

    /// Lends a copy of `span`.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn copy_of(py: Python<'_>, span: &Span) -> PyResult<Self> {
        let len = usize::try_from(span.len()).unwrap_or(usize::MAX);
        let (mut lines, count) = (Vec::new(), len.div_ceil(size_of::<Line>()));
        lines.try_reserve_exact(count).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        lines.resize(count, Line([0; 256]));
        // SAFETY: so many bytes at least, which nobody else has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), len) };
        py.detach(|| span.copy_out(0, bytes)).map_err(|error| exception(py, &error))?;
        Ok(Self { address: lines.as_ptr().expose_provenance(), owner: Owner::Copy(lines) })
    }
}

/// A lent array, and what keeps it.
#[repr(C)]
struct Lent {
    managed: Managed,
    extents: Vec<i64>,
    owner: Owner,
}

/// Makes the capsule of `loan`.
///
/// # Errors
/// `MemoryError`.
pub fn capsule<'py>(
    py: Python<'py>,
    Loan { address, owner }: Loan,
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
    let lent = Box::into_raw(Box::new(Lent { managed, extents, owner }));
    // SAFETY: a pointer that is not null, a name that stays; the destructor takes it back. What
    // comes is a new reference, or null and an exception.
    let made = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(lent.cast(), NAME.as_ptr(), Some(forget)))
    };
    made.inspect_err(|_| {
        // SAFETY: boxed just above, and there is no capsule that has it.
        drop(unsafe { Box::from_raw(lent) });
    })
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
        let Lent { owner, extents, .. } = *lent;
        drop(extents);
        if let Owner::Array(array) = owner {
            array.drop_ref(py);
        }
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
