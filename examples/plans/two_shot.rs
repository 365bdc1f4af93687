//! Allreduce where the data lie, for large messages: each rank combines its part of all inputs and
//! writes the result to all, without scratch.

use shmccl_plan::ExecutionPlan;
use shmccl_plan::build::{BlockId, BuildError, ChannelEnd, CollectiveProgram};

use crate::chunks;

/// Returns the plan for so many ranks.
pub(crate) fn two_shot(ranks: usize) -> Result<ExecutionPlan, BuildError> {
    let parts = chunks(ranks);
    let mut program =
        CollectiveProgram::new("two_shot", "allreduce", ranks).in_place().chunks(parts, parts, 0);
    let channels: Vec<Vec<_>> = (0..ranks)
        .map(|rank| {
            (0..ranks).map(|peer| (peer != rank).then(|| program.memory_channel(rank, peer))).collect()
        })
        .collect();
    for (rank, channels) in channels.iter().enumerate() {
        let block = program.block(rank);
        let own: Vec<ChannelEnd> = channels.iter().flatten().copied().collect();
        meet(&mut program, block, &own, true)?;
        let part = |peer| program.input(peer, rank..rank + 1);
        let others = (0..ranks).filter(|&peer| peer != rank).map(part);
        let all: Vec<_> = std::iter::once(part(rank)).chain(others).collect();
        program.reduce(block, &all, &all)?;
        meet(&mut program, block, &own, false)?;
    }
    program.finish()
}

/// Lets a rank and its peers wait for each other: at the start, or for each other's data.
fn meet(
    program: &mut CollectiveProgram,
    block: BlockId,
    channels: &[ChannelEnd],
    is_start: bool,
) -> Result<(), BuildError> {
    for &channel in channels {
        if is_start { program.relaxed_signal(block, channel)? } else { program.signal(block, channel)? }
    }
    for &channel in channels {
        if is_start { program.relaxed_wait(block, channel)? } else { program.wait(block, channel)? }
    }
    Ok(())
}
