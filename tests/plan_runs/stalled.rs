//! Plans that cannot end.

use std::sync::Arc;
use std::time::Duration;

use shmccl::plan::plan::{Code, Operation};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result};

use crate::corpus::load;

/// Runs a plan of which one rank forgets a signal: its peer is told in which block and operation it
/// has waited, and for whom.
pub(crate) fn without_a_signal(comm: &mut Communicator) -> Result<()> {
    let mut plan = load("generated/ar_2");
    let dropped = |operation: &Operation| operation.code == Code::RelaxedSignal;
    plan.ranks[1].blocks[3].operations.retain(|operation| !dropped(operation));
    comm.register_plan(&Arc::new(plan))?;
    let mut sums = vec![1_i32; 64];
    if comm.rank().get() == 0 {
        let error = comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum).unwrap_err();
        let Error::PlanStalled { blocks, source, .. } = &error else { panic!("{error}") };
        assert!(blocks.starts_with("rank 0 block 3 operation "), "{error}");
        assert!(blocks.contains("(wait) waits for a signal of rank 1 on memory channel"), "{error}");
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
