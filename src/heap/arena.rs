//! Local allocation: memory that one rank takes from its own heap when it likes, and that all ranks
//! reach.
//!
//! Symmetric allocations fill a heap from its start, in steps of all ranks. The *arena* of a rank
//! takes what it needs from the end, by itself, so its offsets differ from rank to rank. Each rank
//! keeps the book of its own arena. Places in the book count from the end of the heap: the lowest
//! ones are the last bytes.
//!
//! # Two ends
//! Symmetric allocations must find the same place on all ranks, whatever their arenas hold. So a
//! full heap decides whether an allocation succeeds, never where it is. A symmetric one that some
//! rank's arena leaves no room for fails on all ranks. An arena takes three quarters of the heap at
//! most, so that there is room for communicators.
//!
//! # Memory before use
//! An offset in the arena reaches a peer after the owner has committed the memory: `ARENA_LEN` of
//! the owner's segment says how much of the heap's end is committed, and only rises. It is stored
//! before the buffer is returned. Whatever tells a peer of the offset (C1 of a post, S1 of a
//! signal, F1 of a trigger) carries it, so the word orders nothing itself. A peer checks it on each
//! use, as it checks the watermark for symmetric memory (`src/heap/view.rs`).

use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::{Error, Result};
use crate::heap::allocator::{Allocator, GRANULE, taken};
use crate::heap::buffer::DeviceBuffer;
use crate::heap::offset::Region;
use crate::heap::symmetric::{CHUNK, HeapUsage, MAX_ALIGN, SymmetricHeap};

/// The memory that one rank allocates without the others. It is cheap to clone, for any thread, and
/// outlives the communicator.
///
/// Nothing is reserved for it beside the heap, and no memory is taken before the first allocation.
/// Freed memory keeps its pages and its old contents, and is handed out again. It may be up to
/// three quarters of the heap.
#[derive(Clone, Debug)]
pub struct Arena {
    heap: Arc<SymmetricHeap>,
}

/// Elements in the arena of this rank, freed on drop: a [`DeviceBuffer`] at an offset of this
/// rank's own.
///
/// It is an operand like any other buffer of the heap: of collective calls, messages, channels and
/// registered memory. A peer that puts into it has to be told its offset. It keeps its memory
/// mapped, and can be read and written after the communicator is gone.
///
/// The buffer belongs to the epoch in which it was made, like every buffer of a heap. After it is
/// dropped, the memory is handed out again: no clone of the [`DeviceBuffer`] in it, and no peer, is
/// to use it then. In a child of a fork nothing is freed.
#[derive(Debug)]
pub struct ArenaBuffer<T> {
    buffer: DeviceBuffer<T>,
    heap: Arc<SymmetricHeap>,
    /// The place of the buffer in the book, unless that stays taken.
    place: Option<Region>,
}

/// Which bytes of an arena are taken, and how many have memory behind them; counted from the end of
/// the heap.
#[derive(Debug)]
pub(super) struct ArenaBook {
    allocator: Allocator,
    backed: u64,
}

impl Arena {
    /// Allocates from the end of `heap`.
    pub(crate) fn new(heap: Arc<SymmetricHeap>) -> Self {
        Self { heap }
    }

    /// Allocates `count` elements, at an address that is a multiple of 64 at least. Not collective:
    /// any thread may call it at any time, also while the rank is in a collective call.
    ///
    /// Elements are zero in fresh memory; reused memory keeps its old contents. An empty buffer has
    /// an address of its own, too.
    ///
    /// # Errors
    /// - [`Error::OutOfMemory`] when the arena is full.
    /// - [`Error::ResourceLimit`] when the system has no memory. Nothing was allocated.
    /// - [`Error::Unavailable`] in a child that the rank has forked.
    pub fn alloc<T: Pod>(&self, count: usize) -> Result<ArenaBuffer<T>> {
        self.alloc_aligned(count, DeviceBuffer::<T>::align())
    }

    /// Allocates as [`Arena::alloc`] does, at an address that is a multiple of `align`, too.
    ///
    /// # Errors
    /// Fails as [`Arena::alloc`] does, or with [`Error::InvalidArgument`] unless `align` is a power
    /// of two up to 2 MiB.
    pub fn alloc_aligned<T: Pod>(&self, count: usize, align: u64) -> Result<ArenaBuffer<T>> {
        let len = DeviceBuffer::<T>::bytes(count).unwrap_or(u64::MAX);
        let align = if align.is_power_of_two() { align.max(DeviceBuffer::<T>::align()) } else { align };
        let place = self.heap.take_local(len, align)?;
        let offset = self.heap.region_of_place(place).offset;
        let heap = Arc::clone(&self.heap);
        let buffer = DeviceBuffer::new(&heap, Region::new(offset, len));
        Ok(ArenaBuffer { buffer: buffer.inspect_err(|_| heap.give_back(place))?, heap, place: Some(place) })
    }

    /// Returns what the arena holds now. Its length is what it can hold beside the symmetric
    /// allocations that there are.
    #[must_use]
    pub fn usage(&self) -> HeapUsage {
        self.heap.local_usage()
    }
}

impl<T> Deref for ArenaBuffer<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T> ArenaBuffer<T> {
    /// Drops it and leaves its memory taken for as long as there is the heap: peers may touch it.
    pub(crate) fn leave_taken(mut self) {
        self.place = None;
    }
}

impl<T> Drop for ArenaBuffer<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.heap.give_back(place);
        }
    }
}

impl ArenaBook {
    pub(super) fn new(heap_len: u64) -> Result<Self> {
        Ok(Self { allocator: Allocator::new(heap_len)?, backed: 0 })
    }

    /// Returns how many bytes from the end of the heap it takes up, live and between live ones.
    pub(super) fn extent(&self) -> u64 {
        self.allocator.end()
    }

    /// Sets a place aside that ends `limit` bytes from the end of the heap, or nearer.
    pub(super) fn take(&mut self, limit: u64, len: u64, align: u64) -> Result<Region> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            let expected = "a power of two up to 2 MiB";
            return Err(Error::InvalidArgument { name: "align", value: align, expected });
        }
        // Both ends of a place are multiples of the alignment, since it begins at its end.
        let align = align.max(GRANULE);
        let whole = taken(len).and_then(|len| len.checked_next_multiple_of(align)).unwrap_or(len);
        self.allocator.allocate_below(limit.min(self.most()), whole, align)
    }

    /// Gives a place back. The memory behind it stays.
    pub(super) fn give_back(&mut self, place: Region) {
        self.allocator.free(place).expect("it was taken, and not given back");
    }

    /// Returns the bytes of the heap that need memory before `place` is used.
    pub(super) fn missing(&self, place: Region) -> Range<u64> {
        let heap_len = self.allocator.len();
        heap_len - self.backed_with(place)..heap_len - self.backed
    }

    /// Takes note that [`ArenaBook::missing`] has got its memory, and returns how many bytes from
    /// the end of the heap have some.
    pub(super) fn backed(&mut self, place: Region) -> u64 {
        self.backed = self.backed_with(place);
        self.backed
    }

    /// Returns what it holds, when it may reach `limit` bytes from the end of the heap.
    pub(super) fn usage(&self, limit: u64) -> HeapUsage {
        let len = limit.min(self.most());
        HeapUsage {
            len,
            free: self.allocator.free_below(len),
            contiguous: self.allocator.contiguous_below(len, 1),
            committed: self.backed,
            live: self.allocator.live(),
            statics: 0,
        }
    }

    fn backed_with(&self, place: Region) -> u64 {
        let end = (place.offset.get() + place.len).next_multiple_of(CHUNK);
        end.min(self.allocator.len()).max(self.backed)
    }

    /// Returns the most that it takes up.
    fn most(&self) -> u64 {
        self.allocator.len() / 4 * 3
    }
}

#[cfg(test)]
mod tests;
