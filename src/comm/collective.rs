//! What all ranks call together, in the same order: barrier, alloc, free.

use bytemuck::Pod;

use super::Communicator;
use super::watch::BarrierWatch;
use crate::error::{Error, Result};
use crate::heap::{DeviceBuffer, Region};
use crate::rank::Rank;
use crate::sync::{AGREEMENT_WORDS, Waiting, Watch};

/// Which collective call a rank is in, as it tells the others.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Call {
    /// One that compares nothing.
    Barrier = 0,
    Alloc = 1,
    Free = 2,
}

impl Communicator {
    /// Returns when all ranks have called it. Acquires everything that any of them did before (edge B1).
    ///
    /// # Errors
    /// [`Error::Timeout`] naming a rank that is missing, [`Error::PeerLost`], [`Error::Revoked`].
    #[inline]
    pub fn barrier(&mut self) -> Result<()> {
        self.meet("barrier")
    }

    /// Allocates `count` elements of every rank's heap, at the same offset on all. Collective.
    ///
    /// The elements are zero where the memory is fresh, and whatever was there where it was used before.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::ResourceLimit`]; [`Error::FailedElsewhere`] when another rank had one of these;
    /// [`Error::Mismatch`] when the ranks asked for different sizes; otherwise those of [`Communicator::barrier`].
    /// Nothing is allocated on any rank then. An [`Error::Timeout`] ends the epoch for everybody.
    pub fn alloc<T: Pod>(&mut self, count: usize) -> Result<DeviceBuffer<T>> {
        // What cannot be counted is more than there is; the other ranks have to hear of it like of any other failure.
        let len = DeviceBuffer::<T>::bytes(count).unwrap_or(u64::MAX);
        let region = self.alloc_region(len, DeviceBuffer::<T>::align())?;
        self.buffer(region)
    }

    /// Allocates `len` bytes of every rank's heap at a multiple of `align`, at the same offset on all. Collective.
    ///
    /// # Errors
    /// Those of [`Communicator::alloc`].
    pub fn alloc_region(&mut self, len: u64, align: u64) -> Result<Region> {
        let heap = self.fabric.heap();
        let planned = heap.plan(len, align);
        let committed = planned.as_ref().map_or(Ok(()), |region| heap.commit(*region));
        let offset = planned.as_ref().map_or(u64::MAX, |region| region.offset.get());
        let failed = u64::from(planned.is_err() || committed.is_err());
        let agreed = self.agree("alloc", Call::Alloc, [len, align, offset, failed]);
        match (planned, committed, agreed) {
            (Ok(region), Ok(()), Ok(())) => {
                self.fabric.heap().confirm(region)?;
                Ok(region)
            }
            (planned, committed, agreed) => {
                if let Ok(region) = &planned {
                    self.fabric.heap().abandon(*region)?;
                }
                planned?;
                committed?;
                Err(agreed.expect_err("one of the three failed"))
            }
        }
    }

    /// Frees what [`Communicator::alloc`] returned, on every rank. Collective; the memory is handed out again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the region is not allocated; [`Error::Mismatch`] when the ranks free different
    /// regions; otherwise those of [`Communicator::barrier`]. Nothing is freed then. An [`Error::Timeout`] ends the epoch for
    /// everybody.
    pub fn free<T: Pod>(&mut self, buffer: DeviceBuffer<T>) -> Result<()> {
        self.free_region(buffer.region())
    }

    /// Frees what [`Communicator::alloc_region`] returned, on every rank. Collective.
    ///
    /// # Errors
    /// Those of [`Communicator::free`].
    pub fn free_region(&mut self, region: Region) -> Result<()> {
        self.agree("free", Call::Free, [region.offset.get(), region.len, 0, 0])?;
        self.fabric.heap().free(region)
    }

    /// Compares the arguments of a collective call; the last word says whether this rank has failed already.
    ///
    /// After a barrier that timed out there is no agreeing any more. A rank that gives up waiting has proposed already, and whoever comes later would take it for agreed; so
    /// giving up ends the epoch.
    fn agree(&mut self, operation: &'static str, call: Call, arguments: [u64; 4]) -> Result<()> {
        const NAMES: [&str; 4] =
            ["the collective call", "the first argument", "the second argument", "the offset"];
        const FAILED: usize = 4;
        const NOT_COLLECTIVE: [u64; AGREEMENT_WORDS] = [Call::Barrier as u64; AGREEMENT_WORDS];
        if self.barrier.has_arrived() {
            // A barrier that timed out is still open: who passes it takes this rank's words for those of the barrier.
            self.revoke();
            return Err(Error::Revoked { by: Some(self.rank()) });
        }
        let mut mine = [0; AGREEMENT_WORDS];
        mine[0] = call as u64;
        mine[1..].copy_from_slice(&arguments);
        self.agreement.propose(self.barrier.generation(), mine);
        self.meet(operation).inspect_err(|_| self.revoke())?;
        let watch = self.fabric.watch(None);
        if let Some(stop) = watch.check() {
            return Err(self.fabric.waiting(&watch).error(self.fabric.settle(stop), operation, None));
        }
        let theirs = |rank: Rank| self.agreement.theirs(rank.index()).unwrap_or(NOT_COLLECTIVE);
        let others: Vec<_> = (0..self.n_ranks()).map(Rank::known).map(|rank| (rank, theirs(rank))).collect();
        for (rank, theirs) in &others {
            let failed = mine[FAILED] != 0 || theirs[FAILED] != 0;
            // Where an allocation failed, there is no offset to compare.
            let compared = if failed { 3 } else { 4 };
            let differs = (0..compared).find(|&word| mine[word] != theirs[word]);
            if let Some(word) = differs {
                let (what, mine, theirs) = (NAMES[word], mine[word], theirs[word]);
                return Err(Error::Mismatch { what, mine, rank: *rank, theirs });
            }
        }
        match others.into_iter().find(|(_, theirs)| theirs[FAILED] != 0) {
            Some((rank, _)) => Err(Error::FailedElsewhere { operation, rank }),
            None => Ok(()),
        }
    }

    #[inline]
    fn meet(&mut self, operation: &'static str) -> Result<()> {
        self.barrier.arrive(self.fabric.kernel());
        if self.barrier.poll() { Ok(()) } else { self.meet_slowly(operation) }
    }

    fn meet_slowly(&mut self, operation: &'static str) -> Result<()> {
        let fabric = &self.fabric;
        let cells = fabric.world().control().barrier().0;
        let watch = BarrierWatch {
            world: fabric.world(),
            cells: &cells,
            target: self.barrier.generation().wrapping_add(1),
        };
        let waiting = Waiting::new(fabric.kernel(), &watch, fabric.policy(), fabric.timeout());
        self.barrier.wait(&waiting).map_err(|stop| {
            let missing = self.barrier.missing().and_then(|rank| u32::try_from(rank).ok()).map(Rank::known);
            waiting.error(fabric.settle(stop), operation, missing)
        })
    }
}
