//! Memory that a rank allocates by itself, and addresses in the heaps.

use std::sync::Arc;

use super::Communicator;
use crate::heap::{Arena, Region};
use crate::rank::Rank;

impl Communicator {
    /// Returns the arena of this rank: memory that it allocates and frees without the others, as
    /// `ncclMemAlloc` and `MPI_Alloc_mem` do. Every communicator of the epoch has the same.
    #[must_use]
    pub fn arena(&self) -> Arena {
        Arena::new(Arc::clone(self.context().heap()))
    }

    /// Returns the `len` bytes at `address` as a region of this rank's own heap, symmetric memory
    /// or its arena, if they lie there. It costs a subtraction and a compare.
    ///
    /// It does not tell whether they are allocated: [`Communicator::buffer`] and the calls do.
    /// Other memory, and buffers of another epoch or job, lie in no heap of this one.
    #[inline]
    #[must_use]
    pub fn region_of(&self, address: usize, len: u64) -> Option<Region> {
        self.heap().region_of(address, len)
    }

    /// Returns whose heap the `len` bytes at `address` lie in, and where in it, if they lie in that
    /// of a rank of this communicator. It does not tell whether they are allocated.
    #[must_use]
    pub fn place_of(&self, address: usize, len: u64) -> Option<(Rank, Region)> {
        let (member, region) = self.heap().place_of(address, len)?;
        let mut members = Rank::of_each(&*self.members);
        members.find(|(_, rank)| **rank == member).map(|(rank, _)| (rank, region))
    }
}
