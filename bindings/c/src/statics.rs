//! Static objects of the program as symmetric memory, and where symmetric memory lies for a peer.

use std::ffi::{c_int, c_void};

use shmccl::bootstrap::wants_statics;
use shmccl::shm::statics::map_over;

use crate::answer::{answer, note};
use crate::comm_state::CommState;
use crate::failure::{Failure, attempt};
use crate::types::{shmcclComm_t, shmcclResult_t};

/// Makes the static objects of the program symmetric memory, if a launcher has started it as a
/// rank. `SHMCCL_STATICS` in the environment says otherwise: 0 never, 1 always. The first call
/// decides, for the whole process. In place of a call, programs put `SHMCCL_SYMMETRIC_STATICS` at
/// file scope.
///
/// Other threads are a reason to refuse, but with 1.
///
/// # Safety
/// No other thread writes to static objects of the program meanwhile: it would be lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclMapStatics() -> shmcclResult_t {
    answer(|| {
        // SAFETY: the caller's duty is the same.
        Ok(unsafe { map_over(wants_statics()) }?)
    })
}

/// Returns where `peer` has what lies at `address` of this rank: a static object, or memory that
/// all ranks have allocated together. It can be read and written there as long as a communicator of
/// the job is not destroyed. Nothing orders such accesses but calls and signals. For any other
/// address, and where there is no such peer, it returns NULL, and `shmcclGetLastError` names what
/// lies there. Memory of `shmcclMemAlloc` is this rank's alone: `shmcclMemLocate` says where it is.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclPtr(comm: shmcclComm_t, address: *const c_void, peer: c_int) -> *mut c_void {
    attempt(|| place_for(comm, address, peer)).unwrap_or_else(|failure| {
        note(&failure);
        std::ptr::null_mut()
    })
}

fn place_for(comm: shmcclComm_t, address: *const c_void, peer: c_int) -> Result<*mut c_void, Failure> {
    let state = CommState::get(comm)?;
    let member = state.member(peer, "peer")?;
    let span = match state.region_of(address.addr(), 1) {
        Some(region) if state.is_symmetric(region) => state.span(member, region)?,
        Some(_) => {
            let text =
                format!("address is {address:p}, memory of this rank alone: tell others by shmcclMemLocate");
            return Err(Failure::argument(text));
        }
        None => state.statics.span(member, address.addr(), 1)?,
    };
    Ok(span.start().as_ptr().cast())
}
