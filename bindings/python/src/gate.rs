//! The interpreter, for threads that Python did not start, and its end.
//!
//! Past the end of the interpreter Python ends each thread that takes its lock, in the midst of
//! whatever the thread does. For a thread in Rust that is the end of the process, by SIGABRT. So no
//! thread attaches any more once the gate is shut, and none that has waited goes back.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::prelude::*;

use crate::lock::lock;

/// How long the end of the interpreter waits for threads that have attached.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many threads are attached by way of the gate, or wait for that. A child of a fork may count
/// some that it has not: its end then waits in vain.
static INSIDE: AtomicI32 = AtomicI32::new(0);

static IS_SHUT: AtomicBool = AtomicBool::new(false);

/// The thread that has shut it, which ends the interpreter.
static SHUT_BY: OnceLock<ThreadId> = OnceLock::new();

/// Where that thread waits.
static GATE: Mutex<()> = Mutex::new(());
static LEFT: Condvar = Condvar::new();

/// Counts a thread, until it is dropped.
struct Pass;

impl Pass {
    fn take() -> Option<Self> {
        // Sequentially consistent with the two in `shut`: one of the two threads sees the other.
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let pass = Self;
        (!IS_SHUT.load(Ordering::SeqCst)).then_some(pass)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let before = INSIDE.fetch_sub(1, Ordering::SeqCst);
        if before <= 1 && IS_SHUT.load(Ordering::SeqCst) {
            drop(lock(&GATE));
            LEFT.notify_all();
        }
    }
}

/// Calls `run` with the interpreter, if there is one that does not end.
pub fn attached<R>(run: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _pass = Pass::take()?;
    Python::try_attach(run)
}

/// Returns whether the interpreter is about to end.
pub fn is_shut() -> bool {
    IS_SHUT.load(Ordering::Relaxed)
}

/// Keeps a thread that would go back to an interpreter that has ended. The process ends without it.
#[inline]
fn hold() {
    // Relaxed: a thread that does not see it yet comes as if it were earlier.
    if IS_SHUT.load(Ordering::Relaxed) && SHUT_BY.get() != Some(&std::thread::current().id()) {
        loop {
            std::thread::park();
        }
    }
}

/// Calls `run` without the lock, and does not go back to an interpreter that has ended.
#[inline]
pub fn detached<R: Send>(py: Python<'_>, run: impl FnOnce() -> R + Send) -> R {
    py.detach(|| {
        let done = run();
        hold();
        done
    })
}

/// Remembers the environment for whoever joins a job without the lock: threads of the program that
/// have it may change the environment meanwhile.
#[pyfunction]
pub fn remember_environment() {
    shmccl::variables::remember();
}

/// Adds the functions of this module that Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(remember_environment, module)?)?;
    module.add_function(wrap_pyfunction!(shut, module)?)
}

/// Lets no thread attach any more, and waits a moment for those that have: the interpreter ends.
#[pyfunction]
pub fn shut(py: Python<'_>) {
    let _ = SHUT_BY.set(std::thread::current().id());
    IS_SHUT.store(true, Ordering::SeqCst);
    py.detach(|| {
        let is_used = |_: &mut ()| INSIDE.load(Ordering::SeqCst) > 0;
        drop(LEFT.wait_timeout_while(lock(&GATE), PATIENCE, is_used).unwrap_or_else(PoisonError::into_inner));
    });
}
