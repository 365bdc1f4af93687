//! Waits in which headers are taken for whatever receive was posted.
//!
//! Nobody takes headers but a thread that waits or tests. So whoever waits for something else takes
//! headers meanwhile, of all communicators with receives that no message has come for. A thread
//! that waits for a message takes turns with the others of its process: it waits for a header at
//! once only where nothing else is to be done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use shmccl::shm::undivided::ProcessMutex;

use super::matching::MessageMatching;
use super::receive::PostedReceive;
use super::send::SentMessage;
use crate::work::Work;

/// How long a thread waits before it looks around, where nothing else is to be done.
pub const ALONE: Duration = Duration::from_millis(50);

/// The same beside other things.
pub const BESIDE: Duration = Duration::from_micros(500);

/// The communicators with receives that no message has come for, or messages that are to be
/// matched.
static AWAITING: ProcessMutex<Vec<Arc<MessageMatching>>> = ProcessMutex::new();

/// How many there are.
static N_AWAITING: AtomicUsize = AtomicUsize::new(0);

/// Notes whether `matching` is one of those.
pub fn note_awaiting(matching: &Arc<MessageMatching>, is_awaiting: impl FnOnce() -> bool) {
    AWAITING.with(|awaiting| {
        // Within the lock: threads that ask one after the other note in that order.
        let is_awaiting = is_awaiting();
        let at = awaiting.iter().position(|other| Arc::ptr_eq(other, matching));
        match (at, is_awaiting) {
            (None, true) => awaiting.push(Arc::clone(matching)),
            (Some(at), false) => drop(awaiting.swap_remove(at)),
            _ => {}
        }
        // Relaxed: a thread that has just posted sees its own.
        N_AWAITING.store(awaiting.len(), Ordering::Relaxed);
    });
}

/// Returns whether some communicator is one of those.
#[pyfunction(name = "_is_awaiting")]
pub fn is_awaiting() -> bool {
    // Relaxed: see `note_awaiting`.
    N_AWAITING.load(Ordering::Relaxed) > 0
}

/// Returns whether `matching` is the only one.
pub fn is_awaiting_only(matching: &Arc<MessageMatching>) -> bool {
    AWAITING.with(|awaiting| matches!(&awaiting[..], [only] if Arc::ptr_eq(only, matching)))
}

fn awaiting_others(matching: Option<&Arc<MessageMatching>>) -> Vec<Arc<MessageMatching>> {
    let is_other = |other: &&Arc<MessageMatching>| !matching.is_some_and(|this| Arc::ptr_eq(this, other));
    AWAITING.with(|awaiting| awaiting.iter().filter(is_other).map(Arc::clone).collect())
}

/// Returns whether this thread is the only one of Python's.
///
/// # Errors
/// Those of `threading`.
pub fn is_only_thread(py: Python<'_>) -> PyResult<bool> {
    static ACTIVE_COUNT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = || Ok::<_, PyErr>(py.import("threading")?.getattr("active_count")?.unbind());
    let count: usize = ACTIVE_COUNT.get_or_try_init(py, find)?.call0(py)?.extract(py)?;
    Ok(count == 1)
}

/// Returns how long a thread waits that waits for a header of `matching`, or for something else.
///
/// # Errors
/// Those of [`is_only_thread`].
pub fn pause(py: Python<'_>, matching: Option<&Arc<MessageMatching>>) -> PyResult<Duration> {
    let is_alone = awaiting_others(matching).is_empty() && is_only_thread(py)?;
    Ok(if is_alone { ALONE } else { BESIDE })
}

/// Takes headers of communicators other than `matching` where receives were posted; not all, as
/// other ranks may send more and more.
///
/// # Errors
/// Those of a receive.
pub fn look_for_others(py: Python<'_>, matching: Option<&Arc<MessageMatching>>) -> PyResult<()> {
    if !is_awaiting() {
        return Ok(());
    }
    awaiting_others(matching).iter().try_for_each(|other| other.take_share(py))
}

/// An operation that a thread waits for.
enum AwaitedOperation<'a> {
    Received(&'a PostedReceive),
    Sent(&'a SentMessage),
    Work(&'a Work),
}

impl<'a> AwaitedOperation<'a> {
    fn of(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(receive) = object.cast_exact::<PostedReceive>() {
            return Ok(Self::Received(receive.get()));
        }
        if let Ok(sent) = object.cast_exact::<SentMessage>() {
            return Ok(Self::Sent(sent.get()));
        }
        Ok(Self::Work(object.cast::<Work>()?.get()))
    }

    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        match self {
            Self::Received(receive) => Ok(receive.is_complete(py)),
            Self::Sent(sent) => Ok(sent.is_complete(py)),
            Self::Work(work) => work.is_done(py),
        }
    }

    /// Returns the messages among which a header is to come for it.
    fn awaited_in(&self) -> Option<&Arc<MessageMatching>> {
        match self {
            Self::Received(receive) => receive.awaited_in(),
            Self::Sent(sent) => sent.awaited_in(),
            Self::Work(_) => None,
        }
    }

    /// Returns the messages among which headers are taken while what it sends has no room.
    fn held_up_in(&self) -> Option<&Arc<MessageMatching>> {
        match self {
            Self::Received(receive) => receive.held_up_in(),
            Self::Sent(sent) => sent.held_up_in(),
            Self::Work(_) => None,
        }
    }

    fn wait(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<()> {
        match self {
            Self::Received(receive) => receive.wait_for(py, timeout),
            Self::Sent(sent) => sent.wait_for(py, timeout),
            Self::Work(work) => work.wait_for(py, timeout).map(drop),
        }
    }
}

/// Waits until an operation is done, and takes headers meanwhile for whatever receive was posted.
#[pyfunction(name = "_complete")]
pub fn complete(py: Python<'_>, operation: &Bound<'_, PyAny>) -> PyResult<()> {
    let operation = AwaitedOperation::of(operation)?;
    let mut is_held_up = false;
    while !operation.is_done(py)? {
        py.check_signals()?;
        let awaited = operation.awaited_in();
        if let Some(matching) = awaited
            && matching.look_at_once(py)?
        {
            continue;
        }
        look_for_others(py, awaited)?;
        let has_more = awaited.is_some() || is_awaiting();
        let mut timeout = if has_more { Some(pause(py, awaited)?) } else { None };
        if let Some(matching) = operation.held_up_in() {
            // Not before it has waited: what takes headers keeps others from going at once.
            if std::mem::replace(&mut is_held_up, true) {
                matching.take_share(py)?;
            }
            timeout = Some(timeout.unwrap_or(ALONE).min(if is_held_up { BESIDE } else { ALONE }));
        }
        operation.wait(py, timeout)?;
    }
    Ok(())
}

/// Waits for one of several operations, for so short a time that the others are not kept waiting.
#[pyfunction(name = "_pause_beside")]
pub fn pause_beside(py: Python<'_>, operation: &Bound<'_, PyAny>) -> PyResult<()> {
    let operation = AwaitedOperation::of(operation)?;
    operation.held_up_in().map_or(Ok(()), |matching| matching.take_share(py))?;
    operation.wait(py, Some(BESIDE))
}

/// Takes the headers that have come, without waiting.
#[pyfunction(name = "_advance")]
pub fn advance(py: Python<'_>) -> PyResult<()> {
    look_for_others(py, None)
}

/// Adds the functions of this module that Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(is_awaiting, module)?)?;
    module.add_function(wrap_pyfunction!(complete, module)?)?;
    module.add_function(wrap_pyfunction!(pause_beside, module)?)?;
    module.add_function(wrap_pyfunction!(advance, module)?)
}
