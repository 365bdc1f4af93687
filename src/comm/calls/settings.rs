//! Settings of a communicator's collective calls, and the engine that executes them.

use std::sync::Arc;

use shmccl_plan::ExecutionPlan;

use super::call_queue::CallQueue;
use crate::collective::tuning::{BufferKind, Table};
use crate::collective::{Algorithm, CallSignature, ChannelKind, CustomAlgorithm, Engine, Operation};
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::rank::Rank;

/// A plan that is registered with a communicator: [`Communicator::plan`] has it by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredPlan(pub(super) u32);

impl Communicator {
    /// Chooses `algorithm` for collective operations from now on; `None` chooses the best one for
    /// each call. All ranks have to choose the same.
    ///
    /// A call of an operation that the algorithm cannot do ([`Algorithm::supports`]) returns
    /// [`crate::Error::UnsupportedAlgorithm`] at once. Ranks that have chosen differently get
    /// [`crate::Error::CallMismatch`].
    pub fn set_algorithm(&mut self, algorithm: Option<Algorithm>) {
        self.choice.algorithm = algorithm;
    }

    /// Moves the data of all calls by channels of `kind` from now on: by each rank's own core, as
    /// at the start, or by its proxy. Collective: all ranks choose the same.
    ///
    /// The first choice of proxied channels opens one to each other rank. It takes a place in a
    /// shared fifo of this rank, and the highest free channel between the two.
    ///
    /// # Errors
    /// - [`crate::Error::Exhausted`] or [`crate::Error::Os`] where a channel cannot be opened, and
    ///   [`crate::Error::FailedElsewhere`] on the other ranks. Nothing has changed then, and all
    ///   may try again.
    /// - [`crate::Error::CallMismatch`] when the ranks choose differently.
    /// - Otherwise those of [`Collectives::all_reduce`](crate::comm::Collectives::all_reduce).
    pub fn set_channel_kind(&mut self, kind: ChannelKind) -> Result<()> {
        self.enter(Operation::SetChannelKind)?.choose_channels(kind)?;
        self.choice.channel = kind;
        Ok(())
    }

    /// Does `operation` by an algorithm of the caller's own from now on, where there is more than
    /// one rank and [`Communicator::set_algorithm`] has chosen none. Collective: all ranks register
    /// one of the same name. Communicators that are derived later have it too.
    ///
    /// # Errors
    /// - [`crate::Error::AlgorithmMismatch`] on all ranks when they register different ones:
    ///   nothing has changed then.
    /// - At once [`crate::Error::Unavailable`] for an operation without algorithms, and
    ///   [`crate::Error::InvalidArgument`] for a name that is too long.
    /// - Otherwise those of [`Collectives::all_reduce`](crate::comm::Collectives::all_reduce).
    pub fn register_algorithm(
        &mut self,
        operation: Operation,
        algorithm: Arc<dyn CustomAlgorithm>,
    ) -> Result<()> {
        self.enter(Operation::RegisterAlgorithm)?.register(operation, Some(algorithm))
    }

    /// Does the calls that an execution plan fits by that plan from now on, where neither
    /// [`Communicator::set_algorithm`] nor [`Communicator::register_algorithm`] has named an
    /// algorithm. Collective: all ranks register the same plan.
    ///
    /// A plan fits calls of its collective whose message is a multiple of its chunks' unit and
    /// within its limits. A plan of sums reduces by any built-in operator but averages. Others are
    /// done as before. Of several plans that fit, the first one that was registered counts, unless
    /// the [tuning table](crate::collective::tuning) names plans for the operation. Buffers in the
    /// heap are worked on where they lie, as far as the plan is written for it; others are staged.
    ///
    /// # Errors
    /// - [`crate::Error::Mismatch`] on all ranks when they register different plans.
    /// - [`crate::Error::InvalidArgument`] for a plan of another number of ranks, and
    ///   [`crate::Error::Unavailable`] for one that does no call.
    /// - [`crate::Error::OutOfMemory`] or [`crate::Error::Exhausted`] where there is no room, and
    ///   [`crate::Error::FailedElsewhere`] on the other ranks.
    /// - Otherwise those of [`Collectives::all_reduce`](crate::comm::Collectives::all_reduce).
    pub fn register_plan(&mut self, plan: &Arc<ExecutionPlan>) -> Result<()> {
        self.enter(Operation::RegisterAlgorithm)?.register_plan(plan)
    }

    /// Returns the first plan called `name` that is registered, for
    /// [`Collectives::run_plan`](crate::comm::Collectives::run_plan).
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is none; those of a first call.
    pub fn plan(&mut self, name: &str) -> Result<RegisteredPlan> {
        let found = match self.loan.queue() {
            Some(_) => self.loan.plan(name),
            None => self.engine_for(|| CallSignature::new(Operation::RunPlan))?.selector.named(name),
        };
        let needs = "the name of a plan that is registered";
        found.map(RegisteredPlan).ok_or(Error::Unavailable { operation: "run_plan", needs })
    }

    /// Returns how many calls the first plan called `name` has begun that is registered; `None`
    /// where there is none.
    pub fn planned_calls(&mut self, name: &str) -> Option<u64> {
        self.reclaim_engine();
        self.engine.as_deref()?.planned_calls(name)
    }

    /// Removes the first plan called `name` that was registered. Collective.
    ///
    /// # Errors
    /// - [`crate::Error::Unavailable`] when there is none.
    /// - [`crate::Error::Mismatch`] on all ranks when they remove different ones.
    /// - Otherwise those of [`Collectives::all_reduce`](crate::comm::Collectives::all_reduce).
    pub fn unregister_plan(&mut self, name: &str) -> Result<()> {
        self.enter(Operation::RegisterAlgorithm)?.unregister_plan(name)
    }

    /// Removes the algorithm registered for `operation`. Collective.
    ///
    /// # Errors
    /// Fails as [`Communicator::register_algorithm`] does.
    pub fn unregister_algorithm(&mut self, operation: Operation) -> Result<()> {
        self.enter(Operation::RegisterAlgorithm)?.register(operation, None)
    }

    /// Chooses algorithms by `table` from now on, where [`Communicator::set_algorithm`] has chosen
    /// none. All ranks call it with the same table. The default is the table found at the start of
    /// the program: see [`crate::collective::tuning`].
    ///
    /// # Errors
    /// They end the epoch.
    /// - [`crate::Error::TuningMismatch`] when ranks come with different tables.
    /// - [`crate::Error::CallMismatch`] when some ranks are in another call.
    /// - Otherwise those of a barrier.
    pub fn set_tuning(&mut self, table: Table) -> Result<()> {
        self.context().can_call(Operation::SetTuning.name())?;
        self.reclaim_engine();
        if self.engine.is_none() {
            let call = CallSignature::new(Operation::SetTuning);
            self.engine = Some(Box::new(self.first_engine(call, Ok(table))?));
            return Ok(());
        }
        let oversubscribed = self.context().oversubscribed();
        self.engine()?.tune(Ok(table), oversubscribed)
    }

    /// Returns the algorithm of an operation to which no rank contributes more than `len` bytes,
    /// over direct channels. It leaves aside [`Communicator::set_algorithm`], registered algorithms
    /// and execution plans.
    ///
    /// Custom operators and short floats need an algorithm that [keeps the
    /// order](Algorithm::keeps_rank_order) of the ranks, and get one. The first call involves all
    /// ranks, like that of an operation.
    ///
    /// # Errors
    /// Returns the errors of a first operation: [`crate::Error::Tuning`],
    /// [`crate::Error::TuningMismatch`], [`crate::Error::OutOfMemory`].
    pub fn algorithm_for(
        &mut self,
        operation: Operation,
        buffers: BufferKind,
        len: u64,
    ) -> Result<Algorithm> {
        Ok(self.engine()?.selector.algorithm_for(operation, buffers, len))
    }

    /// Returns whether some rank shares its core with another one, or with the proxy service.
    /// Waiting ranks yield then. The first call involves all ranks, like that of an operation.
    ///
    /// # Errors
    /// Fails as [`Communicator::algorithm_for`] does.
    pub fn is_oversubscribed(&mut self) -> Result<bool> {
        Ok(self.engine()?.selector.tuning().oversubscribed)
    }

    /// Returns when all ranks have called it. Acquires everything that any of them did before.
    ///
    /// # Errors
    /// - [`crate::Error::Timeout`] names a missing rank.
    /// - [`crate::Error::PeerLost`], [`crate::Error::Revoked`].
    /// - [`crate::Error::CallMismatch`] when ranks are in another call. It always ends the epoch;
    ///   the others do so in a derived communicator.
    #[inline]
    pub fn barrier(&mut self) -> Result<()> {
        self.reclaim_engine();
        self.context().enter(Operation::Barrier.name())?;
        self.barrier_within()
    }

    /// Meets all ranks within another call.
    #[inline]
    pub(in crate::comm) fn barrier_within(&mut self) -> Result<()> {
        match &mut self.job_barrier {
            Some(job_barrier) => job_barrier.meet(Operation::Barrier, self.engine.as_deref()),
            None => self.engine()?.barrier(Operation::Barrier),
        }
    }

    /// Prepares the memory of collective calls, if no call did before. Collective. The first call
    /// of a job's first communicator does it as well.
    ///
    /// Where the first messages concern only some ranks, all ranks call this first: see
    /// [`semantics`](crate::collective::semantics#the-first-call).
    ///
    /// # Errors
    /// Fails as [`Collectives::all_reduce`](crate::comm::Collectives::all_reduce) does.
    pub fn prepare(&mut self) -> Result<()> {
        self.engine().map(drop)
    }

    /// Begins the call `operation` of all members, and returns the engine for it.
    pub(in crate::comm) fn enter(&mut self, operation: Operation) -> Result<&mut Engine> {
        self.context().enter(operation.name())?;
        self.engine_for(|| CallSignature::new(operation))
    }

    /// Tells all members `words` within `operation`, and returns the words of each.
    pub(in crate::comm) fn exchange(&mut self, operation: Operation, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        let told = self.engine()?.exchange(operation, words)?;
        // Members that all come at once after the end of the epoch do not notice it by themselves.
        self.context().check(operation.name())?;
        Ok(told)
    }

    /// Returns the engine that executes the collective calls of this communicator.
    #[inline]
    pub(in crate::comm) fn engine(&mut self) -> Result<&mut Engine> {
        self.engine_for(|| CallSignature::new(Operation::Prepare))
    }

    /// Returns the engine for `call`. The first call makes the engine, and observers see this rank
    /// in `call` meanwhile.
    #[inline]
    pub(super) fn engine_for(&mut self, call: impl FnOnce() -> CallSignature) -> Result<&mut Engine> {
        if self.engine.is_none() {
            self.make_engine(call())?;
        }
        Ok(self.engine.as_mut().expect("just made"))
    }

    #[cold]
    fn make_engine(&mut self, call: CallSignature) -> Result<()> {
        self.reclaim_engine();
        if self.engine.is_none() {
            self.engine = Some(Box::new(self.first_engine(call, Table::load())?));
        }
        Ok(())
    }

    /// Does `run`, in which members come together several times, as one operation.
    pub(in crate::comm) fn as_one<R>(
        &mut self,
        operation: Operation,
        run: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        self.enter(operation)?.members.board.report_call(CallSignature::new(operation));
        let done = run(self);
        if let Some(engine) = &mut self.engine {
            engine.members.board.report_end_of_several(done.is_ok());
        }
        done
    }

    /// Returns the queue of calls that are executed later, with the engine in it. `call` is the one
    /// that it is for.
    pub(super) fn call_queue(&mut self, call: impl FnOnce() -> CallSignature) -> Result<Arc<CallQueue>> {
        if let Some(queue) = self.loan.queue() {
            return Ok(Arc::clone(queue));
        }
        self.engine_for(call)?;
        let engine = self.engine.take().expect("it was there a moment ago");
        Ok(self.loan.begin(&self.membership.context, engine))
    }

    /// Does what is in that queue, or waits until it is done, and takes the engine back. Not in a
    /// child of a fork, where nobody does it.
    #[inline]
    pub(in crate::comm) fn reclaim_engine(&mut self) {
        if self.engine.is_none() && self.context().here("call").is_ok() {
            self.engine = self.loan.end();
        }
    }
}

/// Checks that every rank has told `mine`.
///
/// # Errors
/// [`Error::Mismatch`].
pub(in crate::comm) fn all_same(
    what: &'static str,
    mine: u64,
    mut told: impl Iterator<Item = (Rank, u64)>,
) -> Result<()> {
    match told.find(|(_, theirs)| *theirs != mine) {
        Some((rank, theirs)) => Err(Error::Mismatch { what, mine, rank, theirs }),
        None => Ok(()),
    }
}
