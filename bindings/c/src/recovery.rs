//! Recovery: lost ranks that the launcher has started again come back.

use std::ffi::c_int;

use crate::answer::answer;
use crate::arguments::required;
use crate::comm_state::{CommPlace, CommState, RecoveredFrom};
use crate::group;
use crate::handles::lock;
use crate::types::{shmcclComm_t, shmcclResult_t};

/// Brings back the lost ranks, which `shmccl run --restart` starts again, once a call has failed.
/// All ranks that are left call it, on the job's first communicator. A restarted rank calls
/// `shmcclCommInit`.
///
/// Each rank passes the number of its last `completed` step, and goes on behind the least of them:
/// `shmcclCommGetRecovery`. Ranks keep their numbers. Memory and windows of the old communicator do
/// not belong to the new one. Destroy the old one.
///
/// `shmcclInvalidUsage`: nobody starts ranks again, or not this one. `shmcclTimeout` names a rank
/// that has not come; the call can be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommRecover(
    comm: shmcclComm_t,
    completed: u64,
    newcomm: Option<&mut shmcclComm_t>,
) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclCommRecover")?;
        let (state, newcomm) = (CommState::get(comm)?, required(newcomm, "newcomm")?);
        let place = CommPlace::reserve()?;
        let (recovered, told) = state.with(|comm| {
            let told = RecoveredFrom::hear(comm);
            Ok((comm.recover(completed)?, told))
        })?;
        *newcomm = place.keep(recovered, *lock(&told));
        Ok(())
    })
}

/// Stores whether this process replaces a rank that has died, and the step that all survivors of
/// the latest recovery had completed. Both are 0 where there was none.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommGetRecovery(
    comm: shmcclComm_t,
    wasRestarted: Option<&mut c_int>,
    completed: Option<&mut u64>,
) -> shmcclResult_t {
    answer(|| {
        let recovery = CommState::get(comm)?.recovery;
        *required(wasRestarted, "wasRestarted")? = recovery.is_some_and(|it| it.was_restarted).into();
        *required(completed, "completed")? = recovery.map_or(0, |it| it.step);
        Ok(())
    })
}
