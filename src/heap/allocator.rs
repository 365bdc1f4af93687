//! Who owns which bytes of a symmetric heap: a deterministic first-fit allocator over `[0, len)`.
//!
//! It handles numbers only and touches no memory. Ranks that make the same calls in the same order
//! get the same offsets, which is what makes the heap symmetric: nothing here depends on addresses,
//! time or hash seeds.
//!
//! An allocation takes the lowest address where it fits at its alignment. Lengths are rounded up to
//! [`GRANULE`], and an empty allocation takes one granule, so that every live allocation has an
//! offset of its own and freeing by offset is unambiguous. Neighbouring free runs are joined at
//! once. A limit on an allocation decides whether it succeeds, and never where it is.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::heap::offset::{HeapOffset, Region};

/// The unit of allocation and the least alignment, in bytes.
pub const GRANULE: u64 = 64;

/// The book of free and live runs of one heap.
#[derive(Clone, Debug)]
pub struct Allocator {
    len: u64,
    /// Free runs, start to length; no two touch.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
    /// Live allocations, start to what was asked for.
    live: BTreeMap<u64, u64>,
}

impl Allocator {
    /// Starts with `len` free bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `len` is a multiple of [`GRANULE`].
    pub fn new(len: u64) -> Result<Self> {
        if !len.is_multiple_of(GRANULE) {
            return Err(Error::invalid("heap length", len, "a multiple of 64 bytes"));
        }
        let free = if len == 0 { BTreeMap::new() } else { BTreeMap::from([(0, len)]) };
        Ok(Self { len, free, free_bytes: len, live: BTreeMap::new() })
    }

    /// Takes `len` bytes at the lowest free offset that is a multiple of `align`.
    ///
    /// The region has exactly the length asked for; `len` may be zero, and the offset is unique
    /// even then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `align` is not a power of two; [`Error::OutOfMemory`] when
    /// no free run holds it. Nothing has changed then.
    pub fn allocate(&mut self, len: u64, align: u64) -> Result<Region> {
        self.allocate_below(self.len, len, align)
    }

    /// Takes as [`Allocator::allocate`] does, if that ends at `limit` or before. No live allocation
    /// ends behind `limit`.
    ///
    /// # Errors
    /// Fails as [`Allocator::allocate`] does. The errors tell of the bytes before `limit`.
    pub fn allocate_below(&mut self, limit: u64, len: u64, align: u64) -> Result<Region> {
        if !align.is_power_of_two() {
            return Err(Error::InvalidArgument { name: "align", value: align, expected: "a power of two" });
        }
        let align = align.max(GRANULE);
        let Some((run, start, need)) = self.first_fit(limit, len, align) else {
            return Err(Error::OutOfMemory {
                asked: len,
                len: limit,
                free: self.free_below(limit),
                contiguous: self.contiguous_below(limit, align),
            });
        };
        self.carve(run, start, need);
        self.live.insert(start, len);
        Ok(Region::new(HeapOffset::new(start), len))
    }

    /// Gives back what [`Allocator::allocate`] returned.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `region` is not live: it was freed before, or never
    /// allocated as it stands.
    pub fn free(&mut self, region: Region) -> Result<()> {
        if !self.is_live(region) {
            return Err(Error::invalid(
                "region at offset",
                region.offset.get(),
                "a live allocation, as it was returned",
            ));
        }
        let start = region.offset.get();
        self.live.remove(&start);
        self.join(start, taken(region.len).expect("it was counted when it was allocated"));
        Ok(())
    }

    /// Returns whether `region` was allocated, with this very length, and not yet freed.
    #[must_use]
    pub fn is_live(&self, region: Region) -> bool {
        self.live.get(&region.offset.get()) == Some(&region.len)
    }

    /// Returns how many bytes it manages.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether it manages no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the live allocations, in the order of offsets.
    pub fn regions(&self) -> impl Iterator<Item = Region> {
        self.live.iter().map(|(&start, &len)| Region::new(HeapOffset::new(start), len))
    }

    /// Returns how many allocations are live.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Returns how many bytes are free, in all runs together.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Returns how many bytes are free before `limit`, behind which no live allocation ends.
    #[must_use]
    pub fn free_below(&self, limit: u64) -> u64 {
        self.free_bytes - self.len.saturating_sub(limit)
    }

    /// Returns where the last live allocation ends, with what its length was rounded up by.
    #[must_use]
    pub fn end(&self) -> u64 {
        match self.free.last_key_value() {
            Some((&run, &len)) if run + len == self.len => run,
            _ => self.len,
        }
    }

    /// Returns the longest allocation that would succeed at alignment `align`, a power of two, in
    /// bytes.
    #[must_use]
    pub fn contiguous(&self, align: u64) -> u64 {
        self.contiguous_below(self.len, align)
    }

    /// Returns the longest allocation that [`Allocator::allocate_below`] would grant, in bytes.
    #[must_use]
    pub fn contiguous_below(&self, limit: u64, align: u64) -> u64 {
        let align = align.max(GRANULE);
        let usable = |(&run, &len): (&u64, &u64)| {
            let start = run.checked_next_multiple_of(align)?;
            (run + len).min(limit).checked_sub(start)
        };
        self.free.iter().filter_map(usable).max().unwrap_or(0)
    }

    /// Finds the lowest place, if it ends at `limit` or before: the free run, the start in it, and
    /// the bytes that are taken there.
    fn first_fit(&self, limit: u64, len: u64, align: u64) -> Option<(u64, u64, u64)> {
        let need = taken(len)?;
        self.free.iter().find_map(|(&run, &run_len)| {
            let start = run.checked_next_multiple_of(align)?;
            let end = start.checked_add(need)?;
            (end <= (run + run_len).min(limit)).then_some((run, start, need))
        })
    }

    /// Takes `[start, start + need)` out of the free run at `run`, which holds it.
    fn carve(&mut self, run: u64, start: u64, need: u64) {
        let run_len = self.free.remove(&run).expect("the run was found a moment ago");
        let (before, after) = (start - run, run + run_len - (start + need));
        if before > 0 {
            self.free.insert(run, before);
        }
        if after > 0 {
            self.free.insert(start + need, after);
        }
        self.free_bytes -= need;
    }

    /// Adds `[start, start + len)` to the free runs, as one with the runs that it touches.
    fn join(&mut self, mut start: u64, mut len: u64) {
        self.free_bytes += len;
        if let Some(after) = self.free.remove(&(start + len)) {
            len += after;
        }
        if let Some((&before, &before_len)) = self.free.range(..start).next_back()
            && before + before_len == start
        {
            start = before;
            len += before_len;
        }
        self.free.insert(start, len);
    }
}

/// Returns how many bytes an allocation of `len` takes; `None` when they cannot be counted.
pub(super) fn taken(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(GRANULE)
}

#[cfg(test)]
mod tests;
