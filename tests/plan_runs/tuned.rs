//! Plans as rows of a tuning table.

use std::sync::Arc;

use shmccl::collective::tuning::{BufferKind, Case, Step, Table};
use shmccl::collective::{Algorithm, AlgorithmName, Operation};
use shmccl::plan::ExecutionPlan;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Group, Result};

use crate::corpus::load;
use crate::keep_algorithm::Keep;
use crate::registered::{FITTING, idle, reduced};

/// Bytes of a message that the idle plan does.
const LEN: u64 = (FITTING * size_of::<i32>()) as u64;

/// Returns a table in which `plan` does all-reduces in ordinary memory of so many bytes at most.
fn table(comm: &mut Communicator, plan: &str, up_to: u64) -> Result<Table> {
    let (n_ranks, oversubscribed) = (comm.n_ranks(), comm.is_oversubscribed()?);
    let plan = Step { up_to: Some(up_to), algorithm: AlgorithmName::Plan(plan.to_owned()) };
    let steps = vec![plan, Step { up_to: None, algorithm: Algorithm::Ring.into() }];
    let operation = Operation::AllReduce;
    let case = Case { operation, n_ranks, oversubscribed, buffers: BufferKind::Ordinary, steps };
    Ok(Table::new(&[case]).unwrap())
}

/// Calls that a table has done by a plan that leaves everything as it is, and calls beside them.
pub(crate) fn by_the_table(comm: &mut Communicator) -> Result<()> {
    let named = table(comm, "idle", 2 * LEN)?;
    comm.set_tuning(named.clone())?;
    assert_eq!(reduced(comm, FITTING)?, 2, "no plan is registered yet");
    let other = Arc::new(ExecutionPlan { name: "other".to_owned(), ..load("generated/ar_2") });
    comm.register_plan(&other)?;
    comm.register_plan(&Arc::new(ExecutionPlan { name: "idle".to_owned(), ..idle() }))?;
    assert_eq!(reduced(comm, FITTING)?, 1);
    assert_eq!(reduced(comm, 2 * FITTING)?, 1);
    assert_eq!(reduced(comm, FITTING + 1)?, 2, "no multiple of the unit");
    assert_eq!(reduced(comm, 3 * FITTING)?, 2, "the table has another algorithm for it");
    assert_eq!(comm.planned_calls("other"), Some(0), "the table does not name it");
    let heap = comm.alloc::<i32>(FITTING)?;
    heap.fill(1);
    comm.all_reduce_in_place(&heap, &ReduceOp::Sum)?;
    assert_eq!(heap.get(0)?, 2, "the table has no case for the heap");
    let limited = table(comm, "idle", 8 * LEN)?;
    comm.set_tuning(limited)?;
    assert_eq!(reduced(comm, 8 * FITTING)?, 2, "above the limit of the plan");
    comm.set_algorithm(Some(Algorithm::Ring));
    assert_eq!(reduced(comm, FITTING)?, 2, "the caller has chosen");
    comm.set_algorithm(None);
    let unknown = table(comm, "unknown", 8 * LEN)?;
    comm.set_tuning(unknown)?;
    assert_eq!(reduced(comm, FITTING)?, 2);
    assert_eq!(comm.planned_calls("other"), Some(1), "no plan that is registered is named");
    comm.unregister_plan("other")?;
    assert_eq!(reduced(comm, FITTING)?, 1, "the next one fits");
    comm.set_tuning(named)?;
    comm.unregister_plan("idle")?;
    assert_eq!(reduced(comm, FITTING)?, 2, "no longer registered");
    comm.free(heap)
}

/// Each rank has its own plan in its table.
pub(crate) fn by_different_tables(comm: &mut Communicator) -> Result<()> {
    let mine = table(comm, &format!("of rank {}", comm.rank()), LEN)?;
    let sum = mine.checksum();
    let refused = comm.set_tuning(mine);
    let Err(Error::TuningMismatch { mine, rank, theirs }) = refused else { panic!("{refused:?}") };
    assert!(mine == sum && theirs != sum && rank != comm.rank());
    Ok(())
}

/// Each rank registers its own plan, and nothing has changed by it.
pub(crate) fn different_plans(comm: &mut Communicator) -> Result<()> {
    let mine = ExecutionPlan { min_message: LEN * u64::from(comm.rank().get()), ..idle() };
    let refused = comm.register_plan(&Arc::new(mine)).unwrap_err();
    assert!(matches!(refused, Error::Mismatch { what: "checksum of a plan", .. }), "{refused}");
    assert_eq!(reduced(comm, FITTING)?, 2);
    Ok(())
}

/// Calls that a plan fits, with and without an algorithm of the user's own, with and without a
/// table that names the plan.
pub(crate) fn beside_algorithms_of_the_users_own(comm: &mut Communicator) -> Result<()> {
    let named = table(comm, "sums", 8 * LEN)?;
    comm.register_plan(&Arc::new(ExecutionPlan { name: "sums".to_owned(), ..load("generated/ar_2") }))?;
    let mut planned = 0;
    for is_named in [false, true] {
        if is_named {
            comm.set_tuning(named.clone())?;
        }
        assert_eq!(reduced(comm, FITTING)?, 2);
        planned += 1;
        assert_eq!(comm.planned_calls("sums"), Some(planned));
        comm.register_algorithm(Operation::AllReduce, Arc::new(Keep))?;
        assert_eq!(reduced(comm, FITTING)?, 1, "by the user's own");
        let buffer = comm.alloc::<i32>(FITTING)?;
        buffer.fill(1);
        let mut group = Group::start();
        let joined = group.join(comm);
        group.on(joined).all_reduce_in_place(&buffer, &ReduceOp::Sum)?;
        group.end()?;
        assert_eq!(buffer.get(0)?, 1, "in a group");
        comm.free(buffer)?;
        assert_eq!(comm.planned_calls("sums"), Some(planned));
        comm.unregister_algorithm(Operation::AllReduce)?;
    }
    comm.unregister_plan("sums")
}
