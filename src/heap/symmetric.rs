//! The symmetric heap of one rank: allocation, step by step.
//!
//! Allocation is collective. Each rank runs [`plan`](SymmetricHeap::plan), looks whether there is
//! [room](SymmetricHeap::check_room) for all and, when all have found it, runs
//! [`commit`](SymmetricHeap::commit). The communicator then has the ranks compare their regions and
//! results, and calls [`confirm`](SymmetricHeap::confirm) on all or
//! [`abandon`](SymmetricHeap::abandon) on all. Freed memory keeps its pages and its old contents,
//! and is handed out again.
//!
//! Ranks allocate together or not at all, and only the layer above can make them agree. So a region
//! goes through states, which the `HeapLedger` keeps:
//!
//! | state | left by | meaning |
//! |---|---|---|
//! | planned | `backed`, `abandon` | the allocator has set it aside on this rank |
//! | backed | `confirm`, `abandon` | this rank has memory behind it |
//! | live | `free` | every rank has memory behind it |
//!
//! Memory is backed from the start of the heap up to a *watermark* that only rises, in chunks of
//! `CHUNK`: an allocator that prefers low offsets leaves no holes worth tracking. There are two
//! watermarks. `backed` is this rank's own. `agreed` follows when an allocation is confirmed:
//! everything below it is backed on *every* rank and may be touched there without a check of the
//! peer. An abandoned allocation raises the first only.
//!
//! The end of the heap is this rank's [`arena`](super::arena). Neither grows into the other.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::heap::allocator::{Allocator, GRANULE};
use crate::heap::arena::ArenaBook;
use crate::heap::layout::HEAP;
use crate::heap::offset::{HeapOffset, Region};
use crate::heap::view::HeapView;
use crate::process::OwnerProcess;
use crate::shm::Segment;
use crate::shm::forks::NEEDS_RANK;

/// What a heap, or an arena, holds at a moment.
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
    /// Bytes of memory behind the static objects of this rank, where those are symmetric. They are
    /// no part of the heap, and `Communicator::heap_usage` alone counts them.
    pub statics: u64,
}

/// The heaps of all ranks as one of them sees them: a [`HeapView`] that can also allocate.
#[derive(Debug)]
pub struct SymmetricHeap {
    view: HeapView,
    segment: Arc<Segment>,
    ledger: Mutex<HeapLedger>,
    /// Whether this rank's own part is to be in the core dumps of its process.
    is_dumped: bool,
    /// The process that is the rank, and that alone allocates.
    process: OwnerProcess,
}

impl SymmetricHeap {
    /// Looks at the heaps through `view`. `segment` is the rank's own part of the window. The heap
    /// is empty.
    ///
    /// There is one such object per rank, in the process of that rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a heap whose length cannot be
    /// divided.
    pub fn new(view: HeapView, segment: Arc<Segment>) -> Result<Self> {
        let ledger = HeapLedger::new(view.shape().len())?;
        let process = OwnerProcess::this();
        Ok(Self { view, segment, ledger: Mutex::new(ledger), is_dumped: false, process })
    }

    /// Takes this rank's control structures, and whatever is committed of its part from now on,
    /// into the core dumps of this process.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a segment without control structures.
    pub(crate) fn dumped(self) -> Result<Self> {
        self.view.own().take_into_dumps(0, HEAP)?;
        Ok(Self { is_dumped: true, ..self })
    }

    /// Returns the way to the bytes, without the right to allocate.
    #[must_use]
    pub fn view(&self) -> &HeapView {
        &self.view
    }

    /// Returns what the heap holds now. What the arena takes up is not free.
    #[must_use]
    pub fn usage(&self) -> HeapUsage {
        let ledger = self.ledger();
        let (allocator, limit) = (&ledger.allocator, ledger.limit());
        HeapUsage {
            len: allocator.len(),
            free: allocator.free_below(limit),
            contiguous: allocator.contiguous_below(limit, 1),
            committed: ledger.backed,
            live: allocator.live(),
            statics: 0,
        }
    }

    /// Returns what the arena holds now.
    pub(super) fn local_usage(&self) -> HeapUsage {
        let ledger = self.ledger();
        ledger.arena.usage(ledger.arena_limit())
    }

    /// Takes a place of the arena, with memory behind it.
    ///
    /// # Errors
    /// Fails as [`Arena::alloc_aligned`](super::Arena::alloc_aligned) does.
    pub(super) fn take_local(&self, len: u64, align: u64) -> Result<Region> {
        if !self.process.is_this() {
            return Err(Error::Unavailable {
                operation: "an allocation of this rank alone",
                needs: NEEDS_RANK,
            });
        }
        let mut ledger = self.ledger();
        let limit = ledger.arena_limit();
        let place = ledger.arena.take(limit, len, align)?;
        match self.back(&ledger.arena.missing(place)) {
            Ok(()) => {
                self.view.raise_arena(ledger.arena.backed(place));
                Ok(place)
            }
            Err(error) => {
                ledger.arena.give_back(place);
                Err(error)
            }
        }
    }

    /// Returns where a place of the arena is, which the book counts from the end of the heap.
    pub(super) fn region_of_place(&self, place: Region) -> Region {
        Region::new(HeapOffset::new(self.view.shape().len() - place.offset.get() - place.len), place.len)
    }

    /// Gives a place of the arena back, unless this is a child that was forked: there the lock may
    /// be held by a thread that does not exist.
    pub(super) fn give_back(&self, place: Region) {
        if self.process.is_this() {
            let mut ledger = self.ledger();
            self.view.take_back_of(self.view.rank(), self.region_of_place(place));
            ledger.arena.give_back(place);
        }
    }

    /// Returns what is allocated and was not freed, in the order of offsets; the same on all ranks
    /// that allocate and free alike. Regions that communicators keep for themselves are among them.
    #[must_use]
    pub fn regions(&self) -> Vec<Region> {
        self.ledger().allocator.regions().collect()
    }

    /// Sets `len` bytes aside at a multiple of `align`, on this rank: the first step of an
    /// allocation.
    ///
    /// Ranks that take the same steps in the same order get the same region. `len` may be zero. The
    /// address is aligned as the offset is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `align` is a power of two up to 2 MiB;
    /// [`Error::OutOfMemory`]. Nothing has changed then.
    pub fn plan(&self, len: u64, align: u64) -> Result<Region> {
        self.ledger().plan(len, align)
    }

    /// Checks that there is memory for all ranks to commit `region`, between the first step and the
    /// second. Takes none, so every rank sees the same as long as none has committed.
    ///
    /// # Errors
    /// Fails as [`commit`](Self::commit) does, when there is not.
    pub fn check_room(&self, region: Region) -> Result<()> {
        let missing = self.ledger().missing(region)?;
        let len = missing.end - missing.start;
        self.segment.check_room(HEAP + missing.start, len, self.view.shape().n_ranks())
    }

    /// Puts memory behind a planned region, on this rank: the second step.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] or [`Error::Os`] when the system has
    /// none; the region is still planned then, and is to be abandoned.
    /// [`Error::InvalidArgument`] when it was not planned.
    pub fn commit(&self, region: Region) -> Result<()> {
        let mut ledger = self.ledger();
        self.back(&ledger.missing(region)?)?;
        ledger.backed(region)
    }

    /// Puts memory behind `missing` bytes of the heap.
    fn back(&self, missing: &Range<u64>) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let (start, len) = (HEAP + missing.start, missing.end - missing.start);
        self.segment.commit(start, len)?;
        if self.is_dumped {
            self.view.own().take_into_dumps(start, len)?;
        }
        Ok(())
    }

    /// Makes `region` usable: the last step when **every** rank has committed it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it was not committed on this rank.
    pub fn confirm(&self, region: Region) -> Result<()> {
        let mut ledger = self.ledger();
        self.view.raise(ledger.confirm(region)?);
        Ok(())
    }

    /// Gives a planned region back: the last step when some rank failed, or the ranks disagree.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it was not planned, or is confirmed already.
    pub fn abandon(&self, region: Region) -> Result<()> {
        self.ledger().abandon(region)
    }

    /// Gives a usable region back. Every rank does, after the last access of every rank to it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the region is not usable as it stands: freed
    /// before, or never allocated.
    pub fn free(&self, region: Region) -> Result<()> {
        let mut ledger = self.ledger();
        ledger.free(region)?;
        // Before another thread gets it.
        self.view.take_back(region);
        Ok(())
    }

    fn ledger(&self) -> MutexGuard<'_, HeapLedger> {
        // A panic cannot leave the ledger half changed: each of its steps checks first and changes
        // last.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for SymmetricHeap {
    type Target = HeapView;

    fn deref(&self) -> &HeapView {
        &self.view
    }
}

/// Memory is committed in multiples of this many bytes: a huge page.
pub(super) const CHUNK: u64 = 2 << 20;

/// The strictest alignment that an allocation can ask for, in bytes: that of the heap itself.
pub(super) const MAX_ALIGN: u64 = CHUNK;

/// The steps of all allocations of one rank.
#[derive(Debug)]
pub(crate) struct HeapLedger {
    allocator: Allocator,
    pending: Vec<Pending>,
    backed: u64,
    agreed: u64,
    arena: ArenaBook,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    region: Region,
    backed: bool,
}

impl HeapLedger {
    pub(crate) fn new(heap_len: u64) -> Result<Self> {
        let (allocator, arena) = (Allocator::new(heap_len)?, ArenaBook::new(heap_len)?);
        Ok(Self { allocator, pending: Vec::new(), backed: 0, agreed: 0, arena })
    }

    /// Returns where symmetric allocations have to end.
    fn limit(&self) -> u64 {
        self.allocator.len() - self.arena.extent()
    }

    /// Returns how many bytes from the end of the heap the arena can take up.
    fn arena_limit(&self) -> u64 {
        self.allocator.len() - self.allocator.end()
    }

    /// Sets a region aside.
    pub(crate) fn plan(&mut self, len: u64, align: u64) -> Result<Region> {
        if align > MAX_ALIGN {
            let expected = "a power of two up to 2 MiB";
            return Err(Error::InvalidArgument { name: "align", value: align, expected });
        }
        let region = self.allocator.allocate_below(self.limit(), len, align)?;
        self.pending.push(Pending { region, backed: false });
        Ok(region)
    }

    /// Returns the bytes that need memory before `region` is backed; empty when it has all of it
    /// already.
    pub(crate) fn missing(&self, region: Region) -> Result<Range<u64>> {
        self.find(region)?;
        Ok(self.backed..self.backed.max(self.chunk_end(region)))
    }

    /// Takes note that [`HeapLedger::missing`] has got its memory.
    pub(crate) fn backed(&mut self, region: Region) -> Result<()> {
        let index = self.find(region)?;
        self.pending[index].backed = true;
        self.backed = self.backed.max(self.chunk_end(region));
        Ok(())
    }

    /// Makes a backed region live and returns the agreed watermark.
    pub(crate) fn confirm(&mut self, region: Region) -> Result<u64> {
        let index = self.find(region)?;
        if !self.pending[index].backed {
            return Err(refused(region, "a region that has been committed"));
        }
        self.pending.swap_remove(index);
        self.agreed = self.agreed.max(self.chunk_end(region));
        Ok(self.agreed)
    }

    /// Gives back a region that is not live yet. The memory behind it stays.
    pub(crate) fn abandon(&mut self, region: Region) -> Result<()> {
        let index = self.find(region)?;
        self.pending.swap_remove(index);
        self.allocator.free(region)
    }

    /// Gives back a live region. The memory behind it stays.
    pub(crate) fn free(&mut self, region: Region) -> Result<()> {
        if self.find(region).is_ok() {
            return Err(refused(region, "a confirmed region; this one can only be abandoned"));
        }
        self.allocator.free(region)
    }

    fn find(&self, region: Region) -> Result<usize> {
        let position = self.pending.iter().position(|pending| pending.region == region);
        position.ok_or_else(|| refused(region, "a planned region that was neither confirmed nor abandoned"))
    }

    /// Returns where the last chunk ends that `region` touches. An empty region still owns a
    /// granule.
    fn chunk_end(&self, region: Region) -> u64 {
        let end = region.offset.get() + region.len.max(GRANULE);
        end.checked_next_multiple_of(CHUNK).map_or(self.allocator.len(), |end| end.min(self.allocator.len()))
    }
}

fn refused(region: Region, expected: &'static str) -> Error {
    Error::InvalidArgument { name: "region at offset", value: region.offset.get(), expected }
}

#[cfg(test)]
mod tests;
