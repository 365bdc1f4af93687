//! A device's flat address range: memory reached by number, with checked copies from and to the
//! host and other devices.
//!
//! Addresses run from [`MIN_ADDRESS`] to [`DeviceMemory::max_address`] (not included), so that 0 is
//! never a valid one. The range is reserved in full when the device is made. The system is asked
//! for memory in chunks of 2 MiB, when a copy first touches them: running out is an error of that
//! copy, never a SIGBUS. Fresh memory reads as zero, and takes none to be copied to the host, where
//! nobody else can have written to it.
//!
//! A copy is checked in full before its first byte moves: out of range changes nothing. An empty
//! copy is legal at any address from the first to one past the last. Copies take no lock and order
//! nothing; threads or processes that copy to one place at a time get one of the data, or a mix.

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::heap::offset::{HeapOffset, Region, fits};
use crate::heap::symmetric::CHUNK;
use crate::shm::segment::PAGE;
use crate::shm::{Backing, CacheHint, Identity, Segment, Span};
use crate::sync::header::HEADER_LEN;

/// The lowest address of every device.
pub const MIN_ADDRESS: u64 = 0x1000;

const _: () = assert!(HEADER_LEN <= MIN_ADDRESS);

/// A number that names a byte of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    /// Names the byte numbered `address`; whether a device has it shows when it is used.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The memory of one device: a segment, seen as a range of addresses.
///
/// An address is the byte's offset in the segment. The first page of the segment is its header;
/// hence the lowest address.
#[derive(Debug)]
pub struct DeviceMemory {
    segment: Arc<Segment>,
    span: Span,
    /// One mark per chunk that is known to have memory behind it. Asking for a chunk twice does no
    /// harm, so two threads, or two processes that share the segment, need not agree on which of
    /// them asks.
    committed: Box<[OnceLock<()>]>,
    /// Set once others may use it as well. Until then what has no mark holds nothing.
    shared: OnceLock<()>,
}

impl DeviceMemory {
    /// Makes a device with addresses from [`MIN_ADDRESS`] to `max_address`, not included.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max_address` is a multiple of 4096 from [`MIN_ADDRESS`]
    /// to 1 TiB; what [`Segment::create`] is refused.
    pub fn create(backing: &Backing, max_address: DeviceAddress, identity: Identity) -> Result<Self> {
        if !max_address.0.is_multiple_of(PAGE) || max_address.0 < MIN_ADDRESS {
            let expected = "a multiple of 4096 from 0x1000 up";
            return Err(Error::invalid("max_address", max_address.0, expected));
        }
        let segment = Arc::new(Segment::create(backing, max_address.0, identity)?);
        match backing {
            Backing::Anonymous => Self::over(segment, OnceLock::new()),
            // Others find it, or have written to it before.
            _ => Self::new(segment),
        }
    }

    /// Looks at a segment as a device's memory: one that another process made, or a file that has
    /// survived a restart.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new(segment: Arc<Segment>) -> Result<Self> {
        Self::over(segment, OnceLock::from(()))
    }

    fn over(segment: Arc<Segment>, shared: OnceLock<()>) -> Result<Self> {
        let max_address = segment.len();
        let span = segment.map()?.span(0, max_address)?;
        let chunks = usize::try_from(max_address.div_ceil(CHUNK)).expect("it is mapped");
        let committed = std::iter::repeat_with(OnceLock::new).take(chunks).collect();
        Ok(Self { segment, span, committed, shared })
    }

    /// Returns the segment, to be shared with other processes.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        let _ = self.shared.set(());
        &self.segment
    }

    /// Returns the address one past the highest.
    #[must_use]
    pub fn max_address(&self) -> DeviceAddress {
        DeviceAddress(self.span.len())
    }

    /// Copies `source` to the bytes from `target` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they are not all in the device's range; [`Error::ResourceLimit`]
    /// when there is no memory for them. Nothing was changed then.
    pub fn copy_host_to_device(&self, target: DeviceAddress, source: &[u8]) -> Result<()> {
        self.touch(target, source.len() as u64)?;
        self.span.copy_in(target.0, source)
    }

    /// Copies the bytes from `source` on to `target`.
    ///
    /// # Errors
    /// Fails as [`DeviceMemory::copy_host_to_device`] does, and has not changed `target` then.
    pub fn copy_device_to_host(&self, source: DeviceAddress, target: &mut [u8]) -> Result<()> {
        if self.shared.get().is_some() {
            self.touch(source, target.len() as u64)?;
        }
        self.check(source, target.len() as u64)?;
        let (mut at, mut rest) = (source.0, target);
        while !rest.is_empty() {
            let (len, is_fresh) = self.run(at, rest.len());
            let (piece, others) = rest.split_at_mut(len);
            if is_fresh {
                piece.fill(0);
            } else {
                self.span.copy_out(at, piece)?;
            }
            (at, rest) = (at + len as u64, others);
        }
        Ok(())
    }

    /// Copies `len` bytes from `source` of this device to `target` of `peer`, which may be this
    /// device too.
    ///
    /// Ranges on one device may overlap: the target holds afterwards what the source held before.
    ///
    /// # Errors
    /// Fails as [`DeviceMemory::copy_host_to_device`] does, for either range. Nothing was changed
    /// then.
    pub fn copy_device_to_device(
        &self,
        source: DeviceAddress,
        peer: &Self,
        target: DeviceAddress,
        len: u64,
    ) -> Result<()> {
        self.check(source, len)?;
        peer.check(target, len)?;
        self.touch(source, len)?;
        peer.touch(target, len)?;
        self.span.copy_to(source.0, &peer.span, target.0, len, CacheHint::Keep)
    }

    /// Sets `len` bytes from `target` on to `byte`.
    ///
    /// # Errors
    /// Fails as [`DeviceMemory::copy_host_to_device`] does.
    pub fn fill(&self, target: DeviceAddress, len: u64, byte: u8) -> Result<()> {
        self.touch(target, len)?;
        self.span.fill(target.0, len, byte)
    }

    /// Returns what copies have touched, in the order of addresses and in whole chunks: everything
    /// else reads as zero. All of a segment that others may have used.
    pub(crate) fn used(&self) -> Vec<Region> {
        let is_used: Vec<bool> =
            self.committed.iter().map(|chunk| self.shared.get().or(chunk.get()).is_some()).collect();
        let mut used = Vec::new();
        let mut first = 0;
        for run in is_used.chunk_by(|one, other| one == other) {
            let (start, end) = (first as u64 * CHUNK, (first + run.len()) as u64 * CHUNK);
            let (start, end) = (start.max(MIN_ADDRESS), end.min(self.span.len()));
            if run[0] && start < end {
                used.push(Region::new(HeapOffset::new(start), end - start));
            }
            first += run.len();
        }
        used
    }

    /// Zeroes all that copies have touched.
    ///
    /// # Errors
    /// Fails as [`DeviceMemory::copy_host_to_device`] does.
    #[cfg(feature = "coordinator")]
    pub(crate) fn clear(&self) -> Result<()> {
        self.used().into_iter().try_for_each(|used| self.span.fill(used.offset.get(), used.len, 0))
    }

    /// Returns all of the segment, whose bytes are counted as they are addressed.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    fn check(&self, address: DeviceAddress, len: u64) -> Result<()> {
        let limit = self.span.len();
        if address.0 >= MIN_ADDRESS && fits(address.0, len, limit) {
            Ok(())
        } else {
            Err(Error::OutOfRange { what: "device addresses", offset: address.0, len, limit })
        }
    }

    /// Returns how many of the `len` bytes from `at` on are alike: all backed by memory, or
    /// (`true`) all known not to be. The bytes are in range.
    fn run(&self, at: u64, len: usize) -> (usize, bool) {
        let is_fresh = |chunk: &OnceLock<()>| chunk.get().is_none();
        let (first, last) = (index(at), index(at + len as u64 - 1));
        let chunks = &self.committed[first..=last];
        let is_first_fresh = is_fresh(&chunks[0]);
        let Some(alike) = chunks.iter().position(|chunk| is_fresh(chunk) != is_first_fresh) else {
            return (len, is_first_fresh);
        };
        let end = (first + alike) as u64 * CHUNK;
        (usize::try_from(end - at).expect("it is mapped"), is_first_fresh)
    }

    /// Checks a range and sees to it that there is memory behind all of it.
    pub(crate) fn touch(&self, address: DeviceAddress, len: u64) -> Result<()> {
        self.check(address, len)?;
        if len == 0 {
            return Ok(());
        }
        let (first, last) = (index(address.0), index(address.0 + len - 1));
        let chunks = &self.committed[first..=last];
        let lacks_memory = |chunk: &OnceLock<()>| chunk.get().is_none();
        let Some(start) = chunks.iter().position(lacks_memory) else { return Ok(()) };
        let end = chunks.iter().rposition(lacks_memory).unwrap_or(start);
        self.commit(first + start, first + end)
    }

    /// Asks the system for the chunks from `first` to `last`.
    #[cold]
    fn commit(&self, first: usize, last: usize) -> Result<()> {
        let start = first as u64 * CHUNK;
        let end = (last as u64 + 1) * CHUNK;
        self.segment.commit(start, end.min(self.span.len()) - start)?;
        for chunk in &self.committed[first..=last] {
            // Another thread may have been first; the memory is there either way.
            let _ = chunk.set(());
        }
        Ok(())
    }
}

/// Returns the chunk of a byte.
fn index(at: u64) -> usize {
    usize::try_from(at / CHUNK).expect("it is mapped")
}

#[cfg(test)]
mod tests;
