//! Calls that are put together: `with comm.group(): ...`.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use shmccl::Group;

use crate::call::UnsubmittedCall;
use crate::error::closed;
use crate::interrupt::detached;
use crate::shared::Shared;
use crate::stream::Stream;

/// A call of an open group, and the objects whose bytes it uses.
pub struct GroupedCall {
    /// The call.
    pub call: UnsubmittedCall,
    /// Kept until it is done.
    pub kept: Vec<Py<PyAny>>,
}

thread_local! {
    /// The groups of this thread: other threads' calls are made at once meanwhile.
    static OPEN: RefCell<Vec<OpenGroup>> = const { RefCell::new(Vec::new()) };
}

/// The calls that a thread puts together.
struct OpenGroup {
    comm: Weak<Shared>,
    calls: Vec<GroupedCall>,
}

impl OpenGroup {
    fn is_of(&self, shared: &Arc<Shared>) -> bool {
        std::ptr::eq(self.comm.as_ptr(), Arc::as_ptr(shared))
    }
}

impl Drop for OpenGroup {
    fn drop(&mut self) {
        if let Some(shared) = self.comm.upgrade() {
            // Relaxed: see `is_open`.
            shared.n_groups.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns whether this thread puts calls of `shared` together.
#[inline]
pub fn is_open(shared: &Arc<Shared>) -> bool {
    // Relaxed: a thread sees the groups that it has opened itself.
    shared.n_groups.load(Ordering::Relaxed) != 0 && is_among_open(shared)
}

fn is_among_open(shared: &Arc<Shared>) -> bool {
    OPEN.with_borrow(|open| open.iter().any(|group| group.is_of(shared)))
}

/// Puts calls of this thread together from now on.
///
/// # Errors
/// `RuntimeError` where they are already.
pub fn open(shared: &Arc<Shared>) -> PyResult<()> {
    if is_open(shared) {
        return Err(PyRuntimeError::new_err("a communicator is in a group already; end that one first"));
    }
    // Relaxed: see `is_open`.
    shared.n_groups.fetch_add(1, Ordering::Relaxed);
    let group = OpenGroup { comm: Arc::downgrade(shared), calls: Vec::new() };
    OPEN.with_borrow_mut(|open| open.push(group));
    Ok(())
}

/// Adds a call to the open group of this thread.
pub fn push(shared: &Arc<Shared>, call: GroupedCall) {
    OPEN.with_borrow_mut(|open| {
        if let Some(group) = open.iter_mut().find(|group| group.is_of(shared)) {
            group.calls.push(call);
        }
    });
}

/// Returns the calls that this thread has put together, and makes others at once again.
///
/// # Errors
/// `RuntimeError` on another thread than that which has opened the group.
pub fn close(shared: &Arc<Shared>) -> PyResult<Vec<GroupedCall>> {
    // What is dropped may call Python: nothing is, before the list is free again.
    let group = OPEN.with_borrow_mut(|open| {
        open.iter().position(|group| group.is_of(shared)).map(|index| open.swap_remove(index))
    });
    let mut group =
        group.ok_or_else(|| PyRuntimeError::new_err("a group ends on the thread that it began on"))?;
    Ok(std::mem::take(&mut group.calls))
}

/// Calls of one communicator or several that move together. Made by `comm.group()` and
/// `shmccl.group(...)`.
///
/// Within the `with` block, this thread's calls of these communicators return at once. They are
/// made at its end. So no order of sends and receives in it blocks. Calls of other threads are not
/// part of it. A block that an exception leaves makes no calls.
#[pyclass(frozen, module = "shmccl", name = "Group")]
pub struct PyGroup {
    /// Each once. In one order in all threads, so that no two wait for each other.
    comms: Vec<Arc<Shared>>,
    stream: Option<Py<Stream>>,
}

impl PyGroup {
    /// Makes a group of communicators of one rank.
    pub fn of(mut comms: Vec<Arc<Shared>>, stream: Option<Py<Stream>>) -> Self {
        comms.sort_by_key(Arc::as_ptr);
        comms.dedup_by_key(|comm| Arc::as_ptr(comm));
        Self { comms, stream }
    }

    fn take_calls(&self) -> PyResult<Vec<Vec<GroupedCall>>> {
        // All are closed before the first failure is returned.
        let calls: Vec<_> = self.comms.iter().map(close).collect();
        calls.into_iter().collect()
    }
}

#[pymethods]
impl PyGroup {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        for (number, shared) in this.comms.iter().enumerate() {
            open(shared)
                .inspect_err(|_| this.comms[..number].iter().for_each(|shared| drop(close(shared))))?;
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
        let calls = calls?;
        let stream = self.stream.as_ref().map(|stream| stream.get());
        let kept: Vec<_> =
            calls.iter().flatten().flat_map(|call| &call.kept).map(|it| it.clone_ref(py)).collect();
        let calls: Vec<Vec<UnsubmittedCall>> =
            calls.into_iter().map(|calls| calls.into_iter().map(|grouped| grouped.call).collect()).collect();
        match stream {
            None => {
                let done = detached(py, || self.run(calls, |mut group| group.end().map(Some)))?;
                done.ok_or_else(|| closed("communicator"))
            }
            Some(stream) => {
                // Every call takes the turn of the communicator first, and then that of the stream.
                let done = detached(py, || {
                    self.run(calls, |mut group| match stream.turn()?.as_mut() {
                        Some(stream) => group.end_on(stream.used_by(&self.comms)).map(Some),
                        None => Ok(None),
                    })
                });
                stream.keep(py, kept)?;
                done?.ok_or_else(|| closed("communicator or stream"))
            }
        }
    }
}

impl PyGroup {
    /// Puts `calls` into a group of the engine, and ends it by `end`; `None` for a communicator
    /// that is closed, or where `end` says so.
    fn run(
        &self,
        calls: Vec<Vec<UnsubmittedCall>>,
        end: impl FnOnce(Group<'_, 'static>) -> shmccl::Result<Option<()>>,
    ) -> shmccl::Result<Option<()>> {
        let turns = self.comms.iter().map(|shared| shared.turn());
        let mut locked = turns.collect::<shmccl::Result<Vec<_>>>()?;
        let mut group = Group::start();
        for ((comm, calls), shared) in locked.iter_mut().zip(calls).zip(&self.comms) {
            let Some(comm) = comm.as_mut() else { return Ok(None) };
            let member = group.join(comm);
            for call in calls {
                call.submit(&mut group.on(member), &shared.places)?;
            }
        }
        end(group)
    }
}
