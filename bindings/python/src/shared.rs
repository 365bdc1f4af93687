//! A communicator of the engine, shared by the objects of Python that use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use shmccl::comm::Aborter;
use shmccl::{Communicator, Rank, Result};

use crate::allocations::Allocations;
use crate::error::closed;
use crate::group::GroupedCall;
use crate::heap_places::HeapPlaces;
use crate::interrupt::detached;

/// A communicator, until it is closed.
pub struct Shared {
    comm: Mutex<Option<Communicator>>,
    /// Ends the epoch from any thread.
    pub aborter: Aborter,
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub size: u32,
    /// The ranks as the job numbers them.
    pub members: Vec<u32>,
    /// Where the heaps are.
    pub places: Arc<HeapPlaces>,
    /// The arrays of the epoch.
    pub allocations: Arc<Allocations>,
    /// Whether calls are put into a group.
    is_grouped: AtomicBool,
    /// The calls of an open group.
    pub grouped: Mutex<Vec<GroupedCall>>,
    /// The step that all survivors had completed, where a recovery led to the epoch.
    pub recovered: Option<u64>,
    /// The communicator with which the program goes on after a loss.
    successor: OnceLock<Arc<Self>>,
}

/// The communicators that are to leave when the interpreter ends.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Shared {
    /// Shares `comm`, whose epoch has `allocations`.
    ///
    /// # Errors
    /// Those of [`HeapPlaces::of`].
    pub fn new(
        comm: Communicator,
        allocations: Option<&Arc<Allocations>>,
        recovered: Option<u64>,
    ) -> Result<Arc<Self>> {
        let shared = Arc::new(Self {
            aborter: comm.aborter(),
            rank: comm.rank(),
            size: comm.n_ranks(),
            members: comm.members().iter().map(|rank| rank.get()).collect(),
            places: Arc::new(HeapPlaces::of(&comm)?),
            allocations: allocations.map_or_else(Arc::default, Arc::clone),
            comm: Mutex::new(Some(comm)),
            is_grouped: AtomicBool::new(false),
            grouped: Mutex::default(),
            recovered,
            successor: OnceLock::new(),
        });
        let mut open = lock(&OPEN);
        open.retain(|other| other.strong_count() > 0);
        open.push(Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Calls `run` with the communicator, without the interpreter's lock.
    ///
    /// # Errors
    /// The exception for what `run` returns; `RuntimeError` for a closed communicator;
    /// `KeyboardInterrupt`.
    #[inline]
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut Communicator) -> Result<R> + Send,
    ) -> PyResult<R> {
        let done = detached(py, || lock(&self.comm).as_mut().map(run).transpose())?;
        done.ok_or_else(|| closed("communicator"))
    }

    /// Locks the communicator.
    pub fn lock(&self) -> MutexGuard<'_, Option<Communicator>> {
        lock(&self.comm)
    }

    /// Returns whether calls are put into a group now.
    #[inline]
    pub fn is_grouped(&self) -> bool {
        // Relaxed: a group is opened and closed by the thread that makes its calls, or by one that
        // holds the interpreter before it.
        self.is_grouped.load(Ordering::Relaxed)
    }

    /// Puts calls together from now on.
    ///
    /// # Errors
    /// `RuntimeError` where they are already.
    pub fn open_group(&self) -> PyResult<()> {
        if self.is_grouped() {
            return Err(PyRuntimeError::new_err("a communicator is in a group already; end that one first"));
        }
        // Relaxed: see `is_grouped`.
        self.is_grouped.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the calls that were put together, and makes others at once again.
    pub fn close_group(&self) -> Vec<GroupedCall> {
        // Relaxed: see `is_grouped`.
        self.is_grouped.store(false, Ordering::Relaxed);
        std::mem::take(&mut *lock(&self.grouped))
    }

    /// Closes this communicator: the program goes on with `successor`, and leaves that one with it.
    pub fn succeeded_by(&self, py: Python<'_>, successor: &Arc<Self>) {
        let comm = self.take();
        py.detach(|| drop(comm));
        let _ = self.successor.set(Arc::clone(successor));
    }

    /// Returns the communicator with which the program goes on, which is this one as a rule.
    pub fn latest(self: &Arc<Self>) -> Arc<Self> {
        self.successor.get().map_or_else(|| Arc::clone(self), |successor| successor.latest())
    }

    /// Takes the communicator out.
    pub fn take(&self) -> Option<Communicator> {
        self.lock().take()
    }
}

impl Drop for Shared {
    /// Leaves without the interpreter's lock: a proxy's handler may need it, and calls on streams
    /// are waited for.
    fn drop(&mut self) {
        let Some(comm) = self.comm.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        drop_detached(comm);
    }
}

/// Drops `value` without the interpreter's lock, if this thread has it.
pub fn drop_detached<T: Send>(value: T) {
    let mut value = Some(value);
    Python::try_attach(|py| py.detach(|| drop(value.take())));
}

/// Leaves all communicators that are still there: the interpreter ends.
#[pyfunction]
pub fn leave_all(py: Python<'_>) {
    let open: Vec<_> = lock(&OPEN).drain(..).filter_map(|shared| shared.upgrade()).collect();
    py.detach(|| open.iter().for_each(|shared| drop(shared.take())));
}

/// Locks `mutex`. Nothing that panics leaves a value half changed here.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
