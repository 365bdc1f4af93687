//! Streams and events.

use std::sync::Mutex;

use pyo3::prelude::*;
use shmccl::comm::stream::StreamStatus;

use crate::error::closed;
use crate::interrupt::detached;
use crate::shared::{drop_detached, lock};

/// Operations in order, executed by a thread of its own.
///
/// Pass it as `stream=` to a call. The call returns at once, and its arrays are kept and must be
/// left alone until the stream is synchronised.
#[pyclass(frozen, module = "shmccl", name = "Stream")]
pub struct Stream {
    /// The stream, until it is closed.
    pub shared: StreamCell,
}

/// The stream of the engine.
pub struct StreamCell(Mutex<Option<shmccl::Stream>>);

impl StreamCell {
    /// Locks the stream. Nobody waits for what it does while it is locked.
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Option<shmccl::Stream>> {
        lock(&self.0)
    }
}

impl Drop for StreamCell {
    fn drop(&mut self) {
        drop_detached(self.lock().take());
    }
}

impl Stream {
    /// Wraps a stream.
    pub fn new(stream: shmccl::Stream) -> Self {
        Self { shared: StreamCell(Mutex::new(Some(stream))) }
    }

    /// Keeps `objects` until everything enqueued by now is done.
    ///
    /// # Errors
    /// Those of a stream that has failed.
    pub fn keep(&self, py: Python<'_>, objects: Vec<Py<PyAny>>) -> PyResult<()> {
        if objects.is_empty() {
            return Ok(());
        }
        let kept = std::mem::ManuallyDrop::new(objects);
        // Where it cannot be enqueued, the objects stay for ever: calls before it may use them.
        self.with(py, |stream| stream.call(move || drop(std::mem::ManuallyDrop::into_inner(kept))))
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&shmccl::Stream) -> shmccl::Result<R> + Send,
    ) -> PyResult<R> {
        detached(py, || self.shared.lock().as_ref().map(run).transpose())?.ok_or_else(|| closed("stream"))
    }
}

#[pymethods]
impl Stream {
    /// Waits until everything is done that was enqueued by now.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let mark = shmccl::Event::new();
        self.with(py, |stream| stream.record(&mark))?;
        detached(py, || mark.synchronise())
    }

    /// Returns whether everything enqueued is done.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |stream| Ok(stream.query()? == StreamStatus::Success))
    }

    /// Lets all later operations wait until `event` is reached.
    fn wait(&self, py: Python<'_>, event: &Event) -> PyResult<()> {
        self.with(py, |stream| stream.wait(&event.0))
    }

    /// Records an event behind everything that was enqueued until now; makes one if none is given.
    #[pyo3(signature = (event=None))]
    fn record<'py>(&self, py: Python<'py>, event: Option<Bound<'py, Event>>) -> PyResult<Bound<'py, Event>> {
        let event = event.map_or_else(|| Bound::new(py, Event::new()), Ok)?;
        let mark = &event.get().0;
        self.with(py, |stream| stream.record(mark))?;
        Ok(event)
    }

    /// Waits until everything is done, and ends the stream.
    fn close(&self, py: Python<'_>) {
        let stream = self.shared.lock().take();
        py.detach(|| drop(stream));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let done = if kind.is_none() { self.synchronize(py) } else { Ok(()) };
        self.close(py);
        done
    }
}

/// A mark in a stream: reached when everything enqueued before it is done.
#[pyclass(frozen, module = "shmccl", name = "Event")]
pub struct Event(shmccl::Event);

#[pymethods]
impl Event {
    #[new]
    fn new() -> Self {
        Self(shmccl::Event::new())
    }

    /// Waits until it is reached.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.0.synchronise())
    }

    /// Returns whether it is reached.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || Ok(self.0.query()? == StreamStatus::Success))
    }

    /// Returns the seconds from reaching `start` to reaching this event.
    fn elapsed_since(&self, py: Python<'_>, start: &Self) -> PyResult<f64> {
        detached(py, || Ok(self.0.elapsed_since(&start.0)?.as_secs_f64()))
    }
}
