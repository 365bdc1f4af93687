//! Where the data of a call are.

use crate::error::{Error, Result};
use crate::heap::{HeapOffset, HeapView, Region};
use crate::reduce::SourcePlace;
use crate::shm::{CacheHint, GivenBytes, Span, TakenBytes};

/// Where a rank's input is.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// In the symmetric heap of this rank.
    Heap(HeapOffset),
    /// In ordinary memory of this process.
    Memory(&'a [u8]),
    /// In the ordinary memory of the output, this many bytes into it: the call is in place.
    InOutput(u64),
    /// Nowhere: this rank contributes nothing.
    None,
}

impl<'a> Input<'a> {
    /// Returns where the `len` bytes at `at` are. What is in an output is said to be where the
    /// first target is: the call is in place.
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
            Input::InOutput(_) => Ok(SourcePlace::Target(0)),
            Input::None => Ok(SourcePlace::Slice(&[])),
        }
    }

    /// Copies the bytes from `at` on into `target`, which is ordinary memory of the engine's own.
    /// What is in an output has to be asked of its call.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn read(&self, view: &HeapView, at: u64, target: &mut [u8]) -> Result<()> {
        let len = target.len() as u64;
        match self {
            Input::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                view.reach(view.rank(), region)?.copy_out(region.offset.get(), target)
            }
            Input::Memory(bytes) => {
                target.copy_from_slice(part(bytes, at, len)?);
                Ok(())
            }
            Input::InOutput(_) | Input::None => Ok(()),
        }
    }

    /// Copies the bytes from `at` on over all of `target`, a region of the heap `span`. What is in
    /// an output has to be asked of its call.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn copy(&self, view: &HeapView, at: u64, span: &Span, target: Region) -> Result<()> {
        let len = target.len;
        match self {
            Input::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                let mine = view.reach(view.rank(), region)?;
                mine.copy_to(region.offset.get(), span, target.offset.get(), len, CacheHint::Keep)
            }
            Input::Memory(bytes) => span.copy_in(target.offset.get(), part(bytes, at, len)?),
            Input::InOutput(_) | Input::None => Ok(()),
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
    /// Copies `source` to the bytes at `at`, if there is an output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn write(&mut self, view: &HeapView, at: u64, source: &[u8]) -> Result<()> {
        let len = source.len() as u64;
        match self {
            Output::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                view.reach(view.rank(), region)?.copy_in(region.offset.get(), source)
            }
            Output::Memory(bytes) => {
                part_mut(bytes, at, len)?.copy_from_slice(source);
                Ok(())
            }
            Output::Within(bytes, start) => {
                part_mut(bytes, start.saturating_add(at), len)?.copy_from_slice(source);
                Ok(())
            }
            Output::None => Ok(()),
        }
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
        match self {
            Output::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                let mine = view.reach(view.rank(), region)?;
                span.copy_to(source, mine, region.offset.get(), len, CacheHint::Keep)
            }
            Output::Memory(bytes) => span.copy_out(source, part_mut(bytes, at, len)?),
            Output::Within(bytes, start) => {
                span.copy_out(source, part_mut(bytes, start.saturating_add(at), len)?)
            }
            Output::None => Ok(()),
        }
    }
}

/// Returns the bytes at `offset` of this rank's heap, to be put into a place that is shared.
pub(super) fn given_in_heap(view: &HeapView, offset: HeapOffset, len: u64) -> Result<GivenBytes<'_>> {
    let region = Region::new(offset, len);
    Ok(GivenBytes::Shared { span: view.reach(view.rank(), region)?, offset: offset.get(), len })
}

/// Returns the bytes at `offset` of this rank's heap, as the place that a result is taken to.
pub(super) fn taken_in_heap(view: &HeapView, offset: HeapOffset, len: u64) -> Result<TakenBytes<'_>> {
    let region = Region::new(offset, len);
    Ok(TakenBytes::Shared { span: view.reach(view.rank(), region)?, offset: offset.get(), len })
}

/// `offset` and `bytes` more; what is past all addresses is found out of range by whoever uses it.
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
