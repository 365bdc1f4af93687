//! What the format allows and this engine does not run: said as a plan is registered, not in the
//! middle of a call.

use shmccl_plan::lower::{BlockCode, BlockTransfer, Form, StepAction};
use shmccl_plan::{ExecutionPlan, Lowered, Problem};

use crate::reduce::MAX_PLACES;

/// Bytes of payload in a word of packets.
const PAYLOAD: usize = 4;

/// Returns what keeps `plan`, which is `lowered` for some size, from being run.
pub(super) fn problems(plan: &ExecutionPlan, lowered: &Lowered) -> Vec<Problem> {
    let mut found = Vec::new();
    for (rank, code) in lowered.ranks.iter().enumerate() {
        for (block, block_code) in code.blocks.iter().enumerate() {
            for step in &block_code.steps {
                let what = match step.action {
                    StepAction::Move(transfer) | StepAction::Await(transfer) => {
                        of_transfer(plan.alignment, block_code, &transfer)
                    }
                    StepAction::Push { port, transfer } => of_push(code.ports[port], block_code, &transfer),
                    _ => None,
                };
                let place = || block_code.sites[step.site].place(rank, block);
                found.extend(what.map(|what| Problem::new(place(), what)));
            }
        }
    }
    found
}

fn of_transfer(alignment: usize, code: &BlockCode, transfer: &BlockTransfer) -> Option<String> {
    let operands = transfer.sources.max(transfer.targets);
    if operands > MAX_PLACES {
        return Some(format!("{operands} operands on one side; give {MAX_PLACES} at most"));
    }
    let mut all = code.sources(transfer).iter().chain(code.targets(transfer));
    let has_packets = all.any(|operand| operand.form == Form::Packets);
    (has_packets && !alignment.is_multiple_of(PAYLOAD)).then(|| {
        format!("packets at a `buffer_alignment` of {alignment}; give a multiple of {PAYLOAD} bytes")
    })
}

/// A put is ordered with the signals of its channel, which lead to the channel's peer.
fn of_push(peer: usize, code: &BlockCode, transfer: &BlockTransfer) -> Option<String> {
    let target = code.targets(transfer).first().map(|target| target.rank).filter(|&rank| rank != peer)?;
    Some(format!("a put to rank {target} over a port channel to rank {peer}; name a buffer of rank {peer}"))
}
