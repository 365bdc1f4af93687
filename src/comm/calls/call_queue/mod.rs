//! The calls of one communicator that are executed later: those on streams, and those that were
//! started.
//!
//! A queue has the engine of its communicator while there may be such calls. They take their turns
//! in the order in which they were enqueued. The next call that is executed at once waits until all
//! are done and takes the engine back, so such calls see no queue otherwise.
//!
//! | call | is executed by |
//! |---|---|
//! | of a stream | the thread of that stream, which has a [`Ticket`] |
//! | started, of all members | whoever waits for it or for a later one, or the [worker](worker) |
//! | started, messages only | whoever waits, looks or starts, a bit each; the worker otherwise |
//!
//! Messages that follow each other in the queue are open at the same time, and move together
//! ([`OpenMessages`]). They may be done in any order.
//!
//! A call waits only for earlier ones, and so does everything else that a stream waits for. So
//! there is no circle.
//!
//! Tried by `scenarios started:: streams:: stream_failures::`.

mod messages;
mod worker;

use std::collections::VecDeque;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::monitor::Monitor;
use crate::channel::RankContext;
use crate::collective::group::{self, GroupShare};
use crate::collective::{Call, Choice, Engine, OpenMessages, Operation};
use crate::error::{Error, Result};
use crate::shm::CellRef;
use crate::sync::{ParkCell, WaitPolicy};
use worker::WorkerState;

/// The most calls that wait in a queue.
const MAX_CALLS: usize = 1 << 16;

/// What became of an operation that was started.
pub(super) type Outcome = Result<(), Arc<Error>>;

/// The queue of a communicator.
#[derive(Debug)]
pub(super) struct CallQueue {
    state: Monitor<QueueState>,
    /// Where this rank sleeps when it waits for messages.
    message_park: CellRef<ParkCell>,
}

#[derive(Debug)]
struct QueueState {
    /// The engine, unless a call is executed by it or the communicator has it.
    engine: Option<Box<Engine>>,
    /// The number of the next call.
    next: u64,
    /// The calls that are not done, in their order.
    calls: VecDeque<QueuedCall>,
    /// The messages of those that are open.
    messages: OpenMessages,
    /// How many calls of messages were seen to be done.
    n_ended: u64,
    /// Threads that wait for messages, the worker left aside.
    n_waiting: u32,
    /// The communicator is: a receive of which nothing has come fails.
    is_dropped: bool,
    worker: WorkerState,
}

#[derive(Debug)]
struct QueuedCall {
    number: u64,
    stage: CallStage,
}

#[derive(Debug)]
enum CallStage {
    /// A stream executes it at its turn.
    OfStream,
    Started(Box<StartedCalls>),
    /// Its messages are open. It will have failed if there is an error.
    Open(Completion, Option<Arc<Error>>),
    /// Some thread executes it.
    Running,
}

/// Calls that are executed together: as a rule one.
#[derive(Debug, Default)]
pub(super) struct CallList {
    first: Option<Call<'static>>,
    /// All of them, if there are several.
    several: Vec<Call<'static>>,
}

/// Calls that were started as one operation.
#[derive(Debug)]
pub(super) struct StartedCalls {
    pub(super) calls: CallList,
    pub(super) choice: Choice,
    pub(super) completion: Completion,
}

/// What is left to be done when an operation has ended.
pub(super) struct Completion {
    pub(super) done: Box<dyn FnOnce(&Outcome) + Send>,
    pub(super) outcome: Arc<OnceLock<Outcome>>,
}

/// The program has ended a wait of its thread: see [`crate::sync::interrupt`].
#[derive(Debug)]
pub(super) struct Cancelled;

/// What a thread that waits can do.
enum Turn<R> {
    /// What it has waited for is there.
    Over(R),
    /// Execute the call of this number.
    Run(u64, Box<Engine>, Box<StartedCalls>),
    /// See to the messages that are open, when so many calls of messages had ended.
    Messages(u64),
}

/// The right of one call to the engine, at its turn. It passes on when it is dropped, used or not:
/// a call that was never enqueued does not count.
#[derive(Debug)]
pub(super) struct Ticket<Q: Deref<Target = CallQueue> = Arc<CallQueue>> {
    queue: Q,
    number: u64,
    engine: Option<Box<Engine>>,
}

/// The queue of a communicator, if it ever had one, and whether it has the engine.
#[derive(Debug, Default)]
pub(in crate::comm) struct EngineLoan {
    queue: Option<Arc<CallQueue>>,
    is_lent: bool,
    /// The plans that the engine had when it was lent, by name: no other are registered meanwhile.
    plans: Vec<(String, u32)>,
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.outcome.fmt(f)
    }
}

impl EngineLoan {
    /// Returns the queue, if it has the engine.
    pub(super) fn queue(&self) -> Option<&Arc<CallQueue>> {
        self.queue.as_ref().filter(|_| self.is_lent)
    }

    /// Returns the number of the first plan called `name` of the engine that is lent.
    pub(super) fn plan(&self, name: &str) -> Option<u32> {
        self.plans.iter().find(|(of, _)| of == name).map(|&(_, number)| number)
    }

    /// Lends `engine`, and returns the queue.
    pub(super) fn begin(&mut self, context: &Arc<RankContext>, engine: Box<Engine>) -> Arc<CallQueue> {
        self.plans = engine.selector.names();
        let queue = self.queue.get_or_insert_with(|| CallQueue::new(context));
        queue.state.lock().engine = Some(engine);
        self.is_lent = true;
        Arc::clone(queue)
    }

    /// Waits until all calls are done, and returns the engine, if it was lent.
    #[inline]
    pub(super) fn end(&mut self) -> Option<Box<Engine>> {
        if std::mem::take(&mut self.is_lent) { self.queue.as_ref().map(|queue| queue.drain()) } else { None }
    }
}

/// Waits like [`EngineLoan::end`]. While it unwinds it ends the epoch first, because peers may
/// never come to those calls.
impl Drop for EngineLoan {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        if self.is_lent {
            if std::thread::panicking() && !queue.state.look(|state| state.calls.is_empty()) {
                queue.context().mark_own_loss();
            }
            queue.state.lock().is_dropped = true;
            drop(queue.drain());
        }
        queue.end_worker();
    }
}

impl CallQueue {
    fn new(context: &Arc<RankContext>) -> Arc<Self> {
        let state = QueueState {
            engine: None,
            next: 0,
            calls: VecDeque::new(),
            messages: OpenMessages::default(),
            n_ended: 0,
            n_waiting: 0,
            is_dropped: false,
            worker: WorkerState::default(),
        };
        let message_park = context.mapped().cells(context.rank()).message_park();
        Arc::new(Self { state: Monitor::new(context, state), message_park })
    }

    pub(super) fn context(&self) -> &Arc<RankContext> {
        &self.state.context
    }

    /// Returns the ticket of the next call, which a stream executes.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        let number = self.state.change(|state| state.push(CallStage::OfStream));
        Ticket { queue: Arc::clone(self), number, engine: None }
    }

    /// Enqueues `started`, and does what can be done at once for messages.
    ///
    /// # Errors
    /// [`Error::Exhausted`], and those of starting a thread. Nothing was started then.
    pub(super) fn start(self: &Arc<Self>, mut started: Box<StartedCalls>) -> Result<()> {
        let (is_by_messages, is_long) = (started.is_by_messages(), started.is_long());
        if is_by_messages {
            self.context().enter(operation_of(started.calls.as_mut_slice()))?;
        }
        let mut state = self.state.lock();
        state.worker.begin(self)?;
        if state.calls.len() >= MAX_CALLS {
            // The refused call is dropped without the lock.
            drop(state);
            return Err(FULL);
        }
        state.push(CallStage::Started(started));
        state.worker.call(is_long);
        let ended = if is_by_messages { state.advance() } else { Vec::new() };
        drop(state);
        self.end_all(ended);
        Ok(())
    }

    /// Does what is to be done until `outcome` is there.
    ///
    /// # Errors
    /// [`Cancelled`], and the operation goes on.
    pub(super) fn await_outcome(&self, outcome: &OnceLock<Outcome>) -> Result<Outcome, Cancelled> {
        loop {
            if let Some(outcome) = outcome.get() {
                return Ok(outcome.clone());
            }
            self.work_once(|_| outcome.get().map(|_| ()))?;
        }
    }

    /// Does what is to be done until `over` returns something. A wait that is cancelled ends the
    /// epoch, as that of a call does: so all comes to an end.
    fn work_until<R>(&self, mut over: impl FnMut(&mut QueueState) -> Option<R>) -> R {
        loop {
            match self.work_once(&mut over) {
                Ok(Some(value)) => return value,
                Ok(None) => {}
                Err(Cancelled) => self.context().abort(),
            }
        }
    }

    /// Does what is to be done next, unless `over` returns something.
    #[inline]
    fn work_once<R>(
        &self,
        mut over: impl FnMut(&mut QueueState) -> Option<R>,
    ) -> Result<Option<R>, Cancelled> {
        let next = |state: &mut QueueState| over(state).map(Turn::Over).or_else(|| state.turn());
        // There is no deadline.
        let turn = self.state.wait_for(WaitPolicy::OVERSUBSCRIBED, Duration::MAX, next);
        match turn.map_err(|_| Cancelled)? {
            Turn::Over(value) => return Ok(Some(value)),
            Turn::Run(number, engine, started) => self.run(number, engine, *started),
            Turn::Messages(n_ended) => self.await_messages(n_ended)?,
        }
        Ok(None)
    }

    /// Executes `started`, whose turn it is.
    fn run(&self, number: u64, engine: Box<Engine>, mut started: StartedCalls) {
        let mut ticket = Ticket { queue: self, number, engine: Some(engine) };
        let (choice, context) = (started.choice, self.context());
        let run = || run_calls(ticket.redeem(), &mut started.calls, choice, context);
        let done = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            // Peers must not wait for the rest of it.
            context.abort();
            Err(Error::Panicked)
        });
        started.completion.end(done.map_err(Arc::new));
    }

    /// Waits until all calls are done, and takes the engine back.
    #[cold]
    fn drain(&self) -> Box<Engine> {
        self.work_until(|state| if state.calls.is_empty() { state.engine.take() } else { None })
    }
}

/// Executes `calls` together, now that their turn has come. Where they cannot be, peers are not to
/// wait for them.
fn run_calls(engine: &mut Engine, calls: &mut CallList, choice: Choice, context: &RankContext) -> Result<()> {
    enter(context, operation_of(calls.as_mut_slice()))?;
    match &mut calls.first {
        Some(call) => engine.run(call, choice),
        None => {
            let calls = std::mem::take(&mut calls.several);
            group::run(&mut [GroupShare { engine, choice, calls }])
        }
    }
}

/// Begins `operation` now that its turn has come. Where it cannot, peers are not to wait for it.
pub(super) fn enter(context: &RankContext, operation: &'static str) -> Result<()> {
    context.enter(operation).inspect_err(|error| context.abort_after(error))
}

/// Returns the name of the operation that `calls` are.
pub(super) fn operation_of(calls: &[Call<'_>]) -> &'static str {
    match calls {
        [call] => call.operation.name(),
        _ => Operation::Group.name(),
    }
}

/// The error for a full queue.
const FULL: Error = Error::Exhausted {
    what: "operations started on a communicator (wait for some, then start more)",
    limit: MAX_CALLS as u64,
};

impl CallList {
    /// Adds `call`.
    ///
    /// # Errors
    /// Fails as [`group::push`] does.
    pub(super) fn push(&mut self, call: Call<'static>) -> Result<()> {
        if self.first.is_none() && self.several.is_empty() {
            self.first = Some(call);
            return Ok(());
        }
        self.several.extend(self.first.take());
        group::push(&mut self.several, call)
    }

    /// Returns all calls.
    pub(super) fn as_mut_slice(&mut self) -> &mut [Call<'static>] {
        match &mut self.first {
            Some(call) => std::slice::from_mut(call),
            None => &mut self.several,
        }
    }
}

impl StartedCalls {
    /// Returns whether they are messages, which are open all at a time.
    fn is_by_messages(&self) -> bool {
        self.calls.first.iter().chain(&self.calls.several).all(|call| call.operation.has_peer())
    }
}

impl Completion {
    /// Tells the program, and then those that wait.
    fn end(self, outcome: Outcome) {
        let Self { done, outcome: place } = self;
        // Its panic was reported on this thread, which has more to do.
        let told = catch_unwind(AssertUnwindSafe(|| done(&outcome)));
        place.get_or_init(|| told.map_or_else(|_| Err(Arc::new(Error::Panicked)), |()| outcome));
    }
}

impl QueueState {
    fn push(&mut self, stage: CallStage) -> u64 {
        let number = self.next;
        self.next += 1;
        self.calls.push_back(QueuedCall { number, stage });
        number
    }

    /// Returns what any thread can do for the call whose turn it is.
    fn turn<R>(&mut self) -> Option<Turn<R>> {
        if self.has_open() {
            return Some(Turn::Messages(self.n_ended));
        }
        let front = self.calls.front_mut().filter(|call| matches!(call.stage, CallStage::Started(_)))?;
        let engine = self.engine.take()?;
        match std::mem::replace(&mut front.stage, CallStage::Running) {
            CallStage::Started(started) => Some(Turn::Run(front.number, engine, started)),
            _ => None,
        }
    }
}

impl<Q: Deref<Target = CallQueue>> Ticket<Q> {
    /// Waits for its turn, and takes the engine.
    pub(super) fn redeem(&mut self) -> &mut Engine {
        let engine = self.engine.take().unwrap_or_else(|| self.await_turn());
        self.engine.insert(engine)
    }

    /// Returns the rank that the call is of.
    pub(super) fn context(&self) -> &Arc<RankContext> {
        self.queue.context()
    }

    fn await_turn(&self) -> Box<Engine> {
        let is_front =
            |state: &QueueState| state.calls.front().is_some_and(|call| call.number == self.number);
        self.queue.work_until(|state| if is_front(state) { state.engine.take() } else { None })
    }
}

impl<Q: Deref<Target = CallQueue>> Drop for Ticket<Q> {
    fn drop(&mut self) {
        if self.engine.is_some() && std::thread::panicking() {
            // A function of the user has panicked within the call: peers must not wait for the rest
            // of it.
            self.queue.context().mark_own_loss();
        }
        let engine = self.engine.take().unwrap_or_else(|| self.await_turn());
        self.queue.state.change(|state| {
            state.engine = Some(engine);
            state.calls.pop_front();
            state.call_worker();
        });
    }
}
