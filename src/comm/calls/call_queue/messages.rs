//! Messages that are open: they move in whoever looks, under the lock of the queue. Nobody waits
//! with that lock.

use std::sync::Arc;
use std::time::Duration;

use super::{CallQueue, CallStage, Cancelled, Completion, Outcome, QueueState};
use crate::channel::{EpochWatch, LongWait, RankContext};
use crate::collective::{CallSignature, Operation};
use crate::error::Error;
use crate::rank::RankSet;
use crate::sync::{SleepWord, Stop, WaitPolicy, Waiting, WaitingIn, Watch, wait_until};

/// An operation that has ended, and how.
pub(super) type Ended = (Completion, Outcome);

impl CallQueue {
    /// Does what can be done now without waiting. A call of all members is left to the worker, who
    /// takes it up at once.
    pub(in crate::comm) fn poll(&self) {
        let mut state = self.state.lock();
        let ended = state.advance();
        state.urge_worker();
        drop(state);
        self.end_all(ended);
    }

    /// Waits until more calls of messages than `n_ended` are done, or none is open any more.
    ///
    /// # Errors
    /// [`Cancelled`], and the messages stay open.
    pub(super) fn await_messages(&self, n_ended: u64) -> Result<(), Cancelled> {
        let is_failure = |stop| stop != Stop::Cancelled;
        cancelled(self.await_messages_for(self.context().timeout(), n_ended, is_failure))
    }

    /// Waits until `is_done`, or until something else has changed, but no longer than `timeout`.
    ///
    /// # Errors
    /// [`Cancelled`], and the operation goes on.
    pub(in crate::comm) fn await_change(
        &self,
        timeout: Duration,
        is_done: impl Fn() -> bool,
    ) -> Result<(), Cancelled> {
        let mut state = self.state.lock();
        if is_done() {
            return Ok(());
        }
        state.urge_worker();
        let open = state.has_open().then_some(state.n_ended);
        drop(state);
        cancelled(match open {
            Some(n_ended) => {
                let is_failure = |stop| !matches!(stop, Stop::Timeout | Stop::Cancelled);
                self.await_messages_for(timeout, n_ended, is_failure)
            }
            None => {
                let change = |state: &mut QueueState| (is_done() || state.has_open()).then_some(());
                self.state.wait_for(WaitPolicy::OVERSUBSCRIBED, timeout, change)
            }
        })
    }

    /// Waits like [`Self::await_messages`].
    ///
    /// # Errors
    /// What has ended the wait before. If it `is_failure`, it has ended all that was open.
    fn await_messages_for(
        &self,
        timeout: Duration,
        n_ended: u64,
        is_failure: impl Fn(Stop) -> bool,
    ) -> Result<(), Stop> {
        self.state.lock().n_waiting += 1;
        let (watch, policy) = (EpochWatch(MessagesWait(self)), self.context().policy());
        let waited = self.progress(&watch, policy, timeout, |state| state.n_ended != n_ended);
        if let Err(stop) = waited
            && is_failure(stop)
        {
            self.fail(&watch, stop);
        }
        let mut state = self.state.lock();
        state.n_waiting -= 1;
        state.call_worker();
        waited
    }

    /// Does the same as the worker, until somebody waits. Observers do not see that as a wait: the
    /// program does something else.
    pub(super) fn see_to_messages(&self) {
        let watch = UnseenWait(MessagesWait(self));
        let is_over = |state: &QueueState| state.n_waiting > 0 || state.worker.is_over;
        if let Err(stop) = self.progress(&watch, WaitPolicy::IN_BACKGROUND, Duration::MAX, is_over) {
            self.fail(&watch, stop);
        }
    }

    /// Tells of operations that have ended, without the lock.
    pub(super) fn end_all(&self, ended: Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        let n_ended = ended.len() as u64;
        ended.into_iter().for_each(|(completion, outcome)| completion.end(outcome));
        self.state.change(|state| state.n_ended += n_ended);
        self.message_park.wake(self.context().kernel());
    }

    fn progress(
        &self,
        watch: &impl Watch,
        policy: WaitPolicy,
        timeout: Duration,
        is_over: impl Fn(&QueueState) -> bool,
    ) -> Result<(), Stop> {
        let poll = || {
            let mut state = self.state.lock();
            let ended = state.advance();
            let is_over = !state.has_open() || is_over(&state);
            drop(state);
            let has_ended = !ended.is_empty();
            self.end_all(ended);
            (is_over || has_ended).then_some(())
        };
        let waiting = Waiting::new(self.context().kernel(), watch, policy, timeout);
        wait_until(&waiting, &self.message_park, poll)
    }

    /// Ends all operations whose messages are open, and the epoch: nobody knows how far the peers
    /// have come.
    #[cold]
    fn fail(&self, watch: &impl Watch, stop: Stop) {
        let context = self.context();
        let waiting = Waiting::new(context.kernel(), watch, context.policy(), context.timeout());
        let (awaited, call) = self.state.look(|state| (state.awaited(), state.messages.call()));
        let awaited = awaited.filter(|awaited| awaited.len() == 1).and_then(|awaited| awaited.iter().next());
        let operation = call.and_then(CallSignature::operation).unwrap_or(Operation::Group);
        let error = context.error(&waiting, stop, operation.name(), awaited);
        let error = match call.and_then(CallSignature::tag) {
            Some(tag) => error.tagged(tag),
            None => error,
        };
        context.abort_after(&error);
        let ended = self.state.lock().fail_open(&Arc::new(error));
        self.end_all(ended);
    }
}

/// Leaves of what ended a wait only that the program did.
fn cancelled(waited: Result<(), Stop>) -> Result<(), Cancelled> {
    if waited == Err(Stop::Cancelled) { Err(Cancelled) } else { Ok(()) }
}

impl QueueState {
    /// Opens what can be open, does what can be done for it, and returns what has ended.
    pub(super) fn advance(&mut self) -> Vec<Ended> {
        let Some(engine) = &mut self.engine else { return Vec::new() };
        let mut is_new = false;
        for call in &mut self.calls {
            match &mut call.stage {
                CallStage::Open(..) => {}
                CallStage::Started(started) if started.is_by_messages() => {
                    let kind = started.choice.channel;
                    let added = self.messages.add(engine, call.number, started.calls.as_mut_slice(), kind);
                    call.stage.open(added.err().map(Arc::new));
                    is_new = true;
                }
                _ => break,
            }
        }
        match self.messages.advance(engine) {
            Ok(has_moved) if has_moved || is_new || self.is_dropped => self.take_ended(),
            Ok(_) => Vec::new(),
            Err(error) => self.fail_open(&Arc::new(error)),
        }
    }

    /// Gives up the receives of which nothing has come: the communicator is dropped.
    fn cancel_receives(&mut self) {
        let needs = "a communicator that is not dropped before the message has come";
        let error = Arc::new(Error::Unavailable { operation: Operation::Recv.name(), needs });
        for cancelled in self.messages.cancel_receives() {
            self.fail_calls(|number| number == cancelled, &error);
        }
    }

    /// Has the open calls fail whose numbers are concerned.
    fn fail_calls(&mut self, is_concerned: impl Fn(u64) -> bool, error: &Arc<Error>) {
        for call in &mut self.calls {
            if let CallStage::Open(_, failure) = &mut call.stage
                && is_concerned(call.number)
            {
                failure.get_or_insert_with(|| Arc::clone(error));
            }
        }
    }

    /// Returns whether the turn is that of messages.
    pub(super) fn has_open(&self) -> bool {
        match self.calls.front().map(|call| &call.stage) {
            Some(CallStage::Open(..)) => true,
            Some(CallStage::Started(started)) => started.is_by_messages(),
            _ => false,
        }
    }

    fn fail_open(&mut self, error: &Arc<Error>) -> Vec<Ended> {
        self.messages.clear();
        self.fail_calls(|_| true, error);
        self.take_ended()
    }

    /// Takes out the operations that were open and have no messages left.
    fn take_ended(&mut self) -> Vec<Ended> {
        if self.is_dropped {
            self.cancel_receives();
        }
        let (mut ended, mut at) = (Vec::new(), 0);
        while let Some(call) = self.calls.get(at) {
            let CallStage::Open(..) = call.stage else { break };
            if self.messages.has(call.number) {
                at += 1;
            } else if let Some(CallStage::Open(completion, failure)) =
                self.calls.remove(at).map(|call| call.stage)
            {
                ended.push((completion, failure.map_or(Ok(()), Err)));
            }
        }
        ended
    }

    fn awaited(&self) -> Option<RankSet> {
        self.engine.as_ref().map(|engine| self.messages.awaited(engine))
    }
}

impl CallStage {
    /// Opens messages that were started.
    fn open(&mut self, failure: Option<Arc<Error>>) {
        if let Self::Started(started) = std::mem::replace(self, Self::Running) {
            *self = Self::Open(started.completion, failure);
        }
    }
}

/// Watches the epoch, and whether the peers of all open messages live and have not left.
struct MessagesWait<'q>(&'q CallQueue);

impl LongWait for MessagesWait<'_> {
    fn context(&self) -> &RankContext {
        self.0.context()
    }

    fn stop(&self) -> Option<Stop> {
        let peers = || self.0.state.look(|state| state.messages.check(state.engine.as_deref()?));
        self.context().watch(None).check().or_else(peers)
    }

    fn seen(&self) -> WaitingIn {
        let (call, awaited) = self.0.state.look(|state| (state.messages.call(), state.awaited()));
        let awaited = awaited.unwrap_or_default();
        WaitingIn { call: Some((call.unwrap_or(CallSignature::NONE).words(), 0)), kind: 0, step: 0, awaited }
    }
}

/// A [`MessagesWait`] of the worker, which nobody sees.
struct UnseenWait<'q>(MessagesWait<'q>);

impl Watch for UnseenWait<'_> {
    fn check(&self) -> Option<Stop> {
        self.0.stop()
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.0.context().mapped().revocation().bell())
    }
}
