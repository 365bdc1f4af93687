//! Parts of operands: so many elements from some element on, of whatever an operand can be.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::held::{Access, AskedType, Operand, typed};
use crate::dtype::Dtype;

/// Some elements of an object, which calls take like the object.
#[pyclass(frozen, module = "shmccl._core", name = "_Part")]
#[derive(Clone)]
pub struct Part {
    /// The object.
    pub owner: Arc<Py<PyAny>>,
    dtype: AskedType,
    /// The type that they have.
    own: &'static Dtype,
    /// The first byte.
    start: usize,
    len: usize,
    /// How many there are.
    #[pyo3(get)]
    count: usize,
    /// The bytes of one.
    #[pyo3(get)]
    itemsize: usize,
}

impl Part {
    /// Finds its bytes, as [`Operand::of`] does.
    ///
    /// # Errors
    /// Returns the errors of the object, and `ValueError` where it has become shorter.
    pub fn operand<'py>(&self, py: Python<'py>, access: Access, asked: AskedType) -> PyResult<Operand<'py>> {
        let whole = Operand::of(self.owner.bind(py), access, self.dtype)?;
        if self.start + self.len > whole.len {
            return Err(PyValueError::new_err(
                "an array has become shorter than the part of it that is passed",
            ));
        }
        let dtype = typed(self.len, asked, || Ok(whole.dtype))?;
        Ok(Operand { address: whole.address + self.start, len: self.len, dtype, ..whole })
    }

    /// Names the first `len` bytes of an object, or of a part.
    pub fn first_bytes(object: &Bound<'_, PyAny>, len: usize) -> Self {
        let (own, count, itemsize) = (Dtype::bytes(), len, 1);
        match object.cast_exact::<Self>() {
            Ok(part) => Self { own, len, count, itemsize, ..part.get().clone() },
            Err(_) => {
                let owner = Arc::new(object.clone().unbind());
                Self { owner, dtype: None, own, start: 0, len, count, itemsize }
            }
        }
    }
}

#[pymethods]
impl Part {
    /// Names `count` elements of `dtype` from the `first` one on; without a count, all that follow.
    #[new]
    #[pyo3(signature = (owner, dtype=None, first=0, count=None))]
    fn new(
        owner: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        first: usize,
        count: Option<usize>,
    ) -> PyResult<Self> {
        let dtype = dtype.map(Dtype::of).transpose()?;
        let whole = Operand::of(owner, Access::Read, dtype)?;
        let (itemsize, has) = (whole.dtype.size, whole.len / whole.dtype.size);
        let count = count.unwrap_or_else(|| has.saturating_sub(first));
        if first.checked_add(count).is_none_or(|end| end > has) {
            return Err(PyValueError::new_err(format!(
                "a buffer of {has} elements of {} has no {count} from element {first} on",
                whole.dtype.name
            )));
        }
        let owner = Arc::new(owner.clone().unbind());
        Ok(Self {
            owner,
            dtype,
            own: whole.dtype,
            start: first * itemsize,
            len: count * itemsize,
            count,
            itemsize,
        })
    }

    /// Returns the name of their type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.own.name
    }

    /// Returns a copy of their bytes.
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.operand(py, Access::Read, None)?.read()))
    }

    /// Replaces their bytes.
    fn write(&self, py: Python<'_>, bytes: &Bound<'_, PyAny>) -> PyResult<()> {
        self.operand(py, Access::Write, None)?.copy(&Operand::of_any(bytes, Access::Read)?);
        Ok(())
    }
}
