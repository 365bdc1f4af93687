//! What the program has allocated, and what a child of a fork has of it.
//!
//! The engine copies for a child what the program was lent (`shmccl::shm`). It has been lent all of
//! its own heap that it has allocated, and that of another PE from the first `shmem_ptr` that leads
//! there. Nothing else has an address in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shmccl::heap::{HeapView, Region};
use shmccl::{Communicator, Rank};

use crate::fail::or_fatal;
use crate::statics::StaticObjects;

/// What is allocated, on all ranks alike.
pub(crate) struct AllocatedRegions {
    /// By the address of this rank.
    regions: Mutex<BTreeMap<usize, Region>>,
    /// Whether the program has addresses of each rank. Changes under the lock of the regions.
    is_reached: Vec<AtomicBool>,
    ranks: Vec<Rank>,
    /// Keeps the heaps mapped, also when the job was left.
    heaps: HeapView,
}

impl AllocatedRegions {
    /// Begins with nothing, and with this rank's heap within reach.
    pub(crate) fn new(comm: &Communicator) -> Self {
        let ranks = comm.members().to_vec();
        let is_reached = ranks.iter().map(|rank| AtomicBool::new(*rank == comm.rank())).collect();
        Self { regions: Mutex::default(), is_reached, ranks, heaps: comm.heap().view().clone() }
    }

    /// Takes note of a region at `address` of this rank.
    pub(crate) fn insert(&self, address: usize, region: Region) {
        let mut regions = self.locked();
        regions.insert(address, region);
        // Relaxed: the lock orders it.
        let is_reached = |rank: &usize| self.is_reached[*rank].load(Ordering::Relaxed);
        (0..self.ranks.len()).filter(is_reached).for_each(|rank| self.lend(region, rank));
    }

    /// Returns what is allocated at `address` of this rank.
    pub(crate) fn get(&self, address: usize) -> Option<Region> {
        self.locked().get(&address).copied()
    }

    /// Forgets what is allocated at `address` of this rank, which is freed next.
    pub(crate) fn remove(&self, address: usize) -> Option<Region> {
        self.locked().remove(&address)
    }

    /// Forgets all, in the same order on all ranks.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Region> + use<> {
        std::mem::take(&mut *self.locked()).into_values()
    }

    /// Has children of a fork find what `rank` holds then. The program gets an address of it.
    #[inline]
    pub(crate) fn reach(&self, rank: usize, statics: &StaticObjects) {
        if !self.is_reached[rank].load(Ordering::Acquire) {
            let regions = self.locked();
            regions.values().for_each(|region| self.lend(*region, rank));
            statics.lend(self.ranks[rank]);
            // Release: whoever finds it set forks with what was lent.
            self.is_reached[rank].store(true, Ordering::Release);
        }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<usize, Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend(&self, region: Region, rank: usize) {
        // To look for the bytes is to borrow them.
        or_fatal(self.heaps.span(self.ranks[rank], region), "shmem_ptr");
    }
}
