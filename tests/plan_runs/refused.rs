//! Plans that the format allows and the engine does not run.

use std::sync::Arc;

use shmccl::plan::ExecutionPlan;
use shmccl::plan::plan::BlockOperation;
use shmccl::{Communicator, Error, Result};

use crate::corpus::load;

/// Registers plans, each with one change, in vain.
pub(crate) fn by_place(comm: &mut Communicator) -> Result<()> {
    let misaligned = changed("generated/ar_pkt_4", |plan| plan.alignment = 2);
    refuses(
        comm,
        misaligned,
        &["rank 0 block 0 operation ", "a `buffer_alignment` of 2; give a multiple of 4"],
    );
    let wide = changed("generated/ar_4", |plan| {
        let reduction = first(plan, |operation| operation.code.is_reduction());
        let last = *reduction.sources.last().unwrap();
        reduction.sources.resize(257, last);
    });
    refuses(comm, wide, &["rank 0 block ", "257 operands on one side; give 256 at most"]);
    let astray = changed("generated/mn_ag_2x2", |plan| {
        let rank = &mut plan.ranks[0];
        let buffer = rank.blocks.iter().find_map(|block| block.port_buffers.first()).unwrap();
        let channel = rank.port_channels[0];
        rank.remote_buffers[*buffer as usize].rank = channel % 3 + 1;
    });
    refuses(comm, astray, &["rank 0 block ", "a put to rank ", "over a port channel to rank "]);
    let of_other_ranks = comm.register_plan(&Arc::new(load("generated/ar_2"))).unwrap_err();
    assert!(matches!(of_other_ranks, Error::InvalidArgument { value: 2, .. }), "{of_other_ranks}");
    let no_call = comm
        .register_plan(&Arc::new(changed("generated/ar_4", |plan| plan.collective = "custom".to_owned())))
        .unwrap_err();
    assert!(matches!(no_call, Error::Unavailable { operation: "register_plan", .. }), "{no_call}");
    Ok(())
}

fn changed(name: &str, change: impl FnOnce(&mut ExecutionPlan)) -> ExecutionPlan {
    let mut plan = load(name);
    change(&mut plan);
    plan
}

fn first(plan: &mut ExecutionPlan, fits: impl Fn(&BlockOperation) -> bool) -> &mut BlockOperation {
    let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    blocks.flat_map(|block| &mut block.operations).find(|operation| fits(operation)).unwrap()
}

fn refuses(comm: &mut Communicator, plan: ExecutionPlan, parts: &[&str]) {
    let error = comm.register_plan(&Arc::new(plan)).unwrap_err();
    assert!(matches!(error, Error::Plan { .. }), "{error}");
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}
