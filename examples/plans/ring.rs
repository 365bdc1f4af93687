//! Allgather around a ring: each rank hands the latest chunk that it has to the next.

use shmccl_plan::ExecutionPlan;
use shmccl_plan::build::{BuildError, CollectiveProgram};

use crate::chunks;

/// Returns the plan for so many ranks.
pub(crate) fn ring(ranks: usize) -> Result<ExecutionPlan, BuildError> {
    let mut program =
        CollectiveProgram::new("ring", "allgather", ranks).in_place().chunks(1, chunks(ranks), 0);
    let channels: Vec<_> = (0..ranks)
        .map(|rank| {
            let next = (rank + 1) % ranks;
            (program.memory_channel(rank, next), program.memory_channel(next, rank))
        })
        .collect();
    for rank in 0..ranks {
        let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let (to_next, from_before) = (channels[rank].0, channels[before].1);
        let block = program.block(rank);
        // A rank is ready to be written once its launch has begun.
        program.relaxed_signal(block, from_before)?;
        program.relaxed_wait(block, to_next)?;
        for step in 0..ranks - 1 {
            let chunk = (rank + ranks - step) % ranks;
            let (own, far) = (program.output(rank, chunk..chunk + 1), program.output(next, chunk..chunk + 1));
            program.put(block, own, far)?;
            program.signal(block, to_next)?;
            program.wait(block, from_before)?;
        }
    }
    program.finish()
}
