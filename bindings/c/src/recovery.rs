//! Recovery: lost ranks that the launcher has started again come back.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use shmccl::Communicator;

use crate::comm::{CommPlace, CommState};
use crate::failure::answer;
use crate::group;
use crate::handles::lock;
use crate::types::shmcclResult_t;
use crate::types::{required, shmcclComm_t};

/// What a rank knows of the recovery that led to its epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoveredFrom {
    was_restarted: bool,
    /// The step that all survivors had completed.
    step: u64,
}

impl RecoveredFrom {
    /// Lets the communicator tell of its recovery: at once, or when it is recovered.
    pub(crate) fn hear(comm: &mut Communicator) -> Arc<Mutex<Option<Self>>> {
        let told = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&told);
        comm.on_recovery(move |recovery| {
            let (was_restarted, step) = (recovery.was_restarted, recovery.sequence);
            *lock(&heard) = Some(Self { was_restarted, step });
        });
        told
    }
}

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
