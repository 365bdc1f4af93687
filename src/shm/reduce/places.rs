//! From places to addresses: the checks of a combination, done once per call.

use arrayvec::ArrayVec;

use super::{MAX_PLACES, Source, SourcePlace, Target};
use crate::error::{Error, Result};
use crate::shm::copy::CopyKernel;
use crate::shm::to_usize;

/// Few enough places for small tables, which cost nothing to clear.
const FEW: usize = 8;

/// Places for tables that still cost little.
const MANY: usize = 64;

/// Words with a bit for each source.
pub(super) type FreshSources = [u64; MAX_PLACES.div_ceil(64)];

/// The addresses of a combination: readable, or readable and writable, for [`len`](Self::len) bytes
/// each; no target overlaps another place unless it is the very same bytes.
#[derive(Debug)]
pub(crate) struct OperandAddresses<'a> {
    sources: &'a [*const u8],
    targets: &'a [*mut u8],
    /// Bit `k % 64` of word `k / 64`: source k is an original input.
    fresh: FreshSources,
    len: usize,
}

/// Resolves and checks the places of a combination of `len` bytes each, and calls `action` with
/// them.
///
/// Overlap is seen by address: two mappings of one segment are taken for distinct memory.
///
/// # Errors
/// [`Error::InvalidArgument`] for too many or too few places, an index without a target, or partial
/// overlap; [`Error::OutOfRange`] for a place shorter than `len`. `action` was not called.
#[inline]
pub(crate) fn with_addresses<R>(
    sources: &[Source<'_>],
    targets: &mut [Target<'_>],
    len: u64,
    action: impl FnOnce(&OperandAddresses<'_>) -> R,
) -> Result<R> {
    check_number("number of sources", sources.len())?;
    check_number("number of targets", targets.len())?;
    if sources.len() <= FEW && targets.len() <= FEW {
        resolve::<FEW, R>(sources, targets, len, action)
    } else if sources.len() <= MANY && targets.len() <= MANY {
        resolve::<MANY, R>(sources, targets, len, action)
    } else {
        resolve::<MAX_PLACES, R>(sources, targets, len, action)
    }
}

/// Does what `with_addresses` does, for at most `N` sources and targets.
#[inline]
fn resolve<const N: usize, R>(
    sources: &[Source<'_>],
    targets: &mut [Target<'_>],
    len: u64,
    action: impl FnOnce(&OperandAddresses<'_>) -> R,
) -> Result<R> {
    let mut sinks = [std::ptr::null_mut(); N];
    for (sink, target) in sinks.iter_mut().zip(&mut *targets) {
        *sink = target.locate(len)?;
    }
    let sinks = &sinks[..targets.len()];
    let mut origins = [std::ptr::null(); N];
    let mut fresh = FreshSources::default();
    for (index, source) in sources.iter().enumerate() {
        origins[index] = source.place.locate(len, sinks)?;
        fresh[index / 64] |= u64::from(source.fresh) << (index % 64);
    }
    let origins = &origins[..sources.len()];
    check_overlap(origins, sinks, len)?;
    Ok(action(&OperandAddresses { sources: origins, targets: sinks, fresh, len: to_usize(len) }))
}

#[inline]
fn check_number(name: &'static str, number: usize) -> Result<()> {
    if (1..=MAX_PLACES).contains(&number) { Ok(()) } else { Err(invalid(name, number, "from 1 to 256")) }
}

/// # Errors
/// [`Error::InvalidArgument`] with the distance of two places that overlap without being the same.
#[inline]
fn check_overlap(sources: &[*const u8], targets: &[*mut u8], len: u64) -> Result<()> {
    for (index, target) in targets.iter().enumerate() {
        let others = targets[..index].iter().map(|other| other.addr());
        for other in sources.iter().map(|source| source.addr()).chain(others) {
            let distance = target.addr().abs_diff(other);
            if distance != 0 && (distance as u64) < len {
                let expected = "0, or at least the bytes that are combined";
                return Err(invalid("distance of places", distance, expected));
            }
        }
    }
    Ok(())
}

#[inline]
fn check_slice(slice: &[u8], len: u64) -> Result<()> {
    if len <= slice.len() as u64 { Ok(()) } else { Err(too_short(slice, len)) }
}

#[cold]
fn too_short(slice: &[u8], len: u64) -> Error {
    Error::OutOfRange { what: "slice to reduce", offset: 0, len, limit: slice.len() as u64 }
}

#[cold]
fn invalid(name: &'static str, value: usize, expected: &'static str) -> Error {
    Error::InvalidArgument { name, value: value as u64, expected }
}

impl SourcePlace<'_> {
    #[inline]
    fn locate(&self, len: u64, targets: &[*mut u8]) -> Result<*const u8> {
        match *self {
            Self::Shared(span, offset) => Ok(span.locate(offset, len)?.cast_const()),
            Self::Slice(slice) => check_slice(slice, len).map(|()| slice.as_ptr()),
            Self::Target(index) => match targets.get(index) {
                Some(target) => Ok(target.cast_const()),
                None => Err(invalid("source in place", index, "the index of a target")),
            },
        }
    }
}

impl Target<'_> {
    #[inline]
    fn locate(&mut self, len: u64) -> Result<*mut u8> {
        match self {
            Self::Shared(span, offset) => span.locate(*offset, len),
            Self::Slice(slice) => check_slice(slice, len).map(|()| slice.as_mut_ptr()),
        }
    }
}

impl OperandAddresses<'_> {
    #[inline]
    pub(super) fn sources(&self) -> &[*const u8] {
        self.sources
    }

    #[inline]
    pub(super) fn targets(&self) -> &[*mut u8] {
        self.targets
    }

    #[inline]
    pub(super) fn fresh(&self) -> FreshSources {
        self.fresh
    }

    /// Returns bytes of each place.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns how many sources there are.
    pub(crate) fn n_sources(&self) -> usize {
        self.sources.len()
    }

    /// Copies the bytes at `offset` of source `index` into `buffer`, which is the caller's own.
    pub(crate) fn load(&self, index: usize, offset: usize, buffer: &mut [u8]) {
        self.check(offset, buffer.len());
        // SAFETY: `offset` is within the place, just checked.
        let source = unsafe { self.sources[index].add(offset) };
        // SAFETY: the bytes are within the place, just checked; a caller's own buffer is no place
        // of the combination, or it could not be borrowed mutably here.
        unsafe { buffer.as_mut_ptr().copy_from_nonoverlapping(source, buffer.len()) };
    }

    /// Copies `buffer`, which is the caller's own, to `offset` of every target.
    pub(crate) fn store(&self, offset: usize, buffer: &[u8]) {
        self.check(offset, buffer.len());
        for target in self.targets {
            // SAFETY: `offset` is within the place, just checked.
            let target = unsafe { target.add(offset) };
            // SAFETY: the bytes are within the place, just checked; no overlap, as in `load`.
            unsafe { target.copy_from_nonoverlapping(buffer.as_ptr(), buffer.len()) };
        }
    }

    /// Calls `combine` with pieces of at most `piece` bytes of all sources and the first target,
    /// one after the other. Copies the results of each to the other targets, by a copy that takes
    /// lines over from other cores without reading them.
    ///
    /// # Panics
    /// Where the processor has no such copy.
    pub(super) fn in_pieces(&self, piece: usize, mut combine: impl FnMut(&OperandAddresses<'_>)) {
        assert!(CopyKernel::RepMovsb.is_supported(), "nobody asks for copies that cannot be made");
        let (&first, others) = self.targets.split_first().expect("a combination has a target");
        for start in (0..self.len).step_by(piece) {
            let len = piece.min(self.len - start);
            let mut sources = ArrayVec::<_, MAX_PLACES>::new();
            sources.extend(self.sources.iter().map(|source| source.wrapping_add(start)));
            let done = first.wrapping_add(start);
            combine(&OperandAddresses { sources: &sources, targets: &[done], fresh: self.fresh, len });
            for other in others.iter().filter(|&&other| other != first) {
                // SAFETY: `len` bytes from `start` on are within both places, which do not overlap,
                // as they are not the same (`check_overlap`); the kernel is supported, asserted
                // above.
                unsafe { CopyKernel::RepMovsb.run(done, other.wrapping_add(start), len) };
            }
        }
    }

    /// Returns whether a source is the very bytes of a target.
    pub(super) fn is_in_place(&self) -> bool {
        self.sources.iter().any(|source| self.targets.iter().any(|target| source.addr() == target.addr()))
    }

    fn check(&self, offset: usize, len: usize) {
        let is_within = len <= self.len && offset <= self.len - len;
        assert!(is_within, "{len} at {offset} of a place of {}", self.len);
    }
}
