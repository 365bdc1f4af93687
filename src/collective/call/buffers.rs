//! Where the data of a call are.

use crate::error::{Error, Result};
use crate::heap::{HeapOffset, HeapView, Region};
use crate::reduce::{SourcePlace, Target};
use crate::shm::{CacheHint, Span};

/// The place of a rank's input.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The input is in the symmetric heap of this rank.
    Heap(HeapOffset),
    /// The input is in ordinary memory of this process.
    Memory(&'a [u8]),
    /// The input is in the ordinary memory of the output, this many bytes into it: the call is in
    /// place.
    InOutput(u64),
    /// Nowhere: this rank contributes nothing.
    None,
}

impl<'a> Input<'a> {
    /// Returns where the `len` bytes at `at` are. What is in an output is said to be where the
    /// first target is: the call is in place, and its bytes have to be asked of the call. The same
    /// is said of nothing.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn place<'p>(&self, view: &'p HeapView, at: u64, len: u64) -> Result<SourcePlace<'p>>
    where
        'a: 'p,
    {
        match self {
            Input::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                Ok(SourcePlace::Shared(view.reach(view.rank(), region)?, region.offset.get()))
            }
            Input::Memory(bytes) => Ok(SourcePlace::Slice(part(bytes, at, len)?)),
            Input::InOutput(_) | Input::None => Ok(SourcePlace::Target(0)),
        }
    }

    /// Copies the bytes from `at` on into `target`, which is ordinary memory of the engine's own.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn read(&self, view: &HeapView, at: u64, target: &mut [u8]) -> Result<()> {
        self.place(view, at, target.len() as u64)?.read(target)
    }

    /// Copies the bytes from `at` on over all of `target`, a region of the heap `span`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn copy(&self, view: &HeapView, at: u64, span: &Span, target: Region) -> Result<()> {
        self.place(view, at, target.len)?.copy(span, target)
    }
}

impl SourcePlace<'_> {
    /// Copies the bytes there into `target`; nothing of what is in an output.
    #[inline]
    pub(super) fn read(self, target: &mut [u8]) -> Result<()> {
        match self {
            SourcePlace::Shared(span, offset) => span.copy_out(offset, target)?,
            SourcePlace::Slice(bytes) => target.copy_from_slice(bytes),
            SourcePlace::Target(_) => {}
        }
        Ok(())
    }

    /// Copies the bytes there over all of `target`, a region of the heap `span`; nothing of what is
    /// in an output.
    #[inline]
    pub(super) fn copy(self, span: &Span, target: Region) -> Result<()> {
        let (to, len) = (target.offset.get(), target.len);
        match self {
            SourcePlace::Shared(source, offset) => source.copy_to(offset, span, to, len, CacheHint::Keep),
            SourcePlace::Slice(bytes) => span.copy_in(to, bytes),
            SourcePlace::Target(_) => Ok(()),
        }
    }

    /// Returns the checksum of the `len` bytes there, behind bytes whose checksum is `before`.
    pub(crate) fn crc32c(self, before: u32, len: u64) -> Result<u32> {
        match self {
            SourcePlace::Shared(span, offset) => span.crc32c(before, offset, len),
            SourcePlace::Slice(bytes) => Ok(crc32c::crc32c_append(before, bytes)),
            SourcePlace::Target(_) => Ok(before),
        }
    }
}

/// Where a rank's output goes.
#[derive(Debug)]
pub(crate) enum Output<'a> {
    /// Into the symmetric heap of this rank.
    Heap(HeapOffset),
    /// Into ordinary memory of this process.
    Memory(&'a mut [u8]),
    /// Into ordinary memory, this many bytes into what the input is in, too: the call is in place.
    Within(&'a mut [u8], u64),
    /// Nowhere: this rank gets nothing.
    None,
}

impl Output<'_> {
    /// Returns where the `len` bytes at `at` go, if there is an output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn target<'p>(
        &'p mut self,
        view: &'p HeapView,
        at: u64,
        len: u64,
    ) -> Result<Option<Target<'p>>> {
        Ok(match self {
            Output::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                Some(Target::Shared(view.reach(view.rank(), region)?, region.offset.get()))
            }
            Output::Memory(bytes) => Some(Target::Slice(part_mut(bytes, at, len)?)),
            Output::Within(bytes, start) => {
                Some(Target::Slice(part_mut(bytes, start.saturating_add(at), len)?))
            }
            Output::None => None,
        })
    }

    /// Copies `source` to the bytes at `at`, if there is an output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn write(&mut self, view: &HeapView, at: u64, source: &[u8]) -> Result<()> {
        match self.target(view, at, source.len() as u64)? {
            Some(Target::Shared(span, offset)) => span.copy_in(offset, source)?,
            Some(Target::Slice(bytes)) => bytes.copy_from_slice(source),
            None => {}
        }
        Ok(())
    }

    /// Copies `len` bytes at `source` of the heap `span` to `at`, if there is an output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn copy(
        &mut self,
        view: &HeapView,
        at: u64,
        span: &Span,
        source: u64,
        len: u64,
    ) -> Result<()> {
        match self.target(view, at, len)? {
            Some(Target::Shared(mine, to)) => span.copy_to(source, mine, to, len, CacheHint::Keep),
            Some(Target::Slice(bytes)) => span.copy_out(source, bytes),
            None => Ok(()),
        }
    }

    /// Copies the `len` bytes at `place` to `at`, if there is an output and they are not there
    /// already.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn put(&mut self, view: &HeapView, at: u64, place: SourcePlace<'_>, len: u64) -> Result<()> {
        match place {
            SourcePlace::Slice(bytes) => self.write(view, at, bytes),
            SourcePlace::Shared(span, start) => self.copy(view, at, span, start, len),
            SourcePlace::Target(_) => Ok(()),
        }
    }

    /// Returns what has been put there, as something to be read.
    pub(crate) fn contents(&self) -> Input<'_> {
        match self {
            Output::Heap(offset) => Input::Heap(*offset),
            Output::Memory(bytes) => Input::Memory(bytes),
            Output::Within(bytes, start) => {
                let start = usize::try_from(*start).unwrap_or(usize::MAX);
                Input::Memory(bytes.get(start..).unwrap_or_default())
            }
            Output::None => Input::None,
        }
    }
}

/// Returns the place `bytes` behind `offset`. Whoever uses a place past all addresses finds it out
/// of range.
#[inline]
pub(crate) fn shifted(offset: HeapOffset, bytes: u64) -> HeapOffset {
    HeapOffset::new(offset.get().saturating_add(bytes))
}

#[inline]
pub(super) fn range(total: usize, at: u64, len: u64) -> Result<std::ops::Range<usize>> {
    let limit = total as u64;
    match (usize::try_from(at), at.checked_add(len).map(usize::try_from)) {
        (Ok(start), Some(Ok(end))) if end <= total => Ok(start..end),
        _ => Err(Error::OutOfRange { what: "memory of a collective call", offset: at, len, limit }),
    }
}

/// Copies `len` bytes at `from` to `to`, unless they are there.
pub(super) fn move_within(bytes: &mut [u8], from: u64, to: u64, len: u64) -> Result<()> {
    let (from, to) = (range(bytes.len(), from, len)?, range(bytes.len(), to, len)?);
    if from != to {
        bytes.copy_within(from, to.start);
    }
    Ok(())
}

#[inline]
pub(crate) fn part(bytes: &[u8], at: u64, len: u64) -> Result<&[u8]> {
    Ok(&bytes[range(bytes.len(), at, len)?])
}

#[inline]
pub(crate) fn part_mut(bytes: &mut [u8], at: u64, len: u64) -> Result<&mut [u8]> {
    let range = range(bytes.len(), at, len)?;
    Ok(&mut bytes[range])
}
