//! The part of the symmetric heap in which communicators keep their regions.
//!
//! All ranks of the job allocate it together, some at first and more when it is needed. Each rank
//! divides it by itself: the members of a communicator tell each other the places of their regions.
//! So a communicator of some ranks needs no other ranks.
//!
//! An added part is *closed* at first: only the call that has added it takes from it. A rank that
//! has confirmed the allocation knows nothing of the others. Members of a communicator that another
//! thread derives might get a region that is not there for them yet. The call opens the part once
//! all ranks have met after they confirmed.
//!
//! The region of a communicator that this rank has left is *retired* until the other members have
//! left it, too. Nobody waits for that: the next one that needs room looks.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::collective::{CommLayout, GONE};
use crate::error::{Error, Result};
use crate::heap::allocator::Allocator;
use crate::heap::{ArenaBuffer, HeapOffset, HeapShape, Region};
use crate::shm::CellSlice;
use crate::sync::ProgressCell;

/// How many communicators of all ranks have room in a part of it, unless the heap is small.
const COMMUNICATORS: u64 = 8;

/// The share of a small heap that a part may take, where more than one communicator has room in it.
const SHARE: u64 = 8;

/// Regions start at multiples of so many bytes.
pub(in crate::comm) const ALIGN: u64 = 4096;

/// One rank's share of the workspace.
#[derive(Debug, Default)]
pub(in crate::comm) struct Workspace {
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    parts: Vec<WorkspacePart>,
    retired: Vec<Retired>,
}

/// Memory that was allocated at one time.
#[derive(Debug)]
struct WorkspacePart {
    region: Region,
    /// Whether all ranks are known to have it.
    is_open: bool,
    /// Counts from the start of the part.
    allocator: Allocator,
}

/// A region that other members may still touch, and what of the arena they may touch as long.
#[derive(Debug)]
struct Retired {
    region: Region,
    memory: Vec<ArenaBuffer<u8>>,
    departures: CellSlice<ProgressCell>,
}

impl Drop for Book {
    /// Leaves to the arena what nobody touches any more, and nothing else.
    fn drop(&mut self) {
        self.reclaim();
        let memory = self.retired.drain(..).flat_map(|retired| retired.memory);
        memory.for_each(ArenaBuffer::leave_taken);
    }
}

impl Workspace {
    /// Returns the length of a part in a job with heaps of this `shape`, in bytes: room for one
    /// communicator at least.
    pub(in crate::comm) fn part_len(shape: HeapShape) -> u64 {
        let one = (1..=shape.n_ranks().into()).map(room).max().expect("a job has ranks");
        (shape.len() / SHARE / one).clamp(1, COMMUNICATORS) * one
    }

    /// Adds `region`, which all ranks confirm. Only [`Workspace::take_from`] takes from it, until
    /// it is [opened](Workspace::open).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length that is not a multiple of 64 bytes.
    pub(in crate::comm) fn add(&self, region: Region) -> Result<()> {
        let allocator = Allocator::new(region.len)?;
        self.book().parts.push(WorkspacePart { region, is_open: false, allocator });
        Ok(())
    }

    /// Lets everybody take from the part that was added as `region`: all ranks have confirmed it.
    pub(in crate::comm) fn open(&self, region: Region) {
        self.book().part(region).is_open = true;
    }

    /// Returns the regions that it is made of.
    pub(in crate::comm) fn regions(&self) -> Vec<Region> {
        self.book().parts.iter().map(|part| part.region).collect()
    }

    /// Takes room for the region of this rank in a communicator of `n_members`.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(in crate::comm) fn take(&self, n_members: u64) -> Result<Region> {
        let mut book = self.book();
        book.reclaim();
        let len = CommLayout::new(n_members).len();
        let mut open = book.parts.iter_mut().filter(|part| part.is_open);
        let taken = open.find_map(|part| part.take(len));
        taken.ok_or_else(|| exhausted(book.parts.iter().map(|part| part.region.len).sum()))
    }

    /// Takes the lowest room in the part that was added as `region`, open or not.
    ///
    /// # Errors
    /// Fails as [`Workspace::take`] does.
    pub(in crate::comm) fn take_from(&self, region: Region, n_members: u64) -> Result<Region> {
        let taken = self.book().part(region).take(CommLayout::new(n_members).len());
        taken.ok_or_else(|| exhausted(region.len))
    }

    /// Takes back a region that nobody else has touched, nor will.
    pub(in crate::comm) fn give_back(&self, region: Region) {
        self.book().part(region).free(region);
    }

    /// Takes back a region, and `memory` of the arena, that other members may touch until their
    /// `departures` say otherwise.
    pub(super) fn retire(
        &self,
        region: Region,
        memory: Vec<ArenaBuffer<u8>>,
        departures: CellSlice<ProgressCell>,
    ) {
        self.book().retired.push(Retired { region, memory, departures });
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic cannot leave the book half changed: each step checks first and changes last.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Frees the retired regions that all members have left.
    fn reclaim(&mut self) {
        let gone = |retired: &mut Retired| retired.departures.iter().all(|word| word.has_reached(GONE));
        let free: Vec<_> = self.retired.extract_if(.., gone).map(|retired| retired.region).collect();
        free.into_iter().for_each(|region| self.part(region).free(region));
    }

    /// Returns the part that `region` is, or lies in.
    fn part(&mut self, region: Region) -> &mut WorkspacePart {
        let part = self.parts.iter_mut().find(|part| part.contains(region));
        part.expect("it was added, or taken from a part")
    }
}

impl WorkspacePart {
    fn take(&mut self, len: u64) -> Option<Region> {
        let taken = self.allocator.allocate(len, ALIGN).ok()?;
        self.region.part(taken.offset.get(), len).ok()
    }

    fn contains(&self, region: Region) -> bool {
        (self.region.offset.get()..self.region.offset.get() + self.region.len).contains(&region.offset.get())
    }

    fn free(&mut self, region: Region) {
        let offset = HeapOffset::new(region.offset.get() - self.region.offset.get());
        self.allocator.free(Region::new(offset, region.len)).expect("it was taken, and not given back");
    }
}

fn exhausted(limit: u64) -> Error {
    Error::Exhausted {
        what: "bytes for communicators (finalize some, derive it from a communicator of all ranks, or start with \
               a larger heap)",
        limit,
    }
}

/// Returns the bytes of a region for `n_members`.
fn room(n_members: u64) -> u64 {
    CommLayout::new(n_members).len().next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(lens: &[u64]) -> Workspace {
        let workspace = Workspace::default();
        for (&len, start) in lens.iter().zip((0..).step_by(64 << 20)) {
            let region = Region::new(HeapOffset::new(start), len);
            workspace.add(region).unwrap();
            workspace.open(region);
        }
        workspace
    }

    #[test]
    fn a_part_has_room_for_a_communicator_of_any_number_of_ranks() {
        for n_ranks in [1, 2, 3, 8, 64, 65, 256] {
            for len in [2 << 20, 8 << 20, 256 << 20, 1 << 36] {
                let part = Workspace::part_len(HeapShape::new(n_ranks, len).unwrap());
                for n_members in 1..=n_ranks.into() {
                    workspace(&[part]).take(n_members).unwrap();
                }
            }
        }
    }

    #[test]
    fn regions_are_taken_from_any_part_lie_apart_and_come_back() {
        let workspace = workspace(&[room(2), 3 * room(2) - 64, room(64)]);
        for _ in 0..3 {
            let mut taken = Vec::new();
            while let Ok(region) = workspace.take(2) {
                taken.push(region);
            }
            taken.sort_by_key(|region| region.offset);
            assert_eq!(taken.len(), 4, "{taken:?}");
            assert!(taken.windows(2).all(|pair| pair[0].offset.get() + pair[0].len <= pair[1].offset.get()));
            let full = workspace.take(64).unwrap_err();
            assert!(
                matches!(full, Error::Exhausted { limit, .. } if limit == 4 * room(2) - 64 + room(64)),
                "{full}"
            );
            taken.into_iter().for_each(|region| workspace.give_back(region));
            workspace.give_back(workspace.take(64).unwrap());
        }
    }

    #[test]
    fn only_who_has_added_a_part_takes_from_it_until_it_is_opened() {
        let workspace = Workspace::default();
        let added = Region::new(HeapOffset::new(2 << 20), 2 * room(3));
        workspace.add(added).unwrap();
        assert!(matches!(workspace.take(3), Err(Error::Exhausted { .. })));
        let first = workspace.take_from(added, 3).unwrap();
        assert_eq!(first.offset, added.offset);
        workspace.open(added);
        let second = workspace.take(3).unwrap();
        assert!(second.offset > first.offset && workspace.take_from(added, 3).is_err());
        workspace.give_back(first);
        assert_eq!(workspace.take(3).unwrap(), first);
    }
}
