//! Tensors of torch, whose class lends what DLPack says of one by a C function: a call for each
//! operand instead of five for its attributes.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;

use pyo3::exceptions::PyValueError;
use pyo3::ffi::PyObject;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyType};

use super::dlpack;
use super::held::{Access, AskedType, Operand};
use crate::dlpack_layout::Tensor;

/// The attribute of a class that lends by C functions, and the name of its capsule.
const EXCHANGE: (&str, &CStr) = ("__dlpack_c_exchange_api__", c"dlpack_exchange_api");
/// The major version of DLPack of which [`Exchange`] is.
const MAJOR: u32 = 1;

/// Fills in what DLPack says of an object, whose memory stays the object's. Returns 0, or has
/// raised an error.
type Lend = unsafe extern "C" fn(*mut PyObject, *mut Tensor) -> c_int;

/// `DLPackExchangeAPI`.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    previous: *const c_void,
    allocate: *const c_void,
    take: *const c_void,
    make: *const c_void,
    lend: Option<Lend>,
    stream: *const c_void,
}

/// What a process knows of torch once it has been imported.
struct Torch {
    tensor: Py<PyType>,
    /// None for versions whose tensors lend by `__dlpack__` only.
    lend: Option<Lend>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// Returns the bytes of `object`, if it is a tensor of torch. Does not import torch.
#[inline]
pub fn operand<'py>(
    object: &Bound<'py, PyAny>,
    access: Access,
    asked: AskedType,
) -> PyResult<Option<Operand<'py>>> {
    let py = object.py();
    let Some(torch) = TORCH.get(py).map_or_else(|| find_torch(py), |torch| Ok(Some(torch)))? else {
        return Ok(None);
    };
    let tensor = torch.tensor.bind(py);
    let is_tensor = object.get_type_ptr() == tensor.as_type_ptr() || object.is_instance(tensor)?;
    match torch.lend {
        Some(lend) if is_tensor => lent(object, lend, access, asked).map(Some),
        _ => Ok(None),
    }
}

/// Looks whether torch was imported by now.
#[cold]
fn find_torch(py: Python<'_>) -> PyResult<Option<&Torch>> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    let Ok(torch) = modules.get_item(intern!(py, "torch")) else { return Ok(None) };
    // Another thread may be importing it.
    let Some(tensor) = torch.getattr_opt("Tensor")? else { return Ok(None) };
    let tensor = tensor.cast_into::<PyType>()?;
    let lend = exchange_of(&tensor)?;
    Ok(Some(TORCH.get_or_init(py, || Torch { tensor: tensor.unbind(), lend })))
}

/// Returns by which function a class lends, if it has one of a version that is known here.
fn exchange_of(class: &Bound<'_, PyType>) -> PyResult<Option<Lend>> {
    let Some(capsule) = class.getattr_opt(EXCHANGE.0)? else { return Ok(None) };
    let exchange = capsule.cast::<PyCapsule>()?.pointer_checked(Some(EXCHANGE.1))?.cast::<Exchange>();
    // SAFETY: a capsule of this name points to such a structure, which is there as long as the
    // process; its version comes first whatever follows.
    let exchange = unsafe { exchange.as_ref() };
    Ok(exchange.lend.filter(|_| exchange.major == MAJOR))
}

#[inline]
fn lent<'py>(
    object: &Bound<'py, PyAny>,
    lend: Lend,
    access: Access,
    asked: AskedType,
) -> PyResult<Operand<'py>> {
    let py = object.py();
    let mut tensor = MaybeUninit::uninit();
    // SAFETY: a live tensor, room for the answer, and this thread holds the interpreter.
    if unsafe { lend(object.as_ptr(), tensor.as_mut_ptr()) } != 0 {
        return Err(refused(object, PyErr::fetch(py)));
    }
    // SAFETY: it was filled in.
    let tensor = unsafe { tensor.assume_init_ref() };
    // SAFETY: it points to extents that the tensor keeps.
    let operand = unsafe { tensor.operand("a tensor", "pass tensor.contiguous()", access, asked) }?;
    // What torch puts off to the reading of a tensor is said nowhere else. Parts of a complex one
    // lie apart, but for a single element.
    let may_be_put_off = tensor.is_complex() || operand.len <= usize::from(tensor.bits) / 8;
    if may_be_put_off && is_put_off(object)? {
        let text =
            "a tensor whose conjugation is put off cannot be read; pass tensor.resolve_conj().resolve_neg()";
        return Err(PyValueError::new_err(text));
    }
    Ok(operand)
}

fn is_put_off(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    Ok(object.call_method0(intern!(py, "is_conj"))?.is_truthy()?
        || object.call_method0(intern!(py, "is_neg"))?.is_truthy()?)
}

/// Returns the error for a tensor that torch does not lend.
#[cold]
fn refused(object: &Bound<'_, PyAny>, theirs: PyErr) -> PyErr {
    match object.getattr("is_cpu").and_then(|is_cpu| is_cpu.is_truthy()) {
        Ok(false) => dlpack::elsewhere("a tensor"),
        _ => theirs,
    }
}
