//! Allreduce in one hop, for small messages: each rank sends all it has to all others, as packets.

use shmccl_plan::ExecutionPlan;
use shmccl_plan::build::{BuildError, CollectiveProgram};

use crate::chunks;

/// Returns the plan for so many ranks.
pub(crate) fn one_shot(ranks: usize) -> Result<ExecutionPlan, BuildError> {
    let mut program = CollectiveProgram::new("one_shot", "allreduce", ranks).in_place().packets().chunks(
        1,
        1,
        chunks(ranks),
    );
    for rank in 0..ranks {
        let block = program.block(rank);
        let own = program.input(rank, 0..1);
        let others = || (0..ranks).filter(move |&peer| peer != rank);
        for peer in others() {
            program.put_packets(block, own, program.scratch(peer, rank..rank + 1))?;
        }
        let packets: Vec<_> = others().map(|peer| program.scratch(rank, peer..peer + 1)).collect();
        program.reduce_packets(block, own, &packets, own, &[])?;
    }
    program.finish()
}
