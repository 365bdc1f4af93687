//! Calls of the engine without the interpreter's lock, which Ctrl-C ends.

use std::cell::RefCell;
use std::ffi::c_int;

use pyo3::prelude::*;
use shmccl::sync::interrupt::interruptible;

use crate::error::exception;
use crate::gate;

thread_local! {
    /// What a handler of signals has raised in a wait of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Calls `run` without the lock. Signals are looked at every 50 ms while it waits.
///
/// # Errors
/// The exception for what `run` returns, or what a handler of signals raised meanwhile.
#[inline]
pub fn detached<R: Send>(py: Python<'_>, run: impl FnOnce() -> shmccl::Result<R> + Send) -> PyResult<R> {
    let done = gate::detached(py, || interruptible(has_raised, run));
    // A call may have come to its end at the very moment.
    match (RAISED.take(), done) {
        (None, Ok(value)) => Ok(value),
        (Some(raised), _) => Err(raised),
        // It may have failed because the others have got the signal first.
        (None, Err(error)) => py.check_signals().and_then(|()| Err(exception(py, &error))),
    }
}

/// Looks at the signals that have arrived, and says whether to end a wait that [`detached`] is in.
/// Only the main thread sees any.
pub fn has_raised() -> bool {
    // A thread that waits past the end of the interpreter goes on, and nobody sees what it returns.
    if gate::is_shut() {
        return false;
    }
    gate::attached(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    })
    .unwrap_or(true)
}

/// Says to C whether a wait is to end, as [`detached`] asks. What a handler has raised is kept.
pub(crate) extern "C" fn has_raised_for_c() -> c_int {
    has_raised().into()
}

/// Raises what has ended a wait of the table on this thread, if anything.
///
/// # Errors
/// That.
#[pyfunction]
pub fn raise_interrupt() -> PyResult<()> {
    RAISED.take().map_or(Ok(()), Err)
}
