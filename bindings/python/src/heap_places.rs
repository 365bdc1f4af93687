//! Where the heaps of a communicator's ranks lie in this process.

use shmccl::heap::{HeapOffset, HeapView, Region};
use shmccl::shm::Span;
use shmccl::{Communicator, Rank};

use crate::operand::Bytes;

/// The heaps of a communicator's members. It keeps their memory mapped.
#[derive(Debug)]
pub struct HeapPlaces {
    view: HeapView,
    /// The members as the job numbers them.
    members: Vec<Rank>,
    /// The first address of each member's heap.
    starts: Vec<usize>,
    /// That of this rank.
    own: usize,
    len: usize,
}

impl HeapPlaces {
    /// Looks where the heaps of `comm` are.
    ///
    /// # Errors
    /// None for a communicator that is intact.
    pub fn of(comm: &Communicator) -> shmccl::Result<Self> {
        let (view, members) = (comm.heap().view().clone(), comm.members().to_vec());
        let nothing = Region::new(HeapOffset::new(0), 0);
        let start = |rank: &Rank| Ok(view.span(*rank, nothing)?.start().as_ptr().expose_provenance());
        let starts = members.iter().map(start).collect::<shmccl::Result<Vec<_>>>()?;
        let (own, len) = (starts[comm.rank().index()], view.shape().len());
        Ok(Self { view, members, starts, own, len: usize::try_from(len).unwrap_or(usize::MAX) })
    }

    /// Returns the bytes of `region` in the heap of member `rank`.
    ///
    /// # Errors
    /// `InvalidRank`; `OutOfRange` for bytes that are not allocated.
    pub fn span(&self, rank: u32, region: Region) -> shmccl::Result<Span> {
        let n_ranks = u32::try_from(self.members.len()).unwrap_or(0);
        let member = self.members.get(rank as usize).ok_or(shmccl::Error::InvalidRank { rank, n_ranks })?;
        self.view.span(*member, region)
    }

    /// Returns the region of `bytes` in this rank's heap, if they lie there.
    #[inline]
    pub fn own_region(&self, bytes: Bytes) -> Option<Region> {
        self.region_in(self.own, bytes)
    }

    /// Returns the region of `bytes` in the heap of member `rank`, if they lie there.
    pub fn region_of(&self, rank: u32, bytes: Bytes) -> Option<Region> {
        self.region_in(*self.starts.get(rank as usize)?, bytes)
    }

    #[inline]
    fn region_in(&self, start: usize, bytes: Bytes) -> Option<Region> {
        let offset = bytes.address.wrapping_sub(start);
        let is_inside = offset < self.len && bytes.len <= self.len - offset;
        is_inside.then(|| Region::new(HeapOffset::new(offset as u64), bytes.len as u64))
    }
}
