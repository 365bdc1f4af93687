//! Arrays in the symmetric heap, which NumPy and torch view without a copy.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use shmccl::ArenaBuffer;
use shmccl::comm::MemoryRange;
use shmccl::heap::Region;
use shmccl::shm::Span;

use crate::dlpack_export::{self, Loan};
use crate::dtype::Dtype;
use crate::error::exception;
use crate::heap_places::HeapPlaces;
use crate::whole_number;

/// An array in the heap of a rank, in C's order.
///
/// `comm.zeros` and `comm.empty` make it. It has the buffer protocol, `__array_interface__` and
/// `__dlpack__`; `numpy()` and `torch()` return views of the same memory. Collective calls use it
/// where it lies. Its memory stays mapped while the array or a view of it lives.
#[pyclass(frozen, module = "shmccl", name = "Array", weakref)]
pub struct Array {
    span: Span,
    /// The place of its bytes.
    pub region: Region,
    /// The type of its elements.
    pub dtype: &'static Dtype,
    shape: Vec<isize>,
    strides: Vec<isize>,
    /// The member in whose heap it lies.
    #[pyo3(get)]
    rank: u32,
    /// The heaps of all ranks.
    pub places: Arc<HeapPlaces>,
    memory: ArrayMemory,
}

/// What keeps the memory of an array.
pub enum ArrayMemory {
    /// Made by all ranks together; noted as dropped when the last of these goes.
    Shared(Arc<()>),
    /// Made by this rank alone, and freed with it.
    Local(ArenaBuffer<u8>),
    /// The array of this rank, of which this is a peer's.
    Of(Py<Array>),
}

impl Array {
    /// Views `region` in the heap of member `rank`.
    ///
    /// # Errors
    /// Fails as [`HeapPlaces::span`] does.
    pub fn new(
        places: &Arc<HeapPlaces>,
        rank: u32,
        region: Region,
        shape: &[usize],
        dtype: &'static Dtype,
        memory: ArrayMemory,
    ) -> shmccl::Result<Self> {
        let span = places.span(rank, region)?;
        let shape: Vec<_> = shape.iter().map(|extent| extent.cast_signed()).collect();
        let mut step = dtype.size.cast_signed();
        let mut strides: Vec<_> = shape
            .iter()
            .rev()
            .map(|&extent| {
                let stride = step;
                step *= extent.max(1);
                stride
            })
            .collect();
        strides.reverse();
        Ok(Self { span, region, dtype, shape, strides, rank, places: Arc::clone(places), memory })
    }

    /// Returns the elements by dimension.
    pub fn extents(&self) -> Vec<i64> {
        self.shape.iter().map(|&extent| extent as i64).collect()
    }

    /// Returns the same as lengths.
    pub fn lengths(&self) -> Vec<usize> {
        self.shape.iter().map(|extent| extent.cast_unsigned()).collect()
    }

    /// Refuses an array that its rank has made alone.
    ///
    /// # Errors
    /// `ValueError`.
    pub fn check_peers(&self) -> PyResult<()> {
        if matches!(self.memory, ArrayMemory::Local(_)) {
            return Err(PyValueError::new_err("a local array has no peers; make it without local=True"));
        }
        Ok(())
    }

    /// Sets all bytes to zero.
    ///
    /// # Errors
    /// None: the bytes are its own.
    pub fn clear(&self) -> shmccl::Result<()> {
        self.span.fill(0, self.span.len(), 0)
    }

    /// Returns where its bytes are.
    #[inline]
    pub fn bytes(&self) -> MemoryRange {
        MemoryRange { start: self.address(), len: self.len() }
    }

    #[inline]
    fn address(&self) -> usize {
        self.span.start().as_ptr().expose_provenance()
    }

    #[inline]
    fn len(&self) -> usize {
        usize::try_from(self.span.len()).unwrap_or(0)
    }
}

#[pymethods]
impl Array {
    /// The elements by dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The name of the type of its elements, as NumPy writes it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.len() / self.dtype.size
    }

    /// The bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.dtype.size
    }

    /// The bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len()
    }

    /// The offset of its first byte in the heap.
    #[getter]
    fn offset(&self) -> u64 {
        self.region.offset.get()
    }

    /// Returns a NumPy array of the same memory.
    ///
    /// Raises ImportError without NumPy, or without `ml_dtypes` for bfloat16 and float8 types.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let numpy = py.import(intern!(py, "numpy"))?;
        let bits = numpy.call_method1(intern!(py, "asarray"), (slf,))?;
        if !this.dtype.is_foreign_to_numpy() {
            return Ok(bits);
        }
        bits.call_method1(intern!(py, "view"), (this.dtype.for_numpy(py)?,))
    }

    /// Returns a tensor of torch of the same memory.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let torch = py.import(intern!(py, "torch"))?;
        let values = PyDict::new(py);
        values.set_item(intern!(py, "dtype"), torch.getattr(this.dtype.name)?)?;
        let shape = PyTuple::new(py, &this.shape)?;
        if this.len() == 0 {
            return torch.call_method(intern!(py, "empty"), (shape,), Some(&values));
        }
        let flat = torch.call_method(intern!(py, "frombuffer"), (slf,), Some(&values))?;
        flat.call_method1(intern!(py, "reshape"), (shape,))
    }

    /// Returns the same array in the heap of `rank`, which may be read and written like one's own.
    ///
    /// A barrier or a signal orders what is written there. Only for arrays that all ranks have made
    /// together.
    fn peer(slf: &Bound<'_, Self>, #[pyo3(from_py_with = whole_number::rank)] rank: u32) -> PyResult<Self> {
        let this = slf.get();
        this.check_peers()?;
        let shape = this.lengths();
        let memory = ArrayMemory::Of(slf.clone().unbind());
        Self::new(&this.places, rank, this.region, &shape, this.dtype, memory)
            .map_err(|error| exception(slf.py(), &error))
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first().map(|extent| extent.cast_unsigned());
        first.ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("len() of an array without dimensions"))
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf)?.get_item(key)
    }

    fn __setitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::numpy(slf)?.set_item(key, value)
    }

    fn __repr__(&self) -> String {
        let shape: Vec<_> = self.shape.iter().map(ToString::to_string).collect();
        let (dtype, rank) = (self.dtype.name, self.rank);
        format!("<shmccl.Array of {dtype}, shape ({}), in the heap of rank {rank}>", shape.join(", "))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", self.dtype.typestr)?;
        interface.set_item("data", (self.address(), false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    /// Lends the memory, or a copy of it with `copy=True`. The host has no streams to wait for, and
    /// capsules of the first version are read by all.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this, _) = (slf.py(), slf.get(), (stream, max_version));
        if let Some(device) = dl_device.filter(|device| *device != dlpack_export::DEVICE) {
            let here = dlpack_export::DEVICE;
            return Err(PyBufferError::new_err(format!(
                "the array is on device {here:?}, not on {device:?}"
            )));
        }
        let loan = match copy {
            Some(true) => Loan::copy_of(py, &this.span)?,
            _ => Loan::of(slf.as_any(), this.address()),
        };
        dlpack_export::capsule(py, loan, this.dtype, this.extents())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack_export::DEVICE
    }

    /// # Safety
    /// Python calls it with room for a buffer.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("no room for a buffer"));
        }
        let asks = |flag: c_int| flags & flag == flag;
        let format = if asks(ffi::PyBUF_FORMAT) {
            this.dtype.format.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        };
        let shape = if asks(ffi::PyBUF_ND) { this.shape.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        let strides =
            if asks(ffi::PyBUF_STRIDES) { this.strides.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        if asks(ffi::PyBUF_F_CONTIGUOUS) && !asks(ffi::PyBUF_ANY_CONTIGUOUS) && this.shape.len() > 1 {
            return Err(PyBufferError::new_err("the array lies in C's order"));
        }
        let filled = ffi::Py_buffer {
            buf: this.span.start().as_ptr().cast::<c_void>(),
            len: this.len().cast_signed(),
            itemsize: this.dtype.size.cast_signed(),
            readonly: 0,
            ndim: this.shape.len() as c_int,
            format,
            shape,
            strides,
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
            // The array keeps memory, extents and strides while the buffer is out.
            obj: slf.clone().into_any().into_ptr(),
        };
        // SAFETY: room for it, as Python promises.
        unsafe { view.write(filled) };
        Ok(())
    }
}
