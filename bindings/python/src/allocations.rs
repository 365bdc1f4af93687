//! The arrays that the ranks of a job have made together, and how their memory comes back.
//!
//! Python drops an array on each rank at a time of its own, and the heap is freed by all ranks
//! together. So a dropped array is only noted. Before the next allocation all ranks compare their
//! notes, and free what none of them holds any more.

use std::sync::{Arc, Weak};

use shmccl::heap::Region;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator};

use crate::turns::Turns;

/// The arrays of an epoch, in the order in which all ranks have made them.
#[derive(Default)]
pub struct Allocations(Turns<Vec<Noted>>);

struct Noted {
    region: Region,
    in_use: Weak<()>,
}

impl Allocations {
    /// Allocates `len` bytes on all ranks. Collective.
    ///
    /// # Errors
    /// Returns the errors of `alloc` and of a small all-reduce.
    pub fn take(&self, comm: &mut Communicator, len: u64, align: u64) -> shmccl::Result<(Region, Arc<()>)> {
        let mut noted = self.0.take()?;
        free_dropped(&mut noted, comm)?;
        let region = comm.alloc_region(len, align)?;
        let used = Arc::new(());
        noted.push(Noted { region, in_use: Arc::downgrade(&used) });
        Ok((region, used))
    }
}

fn free_dropped(noted: &mut Vec<Noted>, comm: &mut Communicator) -> shmccl::Result<()> {
    if noted.is_empty() {
        return Ok(());
    }
    let mut dropped: Vec<u8> = noted.iter().map(|array| (array.in_use.strong_count() == 0).into()).collect();
    comm.all_reduce_in_place(&mut dropped, &ReduceOp::Min)?;
    let mut index = 0;
    let mut freed = Ok(());
    noted.retain(|array| {
        let is_dropped = dropped[index] == 1;
        index += 1;
        if is_dropped && freed.is_ok() {
            freed = comm.free_region(array.region);
        }
        !is_dropped
    });
    freed
}
