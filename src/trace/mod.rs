//! Traces: what every thread and proxy of a job did, when, for how long, and with whom, as a
//! picture to be looked at.
//!
//! `shmccl run --trace FILE`, [`Launch::trace`](crate::launch::Launch::trace), or
//! `SHMCCL_TRACE=FILE` in the environment of any program that launches a job has every rank note
//! its operations, triggers and waits, and the launcher writes them when the last rank has ended.
//! Without a launcher, each process that finds `SHMCCL_TRACE=trace.json` writes `trace.RANK.json`
//! when the last communicator and channel of its rank are gone; ranks that are threads of one
//! process share `trace.json`. A file of an earlier run is written anew. A file that
//! this process has written already, or another one that still lives, or that was written since
//! this process began, is left alone, and the next is `trace.RANK-2.json`: so devices of a pool
//! leave a file for each communicator that they were in. The file is for <https://ui.perfetto.dev>
//! or `chrome://tracing`.
//!
//! | in the file | is |
//! |---|---|
//! | process | a rank, by the number that the launcher has for it |
//! | thread | a thread of it that called something, or its proxy, be it a thread or a process |
//! | span of a thread | a collective operation, a message, a verb of a channel; long waits in it |
//! | span of a proxy | a trigger, from when it was taken until its data and signal were there |
//! | `args` | `bytes`, `peer`, `algorithm`, `channel`, `sequence`, `tag`, `epoch`, `failed` |
//!
//! Sequences count the calls of one kind to one peer, operations of a communicator by their numbers
//! on its board, triggers of a proxy. A tag of 0 is left out. Waits are called *long* when they
//! have left the first spell of spinning behind them.
//!
//! Times are the processor's: on many machines it counts in steps of 10 ns. A wait for what is
//! there already takes no time at all. Every span begins before anything is done.
//!
//! What is noted stays in a ring of fixed length for the threads of a rank and another one for its
//! proxy; what was overwritten there is counted, and the file says so. The rings belong to the
//! launcher: a rank that is killed leaves all that it had noted. When the launcher is killed the
//! file stays empty. Without a launcher they are a process's own, devices of a pool included: one
//! that is killed leaves nothing of the communicator that it was in. Without a trace a call pays a
//! look at a word that is looked at anyhow. Recording takes two readings of the clock, 10 ns each
//! on a virtual machine, and half a cache line that was fetched ahead: `shmccl perf trace_cost`
//! measures it. A program can leave parts of itself out
//! ([`Communicator::set_tracing`](crate::Communicator::set_tracing)).
//!
//! Tried by its unit tests and `command trace::`.

mod file;
mod json;
mod recorder;
mod rings;
mod verb;

pub(crate) use file::{TraceFile, from_environment, recorders};
pub(crate) use recorder::{PORT, Recorder, TraceRing, TraceSpan};
pub(crate) use rings::Rings;
pub(crate) use verb::{CallNames, Verb};

/// How many records the ring of a rank's threads keeps, and that of its proxy, where nobody says
/// otherwise: 32 bytes each.
pub const DEFAULT_RECORDS: u64 = 1 << 15;
