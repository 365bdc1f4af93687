//! Calls that are put together: `with comm.group(): ...`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shmccl::Group;

use crate::call::Call;
use crate::comm::Communicator;
use crate::error::closed;
use crate::interrupt::detached;
use crate::shared::Shared;
use crate::stream::Stream;

/// A call of an open group, and the objects whose bytes it uses.
pub struct GroupedCall {
    /// The call.
    pub call: Call,
    /// Kept until it is done.
    pub kept: Vec<Py<PyAny>>,
}

/// Calls of one communicator or several that move together. Made by `comm.group()` and
/// `shmccl.group(...)`.
///
/// Within the `with` block, calls of these communicators return at once. They are made at its end.
/// So no order of sends and receives in it blocks. A block that an exception leaves makes no calls.
#[pyclass(frozen, module = "shmccl", name = "Group")]
pub struct PyGroup {
    /// Each once. In one order in all threads, so that no two wait for each other.
    comms: Vec<Arc<Shared>>,
    stream: Option<Py<Stream>>,
}

/// Puts together the calls of several communicators of one rank.
#[pyfunction]
#[pyo3(signature = (*comms, stream=None))]
pub fn group(comms: &Bound<'_, PyTuple>, stream: Option<Py<Stream>>) -> PyResult<PyGroup> {
    let shared = |comm: Bound<'_, PyAny>| Ok(Arc::clone(&comm.cast::<Communicator>()?.get().shared));
    let mut comms = comms.iter().map(shared).collect::<PyResult<Vec<_>>>()?;
    comms.sort_by_key(Arc::as_ptr);
    comms.dedup_by_key(|comm| Arc::as_ptr(comm));
    Ok(PyGroup { comms, stream })
}

impl PyGroup {
    /// Makes a group of one communicator.
    pub fn of(shared: &Arc<Shared>, stream: Option<Py<Stream>>) -> Self {
        Self { comms: vec![Arc::clone(shared)], stream }
    }

    fn take_calls(&self) -> Vec<Vec<GroupedCall>> {
        self.comms.iter().map(|shared| shared.close_group()).collect()
    }
}

#[pymethods]
impl PyGroup {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        for (number, shared) in this.comms.iter().enumerate() {
            shared.open_group().inspect_err(|_| {
                this.comms[..number].iter().for_each(|shared| drop(shared.close_group()));
            })?;
        }
        Ok(slf.clone())
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let calls = self.take_calls();
        if !kind.is_none() {
            return Ok(());
        }
        let stream = self.stream.as_ref().map(|stream| stream.get());
        let kept: Vec<_> =
            calls.iter().flatten().flat_map(|call| &call.kept).map(|it| it.clone_ref(py)).collect();
        let calls: Vec<Vec<Call>> =
            calls.into_iter().map(|calls| calls.into_iter().map(|grouped| grouped.call).collect()).collect();
        match stream {
            None => {
                let done = detached(py, || self.run(&calls, |mut group| group.end()))?;
                done.ok_or_else(|| closed("communicator"))
            }
            Some(stream) => {
                let done = detached(py, || match stream.shared.lock().as_ref() {
                    Some(stream) => self.run(&calls, |mut group| group.end_on(stream)),
                    None => Ok(None),
                });
                stream.keep(py, kept)?;
                done?.ok_or_else(|| closed("communicator or stream"))
            }
        }
    }
}

impl PyGroup {
    /// Puts `calls` into a group of the engine, and ends it by `end`; `None` for a communicator
    /// that is closed.
    fn run(
        &self,
        calls: &[Vec<Call>],
        end: impl FnOnce(Group<'_, 'static>) -> shmccl::Result<()>,
    ) -> shmccl::Result<Option<()>> {
        let mut locked: Vec<_> = self.comms.iter().map(|shared| shared.lock()).collect();
        let mut group = Group::start();
        for ((comm, calls), shared) in locked.iter_mut().zip(calls).zip(&self.comms) {
            let Some(comm) = comm.as_mut() else { return Ok(None) };
            let member = group.join(comm);
            for call in calls {
                // SAFETY: the objects are kept until the calls are done, at once or on a stream.
                // Who groups calls leaves their buffers alone until then, as the manual says.
                unsafe { call.submit(&mut group.on(member), &shared.places) }?;
            }
        }
        end(group).map(Some)
    }
}
