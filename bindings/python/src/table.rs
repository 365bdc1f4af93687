//! The functions of the C ABI, for extension modules that use the engine which Python has loaded.
//! `shmccl._core._table` has those that Python itself calls.

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::interrupt::has_raised_for_c;
use crate::{table_call, table_comm, table_numbers};

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

/// Makes the module `_table`: what the backend of torch that is written in Python takes of the
/// header.
///
/// # Errors
/// Python's.
pub fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    let module = PyModule::new(py, "_table")?;
    module.add_class::<table_call::TableCall>()?;
    module.add_class::<table_call::TableRequest>()?;
    module.add_class::<table_comm::TableComm>()?;
    module.add_function(wrap_pyfunction!(table_call::last_failure, &module)?)?;
    module.add_function(wrap_pyfunction!(table_comm::free, &module)?)?;
    table_numbers::add(&module)?;
    Ok(module)
}
