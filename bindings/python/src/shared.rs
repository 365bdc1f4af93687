//! A communicator of the engine, shared by the objects of Python that use it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use shmccl::comm::Aborter;
use shmccl::shm::undivided::ProcessMutex;
use shmccl::{Communicator, Rank, Result};

use crate::allocations::Allocations;
use crate::error::closed;
use crate::heap_places::HeapPlaces;
use crate::interrupt::detached;
use crate::proxy::refuse_within_handler;
use crate::turns::{Turn, Turns};

/// A communicator, until it is closed.
pub struct Shared {
    comm: Turns<Option<Communicator>>,
    /// Whether it was taken out.
    is_closed: AtomicBool,
    /// Ends the epoch from any thread, and tells what needs no turn.
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
    /// How many groups are open, of all threads.
    pub n_groups: AtomicU32,
    /// Whether this process replaces a rank that has died.
    pub was_restarted: bool,
    /// The step that all survivors had completed, where a recovery led to the epoch.
    pub recovered: Option<u64>,
    /// The communicator with which the program goes on after a loss.
    successor: OnceLock<Arc<Self>>,
}

/// How long calls of daemon threads may take when the interpreter ends.
const PATIENCE_AT_END: Duration = Duration::from_secs(1);

/// The communicators that are to leave when the interpreter ends.
static OPEN: ProcessMutex<Vec<Weak<Shared>>> = ProcessMutex::new();

impl Shared {
    /// Shares `comm`, whose epoch has `allocations`.
    ///
    /// # Errors
    /// Fails as [`HeapPlaces::of`] does.
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
            was_restarted: comm.was_restarted(),
            comm: Turns::new(Some(comm)),
            is_closed: AtomicBool::new(false),
            n_groups: AtomicU32::new(0),
            recovered,
            successor: OnceLock::new(),
        });
        OPEN.with(|open| {
            open.retain(|other| other.strong_count() > 0);
            open.push(Arc::downgrade(&shared));
        });
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
        let done = detached(py, || self.turn()?.as_mut().map(run).transpose())?;
        done.ok_or_else(|| closed("communicator"))
    }

    /// Calls `look` while calls of other threads go on, without the interpreter's lock.
    ///
    /// # Errors
    /// The exception for what `look` returns; `RuntimeError` for a closed communicator, for which
    /// it may return `None`.
    pub fn look<R: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&Aborter) -> Result<Option<R>> + Send,
    ) -> PyResult<R> {
        let seen = if self.is_closed() { None } else { detached(py, || look(&self.aborter))? };
        seen.ok_or_else(|| closed("communicator"))
    }

    /// Waits until no other thread is in a call, without the interpreter's lock.
    ///
    /// # Errors
    /// Fails as [`Turns::take`] does, or with [`shmccl::Error::Unavailable`] in a handler of a
    /// proxy.
    #[inline]
    pub fn turn(&self) -> Result<Turn<'_, Option<Communicator>>> {
        refuse_within_handler()?;
        self.comm.take()
    }

    /// Returns whether it was left, or is about to be.
    pub fn is_closed(&self) -> bool {
        // Relaxed: whoever needs the communicator looks behind its lock.
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes this communicator: the program goes on with `successor`, and leaves that one with it.
    ///
    /// # Errors
    /// `KeyboardInterrupt`, and the successor is there.
    pub fn succeeded_by(&self, py: Python<'_>, successor: &Arc<Self>) -> PyResult<()> {
        let _ = self.successor.set(Arc::clone(successor));
        detached(py, || self.leave())
    }

    /// Returns the communicator with which the program goes on, which is this one as a rule.
    pub fn latest(self: &Arc<Self>) -> Arc<Self> {
        self.successor.get().map_or_else(|| Arc::clone(self), |successor| successor.latest())
    }

    /// Takes the communicator out, without the interpreter's lock.
    ///
    /// # Errors
    /// Fails as [`Turns::take_out`] does.
    pub fn take(&self) -> Result<Option<Communicator>> {
        let comm = self.comm.take_out()?;
        // Relaxed: see `is_closed`.
        self.is_closed.store(true, Ordering::Relaxed);
        Ok(comm)
    }

    /// Leaves at once, without the interpreter's lock.
    ///
    /// # Errors
    /// Fails as [`Shared::take`] does.
    pub fn leave(&self) -> Result<()> {
        self.take().map(drop)
    }

    /// Leaves as the interpreter ends. Only daemon threads are left then: the call of one that does
    /// not end by itself ends with the epoch.
    fn leave_at_end(&self) -> Result<()> {
        if self.comm.take_within(PATIENCE_AT_END).is_err() {
            self.aborter.revoke();
        }
        self.leave()
    }
}

impl Drop for Shared {
    /// Leaves without the interpreter's lock: a proxy's handler may need it, and calls on streams
    /// are waited for.
    fn drop(&mut self) {
        let Some(comm) = self.comm.get_mut().take() else { return };
        drop_detached(comm);
    }
}

/// Drops `value` without the interpreter's lock. Ctrl-C ends what it waits for.
pub fn drop_detached<T: Send>(value: T) {
    at_drop(|py| {
        detached(py, || {
            drop(value);
            Ok(())
        })
    });
}

/// Calls `end` for an object that is dropped, if there is an interpreter. What it raises is shown.
pub fn at_drop(end: impl FnOnce(Python<'_>) -> PyResult<()>) {
    Python::try_attach(|py| {
        // Handlers of signals are called without the exception by which the object goes.
        let pending = PyErr::take(py);
        end(py).unwrap_or_else(|error| error.write_unraisable(py, None));
        pending.into_iter().for_each(|error| error.restore(py));
    });
}

/// Leaves all communicators that are still there: the interpreter ends.
///
/// # Errors
/// `KeyboardInterrupt`.
#[pyfunction]
pub fn leave_all(py: Python<'_>) -> PyResult<()> {
    detached(py, || {
        let open: Vec<_> = OPEN.with(std::mem::take).iter().filter_map(Weak::upgrade).collect();
        open.iter().try_for_each(|shared| shared.leave_at_end())
    })
}
