//! The order in which the enqueued calls of one communicator are executed, whatever streams they are on.
//!
//! A communicator lends its engine to a line with the first call that it enqueues. Each call has a ticket, numbered in the order in
//! which they were enqueued; the worker of its stream takes the engine when that number comes up. The next blocking call of
//! the communicator waits until the last ticket is done and takes the engine back, so that blocking calls have no
//! line to look at otherwise.
//!
//! A ticket waits for tickets of earlier calls only, as does whatever else a stream waits for; so there is no circle.

use std::sync::Arc;

use super::monitor::Monitor;
use crate::channel::RankContext;
use crate::collective::Engine;

/// An engine that streams have the use of, and the calls that wait for it.
#[derive(Debug)]
struct CallQueue {
    context: Arc<RankContext>,
    state: Monitor<CallQueueState>,
}

#[derive(Debug)]
struct CallQueueState {
    /// Not there while a call is executed, and after the loan.
    engine: Option<Box<Engine>>,
    /// How many tickets there are.
    issued: u64,
    /// How many of them are done.
    done: u64,
}

/// The engine of a communicator, as far as it is lent.
#[derive(Debug, Default)]
pub(in crate::comm) struct EngineLoan(Option<Arc<CallQueue>>);

/// The right of one call to the engine, when its turn has come. It passes on when it is dropped, used or not: one that was never
/// enqueued is as if it had not been asked for.
#[derive(Debug)]
pub(super) struct Ticket {
    line: Arc<CallQueue>,
    number: u64,
    engine: Option<Box<Engine>>,
}

impl EngineLoan {
    /// Lends `engine`.
    pub(super) fn begin(context: &Arc<RankContext>, engine: Box<Engine>) -> Self {
        let state = Monitor::new(context, CallQueueState { engine: Some(engine), issued: 0, done: 0 });
        Self(Some(Arc::new(CallQueue { context: Arc::clone(context), state })))
    }

    /// The ticket of the next call; `None` when nothing is lent.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        let line = Arc::clone(self.0.as_ref()?);
        let number = line.state.change(|state| {
            state.issued += 1;
            state.issued - 1
        });
        Some(Ticket { line, number, engine: None })
    }

    /// Waits until all calls are done, and returns the engine, if it was lent.
    #[inline]
    pub(in crate::comm) fn end(&mut self) -> Option<Box<Engine>> {
        self.0.take().map(|line| line.close())
    }
}

/// Waits as [`EngineLoan::end`] does. While it unwinds it ends the epoch first, as peers may never come to those calls.
impl Drop for EngineLoan {
    fn drop(&mut self) {
        let Some(line) = self.0.take() else { return };
        if std::thread::panicking() && !line.state.look(CallQueueState::is_done) {
            line.context.mark_own_loss();
        }
        drop(line.close());
    }
}

impl CallQueue {
    #[cold]
    fn close(&self) -> Box<Engine> {
        self.state.wait(|state| if state.is_done() { state.engine.take() } else { None })
    }
}

impl CallQueueState {
    fn is_done(&self) -> bool {
        self.done == self.issued
    }
}

impl Ticket {
    /// Waits for its turn, and takes the engine.
    pub(super) fn redeem(&mut self) -> &mut Engine {
        let engine = self.await_turn();
        self.engine.insert(engine)
    }

    pub(super) fn context(&self) -> &Arc<RankContext> {
        &self.line.context
    }

    fn await_turn(&self) -> Box<Engine> {
        self.line.state.wait(|state| if state.done == self.number { state.engine.take() } else { None })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.engine.is_some() && std::thread::panicking() {
            // A function of the user's has panicked within the call: peers are not to wait for the rest of it.
            self.line.context.mark_own_loss();
        }
        let engine = self.engine.take().unwrap_or_else(|| self.await_turn());
        self.line.state.change(|state| {
            state.engine = Some(engine);
            state.done += 1;
        });
    }
}
