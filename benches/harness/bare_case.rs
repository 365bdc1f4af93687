//! The bare loops of `shmccl-limits` as ways to do a case.

use shmccl::{Communicator, Result};
use shmccl_limits::eager::EagerLimit;
use shmccl_limits::heap::HeapLimit;
use shmccl_limits::rank_buffers::{RankBuffers, SIZE};
use shmccl_limits::staged_sum::StagedLimit;

use crate::case::{CaseData, CaseSpec, CollectiveBuffers};
use crate::sync::Gathering;
use crate::timed_case::RunCase;

/// Returns the `buffers` of all ranks in a case on elements of `f32`.
///
/// # Errors
/// Too little memory.
pub fn rank_buffers<'c>(
    comm: &'c Communicator,
    spec: &CaseSpec,
    buffers: CollectiveBuffers,
) -> Result<RankBuffers<'c>> {
    let (layout, n_ranks) = (spec.layout, u64::from(comm.n_ranks()));
    let parts = |rank| (0..n_ranks).map(|index| layout.part(rank, index)).collect();
    let regions = (0..n_ranks).map(|rank| buffers.regions(layout, rank, SIZE, spec.in_place));
    Ok(RankBuffers {
        comm,
        operation: spec.operation,
        root: spec.root,
        block: layout.block,
        sent: layout.send(),
        parts: (0..n_ranks).map(parts).collect(),
        regions: regions.collect::<Result<_>>()?,
        eager: buffers.eager,
    })
}

impl RunCase<f32> for HeapLimit {
    #[inline]
    fn run(&mut self, _data: &mut CaseData<f32>, gathering: &mut Gathering) -> Result<()> {
        Self::run(self, || gathering.meet())
    }
}

impl RunCase<f32> for EagerLimit {
    #[inline]
    fn run(&mut self, _data: &mut CaseData<f32>, _gathering: &mut Gathering) -> Result<()> {
        Self::run(self)
    }
}

impl RunCase<f32> for StagedLimit {
    fn run(&mut self, data: &mut CaseData<f32>, gathering: &mut Gathering) -> Result<()> {
        let mut own = data.own().expect("it lies where staging is possible");
        Self::run(self, &mut own, || gathering.meet())
    }
}

#[cfg(test)]
mod tests;
