//! Which calls a registered plan does, and where its memory goes.

use std::sync::Arc;

use shmccl::collective::Algorithm;
use shmccl::plan::ExecutionPlan;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Group, Result};

use crate::corpus::load;

/// Elements of the message that the plan does.
pub(crate) const FITTING: usize = 64;

/// Returns an all-reduce that does nothing: what it is given in place stays as it is.
pub(crate) fn idle() -> ExecutionPlan {
    let mut plan = load("generated/ar_2");
    plan.max_message = 1024;
    for block in plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks) {
        block.operations.clear();
    }
    plan
}

/// Calls with and without the plan, at once, in groups and on streams.
pub(crate) fn by_what_fits(comm: &mut Communicator) -> Result<()> {
    let plan = Arc::new(idle());
    comm.register_plan(&plan)?;
    assert_eq!(reduced(comm, FITTING)?, 1);
    assert_eq!(reduced(comm, FITTING + 1)?, 2, "no multiple of the unit");
    assert_eq!(reduced(comm, 8 * FITTING)?, 2, "above the limit");
    comm.set_algorithm(Some(Algorithm::Ring));
    assert_eq!(reduced(comm, FITTING)?, 2, "the caller has chosen");
    comm.set_algorithm(None);
    let mut ones = vec![1_i32; FITTING];
    comm.all_gather(&ones[..FITTING / 2], &mut vec![0; FITTING])?;
    let both = [comm.alloc::<i32>(FITTING)?, comm.alloc::<i32>(FITTING + 1)?];
    both.iter().for_each(|buffer| buffer.fill(1));
    let mut group = Group::start();
    let joined = group.join(comm);
    for buffer in &both {
        group.on(joined).all_reduce_in_place(buffer, &ReduceOp::Sum)?;
    }
    group.end()?;
    assert_eq!(both.each_ref().map(|buffer| buffer.get(0).unwrap()), [1, 2], "in a group");
    let stream = comm.stream()?;
    for buffer in &both {
        stream.on(comm).all_reduce_in_place(buffer, &ReduceOp::Sum)?;
    }
    stream.synchronise()?;
    assert_eq!(both.each_ref().map(|buffer| buffer.get(0).unwrap()), [1, 4], "on a stream");
    comm.unregister_plan(&plan.name)?;
    comm.all_reduce_in_place(&mut ones, &ReduceOp::Sum)?;
    assert_eq!(ones, [2; FITTING], "no longer registered");
    let again = comm.unregister_plan(&plan.name).unwrap_err();
    assert!(matches!(again, Error::Unavailable { operation: "unregister_plan", .. }), "{again}");
    Ok(())
}

pub(crate) fn reduced(comm: &mut Communicator, count: usize) -> Result<i32> {
    let mut ones = vec![1; count];
    comm.all_reduce_in_place(&mut ones, &ReduceOp::Sum)?;
    assert!(ones.iter().all(|element| *element == ones[0]));
    Ok(ones[0])
}

/// Calls a plan that is no other operation: at once, in a group and on a stream.
pub(crate) fn by_name(comm: &mut Communicator) -> Result<()> {
    let (mine, other) = (vec![comm.rank().get(); FITTING], 1 - comm.rank().get());
    let mut theirs = vec![7; FITTING];
    let missing = comm.plan("sendrecv").unwrap_err();
    assert!(matches!(missing, Error::Unavailable { operation: "run_plan", .. }), "{missing}");
    let plan = load("generated/mn_sendrecv_2x1_m0_i1");
    comm.register_plan(&Arc::new(load("generated/ag_2")))?;
    comm.register_plan(&Arc::new(ExecutionPlan { name: "sendrecv".to_owned(), max_message: 1024, ..plan }))?;
    comm.register_plan(&Arc::new(ExecutionPlan { name: "sum".to_owned(), ..load("generated/ar_2") }))?;
    comm.unregister_plan("allgather")?;
    let [sendrecv, sum] = [comm.plan("sendrecv")?, comm.plan("sum")?];
    comm.run_plan(sendrecv, &mine, &mut theirs)?;
    assert_eq!(theirs, [other; FITTING]);
    for (plan, count) in [(sendrecv, 1), (sendrecv, 8 * FITTING), (sum, FITTING)] {
        let refused = comm.run_plan(plan, &vec![0_u32; count], &mut vec![0; count]).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument { .. }), "{plan:?}: {refused}");
    }
    let mut grouped = [vec![7; FITTING], vec![7; FITTING]];
    let mut group = Group::start();
    let all = group.join(comm);
    for theirs in &mut grouped {
        group.on(all).run_plan(sendrecv, &mine, theirs)?;
    }
    group.end()?;
    assert_eq!(grouped, [[other; FITTING], [other; FITTING]]);
    on_stream(comm, &mine)?;
    assert_eq!(comm.planned_calls("sendrecv"), Some(5));
    assert_eq!(reduced(comm, FITTING)?, 2, "the others go on");
    comm.unregister_plan("sendrecv")?;
    let removed = comm.run_plan(sendrecv, &mine, &mut theirs).unwrap_err();
    assert!(removed.to_string().contains("the number of a plan"), "{removed}");
    Ok(())
}

/// Finds a plan while a stream has calls of it that are not done.
fn on_stream(comm: &mut Communicator, mine: &[u32]) -> Result<()> {
    let [from, to, back] = [comm.alloc(FITTING)?, comm.alloc(FITTING)?, comm.alloc(FITTING)?];
    from.copy_from_slice(0, mine)?;
    let stream = comm.stream()?;
    for (from, to) in [(&from, &to), (&to, &back)] {
        let plan = comm.plan("sendrecv")?;
        stream.on(comm).run_plan(plan, from, to)?;
    }
    stream.synchronise()?;
    assert_eq!(back.to_vec(), mine);
    Ok(())
}

/// Leaves a communicator with a plan on one rank after the other.
pub(crate) fn memory_comes_back(comm: &mut Communicator) -> Result<()> {
    let mut alone = comm.split(Some(comm.rank().get()), 0)?.expect("each rank has named a colour");
    let before = comm.arena().usage();
    let mut derived = comm.duplicate()?;
    derived.register_plan(&Arc::new(load("generated/ar_pkt_2")))?;
    assert_eq!(reduced(&mut derived, FITTING)?, 2);
    let held = comm.arena().usage();
    assert!(held.free < before.free);
    let mut last = Some(derived);
    if comm.rank().get() == 0 {
        last = None;
        drop(alone.duplicate()?);
        assert_eq!(comm.arena().usage(), held, "the peer may still touch it");
    }
    comm.barrier()?;
    drop(last);
    comm.barrier()?;
    drop(alone.duplicate()?);
    assert_eq!(comm.arena().usage().free, before.free);
    Ok(())
}
