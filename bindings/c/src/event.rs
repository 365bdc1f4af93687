//! Events: marks in streams, for which other streams and the program can wait.

use std::sync::Arc;

use shmccl::Event;
use shmccl::comm::stream::StreamStatus;

use crate::answer::answer;
use crate::arguments::required;
use crate::failure::Failure;
use crate::handles::Handles;
use crate::stream::StreamState;
use crate::types::shmcclResult_t::{self, *};
use crate::types::{shmcclEvent_t, shmcclStream_t};

static EVENTS: Handles<Event, 4096> = Handles::new(5, "event");

/// Makes an event, which no stream has recorded yet.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclEventCreate(event: Option<&mut shmcclEvent_t>) -> shmcclResult_t {
    answer(|| {
        *required(event, "event")? = EVENTS.insert(Arc::new(Event::new()))?;
        Ok(())
    })
}

/// Frees an event. Streams that wait for it are not concerned.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclEventDestroy(event: shmcclEvent_t) -> shmcclResult_t {
    answer(|| EVENTS.take(event).map(drop))
}

/// Records an event in a stream: it is reached when everything is done that was enqueued there
/// before. It may be recorded again, and stands for the latest record then.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclEventRecord(event: shmcclEvent_t, stream: shmcclStream_t) -> shmcclResult_t {
    answer(|| {
        let (event, stream) = (EVENTS.get(event)?, required_stream(stream)?);
        // A stream that has had no call has nothing to wait for.
        stream.made().map_or(Ok(()), |stream| Ok(stream.record(&event)?))
    })
}

/// Lets later calls of a stream wait until an event is reached as it was recorded last. An event
/// that was never recorded keeps nobody waiting.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclStreamWaitEvent(stream: shmcclStream_t, event: shmcclEvent_t) -> shmcclResult_t {
    answer(|| {
        let (stream, event) = (required_stream(stream)?, EVENTS.get(event)?);
        stream.wait_for(&event)
    })
}

/// Says whether an event is reached: `shmcclSuccess`, `shmcclInProgress`, or the failure of a call
/// before it.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclEventQuery(event: shmcclEvent_t) -> shmcclResult_t {
    let mut status = StreamStatus::Success;
    let asked = answer(|| {
        status = EVENTS.get(event)?.query()?;
        Ok(())
    });
    if status == StreamStatus::InProgress { shmcclInProgress } else { asked }
}

/// Waits until an event is reached. What was done before it is visible then.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclEventSynchronize(event: shmcclEvent_t) -> shmcclResult_t {
    answer(|| Ok(EVENTS.get(event)?.synchronise()?))
}

/// Stores the milliseconds from reaching `start` to reaching `end`, or 0 where that came first.
///
/// `shmcclInvalidUsage`: one of the two is not reached, or no stream has recorded it.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclEventElapsedTime(
    ms: Option<&mut f32>,
    start: shmcclEvent_t,
    end: shmcclEvent_t,
) -> shmcclResult_t {
    answer(|| {
        let (ms, start, end) = (required(ms, "ms")?, EVENTS.get(start)?, EVENTS.get(end)?);
        *ms = end.elapsed_since(&start)?.as_secs_f32() * 1e3;
        Ok(())
    })
}

fn required_stream(handle: shmcclStream_t) -> Result<Arc<StreamState>, Failure> {
    StreamState::get(handle)?.ok_or_else(|| Failure::null("stream"))
}
