//! The arguments of collective calls: device buffers, slices of ordinary memory, and blocks of a
//! buffer.

use std::marker::PhantomData;
use std::num::NonZero;

use bytemuck::Pod;

use crate::collective::{BlockLayout, CallBlock, Input, Output};
use crate::error::{Error, Result};
use crate::heap::{ArenaBuffer, DeviceBuffer, HeapOffset, Region};
use crate::reduce::{DataType, Element};

/// The input of a collective call. It is made from `&DeviceBuffer<T>` and `&ArenaBuffer<T>`, or
/// from `&[T]`, `&Vec<T>`, an array and whatever else lends a slice.
///
/// Heap buffers are read where they are, unless staging is quicker. Slices are copied through the
/// heap.
#[derive(Clone, Copy, Debug)]
pub struct SendBuffer<'a, T>(SendBytes<'a>, PhantomData<&'a [T]>);

/// The output of a collective call. It is made from `&DeviceBuffer<T>` and `&ArenaBuffer<T>`, or
/// from `&mut [T]`, `&mut Vec<T>`, an array and whatever else lends a slice.
#[derive(Debug)]
pub struct RecvBuffer<'a, T>(RecvBytes<'a>, PhantomData<&'a mut [T]>);

/// The input of a call whose [data type](DataType) is a value: a [`SendBuffer`] without its type.
/// It is made from a [`Region`] of this rank's heap, from `&DeviceBuffer<T>`, from `&[u8]`, and
/// from whatever else lends bytes. They need no alignment.
#[derive(Clone, Copy, Debug)]
pub struct SendBytes<'a>(pub(super) Send<'a>);

#[derive(Clone, Copy, Debug)]
pub(super) enum Send<'a> {
    Heap(Region, Home),
    Slice(&'a [u8]),
}

/// The output of a call whose [data type](DataType) is a value: a [`RecvBuffer`] without its type.
/// It is made from a [`Region`] of this rank's heap, from `&DeviceBuffer<T>`, from `&mut [u8]`, and
/// from whatever else lends bytes. They need no alignment.
#[derive(Debug)]
pub struct RecvBytes<'a>(pub(super) Recv<'a>);

#[derive(Debug)]
pub(super) enum Recv<'a> {
    Heap(Region, Home),
    Slice(&'a mut [u8]),
}

/// The heap that a buffer lies in: the address of its first byte, which no other heap has. A
/// [`Region`] is one of whatever heap it is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home(Option<NonZero<u64>>);

impl Home {
    const ANY: Self = Self(None);

    #[inline]
    fn of<T: Pod>(buffer: &DeviceBuffer<T>) -> Self {
        Self(NonZero::new(buffer.heap_start()))
    }

    /// Refuses a buffer of another heap than the caller's, such as that of an epoch before.
    #[inline]
    fn check(self, region: Region, heap: u64) -> Result<()> {
        if self.0.is_none_or(|start| start.get() == heap) {
            return Ok(());
        }
        let expected =
            "a buffer of the communicator's own epoch: allocate it anew after shrink, grow and recover";
        Err(Error::InvalidArgument { name: "the offset of a buffer", value: region.offset.get(), expected })
    }
}

impl<'a> SendBytes<'a> {
    /// No bytes.
    #[inline]
    pub(super) const fn none() -> Self {
        Self(Send::Slice(&[]))
    }

    /// Refuses a buffer of another heap than `heap`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub(super) fn of_heap(self, heap: impl FnOnce() -> u64) -> Result<Self> {
        if let Send::Heap(region, home) = &self.0 {
            home.check(*region, heap())?;
        }
        Ok(self)
    }

    /// Returns the number of its elements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub(super) fn count(&self, data_type: DataType) -> Result<u64> {
        let len = match &self.0 {
            Send::Heap(region, _) => region.len,
            Send::Slice(bytes) => bytes.len() as u64,
        };
        count("the number of bytes sent", len, data_type)
    }

    #[inline]
    pub(super) fn input(self) -> Input<'a> {
        match self.0 {
            Send::Heap(region, _) => Input::Heap(region.offset),
            Send::Slice(bytes) => Input::Memory(bytes),
        }
    }
}

impl<'a> RecvBytes<'a> {
    /// No bytes.
    #[inline]
    pub(super) const fn none() -> Self {
        Self(Recv::Slice(&mut []))
    }

    /// Refuses a buffer of another heap than `heap`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub(super) fn of_heap(self, heap: impl FnOnce() -> u64) -> Result<Self> {
        if let Recv::Heap(region, home) = &self.0 {
            home.check(*region, heap())?;
        }
        Ok(self)
    }

    /// Returns the number of its elements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub(super) fn count(&self, data_type: DataType) -> Result<u64> {
        let len = match &self.0 {
            Recv::Heap(region, _) => region.len,
            Recv::Slice(bytes) => bytes.len() as u64,
        };
        count("the number of bytes received", len, data_type)
    }

    /// Returns the input that begins `at` bytes into this output.
    #[inline]
    pub(super) fn as_input(&self, at: u64) -> Input<'static> {
        match &self.0 {
            Recv::Heap(region, _) => Input::Heap(HeapOffset::new(region.offset.get() + at)),
            Recv::Slice(_) => Input::InOutput(at),
        }
    }

    /// Returns it as an input, where it is no output.
    pub(super) fn into_input(self) -> Input<'a> {
        match self.0 {
            Recv::Heap(region, _) => Input::Heap(region.offset),
            Recv::Slice(bytes) => Input::Memory(bytes),
        }
    }

    /// Returns the output that begins `at` bytes into it. The input lies in it, too.
    pub(super) fn output_within(self, at: u64) -> Output<'a> {
        match self.0 {
            Recv::Heap(region, _) => Output::Heap(HeapOffset::new(region.offset.get() + at)),
            Recv::Slice(bytes) => Output::Within(bytes, at),
        }
    }

    #[inline]
    pub(super) fn output(self) -> Output<'a> {
        match self.0 {
            Recv::Heap(region, _) => Output::Heap(region.offset),
            Recv::Slice(bytes) => Output::Memory(bytes),
        }
    }
}

/// Returns the number of elements in `len` bytes.
#[inline]
fn count(name: &'static str, len: u64, data_type: DataType) -> Result<u64> {
    let size = data_type.size() as u64;
    if !len.is_multiple_of(size) {
        let expected = "a multiple of the size of an element";
        return Err(Error::InvalidArgument { name, value: len, expected });
    }
    Ok(len / size)
}

impl<T: Element> From<&DeviceBuffer<T>> for SendBuffer<'_, T> {
    #[inline]
    fn from(buffer: &DeviceBuffer<T>) -> Self {
        Self(buffer.into(), PhantomData)
    }
}

impl<T: Element> From<&ArenaBuffer<T>> for SendBuffer<'_, T> {
    #[inline]
    fn from(buffer: &ArenaBuffer<T>) -> Self {
        Self((&**buffer).into(), PhantomData)
    }
}

impl<'a, T: Element, S: AsRef<[T]> + ?Sized> From<&'a S> for SendBuffer<'a, T> {
    #[inline]
    fn from(slice: &'a S) -> Self {
        Self(SendBytes(Send::Slice(bytemuck::cast_slice(slice.as_ref()))), PhantomData)
    }
}

impl<T: Element> From<&DeviceBuffer<T>> for RecvBuffer<'_, T> {
    #[inline]
    fn from(buffer: &DeviceBuffer<T>) -> Self {
        Self(buffer.into(), PhantomData)
    }
}

impl<T: Element> From<&ArenaBuffer<T>> for RecvBuffer<'_, T> {
    #[inline]
    fn from(buffer: &ArenaBuffer<T>) -> Self {
        Self((&**buffer).into(), PhantomData)
    }
}

impl<'a, T: Element, S: AsMut<[T]> + ?Sized> From<&'a mut S> for RecvBuffer<'a, T> {
    #[inline]
    fn from(slice: &'a mut S) -> Self {
        Self(RecvBytes(Recv::Slice(bytemuck::cast_slice_mut(slice.as_mut()))), PhantomData)
    }
}

impl<'a, T> From<SendBuffer<'a, T>> for SendBytes<'a> {
    #[inline]
    fn from(buffer: SendBuffer<'a, T>) -> Self {
        buffer.0
    }
}

impl From<Region> for SendBytes<'_> {
    #[inline]
    fn from(region: Region) -> Self {
        Self(Send::Heap(region, Home::ANY))
    }
}

impl<T: Pod> From<&DeviceBuffer<T>> for SendBytes<'_> {
    #[inline]
    fn from(buffer: &DeviceBuffer<T>) -> Self {
        Self(Send::Heap(buffer.region(), Home::of(buffer)))
    }
}

impl<'a, S: AsRef<[u8]> + ?Sized> From<&'a S> for SendBytes<'a> {
    #[inline]
    fn from(bytes: &'a S) -> Self {
        Self(Send::Slice(bytes.as_ref()))
    }
}

impl<'a, T> From<RecvBuffer<'a, T>> for RecvBytes<'a> {
    #[inline]
    fn from(buffer: RecvBuffer<'a, T>) -> Self {
        buffer.0
    }
}

impl From<Region> for RecvBytes<'_> {
    #[inline]
    fn from(region: Region) -> Self {
        Self(Recv::Heap(region, Home::ANY))
    }
}

impl<T: Pod> From<&DeviceBuffer<T>> for RecvBytes<'_> {
    #[inline]
    fn from(buffer: &DeviceBuffer<T>) -> Self {
        Self(Recv::Heap(buffer.region(), Home::of(buffer)))
    }
}

impl<'a, S: AsMut<[u8]> + ?Sized> From<&'a mut S> for RecvBytes<'a> {
    #[inline]
    fn from(bytes: &'a mut S) -> Self {
        Self(Recv::Slice(bytes.as_mut()))
    }
}

/// The blocks of a buffer, by rank: their lengths and their first elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'b> {
    /// The number of elements of each block.
    pub counts: &'b [usize],
    /// The first element of each block.
    pub displacements: &'b [usize],
}

impl<'b> Blocks<'b> {
    /// Blocks of so many elements, each starting at its displacement.
    #[must_use]
    pub const fn new(counts: &'b [usize], displacements: &'b [usize]) -> Self {
        Self { counts, displacements }
    }

    /// Returns these blocks, one for each of `n_ranks`, of a buffer of `total` elements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more or fewer blocks; [`Error::OutOfRange`] for one outside
    /// the buffer.
    pub(super) fn within(self, total: u64, n_ranks: u32) -> Result<Vec<CallBlock>> {
        let expected = "one for each rank";
        for (name, len) in [
            ("the number of counts", self.counts.len()),
            ("the number of displacements", self.displacements.len()),
        ] {
            if len != n_ranks as usize {
                return Err(Error::InvalidArgument { name, value: len as u64, expected });
            }
        }
        let check = |(&count, &at): (&usize, &usize)| {
            let (count, at) = (count as u64, at as u64);
            match at.checked_add(count) {
                Some(end) if end <= total => Ok(CallBlock { at, count }),
                _ => {
                    Err(Error::OutOfRange { what: "block of a buffer", offset: at, len: count, limit: total })
                }
            }
        };
        self.counts.iter().zip(self.displacements).map(check).collect()
    }
}

/// Refuses blocks that overlap.
pub(super) fn check_apart(blocks: &[CallBlock]) -> Result<()> {
    let mut sorted: Vec<_> = blocks.iter().filter(|block| block.count > 0).collect();
    sorted.sort_by_key(|block| block.at);
    match sorted.windows(2).find(|pair| pair[0].at + pair[0].count > pair[1].at) {
        Some(pair) => Err(Error::InvalidArgument {
            name: "the displacement of a block that is received",
            value: pair[1].at,
            expected: "a place at or past the end of the block before it",
        }),
        None => Ok(()),
    }
}

/// Refuses blocks that are sent from `source` and overlap some that are received into `target`.
/// Both are heap buffers with elements of `size` bytes. The block from a rank may be the very one
/// that goes to it.
pub(super) fn check_distinct(source: Region, target: Region, layout: &BlockLayout, size: u64) -> Result<()> {
    if !source.overlaps(target) {
        return Ok(());
    }
    let places = |buffer: Region, blocks: &[CallBlock]| -> Vec<_> {
        let region = |block: &CallBlock| {
            Region::new(HeapOffset::new(buffer.offset.get() + block.at * size), block.count * size)
        };
        blocks.iter().map(region).collect()
    };
    let (sources, targets) = (places(source, &layout.sent), places(target, &layout.received));
    let is_hit = |&rank: &usize| {
        let place = sources[rank];
        let mut hit = targets.iter().enumerate().filter(|(_, target)| place.overlaps(**target));
        hit.any(|(other, target)| other != rank || *target != place)
    };
    match (0..sources.len()).find(is_hit) {
        Some(rank) => Err(Error::InvalidArgument {
            name: "the displacement of a block that is sent",
            value: layout.sent[rank].at,
            expected: "a block apart from all received ones, or the very block that comes from that rank",
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_block_for_each_rank_and_all_are_in_the_buffer() {
        let blocks = |counts, displacements| Blocks::new(counts, displacements).within(10, 2);
        assert_eq!(
            blocks(&[3, 0], &[7, 10]).unwrap(),
            [CallBlock { at: 7, count: 3 }, CallBlock { at: 10, count: 0 }]
        );
        assert!(matches!(blocks(&[3], &[7, 10]), Err(Error::InvalidArgument { value: 1, .. })));
        assert!(matches!(blocks(&[3, 0], &[7, 10, 0]), Err(Error::InvalidArgument { value: 3, .. })));
        assert!(matches!(blocks(&[3, 1], &[7, 10]), Err(Error::OutOfRange { offset: 10, .. })));
        assert!(matches!(blocks(&[usize::MAX, 1], &[7, 0]), Err(Error::OutOfRange { offset: 7, .. })));
    }

    #[test]
    fn blocks_that_are_received_may_touch_and_not_overlap() {
        let block = |at, count| CallBlock { at, count };
        assert!(check_apart(&[block(4, 2), block(0, 4), block(1, 0)]).is_ok());
        assert!(matches!(
            check_apart(&[block(3, 2), block(0, 4)]),
            Err(Error::InvalidArgument { value: 3, .. })
        ));
    }

    #[test]
    fn blocks_of_buffers_that_overlap_are_sent_from_where_none_is_received() {
        let block = |at, count| CallBlock { at, count };
        let region = |offset, len| Region::new(HeapOffset::new(offset), len);
        let check = |target: u64, sent: CallBlock, received: CallBlock| {
            let none = CallBlock { at: 0, count: 0 };
            let layout = BlockLayout { sent: vec![sent, none], received: vec![none, received] };
            check_distinct(region(128, 40), region(target, 40), &layout, 4)
        };
        for target in [80, 88, 168, 200] {
            assert!(check(target, block(0, 10), block(0, 10)).is_ok(), "buffers that touch at {target}");
        }
        // Elements 5 to 10 of what is sent are 0 to 5 of what is received.
        assert!(check(148, block(0, 5), block(0, 10)).is_ok());
        assert!(check(148, block(5, 5), block(5, 5)).is_ok());
        assert!(check(148, block(5, 0), block(0, 10)).is_ok());
        for sent in [block(0, 6), block(5, 1), block(9, 1)] {
            let refused = check(148, sent, block(0, 5));
            assert!(matches!(refused, Err(Error::InvalidArgument { value, .. }) if value == sent.at));
        }
    }

    #[test]
    fn what_comes_from_a_rank_may_take_the_very_place_of_what_goes_to_it() {
        let block = |at, count| CallBlock { at, count };
        let region = |offset, len| Region::new(HeapOffset::new(offset), len);
        let check = |target: u64, sent: [CallBlock; 2], received: [CallBlock; 2]| {
            let layout = BlockLayout { sent: sent.to_vec(), received: received.to_vec() };
            check_distinct(region(128, 40), region(target, 40), &layout, 4)
        };
        let blocks = [block(0, 4), block(4, 6)];
        assert!(check(128, blocks, blocks).is_ok());
        // Equal places by other displacements.
        assert!(check(124, blocks, [block(1, 4), block(5, 5)]).is_err());
        assert!(check(124, [block(0, 4), block(4, 5)], [block(1, 4), block(5, 5)]).is_ok());
        // That of the other rank; some of it; one of two.
        let swapped = [block(0, 5), block(5, 5)];
        assert!(check(128, swapped, [swapped[1], swapped[0]]).is_err());
        assert!(check(128, blocks, [block(0, 3), block(4, 6)]).is_err());
        assert!(check(128, [block(0, 4), block(8, 2)], [block(0, 4), block(4, 4)]).is_ok());
    }
}
