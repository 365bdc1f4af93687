//! Marks in streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::worker::Failure;
use super::{Stream, StreamStatus};
use crate::comm::calls::monitor::Monitor;
use crate::error::{Error, Result};

/// A mark in a stream. It is reached when everything is done that was enqueued there before it was
/// recorded.
///
/// It may be recorded again, on any stream, and then stands for the latest record. A stream that
/// waits already waits for the record that it found. An event that was never recorded keeps nobody
/// waiting. Clones are handles of the same event.
#[derive(Clone, Debug, Default)]
pub struct Event {
    latest: Arc<Mutex<Option<Arc<EventRecord>>>>,
}

/// One record of an event: when it was reached, or what kept it from being.
#[derive(Debug)]
struct EventRecord(Monitor<Option<Result<Instant, Failure>>>);

impl Event {
    /// Makes an event that was not recorded yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says whether the event was reached.
    ///
    /// # Errors
    /// [`Error::StreamFailed`] when an operation before it failed.
    pub fn query(&self) -> Result<StreamStatus> {
        let is_reached = self.latest().map_or(Ok(true), |record| record.when().map(|at| at.is_some()))?;
        Ok(if is_reached { StreamStatus::Success } else { StreamStatus::InProgress })
    }

    /// Waits until the event is reached. Everything that was done before it is visible then.
    ///
    /// # Errors
    /// Fails as [`Event::query`] does, or with [`Error::Cancelled`], or with [`Error::Unavailable`]
    /// in a child that the rank has forked before.
    pub fn synchronise(&self) -> Result<()> {
        self.latest().map_or(Ok(()), |record| record.wait())
    }

    /// Returns the time from reaching `start` to reaching this event, or zero when that came first.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when one of the two was not recorded, or not reached yet;
    /// [`Error::StreamFailed`].
    pub fn elapsed_since(&self, start: &Self) -> Result<Duration> {
        let when = |event: &Self| {
            let needs = "two events that were recorded and reached";
            let missing = Error::Unavailable { operation: "elapsed_since", needs };
            event.latest().map_or(Ok(None), |record| record.when())?.ok_or(missing)
        };
        Ok(when(self)?.saturating_duration_since(when(start)?))
    }

    fn latest(&self) -> Option<Arc<EventRecord>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<EventRecord>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventRecord {
    fn when(&self) -> Result<Option<Instant>> {
        self.0.look(|reached| reached.as_ref().map(known).transpose())
    }

    fn wait(&self) -> Result<()> {
        if self.when()?.is_none() {
            // In a child of a fork nobody is left who could reach it.
            self.0.context.here("synchronise")?;
        }
        self.0.wait_cancellable("synchronise", |reached| reached.as_ref().map(known))?.map(drop)
    }
}

fn known(reached: &Result<Instant, Failure>) -> Result<Instant> {
    reached.as_ref().copied().map_err(Failure::error)
}

impl Stream {
    /// Records `event` behind everything that was enqueued until now.
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Exhausted`], and the event stays where it was recorded
    /// before.
    pub fn record(&self, event: &Event) -> Result<()> {
        let record = Arc::new(EventRecord(Monitor::new(&self.context, None)));
        let there = Arc::clone(&record);
        let pushed = self.push("record", &self.context, move |failure| {
            let reached = failure.map_or_else(|| Ok(Instant::now()), |failure| Err(failure.clone()));
            there.0.change(|state| *state = Some(reached));
            Ok(())
        });
        if !matches!(pushed, Err(Error::Exhausted { .. })) {
            *event.lock() = Some(record);
        }
        pushed
    }

    /// Lets all later operations wait until `event`, of this stream or another, is reached as it
    /// was recorded last. If that event can no longer be reached because its stream failed, this
    /// one fails too.
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Exhausted`] when too many operations are enqueued: then
    /// nothing waits.
    pub fn wait(&self, event: &Event) -> Result<()> {
        match event.latest() {
            Some(record) => self.enqueue("wait", move || record.wait()),
            None => Ok(()),
        }
    }
}
