//! Waiting for words of this rank's own heap, testing them, and what orders verbs.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmccl::Symmetric;
use shmccl::heap::{HeapOffset, Region};
use shmccl::symmetric::{Comparison, WantedValues, WordSet};

use super::layout::Layout;
use super::number::{AtomicNumber, ElementValue, GivenNumbers, is_number, with_number};
use super::remote_view::RemoteView;
use crate::array::{Array, ArrayMemory};
use crate::comm::Communicator;
use crate::dtype::Dtype;
use crate::error::{closed, exception};
use crate::interrupt::detached;
use crate::operand::{Access, Operand};
use crate::proxy::refuse_within_handler;
use crate::whole_number;

/// Elements in a row of this rank's own heap.
struct OwnWords<'a> {
    all: &'a Symmetric,
    first: HeapOffset,
    count: usize,
    dtype: &'static Dtype,
}

/// What is wanted of them.
struct WantedWords<T> {
    first: HeapOffset,
    count: usize,
    status: Vec<i32>,
    comparison: Comparison,
    values: GivenNumbers<T>,
}

impl<T: AtomicNumber> WantedWords<T> {
    fn set(&self) -> WordSet<'_, T> {
        let &Self { first, count, ref status, comparison, .. } = self;
        let values = match &self.values {
            GivenNumbers::Same(value) => WantedValues::Same(*value),
            GivenNumbers::Each(values) => WantedValues::Each(values),
        };
        WordSet { first, count, status, comparison, values }
    }
}

impl OwnWords<'_> {
    /// Takes what they are compared with, and which of them.
    fn wanted<T: AtomicNumber>(
        &self,
        comparison: &str,
        value: &ElementValue<'_>,
        included: Option<&ElementValue<'_>>,
    ) -> PyResult<WantedWords<T>> {
        let &Self { first, count, dtype, .. } = self;
        let left_out =
            |is_included: PyResult<ElementValue<'_>>| is_included?.is_truthy().map(|is| i32::from(!is));
        let status = match included {
            Some(included) => included.try_iter()?.map(left_out).collect::<PyResult<Vec<_>>>()?,
            None => Vec::new(),
        };
        if included.is_some() && status.len() != count {
            let text = format!("where= has {} entries for {count} elements", status.len());
            return Err(PyValueError::new_err(text));
        }
        let values = GivenNumbers::of(value, dtype, count)?;
        Ok(WantedWords { first, count, status, comparison: comparison_of(comparison)?, values })
    }

    /// Refuses several.
    fn one(self) -> PyResult<Self> {
        if self.count == 1 {
            return Ok(self);
        }
        let text =
            format!("{} elements: name one of them, or call the form with _any, _all or _some", self.count);
        Err(PyValueError::new_err(text))
    }
}

fn comparison_of(text: &str) -> PyResult<Comparison> {
    Ok(match text {
        "==" => Comparison::Equal,
        "!=" => Comparison::NotEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        _ => {
            let text = format!("no comparison {text:?}; expected ==, !=, >, >=, < or <=");
            return Err(PyValueError::new_err(text));
        }
    })
}

impl Communicator {
    /// Finds the words that `object` is.
    fn words(&self, object: &ElementValue<'_>) -> PyResult<OwnWords<'_>> {
        let all = self.verbs()?;
        let (operand, is_copy) = match object.cast_exact::<RemoteView>() {
            Ok(view) => (view.get().operand()?, false),
            Err(_) => (Operand::of(object, Access::Read, None)?, is_number(object)?),
        };
        let (bytes, dtype) = (operand.bytes(), operand.dtype);
        let Some(region) = self.shared.places.own_region(bytes) else {
            return Err(PyValueError::new_err(if is_copy {
                "a wait is for words of this rank's own heap, and not for a copy of one; pass heap[i:i+1], or \
                 heap.at(comm.rank)[i]"
            } else {
                "a wait is for words of this rank's own heap: an array of comm.zeros or comm.empty, or a part of one"
            }));
        };
        Ok(OwnWords { all, first: region.offset, count: bytes.len / dtype.size, dtype })
    }

    /// Returns the verbs by rank and offset.
    fn verbs(&self) -> PyResult<&Symmetric> {
        if self.shared.is_closed() { Err(closed("communicator")) } else { Ok(&self.shared.places.symmetric) }
    }
}

/// Waits by `run`, without the interpreter's lock.
fn waiting<R: Send>(py: Python<'_>, run: impl FnOnce() -> shmccl::Result<R> + Send) -> PyResult<R> {
    detached(py, || refuse_within_handler().and_then(|()| run()))
}

#[pymethods]
impl Communicator {
    /// Waits until an element of this rank's heap is `==`, `!=`, `>`, `>=`, `<` or `<=` a value,
    /// and returns it. What its writer did before is there then.
    fn wait_until<'py>(
        &self,
        py: Python<'py>,
        words: &ElementValue<'py>,
        comparison: &str,
        value: &ElementValue<'py>,
    ) -> PyResult<ElementValue<'py>> {
        let words = self.words(words)?.one()?;
        with_number!(words.dtype, T => {
            let (comparison, value) = (comparison_of(comparison)?, T::taken(value)?);
            waiting(py, || words.all.wait_until(words.first, comparison, value))?.given(py)
        })
    }

    /// Waits until all elements have been so, each to one value or to its own. With `where=`, only
    /// those whose entry there is true.
    #[pyo3(signature = (words, comparison, value, *, r#where=None))]
    fn wait_until_all(
        &self,
        py: Python<'_>,
        words: &ElementValue<'_>,
        comparison: &str,
        value: &ElementValue<'_>,
        r#where: Option<&ElementValue<'_>>,
    ) -> PyResult<()> {
        let words = self.words(words)?;
        with_number!(words.dtype, T => {
            let wanted = words.wanted::<T>(comparison, value, r#where)?;
            waiting(py, || words.all.wait_until_all(wanted.set()))
        })
    }

    /// Waits until one element is so, and returns its number in C's order. Returns None at once
    /// where there is none to wait for.
    #[pyo3(signature = (words, comparison, value, *, r#where=None))]
    fn wait_until_any(
        &self,
        py: Python<'_>,
        words: &ElementValue<'_>,
        comparison: &str,
        value: &ElementValue<'_>,
        r#where: Option<&ElementValue<'_>>,
    ) -> PyResult<Option<usize>> {
        let words = self.words(words)?;
        with_number!(words.dtype, T => {
            let wanted = words.wanted::<T>(comparison, value, r#where)?;
            waiting(py, || words.all.wait_until_any(wanted.set()))
        })
    }

    /// Waits until some elements are so, and returns the numbers of all that are.
    #[pyo3(signature = (words, comparison, value, *, r#where=None))]
    fn wait_until_some(
        &self,
        py: Python<'_>,
        words: &ElementValue<'_>,
        comparison: &str,
        value: &ElementValue<'_>,
        r#where: Option<&ElementValue<'_>>,
    ) -> PyResult<Vec<usize>> {
        let words = self.words(words)?;
        with_number!(words.dtype, T => {
            let (wanted, mut found) = (words.wanted::<T>(comparison, value, r#where)?, vec![0; words.count]);
            let count = waiting(py, || words.all.wait_until_some(wanted.set(), &mut found))?;
            found.truncate(count);
            Ok(found)
        })
    }

    /// Returns whether an element of this rank's heap is so to a value. It does not wait, and
    /// programs may poll by it.
    fn test(
        &self,
        py: Python<'_>,
        words: &ElementValue<'_>,
        comparison: &str,
        value: &ElementValue<'_>,
    ) -> PyResult<bool> {
        let words = self.words(words)?.one()?;
        with_number!(words.dtype, T => {
            let (comparison, value) = (comparison_of(comparison)?, T::taken(value)?);
            detached(py, || words.all.test(words.first, comparison, value))
        })
    }

    /// Returns whether all elements are so.
    #[pyo3(signature = (words, comparison, value, *, r#where=None))]
    fn test_all(
        &self,
        py: Python<'_>,
        words: &ElementValue<'_>,
        comparison: &str,
        value: &ElementValue<'_>,
        r#where: Option<&ElementValue<'_>>,
    ) -> PyResult<bool> {
        let words = self.words(words)?;
        with_number!(words.dtype, T => {
            let wanted = words.wanted::<T>(comparison, value, r#where)?;
            detached(py, || words.all.test_all(wanted.set()))
        })
    }

    /// Returns the number of the first element that is so, or None.
    #[pyo3(signature = (words, comparison, value, *, r#where=None))]
    fn test_any(
        &self,
        py: Python<'_>,
        words: &ElementValue<'_>,
        comparison: &str,
        value: &ElementValue<'_>,
        r#where: Option<&ElementValue<'_>>,
    ) -> PyResult<Option<usize>> {
        let words = self.words(words)?;
        with_number!(words.dtype, T => {
            let wanted = words.wanted::<T>(comparison, value, r#where)?;
            detached(py, || words.all.test_any(wanted.set()))
        })
    }

    /// Returns the numbers of the elements that are so.
    #[pyo3(signature = (words, comparison, value, *, r#where=None))]
    fn test_some(
        &self,
        py: Python<'_>,
        words: &ElementValue<'_>,
        comparison: &str,
        value: &ElementValue<'_>,
        r#where: Option<&ElementValue<'_>>,
    ) -> PyResult<Vec<usize>> {
        let words = self.words(words)?;
        with_number!(words.dtype, T => {
            let (wanted, mut found) = (words.wanted::<T>(comparison, value, r#where)?, vec![0; words.count]);
            let count = detached(py, || words.all.test_some(wanted.set(), &mut found))?;
            found.truncate(count);
            Ok(found)
        })
    }

    /// Orders this thread's verbs: whoever has seen a later one by an atomic or a wait sees the
    /// earlier ones. Atomics and signals need none before them.
    fn fence(&self) -> PyResult<()> {
        self.verbs()?.fence();
        Ok(())
    }

    /// Returns when all earlier verbs of this thread are visible to every rank.
    fn quiet(&self) -> PyResult<()> {
        self.verbs()?.quiet();
        Ok(())
    }

    /// Views `count` elements of `dtype` from a place of the heap of `rank` on, which somebody else
    /// keeps.
    fn _at(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::rank)] rank: u32,
        offset: u64,
        dtype: &ElementValue<'_>,
        count: usize,
    ) -> PyResult<RemoteView> {
        let (places, dtype) = (&self.shared.places, Dtype::of(dtype)?);
        let owner = places.rank(rank).map_err(|error| exception(py, &error))?;
        Ok(RemoteView::new(places, owner, dtype, Layout::in_order(offset, &[count], dtype.size)))
    }
    /// Returns the offset in this rank's heap and the length, in bytes, of an array or a part of
    /// one.
    fn _place(&self, x: &ElementValue<'_>) -> PyResult<(u64, u64)> {
        let bytes = Operand::of_any(x, Access::Write)?.bytes();
        let region = self.shared.places.own_region(bytes).ok_or_else(|| {
            PyValueError::new_err(
                "a window is made of an array of the heap; use Win.Allocate(nbytes), whose memory is \
                 win.tomemory(), or comm.shmccl.zeros(n, local=True)",
            )
        })?;
        Ok((region.offset.get(), region.len))
    }

    /// Returns `len` bytes from a place of the heap of `rank` on as an array. `kept` is an array of
    /// this rank that keeps the heaps mapped.
    fn _array_at(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::rank)] rank: u32,
        offset: u64,
        len: usize,
        kept: Py<Array>,
    ) -> PyResult<Array> {
        let region = Region::new(HeapOffset::new(offset), len as u64);
        Array::new(&self.shared.places, rank, region, &[len], Dtype::bytes(), ArrayMemory::Of(kept))
            .map_err(|error| exception(py, &error))
    }
}
