//! Buffers with guards around them, in the heap or in ordinary memory.

use shmccl::heap::DeviceBuffer;
use shmccl::{Communicator, Result};

use crate::harness::Random;
use crate::table::most_bytes;

/// Bytes before a buffer and after it that are looked after.
const GUARD: usize = 512;

/// Buffers start at so many different places.
const SHIFTS: u64 = 320;

/// Where one buffer can be: in the heap, or not.
#[derive(Debug)]
pub(crate) struct Zone {
    heap: DeviceBuffer<u8>,
    /// Aligned for any element.
    ordinary: Vec<u64>,
    /// What lies around buffers, and in those that are to be filled.
    fill: Vec<u8>,
}

impl Zone {
    pub(crate) fn new(comm: &mut Communicator, seed: u64) -> Result<Self> {
        // The longest buffer with what is around it.
        let len = most_bytes() + 2 * GUARD + 512;
        let region = comm.alloc_region(len as u64, 128)?;
        let mut fill = Random(seed).bytes(8191);
        while fill.len() < len {
            fill.extend_from_within(..);
        }
        Ok(Self { heap: comm.buffer(region)?, ordinary: vec![0; len / 8], fill })
    }

    /// A buffer of `len` bytes at some multiple of `align`, in the heap or not. Which contents it has, and where it starts, `chance`
    /// says.
    pub(crate) fn lay(&mut self, chance: u64, in_heap: bool, align: usize, len: usize) -> Laid<'_> {
        let shift = usize::try_from(chance % SHIFTS).unwrap() / align * align;
        let total = len + 2 * GUARD;
        let image = self.fill[shift..shift + total].to_vec();
        Laid { zone: self, in_heap, start: shift, image, len }
    }
}

/// A buffer that is laid out, with its guards.
#[derive(Debug)]
pub(crate) struct Laid<'a> {
    zone: &'a mut Zone,
    in_heap: bool,
    /// Where the guard before it starts.
    start: usize,
    /// What has to be there, guards included.
    image: Vec<u8>,
    len: usize,
}

impl Laid<'_> {
    /// Expects `contents` at `at` of the buffer from now on.
    pub(crate) fn expect(&mut self, at: usize, contents: &[u8]) {
        self.image[GUARD + at..][..contents.len()].copy_from_slice(contents);
    }

    /// Puts there what is expected.
    pub(crate) fn put(&mut self) -> Result<()> {
        if self.in_heap {
            return self.zone.heap.copy_from_slice(self.start, &self.image);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.zone.ordinary);
        bytes[self.start..][..self.image.len()].copy_from_slice(&self.image);
        Ok(())
    }

    /// The `len` bytes at `at` of a buffer in the heap, for a call.
    pub(crate) fn heap_side(&self, at: usize, len: usize) -> Result<Side<'static>> {
        Ok(Side::Heap(self.zone.heap.part(self.start + GUARD + at, len)?))
    }

    /// The `len` bytes at `at` of the buffer, for a call.
    pub(crate) fn side(&mut self, at: usize, len: usize) -> Result<Side<'_>> {
        if self.in_heap {
            return self.heap_side(at, len);
        }
        let start = self.start + GUARD + at;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.zone.ordinary);
        Ok(Side::Ordinary(&mut bytes[start..start + len]))
    }

    /// The buffer as it is.
    pub(crate) fn contents(&self) -> Result<Vec<u8>> {
        Ok(self.now()?[GUARD..GUARD + self.len].to_vec())
    }

    /// Where it is not what is expected first, counted from its start.
    pub(crate) fn first_change(&self) -> Result<Option<isize>> {
        let now = self.now()?;
        if now == self.image {
            return Ok(None);
        }
        let at = now.iter().zip(&self.image).position(|(now, expected)| now != expected).unwrap();
        Ok(Some(isize::try_from(at).unwrap() - isize::try_from(GUARD).unwrap()))
    }

    fn now(&self) -> Result<Vec<u8>> {
        let mut now = vec![0; self.image.len()];
        if self.in_heap {
            self.zone.heap.copy_to_slice(self.start, &mut now)?;
        } else {
            now.copy_from_slice(&bytemuck::cast_slice(&self.zone.ordinary)[self.start..][..self.image.len()]);
        }
        Ok(now)
    }
}

/// A buffer as a call takes it.
#[derive(Debug)]
pub(crate) enum Side<'a> {
    Heap(shmccl::heap::Region),
    Ordinary(&'a mut [u8]),
}
