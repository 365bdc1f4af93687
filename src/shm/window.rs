//! One range of addresses with the segment of every rank in it, so that finding a peer's memory is
//! arithmetic.
//!
//! Rank r's segment is mapped at `base + r * stride`. The range is reserved in one go and unmapped
//! in one go, when the last mapping, cell or span in it is gone.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, mmap};

use super::mapping::Mapping;
use super::segment::{Segment, check_len};
use super::{PAGE, forks, limits, to_usize};
use crate::error::{Error, Result};
use crate::rank::{Rank, check_n_ranks};

/// A huge page. Strides that are multiples of it start on one.
const HUGE: u64 = 2 << 20;

/// The address window of a communicator.
#[derive(Debug)]
pub struct Window {
    /// Exactly `n_ranks * stride` bytes. What no segment covers is not accessible: it must not be
    /// touched.
    range: Mapping,
    stride: u64,
    segments: Vec<Option<Mapping>>,
}

impl Window {
    /// Reserves addresses for `n_ranks` segments of up to `stride` bytes. Takes no memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a bad number of ranks, and for a stride that is zero, not a
    /// multiple of [`PAGE`] or beyond 1 TiB; [`Error::ResourceLimit`] when the address space is
    /// limited.
    pub fn reserve(n_ranks: u32, stride: u64) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        check_len("stride of a window", stride)?;
        let action = "reserving the address window";
        let align = if stride.is_multiple_of(HUGE) { HUGE } else { PAGE };
        // At most 256 ranks of 1 TiB: no overflow.
        let len = u64::from(n_ranks) * stride;
        let reserved = Mapping::reserve(len + align - PAGE);
        let reserved = reserved.map_err(|errno| limits::refused_mapping(action, errno))?;
        let to_align = (reserved.base().as_ptr().addr() as u64).wrapping_neg() % align;
        let range = reserved.part(to_align, len)?;
        Ok(Self { range, stride, segments: vec![None; n_ranks as usize] })
    }

    /// Maps the segment of `rank` at its place, and keeps it out of core dumps and of forks.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::InvalidArgument`] when the segment is longer than the
    /// stride or the place is taken; [`Error::ResourceLimit`].
    pub fn map(&mut self, rank: Rank, segment: &Segment) -> Result<Mapping> {
        let offset = self.offset_of(rank)?;
        if segment.len() > self.stride {
            let expected = "at most the stride of the window";
            return Err(Error::invalid("length of a segment in a window", segment.len(), expected));
        }
        if self.segments[rank.index()].is_some() {
            let expected = "a rank whose segment is not mapped yet";
            return Err(Error::invalid("rank to map", rank.get().into(), expected));
        }
        let place = self.range.part(offset, segment.len())?;
        replace(&place, segment)?;
        // Before there are any pages: those that are there already are not exchanged at once. The
        // kernel takes the advice for shared memory and then mostly does as its own setting says,
        // which `doctor` tells.
        place.advise(MmapAdvise::MADV_HUGEPAGE);
        self.segments[rank.index()] = Some(place.clone());
        Ok(place.kept_out_of_dumps())
    }

    /// Returns the mapping of `rank`'s segment, once there is one.
    #[must_use]
    pub fn mapping(&self, rank: Rank) -> Option<&Mapping> {
        self.segments.get(rank.index())?.as_ref()
    }

    /// Returns how many ranks it has places for.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        u32::try_from(self.segments.len()).expect("at most 256 ranks, checked in `reserve`")
    }

    fn offset_of(&self, rank: Rank) -> Result<u64> {
        if rank.index() < self.segments.len() {
            Ok(u64::from(rank.get()) * self.stride)
        } else {
            Err(Error::InvalidRank { rank: rank.get(), n_ranks: self.n_ranks() })
        }
    }
}

/// Puts `segment` in `place`, a part of the reservation.
fn replace(place: &Mapping, segment: &Segment) -> Result<()> {
    let base = place.base();
    let address = NonZeroUsize::new(base.as_ptr().expose_provenance());
    let len = NonZeroUsize::new(to_usize(segment.len())).expect("a segment has at least a page");
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    let mut registry = forks::hold();
    // SAFETY: `base..base + len` lies within this window's own reservation (`part` in `Window::map`
    // checked it), which nobody has been given access to before; the file is at least `len` long
    // (checked when the segment was made).
    unsafe { mmap(address, len, prot, flags, segment.as_fd(), 0) }
        .map_err(|errno| limits::refused_mapping("mapping a segment into the window", errno))?;
    let is_inherited = !place.keep_out_of_forks();
    registry.add(base, to_usize(segment.len()), is_inherited, Arc::downgrade(segment.descriptor()));
    Ok(())
}

#[cfg(test)]
mod tests;
