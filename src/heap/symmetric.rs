//! The symmetric heap of one rank: allocation step by step, and the way from an offset to memory on any rank.
//!
//! Every rank maps every rank's heap at the same stride, so an offset means the same everywhere and the address of a
//! peer's byte is one multiply-add away. Allocation is collective. Each rank runs [`plan`](SymmetricHeap::plan) and
//! [`commit`](SymmetricHeap::commit); the communicator then has the ranks compare their regions and results, and
//! calls [`confirm`](SymmetricHeap::confirm) on all or [`abandon`](SymmetricHeap::abandon) on all. Freed
//! memory keeps its pages and its old contents, and is handed out again.
//!
//! **Every byte below the agreed watermark is backed by memory on every rank**, so a store there cannot fail.
//! Nothing above it is reached through this type.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::heap::ledger::Ledger;
use crate::heap::offset::{HeapOffset, Region};
use crate::heap::windows::Place;
use crate::rank::{Rank, check_n_ranks};
use crate::shm::{ReadSoon, Segment, Span, Window};
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// Where the heap lies in every rank's segment, and for how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapShape {
    /// How many ranks there are.
    pub n_ranks: u32,
    /// Where the heap starts in each segment, in bytes; a multiple of 2 MiB.
    pub start: u64,
    /// How many bytes each heap has; a multiple of 64.
    pub len: u64,
}

/// What a heap holds at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUsage {
    /// Bytes in all.
    pub len: u64,
    /// Bytes that no allocation owns.
    pub free: u64,
    /// The longest allocation that would succeed.
    pub contiguous: u64,
    /// Bytes with memory behind them on this rank.
    pub committed: u64,
    /// Allocations that were not freed, including those still on their way.
    pub live: usize,
}

/// The heaps of all ranks as one of them sees them.
#[derive(Debug)]
pub struct SymmetricHeap {
    window: Arc<Window>,
    segment: Arc<Segment>,
    rank: Rank,
    shape: HeapShape,
    /// The whole heap of each rank; reached after a check against `agreed` only.
    heaps: Box<[Span]>,
    ledger: Mutex<Ledger>,
    /// Copy of the ledger's agreed watermark for the data path, which takes no lock. A caller that holds a live region
    /// learnt of it after `confirm` had returned, so whatever told it orders this too.
    agreed: AtomicU64,
}

impl SymmetricHeap {
    /// Looks at the heaps in `window` as `rank`, whose own part of the window is `segment`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::InvalidRank`], [`Error::OutOfRange`] when rank, shape and window do not fit
    /// each other, or not every rank's segment is mapped yet.
    pub fn new(window: Arc<Window>, segment: Arc<Segment>, rank: Rank, shape: HeapShape) -> Result<Self> {
        check_n_ranks(shape.n_ranks)?;
        Rank::new(rank.get(), shape.n_ranks)?;
        let (n_ranks, start, len) = (shape.n_ranks, shape.start, shape.len);
        let whole = |rank| match window.mapping(Rank::known(rank)) {
            Some(mapping) => mapping.span(start, len),
            None => Err(Error::InvalidRank { rank, n_ranks: window.n_ranks() }),
        };
        let heaps = (0..n_ranks).map(whole).collect::<Result<_>>()?;
        let ledger = Mutex::new(Ledger::new(shape.len)?);
        Ok(Self { window, segment, rank, shape, heaps, ledger, agreed: AtomicU64::new(0) })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks have a heap.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        self.shape.n_ranks
    }

    /// Where the heap lies in every segment.
    #[must_use]
    pub fn shape(&self) -> HeapShape {
        self.shape
    }

    /// What the heap holds now.
    #[must_use]
    pub fn usage(&self) -> HeapUsage {
        let ledger = self.ledger();
        let allocator = ledger.allocator();
        HeapUsage {
            len: allocator.len(),
            free: allocator.free_bytes(),
            contiguous: allocator.contiguous(1),
            committed: ledger.backed_bytes(),
            live: allocator.live(),
        }
    }

    /// First step of an allocation: sets `len` bytes aside at a multiple of `align`, on this rank.
    ///
    /// Ranks that take the same steps in the same order get the same region. `len` may be zero.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `align` is a power of two up to 2 MiB; [`Error::OutOfMemory`]. Nothing has
    /// changed then.
    pub fn plan(&self, len: u64, align: u64) -> Result<Region> {
        self.ledger().plan(len, align)
    }

    /// Second step: puts memory behind a planned region, on this rank.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] or [`Error::Os`] when the system has none; the region is still planned then, and is to
    /// be abandoned. [`Error::InvalidArgument`] when it was not planned.
    pub fn commit(&self, region: Region) -> Result<()> {
        let mut ledger = self.ledger();
        let missing = ledger.missing(region)?;
        if !missing.is_empty() {
            self.segment.commit(self.shape.start + missing.start, missing.end - missing.start)?;
        }
        ledger.backed(region)
    }

    /// Last step when **every** rank has committed `region`: makes it usable.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it was not committed on this rank.
    pub fn confirm(&self, region: Region) -> Result<()> {
        let mut ledger = self.ledger();
        let agreed = ledger.confirm(region)?;
        plain::store(&self.agreed, agreed);
        Ok(())
    }

    /// Last step when some rank failed, or the ranks disagree: gives a planned region back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it was not planned, or is confirmed already.
    pub fn abandon(&self, region: Region) -> Result<()> {
        self.ledger().abandon(region)
    }

    /// Gives a usable region back. Every rank does, after the last access of every rank to it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the region is not usable as it stands: freed before, or never allocated.
    pub fn free(&self, region: Region) -> Result<()> {
        self.ledger().free(region)
    }

    /// Reaches the bytes of `region` in the heap of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::OutOfRange`] when the region reaches past what all ranks have committed.
    pub fn span(&self, rank: Rank, region: Region) -> Result<Span> {
        self.reach(rank, region)?.part(region.offset.get(), region.len)
    }

    /// Copies `len` bytes from one place to another, of the same rank or another. The ranges may overlap.
    ///
    /// Orders nothing: whoever is to see the bytes is to be signalled. Takes no lock and allocates nothing.
    ///
    /// # Errors
    /// Those of [`SymmetricHeap::span`], for either end; nothing was changed then.
    #[inline]
    pub fn copy(&self, source: Place, target: Place, len: u64, read_soon: ReadSoon) -> Result<()> {
        let from = self.reach(source.rank, Region::new(source.offset, len))?;
        let to = self.reach(target.rank, Region::new(target.offset, len))?;
        from.copy_to(source.offset.get(), to, target.offset.get(), len, read_soon)
    }

    /// The whole heap of `rank`, after `region` was found to be within what all ranks have committed.
    ///
    /// A caller that touches other bytes than `region` breaks the promise that a store cannot fail.
    ///
    /// # Errors
    /// Those of [`SymmetricHeap::span`].
    #[inline]
    pub(crate) fn reach(&self, rank: Rank, region: Region) -> Result<&Span> {
        let n_ranks = self.shape.n_ranks;
        let heap = self.heaps.get(rank.index()).ok_or(Error::InvalidRank { rank: rank.get(), n_ranks })?;
        let committed = plain::load(&self.agreed);
        if region.len == 0 {
            region.check("symmetric heap", self.shape.len)?;
        } else {
            region.check("symmetric heap (allocated so far)", committed)?;
        }
        Ok(heap)
    }

    /// Translates an offset to an address in this process: one multiply-add.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::OutOfRange`] when the offset is past the heap's end.
    #[inline]
    pub fn translate(&self, rank: Rank, offset: HeapOffset) -> Result<NonNull<u8>> {
        let n_ranks = self.shape.n_ranks;
        let base = self.window.base_of(rank).ok_or(Error::InvalidRank { rank: rank.get(), n_ranks })?;
        Region::new(offset, 0).check("symmetric heap", self.shape.len)?;
        let distance = usize::try_from(self.shape.start + offset.get()).expect("it is mapped");
        Ok(base.map_addr(|address| address.checked_add(distance).expect("it is mapped")))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A panic cannot leave the ledger half changed: each of its steps checks first and changes last.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
