//! Locks whose word lies in the heap of some rank.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use shmccl::symmetric::Acquired;

use super::remote_view::RemoteView;
use crate::interrupt::detached;
use crate::proxy::refuse_within_handler;

/// A lock among all ranks: `with shmccl.Lock(heap.at(rank)[i]): ...`.
///
/// Its word is an element of 8 bytes, free where it is 0. A rank holds it, so one thread may take
/// it and another let it go. Turns go round by rank. A holder that dies leaves it to the next one.
#[pyclass(frozen, module = "shmccl", name = "Lock")]
pub struct PyLock {
    word: RemoteView,
    recovered: AtomicBool,
}

#[pymethods]
impl PyLock {
    #[new]
    fn new(word: &Bound<'_, RemoteView>) -> PyResult<Self> {
        let word = word.get();
        if word.layout.count() != 1 || word.dtype.size != 8 {
            let (name, count) = (word.dtype.name, word.layout.count());
            let text = format!("a lock is one element of uint64 or int64, not {count} of {name}");
            return Err(PyTypeError::new_err(text));
        }
        Ok(Self { word: word.clone(), recovered: AtomicBool::new(false) })
    }

    /// Takes it, and returns whether it did. With `blocking=False` it does not wait for another
    /// holder.
    #[pyo3(signature = (blocking=true))]
    fn acquire(&self, py: Python<'_>, blocking: bool) -> PyResult<bool> {
        let (all, owner, word) = (&self.word.places.symmetric, self.word.owner, self.word.layout.start());
        let acquired = detached(py, || {
            if !blocking {
                return all.try_lock(owner, word);
            }
            refuse_within_handler()?;
            all.lock(owner, word).map(Some)
        })?;
        if let Some(acquired) = acquired {
            // Relaxed: threads of this rank hand the lock on by means of their own.
            self.recovered.store(acquired == Acquired::Recovered, Ordering::Relaxed);
        }
        Ok(acquired.is_some())
    }

    /// Lets it go. It goes to the next rank that waits for it.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.word.places.symmetric.unlock(self.word.owner, self.word.layout.start()))
    }

    /// Whether the holder before this one died or left with it: what it guards may be half done.
    #[getter]
    fn recovered(&self) -> bool {
        // Relaxed: see `acquire`.
        self.recovered.load(Ordering::Relaxed)
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().acquire(slf.py(), true)?;
        Ok(slf.clone())
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release(py)
    }
}
