//! Streams: operations that run in order, one after the other, while the program does something
//! else.
//!
//! Each [`Stream`] has a thread of its own, which takes operations off a queue (`worker`):
//! collective calls (`calls`), copies (`copies`), functions of the program, and [`Event`]s, for
//! which other streams and the program can wait. Only events, and the order of calls of one
//! communicator (`calls`), order streams among each other. The words are those of CUDA and NCCL. An
//! operation depends only on operations that were enqueued before it, so streams of one process
//! cannot block each other for good.
//!
//! # Memory
//! The program goes on while a call waits in a stream, so the call may borrow nothing of it. Its
//! buffers are [`DeviceBuffer`](crate::heap::DeviceBuffer)s of the symmetric heap, or `&'static`
//! slices of ordinary memory. Other memory goes through a device buffer, by copies of the stream:
//! [`Stream::copy_host_to_device`] before the call, [`Stream::copy_device_to_host`] to a
//! [`HostBuffer`] behind it.
//!
//! # Visibility
//! An operation sees what its caller had written before it was enqueued. A thread that has seen it
//! done ([`Stream::synchronise`], [`Stream::query`], [`Event`]) sees what it has written.
//!
//! # Bounds
//! A stream has room for [`MAX_ENQUEUED`] operations that are not begun. One more is refused with
//! [`Error::Exhausted`] and changes nothing: synchronise, and go on.
//!
//! # Failure
//! The first operation of a stream that fails is the last one executed. The rest is skipped, and
//! from then on every call of the stream returns [`Error::StreamFailed`], which says what failed
//! and why. A skipped collective call ends the epoch with [`Error::Revoked`]: the others would take
//! the next call of this rank for it.
//!
//! ```
//! use shmccl::reduce::ReduceOp;
//! use shmccl::{Collectives, launch::launch_threads};
//!
//! launch_threads(2, &Default::default(), |comm| {
//!     let sums = comm.alloc::<f32>(1000)?;
//!     let stream = comm.stream()?;
//!     stream.fill(&sums, 1.5)?;
//!     stream.on(comm).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
//!     // ... something else meanwhile ...
//!     stream.synchronise()?;
//!     assert_eq!(sums.get(0)?, 3.0);
//!     Ok(())
//! })?;
//! # Ok::<(), shmccl::Error>(())
//! ```
//!
//! Tried by its unit tests and `scenarios streams:: stream_failures::`.

mod calls;
mod copies;
mod event;
mod worker;

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::channel::RankContext;
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::rank::Rank;

pub use calls::OnStream;
pub use copies::{HostBuffer, HostSource};
pub use event::Event;
pub use worker::MAX_ENQUEUED;
use worker::{Failure, StreamQueue, StreamTask};

/// Operations in order, executed by a thread of its own: see the [module](self).
///
/// [`Stream::on`] takes the calls of [`Collectives`](crate::comm::Collectives), on buffers of the
/// symmetric heap. Ordinary memory has to be `'static`, or goes through a device buffer by the
/// stream's copies.
///
/// Threads may share a stream. Dropping it waits until everything enqueued is done. Operations that
/// are left when the epoch has ended, or when a panicking thread drops it, are not executed.
#[derive(Debug)]
pub struct Stream {
    context: Arc<RankContext>,
    /// The ranks of the communicator that it was made of, as the job numbers them.
    members: Arc<[Rank]>,
    queue: Arc<StreamQueue>,
    worker: Option<JoinHandle<()>>,
}

/// The state of a stream or an event. A failure is the error [`Error::StreamFailed`] instead, which
/// names the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStatus {
    /// Something is left to be done.
    InProgress,
    /// Everything is done.
    Success,
}

impl Communicator {
    /// Makes a stream. It takes calls of other communicators too. Its thread runs where the calling
    /// one may, and sleeps when there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Os`] when the thread cannot be started; [`Error::Unavailable`] in a child that the
    /// rank has forked.
    pub fn stream(&self) -> Result<Stream> {
        let context = Arc::clone(self.context());
        context.here("stream")?;
        let queue = StreamQueue::new(&context);
        let worker = Some(queue.start()?);
        Ok(Stream { context, members: Arc::clone(&self.members), queue, worker })
    }
}

impl Stream {
    /// Enqueues a call of `function` on the thread of the stream. The function must not wait for
    /// anything enqueued later, nor for what the program does after dropping the stream: there is
    /// no deadline.
    ///
    /// A function that panics fails the stream with [`Error::Panicked`].
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Exhausted`].
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        self.try_call(move || {
            function();
            Ok(())
        })
    }

    /// Enqueues a call like [`Stream::call`] of a function that may fail. Its error fails the
    /// stream.
    ///
    /// # Errors
    /// Fails as [`Stream::call`] does.
    pub fn try_call(&self, function: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.enqueue("call", function)
    }

    /// Says whether all is done that was enqueued.
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Unavailable`] in a child that the rank has forked.
    pub fn query(&self) -> Result<StreamStatus> {
        self.context.here("query")?;
        self.queue.query()
    }

    /// Waits until everything is done that was enqueued by now.
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Unavailable`] for a function that the stream itself has
    /// called, and in a child that the rank has forked.
    pub fn synchronise(&self) -> Result<()> {
        if self.is_on_its_thread() {
            let needs = "a thread other than the stream's, which would wait for itself";
            return Err(Error::Unavailable { operation: "synchronise", needs });
        }
        self.context.here("synchronise")?;
        self.queue.synchronise()
    }

    /// Enqueues `work`, which is skipped after a failure.
    fn enqueue(
        &self,
        operation: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.push(operation, &self.context, move |failure| if failure.is_none() { work() } else { Ok(()) })
    }

    /// Enqueues `work` of the epoch of `context`. It gets an earlier failure of the stream as its
    /// argument.
    fn push(
        &self,
        operation: &'static str,
        context: &Arc<RankContext>,
        work: impl FnOnce(Option<&Failure>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.context.here(operation)?;
        self.queue.push(StreamTask { operation, context: Arc::clone(context), work: Box::new(work) })
    }

    fn is_on_its_thread(&self) -> bool {
        let current = std::thread::current().id();
        self.worker.as_ref().is_some_and(|worker| worker.thread().id() == current)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.is_forked() {
            // Its thread did not come along: what is enqueued is the rank's to do.
            std::mem::forget((Arc::clone(&self.queue), self.worker.take()));
            return;
        }
        self.queue.close();
        let is_own = self.is_on_its_thread();
        match self.worker.take() {
            // A panic of the worker would be a bug of this module, and has been reported on that
            // thread.
            Some(worker) if !is_own => drop(worker.join()),
            // Dropped by a function that the stream has called: its thread ends by itself when that
            // returns.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
