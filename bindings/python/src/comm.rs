//! The communicator of Python: membership, memory, derived communicators.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shmccl::bootstrap::Options;
use shmccl::collective::Algorithm;
use shmccl::reduce::ReduceOp;
use shmccl::shm::undivided::spawn_scoped;
use shmccl::{Collectives, Communicator as Engine, Error, Rank};

use crate::allocations::Allocations;
use crate::array::{Array, ArrayMemory};
use crate::channel::{Kind, PyChannel};
use crate::dtype::Dtype;
use crate::error::{closed, exception};
use crate::gate::remember_environment;
use crate::group::PyGroup;
use crate::interrupt::detached;
use crate::lock::lock;
use crate::plan_check::read_plan;
use crate::proxy::PythonHandler;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::unique_id::{UniqueId, seconds};
use crate::whole_number;
use crate::work::Work;

/// Where arrays begin: NumPy, torch and the widest registers are content with it.
const ALIGN: u64 = 128;

/// A rank's place among others, with the heap, channels and collective calls.
///
/// `shmccl.init()` and `shmccl.launch()` make the first one of a job. Threads may share it: their
/// calls go one after the other. It leaves the job when it is closed or dropped.
#[pyclass(frozen, module = "shmccl", name = "Communicator", weakref)]
#[derive(Clone)]
pub struct Communicator {
    /// The communicator of the engine.
    pub shared: Arc<Shared>,
}

impl Communicator {
    /// Wraps a communicator of a new epoch.
    fn first(py: Python<'_>, mut comm: Engine) -> PyResult<Self> {
        let recovered = if comm.was_restarted() { *lock(&hear_of_recovery(&mut comm)) } else { None };
        Self::wrap(py, comm, None, recovered)
    }

    /// Wraps a communicator derived from this one.
    fn derived(&self, py: Python<'_>, comm: Engine) -> PyResult<Self> {
        Self::wrap(py, comm, Some(&self.shared.allocations), self.shared.recovered)
    }

    fn succeeded_by(&self, py: Python<'_>, successor: Self) -> PyResult<Self> {
        self.shared.succeeded_by(py, &successor.shared)?;
        Ok(successor)
    }

    fn wrap(
        py: Python<'_>,
        comm: Engine,
        allocations: Option<&Arc<Allocations>>,
        recovered: Option<u64>,
    ) -> PyResult<Self> {
        let shared = Shared::new(comm, allocations, recovered).map_err(|error| exception(py, &error))?;
        Ok(Self { shared })
    }

    fn rank_of(&self, py: Python<'_>, rank: u32) -> PyResult<Rank> {
        Rank::new(rank, self.shared.size).map_err(|error| exception(py, &Error::from(error)))
    }
}

/// Takes the memory of calls, so that no later one waits for ranks that it does not concern.
fn prepared(mut comm: Engine) -> shmccl::Result<Engine> {
    // Survivors are not yet with a restarted rank.
    if !comm.was_restarted() {
        comm.prepare()?;
    }
    Ok(comm)
}

/// Does that for the ranks of one process, each in a thread, because they wait for each other.
fn all_prepared(comms: Vec<Engine>) -> shmccl::Result<Vec<Engine>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| spawn_scoped(scope, || prepared(comm))).collect();
        let ended = threads.into_iter().map(|thread| thread?.join().unwrap_or(Err(Error::Panicked)));
        // All are joined before the first failure is returned.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Lets `comm` tell which step all survivors had completed: at once, or when it is recovered.
fn hear_of_recovery(comm: &mut Engine) -> Arc<Mutex<Option<u64>>> {
    let told = Arc::new(Mutex::new(None));
    let heard = Arc::clone(&told);
    comm.on_recovery(move |recovery| *lock(&heard) = Some(recovery.sequence));
    told
}

/// Joins a job by `run`, without the interpreter's lock.
fn joining<R: Send>(py: Python<'_>, run: impl FnOnce() -> shmccl::Result<R> + Send) -> PyResult<R> {
    remember_environment();
    detached(py, run)
}

/// The options of a job without a launcher.
fn options(heap: u64, timeout: f64) -> PyResult<Options> {
    Ok(Options { heap_len: heap, timeout: seconds(timeout)?, ..Options::default() })
}

#[pymethods]
impl Communicator {
    /// Joins the job that `shmccl run` has started this process for.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Self> {
        let comm = joining(py, || prepared(Engine::from_env()?))?;
        Self::first(py, comm)
    }

    /// Meets the other ranks under `id`, as `rank` of `size`. `heap` is in bytes, `timeout` in
    /// seconds.
    #[staticmethod]
    #[pyo3(signature = (size, id, rank, *, heap=256 << 20, timeout=60.0))]
    fn init_rank(
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::count)] size: u32,
        id: &UniqueId,
        #[pyo3(from_py_with = whole_number::rank)] rank: u32,
        #[pyo3(from_py_with = whole_number::heap_len)] heap: u64,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = options(heap, timeout)?;
        let comm = joining(py, || prepared(Engine::init_rank_with(size, &id.0, rank, &options)?))?;
        Self::first(py, comm)
    }

    /// Meets the other ranks by a name that all know.
    #[staticmethod]
    #[pyo3(signature = (size, name, rank, *, heap, timeout))]
    fn _init_by_name(
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::count)] size: u32,
        name: &str,
        #[pyo3(from_py_with = whole_number::rank)] rank: u32,
        heap: u64,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = options(heap, timeout)?;
        let comm = joining(py, || prepared(Engine::init_by_name(size, name, rank, &options)?))?;
        Self::first(py, comm)
    }

    /// Makes all communicators of a job within this process, each for a thread of its own.
    #[staticmethod]
    #[pyo3(signature = (size, *, heap=256 << 20, timeout=60.0))]
    fn init_all(
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::count)] size: u32,
        #[pyo3(from_py_with = whole_number::heap_len)] heap: u64,
        timeout: f64,
    ) -> PyResult<Vec<Self>> {
        let options = options(heap, timeout)?;
        let comms = joining(py, || all_prepared(Engine::init_all_with(size, &options)?))?;
        comms.into_iter().map(|comm| Self::first(py, comm)).collect()
    }

    /// Joins the members of a communicator that grow under `id`.
    #[staticmethod]
    #[pyo3(signature = (id, *, timeout=60.0))]
    fn join(py: Python<'_>, id: &UniqueId, timeout: f64) -> PyResult<Self> {
        let timeout = seconds(timeout)?;
        let comm = joining(py, || Engine::join_within(&id.0, timeout))?;
        Self::first(py, comm)
    }

    /// This rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.shared.rank.get()
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.shared.size
    }

    /// Its ranks as the job numbers them, in order.
    #[getter]
    fn members(&self) -> Vec<u32> {
        self.shared.members.clone()
    }

    /// The next rank in a ring.
    #[getter]
    fn right(&self) -> u32 {
        (self.rank() + 1) % self.size()
    }

    /// The previous rank in a ring.
    #[getter]
    fn left(&self) -> u32 {
        (self.rank() + self.size() - 1) % self.size()
    }

    /// The seconds after which a wait raises Timeout. It can be set, for later waits of this rank
    /// on all communicators of the job.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<f64> {
        self.shared.look(py, |comm| Ok(comm.timeout().map(|timeout| timeout.as_secs_f64())))
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(timeout)?;
        self.shared.look(py, |comm| comm.set_timeout(timeout).map(Some))
    }

    /// How many bytes of this rank's inputs its calls have copied to where other ranks read them,
    /// on all communicators of the job. Arrays of the heap are not copied; what a small call
    /// carries with itself is not counted.
    #[getter]
    fn staged_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.look(py, |comm| Ok(comm.staged_bytes()))
    }

    /// Whether the epoch has ended, for whatever reason. After a recovery it is the new one's.
    #[getter]
    fn revoked(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared.latest().look(py, |comm| Ok(Some(comm.revoked().is_some())))
    }

    /// Whether this process replaces a rank that has died.
    #[getter]
    fn was_restarted(&self) -> bool {
        self.shared.was_restarted
    }

    /// The step that all survivors of the latest recovery had completed, as they have told
    /// `recover`. None where there was none.
    #[getter]
    fn recovered_step(&self) -> Option<u64> {
        self.shared.recovered
    }

    /// Returns when all ranks have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with(py, Engine::barrier)
    }

    /// Prepares the memory of collective calls. Collective, and done by `init`, `split` and
    /// `duplicate`. After a loss, and after `grow`, the first call does it as well.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with(py, Engine::prepare)
    }

    /// Makes an array of zeros in the heap of every rank. Collective: all ranks ask for the same.
    ///
    /// The array is at the same place of every rank's heap. Its memory is used again once all ranks
    /// have dropped it. It returns when it is zero on all ranks, so a peer may put into it at once.
    /// With `local=True` this rank alone makes the array. Calls take it alike; it has no peers.
    #[pyo3(signature = (shape, dtype=None, *, local=false))]
    fn zeros(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::shape)] shape: Vec<usize>,
        dtype: Option<&Bound<'_, PyAny>>,
        local: bool,
    ) -> PyResult<Array> {
        let array = self.empty(py, shape, dtype, local)?;
        array.clear().map_err(|error| exception(py, &error))?;
        if !local {
            self.barrier(py)?;
        }
        Ok(array)
    }

    /// Makes an array like `zeros`, with whatever the memory holds.
    #[pyo3(signature = (shape, dtype=None, *, local=false))]
    fn empty(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::shape)] shape: Vec<usize>,
        dtype: Option<&Bound<'_, PyAny>>,
        local: bool,
    ) -> PyResult<Array> {
        let dtype = dtype.map_or_else(|| Dtype::named("float64"), Dtype::of)?;
        // A length that overflows is more than there is, which all ranks are told.
        let len = shape.iter().try_fold(dtype.size as u64, |len, &extent| len.checked_mul(extent as u64));
        let shared = &self.shared;
        let len = len.unwrap_or(u64::MAX);
        let (region, memory) = shared.with(py, |comm| {
            if local {
                let count = usize::try_from(len).unwrap_or(usize::MAX);
                let buffer = comm.arena().alloc_aligned::<u8>(count, ALIGN)?;
                return Ok((buffer.region(), ArrayMemory::Local(buffer)));
            }
            let (region, used) = shared.allocations.take(comm, len, ALIGN)?;
            Ok((region, ArrayMemory::Shared(used)))
        })?;
        Array::new(&shared.places, shared.rank.get(), region, &shape, dtype, memory)
            .map_err(|error| exception(py, &error))
    }

    /// Bytes of this rank's heap: all, free, and the longest allocation that would succeed.
    fn heap_usage(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let usage = self.shared.with(py, |comm| Ok(comm.heap_usage()))?;
        Ok((usage.len, usage.free, usage.contiguous))
    }

    /// Opens the next channel to `peer`. With `proxied=True` a proxy moves the bytes.
    #[pyo3(signature = (peer, *, proxied=false))]
    fn channel(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::rank)] peer: u32,
        proxied: bool,
    ) -> PyResult<PyChannel> {
        let to = self.rank_of(py, peer)?;
        let kind = self.shared.with(py, |comm| {
            Ok(if proxied {
                Kind::Proxied(comm.port_channel(to)?)
            } else {
                Kind::Direct(comm.memory_channel(to)?)
            })
        })?;
        Ok(PyChannel::new(kind, &self.shared.places, self.shared.rank.get(), peer))
    }

    /// Starts this rank's proxy over `n_fifos` fifos. It calls `handler(fifo, trigger)` for each
    /// trigger, then executes it. A trigger for which the handler returns False, or raises, is
    /// refused. To be called before the first proxied channel.
    #[pyo3(signature = (handler, n_fifos=1))]
    fn start_proxy(
        &self,
        py: Python<'_>,
        handler: Py<PyAny>,
        #[pyo3(from_py_with = whole_number::count)] n_fifos: u32,
    ) -> PyResult<()> {
        if !handler.bind(py).is_callable() {
            return Err(PyTypeError::new_err(
                "start_proxy takes a function of a fifo's number and a trigger",
            ));
        }
        self.shared
            .with(py, |comm| comm.start_proxy(n_fifos, |executor| PythonHandler::new(executor, handler)))
    }

    /// Makes a stream: a thread that executes calls in order.
    fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        let stream = self.shared.with(py, |comm| comm.stream())?;
        Ok(Stream::new(stream, &self.shared))
    }

    /// Puts calls together: `with comm.group(): ...`. They are made at the end of the block, or
    /// enqueued on `stream`.
    #[pyo3(signature = (*, stream=None))]
    fn group(&self, stream: Option<Py<Stream>>) -> PyGroup {
        PyGroup::of(vec![Arc::clone(&self.shared)], stream)
    }

    /// Starts calls as one operation: `with comm.start() as work: ...`. They go on when the block
    /// has ended, and `work.wait()` waits for them.
    ///
    /// Operations of a communicator are done in order. Messages that must not wait for other calls
    /// go through a `duplicate()`.
    fn start(&self) -> Work {
        Work::new(&self.shared)
    }

    /// Divides the communicator: ranks of the same `color` come together, ordered by `key`.
    /// Returns None without a color. Collective.
    #[pyo3(signature = (color, key=0))]
    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::color)] color: Option<u32>,
        key: i64,
    ) -> PyResult<Option<Self>> {
        let part = self.shared.with(py, |comm| comm.split(color, key)?.map(prepared).transpose())?;
        part.map(|comm| self.derived(py, comm)).transpose()
    }

    /// Makes another communicator of the same ranks. Collective.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        let comm = self.shared.with(py, |comm| prepared(comm.duplicate()?))?;
        self.derived(py, comm)
    }

    /// Goes on without the lost ranks. All survivors call it once a call has failed. Returns the
    /// new communicator and the ranks that are lost, as this one numbers them. This one is closed,
    /// and its `with` block ends with the new one.
    fn shrink(&self, py: Python<'_>) -> PyResult<(Self, Vec<u32>)> {
        let shrunk = self.shared.with(py, Engine::shrink)?;
        let lost = shrunk.lost.iter().map(|rank| rank.get()).collect();
        Ok((self.succeeded_by(py, Self::first(py, shrunk.comm)?)?, lost))
    }

    /// Comes together with ranks that `Communicator.join` under `id`, in a new communicator of
    /// `size` ranks. Collective; one member passes the id at least.
    #[pyo3(signature = (size, id=None))]
    fn grow(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::count)] size: u32,
        id: Option<&UniqueId>,
    ) -> PyResult<Self> {
        let id = id.map(|id| id.0);
        let comm = self.shared.with(py, |comm| comm.grow(size, id.as_ref()))?;
        Self::first(py, comm)
    }

    /// Brings back the lost ranks, which `shmccl run --restart` has started again. `completed` is
    /// the number of this rank's last completed step. Returns the new communicator, whose
    /// `recovered_step` is the least of these numbers. A restarted rank has it from `init`. This
    /// communicator is closed, and its `with` block ends with the new one.
    fn recover(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole_number::step)] completed: u64,
    ) -> PyResult<Self> {
        let (comm, told) = self.shared.with(py, |comm| {
            let told = hear_of_recovery(comm);
            Ok((comm.recover(completed)?, told))
        })?;
        let recovered = *lock(&told);
        self.succeeded_by(py, Self::wrap(py, comm, None, recovered)?)
    }

    /// Declares `rank` lost, though it may live. That ends the epoch like a death.
    fn give_up(&self, py: Python<'_>, #[pyo3(from_py_with = whole_number::rank)] rank: u32) -> PyResult<()> {
        let lost = self.rank_of(py, rank)?;
        self.shared.with(py, |comm| comm.give_up(lost))
    }

    /// Ends the epoch: every wait of every rank raises Revoked. Any thread may call it, also while
    /// another one is in a call.
    fn revoke(&self, py: Python<'_>) {
        py.detach(|| self.shared.aborter.revoke());
    }

    /// Writes the heaps of all ranks to `directory`. Returns the number of the checkpoint.
    /// Collective.
    fn checkpoint(&self, py: Python<'_>, directory: PathBuf) -> PyResult<u64> {
        self.shared.with(py, |comm| comm.checkpoint(&directory))
    }

    /// Reads back what `checkpoint` has written. All ranks have made the same arrays. Collective.
    fn restore(&self, py: Python<'_>, directory: PathBuf) -> PyResult<u64> {
        self.shared.with(py, |comm| comm.restore(&directory))
    }

    /// Chooses an algorithm by name for collective calls from now on; None for the best one.
    fn set_algorithm(&self, py: Python<'_>, name: Option<&str>) -> PyResult<()> {
        let chosen = name
            .map(str::parse::<Algorithm>)
            .transpose()
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.shared.with(py, |comm| {
            comm.set_algorithm(chosen);
            Ok(())
        })
    }

    /// Does the calls that an MSCCL++ execution plan fits by that plan from now on: the one in this
    /// JSON file, or text. Returns its name. Collective: all ranks register the same one.
    fn register_plan(&self, py: Python<'_>, plan: &Bound<'_, PyAny>) -> PyResult<String> {
        let plan = Arc::new(read_plan(plan)?);
        self.shared.with(py, |comm| comm.register_plan(&plan))?;
        Ok(plan.name.clone())
    }

    /// Removes the first plan called `name` that was registered. Collective.
    fn unregister_plan(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.shared.with(py, |comm| comm.unregister_plan(name))
    }

    /// How many calls the first plan called `name` has begun that is registered; None where there
    /// is none.
    fn planned_calls(&self, py: Python<'_>, name: &str) -> PyResult<Option<u64>> {
        self.shared.with(py, |comm| Ok(comm.planned_calls(name)))
    }

    /// Tells what all ranks of the job are doing now, and which one holds the others up.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        self.shared.look(py, |comm| Ok(comm.report()?.map(|report| report.to_string())))
    }

    /// Leaves when all ranks have called it, so that nobody is missed. Collective.
    fn finalize(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.latest();
        let done = detached(py, || {
            shared.aborter.check_process("finalize")?;
            shared.take()?.map(Engine::finalize).transpose()
        })?;
        done.ok_or_else(|| closed("communicator"))
    }

    /// Leaves at once. A peer that still needs this rank gets PeerLost.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.shared.latest().leave())
    }

    /// Whether it has left, and so has the one with which the program went on after a loss.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.latest().is_closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Finalizes; leaves at once where an exception ends the block.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if kind.is_none() && !self.closed() {
            return self.finalize(py);
        }
        self.close(py)
    }

    /// Makes an all-reduce of two floats `count` times from Rust, at once or started and waited
    /// for. Returns the seconds, with which the same calls from Python are compared
    /// (`benches/call_cost.py`).
    #[pyo3(signature = (count, started=false))]
    fn _time_all_reduce(&self, py: Python<'_>, count: u64, started: bool) -> PyResult<f64> {
        self.shared.with(py, |comm| {
            let numbers = std::ptr::from_mut(Box::leak(Box::new([1.0_f32; 2])));
            let start = Instant::now();
            for _ in 0..count {
                // SAFETY: they are there for ever, and each call is waited for.
                let numbers = unsafe { &mut *numbers };
                if started {
                    comm.start(|_| (), |taker| taker.all_reduce_in_place(numbers, &ReduceOp::Max))?.wait()?;
                } else {
                    comm.all_reduce_in_place(numbers, &ReduceOp::Max)?;
                }
            }
            Ok(start.elapsed().as_secs_f64())
        })
    }

    fn __repr__(&self) -> String {
        format!("<shmccl.Communicator rank {} of {}>", self.shared.rank, self.shared.size)
    }
}

/// Puts together the calls of several communicators of one rank.
#[pyfunction]
#[pyo3(signature = (*comms, stream=None))]
pub fn group(comms: &Bound<'_, PyTuple>, stream: Option<Py<Stream>>) -> PyResult<PyGroup> {
    let shared = |comm: Bound<'_, PyAny>| Ok(Arc::clone(&comm.cast::<Communicator>()?.get().shared));
    Ok(PyGroup::of(comms.iter().map(shared).collect::<PyResult<Vec<_>>>()?, stream))
}
