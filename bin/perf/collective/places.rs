//! Where the buffers of all ranks are, for loops over them that are written by hand.

use shmccl::heap::Region;
use shmccl::shm::Span;
use shmccl::{Communicator, Rank, Result};

use super::workload::{Ground, Task};

/// Bytes of an element: of `f32`, which the loops know alone.
pub(super) const SIZE: u64 = size_of::<f32>() as u64;

/// The buffers of all ranks in a task.
pub(super) struct Places<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) task: &'a Task,
    pub(super) ground: Ground,
}

impl Places<'_> {
    /// The `len` bytes at `at` of the input of `rank`.
    ///
    /// # Errors
    /// Too little ground.
    pub(super) fn input(&self, rank: u32, at: u64, len: u64) -> Result<Span> {
        let (send, _) = self.ground.regions(self.task.layout, rank.into(), SIZE, self.task.in_place)?;
        self.span(rank, send, at, len)
    }

    /// The same of its output.
    ///
    /// # Errors
    /// Too little ground.
    pub(super) fn output(&self, rank: u32, at: u64, len: u64) -> Result<Span> {
        let (_, recv) = self.ground.regions(self.task.layout, rank.into(), SIZE, self.task.in_place)?;
        self.span(rank, recv, at, len)
    }

    fn span(&self, rank: u32, region: Region, at: u64, len: u64) -> Result<Span> {
        self.comm.span(Rank::new(rank, self.comm.n_ranks())?, region.part(at, len)?)
    }
}

/// Those of `pairs` whose data are not where they belong already.
pub(super) fn moving(pairs: Vec<(Span, Span)>) -> Vec<(Span, Span)> {
    pairs.into_iter().filter(|(source, target)| source.start() != target.start()).collect()
}
