//! Views of an array in the heap of some rank, which verbs read and change.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shmccl::Rank;

use super::layout::Layout;
use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::exception;
use crate::heap_places::HeapPlaces;
use crate::operand::Operand;
use crate::whole_number;

/// An array in the heap of a rank, or a part of it: `heap.at(rank)`, `heap.at(rank)[3:5]`.
///
/// It is read and changed by verbs, while its owner does something else, and each is done when it
/// returns. Indices are those of NumPy that make no copy. Atomics change each element by itself.
#[pyclass(frozen, module = "shmccl", name = "RemoteView")]
#[derive(Clone)]
pub struct RemoteView {
    /// The heaps of all ranks.
    pub places: Arc<HeapPlaces>,
    /// Whose heap it is.
    pub owner: Rank,
    /// The type of its elements.
    pub dtype: &'static Dtype,
    /// Which bytes it has.
    pub layout: Layout,
    /// Keeps the memory.
    _array: Option<Arc<Py<Array>>>,
}

impl RemoteView {
    /// Views memory of `owner` that somebody else keeps.
    pub fn new(places: &Arc<HeapPlaces>, owner: Rank, dtype: &'static Dtype, layout: Layout) -> Self {
        Self { places: Arc::clone(places), owner, dtype, layout, _array: None }
    }

    /// Returns the bytes in this process, if they lie in one piece.
    ///
    /// # Errors
    /// `ValueError` where they do not.
    pub fn operand(&self) -> PyResult<Operand<'static>> {
        if !self.layout.is_in_order() {
            return Err(PyValueError::new_err(
                "a view that is read from must be contiguous here; pass view.get(), a copy",
            ));
        }
        // The window of addresses is narrower than a word.
        let start = self.places.start_of(self.owner) + self.layout.start().get() as usize;
        Ok(Operand::new(start, self.layout.count() * self.dtype.size, self.dtype))
    }

    /// Makes a new array of NumPy like it.
    ///
    /// # Errors
    /// `ImportError` without NumPy, or without `ml_dtypes` for types that NumPy lacks.
    pub fn new_array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shape = PyTuple::new(py, self.layout.shape())?;
        py.import(intern!(py, "numpy"))?
            .call_method1(intern!(py, "empty"), (shape, self.dtype.for_numpy(py)?))
    }
}

#[pymethods]
impl RemoteView {
    /// The rank in whose heap it is.
    #[getter]
    fn rank(&self) -> u32 {
        self.owner.get()
    }

    /// The elements by dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.shape())
    }

    /// The name of the type of its elements, as NumPy writes it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape().len()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.layout.count()
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.layout.shape().first().copied();
        first.ok_or_else(|| PyTypeError::new_err("len() of a view without dimensions"))
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { layout: self.layout.part(key)?, ..self.clone() })
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.__getitem__(key)?.put(key.py(), value)
    }

    fn __repr__(&self) -> String {
        let shape: Vec<_> = self.layout.shape().iter().map(ToString::to_string).collect();
        let (dtype, owner) = (self.dtype.name, self.owner);
        format!("<shmccl.RemoteView of {dtype}, shape ({}), in the heap of rank {owner}>", shape.join(", "))
    }
}

#[pymethods]
impl Array {
    /// Returns the array in the heap of `rank`, to be read and changed by verbs: `put`, `get`,
    /// atomics, signals. Only for arrays that all ranks have made together.
    fn at(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = whole_number::rank)] rank: u32,
    ) -> PyResult<RemoteView> {
        let this = slf.get();
        this.check_peers()?;
        let owner = this.places.rank(rank).map_err(|error| exception(slf.py(), &error))?;
        let layout = Layout::in_order(this.region.offset.get(), &this.lengths(), this.dtype.size);
        let array = Some(Arc::new(slf.clone().unbind()));
        Ok(RemoteView { _array: array, ..RemoteView::new(&this.places, owner, this.dtype, layout) })
    }
}
