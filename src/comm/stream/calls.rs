//! Calls of a communicator that are enqueued instead of executed at once.

use std::sync::Arc;

use super::Stream;
use super::line::{Loan, Ticket};
use crate::channel::Fabric;
use crate::collective::group::{self, GroupShare};
use crate::collective::{Call, CallSignature, Choice, Operation};
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
    ///
    /// Buffers are [`DeviceBuffer`](crate::heap::DeviceBuffer)s, or slices that are `'static`: the call outlives what the caller could
    /// lend. Other ordinary memory goes through a device buffer, by [`Stream::copy_host_to_device`] and [`Stream::copy_device_to_host`].
    ///
    /// A barrier is no operation of a stream. An [all-reduce](crate::Collectives::all_reduce) of one element is one, and orders what the
    /// ranks did as a barrier does. [`Communicator::barrier`] itself is executed at once, behind all calls of `comm` that are enqueued.
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
        let choice = self.comm.choice;
        call.check_choice(choice)?;
        call.check_peer(self.comm.rank.index())?;
        self.stream.check_room()?;
        let mut ticket = self.comm.ticket(|| call.signature().with_choice(choice))?;
        let (operation, fabric) = (call.operation.name(), Arc::clone(ticket.fabric()));
        self.stream.enqueue_call(operation, &fabric, move |fabric| {
            let engine = ticket.redeem();
            enter(fabric, operation)?;
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
    /// What executes the calls, when its turn has come.
    fn share(&mut self) -> GroupShare<'_, 'static> {
        GroupShare {
            engine: self.ticket.redeem(),
            choice: self.choice,
            calls: std::mem::take(&mut self.calls),
        }
    }
}

/// Begins `operation` now that its turn has come. Where it cannot, peers are not to wait for it.
fn enter(fabric: &Fabric, operation: &'static str) -> Result<()> {
    fabric.enter(operation).inspect_err(|_| fabric.abort())
}

impl Stream {
    /// Whether one more operation can wait.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`].
    pub(in crate::comm) fn check_room(&self) -> Result<()> {
        self.queue.check_room()
    }

    /// Enqueues the calls of `parties`, each of which has some, as one operation.
    pub(in crate::comm) fn enqueue_group<'c>(
        &self,
        parties: impl Iterator<Item = (&'c mut Communicator, Vec<Call<'static>>)>,
    ) -> Result<()> {
        let due = |(comm, calls): (&mut Communicator, Vec<_>)| {
            let choice = comm.choice;
            let ticket = comm.ticket(|| group::signature(&calls, choice))?;
            Ok(Due { ticket, choice, calls })
        };
        let mut parties = parties.map(due).collect::<Result<Vec<_>>>()?;
        let Some(first) = parties.first() else { return Ok(()) };
        let fabric = Arc::clone(first.ticket.fabric());
        let operation = Operation::Group.name();
        self.enqueue_call(operation, &fabric, move |fabric| {
            let mut shares: Vec<_> = parties.iter_mut().map(Due::share).collect();
            enter(fabric, operation)?;
            group::run(&mut shares)
        })
    }

    /// Enqueues what `run` does. Where it is skipped, the epoch ends: peers would take this rank's next call for it.
    fn enqueue_call(
        &self,
        operation: &'static str,
        fabric: &Arc<Fabric>,
        run: impl FnOnce(&Fabric) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let own = Arc::clone(fabric);
        self.push(operation, fabric, move |failure| match failure {
            None => run(&own),
            Some(_) => {
                own.abort();
                Ok(())
            }
        })
    }
}

impl Communicator {
    /// The ticket of `call`, which is enqueued now; lends the engine with the first.
    fn ticket(&mut self, call: impl FnOnce() -> CallSignature) -> Result<Ticket> {
        if let Some(ticket) = self.loan.ticket() {
            return Ok(ticket);
        }
        self.engine_for(call)?;
        let engine = self.engine.take().expect("it was there a moment ago");
        self.loan = Loan::begin(self.fabric(), engine);
        Ok(self.loan.ticket().expect("lent just now"))
    }
}
