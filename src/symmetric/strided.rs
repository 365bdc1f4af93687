//! Blocks of elements at equal distances, on both sides of a put or get.

use bytemuck::Pod;

use super::{Symmetric, TargetHeap};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;
use crate::trace::Verb;

/// Which elements a strided verb moves. All fields count elements.
///
/// ```
/// use shmccl::symmetric::StridedBlocks;
///
/// // The first column of a matrix with rows of 100 elements, packed.
/// let column = StridedBlocks::of_elements(50, 1, 100);
/// // The first three columns.
/// let columns = StridedBlocks { len: 3, target_stride: 3, ..column };
/// assert_eq!(columns.count, 50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedBlocks {
    /// How many blocks there are.
    pub count: usize,
    /// How many elements each block has.
    pub len: usize,
    /// The distance from block to block where they go.
    pub target_stride: usize,
    /// The distance from block to block where they come from.
    pub source_stride: usize,
}

impl StridedBlocks {
    /// Describes `count` single elements.
    #[must_use]
    pub const fn of_elements(count: usize, target_stride: usize, source_stride: usize) -> Self {
        Self { count, len: 1, target_stride, source_stride }
    }

    /// Returns whether there is nothing to move.
    const fn is_empty(self) -> bool {
        self.count == 0 || self.len == 0
    }

    /// Returns how many elements there are from the first to the last, where blocks are `stride`
    /// apart.
    fn extent(self, name: &'static str, stride: usize) -> Result<usize> {
        if self.is_empty() {
            return Ok(0);
        }
        if self.count > 1 && stride < self.len {
            let expected = "at least the length of a block";
            return Err(Error::InvalidArgument { name, value: stride as u64, expected });
        }
        let last = (self.count - 1).checked_mul(stride).and_then(|last| last.checked_add(self.len));
        let expected = "one by which all blocks are in 64 bits";
        last.ok_or(Error::InvalidArgument { name, value: stride as u64, expected })
    }

    /// Returns where each block starts in its target and in its source.
    fn starts(self) -> impl Iterator<Item = (usize, usize)> {
        let count = if self.is_empty() { 0 } else { self.count };
        (0..count).map(move |block| (block * self.target_stride, block * self.source_stride))
    }
}

impl Symmetric {
    /// Copies blocks of `source` to blocks that begin at `target` of the heap of `rank`.
    ///
    /// # Errors
    /// Nothing was moved.
    /// - [`Error::OutOfRange`] when the blocks reach past the end of either side.
    /// - [`Error::InvalidArgument`] for a stride that is less than a block.
    /// - Otherwise those of [`Symmetric::read`].
    pub fn put_strided<T: Pod>(
        &self,
        rank: Rank,
        target: HeapOffset,
        source: &[T],
        blocks: StridedBlocks,
    ) -> Result<()> {
        self.verb(Verb::PUT, rank, moved::<T>(blocks), |all| {
            check_local(source, blocks.extent("source_stride", blocks.source_stride)?)?;
            let extent = blocks.extent("target_stride", blocks.target_stride)?;
            all.change(all.blocks::<T>(rank, target, extent)?, |heap| {
                for (to, from) in blocks.starts() {
                    let to = target.get() + (to * size_of::<T>()) as u64;
                    heap.copy_in(to, bytemuck::cast_slice(&source[from..from + blocks.len]))?;
                    all.written(rank, HeapOffset::new(to), (blocks.len * size_of::<T>()) as u64);
                }
                Ok(())
            })
        })
    }

    /// Copies blocks that begin at `source` of the heap of `rank` to blocks of `target`.
    ///
    /// # Errors
    /// Fails as [`Symmetric::put_strided`] does.
    pub fn get_strided<T: Pod>(
        &self,
        rank: Rank,
        source: HeapOffset,
        target: &mut [T],
        blocks: StridedBlocks,
    ) -> Result<()> {
        self.verb(Verb::GET, rank, moved::<T>(blocks), |all| {
            check_local(target, blocks.extent("target_stride", blocks.target_stride)?)?;
            let extent = blocks.extent("source_stride", blocks.source_stride)?;
            let heap = &all.blocks::<T>(rank, source, extent)?.heap;
            for (to, from) in blocks.starts() {
                let from = source.get() + (from * size_of::<T>()) as u64;
                heap.copy_out(from, bytemuck::cast_slice_mut(&mut target[to..to + blocks.len]))?;
            }
            Ok(())
        })
    }

    /// Returns what is reached of `rank`, where `extent` elements from `offset` on may be touched.
    fn blocks<T>(&self, rank: Rank, offset: HeapOffset, extent: usize) -> Result<&TargetHeap> {
        let len = (extent as u64).saturating_mul(size_of::<T>() as u64);
        self.reach(rank, Region::new(offset, len))
    }
}

/// Returns how many bytes are moved.
fn moved<T>(blocks: StridedBlocks) -> u64 {
    (blocks.count as u64).saturating_mul(blocks.len as u64).saturating_mul(size_of::<T>() as u64)
}

/// Refuses ordinary memory that has fewer than `extent` elements.
fn check_local<T>(elements: &[T], extent: usize) -> Result<()> {
    if extent <= elements.len() {
        return Ok(());
    }
    let (len, limit) = (extent as u64, elements.len() as u64);
    Err(Error::OutOfRange { what: "elements of a strided verb", offset: 0, len, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_reaches_from_the_first_element_to_the_last() {
        let extent = |count, len, stride| {
            let blocks = StridedBlocks { count, len, target_stride: stride, source_stride: 0 };
            blocks.extent("target_stride", stride)
        };
        assert_eq!([extent(0, 3, 0), extent(4, 0, 0), extent(1, 3, 0)].map(Result::unwrap), [0, 0, 3]);
        assert_eq!([extent(4, 1, 1), extent(4, 2, 5), extent(3, 5, 5)].map(Result::unwrap), [4, 17, 15]);
        for refused in [extent(2, 3, 2), extent(2, 1, 0), extent(3, 1, usize::MAX), extent(2, 2, usize::MAX)]
        {
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        }
    }
}
