//! Buffers with guards around them, in the heap or in ordinary memory.
//!
//! In the heap they are in symmetric memory, or in the arena of a rank, each rank's at an offset of
//! its own: every rank draws for itself.
//!
//! Streams take ordinary memory only where it lives for ever. What they write there no safe code
//! gets to see, so only inputs are there. All else that would be in ordinary memory goes through
//! the heap by copies of the stream.

use shmccl::comm::stream::HostBuffer;
use shmccl::heap::DeviceBuffer;
use shmccl::{ArenaBuffer, Communicator, Result, Stream};
use support::long;

use crate::harness::Random;
use crate::oracle::table::{LONG, most_bytes};

/// Bytes before a buffer and after it that are looked after.
const GUARD: usize = 512;

/// Buffers start at so many different places.
const SHIFTS: u64 = 320;

/// Where one buffer can be: in the heap, or not.
#[derive(Debug)]
pub(crate) struct Zone {
    heap: DeviceBuffer<u8>,
    /// Where it is, if that is in the arena.
    _arena: Option<ArenaBuffer<u8>>,
    /// Aligned for any element.
    ordinary: Vec<u64>,
    /// What lies around buffers, and in those that are to be filled.
    fill: Vec<u8>,
}

impl Zone {
    /// One for any buffer.
    pub(crate) fn new(comm: &mut Communicator, seed: u64) -> Result<Self> {
        Self::of(comm, seed, most_bytes())
    }

    /// One for buffers of up to `bytes`.
    pub(crate) fn of(comm: &mut Communicator, seed: u64, bytes: usize) -> Result<Self> {
        // The longest buffer with what is around it.
        let len = bytes + 2 * GUARD + 512;
        let symmetric = comm.alloc_region(len as u64, 128)?;
        let mut own = Random(seed ^ u64::from(comm.rank().get()) << 32);
        let arena = match own.below(2) {
            0 => None,
            _ => {
                let _before = comm.arena().alloc::<u8>(usize::try_from(own.below(100_000)).unwrap())?;
                Some(comm.arena().alloc_aligned::<u8>(len, 128)?)
            }
        };
        let heap = arena.as_ref().map_or(comm.buffer(symmetric)?, |buffer| (**buffer).clone());
        let mut fill = Random(seed).bytes(8191);
        while fill.len() < len {
            fill.extend_from_within(..);
        }
        Ok(Self { heap, _arena: arena, ordinary: vec![0; len / 8], fill })
    }

    /// A buffer of `len` bytes at some multiple of `align`, in the heap or not. Which contents it
    /// has, and where it starts, `chance` says.
    pub(crate) fn lay(&mut self, chance: u64, in_heap: bool, align: usize, len: usize) -> Laid<'_> {
        let shift = usize::try_from(chance % SHIFTS).unwrap() / align * align;
        let total = len + 2 * GUARD;
        let image = self.fill[shift..shift + total].to_vec();
        let home = if in_heap { Home::Heap } else { Home::Ordinary };
        Laid { zone: self, home, start: shift, image, len }
    }
}

/// A buffer that is laid out, with its guards.
#[derive(Debug)]
pub(crate) struct Laid<'a> {
    zone: &'a mut Zone,
    home: Home,
    /// Where the guard before it starts.
    start: usize,
    /// What has to be there, guards included.
    image: Vec<u8>,
    len: usize,
}

impl Laid<'_> {
    pub(crate) fn is_in_heap(&self) -> bool {
        matches!(self.home, Home::Heap | Home::Copied(_))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has it be where a stream takes it: an input that `may_last` perhaps in ordinary memory.
    pub(crate) fn for_stream(&mut self, may_last: bool) {
        if self.is_in_heap() {
            return;
        }
        self.home = if may_last && self.len <= lasting() {
            Home::Lasting(&[])
        } else {
            Home::Copied(HostBuffer::zeroed(self.image.len()))
        };
    }

    /// Expects `contents` at `at` of the buffer from now on.
    pub(crate) fn expect(&mut self, at: usize, contents: &[u8]) {
        self.image[GUARD + at..][..contents.len()].copy_from_slice(contents);
    }

    /// Puts there what is expected.
    pub(crate) fn put(&mut self) -> Result<()> {
        if self.is_in_heap() {
            return self.zone.heap.copy_from_slice(self.start, &self.image);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.zone.ordinary);
        bytes[self.start..][..self.image.len()].copy_from_slice(&self.image);
        Ok(())
    }

    /// Like [`Laid::put`], but before calls on `stream`.
    pub(crate) fn put_by(&mut self, comm: &Communicator, stream: &Stream) -> Result<()> {
        match &mut self.home {
            Home::Copied(_) => stream.copy_host_to_device(self.image.clone(), &self.on_device(comm)?),
            Home::Lasting(bytes) => {
                // As far from the start of a line as it would be elsewhere.
                let before = self.start % 64;
                let all = vec![0_u64; (before + self.len).div_ceil(8)].leak();
                let all: &'static mut [u8] = bytemuck::cast_slice_mut(all);
                let its = &mut all[before..][..self.len];
                its.copy_from_slice(&self.image[GUARD..][..self.len]);
                *bytes = its;
                Ok(())
            }
            Home::Heap | Home::Ordinary => self.put(),
        }
    }

    /// Has `stream` copy it to where it is looked at, behind its calls.
    pub(crate) fn fetch_by(&self, comm: &Communicator, stream: &Stream) -> Result<()> {
        match &self.home {
            Home::Copied(host) => stream.copy_device_to_host(&self.on_device(comm)?, host),
            _ => Ok(()),
        }
    }

    /// The buffer and its guards in the heap.
    fn on_device(&self, comm: &Communicator) -> Result<DeviceBuffer<u8>> {
        comm.buffer(self.zone.heap.part(self.start, self.image.len())?)
    }

    /// The `len` bytes at `at` of a buffer in the heap, for a call.
    pub(crate) fn heap_side(&self, at: usize, len: usize) -> Result<Side<'static>> {
        Ok(Side::Heap(self.zone.heap.part(self.start + GUARD + at, len)?))
    }

    /// The `len` bytes at `at` of the buffer, for a call.
    pub(crate) fn side(&mut self, at: usize, len: usize) -> Result<Side<'_>> {
        match self.home {
            Home::Heap | Home::Copied(_) => return self.heap_side(at, len),
            Home::Lasting(bytes) => return Ok(Side::Lasting(&bytes[at..at + len])),
            Home::Ordinary => {}
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
        let len = self.image.len();
        match &self.home {
            Home::Heap => {
                let mut now = vec![0; len];
                self.zone.heap.copy_to_slice(self.start, &mut now)?;
                Ok(now)
            }
            Home::Ordinary => Ok(bytemuck::cast_slice(&self.zone.ordinary)[self.start..][..len].to_vec()),
            Home::Copied(host) => Ok(host.to_vec()),
            // Whoever had it could only read it.
            Home::Lasting(_) => Ok(self.image.clone()),
        }
    }
}

/// A buffer as a call takes it.
#[derive(Debug)]
pub(crate) enum Side<'a> {
    Heap(shmccl::heap::Region),
    Ordinary(&'a mut [u8]),
    /// Ordinary memory that lives for ever.
    Lasting(&'static [u8]),
}

impl Side<'_> {
    /// Returns the side as one that borrows nothing.
    pub(crate) fn lasting(self) -> Side<'static> {
        match self {
            Self::Heap(region) => Side::Heap(region),
            Self::Lasting(bytes) => Side::Lasting(bytes),
            Self::Ordinary(_) => unreachable!("a stream takes no memory that is only lent"),
        }
    }
}

/// Where a buffer is.
#[derive(Debug)]
enum Home {
    Heap,
    Ordinary,
    /// In the heap, for a call on a stream, which copies the contents there before, and all to this
    /// buffer behind it.
    Copied(HostBuffer<u8>),
    /// In ordinary memory that lives for ever.
    Lasting(&'static [u8]),
}

/// Inputs of up to so many bytes may live for ever: those of the whole table would be too much.
fn lasting() -> usize {
    if long() { 4 << 10 } else { LONG }
}
