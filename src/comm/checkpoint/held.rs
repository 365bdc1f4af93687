//! The memory that a checkpoint holds: the heap of each rank, or device memory that each has beside
//! it.

use super::Communicator;
use super::file::{CheckpointKind, FileHeader, PartReader};
use crate::error::Result;
use crate::heap::{DeviceAddress, DeviceMemory, HeapOffset, Region};
use crate::shm::Span;

/// The memory that this rank writes, or reads back.
#[derive(Clone, Copy, Debug)]
pub(super) enum CheckpointSource<'m> {
    /// The allocations of its heap.
    Heap,
    /// The used parts of a memory with addresses.
    Device(&'m DeviceMemory),
}

impl CheckpointSource<'_> {
    pub(super) const fn kind(self) -> CheckpointKind {
        match self {
            Self::Heap => CheckpointKind::Heap,
            Self::Device(_) => CheckpointKind::Device,
        }
    }

    /// Returns the header of this rank's file in `generation`, for reading as far as it is known
    /// before.
    pub(super) fn header(self, comm: &Communicator, generation: u64) -> FileHeader {
        let regions = match self {
            Self::Heap => {
                let internal = comm.membership.workspace.regions();
                let own = |region: &Region| !internal.contains(region);
                comm.heap().regions().into_iter().filter(own).collect()
            }
            // No bytes at the end say where that is.
            Self::Device(memory) => memory.used().into_iter().chain([end_of(memory)]).collect(),
        };
        let (rank, n_ranks) = (comm.own_number(), comm.n_ranks().into());
        FileHeader { kind: self.kind(), generation, rank, n_ranks, regions }
    }

    /// Returns the bytes of `region`.
    pub(super) fn span(self, comm: &Communicator, region: Region) -> Result<Span> {
        match self {
            Self::Heap => comm.heap().view().span(comm.context().rank(), region),
            Self::Device(memory) => memory.span().part(region.offset.get(), region.len),
        }
    }

    /// Sees to it that there is memory for all that `reader` has.
    pub(super) fn make_room(self, reader: &PartReader) -> Result<()> {
        let Self::Device(memory) = self else { return Ok(()) };
        let touch = |region: &Region| memory.touch(DeviceAddress::new(region.offset.get()), region.len);
        reader.regions.iter().try_for_each(touch)
    }

    /// Reads everything that `reader` has. Parts of a device's memory that were used since become
    /// as new.
    pub(super) fn load(self, comm: &Communicator, reader: &mut PartReader) -> Result<()> {
        if let Self::Device(memory) = self {
            for gap in gaps(&memory.used(), &reader.regions) {
                memory.fill(DeviceAddress::new(gap.offset.get()), gap.len, 0)?;
            }
        }
        let load = |region: Region, bytes: &[u8]| self.span(comm, region)?.copy_in(0, bytes);
        reader.each_chunk(load).map(drop)
    }
}

/// Returns an empty region at the end of a memory.
pub(super) fn end_of(memory: &DeviceMemory) -> Region {
    Region::new(HeapOffset::new(memory.max_address().get()), 0)
}

/// Returns the parts of `used` outside `kept`. Both are in order, and none of them overlap.
fn gaps(used: &[Region], kept: &[Region]) -> Vec<Region> {
    let (mut gaps, mut kept) = (Vec::new(), kept.iter().peekable());
    let bounds = |region: &Region| (region.offset.get(), region.offset.get() + region.len);
    let mut add = |from: u64, to: u64| {
        if from < to {
            gaps.push(Region::new(HeapOffset::new(from), to - from));
        }
    };
    for (mut at, end) in used.iter().map(bounds) {
        while let Some((from, to)) = kept.peek().copied().map(bounds).filter(|(from, _)| *from < end) {
            add(at, from);
            at = at.max(to);
            if to > end {
                break;
            }
            kept.next();
        }
        add(at, end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(bounds: &[(u64, u64)]) -> Vec<Region> {
        bounds.iter().map(|(from, to)| Region::new(HeapOffset::new(*from), to - from)).collect()
    }

    #[test]
    fn what_was_used_since_is_what_is_left_when_all_that_is_kept_is_taken_away() {
        for (used, kept, left) in [
            (&[(1, 9)][..], &[][..], &[(1, 9)][..]),
            (&[(1, 9)], &[(1, 9), (9, 9)], &[]),
            (&[(1, 9)], &[(0, 3), (4, 5), (7, 12)], &[(3, 4), (5, 7)]),
            (&[(1, 3), (5, 7), (8, 9)], &[(2, 6)], &[(1, 2), (6, 7), (8, 9)]),
            (&[(2, 4), (6, 8)], &[(0, 1), (3, 7), (9, 10)], &[(2, 3), (7, 8)]),
            (&[], &[(0, 1)], &[]),
        ] {
            assert_eq!(gaps(&regions(used), &regions(kept)), regions(left), "{used:?} without {kept:?}");
        }
    }
}
