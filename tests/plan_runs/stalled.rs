//! Plans that cannot end.

use std::path::Path;
use std::sync::Arc;

use shmccl::plan::{Plan, read};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Result};

/// Runs a plan of which one rank forgets a signal: its peer is told in which block and operation it
/// has waited, and for whom.
pub(crate) fn without_a_signal(comm: &mut Communicator) -> Result<()> {
    let mut plan = load("generated/ar_2");
    let dropped =
        |operation: &shmccl::plan::plan::Operation| operation.code == shmccl::plan::plan::Code::RelaxedSignal;
    plan.ranks[1].blocks[3].operations.retain(|operation| !dropped(operation));
    comm.register_plan(&Arc::new(plan))?;
    let mut sums = vec![1_i32; 64];
    let error = comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum).unwrap_err();
    if comm.rank().get() == 0 {
        let Error::PlanStalled { blocks, source, .. } = &error else { panic!("{error}") };
        assert!(blocks.starts_with("rank 0 block 3 operation "), "{error}");
        assert!(blocks.contains("(rlxwait) waits for a signal of rank 1 on memory channel"), "{error}");
        assert!(matches!(**source, Error::Timeout { .. }), "{error}");
        assert!(matches!(error.origin(), Error::Timeout { .. }));
    } else {
        assert!(matches!(error, Error::PlanStalled { .. } | Error::Revoked { .. }), "{error}");
    }
    Ok(())
}

fn load(name: &str) -> Plan {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    read::read_file(&folder.join(format!("{name}.json"))).unwrap().plan
}
