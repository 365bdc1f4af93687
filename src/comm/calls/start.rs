//! Operations that are started now and waited for later, on memory of any kind: the non-blocking
//! calls of MPI, and the asynchronous ones of PyTorch.
//!
//! [`Communicator::start`] returns a [`Work`], by which the program looks, waits, or does neither.
//!
//! # What runs where
//! Nothing that waits begins in [`Communicator::start`], but for [the first
//! call](crate::collective::semantics#the-first-call) of a job. What was started on one
//! communicator takes its turns in that order:
//!
//! - **Calls of all ranks** run one after the other. [`Work::wait`] executes the one that it is
//!   for, and all before it, on the waiting thread, unless another thread has begun them. So a
//!   start with a wait behind it costs little more than the call.
//! - **Messages** that follow each other in the order move together, like those of a
//!   [group](crate::Group): in whoever starts, looks or waits. They may be done in any order.
//! - **What nobody waits for** is done by a thread of the communicator, which the first start
//!   makes. It takes up an operation within a millisecond or two: at once a long one, and one that
//!   was looked at. It sleeps while there is nothing for it.
//!
//! A call that the communicator executes at once, and [`Communicator::finalize`], come behind
//! everything that was started, and execute what is left of it. If nothing is left they cost what
//! they cost otherwise.
//!
//! # Messages beside calls of all ranks
//! The order of a communicator holds for both kinds. A message that must not wait for such calls
//! goes through a communicator of its own, from [`Communicator::duplicate`]. Then this ends:
//!
//! | rank 0 | rank 1 |
//! |---|---|
//! | start an all_reduce, send, wait | receive, all_reduce |
//!
//! # Memory
//! Operands are in the heap or `'static`. Whatever keeps them alive belongs to the function that is
//! called at the end of the operation.
//!
//! # Failure
//! A failure while data move ends the epoch, as with other calls. Then whatever was started ends,
//! with an error of its own each. The deadline of a message counts while somebody waits for it. A
//! communicator that is dropped does what was started before, but a receive of which nothing has
//! come fails.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::call_queue::{CallList, CallQueue, Completion, Outcome, StartedCalls, operation_of};
use super::submit::{Caller, Submit};
use crate::collective::{MemberMemory, Request, group};
use crate::comm::Communicator;
use crate::error::{Error, Result};

/// An operation that was started: the `Work` of PyTorch, and the request of MPI.
///
/// Clones are handles of the same operation. Dropping them all detaches it: it still runs.
#[derive(Clone, Debug)]
pub struct Work {
    operation: &'static str,
    queue: Arc<CallQueue>,
    outcome: Arc<OnceLock<Outcome>>,
}

/// Takes the calls of an operation: see [`Communicator::start`].
#[derive(Debug)]
pub struct Starting {
    caller: Caller,
    started: Box<StartedCalls>,
}

/// Operands are in the heap, or live for ever.
impl Submit<'static> for Starting {
    fn caller(&self) -> Caller {
        self.caller
    }

    fn take(&mut self, request: Request<'static, '_>) -> Result<()> {
        let call = request.check(self.caller.rank, self.caller.n_ranks)?;
        call.check_choice(self.started.choice)?;
        self.started.calls.push(call)
    }
}

impl Communicator {
    /// Starts the calls that `put` makes, as one operation: several are together, as in a
    /// [group](crate::Group).
    ///
    /// `done` is called once when the operation has ended, however that was, by the thread that
    /// ended it, and before any wait for it returns. What it owns, such as the memory of operands,
    /// is kept until then. It must neither wait for what was started, nor drop this communicator.
    ///
    /// # Errors
    /// Nothing was started then, and `done` was dropped.
    /// - Those of `put`, of which no call was started.
    /// - [`Error::InvalidArgument`] for a message to oneself that the same start does not receive,
    ///   and for a collective call behind a message with which it shares memory.
    /// - [`Error::Exhausted`] when 65,536 operations are not done.
    /// - Those of starting a thread, and of the first call of a communicator.
    pub fn start(
        &mut self,
        done: impl FnOnce(&Result<(), Arc<Error>>) + Send + 'static,
        put: impl FnOnce(&mut Starting) -> Result<()>,
    ) -> Result<Work> {
        let completion = Completion { done: Box::new(done), outcome: Arc::default() };
        let started = StartedCalls { calls: CallList::default(), choice: self.choice, completion };
        let mut starting = Starting { caller: self.caller(), started: Box::new(started) };
        put(&mut starting)?;
        self.start_calls(starting.started)
    }

    fn start_calls(&mut self, mut started: Box<StartedCalls>) -> Result<Work> {
        let (choice, calls) = (started.choice, started.calls.as_mut_slice());
        let operation = operation_of(calls);
        self.context().here(operation)?;
        group::check_own(calls, self.rank.index())?;
        let memory = MemberMemory { heap: self.heap().view().start(), n_members: self.n_ranks() as usize };
        group::check_messages(calls, memory)?;
        let queue = self.call_queue(|| group::signature(calls, choice))?;
        let outcome = Arc::clone(&started.completion.outcome);
        queue.start(started)?;
        Ok(Work { operation, queue, outcome })
    }
}

impl Work {
    /// Returns whether the operation has ended. It looks for messages that have come, and never
    /// waits. What had not ended at a fork never does in the child.
    #[must_use]
    pub fn is_done(&self) -> bool {
        if self.outcome.get().is_none() && self.here().is_ok() {
            self.queue.poll();
        }
        self.outcome.get().is_some()
    }

    /// Returns how the operation has ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), Arc<Error>>> {
        self.outcome.get().cloned()
    }

    /// Waits until the operation has ended. It executes the operation and those before it, unless
    /// another thread does.
    ///
    /// # Errors
    /// - [`Error::WorkFailed`] when the operation has failed: also by [`Error::Cancelled`], if the
    ///   program [cancels](crate::sync::interrupt) a call of all ranks that this thread executes.
    /// - [`Error::Cancelled`] when the program cancels the wait for another thread, or for a
    ///   message. The operation goes on.
    /// - [`Error::Unavailable`] in a child that the rank has forked while the operation went on.
    pub fn wait(&self) -> Result<()> {
        let outcome = match self.outcome.get() {
            Some(outcome) => outcome.clone(),
            None => {
                self.here()?;
                let waited = self.queue.await_outcome(&self.outcome);
                waited.map_err(|_| self.cancelled())?
            }
        };
        self.result(outcome)
    }

    /// Waits for `timeout` at most, and returns whether the operation has ended. It is left to the
    /// thread of the communicator, but for messages.
    ///
    /// # Errors
    /// Fails as [`Work::wait`] does.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        let begun = Instant::now();
        loop {
            if let Some(outcome) = self.outcome() {
                return self.result(outcome).map(|()| true);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.here()?;
            let waited = self.queue.await_change(left, || self.outcome.get().is_some());
            waited.map_err(|_| self.cancelled())?;
        }
    }

    fn here(&self) -> Result<()> {
        self.queue.context().here(self.operation)
    }

    fn cancelled(&self) -> Error {
        Error::Cancelled { operation: self.operation }
    }

    fn result(&self, outcome: Outcome) -> Result<()> {
        outcome.map_err(|source| Error::WorkFailed { operation: self.operation, source })
    }
}
