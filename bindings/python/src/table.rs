//! The functions of the C ABI, for extension modules that use the engine which Python has loaded.

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::interrupt::has_raised_for_c;

/// The name of the capsule.
const NAME: &CStr = c"shmccl.table";

/// Returns a capsule, named "shmccl.table", of the `const shmcclTable *` that shmccl.h declares.
///
/// Waits of its functions look at Python's signals from then on. One that a handler has ended
/// returns `shmcclInterrupted`, and `raise_interrupt` raises what the handler has raised.
///
/// # Errors
/// `RuntimeError` if the package holds two versions of the engine.
#[pyfunction]
pub fn table(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let table = shmccl_c::shmcclGetTable(shmccl_c::SHMCCL_TABLE_VERSION).cast_mut();
    let table = NonNull::new(table.cast())
        .ok_or_else(|| PyRuntimeError::new_err("the package and its engine are of different versions"))?;
    // SAFETY: `has_raised_for_c` is for any thread, and stays.
    unsafe { shmccl_c::shmcclSetInterruptCheck(Some(has_raised_for_c)) };
    // SAFETY: the table lives as long as the program.
    unsafe { PyCapsule::new_with_pointer(py, table, NAME) }
}
