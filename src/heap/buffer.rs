//! Typed device memory: an array of Pod elements in this rank's part of the symmetric heap.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::error::{Error, Result};
use crate::heap::offset::{HeapOffset, Region, fits};
use crate::heap::view::HeapView;
use crate::shm::Span;

/// `count` elements of `T` in this rank's own heap, at an offset that is the same on every rank.
///
/// Elements are copied in and out; peers may overwrite them at any time, which the signals around a
/// copy are there to order. Dropping a buffer does not free its region: that is a collective step,
/// taken through the communicator.
#[derive(Clone, Debug)]
pub struct DeviceBuffer<T> {
    region: Region,
    count: usize,
    span: Span,
    element: PhantomData<fn(T) -> T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// The bytes of an element; a type without any cannot be stored.
    const SIZE: usize = {
        assert!(size_of::<T>() > 0, "a device buffer needs elements with at least one byte");
        size_of::<T>()
    };

    /// Returns the length in bytes of `count` elements.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it cannot be counted in 64 bits.
    pub fn bytes(count: usize) -> Result<u64> {
        let bytes = (count as u64).checked_mul(Self::SIZE as u64);
        bytes.ok_or(Error::OutOfRange {
            what: "device buffer elements",
            offset: 0,
            len: count as u64,
            limit: u64::MAX / Self::SIZE as u64,
        })
    }

    /// Returns the alignment that an allocation for this type asks for, in bytes.
    #[must_use]
    pub const fn align() -> u64 {
        align_of::<T>() as u64
    }

    /// Views a live `region` of `heap` as elements; every whole element that fits counts.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when the region is not within committed memory; [`Error::Misaligned`]
    /// when it does not start at a multiple of `T`'s alignment.
    pub fn new(heap: &HeapView, region: Region) -> Result<Self> {
        let (offset, align) = (region.offset.get(), Self::align());
        if !offset.is_multiple_of(align) {
            return Err(Error::Misaligned { what: "device buffer", offset, align });
        }
        let span = heap.span(heap.rank(), region)?;
        let count =
            usize::try_from(region.len / Self::SIZE as u64).expect("a mapped region fits the address space");
        Ok(Self { region, count, span, element: PhantomData })
    }

    /// Returns how many elements it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes it views, the same on every rank.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Returns the address of the first byte of the heap that it lies in.
    #[inline]
    pub(crate) fn heap_start(&self) -> u64 {
        (self.span.start().addr().get() as u64).wrapping_sub(self.region.offset.get())
    }

    /// Returns the bytes of the `count` elements from `index` on, the same on every rank.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they reach past the end.
    pub fn part(&self, index: usize, count: usize) -> Result<Region> {
        let offset = self.check(index, count)?;
        Ok(Region::new(HeapOffset::new(self.region.offset.get() + offset), (count * Self::SIZE) as u64))
    }

    /// Returns the memory itself.
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Copies `source` to the elements from `index` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they reach past the end; nothing has changed then.
    pub fn copy_from_slice(&self, index: usize, source: &[T]) -> Result<()> {
        let offset = self.check(index, source.len())?;
        self.span.copy_in(offset, bytemuck::cast_slice(source))
    }

    /// Copies the elements from `index` on to `target`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they reach past the end; nothing has changed then.
    pub fn copy_to_slice(&self, index: usize, target: &mut [T]) -> Result<()> {
        let offset = self.check(index, target.len())?;
        self.span.copy_out(offset, bytemuck::cast_slice_mut(target))
    }

    /// Reads the element at `index`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when there is none.
    pub fn get(&self, index: usize) -> Result<T> {
        let mut element = [T::zeroed()];
        self.copy_to_slice(index, &mut element)?;
        Ok(element[0])
    }

    /// Writes the element at `index`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when there is none.
    pub fn set(&self, index: usize, element: T) -> Result<()> {
        self.copy_from_slice(index, &[element])
    }

    /// Writes `element` to every place.
    pub fn fill(&self, element: T) {
        let block = vec![element; self.count.min(FILL_BLOCK.div_ceil(Self::SIZE))];
        let mut index = 0;
        while index < self.count {
            let count = block.len().min(self.count - index);
            self.copy_from_slice(index, &block[..count]).expect("it ends at the buffer's end");
            index += count;
        }
    }

    /// Copies all elements to host memory.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut elements = vec![T::zeroed(); self.count];
        self.copy_to_slice(0, &mut elements).expect("it is as long as the buffer");
        elements
    }

    /// Checks a range of elements and returns its offset in bytes.
    fn check(&self, index: usize, count: usize) -> Result<u64> {
        let (index, len, limit) = (index as u64, count as u64, self.count as u64);
        if fits(index, len, limit) {
            Ok(index * Self::SIZE as u64)
        } else {
            Err(Error::OutOfRange { what: "device buffer elements", offset: index, len, limit })
        }
    }
}

/// How many bytes of a pattern are laid out to fill a buffer with.
const FILL_BLOCK: usize = 16 << 10;

#[cfg(test)]
mod tests;
