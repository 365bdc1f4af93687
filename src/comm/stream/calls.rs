//! Calls of a communicator that are enqueued instead of executed at once.

use std::sync::Arc;

use super::Stream;
use super::line::{Loan, Ticket};
use crate::collective::group::{self, Share};
use crate::collective::{Call, Engine, Operation, Summary};
use crate::comm::Communicator;
use crate::comm::submit::{Standing, Submit};
use crate::error::Result;

/// A communicator whose calls a stream takes: see [`Stream::on`].
#[derive(Debug)]
pub struct OnStream<'a> {
    stream: &'a Stream,
    comm: &'a mut Communicator,
}

impl Stream {
    /// Takes the calls of `comm`: they are enqueued, and checked as far as they can be alone.
    ///
    /// Calls of one communicator are executed in the order in which they were enqueued, whatever streams they are on, and a call
    /// that it executes at once waits for all of them. They are done in the manner that the communicator has now. The first call of
    /// a communicator that was not derived from another waits for the other ranks to come to theirs: a thread that enqueues calls of
    /// several ranks has each of them [prepare](Communicator::prepare) before, in threads.
    pub fn on<'a>(&'a self, comm: &'a mut Communicator) -> OnStream<'a> {
        OnStream { stream: self, comm }
    }
}

/// Buffers are in the symmetric heap, or live for ever.
impl Submit<'static> for OnStream<'_> {
    fn standing(&self) -> Standing {
        self.comm.standing()
    }

    fn submit(&mut self, mut call: Call<'static>) -> Result<()> {
        let manner = self.comm.manner;
        call.check_manner(manner)?;
        call.check_peer(self.comm.rank.index())?;
        self.stream.queue.check_room()?;
        let ticket = self.comm.ticket(|| call.summary().in_manner(manner))?;
        let operation = call.operation.name();
        self.stream.enqueue_call(operation, ticket, move |engine| engine.run(&mut call, manner))
    }
}

impl Stream {
    /// Enqueues the call that has `ticket`. Where it is skipped, the epoch ends: peers would take this rank's next call for it.
    fn enqueue_call(
        &self,
        operation: &'static str,
        ticket: Ticket,
        run: impl FnOnce(&mut Engine) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let fabric = Arc::clone(ticket.fabric());
        self.push(operation, &fabric, move |failure| match failure {
            None => ticket.redeem(operation, run),
            Some(_) => {
                ticket.forfeit();
                Ok(())
            }
        })
    }
}

impl Communicator {
    /// The ticket of `call`, which is enqueued now; lends the engine with the first.
    fn ticket(&mut self, call: impl FnOnce() -> Summary) -> Result<Ticket> {
        if let Some(ticket) = self.loan.ticket() {
            return Ok(ticket);
        }
        self.engine_for(call)?;
        let engine = self.engine.take().expect("it was there a moment ago");
        self.loan = Loan::begin(self.fabric(), engine);
        Ok(self.loan.ticket().expect("lent just now"))
    }
}

/// Calls of a communicator that a stream executes together: see [`Stream::group`].
#[derive(Debug)]
pub struct StreamGroup<'a> {
    on: OnStream<'a>,
    calls: Vec<Call<'static>>,
}

impl Stream {
    /// Starts a group of calls of `comm`, by the rules of [`Group`](crate::Group). Its end enqueues them as one operation. Sends and
    /// receives that depend on each other on two ranks have to be in one group: by themselves they are executed in order.
    pub fn group<'a>(&'a self, comm: &'a mut Communicator) -> StreamGroup<'a> {
        StreamGroup { on: self.on(comm), calls: Vec::new() }
    }
}

impl StreamGroup<'_> {
    /// Enqueues the calls, as one operation.
    ///
    /// # Errors
    /// [`crate::Error::StreamFailed`]; [`crate::Error::Exhausted`]; those of the first call of a communicator.
    pub fn end(self) -> Result<()> {
        let Self { on: OnStream { stream, comm }, calls } = self;
        stream.queue.check_room()?;
        let manner = comm.manner;
        let ticket = comm.ticket(|| group::summary(&calls, manner))?;
        let run = move |engine: &mut Engine| group::run(&mut [Share { engine, manner, calls }]);
        stream.enqueue_call(Operation::Group.name(), ticket, run)
    }
}

impl Submit<'static> for StreamGroup<'_> {
    fn standing(&self) -> Standing {
        self.on.standing()
    }

    fn submit(&mut self, call: Call<'static>) -> Result<()> {
        call.check_manner(self.on.comm.manner)?;
        group::put(&mut self.calls, call)
    }
}
