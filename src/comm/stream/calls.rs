//! Calls of a communicator that are enqueued instead of executed at once.

use std::sync::Arc;

use super::Stream;
use super::worker::Monitor;
use crate::channel::RankContext;
use crate::collective::group::{self, GroupShare};
use crate::collective::{Call, CallSignature, Choice, Engine, Operation, Request};
use crate::comm::Communicator;
use crate::comm::submit::{Caller, Submit};
use crate::error::Result;

/// A communicator whose calls a stream takes: see [`Stream::on`].
#[derive(Debug)]
pub struct OnStream<'a> {
    stream: &'a Stream,
    comm: &'a mut Communicator,
}

impl Stream {
    /// Takes the calls of `comm`: they are enqueued, and checked as far as one rank can.
    ///
    /// Calls of one communicator run in the order in which they were enqueued, on whatever streams.
    /// A call that it executes at once waits for all of them. They use the communicator's settings
    /// of now.
    ///
    /// The first call of a communicator that was not derived waits until the other ranks come to
    /// theirs. A thread that enqueues calls of several ranks lets each of them
    /// [prepare](Communicator::prepare) before, in threads.
    ///
    /// Buffers are [`DeviceBuffer`](crate::heap::DeviceBuffer)s, or slices that are `'static`,
    /// because the call outlives a borrow. Other ordinary memory goes through a device buffer, by
    /// [`Stream::copy_host_to_device`] and [`Stream::copy_device_to_host`].
    ///
    /// A barrier is no operation of a stream. An [all-reduce](crate::Collectives::all_reduce) of
    /// one element is one, and orders as a barrier does. [`Communicator::barrier`] itself is
    /// executed at once, behind all enqueued calls of `comm`.
    pub fn on<'a>(&'a self, comm: &'a mut Communicator) -> OnStream<'a> {
        OnStream { stream: self, comm }
    }
}

/// Buffers are in the symmetric heap, or live for ever.
impl Submit<'static> for OnStream<'_> {
    fn caller(&self) -> Caller {
        self.comm.caller()
    }

    fn submit(&mut self, request: Request<'static, '_>) -> Result<()> {
        let choice = self.comm.choice;
        let mut call = request.check(self.comm.rank, self.comm.n_ranks())?;
        call.check_choice(choice)?;
        call.check_peer(self.comm.rank.index())?;
        self.stream.check_room()?;
        let mut ticket = self.comm.ticket(|| call.signature().with_choice(choice))?;
        let (operation, context) = (call.operation.name(), Arc::clone(&ticket.queue.context));
        self.stream.enqueue_call(operation, &context, move |context| {
            let engine = ticket.redeem();
            enter(context, operation)?;
            engine.run(&mut call, choice)
        })
    }
}

/// The calls of one communicator in a group, and its right to make them.
struct Due {
    ticket: Ticket,
    choice: Choice,
    calls: Vec<Call<'static>>,
}

impl Due {
    /// Waits for its turn, and returns the calls with their engine.
    fn share(&mut self) -> GroupShare<'_, 'static> {
        GroupShare {
            engine: self.ticket.redeem(),
            choice: self.choice,
            calls: std::mem::take(&mut self.calls),
        }
    }
}

/// Begins `operation` now that its turn has come. Where it cannot, peers are not to wait for it.
fn enter(context: &RankContext, operation: &'static str) -> Result<()> {
    context.enter(operation).inspect_err(|_| context.abort())
}

impl Stream {
    /// Checks that one more operation can wait.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`].
    pub(in crate::comm) fn check_room(&self) -> Result<()> {
        self.queue.check_room()
    }

    /// Enqueues the calls of `comms`, each of which has some, as one operation.
    pub(in crate::comm) fn enqueue_group<'c>(
        &self,
        comms: impl Iterator<Item = (&'c mut Communicator, Vec<Call<'static>>)>,
    ) -> Result<()> {
        let due = |(comm, calls): (&mut Communicator, Vec<_>)| {
            let choice = comm.choice;
            let ticket = comm.ticket(|| group::signature(&calls, choice))?;
            Ok(Due { ticket, choice, calls })
        };
        let mut comms = comms.map(due).collect::<Result<Vec<_>>>()?;
        let Some(first) = comms.first() else { return Ok(()) };
        let context = Arc::clone(&first.ticket.queue.context);
        let operation = Operation::Group.name();
        self.enqueue_call(operation, &context, move |context| {
            let mut shares: Vec<_> = comms.iter_mut().map(Due::share).collect();
            enter(context, operation)?;
            group::run(&mut shares)
        })
    }

    /// Enqueues `run`. If it is skipped, the epoch ends: peers would take this rank's next call for
    /// it.
    fn enqueue_call(
        &self,
        operation: &'static str,
        context: &Arc<RankContext>,
        run: impl FnOnce(&RankContext) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let own = Arc::clone(context);
        self.push(operation, context, move |failure| match failure {
            None => run(&own),
            Some(_) => {
                own.abort();
                Ok(())
            }
        })
    }
}

impl Communicator {
    /// Returns the ticket of `call`, which is enqueued now. The first one lends the engine.
    fn ticket(&mut self, call: impl FnOnce() -> CallSignature) -> Result<Ticket> {
        if let Some(ticket) = self.loan.ticket() {
            return Ok(ticket);
        }
        self.engine_for(call)?;
        let engine = self.engine.take().expect("it was there a moment ago");
        self.loan = EngineLoan::begin(self.context(), engine);
        Ok(self.loan.ticket().expect("lent just now"))
    }
}

/// An engine that streams have the use of, and the calls that wait for it.
type CallQueue = Monitor<CallQueueState>;

#[derive(Debug)]
struct CallQueueState {
    /// Not there while a call is executed, and after the loan.
    engine: Option<Box<Engine>>,
    /// How many tickets were issued.
    issued: u64,
    /// How many of them are done.
    done: u64,
}

/// The engine of a communicator, while streams may have it.
///
/// Enqueued calls of one communicator run in order, whatever streams they are on. Each call has a
/// ticket, numbered in the order of enqueuing, and the worker of its stream takes the engine when
/// that number comes up. The next blocking call waits until the last ticket is done and takes the
/// engine back, so blocking calls see no queue otherwise.
///
/// A ticket waits only for tickets of earlier calls, and so does everything else that a stream
/// waits for. So there is no circle.
#[derive(Debug, Default)]
pub(in crate::comm) struct EngineLoan(Option<Arc<CallQueue>>);

/// The right of one call to the engine, at its turn. It passes on when it is dropped, used or not:
/// a call that was never enqueued does not count.
#[derive(Debug)]
pub(super) struct Ticket {
    queue: Arc<CallQueue>,
    number: u64,
    engine: Option<Box<Engine>>,
}

impl EngineLoan {
    /// Lends `engine`.
    pub(super) fn begin(context: &Arc<RankContext>, engine: Box<Engine>) -> Self {
        let state = CallQueueState { engine: Some(engine), issued: 0, done: 0 };
        Self(Some(Arc::new(Monitor::new(context, state))))
    }

    /// Returns the ticket of the next call, or `None` when the engine is not lent.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        let queue = Arc::clone(self.0.as_ref()?);
        let number = queue.change(|state| {
            state.issued += 1;
            state.issued - 1
        });
        Some(Ticket { queue, number, engine: None })
    }

    /// Waits until all calls are done, and returns the engine, if it was lent.
    #[inline]
    pub(in crate::comm) fn end(&mut self) -> Option<Box<Engine>> {
        self.0.take().map(|queue| queue.close())
    }
}

/// Waits like [`EngineLoan::end`]. While it unwinds it ends the epoch first, because peers may
/// never come to those calls.
impl Drop for EngineLoan {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        if std::thread::panicking() && !queue.look(CallQueueState::is_done) {
            queue.context.mark_own_loss();
        }
        drop(queue.close());
    }
}

impl CallQueue {
    /// Waits until all calls are done, and takes the engine back.
    #[cold]
    fn close(&self) -> Box<Engine> {
        self.wait(|state| if state.is_done() { state.engine.take() } else { None })
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

    fn await_turn(&self) -> Box<Engine> {
        self.queue.wait(|state| if state.done == self.number { state.engine.take() } else { None })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.engine.is_some() && std::thread::panicking() {
            // A function of the user has panicked within the call: peers must not wait for the rest
            // of it.
            self.queue.context.mark_own_loss();
        }
        let engine = self.engine.take().unwrap_or_else(|| self.await_turn());
        self.queue.change(|state| {
            state.engine = Some(engine);
            state.done += 1;
        });
    }
}
