//! Operations that are started now and waited for later: `with comm.start() as work: ...`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::group::{self, GroupedCall};
use crate::interrupt::detached;
use crate::shared::Shared;
use crate::unique_id::seconds;

/// An operation that was started, and goes on by itself. Made by `comm.start()`.
///
/// Calls of this thread within the `with` block return at once, and are started at its end as one
/// operation: several move together, as in a group. Their arrays are kept, and must be left alone
/// until it is done. A block that an exception leaves starts nothing.
#[pyclass(frozen, module = "shmccl", name = "Work")]
pub struct Work {
    shared: Arc<Shared>,
    /// Whether a thread is in its block.
    is_open: AtomicBool,
    /// Set by the end of the block.
    started: OnceLock<shmccl::Work>,
}

impl Work {
    /// Makes one that nothing was started for.
    pub fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), is_open: AtomicBool::new(false), started: OnceLock::new() }
    }

    fn started(&self) -> PyResult<&shmccl::Work> {
        let missing = "nothing was started yet: the operation starts when its `with` block ends";
        self.started.get().ok_or_else(|| PyRuntimeError::new_err(missing))
    }

    /// Puts the calls of this thread together.
    fn enter(&self) -> PyResult<()> {
        if self.started.get().is_some() {
            return Err(PyRuntimeError::new_err(
                "the operation was started already; call comm.start() again",
            ));
        }
        group::open(&self.shared)
    }

    /// Starts the calls of the block.
    fn start(&self, py: Python<'_>, grouped: Vec<GroupedCall>) -> PyResult<()> {
        if grouped.is_empty() {
            return Err(PyValueError::new_err("no call of this communicator was made within start()"));
        }
        let started = start(py, &self.shared, grouped)?;
        // One block at a time, and none once it is set.
        let _ = self.started.set(started);
        Ok(())
    }
}

/// Starts calls of `shared` as one operation, which keeps their objects.
///
/// # Errors
/// Those of [`shmccl::Communicator::start`], and of the calls.
pub fn start(py: Python<'_>, shared: &Shared, grouped: Vec<GroupedCall>) -> PyResult<shmccl::Work> {
    start_noted(py, shared, grouped, |_| ())
}

/// Starts them like [`start`], and has the operation noted in the same turn, so that calls behind
/// it find it.
///
/// # Errors
/// Those of [`start`].
pub fn start_noted(
    py: Python<'_>,
    shared: &Shared,
    grouped: Vec<GroupedCall>,
    note: impl FnOnce(&shmccl::Work) + Send,
) -> PyResult<shmccl::Work> {
    let (calls, kept): (Vec<_>, Vec<_>) = grouped.into_iter().map(|it| (it.call, it.kept)).unzip();
    shared.with(py, |comm| {
        // No lock of the interpreter is needed: what is dropped without it is freed later.
        let done = move |_: &Result<(), Arc<shmccl::Error>>| drop(kept);
        let put = |taker: &mut _| calls.into_iter().try_for_each(|call| call.submit(taker, &shared.places));
        comm.start(done, put).inspect(note)
    })
}

#[pymethods]
impl Work {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        // Acquire and release: who enters sees what the block before has started.
        if this.is_open.swap(true, Ordering::Acquire) {
            return Err(PyRuntimeError::new_err(
                "the block of this operation is open; call comm.start() again",
            ));
        }
        this.enter().inspect_err(|_| this.is_open.store(false, Ordering::Release))?;
        Ok(slf.clone())
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let grouped = group::close(&self.shared);
        let ended = if kind.is_none() { grouped.and_then(|grouped| self.start(py, grouped)) } else { Ok(()) };
        // Release: as `__enter__` says.
        self.is_open.store(false, Ordering::Release);
        ended
    }

    /// Returns whether it has ended, in whatever way. Does not wait.
    pub fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        let started = self.started()?;
        Ok(py.detach(|| started.is_done()))
    }

    /// Waits until it is done, and raises what it has failed by. With `timeout`, in seconds,
    /// returns False when that passes before; the operation goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.wait_for(py, timeout.map(seconds).transpose()?)
    }
}

impl Work {
    /// Waits until it is done, or for so long. Returns whether it is.
    ///
    /// # Errors
    /// What it has failed by.
    pub fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<bool> {
        let started = self.started()?;
        match timeout {
            Some(timeout) => detached(py, || started.wait_timeout(timeout)),
            None => detached(py, || started.wait()).map(|()| true),
        }
    }
}
