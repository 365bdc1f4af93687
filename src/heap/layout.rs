//! Where things are in a rank's segment. The same in every segment of a job; part of the layout
//! version.
//!
//! | offset | bytes | what | written by | read by |
//! |---|---|---|---|---|
//! | `0` | 4 KiB | [header](crate::sync::header) | the rank, once | whoever attaches |
//! | [`MEMORY_TABLE`] | 512 x 32 | [`registered`](super::registered) | the rank | its proxy |
//! | [`FIFOS`] | 8 x 16 KiB | fifos: header, at 8 KiB the 512 slots | the rank, its proxy | both |
//! | [`DOORBELLS`] | 8 x 128 | a proxy asleep, without work | the rank, its proxy | both |
//! | [`COMPLETIONS`] | 8 x 128 | a producer asleep (flush, full) | the rank, its proxy | both |
//! | [`WATERMARK`] | 128 | how much of the heap all ranks have memory for | the rank | proxies |
//! | [`MESSAGE_PARK`] | 128 | the rank asleep (no message, no room) | the rank, its peers | both |
//! | [`ROSTER`] | 128 | how often producers have come or gone | the rank's threads | its proxy |
//! | [`ARENA_LEN`] | 128 | how much of the heap's end the arena has memory for | the rank | all |
//! | [`WORD_PARK`] | 128 | the rank asleep (no word changed) | the rank, its peers | both |
//! | [`LOCK_WISHES`] | 128 | [`WishCell`]: locks that it waits for | the rank's threads | all |
//! | [`SEMAPHORES`] | 16 x 128 per rank | inbound semaphores, by id | one sender each | the rank |
//! | [`HEAP`] | as long as asked for | this rank's part of the symmetric heap | all | all |
//!
//! What comes before the heap is at most [`CONTROL_LEN`] bytes. Of those the first [`control_len`]
//! are in use, which depends on the number of ranks, and are committed when the segment is made.
//! Between that and the heap, which starts at a huge page, nothing is ever touched. All-zero bytes
//! are the initial state of all of it.

use shmccl_proxy::{FifoHeader, MemoryId, Roster, SemaphoreId, Slot, Snapshot};

use crate::error::{Error, Result};
use crate::heap::registered::TABLE_WORDS;
use crate::heap::symmetric::CHUNK;
use crate::rank::{MAX_RANKS, check_n_ranks};
use crate::shm::segment::{MAX_LEN, PAGE};
use crate::shm::{Backing, CellRef, CellSlice, Identity, Mapping, Segment, SharedLayout};
use crate::sync::atomic::AtomicU64;
use crate::sync::header::HEADER_LEN;
use crate::sync::{ParkCell, SemaphoreCell, WishCell};

/// How many trigger fifos a rank has.
pub const N_FIFOS: u32 = 8;
/// How many slots each fifo has.
pub const FIFO_SLOTS: u64 = 512;
/// The longest heap that one rank can have, in bytes: the longest segment less what comes before
/// the heap.
pub const MAX_HEAP_LEN: u64 = MAX_LEN - HEAP;

/// Where the table of registered memory starts.
pub const MEMORY_TABLE: u64 = 0x1000;
/// Where the fifos start.
pub const FIFOS: u64 = 0x5000;
/// Where the park cells start that proxies sleep on.
pub const DOORBELLS: u64 = 0x25000;
/// Where the park cells start that producers sleep on.
pub const COMPLETIONS: u64 = 0x25400;
/// Where the watermark of the heap is.
pub const WATERMARK: u64 = 0x25800;
/// Where the park cell is that the rank sleeps on when it waits for several peers.
pub const MESSAGE_PARK: u64 = 0x25880;
/// Where the roster of the fifos is.
pub const ROSTER: u64 = 0x25900;
/// Where it stands how many bytes of the heap's end have memory behind them on this rank.
pub const ARENA_LEN: u64 = 0x25980;
/// Where the park cell is that the rank sleeps on until some word of its heap changes.
pub const WORD_PARK: u64 = 0x25a00;
/// Where the rank's wishes for locks are.
pub const LOCK_WISHES: u64 = 0x25a80;
/// Where the semaphores start.
pub const SEMAPHORES: u64 = 0x26000;
/// The most bytes that are in use before the heap: those of [`MAX_RANKS`] ranks.
pub const CONTROL_LEN: u64 = control_len(MAX_RANKS);
/// Where the heap starts.
pub const HEAP: u64 = CHUNK;

/// How many semaphores each peer has.
pub(crate) const SEMAPHORES_PER_RANK: u32 = 16;

/// The distance from fifo to fifo.
const FIFO_STRIDE: u64 = 0x4000;
/// Where the slots of a fifo start, from its header.
const FIFO_SLOTS_AT: u64 = 0x2000;
/// The distance from park cell to park cell: a pair of cache lines.
const PARK_STRIDE: u64 = 128;
/// Why a control structure is always found.
const CHECKED: &str = "bounds and alignment are checked in SegmentCells::new and by the const assertions";

const _: () = {
    assert!(HEADER_LEN <= MEMORY_TABLE);
    assert!(
        size_of::<SemaphoreCell>() == 128
            && align_of::<SemaphoreCell>() == 128
            && SEMAPHORES.is_multiple_of(128)
    );
    assert!(MAX_RANKS * SEMAPHORES_PER_RANK <= SemaphoreId::LIMIT);
    assert!(size_of::<AtomicU64>() == 8 && TABLE_WORDS as u64 == MemoryId::LIMIT as u64 * 4);
    assert!(MEMORY_TABLE.is_multiple_of(128) && MEMORY_TABLE + TABLE_WORDS as u64 * 8 == FIFOS);
    assert!(align_of::<FifoHeader>() <= 4096 && align_of::<Slot>() == 16 && size_of::<Slot>() == 16);
    assert!(
        size_of::<FifoHeader>() as u64 <= FIFO_SLOTS_AT && FIFO_SLOTS_AT + FIFO_SLOTS * 16 == FIFO_STRIDE
    );
    assert!(FIFOS.is_multiple_of(4096) && FIFOS + N_FIFOS as u64 * FIFO_STRIDE == DOORBELLS);
    assert!(size_of::<ParkCell>() as u64 <= PARK_STRIDE && align_of::<ParkCell>() as u64 <= PARK_STRIDE);
    assert!(DOORBELLS + N_FIFOS as u64 * PARK_STRIDE == COMPLETIONS);
    assert!(COMPLETIONS + N_FIFOS as u64 * PARK_STRIDE == WATERMARK);
    assert!(WATERMARK + 128 == MESSAGE_PARK);
    assert!(MESSAGE_PARK + PARK_STRIDE == ROSTER);
    assert!(ROSTER + 128 == ARENA_LEN);
    assert!(ARENA_LEN + 128 == WORD_PARK);
    assert!(WORD_PARK + PARK_STRIDE == LOCK_WISHES);
    assert!(LOCK_WISHES + size_of::<WishCell>() as u64 <= SEMAPHORES);
    assert!(SEMAPHORES.is_multiple_of(PAGE) && CONTROL_LEN <= HEAP);
};

/// How many heaps a job has, and how long each of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapShape {
    n_ranks: u32,
    len: u64,
}

impl HeapShape {
    /// Describes the heaps of `n_ranks` ranks of at least `heap_len` bytes each, which are rounded
    /// up to 2 MiB.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for `n_ranks`, or when `heap_len` is more than [`MAX_HEAP_LEN`].
    pub fn new(n_ranks: u32, heap_len: u64) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        if heap_len > MAX_HEAP_LEN {
            let expected = "at most 2 MiB less than 1 TiB";
            return Err(Error::InvalidArgument { name: "heap length", value: heap_len, expected });
        }
        Ok(Self { n_ranks, len: heap_len.next_multiple_of(CHUNK) })
    }

    /// Returns how many ranks there are.
    #[must_use]
    pub const fn n_ranks(self) -> u32 {
        self.n_ranks
    }

    /// Returns the length of each heap in bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Returns whether the heaps have no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the length of each rank's segment in bytes: a multiple of 2 MiB, so a fit stride for
    /// the window.
    #[must_use]
    pub const fn segment_len(self) -> u64 {
        HEAP + self.len
    }
}

/// Returns how many bytes of a segment are in use before the heap, in a job of `n_ranks`: whole
/// pages.
#[must_use]
pub const fn control_len(n_ranks: u32) -> u64 {
    (SEMAPHORES + n_ranks as u64 * SEMAPHORES_PER_RANK as u64 * 128).next_multiple_of(PAGE)
}

/// Makes a rank's segment and commits its control structures; the heap is reserved only.
///
/// # Errors
/// Fails as [`Segment::create`] or [`Segment::commit`] does.
pub fn create_segment(backing: &Backing, shape: HeapShape, identity: Identity) -> Result<Segment> {
    let segment = Segment::create(backing, shape.segment_len(), identity)?;
    segment.commit(0, control_len(shape.n_ranks))?;
    Ok(segment)
}

/// A trigger fifo as it lies in a segment.
#[derive(Clone, Debug)]
pub struct FifoCells {
    /// The positions and counters of the fifo.
    pub header: CellRef<FifoHeader>,
    /// The ring of the fifo.
    pub slots: CellSlice<Slot>,
    /// What its proxy sleeps on when there is nothing to serve.
    pub doorbell: CellRef<ParkCell>,
    /// What its producers sleep on when they flush, or when it is full.
    pub completion: CellRef<ParkCell>,
}

impl FifoCells {
    /// Reads its counters, which costs it nothing.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.header.snapshot(FIFO_SLOTS)
    }
}

/// Finds the control structures in the mapping of one rank's segment.
#[derive(Clone, Debug)]
pub struct SegmentCells {
    mapping: Mapping,
}

impl SegmentCells {
    /// Looks at `mapping`, which starts where a rank's segment starts, and has as many semaphores
    /// as there is room for.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is too short for the other control structures;
    /// [`Error::Misaligned`] when it does not start at a page.
    pub fn new(mapping: Mapping) -> Result<Self> {
        let what = "control structures of a segment";
        if mapping.len() < SEMAPHORES {
            let (len, limit) = (SEMAPHORES, mapping.len());
            return Err(Error::OutOfRange { what, offset: 0, len, limit });
        }
        let offset = mapping.base().addr().get() as u64;
        if !offset.is_multiple_of(PAGE) {
            return Err(Error::Misaligned { what, offset, align: PAGE });
        }
        Ok(Self { mapping })
    }

    /// Returns all inbound semaphores of the rank; the index is the semaphore id.
    #[must_use]
    pub fn semaphores(&self) -> CellSlice<SemaphoreCell> {
        let room = self.mapping.len().min(CONTROL_LEN) - SEMAPHORES;
        self.cells(SEMAPHORES, room / size_of::<SemaphoreCell>() as u64)
    }

    /// Returns the words of the rank's table of registered memory.
    #[must_use]
    pub fn memory_table(&self) -> CellSlice<AtomicU64> {
        self.cells(MEMORY_TABLE, TABLE_WORDS as u64)
    }

    /// Returns how many bytes of the heap every rank has memory behind.
    #[must_use]
    pub fn watermark(&self) -> CellRef<AtomicU64> {
        self.cell(WATERMARK)
    }

    /// Returns how many bytes of the heap's end have memory behind them on this rank.
    #[must_use]
    pub fn arena_len(&self) -> CellRef<AtomicU64> {
        self.cell(ARENA_LEN)
    }

    /// Returns what the rank sleeps on when it waits for several peers.
    #[must_use]
    pub fn message_park(&self) -> CellRef<ParkCell> {
        self.cell(MESSAGE_PARK)
    }

    /// Returns what the rank sleeps on until some word of its heap changes.
    #[must_use]
    pub fn word_park(&self) -> CellRef<ParkCell> {
        self.cell(WORD_PARK)
    }

    /// Returns the locks that threads of the rank wait for.
    #[must_use]
    pub fn lock_wishes(&self) -> CellRef<WishCell> {
        self.cell(LOCK_WISHES)
    }

    /// Returns where the rank tells its proxy thread that a producer of one of its fifos has come
    /// or gone.
    #[must_use]
    pub fn roster(&self) -> CellRef<Roster> {
        self.cell(ROSTER)
    }

    /// Returns the rank's fifo number `index`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless `index` is below [`N_FIFOS`].
    pub fn fifo(&self, index: u32) -> Result<FifoCells> {
        if index >= N_FIFOS {
            let (offset, limit) = (index.into(), N_FIFOS.into());
            return Err(Error::OutOfRange { what: "fifos of a rank", offset, len: 1, limit });
        }
        let index = u64::from(index);
        let at = FIFOS + index * FIFO_STRIDE;
        Ok(FifoCells {
            header: self.cell(at),
            slots: self.cells(at + FIFO_SLOTS_AT, FIFO_SLOTS),
            doorbell: self.cell(DOORBELLS + index * PARK_STRIDE),
            completion: self.cell(COMPLETIONS + index * PARK_STRIDE),
        })
    }

    fn cell<T: SharedLayout>(&self, offset: u64) -> CellRef<T> {
        self.mapping.cell(offset).expect(CHECKED)
    }

    fn cells<T: SharedLayout>(&self, offset: u64, count: u64) -> CellSlice<T> {
        self.mapping.cells(offset, count).expect(CHECKED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> SegmentCells {
        SegmentCells::new(Mapping::boxed(CONTROL_LEN).unwrap()).unwrap()
    }

    /// First address and length of every structure, found the way the engine finds them.
    fn places(cells: &SegmentCells) -> Vec<(usize, usize)> {
        fn place<T>(cells: &[T]) -> (usize, usize) {
            (cells.as_ptr().addr(), size_of_val(cells))
        }
        let mut places = vec![place(&cells.semaphores()), place(&cells.memory_table())];
        places.push(place(std::slice::from_ref(&*cells.watermark())));
        places.push(place(std::slice::from_ref(&*cells.message_park())));
        places.push(place(std::slice::from_ref(&*cells.word_park())));
        places.push(place(std::slice::from_ref(&*cells.lock_wishes())));
        places.push(place(std::slice::from_ref(&*cells.roster())));
        places.push(place(std::slice::from_ref(&*cells.arena_len())));
        for index in 0..N_FIFOS {
            let fifo = cells.fifo(index).unwrap();
            places.push(place(std::slice::from_ref(&*fifo.header)));
            places.push(place(&fifo.slots));
            places.push(place(std::slice::from_ref(&*fifo.doorbell)));
            places.push(place(std::slice::from_ref(&*fifo.completion)));
        }
        places
    }

    #[test]
    fn no_two_structures_overlap_or_share_a_pair_of_cache_lines() {
        let cells = cells();
        let base = cells.mapping.base().as_ptr().addr();
        let mut places = places(&cells);
        places.push((base, usize::try_from(HEADER_LEN).unwrap()));
        places.sort_unstable();
        for pair in places.windows(2) {
            assert!((pair[0].0 + pair[0].1).next_multiple_of(128) <= pair[1].0, "{pair:x?}");
        }
        let last = places.last().unwrap();
        assert!((last.0 - base + last.1) as u64 <= CONTROL_LEN);
    }

    #[test]
    fn a_fifo_that_does_not_exist_is_an_error() {
        assert!(matches!(cells().fifo(N_FIFOS), Err(Error::OutOfRange { .. })));
        assert!(cells().fifo(u32::MAX).is_err());
    }

    #[test]
    fn a_mapping_too_short_or_not_at_a_page_is_an_error() {
        assert!(SegmentCells::new(Mapping::boxed(SEMAPHORES - 1).unwrap()).is_err());
        let crooked = Mapping::boxed(2 * CONTROL_LEN).unwrap().part(128, CONTROL_LEN).unwrap();
        assert!(matches!(SegmentCells::new(crooked), Err(Error::Misaligned { .. })));
    }

    #[test]
    fn a_fresh_segment_has_memory_behind_its_control_structures_and_they_are_zero() {
        for (n_ranks, len) in [(1, 0x27000), (2, 0x27000), (3, 0x28000), (64, 0x46000), (256, CONTROL_LEN)] {
            let shape = HeapShape::new(n_ranks, 1).unwrap();
            let segment = create_segment(&Backing::Anonymous, shape, Identity::default()).unwrap();
            let committed = nix::sys::stat::fstat(&segment).unwrap().st_blocks.cast_unsigned() * 512;
            assert!(control_len(n_ranks) == len && committed >= len, "{committed} bytes of {len}");
            let mapping = segment.map().unwrap();
            let mut bytes = vec![1; usize::try_from(len - HEADER_LEN).unwrap()];
            mapping.span(HEADER_LEN, len - HEADER_LEN).unwrap().copy_out(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert_eq!(SegmentCells::new(mapping).unwrap().semaphores().len(), 4096);
        }
    }

    #[test]
    fn a_copy_of_what_is_in_use_has_the_semaphores_of_all_ranks() {
        for n_ranks in [1, 2, 3, 65, 256] {
            let copy = SegmentCells::new(Mapping::boxed(control_len(n_ranks)).unwrap()).unwrap();
            assert_eq!(copy.semaphores().len(), (n_ranks as usize * 16).next_multiple_of(32));
        }
    }

    #[test]
    fn heaps_are_rounded_up_to_huge_pages_and_bounded() {
        let shape = HeapShape::new;
        assert!(shape(2, 0).unwrap().is_empty());
        assert_eq!(shape(2, 1).unwrap().len(), CHUNK);
        assert_eq!(shape(2, CHUNK + 1).unwrap().len(), 2 * CHUNK);
        assert_eq!(shape(2, MAX_HEAP_LEN).unwrap().segment_len(), MAX_LEN);
        assert!(shape(2, MAX_HEAP_LEN + 1).is_err() && shape(2, u64::MAX).is_err());
        assert!(shape(0, 1).is_err());
    }
}
