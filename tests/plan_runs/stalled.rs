//! Plans that cannot end.

use std::sync::Arc;
use std::time::Duration;

use shmccl::plan::plan::{BlockOperation, Code, PipelineLoop};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result};

use crate::corpus::load;

/// Runs a plan of which one rank forgets a signal: its peer is told in which block and operation it
/// has waited, and for whom.
pub(crate) fn without_a_signal(comm: &mut Communicator) -> Result<()> {
    let mut plan = load("generated/ar_2");
    let dropped = |operation: &BlockOperation| operation.code == Code::RelaxedSignal;
    plan.ranks[1].blocks[3].operations.retain(|operation| !dropped(operation));
    comm.register_plan(&Arc::new(plan))?;
    let mut sums = vec![1_i32; 64];
    if comm.rank().get() == 0 {
        let error = comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum).unwrap_err();
        let Error::PlanStalled { blocks, cause, source, .. } = &error else { panic!("{error}") };
        assert!(blocks.starts_with("rank 0 block 3 operation "), "{error}");
        let awaited = "(wait) waits for signal 2 of rank 1 on memory channel 3, of which it has had 1";
        assert!(blocks.ends_with(awaited), "{error}");
        assert!(cause.starts_with("no launch of the plan ends: "), "{error}");
        assert!(cause.contains("a launch adds 1 to ") && cause.contains("and takes 2"), "{error}");
        assert!(matches!(**source, Error::Timeout { .. }), "{error}");
        assert!(matches!(error.origin(), Error::Timeout { .. }));
    } else {
        // It has all signals that it waits for, and stays until the other one has given up.
        comm.set_timeout(Duration::from_secs(60))?;
        comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum)?;
        let next = comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum);
        assert!(matches!(next, Err(Error::Revoked { .. })), "{next:?}");
    }
    Ok(())
}

/// Runs a plan whose ranks wait for each other before they signal: whoever waits longest is told of
/// the circle.
pub(crate) fn in_a_circle(comm: &mut Communicator) -> Result<()> {
    let mut plan = load("generated/ar_2");
    for rank in &mut plan.ranks {
        let operations = &mut rank.blocks[0].operations;
        let at = |code| operations.iter().position(|operation| operation.code == code).unwrap();
        let (signal, wait) = (at(Code::RelaxedSignal), at(Code::RelaxedWait));
        operations.swap(signal, wait);
    }
    comm.register_plan(&Arc::new(plan))?;
    if comm.rank().get() == 1 {
        comm.set_timeout(Duration::from_secs(60))?;
    }
    let error = comm.all_reduce_in_place(&mut vec![1_i32; 64], &ReduceOp::Sum).unwrap_err();
    if comm.rank().get() == 1 {
        assert!(matches!(error, Error::Revoked { .. }), "{error}");
        return Ok(());
    }
    let Error::PlanStalled { blocks, cause, .. } = &error else { panic!("{error}") };
    assert!(
        blocks.contains("waits for signal 1 of rank 1 on memory channel 0, of which it has had 0"),
        "{error}"
    );
    assert!(cause.starts_with("no launch of the plan ends: in a circle, rank "), "{error}");
    for rank in ["rank 0 block 0 operation ", "rank 1 block 0 operation "] {
        assert!(cause.contains(rank), "{error}");
    }
    Ok(())
}

/// Runs a plan of which one rank takes steps for minutes, none of which waits, while the other one
/// gives up: the first one sees that at once.
pub(crate) fn elsewhere(comm: &mut Communicator) -> Result<()> {
    let mut plan = load("generated/ag_2");
    let operations = vec![BlockOperation::new(Code::Nop); 8];
    let pipeline = Some(PipelineLoop { unit: 16, chunks: u32::MAX, operations });
    plan.ranks[0].blocks[0]
        .operations
        .insert(0, BlockOperation { pipeline, ..BlockOperation::new(Code::Pipeline) });
    comm.register_plan(&Arc::new(plan))?;
    let error = comm.all_gather_in_place(&mut [0_i32; 64]).unwrap_err();
    match comm.rank().get() {
        0 => assert!(matches!(error, Error::Revoked { .. }), "{error}"),
        _ => assert!(matches!(error, Error::PlanStalled { .. }), "{error}"),
    }
    Ok(())
}
