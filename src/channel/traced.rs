//! A proxy's handler that notes what the one in it does.

use shmccl_proxy::{Handler, Position, Trigger, TriggerKind, TriggerRefusal};

use super::slot::MAX_CHANNELS_PER_PEER;
use crate::rank::Rank;
use crate::trace::{TraceRing, TraceSpan, Verb};

/// Notes each trigger in the lane of the fifo that it comes from.
#[derive(Debug)]
pub(crate) struct Traced<T> {
    inner: T,
    /// One for each fifo, with the number of triggers so far.
    lanes: Vec<(TraceRing, u64)>,
}

impl<T> Traced<T> {
    pub(crate) fn new(inner: T, lanes: impl IntoIterator<Item = TraceRing>) -> Self {
        Self { inner, lanes: lanes.into_iter().map(|lane| (lane, 0)).collect() }
    }
}

impl<T: Handler> Handler for Traced<T> {
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
        let Some((lane, number)) = self.lanes.get_mut(fifo) else { return self.inner.handle(fifo, trigger) };
        *number += 1;
        let (begun, kind) = (lane.now(), trigger.kind());
        let done = self.inner.handle(fifo, trigger);
        // Where it only copies, whom it concerns is in the memory that it names.
        let peer = u32::from(trigger.semaphore().get()) / MAX_CHANNELS_PER_PEER;
        let span = TraceSpan::of(Verb::trigger(kind)).numbered(*number);
        let span = if kind.contains(TriggerKind::SIGNAL) { span.with(Rank::known(peer)) } else { span };
        let len = if kind.contains(TriggerKind::DATA) { trigger.transfer().len.into() } else { 0 };
        let span = span.of_bytes(len);
        lane.record(begun, lane.now(), span.failing(done.is_err()));
        done
    }

    fn refused(&mut self, fifo: usize, position: Position, trigger: &Trigger, refusal: TriggerRefusal) {
        self.inner.refused(fifo, position, trigger, refusal);
    }

    fn completed(&mut self, fifo: usize) {
        self.inner.completed(fifo);
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }
}
