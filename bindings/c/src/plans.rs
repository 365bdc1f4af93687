//! MSCCL++ execution plans that do calls.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use shmccl::Error;
use shmccl::plan::read::read_file;

use crate::answer::answer;
use crate::arguments::required;
use crate::calls::shmcclOperation_t::shmcclOpAllReduce;
use crate::calls::{self, shmcclCall_t};
use crate::comm_state::CommState;
use crate::failure::Failure;
use crate::group;
use crate::stream::StreamState;
use crate::types::{DataTypeCode, shmcclComm_t, shmcclResult_t, shmcclStream_t};

/// Does the calls that an MSCCL++ execution plan fits by that plan from now on, in the JSON file
/// `path`. Collective: all ranks register the same plan.
///
/// Calls that it does not fit are done as before. A plan of another number of ranks is
/// `shmcclInvalidArgument`.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommRegisterPlan(comm: shmcclComm_t, path: *const c_char) -> shmcclResult_t {
    answer(|| {
        let path = text(path, "path")?;
        let read = read_file(Path::new(path)).map_err(Error::from)?;
        CommState::get(comm)?.with(|comm| Ok(comm.register_plan(&Arc::new(read.plan))?))
    })
}

/// Removes the first plan called `name` that was registered. Collective.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommDeregisterPlan(comm: shmcclComm_t, name: *const c_char) -> shmcclResult_t {
    answer(|| {
        let name = text(name, "name")?;
        CommState::get(comm)?.with(|comm| Ok(comm.unregister_plan(name)?))
    })
}

/// Stores how many calls the first plan called `name` has begun that is registered, or
/// `UINT64_MAX` where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommPlannedCalls(
    comm: shmcclComm_t,
    name: *const c_char,
    calls: Option<&mut u64>,
) -> shmcclResult_t {
    answer(|| {
        let (name, calls) = (text(name, "name")?, required(calls, "calls")?);
        *calls = CommState::get(comm)?.with(|comm| Ok(comm.planned_calls(name).unwrap_or(u64::MAX)))?;
        Ok(())
    })
}

/// Does what the first plan called `plan` does that is registered, if that is a sendrecv: each rank
/// sends `count` elements, and gets those of the rank that the plan has for it. Plans of other
/// collectives do the calls of these. In place: `sendbuff == recvbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclRunPlan(
    plan: *const c_char,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    group::answer_in_group(|| {
        let (state, stream) = (CommState::get(comm)?, StreamState::get(stream)?);
        let name = text(plan, "plan")?;
        let plan = state.with(|comm| Ok(comm.plan(name)?))?;
        let asked =
            shmcclCall_t { sendbuff, recvbuff, count, ..shmcclCall_t::new(shmcclOpAllReduce, datatype) };
        // SAFETY: the caller's duties are the same.
        let call = unsafe { calls::check_planned(&state, &asked, plan) }?;
        group::submit(&state, stream, call)
    })
}

/// Returns the text that a caller has given.
fn text<'a>(given: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if given.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: the caller passes a text that ends in a zero and stays for the time of the call.
    let given = unsafe { CStr::from_ptr(given) };
    given.to_str().map_err(|_| Failure::argument(format!("{name} is no UTF-8")))
}
