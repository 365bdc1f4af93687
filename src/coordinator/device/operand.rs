//! Copies of operands, for as long as a group is executed.
//!
//! They lie in the arena of the device, where all members combine them as they lie. Members that
//! share cores take turns for each piece that is staged instead, and of some MiB there are many.
//! Where the arena is full, a copy lies in ordinary memory, and the call is staged.

use crate::comm::{RecvBytes, SendBytes};
use crate::error::{Error, Result};
use crate::heap::{Arena, ArenaBuffer, DeviceAddress, DeviceMemory, Region};
use crate::shm::CacheHint;

/// A copy of an operand, in words, so that elements of every type are aligned.
#[derive(Debug)]
pub(super) enum OperandCopy {
    /// In the heap that all members reach.
    Shared(ArenaBuffer<u64>),
    Ordinary(Vec<u64>),
}

impl OperandCopy {
    /// Makes room for `len` bytes, whose values are any.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] when there is no memory.
    pub(super) fn new(arena: &Arena, len: usize) -> Result<Self> {
        let count = len.div_ceil(8);
        match arena.alloc(count) {
            Err(Error::OutOfMemory { .. }) => words(count).map(Self::Ordinary),
            buffer => buffer.map(Self::Shared),
        }
    }

    /// Copies the `len` bytes from `address` on.
    ///
    /// # Errors
    /// Those of [`DeviceMemory::copy_device_to_host`].
    pub(super) fn fetch(&mut self, memory: &DeviceMemory, address: DeviceAddress, len: usize) -> Result<()> {
        match self {
            Self::Shared(buffer) => {
                memory.touch(address, len as u64)?;
                memory.span().copy_to(address.get(), buffer.span(), 0, len as u64, CacheHint::Keep)
            }
            Self::Ordinary(words) => {
                memory.copy_device_to_host(address, &mut bytemuck::cast_slice_mut(words)[..len])
            }
        }
    }

    /// Copies it to the `len` bytes from `address` on.
    ///
    /// # Errors
    /// Those of [`DeviceMemory::copy_host_to_device`].
    pub(super) fn store(&self, memory: &DeviceMemory, address: DeviceAddress, len: usize) -> Result<()> {
        match self {
            Self::Shared(buffer) => {
                memory.touch(address, len as u64)?;
                buffer.span().copy_to(0, memory.span(), address.get(), len as u64, CacheHint::Keep)
            }
            Self::Ordinary(words) => memory.copy_host_to_device(address, &bytemuck::cast_slice(words)[..len]),
        }
    }

    /// Returns its first `len` bytes as an input.
    pub(super) fn input(&self, len: usize) -> SendBytes<'_> {
        match self {
            Self::Shared(buffer) => part(buffer, len).into(),
            Self::Ordinary(words) => (&bytemuck::cast_slice::<_, u8>(words)[..len]).into(),
        }
    }

    /// Returns its first `len` bytes as an output.
    pub(super) fn output(&mut self, len: usize) -> RecvBytes<'_> {
        match self {
            Self::Shared(buffer) => part(buffer, len).into(),
            Self::Ordinary(words) => (&mut bytemuck::cast_slice_mut::<_, u8>(words)[..len]).into(),
        }
    }
}

/// Returns the first `len` bytes of `buffer`.
fn part(buffer: &ArenaBuffer<u64>, len: usize) -> Region {
    Region::new(buffer.region().offset, len as u64)
}

/// Allocates words, if there is memory.
fn words(count: usize) -> Result<Vec<u64>> {
    let mut words = Vec::new();
    words.try_reserve_exact(count).map_err(|_| Error::ResourceLimit {
        resource: "memory",
        action: "copying the operands of a call",
        remedy: "call for fewer elements at a time",
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    words.resize(count, 0);
    Ok(words)
}
