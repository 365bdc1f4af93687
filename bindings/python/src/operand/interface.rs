//! Arrays of NumPy whose type the buffer protocol cannot express: those of `ml_dtypes`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Access, Operand, read_only, scattered};
use crate::dtype::Dtype;

/// Returns the bytes of `object`, if it has `__array_interface__`.
pub fn operand<'py>(object: &Bound<'py, PyAny>, access: Access) -> PyResult<Option<Operand<'py>>> {
    let py = object.py();
    let Some(interface) = object.getattr_opt(intern!(py, "__array_interface__"))? else { return Ok(None) };
    let interface = interface.cast::<PyDict>()?;
    let (address, is_read_only): (usize, bool) = interface.as_any().get_item("data")?.extract()?;
    if interface.get_item("strides")?.is_some_and(|strides| !strides.is_none()) {
        return Err(scattered("an array", "pass numpy.ascontiguousarray(x)", access));
    }
    if is_read_only && access == Access::Write {
        return Err(read_only());
    }
    let dtype = Dtype::of(&object.getattr(intern!(py, "dtype"))?)?;
    let shape: Vec<usize> = interface.as_any().get_item("shape")?.extract()?;
    let count: usize = shape.iter().product();
    Ok(Some(Operand::new(address, count * dtype.size, dtype)))
}
