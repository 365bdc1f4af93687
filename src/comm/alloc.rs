//! Memory that all ranks of a job allocate and free together.

use std::sync::Arc;

use bytemuck::Pod;

use super::Communicator;
use super::membership::job_barrier::agreed;
use crate::collective::Operation;
use crate::error::{Error, Result};
use crate::heap::{DeviceBuffer, Region};

impl Communicator {
    /// Allocates `count` elements of every rank's heap, at the same offset on all. Collective.
    ///
    /// It works through any communicator of all ranks of the job. Ranks allocate and free in the
    /// same order, whichever communicators they use.
    ///
    /// Elements are zero in fresh memory; reused memory keeps its old contents. The communicator's
    /// enqueued calls are done first.
    ///
    /// # Errors
    /// Nothing is allocated on any rank then. An [`Error::Timeout`] ends the epoch for everybody.
    /// - [`Error::OutOfMemory`]; [`Error::ResourceLimit`].
    /// - [`Error::FailedElsewhere`] when another rank had one of these.
    /// - [`Error::Mismatch`] when the ranks asked for different sizes.
    /// - Otherwise those of [`Communicator::barrier`].
    pub fn alloc<T: Pod>(&mut self, count: usize) -> Result<DeviceBuffer<T>> {
        // A length that overflows is more than there is. The other ranks have to learn of that
        // failure too.
        let len = DeviceBuffer::<T>::bytes(count).unwrap_or(u64::MAX);
        let region = self.alloc_region(len, DeviceBuffer::<T>::align())?;
        self.buffer(region)
    }

    /// Allocates `len` bytes of every rank's heap at a multiple of `align`, at the same offset on
    /// all. Collective.
    ///
    /// # Errors
    /// Fails as [`Communicator::alloc`] does.
    pub fn alloc_region(&mut self, len: u64, align: u64) -> Result<Region> {
        self.check_all_ranks()?;
        self.context().enter(Operation::Alloc.name())?;
        self.take_memory(len, align)
    }

    /// Allocates within another call, without a fault of its own.
    pub(super) fn take_memory(&mut self, len: u64, align: u64) -> Result<Region> {
        let context = Arc::clone(self.context());
        let heap = context.heap();
        let region = match heap.plan(len, align) {
            Ok(region) => region,
            Err(error) => return self.in_step([len, align, u64::MAX], Err(error)),
        };
        let call = [len, align, region.offset.get()];
        // No rank takes memory before all have seen that there is enough. Together they could take
        // more than there is, and the kernel would kill one.
        let done = self
            .in_step(call, heap.check_room(region))
            .and_then(|()| {
                self.count_no_more();
                self.in_step(call, heap.commit(region))
            })
            .and_then(|()| heap.confirm(region));
        if done.is_err() {
            heap.abandon(region)?;
        }
        done.map(|()| region)
    }

    /// Goes on when this step of an allocation has succeeded on all ranks, with the same length,
    /// alignment and offset.
    fn in_step<R>(&mut self, [len, align, offset]: [u64; 3], outcome: Result<R>) -> Result<R> {
        let agreed = self.agree(Operation::Alloc, [len, align, offset, u64::from(outcome.is_err())]);
        match (agreed, outcome) {
            // The failure that all ranks know may be this rank's own.
            (Err(Error::FailedElsewhere { .. }), Err(error)) => Err(error),
            (agreed, outcome) => agreed.and(outcome),
        }
    }

    /// Counts the next coming together as part of the operation that was counted last.
    fn count_no_more(&mut self) {
        self.reclaim_engine();
        match (&mut self.job_barrier, &mut self.engine) {
            (Some(job_barrier), _) => job_barrier.count_no_more(),
            (None, Some(engine)) => engine.members.board.count_inner_steps(1),
            (None, None) => {}
        }
    }

    /// Frees what [`Communicator::alloc`] returned, on every rank. Collective.
    ///
    /// The communicator's enqueued calls are done first. The caller waits for whatever else a
    /// stream does with the buffer.
    ///
    /// # Errors
    /// Nothing is freed then. An [`Error::Timeout`] ends the epoch for everybody.
    /// - [`Error::InvalidArgument`] when the region is not allocated.
    /// - [`Error::Mismatch`] when the ranks free different regions.
    /// - Otherwise those of [`Communicator::barrier`].
    pub fn free<T: Pod>(&mut self, buffer: DeviceBuffer<T>) -> Result<()> {
        self.free_region(buffer.region())
    }

    /// Frees what [`Communicator::alloc_region`] returned, on every rank. Collective.
    ///
    /// # Errors
    /// Fails as [`Communicator::free`] does.
    pub fn free_region(&mut self, region: Region) -> Result<()> {
        self.check_all_ranks()?;
        self.context().enter(Operation::Free.name())?;
        self.agree(Operation::Free, [region.offset.get(), region.len, 0, 0])?;
        self.heap().free(region)
    }

    pub(super) fn check_all_ranks(&self) -> Result<()> {
        if self.has_all_ranks() {
            return Ok(());
        }
        let name = "the number of ranks that allocate, free, or write a checkpoint";
        let expected = "all ranks of the job, through a communicator that they all belong to";
        Err(Error::invalid(name, self.n_ranks().into(), expected))
    }

    /// Compares the arguments of a call of all ranks. The last argument says whether it failed on
    /// this rank.
    fn agree(&mut self, operation: Operation, arguments: [u64; 4]) -> Result<()> {
        self.reclaim_engine();
        if let Some(job_barrier) = &mut self.job_barrier {
            return job_barrier.agree(operation, arguments, self.engine.as_deref());
        }
        let told = self.exchange(operation, &arguments)?;
        agreed(operation, &arguments, self.members.iter().copied().zip(told.iter().map(Vec::as_slice)))
    }
}
