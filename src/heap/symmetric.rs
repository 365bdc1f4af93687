//! The symmetric heap of one rank: allocation, step by step.
//!
//! Allocation is collective. Each rank runs [`plan`](SymmetricHeap::plan), looks whether there is
//! [room](SymmetricHeap::check_room) for all and, when all have found it, runs [`commit`](SymmetricHeap::commit); the
//! communicator then has the ranks compare their regions and results, and calls [`confirm`](SymmetricHeap::confirm)
//! on all or [`abandon`](SymmetricHeap::abandon) on all. Freed memory keeps its pages and its old contents, and is
//! handed out again.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::heap::layout::{HEAP, HeapShape};
use crate::heap::ledger::HeapLedger;
use crate::heap::offset::Region;
use crate::heap::view::HeapView;
use crate::rank::Rank;
use crate::shm::{Segment, Window};

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

/// The heaps of all ranks as one of them sees them: a [`HeapView`] that can also allocate.
#[derive(Debug)]
pub struct SymmetricHeap {
    view: HeapView,
    segment: Arc<Segment>,
    ledger: Mutex<HeapLedger>,
}

impl SymmetricHeap {
    /// Looks at the heaps in `window` as `rank`, whose own part of the window is `segment`. The heap is empty.
    ///
    /// There is one such object per rank, in the process of that rank.
    ///
    /// # Errors
    /// Those of [`HeapView::new`].
    pub fn new(window: Arc<Window>, segment: Arc<Segment>, rank: Rank, shape: HeapShape) -> Result<Self> {
        let view = HeapView::new(window, rank, shape)?;
        Ok(Self { view, segment, ledger: Mutex::new(HeapLedger::new(shape.len())?) })
    }

    /// The way to the bytes, without the right to allocate.
    #[must_use]
    pub fn view(&self) -> &HeapView {
        &self.view
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

    /// What is allocated and was not freed, in the order of offsets; the same on all ranks that allocate and free alike. Regions that
    /// communicators keep for themselves are among them.
    #[must_use]
    pub fn regions(&self) -> Vec<Region> {
        self.ledger().allocator().regions().collect()
    }

    /// First step of an allocation: sets `len` bytes aside at a multiple of `align`, on this rank.
    ///
    /// Ranks that take the same steps in the same order get the same region. `len` may be zero. The address is
    /// aligned as the offset is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `align` is a power of two up to 2 MiB;
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory). Nothing has changed then.
    pub fn plan(&self, len: u64, align: u64) -> Result<Region> {
        self.ledger().plan(len, align)
    }

    /// Between the first step and the second: whether there is memory for all ranks to commit `region`. Takes none, so
    /// every rank sees the same as long as none has committed.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit), when there is not.
    pub fn check_room(&self, region: Region) -> Result<()> {
        let missing = self.ledger().missing(region)?;
        let len = missing.end - missing.start;
        self.segment.check_room(HEAP + missing.start, len, self.view.shape().n_ranks())
    }

    /// Second step: puts memory behind a planned region, on this rank.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`](crate::Error::ResourceLimit) or [`Error::Os`](crate::Error::Os) when the system has
    /// none; the region is still planned then, and is to be abandoned.
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when it was not planned.
    pub fn commit(&self, region: Region) -> Result<()> {
        let mut ledger = self.ledger();
        let missing = ledger.missing(region)?;
        if !missing.is_empty() {
            self.segment.commit(HEAP + missing.start, missing.end - missing.start)?;
        }
        ledger.backed(region)
    }

    /// Last step when **every** rank has committed `region`: makes it usable.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when it was not committed on this rank.
    pub fn confirm(&self, region: Region) -> Result<()> {
        let mut ledger = self.ledger();
        self.view.raise(ledger.confirm(region)?);
        Ok(())
    }

    /// Last step when some rank failed, or the ranks disagree: gives a planned region back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when it was not planned, or is confirmed already.
    pub fn abandon(&self, region: Region) -> Result<()> {
        self.ledger().abandon(region)
    }

    /// Gives a usable region back. Every rank does, after the last access of every rank to it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the region is not usable as it stands: freed
    /// before, or never allocated.
    pub fn free(&self, region: Region) -> Result<()> {
        self.ledger().free(region)
    }

    fn ledger(&self) -> MutexGuard<'_, HeapLedger> {
        // A panic cannot leave the ledger half changed: each of its steps checks first and changes last.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for SymmetricHeap {
    type Target = HeapView;

    fn deref(&self) -> &HeapView {
        &self.view
    }
}

#[cfg(test)]
mod tests;
