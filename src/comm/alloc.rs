//! Memory that all ranks of a job allocate and free together.

use bytemuck::Pod;

use super::Communicator;
use super::meeting::{Call, Meeting};
use crate::error::{Error, Result};
use crate::heap::{DeviceBuffer, Region};

impl Communicator {
    /// Allocates `count` elements of every rank's heap, at the same offset on all. Collective.
    ///
    /// The elements are zero where the memory is fresh, and whatever was there where it was used before.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::ResourceLimit`]; [`Error::FailedElsewhere`] when another rank had one of these;
    /// [`Error::Mismatch`] when the ranks asked for different sizes; otherwise those of [`Communicator::barrier`].
    /// Nothing is allocated on any rank then. An [`Error::Timeout`] ends the epoch for everybody.
    pub fn alloc<T: Pod>(&mut self, count: usize) -> Result<DeviceBuffer<T>> {
        // What cannot be counted is more than there is; the other ranks have to hear of it like of any other failure.
        let len = DeviceBuffer::<T>::bytes(count).unwrap_or(u64::MAX);
        let region = self.alloc_region(len, DeviceBuffer::<T>::align())?;
        self.buffer(region)
    }

    /// Allocates `len` bytes of every rank's heap at a multiple of `align`, at the same offset on all. Collective.
    ///
    /// # Errors
    /// Those of [`Communicator::alloc`].
    pub fn alloc_region(&mut self, len: u64, align: u64) -> Result<Region> {
        let meeting = meeting(&mut self.meeting, self.members.len())?;
        let heap = self.membership.fabric.heap();
        let planned = heap.plan(len, align);
        let committed = planned.as_ref().map_or(Ok(()), |region| heap.commit(*region));
        let offset = planned.as_ref().map_or(u64::MAX, |region| region.offset.get());
        let failed = u64::from(planned.is_err() || committed.is_err());
        let agreed = meeting.agree("alloc", Call::Alloc, [len, align, offset, failed]);
        match (planned, committed, agreed) {
            (Ok(region), Ok(()), Ok(())) => {
                heap.confirm(region)?;
                Ok(region)
            }
            (planned, committed, agreed) => {
                if let Ok(region) = &planned {
                    heap.abandon(*region)?;
                }
                planned?;
                committed?;
                Err(agreed.expect_err("one of the three failed"))
            }
        }
    }

    /// Frees what [`Communicator::alloc`] returned, on every rank. Collective; the memory is handed out again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the region is not allocated; [`Error::Mismatch`] when the ranks free different
    /// regions; otherwise those of [`Communicator::barrier`]. Nothing is freed then. An [`Error::Timeout`] ends the epoch for
    /// everybody.
    pub fn free<T: Pod>(&mut self, buffer: DeviceBuffer<T>) -> Result<()> {
        self.free_region(buffer.region())
    }

    /// Frees what [`Communicator::alloc_region`] returned, on every rank. Collective.
    ///
    /// # Errors
    /// Those of [`Communicator::free`].
    pub fn free_region(&mut self, region: Region) -> Result<()> {
        let meeting = meeting(&mut self.meeting, self.members.len())?;
        meeting.agree("free", Call::Free, [region.offset.get(), region.len, 0, 0])?;
        self.membership.fabric.heap().free(region)
    }
}

/// The meeting of all ranks of the job, which only its first communicator has.
fn meeting(meeting: &mut Option<Meeting>, n_ranks: usize) -> Result<&mut Meeting> {
    meeting.as_mut().ok_or(Error::InvalidArgument {
        name: "the number of ranks that allocate or free",
        value: n_ranks as u64,
        expected: "all ranks of the job, through the communicator that it started with",
    })
}
