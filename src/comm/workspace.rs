//! The part of the symmetric heap in which communicators keep their regions.
//!
//! It is allocated once, by all ranks of the job. How it is divided is each rank's own business: the members of a
//! communicator that is made later tell each other where their regions are. So a communicator of some ranks can be made
//! without the others.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::collective::RegionLayout;
use crate::error::{Error, Result};
use crate::heap::allocator::Allocator;
use crate::heap::{HeapShape, Region};

/// How many communicators of all ranks have room in it, unless the heap is small.
const COMMUNICATORS: u64 = 8;

/// The share of a small heap that the workspace may take, where more than one communicator has room in it.
const SHARE: u64 = 8;

/// Regions start at multiples of so many bytes.
const ALIGN: u64 = 4096;

/// One rank's share of the workspace.
#[derive(Debug)]
pub(super) struct Workspace {
    region: Region,
    allocator: Mutex<Allocator>,
}

impl Workspace {
    /// The length of the workspace of a job with heaps of this `shape`, in bytes.
    pub(super) fn len(shape: HeapShape) -> u64 {
        let one = RegionLayout::new(shape.n_ranks().into()).len().next_multiple_of(ALIGN);
        (shape.len() / SHARE / one).clamp(1, COMMUNICATORS) * one
    }

    /// Divides `region`, which all ranks have allocated.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length that is not a multiple of 64 bytes.
    pub(super) fn new(region: Region) -> Result<Self> {
        Ok(Self { region, allocator: Mutex::new(Allocator::new(region.len)?) })
    }

    /// Takes room for the region of this rank in a communicator of `n_members`.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(super) fn take(&self, n_members: u64) -> Result<Region> {
        let len = RegionLayout::new(n_members).len();
        let taken = self.allocator().allocate(len, ALIGN);
        let part = taken.map_err(|_| Error::Exhausted {
            what: "bytes for communicators (finalize some, or start with a larger heap)",
            limit: self.region.len,
        })?;
        self.region.part(part.offset.get(), part.len)
    }

    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        // A panic cannot leave the book half changed: each step checks first and changes last.
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
