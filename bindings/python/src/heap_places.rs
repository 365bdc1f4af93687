//! Bytes of this process, and where they lie in the heaps of a communicator's ranks.

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use shmccl::comm::{RecvBytes, SendBytes};
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
    len: usize,
}

/// Bytes of this process that a Python object keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Their first address.
    pub address: usize,
    /// How many there are.
    pub len: usize,
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

impl Bytes {
    /// Returns whether some of these bytes are among `other`.
    pub fn overlaps(self, other: Self) -> bool {
        let (end, other_end) = (self.address + self.len, other.address + other.len);
        self.len > 0 && other.len > 0 && self.address < other_end && other.address < end
    }

    /// Returns these bytes as the input of a call: a region of the heap, if they lie there.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing of this process writes them meanwhile but calls of the
    /// same communicator, which are executed one after the other.
    #[inline]
    pub unsafe fn send<'a>(self, heap: &HeapPlaces) -> SendBytes<'a> {
        match heap.own_region(self) {
            Some(region) => region.into(),
            // SAFETY: the caller's promise; an empty slice needs any address but zero.
            None => unsafe { std::slice::from_raw_parts(self.start(), self.len) }.into(),
        }
    }

    /// Returns these bytes as the output of a call, as [`Bytes::send`] does.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing else of this process touches them meanwhile but calls
    /// of the same communicator, which are executed one after the other.
    #[inline]
    pub unsafe fn recv<'a>(self, heap: &HeapPlaces) -> RecvBytes<'a> {
        match heap.own_region(self) {
            Some(region) => region.into(),
            // SAFETY: as in `send`.
            None => unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }.into(),
        }
    }

    /// Returns the region of these bytes in the heap of any rank.
    ///
    /// # Errors
    /// `ValueError` for bytes that lie elsewhere.
    pub fn region(self, heap: &HeapPlaces, rank: u32, what: &str) -> PyResult<Region> {
        heap.region_of(rank, self).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{what} does not lie in the heap; make it with comm.zeros or comm.empty, or take a part of such an array"
            ))
        })
    }

    /// Returns these bytes, to be read at once.
    ///
    /// # Safety
    /// They are there for `'a`, and nothing of this process writes them meanwhile.
    pub unsafe fn lent<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise; an empty slice needs any address but zero.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    fn start(self) -> *mut u8 {
        if self.len == 0 {
            std::ptr::dangling_mut()
        } else {
            std::ptr::with_exposed_provenance_mut(self.address)
        }
    }
}
