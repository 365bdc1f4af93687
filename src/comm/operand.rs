//! What a collective call reads and writes: device buffers, or slices of ordinary memory.

use crate::collective::{Input, Output};
use crate::heap::{DeviceBuffer, HeapOffset, Region};
use crate::reduce::Element;

/// The input of a collective call. Made from `&DeviceBuffer<T>`, `&[T]`, `&Vec<T>` or an array.
///
/// Buffers in the symmetric heap are read where they are, unless staging is quicker; slices are copied through it.
#[derive(Clone, Copy, Debug)]
pub struct SendBuffer<'a, T>(pub(super) Send<'a, T>);

#[derive(Clone, Copy, Debug)]
pub(super) enum Send<'a, T> {
    Heap(Region),
    Slice(&'a [T]),
}

/// The output of a collective call. Made from `&DeviceBuffer<T>`, `&mut [T]`, `&mut Vec<T>` or an array.
#[derive(Debug)]
pub struct RecvBuffer<'a, T>(pub(super) Recv<'a, T>);

#[derive(Debug)]
pub(super) enum Recv<'a, T> {
    Heap(Region),
    Slice(&'a mut [T]),
}

impl<'a, T: Element> SendBuffer<'a, T> {
    /// How many elements it has.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        match &self.0 {
            Send::Heap(region) => region.len / size_of::<T>() as u64,
            Send::Slice(slice) => slice.len() as u64,
        }
    }

    #[inline]
    pub(super) fn input(self) -> Input<'a> {
        match self.0 {
            Send::Heap(region) => Input::Heap(region.offset),
            Send::Slice(slice) => Input::Memory(bytemuck::cast_slice(slice)),
        }
    }
}

impl<'a, T: Element> RecvBuffer<'a, T> {
    /// How many elements it has.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        match &self.0 {
            Recv::Heap(region) => region.len / size_of::<T>() as u64,
            Recv::Slice(slice) => slice.len() as u64,
        }
    }

    /// The input that is `at` bytes into this output.
    #[inline]
    pub(super) fn as_input(&self, at: u64) -> Input<'static> {
        match &self.0 {
            Recv::Heap(region) => Input::Heap(HeapOffset::new(region.offset.get() + at)),
            Recv::Slice(_) => Input::InOutput(at),
        }
    }

    /// The input that it is where it is no output.
    pub(super) fn into_input(self) -> Input<'a> {
        match self.0 {
            Recv::Heap(region) => Input::Heap(region.offset),
            Recv::Slice(slice) => Input::Memory(bytemuck::cast_slice(slice)),
        }
    }

    /// The output that is `at` bytes into it; the input is in it, too.
    pub(super) fn output_within(self, at: u64) -> Output<'a> {
        match self.0 {
            Recv::Heap(region) => Output::Heap(HeapOffset::new(region.offset.get() + at)),
            Recv::Slice(slice) => Output::Within(bytemuck::cast_slice_mut(slice), at),
        }
    }

    #[inline]
    pub(super) fn output(self) -> Output<'a> {
        match self.0 {
            Recv::Heap(region) => Output::Heap(region.offset),
            Recv::Slice(slice) => Output::Memory(bytemuck::cast_slice_mut(slice)),
        }
    }
}

impl<T: Element> From<&DeviceBuffer<T>> for SendBuffer<'_, T> {
    #[inline]
    fn from(buffer: &DeviceBuffer<T>) -> Self {
        Self(Send::Heap(buffer.region()))
    }
}

impl<'a, T> From<&'a [T]> for SendBuffer<'a, T> {
    #[inline]
    fn from(slice: &'a [T]) -> Self {
        Self(Send::Slice(slice))
    }
}

impl<'a, T> From<&'a Vec<T>> for SendBuffer<'a, T> {
    #[inline]
    fn from(vec: &'a Vec<T>) -> Self {
        Self(Send::Slice(vec))
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for SendBuffer<'a, T> {
    #[inline]
    fn from(array: &'a [T; N]) -> Self {
        Self(Send::Slice(array))
    }
}

impl<T: Element> From<&DeviceBuffer<T>> for RecvBuffer<'_, T> {
    #[inline]
    fn from(buffer: &DeviceBuffer<T>) -> Self {
        Self(Recv::Heap(buffer.region()))
    }
}

impl<'a, T> From<&'a mut [T]> for RecvBuffer<'a, T> {
    #[inline]
    fn from(slice: &'a mut [T]) -> Self {
        Self(Recv::Slice(slice))
    }
}

impl<'a, T> From<&'a mut Vec<T>> for RecvBuffer<'a, T> {
    #[inline]
    fn from(vec: &'a mut Vec<T>) -> Self {
        Self(Recv::Slice(vec))
    }
}

impl<'a, T, const N: usize> From<&'a mut [T; N]> for RecvBuffer<'a, T> {
    #[inline]
    fn from(array: &'a mut [T; N]) -> Self {
        Self(Recv::Slice(array))
    }
}
