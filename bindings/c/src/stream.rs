//! Streams: calls that are done in order, behind the program's back.

use std::sync::{Arc, Mutex, OnceLock};

use shmccl::comm::stream::StreamStatus;
use shmccl::{Communicator, Event, Stream};

use crate::answer::answer;
use crate::arguments::required;
use crate::failure::Failure;
use crate::handles::{Handles, lock};
use crate::types::shmcclResult_t::{self, *};
use crate::types::shmcclStream_t;

/// A stream, which is made by its first call: before, no rank of a job is known for it.
#[derive(Default)]
pub(crate) struct StreamState {
    made: OnceLock<Stream>,
    /// The events that its first call waits for.
    awaited: Mutex<Vec<Event>>,
}

static STREAMS: Handles<StreamState, 4096> = Handles::new(2, "stream");

impl StreamState {
    /// Returns the stream of a handle; `None` for NULL, which stands for now.
    pub(crate) fn get(handle: shmcclStream_t) -> Result<Option<Arc<Self>>, Failure> {
        if handle.is_null() { Ok(None) } else { STREAMS.get(handle).map(Some) }
    }

    /// Returns the stream, for a call of `comm`.
    pub(crate) fn for_call(&self, comm: &Communicator) -> Result<&Stream, Failure> {
        if let Some(stream) = self.made() {
            return Ok(stream);
        }
        let made = comm.stream()?;
        let mut awaited = lock(&self.awaited);
        awaited.drain(..).try_for_each(|event| made.wait(&event))?;
        // Another thread may have been quicker; an idle stream ends at once.
        Ok(self.made.get_or_init(|| made))
    }

    /// Returns the stream, if it has had a call.
    pub(crate) fn made(&self) -> Option<&Stream> {
        self.made.get()
    }

    /// Lets later calls wait for an event, as it is recorded now.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), Failure> {
        let mut awaited = lock(&self.awaited);
        match self.made() {
            Some(stream) => stream.wait(event)?,
            None => awaited.push(event.clone()),
        }
        Ok(())
    }
}

/// Makes a stream. Any thread may enqueue calls of any communicator there. Each stream has a
/// thread, which sleeps when there is nothing to do.
///
/// Buffers of an enqueued call belong to it until the stream was synchronised. The first call that
/// fails is the last one that is done: from then on every use of the stream returns that failure.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclStreamCreate(stream: Option<&mut shmcclStream_t>) -> shmcclResult_t {
    answer(|| {
        let stream = required(stream, "stream")?;
        *stream = STREAMS.insert(Arc::default())?;
        Ok(())
    })
}

/// Waits until everything enqueued is done, and frees the stream. Failures of enqueued calls are
/// told by `shmcclStreamSynchronize`.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclStreamDestroy(stream: shmcclStream_t) -> shmcclResult_t {
    answer(|| STREAMS.take(stream).map(drop))
}

/// Waits until everything is done that was enqueued by now. What it has written is visible then.
/// NULL has nothing to wait for. It returns the failure of an enqueued call.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclStreamSynchronize(stream: shmcclStream_t) -> shmcclResult_t {
    answer(|| match StreamState::get(stream)?.as_ref().and_then(|state| state.made()) {
        Some(stream) => Ok(stream.synchronise()?),
        None => Ok(()),
    })
}

/// Says whether everything enqueued is done: `shmcclSuccess`, `shmcclInProgress`, or the failure of
/// an enqueued call.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclStreamQuery(stream: shmcclStream_t) -> shmcclResult_t {
    let mut status = shmcclSuccess;
    let asked = answer(|| {
        let state = StreamState::get(stream)?;
        if let Some(stream) = state.as_ref().and_then(|state| state.made())
            && stream.query()? == StreamStatus::InProgress
        {
            status = shmcclInProgress;
        }
        Ok(())
    });
    if asked == shmcclSuccess { status } else { asked }
}
