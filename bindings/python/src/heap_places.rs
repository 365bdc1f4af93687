//! Bytes of this process, and where they lie in the heaps of a communicator's ranks.

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use shmccl::comm::{MemoryRange, RecvBytes, SendBytes};
use shmccl::heap::{HeapOffset, HeapView, Region};
use shmccl::shm::Span;
use shmccl::{Communicator, Rank};

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
    n_ranks: u32,
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
        let n_ranks = comm.n_ranks();
        Ok(Self { view, members, starts, own, n_ranks, len: usize::try_from(len).unwrap_or(usize::MAX) })
    }

    /// Returns the bytes of `region` in the heap of member `rank`.
    ///
    /// # Errors
    /// `InvalidRank`; `OutOfRange` for bytes that are not allocated.
    pub fn span(&self, rank: u32, region: Region) -> shmccl::Result<Span> {
        let n_ranks = self.n_ranks;
        let member = self.members.get(rank as usize).ok_or(shmccl::Error::InvalidRank { rank, n_ranks })?;
        self.view.span(*member, region)
    }

    /// Returns how many ranks there are.
    #[inline]
    pub const fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Returns the region of `bytes` in this rank's heap, if they lie there.
    #[inline]
    pub fn own_region(&self, bytes: MemoryRange) -> Option<Region> {
        self.region_in(self.own, bytes)
    }

    /// Returns the region of `bytes` in the heap of member `rank`, if they lie there.
    pub fn region_of(&self, rank: u32, bytes: MemoryRange) -> Option<Region> {
        self.region_in(*self.starts.get(rank as usize)?, bytes)
    }

    #[inline]
    fn region_in(&self, start: usize, bytes: MemoryRange) -> Option<Region> {
        let offset = bytes.start.wrapping_sub(start);
        let is_inside = offset < self.len && bytes.len <= self.len - offset;
        is_inside.then(|| Region::new(HeapOffset::new(offset as u64), bytes.len as u64))
    }

    /// Returns these bytes as the input of a call: a region of the heap, if they lie there.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing of this process writes them meanwhile but calls of the
    /// same communicator, which are executed one after the other.
    #[inline]
    pub unsafe fn send<'a>(&self, bytes: MemoryRange) -> SendBytes<'a> {
        match self.own_region(bytes) {
            Some(region) => region.into(),
            // SAFETY: the caller's promise; an empty slice needs any address but zero.
            None => unsafe { std::slice::from_raw_parts(start(bytes), bytes.len) }.into(),
        }
    }

    /// Returns these bytes as the output of a call, as [`HeapPlaces::send`] does.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing else of this process touches them meanwhile but calls
    /// of the same communicator, which are executed one after the other.
    #[inline]
    pub unsafe fn recv<'a>(&self, bytes: MemoryRange) -> RecvBytes<'a> {
        match self.own_region(bytes) {
            Some(region) => region.into(),
            // SAFETY: as in `send`.
            None => unsafe { std::slice::from_raw_parts_mut(start(bytes), bytes.len) }.into(),
        }
    }

    /// Returns the region of these bytes in the heap of any rank.
    ///
    /// # Errors
    /// `ValueError` for bytes that lie elsewhere.
    pub fn region(&self, bytes: MemoryRange, rank: u32, what: &str) -> PyResult<Region> {
        self.region_of(rank, bytes).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{what} does not lie in the heap; make it with comm.zeros or comm.empty, or take a part of such an array"
            ))
        })
    }
}

fn start(bytes: MemoryRange) -> *mut u8 {
    if bytes.len == 0 { std::ptr::dangling_mut() } else { std::ptr::with_exposed_provenance_mut(bytes.start) }
}
