//! The way from an offset to memory on any rank, which a device and the proxies that work for it
//! share.
//!
//! Every rank maps every rank's heap at the same stride, so an offset means the same everywhere and
//! the address of a peer's byte is one multiply-add away.
//!
//! **Every byte below a rank's watermark is backed by memory on every rank**, so a store there
//! cannot fail. The watermark is a word in the rank's segment. The rank's threads learn of a region
//! after it was raised. A proxy in another process learns of a region by a trigger, whose edge F1
//! (publish) carries the watermark too. It only rises, so the word orders nothing itself.
//!
//! Above it, only the end of a heap is reached, as far as its owner says that there is memory
//! behind its [`arena`](super::arena).

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::heap::layout::{HEAP, HeapShape, SegmentCells};
use crate::heap::offset::{HeapOffset, Region, fits};
use crate::heap::windows::HeapPlace;
use crate::rank::Rank;
use crate::shm::{CacheHint, CellRef, CellSlice, Mapping, SharedLayout, Span, Window};
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// The heaps of all ranks as one of them, or a proxy that works for it, may use them. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct HeapView {
    window: Arc<Window>,
    rank: Rank,
    shape: HeapShape,
    /// The whole heap of each rank; handed out after a check against the watermark only.
    heaps: Arc<[Span]>,
    watermark: CellRef<AtomicU64>,
    /// How many bytes of the end of each heap its owner has memory behind.
    arena_lens: Arc<[CellRef<AtomicU64>]>,
}

impl HeapView {
    /// Looks at the heaps in `window` on behalf of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] when the window has no segment for `rank`, or not yet one for every
    /// rank; [`Error::OutOfRange`] when some segment is too short for `shape`.
    pub fn new(window: Arc<Window>, rank: Rank, shape: HeapShape) -> Result<Self> {
        Rank::new(rank.get(), shape.n_ranks())?;
        let mapping = |rank: Rank| {
            let missing = Error::InvalidRank { rank: rank.get(), n_ranks: window.n_ranks() };
            window.mapping(rank).ok_or(missing)
        };
        let whole = |rank| mapping(Rank::known(rank))?.unlent_span(HEAP, shape.len());
        let heaps = (0..shape.n_ranks()).map(whole).collect::<Result<_>>()?;
        let cells = |rank: u32| SegmentCells::new(mapping(Rank::known(rank))?.clone());
        let arena_lens = (0..shape.n_ranks()).map(|rank| Ok(cells(rank)?.arena_len()));
        let (arena_lens, watermark) = (arena_lens.collect::<Result<_>>()?, cells(rank.get())?.watermark());
        Ok(Self { window, rank, shape, heaps, watermark, arena_lens })
    }

    /// Returns the rank that this view works for.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns how many heaps there are, and how long each is.
    #[must_use]
    pub fn shape(&self) -> HeapShape {
        self.shape
    }

    /// Returns the window with the segments of all ranks, control structures and unallocated memory
    /// included: for tools and tests that look behind the protocols, and break them when they
    /// write.
    #[must_use]
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Returns the segment of the rank that this view works for.
    pub(super) fn own(&self) -> &Mapping {
        self.window.mapping(self.rank).expect("`new` has found every rank's")
    }

    /// Returns the address of the first byte of this rank's own heap: no other heap of this process
    /// has it.
    #[inline]
    pub(crate) fn start(&self) -> u64 {
        self.mine().start().addr().get() as u64
    }

    /// Returns how many bytes from the start of the heap have memory behind them on every rank.
    #[inline]
    #[must_use]
    pub fn watermark(&self) -> u64 {
        plain::load(&self.watermark).min(self.shape.len())
    }

    /// Returns the `len` bytes at `address` as a region of this rank's own heap, if they lie there.
    /// It does not tell whether they are allocated.
    #[inline]
    #[must_use]
    pub fn region_of(&self, address: usize, len: u64) -> Option<Region> {
        let offset = (address as u64).wrapping_sub(self.start());
        fits(offset, len, self.shape.len()).then(|| Region::new(HeapOffset::new(offset), len))
    }

    /// Returns whose heap the `len` bytes at `address` lie in, and where in it, if they lie in one.
    /// It does not tell whether they are allocated.
    #[must_use]
    pub fn place_of(&self, address: usize, len: u64) -> Option<(Rank, Region)> {
        let from_first = address.wrapping_sub(self.heaps[0].start().addr().get()) as u64;
        let rank = usize::try_from(from_first / self.shape.segment_len()).ok()?;
        let offset = from_first % self.shape.segment_len();
        let region = Region::new(HeapOffset::new(offset), len);
        let exists = rank < self.heaps.len() && fits(offset, len, self.shape.len());
        exists.then(|| (Rank::known(u32::try_from(rank).unwrap_or(u32::MAX)), region))
    }

    /// Reaches the bytes of `region` in the heap of `rank`. An empty region may stand anywhere in
    /// the heap. A child of a fork finds in them what they held at the fork, until the region is
    /// freed.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::OutOfRange`] when the region reaches past the watermark,
    /// and is not in the arena of `rank` as far as there is memory behind that.
    pub fn span(&self, rank: Rank, region: Region) -> Result<Span> {
        let span = self.reach(rank, region)?.part(region.offset.get(), region.len)?;
        if region.len > 0 {
            span.lend();
            // What says how far the bytes may be reached, too.
            self.watermark.lend();
            self.arena_lens[rank.index()].lend();
        }
        Ok(span)
    }

    /// Notes that the program has none of `region` any more, which was freed in the heaps of all
    /// ranks.
    pub(super) fn take_back(&self, region: Region) {
        (0..self.shape.n_ranks()).for_each(|rank| self.take_back_of(Rank::known(rank), region));
    }

    /// Notes that the program has none of `region` of the heap of `rank` any more.
    pub(super) fn take_back_of(&self, rank: Rank, region: Region) {
        if let Ok(span) = self.heaps[rank.index()].part(region.offset.get(), region.len) {
            span.take_back();
        }
    }

    /// Copies `len` bytes from one place to another, of the same rank or another. The ranges may
    /// overlap.
    ///
    /// Orders nothing: a reader of the bytes has to be signalled. Takes no lock and allocates
    /// nothing.
    ///
    /// # Errors
    /// Fails as [`HeapView::span`] does, for either end. Nothing was changed then.
    #[inline]
    pub fn copy(&self, source: HeapPlace, target: HeapPlace, len: u64, cache_hint: CacheHint) -> Result<()> {
        let heap = |rank: Rank| self.heaps.get(rank.index());
        if let (Some(from), Some(to)) = (heap(source.rank), heap(target.rank)) {
            // In as few steps as can be between ranges below the watermark.
            let limit = plain::load(&self.watermark);
            if from.try_copy_below(limit, source.offset.get(), to, target.offset.get(), len, cache_hint) {
                return Ok(());
            }
        }
        self.copy_checked(source, target, len, cache_hint)
    }

    /// Copies between ranges of which one is in an arena, or nothing where one is nowhere.
    #[inline(never)]
    fn copy_checked(
        &self,
        source: HeapPlace,
        target: HeapPlace,
        len: u64,
        cache_hint: CacheHint,
    ) -> Result<()> {
        let from = self.reach(source.rank, Region::new(source.offset, len))?;
        let to = self.reach(target.rank, Region::new(target.offset, len))?;
        from.copy_to(source.offset.get(), to, target.offset.get(), len, cache_hint)
    }

    /// Returns the whole heap of `rank`, after `region` was found to be below the watermark; saves
    /// the count that a span costs.
    ///
    /// A caller that touches other bytes than `region` breaks the promise that a store cannot fail.
    ///
    /// # Errors
    /// Fails as [`HeapView::span`] does.
    #[inline]
    pub(crate) fn reach(&self, rank: Rank, region: Region) -> Result<&Span> {
        let n_ranks = self.shape.n_ranks();
        let missing = || Error::InvalidRank { rank: rank.get(), n_ranks };
        let heap = self.heaps.get(rank.index()).ok_or_else(missing)?;
        self.check(rank, region)?;
        Ok(heap)
    }

    /// Returns the whole heap of the rank that this view works for. The caller touches only regions
    /// that [`HeapView::reach`] has found once.
    #[inline]
    pub(crate) fn mine(&self) -> &Span {
        &self.heaps[self.rank.index()]
    }

    /// Checks that `rank` has memory behind all of `region`, as every rank has or in its arena.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub(crate) fn check(&self, rank: Rank, region: Region) -> Result<()> {
        if self.is_below_watermark(region) { Ok(()) } else { self.check_arena(rank, region) }
    }

    /// Returns whether every rank has memory behind all of `region`, which then ends at the
    /// watermark or below. Arenas are not looked at.
    #[inline]
    pub(crate) fn is_below_watermark(&self, region: Region) -> bool {
        fits(region.offset.get(), region.len, self.watermark())
    }

    /// Checks that `rank` has memory behind all of `region`, which does not end below the
    /// watermark.
    #[inline(never)]
    fn check_arena(&self, rank: Rank, region: Region) -> Result<()> {
        let len = self.shape.len();
        let arena = self.arena_lens.get(rank.index()).map_or(0, |bytes| plain::load(bytes).min(len));
        if region.len == 0 || region.offset.get() >= len - arena {
            region.check("symmetric heap", len)
        } else {
            region.check("symmetric heap, as far as it was allocated", self.watermark())
        }
    }

    /// Returns a control structure at `offset` of the heap of `rank`.
    ///
    /// # Errors
    /// Fails as [`HeapView::span`] does, or with [`Error::Misaligned`].
    pub fn cell<T: SharedLayout>(&self, rank: Rank, offset: HeapOffset) -> Result<CellRef<T>> {
        self.reach(rank, Region::new(offset, size_of::<T>() as u64))?;
        let mapping = self.window.mapping(rank).expect("every rank is mapped, checked in `new`");
        mapping.cell(HEAP + offset.get())
    }

    /// Returns control structures, `count` in a row, at `offset` of the heap of `rank`.
    ///
    /// # Errors
    /// Fails as [`HeapView::cell`] does.
    pub fn cells<T: SharedLayout>(&self, rank: Rank, offset: HeapOffset, count: u64) -> Result<CellSlice<T>> {
        self.reach(rank, Region::new(offset, count.saturating_mul(size_of::<T>() as u64)))?;
        let mapping = self.window.mapping(rank).expect("every rank is mapped, checked in `new`");
        mapping.cells(HEAP + offset.get(), count)
    }

    /// Raises how many bytes of the heap's end have memory behind them. Only the rank itself does,
    /// in `SymmetricHeap::take_local`.
    pub(super) fn raise_arena(&self, len: u64) {
        plain::store(&self.arena_lens[self.rank.index()], len);
    }

    /// Raises the watermark. Only the rank itself does, in `SymmetricHeap::confirm`.
    pub(super) fn raise(&self, watermark: u64) {
        plain::store(&self.watermark, watermark);
    }
}
