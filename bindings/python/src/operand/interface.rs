//! Objects that tell of their memory by `__array_interface__`: arrays of NumPy whose type the
//! buffer protocol cannot express, such as dates and those of `ml_dtypes`.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::held::{
    Access, AskedType, Operand, addresses, len_of, lies_in_order, read_only, scattered, typed,
};
use crate::dtype::{Dtype, Unknown};

/// Returns the bytes of `object`, if it has `__array_interface__` with an address.
pub fn operand<'py>(
    object: &Bound<'py, PyAny>,
    access: Access,
    asked: AskedType,
) -> PyResult<Option<Operand<'py>>> {
    let py = object.py();
    let Some(interface) = object.getattr_opt(intern!(py, "__array_interface__"))? else { return Ok(None) };
    let interface = interface.cast::<PyDict>()?;
    let Some(data) = interface.get_item("data")? else { return Ok(None) };
    // Otherwise it is an object of the buffer protocol.
    let Ok((address, is_read_only)) = data.extract::<(usize, bool)>() else { return Ok(None) };
    let shape: Vec<i64> = interface.as_any().get_item("shape")?.extract()?;
    let typestr: String = interface.as_any().get_item("typestr")?.extract()?;
    if holds_objects(object, interface)? {
        return Err(addresses());
    }
    let Some(size) = size_of_element(&typestr) else { return Err(Unknown::Type(&typestr).refused()) };
    let strides = match interface.get_item("strides")? {
        Some(strides) if !strides.is_none() => Some(strides.extract::<Vec<i64>>()?),
        _ => None,
    };
    if strides.is_some_and(|strides| !lies_in_order(&shape, &strides, size.cast_signed())) {
        return Err(scattered("an array", "pass numpy.ascontiguousarray(x)", access));
    }
    if is_read_only && access == Access::Write {
        return Err(read_only());
    }
    let len = len_of(&shape, size.saturating_mul(8)).ok_or_else(|| {
        PyValueError::new_err(format!("an array of shape {shape:?} is longer than all memory"))
    })?;
    let dtype = typed(len, asked, || own_type(object, &typestr, size))?;
    Ok(Some(Operand::new(address, len, dtype)))
}

/// Returns the type that the interface names.
fn own_type(object: &Bound<'_, PyAny>, typestr: &str, size: u64) -> PyResult<&'static Dtype> {
    let in_order = Dtype::of_typestr(typestr);
    // The interface does not tell apart the types that other packages add to NumPy.
    let (name, found) = match object.getattr_opt("dtype")?.filter(|_| in_order.is_none()) {
        Some(described) => (described.str()?.to_string(), Dtype::of_described(&described)?),
        None => (typestr.to_owned(), in_order),
    };
    let found = found.filter(|dtype| dtype.size as u64 == size);
    let is_other_order = typestr.starts_with('>') && size > 1;
    found.filter(|_| !is_other_order).ok_or_else(|| Unknown::of(&name, found).refused())
}

/// Returns the bytes of an element: `<f8` has eight.
fn size_of_element(typestr: &str) -> Option<u64> {
    let (kind, size) = (typestr.get(1..2)?, typestr.get(2..)?.split('[').next()?);
    let size: u64 = size.parse().ok()?;
    // A character takes four bytes.
    Some(if kind == "U" { size * 4 } else { size })
}

/// Returns whether elements, or fields of them, are objects.
fn holds_objects(object: &Bound<'_, PyAny>, interface: &Bound<'_, PyDict>) -> PyResult<bool> {
    let in_fields = interface.get_item("descr")?.is_some_and(|fields| fields.to_string().contains("'|O"));
    let in_type = match object.getattr_opt("dtype")? {
        Some(dtype) => dtype.getattr_opt("hasobject")?.is_some_and(|has| has.is_truthy().unwrap_or(true)),
        None => false,
    };
    let typestr = interface.as_any().get_item("typestr")?.to_string();
    Ok(in_fields || in_type || typestr.contains('O'))
}
