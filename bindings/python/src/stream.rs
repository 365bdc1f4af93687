//! Streams and events.

use std::sync::{Arc, Weak};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use shmccl::comm::stream::StreamStatus;
use shmccl::sync::interrupt::interruptible;

use crate::error::closed;
use crate::interrupt::detached;
use crate::shared::{Shared, at_drop};
use crate::turns::{Turn, Turns};

/// Operations in order, executed by a thread of its own.
///
/// Pass it as `stream=` to a call. The call returns at once, and its arrays are kept and must be
/// left alone until the stream is synchronised.
#[pyclass(frozen, module = "shmccl", name = "Stream")]
pub struct Stream(Turns<Option<OpenStream>>);

/// A stream that is not closed.
pub struct OpenStream {
    stream: shmccl::Stream,
    /// The communicators of which it has calls.
    users: Vec<Weak<Shared>>,
}

impl OpenStream {
    /// Returns the stream of the engine, for calls of `comms`.
    pub fn used_by(&mut self, comms: &[Arc<Shared>]) -> &shmccl::Stream {
        for shared in comms {
            if !self.users.iter().any(|user| std::ptr::eq(user.as_ptr(), Arc::as_ptr(shared))) {
                self.users.push(Arc::downgrade(shared));
            }
        }
        &self.stream
    }

    /// Waits until everything is done, and ends the stream. What a handler of signals raises ends
    /// the epoch, as in a call: so all comes to an end.
    fn end(self, py: Python<'_>) -> PyResult<()> {
        // What has failed is told by `synchronize`; only a wait that was ended matters here.
        let waited = detached(py, || match self.stream.synchronise() {
            Err(error @ shmccl::Error::Cancelled { .. }) => Err(error),
            _ => Ok(()),
        });
        py.detach(|| self.cut_off());
        waited
    }

    /// Ends the stream for a program that was told to end: what is not done in a moment ends the
    /// epoch.
    fn end_soon(self, py: Python<'_>) {
        py.detach(|| {
            let _ = interruptible(|| true, || self.stream.synchronise());
            self.cut_off();
        });
    }

    /// Ends the stream. Where something is left to be done, that ends the epoch.
    fn cut_off(self) {
        if matches!(self.stream.query(), Ok(StreamStatus::InProgress)) {
            self.users.iter().filter_map(Weak::upgrade).for_each(|user| user.aborter.revoke());
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(open) = self.0.get_mut().take() else { return };
        at_drop(|py| open.end(py));
    }
}

impl Stream {
    /// Wraps a stream that was made of `shared`.
    pub fn new(stream: shmccl::Stream, shared: &Arc<Shared>) -> Self {
        Self(Turns::new(Some(OpenStream { stream, users: vec![Arc::downgrade(shared)] })))
    }

    /// Waits for the turn of this thread. Nobody waits for what the stream does in its turn.
    ///
    /// # Errors
    /// Fails as [`Turns::take`] does.
    pub fn turn(&self) -> shmccl::Result<Turn<'_, Option<OpenStream>>> {
        self.0.take()
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<OpenStream>> {
        detached(py, || self.0.take_out())
    }

    /// Keeps `objects` until everything enqueued by now is done.
    ///
    /// # Errors
    /// Returns the errors of a stream that has failed.
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
        let run = |open: &mut OpenStream| run(&open.stream);
        detached(py, || self.turn()?.as_mut().map(run).transpose())?.ok_or_else(|| closed("stream"))
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

    /// Waits until everything is done, and ends the stream. Ctrl-C ends what is left, and with it
    /// the epoch.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.take(py)?.map_or(Ok(()), |open| open.end(py))
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
        let is_told_to_end = |error: &PyErr| error.is_instance_of::<PyKeyboardInterrupt>(py);
        if kind.is(py.get_type::<PyKeyboardInterrupt>()) || done.as_ref().is_err_and(is_told_to_end) {
            self.take(py)?.into_iter().for_each(|open| open.end_soon(py));
            return done;
        }
        done.and(self.close(py))
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
