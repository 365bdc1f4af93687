//! Elements and ranges of elements.

use bytemuck::Pod;

use super::Symmetric;
use crate::error::Result;
use crate::heap::{HeapOffset, HeapPlace, Region};
use crate::rank::Rank;
use crate::shm::CacheHint;
use crate::trace::Verb;

impl Symmetric {
    /// Reads one element at `source` of the heap of `rank`. An element of 1, 2, 4 or 8 bytes comes
    /// whole if aligned.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for bytes that are not allocated;
    /// [`Error::InvalidRank`](crate::Error::InvalidRank);
    /// [`Error::Unavailable`](crate::Error::Unavailable) when the rank has left the job. Every verb
    /// has these three.
    #[inline]
    pub fn read<T: Pod>(&self, rank: Rank, source: HeapOffset) -> Result<T> {
        let at_hand = self.at_hand(rank, Region::new(source, size_of::<T>() as u64));
        match at_hand.and_then(|reached| reached.heap.read_word(source.get())) {
            Some(value) => Ok(value),
            None => self.read_watched(rank, source),
        }
    }

    #[inline(never)]
    fn read_watched<T: Pod>(&self, rank: Rank, source: HeapOffset) -> Result<T> {
        let len = size_of::<T>() as u64;
        self.verb(Verb::READ, rank, len, |all| {
            all.reach(rank, Region::new(source, len))?.heap.read(source.get())
        })
    }

    /// Writes one element at `target` of the heap of `rank`. An element of 1, 2, 4 or 8 bytes
    /// arrives whole if aligned.
    ///
    /// # Errors
    /// Fails as [`Symmetric::read`] does; nothing was written.
    #[inline]
    pub fn write<T: Pod>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<()> {
        let at_hand = self.at_hand(rank, Region::new(target, size_of::<T>() as u64));
        let write = |reached| self.change(reached, |heap| heap.write_word(target.get(), value));
        if at_hand.is_some_and(write) { Ok(()) } else { self.write_watched(rank, target, value) }
    }

    #[inline(never)]
    fn write_watched<T: Pod>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<()> {
        let len = size_of::<T>() as u64;
        self.verb(Verb::WRITE, rank, len, |all| {
            let reached = all.reach(rank, Region::new(target, len))?;
            all.change(reached, |heap| heap.write(target.get(), value))
        })
    }

    /// Copies ordinary memory of this process to `target` of the heap of `rank`.
    ///
    /// # Errors
    /// Fails as [`Symmetric::read`] does; nothing was moved.
    #[inline]
    pub fn put<T: Pod>(&self, rank: Rank, target: HeapOffset, source: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(source);
        let len = bytes.len() as u64;
        self.verb(Verb::PUT, rank, len, |all| {
            let reached = all.reach(rank, Region::new(target, len))?;
            all.change(reached, |heap| {
                heap.copy_in(target.get(), bytes)?;
                all.written(rank, target, len);
                Ok(())
            })
        })
    }

    /// Copies the elements at `source` of the heap of `rank` to ordinary memory of this process.
    ///
    /// # Errors
    /// Fails as [`Symmetric::read`] does; nothing was moved.
    #[inline]
    pub fn get<T: Pod>(&self, rank: Rank, source: HeapOffset, target: &mut [T]) -> Result<()> {
        let bytes = bytemuck::cast_slice_mut(target);
        let len = bytes.len() as u64;
        self.verb(Verb::GET, rank, len, |all| {
            all.reach(rank, Region::new(source, len))?.heap.copy_out(source.get(), bytes)
        })
    }

    /// Copies `len` bytes from one heap to another, or within one. The ranges may overlap.
    ///
    /// # Errors
    /// Fails as [`Symmetric::read`] does, for either end; nothing was moved.
    #[inline]
    pub fn copy(&self, source: HeapPlace, target: HeapPlace, len: u64) -> Result<()> {
        self.verb(Verb::PUT, target.rank, len, |all| {
            let (from, to) = (all.place(source)?, all.place(target)?);
            all.change(all.target(target.rank)?, |_| {
                all.heaps.copy(from, to, len, CacheHint::Keep)?;
                all.written(target.rank, target.offset, len);
                Ok(())
            })
        })
    }
}
