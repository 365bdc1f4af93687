//! Execution plans that Python builds: the crate's builder, call by call.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmccl::plan::build::{
    BlockId, BlockSemaphore, BuildError, ChannelEnd, Chunks, CollectiveProgram, SwitchGroupId,
};
use shmccl::plan::plan::{Buffer, MAX_RANKS};
use shmccl::plan::{ExecutionPlan, write};

use crate::error::plan_refused;
use crate::lock::lock;

/// The buffers of a rank.
const BUFFERS: [(&str, Buffer); 3] =
    [("input", Buffer::Input), ("output", Buffer::Output), ("scratch", Buffer::Scratch)];

/// What a program hands out, each with whose it is.
macro_rules! handles {
    ($($(#[$doc:meta])* $class:ident $name:tt: $of:ty, $what:literal;)*) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "shmccl.plan", name = $name)]
        pub struct $class {
            program: Arc<()>,
            it: $of,
        }

        impl $class {
            fn of(&self, program: &PyProgram) -> PyResult<$of> {
                if Arc::ptr_eq(&self.program, &program.identity) {
                    return Ok(self.it);
                }
                Err(PyValueError::new_err(concat!("the ", $what, " is of another program; make one of this")))
            }
        }
    )*};
}

handles! {
    /// A thread block of a rank. Made by `program.block(rank)`.
    Block "Block": BlockId, "block";
    /// The end of a channel that one rank holds. Made by `program.memory_channel(rank, peer)` and
    /// `program.port_channel(rank, peer)`.
    PlanChannel "PlanChannel": ChannelEnd, "channel";
    /// A switch group, as one rank holds it. Made by `program.group(rank, ranks, buffer)`.
    PlanGroup "PlanGroup": SwitchGroupId, "group";
    /// A semaphore between the blocks of a rank. Made by `program.semaphore(rank)`.
    PlanSemaphore "Semaphore": BlockSemaphore, "semaphore";
}

/// Chunks of a buffer of a rank. Made by `program.input(rank, index)`, `program.output(...)` and
/// `program.scratch(...)`.
#[pyclass(frozen, module = "shmccl.plan", name = "Chunks")]
pub struct PyChunks(Chunks);

#[pymethods]
impl PyChunks {
    fn __repr__(&self) -> String {
        let Chunks { rank, buffer, index, size } = self.0;
        let (name, _) = BUFFERS.into_iter().find(|(_, other)| *other == buffer).expect("all have names");
        format!("program.{name}({rank}, {index}, size={size})")
    }
}

type ChunksList<'py> = Vec<PyRef<'py, PyChunks>>;

fn all(list: &[PyRef<'_, PyChunks>]) -> Vec<Chunks> {
    list.iter().map(|chunks| chunks.0).collect()
}

/// A program that becomes an MSCCL++ execution plan: `Program("name", "allreduce", 2, ...)`.
///
/// Each call adds an operation to a thread block. A `nop` is put wherever the threads of a block
/// must meet. `finish()` proves the plan, and gives none that is wrong: see docs/plans.md.
#[pyclass(frozen, module = "shmccl.plan", name = "Program")]
pub struct PyProgram {
    program: Mutex<CollectiveProgram>,
    ranks: usize,
    identity: Arc<()>,
}

impl PyProgram {
    /// Adds what `add` does, which the calling line of Python makes.
    fn add<R>(
        &self,
        py: Python<'_>,
        add: impl FnOnce(&mut CollectiveProgram) -> Result<R, BuildError>,
    ) -> PyResult<R> {
        let line = calling_line(py)?;
        let added = {
            let mut program = lock(&self.program);
            program.made_at(&line);
            add(&mut program)
        };
        // The program is not locked while Python is called.
        added.map_err(|error| plan_refused(py, &error))
    }

    fn rank(&self, rank: usize) -> PyResult<usize> {
        if rank < self.ranks {
            return Ok(rank);
        }
        let count = self.ranks;
        Err(PyValueError::new_err(format!("there is no rank {rank}; the program has {count}, from 0 on")))
    }

    fn chunks(&self, rank: usize, buffer: Buffer, index: u32, size: u32) -> PyResult<PyChunks> {
        Ok(PyChunks(Chunks { rank: self.rank(rank)?, buffer, index, size }))
    }

    fn channel(
        &self,
        rank: usize,
        peer: usize,
        open: fn(&mut CollectiveProgram, usize, usize) -> ChannelEnd,
    ) -> PyResult<PlanChannel> {
        let (rank, peer) = (self.rank(rank)?, self.rank(peer)?);
        let it = open(&mut lock(&self.program), rank, peer);
        Ok(PlanChannel { program: Arc::clone(&self.identity), it })
    }

    fn transfer(
        &self,
        py: Python<'_>,
        block: &Block,
        source: &PyChunks,
        target: &PyChunks,
        add: fn(&mut CollectiveProgram, BlockId, Chunks, Chunks) -> Result<(), BuildError>,
    ) -> PyResult<()> {
        let block = block.of(self)?;
        self.add(py, |program| add(program, block, source.0, target.0))
    }

    fn synchronise(
        &self,
        py: Python<'_>,
        block: &Block,
        channel: &PlanChannel,
        add: fn(&mut CollectiveProgram, BlockId, ChannelEnd) -> Result<(), BuildError>,
    ) -> PyResult<()> {
        let (block, channel) = (block.of(self)?, channel.of(self)?);
        self.add(py, |program| add(program, block, channel))
    }

    fn finished(
        &self,
        py: Python<'_>,
        finish: fn(CollectiveProgram) -> Result<ExecutionPlan, BuildError>,
    ) -> PyResult<String> {
        let program = lock(&self.program).clone();
        let plan = py.detach(|| finish(program)).map_err(|error| plan_refused(py, &error))?;
        Ok(write::write(&plan))
    }
}

/// Returns the file and line of the Python code that calls.
fn calling_line(py: Python<'_>) -> PyResult<String> {
    let frame = py.import("sys")?.call_method0("_getframe")?;
    let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
    let line: u32 = frame.getattr("f_lineno")?.extract()?;
    Ok(format!("{file}:{line}"))
}

#[pymethods]
impl PyProgram {
    /// Begins a program. `packets` lets scratch hold packets, in two halves that launches use by
    /// turns. `instances` replicates it, each time over a part of each chunk. Messages of
    /// `min_message` to `max_message` bytes are done by it.
    #[new]
    #[pyo3(signature = (
        name, collective, ranks, *, input_chunks=0, output_chunks=0, scratch_chunks=0, in_place=false,
        packets=false, reuse_resources=false, min_message=0, max_message=None, instances=1
    ))]
    #[expect(clippy::too_many_arguments, reason = "all but three have names and defaults")]
    fn new(
        name: &str,
        collective: &str,
        ranks: usize,
        input_chunks: u32,
        output_chunks: u32,
        scratch_chunks: u32,
        in_place: bool,
        packets: bool,
        reuse_resources: bool,
        min_message: u64,
        max_message: Option<u64>,
        instances: u32,
    ) -> PyResult<Self> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(PyValueError::new_err(format!("{ranks} ranks; a plan has 1 to {MAX_RANKS}")));
        }
        let mut program = CollectiveProgram::new(name, collective, ranks)
            .chunks(input_chunks, output_chunks, scratch_chunks)
            .limits(min_message, max_message.unwrap_or(u64::MAX))
            .instances(instances);
        if in_place {
            program = program.in_place();
        }
        if packets {
            program = program.packets();
        }
        if reuse_resources {
            program = program.reuse_resources();
        }
        Ok(Self { program: Mutex::new(program), ranks, identity: Arc::default() })
    }

    /// Sets the chunks of scratch of one rank.
    fn set_scratch(&self, rank: usize, chunks: u32) -> PyResult<()> {
        let rank = self.rank(rank)?;
        lock(&self.program).set_scratch(rank, chunks);
        Ok(())
    }

    /// Names `size` chunks of the input of a rank, from `index` on.
    #[pyo3(signature = (rank, index, size=1))]
    fn input(&self, rank: usize, index: u32, size: u32) -> PyResult<PyChunks> {
        self.chunks(rank, Buffer::Input, index, size)
    }

    /// Names `size` chunks of the output of a rank, from `index` on.
    #[pyo3(signature = (rank, index, size=1))]
    fn output(&self, rank: usize, index: u32, size: u32) -> PyResult<PyChunks> {
        self.chunks(rank, Buffer::Output, index, size)
    }

    /// Names `size` chunks of the scratch of a rank, from `index` on.
    #[pyo3(signature = (rank, index, size=1))]
    fn scratch(&self, rank: usize, index: u32, size: u32) -> PyResult<PyChunks> {
        self.chunks(rank, Buffer::Scratch, index, size)
    }

    /// Adds a thread block to a rank.
    fn block(&self, rank: usize) -> PyResult<Block> {
        let rank = self.rank(rank)?;
        Ok(Block { program: Arc::clone(&self.identity), it: lock(&self.program).block(rank) })
    }

    /// Opens the next memory channel from a rank to a peer. It pairs with the peer's next one to
    /// the rank.
    fn memory_channel(&self, rank: usize, peer: usize) -> PyResult<PlanChannel> {
        self.channel(rank, peer, CollectiveProgram::memory_channel)
    }

    /// Opens the next port channel from a rank to a peer.
    fn port_channel(&self, rank: usize, peer: usize) -> PyResult<PlanChannel> {
        self.channel(rank, peer, CollectiveProgram::port_channel)
    }

    /// Joins a buffer of several ranks, as `rank` sees it: "input", "output" or "scratch". The
    /// order of ranks is that of reduction.
    fn group(&self, rank: usize, ranks: Vec<usize>, buffer: &str) -> PyResult<PlanGroup> {
        let rank = self.rank(rank)?;
        ranks.iter().try_for_each(|&member| self.rank(member).map(drop))?;
        let (_, buffer) = BUFFERS.into_iter().find(|(name, _)| *name == buffer).ok_or_else(|| {
            PyValueError::new_err(format!("no buffer {buffer:?}; expected input, output or scratch"))
        })?;
        let it = lock(&self.program).group(rank, &ranks, buffer);
        Ok(PlanGroup { program: Arc::clone(&self.identity), it })
    }

    /// Makes a semaphore between the blocks of a rank.
    #[pyo3(signature = (rank, initial=0))]
    fn semaphore(&self, rank: usize, initial: u32) -> PyResult<PlanSemaphore> {
        let rank = self.rank(rank)?;
        let it = lock(&self.program).semaphore(rank, initial);
        Ok(PlanSemaphore { program: Arc::clone(&self.identity), it })
    }

    /// Copies within a rank.
    fn copy(&self, py: Python<'_>, block: &Block, source: &PyChunks, target: &PyChunks) -> PyResult<()> {
        self.transfer(py, block, source, target, CollectiveProgram::copy)
    }

    /// Copies from a peer.
    fn get(&self, py: Python<'_>, block: &Block, source: &PyChunks, target: &PyChunks) -> PyResult<()> {
        self.transfer(py, block, source, target, CollectiveProgram::get)
    }

    /// Copies to a peer.
    fn put(&self, py: Python<'_>, block: &Block, source: &PyChunks, target: &PyChunks) -> PyResult<()> {
        self.transfer(py, block, source, target, CollectiveProgram::put)
    }

    /// Hands a copy to the proxy, with a signal behind it. With `flush`, waits until it is done.
    #[pyo3(signature = (block, channel, source, target, *, flush=false))]
    fn put_with_signal(
        &self,
        py: Python<'_>,
        block: &Block,
        channel: &PlanChannel,
        source: &PyChunks,
        target: &PyChunks,
        flush: bool,
    ) -> PyResult<()> {
        let (block, channel) = (block.of(self)?, channel.of(self)?);
        self.add(py, |program| program.put_with_signal(block, channel, source.0, target.0, flush))
    }

    /// Combines sources into targets; the first of either are of the block's own rank. Others may
    /// be far.
    fn reduce(
        &self,
        py: Python<'_>,
        block: &Block,
        sources: ChunksList<'_>,
        targets: ChunksList<'_>,
    ) -> PyResult<()> {
        let block = block.of(self)?;
        self.add(py, |program| program.reduce(block, &all(&sources), &all(&targets)))
    }

    /// Sends plain chunks as packets into a peer's scratch.
    fn put_packets(
        &self,
        py: Python<'_>,
        block: &Block,
        source: &PyChunks,
        target: &PyChunks,
    ) -> PyResult<()> {
        self.transfer(py, block, source, target, CollectiveProgram::put_packets)
    }

    /// Makes packets of plain chunks in the own scratch.
    fn copy_to_packets(
        &self,
        py: Python<'_>,
        block: &Block,
        source: &PyChunks,
        target: &PyChunks,
    ) -> PyResult<()> {
        self.transfer(py, block, source, target, CollectiveProgram::copy_to_packets)
    }

    /// Waits for packets in the own scratch, and writes their payload.
    fn unpack_packets(
        &self,
        py: Python<'_>,
        block: &Block,
        source: &PyChunks,
        target: &PyChunks,
    ) -> PyResult<()> {
        self.transfer(py, block, source, target, CollectiveProgram::unpack_packets)
    }

    /// Waits for packets in the own scratch, and sends them into peers' scratch.
    fn forward_packets(
        &self,
        py: Python<'_>,
        block: &Block,
        source: &PyChunks,
        targets: ChunksList<'_>,
    ) -> PyResult<()> {
        let block = block.of(self)?;
        self.add(py, |program| program.forward_packets(block, source.0, &all(&targets)))
    }

    /// Waits for `packets` in the own scratch and combines them, then with the plain chunks `own`.
    /// Writes the result into `target`, and as packets into the scratch of `peers`.
    #[pyo3(signature = (block, own, packets, target, peers=Vec::new()))]
    fn reduce_packets(
        &self,
        py: Python<'_>,
        block: &Block,
        own: &PyChunks,
        packets: ChunksList<'_>,
        target: &PyChunks,
        peers: ChunksList<'_>,
    ) -> PyResult<()> {
        let block = block.of(self)?;
        self.add(py, |program| program.reduce_packets(block, own.0, &all(&packets), target.0, &all(&peers)))
    }

    /// Combines `size` chunks of all members of a group, from `index` on, into the same of all.
    #[pyo3(signature = (block, group, index, size=1))]
    fn group_reduce(
        &self,
        py: Python<'_>,
        block: &Block,
        group: &PlanGroup,
        index: u32,
        size: u32,
    ) -> PyResult<()> {
        let (block, group) = (block.of(self)?, group.of(self)?);
        self.add(py, |program| program.group_reduce(block, group, index, size))
    }

    /// Signals the peer of a channel, behind all that the block has done.
    fn signal(&self, py: Python<'_>, block: &Block, channel: &PlanChannel) -> PyResult<()> {
        self.synchronise(py, block, channel, CollectiveProgram::signal)
    }

    /// Waits for a signal of the peer.
    fn wait(&self, py: Python<'_>, block: &Block, channel: &PlanChannel) -> PyResult<()> {
        self.synchronise(py, block, channel, CollectiveProgram::wait)
    }

    /// Signals the peer without an order of data: that the own buffers are ready.
    fn relaxed_signal(&self, py: Python<'_>, block: &Block, channel: &PlanChannel) -> PyResult<()> {
        self.synchronise(py, block, channel, CollectiveProgram::relaxed_signal)
    }

    /// Waits for a signal of the peer, without an order of data.
    fn relaxed_wait(&self, py: Python<'_>, block: &Block, channel: &PlanChannel) -> PyResult<()> {
        self.synchronise(py, block, channel, CollectiveProgram::relaxed_wait)
    }

    /// Waits until all that was handed to the proxy on a channel is done.
    fn flush(&self, py: Python<'_>, block: &Block, channel: &PlanChannel) -> PyResult<()> {
        self.synchronise(py, block, channel, CollectiveProgram::flush)
    }

    /// Releases a semaphore, behind all that the block has done.
    fn release(&self, py: Python<'_>, block: &Block, semaphore: &PlanSemaphore) -> PyResult<()> {
        let (block, semaphore) = (block.of(self)?, semaphore.of(self)?);
        self.add(py, |program| program.release(block, semaphore))
    }

    /// Waits for a semaphore, and takes 1.
    fn acquire(&self, py: Python<'_>, block: &Block, semaphore: &PlanSemaphore) -> PyResult<()> {
        let (block, semaphore) = (block.of(self)?, semaphore.of(self)?);
        self.add(py, |program| program.acquire(block, semaphore))
    }

    /// Lets blocks of one rank meet.
    fn barrier(&self, py: Python<'_>, id: u32, blocks: Vec<PyRef<'_, Block>>) -> PyResult<()> {
        let blocks: Vec<_> = blocks.iter().map(|block| block.of(self)).collect::<PyResult<_>>()?;
        self.add(py, |program| program.barrier(id, &blocks))
    }

    /// Runs what a `with` block adds to `block` once for each `unit` bytes of so many chunks.
    fn pipeline(slf: Py<Self>, block: Py<Block>, unit: usize, chunks: u32) -> Pipeline {
        Pipeline { program: slf, block, unit, chunks }
    }

    /// Proves the plan, and returns it as text. Raises Plan where it is wrong, with the lines that
    /// made the operations.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.finished(py, CollectiveProgram::finish)
    }

    /// Returns the plan as text without a proof. It keeps the rules of the format.
    fn finish_unproved(&self, py: Python<'_>) -> PyResult<String> {
        self.finished(py, CollectiveProgram::finish_unproved)
    }

    /// Proves the plan, and writes it to a file.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(std::fs::write(path, self.finish(py)?)?)
    }
}

/// A part of a block that runs once for each piece of its chunks. Made by `program.pipeline(...)`.
#[pyclass(frozen, module = "shmccl.plan", name = "Pipeline")]
pub struct Pipeline {
    program: Py<PyProgram>,
    block: Py<Block>,
    unit: usize,
    chunks: u32,
}

#[pymethods]
impl Pipeline {
    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        let program = self.program.get();
        let block = self.block.get().of(program)?;
        program.add(py, |program| program.begin_pipeline(block, self.unit, self.chunks))
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let program = self.program.get();
        let block = self.block.get().of(program)?;
        program.add(py, |program| program.end_pipeline(block))
    }
}

/// Adds the classes of this module.
///
/// # Errors
/// `MemoryError`.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Block>()?;
    module.add_class::<Pipeline>()?;
    module.add_class::<PlanChannel>()?;
    module.add_class::<PlanGroup>()?;
    module.add_class::<PlanSemaphore>()?;
    module.add_class::<PyChunks>()?;
    module.add_class::<PyProgram>()
}
