//! Tensors of torch, read by their attributes: a tenth of the time that DLPack takes.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::{Access, Operand, scattered};
use crate::dtype::{ALL, Dtype};

static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
/// The types of torch that were met, with ours. Each lives as long as torch does.
static DTYPES: PyOnceLock<Vec<(Py<PyAny>, &'static Dtype)>> = PyOnceLock::new();

/// Returns whether `object` is a tensor of torch. Does not import torch.
#[inline]
pub fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    match TENSOR.get(py) {
        Some(tensor) => {
            let tensor = tensor.bind(py);
            Ok(object.get_type_ptr() == tensor.as_type_ptr() || object.is_instance(tensor)?)
        }
        None => find_torch(object),
    }
}

/// Looks whether torch was imported by now.
#[cold]
fn find_torch(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    let Ok(torch) = modules.get_item(intern!(py, "torch")) else { return Ok(false) };
    // Another thread may be importing it.
    let Some(tensor) = torch.getattr_opt("Tensor")? else { return Ok(false) };
    TENSOR.get_or_init(py, || tensor.cast_into::<PyType>().map(Bound::unbind).expect("a class"));
    is_tensor(object)
}

/// Returns the bytes of `object`, if it is a tensor.
#[inline]
pub fn operand<'py>(object: &Bound<'py, PyAny>, _access: Access) -> PyResult<Option<Operand<'py>>> {
    if !is_tensor(object)? {
        return Ok(None);
    }
    let py = object.py();
    if !object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        return Err(PyValueError::new_err("the tensor is on another device; pass tensor.cpu()"));
    }
    if !object.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
        return Err(scattered("a tensor", "pass tensor.contiguous()"));
    }
    let dtype = dtype_of(&object.getattr(intern!(py, "dtype"))?)?;
    let address: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let count: usize = object.call_method0(intern!(py, "numel"))?.extract()?;
    Ok(Some(Operand::new(address, count * dtype.size, dtype)))
}

#[inline]
fn dtype_of(torch_dtype: &Bound<'_, PyAny>) -> PyResult<&'static Dtype> {
    let py = torch_dtype.py();
    let known = DTYPES.get_or_try_init(py, || all_dtypes(py))?;
    match known.iter().find(|(theirs, _)| theirs.is(torch_dtype)) {
        Some((_, ours)) => Ok(ours),
        None => Dtype::of(torch_dtype),
    }
}

#[cold]
fn all_dtypes(py: Python<'_>) -> PyResult<Vec<(Py<PyAny>, &'static Dtype)>> {
    let torch = py.import("torch")?;
    let mut found = Vec::new();
    for ours in &ALL {
        if let Some(theirs) = torch.getattr_opt(ours.name)? {
            found.push((theirs.unbind(), ours));
        }
    }
    Ok(found)
}
