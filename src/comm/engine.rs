//! What runs the collective calls of a communicator, and how they are done.

use std::sync::Arc;

use super::Communicator;
use super::submit::{Caller, Submit};
use crate::collective::tuning::{BufferKind, Table};
use crate::collective::{
    Algorithm, Arguments, Call, ChannelKind, CustomAlgorithm, Engine, Operation, Repeat, Summary,
};
use crate::error::Result;

impl Communicator {
    /// Has collective operations done by `algorithm` from now on; by `None`, as suits each call. All ranks have to choose the same.
    ///
    /// A call of an operation that the algorithm cannot do ([`Algorithm::supports`]) returns [`crate::Error::InvalidArgument`] at once, and
    /// one in which ranks have chosen differently [`crate::Error::CallMismatch`].
    pub fn set_algorithm(&mut self, algorithm: Option<Algorithm>) {
        self.manner.algorithm = algorithm;
    }

    /// Has the data of all calls moved by channels of `kind` from now on: by each rank's own core, as at the start, or by its
    /// proxy. Collective: all ranks choose the same.
    ///
    /// Choosing proxied channels for the first time opens one to each other rank, which takes a place in a fifo of this rank that
    /// channels share, and the highest free channel between the two.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`] or [`crate::Error::Os`] where a channel cannot be opened, and [`crate::Error::FailedElsewhere`]
    /// on the other ranks: nothing has changed then, and all may try again. [`crate::Error::CallMismatch`] when the ranks choose
    /// differently; otherwise those of [`Collectives::all_reduce`](super::Collectives::all_reduce).
    pub fn set_channel_kind(&mut self, kind: ChannelKind) -> Result<()> {
        self.fabric().enter(Operation::SetChannelKind.name())?;
        self.engine_for(|| Summary::new(Operation::SetChannelKind))?.choose_channels(kind)?;
        self.manner.channel = kind;
        Ok(())
    }

    /// Has `operation` done by an algorithm of the caller's own from now on, wherever [`Communicator::set_algorithm`] has not
    /// chosen another and there is more than one rank. Collective: all ranks register one of the same name. Communicators that
    /// are derived from this one later have it too.
    ///
    /// # Errors
    /// [`crate::Error::AlgorithmMismatch`] when ranks register different ones, on all of them: nothing has changed then.
    /// [`crate::Error::InvalidArgument`] for an operation that has no algorithms, and for a name that is too long, at once. Otherwise
    /// those of [`Collectives::all_reduce`](super::Collectives::all_reduce).
    pub fn register_algorithm(
        &mut self,
        operation: Operation,
        algorithm: Arc<dyn CustomAlgorithm>,
    ) -> Result<()> {
        self.fabric().enter(Operation::RegisterAlgorithm.name())?;
        self.engine_for(|| Summary::new(Operation::RegisterAlgorithm))?.register(operation, Some(algorithm))
    }

    /// Has `operation` done as if nothing had been registered for it. Collective.
    ///
    /// # Errors
    /// Those of [`Communicator::register_algorithm`].
    pub fn unregister_algorithm(&mut self, operation: Operation) -> Result<()> {
        self.fabric().enter(Operation::RegisterAlgorithm.name())?;
        self.engine_for(|| Summary::new(Operation::RegisterAlgorithm))?.register(operation, None)
    }

    /// Chooses algorithms by `table` from now on, where [`Communicator::set_algorithm`] has not. Called by all ranks, with the same
    /// table. Without it, they go by the one that was found as the program started: see [`crate::collective::tuning`].
    ///
    /// # Errors
    /// [`crate::Error::TuningMismatch`] when ranks come with different tables, [`crate::Error::CallMismatch`] when some are in another
    /// call; otherwise those of a barrier. They end the epoch.
    pub fn set_tuning(&mut self, table: Table) -> Result<()> {
        self.fabric().can_call(Operation::SetTuning.name())?;
        self.reclaim_engine();
        if self.engine.is_none() {
            let call = Summary::new(Operation::SetTuning);
            self.engine = Some(Box::new(self.first_engine(call, Ok(table))?));
            return Ok(());
        }
        let crowded = self.fabric().crowded();
        self.engine()?.tune(Ok(table), crowded)
    }

    /// What does an operation to which no rank contributes more than `len` bytes, over direct channels, unless
    /// [`Communicator::set_algorithm`] has chosen or an algorithm is registered; reductions by custom operators and of short floats are
    /// done by what [keeps the order](Algorithm::keeps_rank_order) of the ranks all the same. Where no table says it, an all-reduce of 4 to
    /// 8 KiB between two ranks with a core each is tried out by two_shot, too, and goes as is quicker. The first call is one of all ranks, like that of an operation.
    ///
    /// # Errors
    /// Those of a first operation: [`crate::Error::Tuning`], [`crate::Error::TuningMismatch`], [`crate::Error::OutOfMemory`].
    pub fn algorithm_for(
        &mut self,
        operation: Operation,
        buffers: BufferKind,
        len: u64,
    ) -> Result<Algorithm> {
        Ok(self.engine()?.choice(operation, buffers, len))
    }

    /// Whether some rank shares its core with another, or with the proxy service: those that wait then give way. The first call is
    /// one of all ranks, like that of an operation.
    ///
    /// # Errors
    /// Those of [`Communicator::algorithm_for`].
    pub fn is_crowded(&mut self) -> Result<bool> {
        Ok(self.engine()?.tuning().crowded)
    }

    /// Returns when all ranks have called it. Acquires everything that any of them did before.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] naming a rank that is missing, [`crate::Error::PeerLost`], [`crate::Error::Revoked`], each of which ends the epoch
    /// in a communicator that was derived from another; [`crate::Error::CallMismatch`], which always does, when ranks are in another call instead.
    #[inline]
    pub fn barrier(&mut self) -> Result<()> {
        self.reclaim_engine();
        self.fabric().enter(Operation::Barrier.name())?;
        self.come_together()
    }

    /// The same within another call.
    #[inline]
    pub(super) fn come_together(&mut self) -> Result<()> {
        match &mut self.job_barrier {
            Some(job_barrier) => job_barrier.meet(Operation::Barrier, self.engine.as_deref()),
            None => self.engine()?.barrier(Operation::Barrier),
        }
    }

    /// Prepares what calls need, if none was made yet. Collective; the first call of a job's first communicator does it anyhow.
    ///
    /// That goes for a message, too, and for a call that is enqueued: the first [`Collectives::send`](super::Collectives::send) of a job
    /// waits until all ranks have come to a first call or message of theirs, which need not be the same. Where the first messages
    /// concern some ranks only, all of them call this before.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`](super::Collectives::all_reduce).
    pub fn prepare(&mut self) -> Result<()> {
        self.engine().map(drop)
    }

    /// What runs the collectives of this communicator.
    #[inline]
    pub(super) fn engine(&mut self) -> Result<&mut Engine> {
        self.engine_for(|| Summary::new(Operation::Prepare))
    }

    /// The same for `call` of the caller's: the first one makes it, and onlookers are told that this rank is in that call meanwhile.
    #[inline]
    pub(super) fn engine_for(&mut self, call: impl FnOnce() -> Summary) -> Result<&mut Engine> {
        if self.engine.is_none() {
            self.make_engine(call())?;
        }
        Ok(self.engine.as_mut().expect("just made"))
    }

    #[cold]
    fn make_engine(&mut self, call: Summary) -> Result<()> {
        self.reclaim_engine();
        if self.engine.is_none() {
            self.engine = Some(Box::new(self.first_engine(call, Table::load())?));
        }
        Ok(())
    }

    /// Does `run`, in which members come together several times, as one operation.
    pub(super) fn as_one<R>(
        &mut self,
        operation: Operation,
        run: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        let call = Summary::new(operation);
        self.engine_for(|| call)?.begin_several(call);
        let done = run(self);
        if let Some(engine) = &mut self.engine {
            engine.end_several(done.is_ok());
        }
        done
    }

    /// Waits until what was enqueued is done, and takes the engine back from the streams, if they have it.
    #[inline]
    pub(super) fn reclaim_engine(&mut self) {
        if self.engine.is_none() {
            self.engine = self.loan.end();
        }
    }
}

/// A call of a communicator is executed at once.
impl<'a> Submit<'a> for Communicator {
    #[inline]
    fn caller(&self) -> Caller {
        Caller { rank: self.rank, n_ranks: self.n_ranks() }
    }

    #[inline]
    fn submit(&mut self, mut call: Call<'a>) -> Result<()> {
        let manner = self.manner;
        self.fabric().enter(call.operation.name())?;
        self.engine_for(|| call.summary().in_manner(manner))?.run(&mut call, manner)
    }

    #[inline]
    fn repeat(&mut self, arguments: Arguments) -> Option<Repeat<'_>> {
        self.engine.as_mut()?.repeat(&arguments.in_manner(self.manner))
    }
}
