//! The buffers of all ranks in an operation on `f32` elements, as bare loops reach them.

use shmccl::collective::Operation;
use shmccl::heap::Region;
use shmccl::shm::Span;
use shmccl::{Communicator, Rank, Result};

/// Bytes of an element: of `f32`, which the loops know alone.
pub const SIZE: u64 = size_of::<f32>() as u64;

/// The buffers of all ranks in an operation.
#[derive(Debug)]
pub struct RankBuffers<'a> {
    /// The ranks.
    pub comm: &'a Communicator,
    /// The operation.
    pub operation: Operation,
    /// The root, where the operation has one.
    pub root: Rank,
    /// Elements of a block, or the mean of blocks of several lengths.
    pub block: u64,
    /// Elements of an input.
    pub sent: u64,
    /// By rank and number of a block, where the block starts and its elements.
    pub parts: Vec<Vec<(u64, u64)>>,
    /// By rank, its input and its output.
    pub regions: Vec<(Region, Region)>,
    /// The slots of loops over few bytes.
    pub eager: Region,
}

impl RankBuffers<'_> {
    /// Returns where block `index` of a rank starts, and its length, in bytes.
    pub(crate) fn part(&self, rank: u32, index: u32) -> (u64, u64) {
        let (start, count) = self.parts[rank as usize][index as usize];
        (start * SIZE, count * SIZE)
    }

    /// Returns the `len` bytes at `at` of the input of `rank`.
    pub(crate) fn input(&self, rank: u32, at: u64, len: u64) -> Result<Span> {
        self.span(rank, self.regions[rank as usize].0, at, len)
    }

    /// Returns the `len` bytes at `at` of the output of `rank`.
    pub(crate) fn output(&self, rank: u32, at: u64, len: u64) -> Result<Span> {
        self.span(rank, self.regions[rank as usize].1, at, len)
    }

    fn span(&self, rank: u32, region: Region, at: u64, len: u64) -> Result<Span> {
        self.comm.span(Rank::new(rank, self.comm.n_ranks())?, region.part(at, len)?)
    }
}

/// Returns the ranks whose inputs the output of `reader` is made of, where it has one.
pub(crate) fn sources(operation: Operation, n_ranks: u32, root: u32, reader: u32) -> Vec<u32> {
    let (root, reader) = (root as usize, reader as usize);
    let has_output = operation.parts(reader, root, n_ranks.into()).1 > 0;
    let sources = operation.sources(reader, root, n_ranks as usize);
    (0..n_ranks).filter(|rank| has_output && sources.contains(&(*rank as usize))).collect()
}

/// Returns those of `pairs` whose data are not in place already.
pub(crate) fn moving(pairs: Vec<(Span, Span)>) -> Vec<(Span, Span)> {
    pairs.into_iter().filter(|(source, target)| source.start() != target.start()).collect()
}
