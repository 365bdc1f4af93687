//! Calls of a communicator that are enqueued instead of executed at once.

use std::sync::Arc;

use super::Stream;
use crate::channel::RankContext;
use crate::collective::group::{self, GroupShare};
use crate::collective::{Call, Choice, Operation, Request};
use crate::comm::Communicator;
use crate::comm::calls::call_queue::{Ticket, enter};
use crate::comm::calls::submit::{Caller, Submit};
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

    fn take(&mut self, request: Request<'static, '_>) -> Result<()> {
        let choice = self.comm.choice;
        let mut call = request.check(self.comm.rank, self.comm.n_ranks())?;
        call.check_choice(choice)?;
        call.check_peer(self.comm.rank.index())?;
        self.stream.check_room()?;
        let mut ticket = self.comm.call_queue(|| call.signature().with_choice(choice))?.ticket();
        let (operation, context) = (call.operation.name(), Arc::clone(ticket.context()));
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
            let ticket = comm.call_queue(|| group::signature(&calls, choice))?.ticket();
            Ok(Due { ticket, choice, calls })
        };
        let mut comms = comms.map(due).collect::<Result<Vec<_>>>()?;
        let Some(first) = comms.first() else { return Ok(()) };
        let context = Arc::clone(first.ticket.context());
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
