//! The operations: functions in the shape of `nccl.h`, and one for calls as structures.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use shmccl::comm::{OwnedCall, Starting};
use shmccl::{Error, Group, Rank, StatusHandle, Work};

use crate::answer::answer;
use crate::arguments::{elements, required};
use crate::calls::shmcclOperation_t::{self, *};
use crate::calls::{self, shmcclCall_t};
use crate::comm_state::{CommState, place_among};
use crate::failure::Failure;
use crate::group;
use crate::handles::Handles;
use crate::stream::StreamState;
use crate::types::shmcclResult_t::{self, *};
use crate::types::{DataTypeCode, RedOpCode, shmcclComm_t, shmcclRequest_t, shmcclStream_t, signed};

/// Does `call` now, on a stream, or at the end of a group.
///
/// # Safety
/// The buffers of `call` are as the header says, and its own until it is done.
unsafe fn submit(comm: shmcclComm_t, stream: shmcclStream_t, call: &shmcclCall_t) -> shmcclResult_t {
    group::answer_in_group(|| {
        let (state, stream) = (CommState::get(comm)?, StreamState::get(stream)?);
        // SAFETY: the caller's duties are the same.
        let call = unsafe { calls::check(&state, call) }?;
        group::submit(&state, stream, call)
    })
}

/// Names the call of a function.
const fn call(
    operation: shmcclOperation_t,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
) -> shmcclCall_t {
    shmcclCall_t { sendbuff, recvbuff, count, ..shmcclCall_t::new(operation, datatype) }
}

/// Combines `count` elements of all ranks, element by element, into the `recvbuff` of each. The
/// result is the same bits on every rank. In place: `sendbuff == recvbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { op, ..call(shmcclOpAllReduce, sendbuff, recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Combines `count` elements of all ranks into the `recvbuff` of `root`. Other ranks may pass NULL
/// for it. In place: `sendbuff == recvbuff` on the root.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    root: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { op, peer: root, ..call(shmcclOpReduce, sendbuff, recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Copies `count` elements of the root to the `recvbuff` of every rank. Other ranks may pass NULL
/// for `sendbuff`. In place: `sendbuff == recvbuff` on the root.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { peer: root, ..call(shmcclOpBroadcast, sendbuff, recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Collects `sendcount` elements of each rank, in the order of the ranks, in the `recvbuff` of all.
/// In place: `sendbuff` is this rank's block of `recvbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: DataTypeCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = call(shmcclOpAllGather, sendbuff, recvbuff, sendcount, datatype);
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Combines blocks of `recvcount` elements for each rank, and leaves block r of the result to rank
/// r. In place: `recvbuff` is this rank's block of `sendbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { op, ..call(shmcclOpReduceScatter, sendbuff, recvbuff, recvcount, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Combines `count` elements of all ranks up to this one, element by element, into the `recvbuff`.
/// An average divides by the number of these ranks. In place: `sendbuff == recvbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclScan(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { op, ..call(shmcclOpScan, sendbuff, recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Combines `count` elements of all ranks before this one, element by element, into the `recvbuff`.
/// The first rank receives nothing, and may pass NULL for it. In place: `sendbuff == recvbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclExscan(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { op, ..call(shmcclOpExscan, sendbuff, recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Sends block r of `sendbuff` to rank r, and collects the blocks from all ranks in order. A block
/// has `count` elements. In place: `sendbuff == recvbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = call(shmcclOpAlltoAll, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Collects `count` elements of each rank, in the order of the ranks, in the `recvbuff` of `root`.
/// Other ranks may pass NULL for it. In place: on the root, `sendbuff` is its block of `recvbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { peer: root, ..call(shmcclOpGather, sendbuff, recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Sends block r of the root's `sendbuff`, `count` elements, to rank r. Other ranks may pass NULL
/// for `sendbuff`. In place: on the root, `recvbuff` is its block of `sendbuff`.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { peer: root, ..call(shmcclOpScatter, sendbuff, recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Sends a block to each rank and collects a block from each: block r of what is sent goes to rank
/// r. Counts and displacements are elements, one number for each rank, and are read now. Blocks may
/// be empty. Blocks that are received overlap no other. In place: equal buffers and equal blocks;
/// the block from a rank replaces the one that goes to it.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclAlltoAllv(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: DataTypeCode,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t {
        sendcounts,
        sdispls,
        recvcounts,
        rdispls,
        ..call(shmcclOpAlltoAllv, sendbuff, recvbuff, 0, datatype)
    };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Sends `count` elements to `peer`, which receives as many of the same type. It returns when
/// `sendbuff` may be written again, which may be before the peer has received. Two ranks that send
/// to each other put both calls of each into a group.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: DataTypeCode,
    peer: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { peer, ..call(shmcclOpSend, sendbuff, std::ptr::null_mut(), count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Receives `count` elements of `peer`, in the order in which it has sent them.
///
/// # Safety
/// The buffers are the call's until it is done, and as long as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    peer: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    let call = shmcclCall_t { peer, ..call(shmcclOpRecv, std::ptr::null(), recvbuff, count, datatype) };
    // SAFETY: the caller's duties are the same.
    unsafe { submit(comm, stream, &call) }
}

/// Returns when all ranks have called it, now, behind all enqueued calls of the communicator. What
/// any of them did before is visible.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclBarrier(comm: shmcclComm_t) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclBarrier")?;
        CommState::get(comm)?.with(|comm| Ok(comm.barrier()?))
    })
}

/// What `shmcclSubmit` calls once when an operation has ended, in whatever thread ended it, before
/// any wait for it returns. It gets the `arg` of the call, the result, the text of a failure (empty
/// for success) and the rank that it names, as the communicator numbers it, or -1. It calls no
/// function of the same communicator.
pub type shmcclDone_t = Option<unsafe extern "C" fn(*mut c_void, shmcclResult_t, *const c_char, c_int)>;

/// Starts `ncalls` calls as one operation, several as in a group, and returns at once. Nothing
/// waits in the calling thread. `shmcclRequestWait` or `shmcclRequestTest` says when it is done,
/// and `done`, if it is not NULL, is called then. Buffers belong to the operation until it is done.
///
/// With NULL for `request` the operation is done when the function returns. Its result is returned,
/// and `done` is called before.
///
/// Operations of a communicator are done in order. Started messages progress together, but stand
/// behind collective calls that were started before. So messages that must not wait for these have
/// a communicator of their own (`shmcclCommDuplicate`).
///
/// A failure of this function that has a `request` to fill has started nothing, and `done` is not
/// called.
///
/// # Safety
/// `calls` leads to `ncalls` calls. Their buffers are the operation's until it is done. `done` may
/// be called with `arg` in any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclSubmit(
    comm: shmcclComm_t,
    calls: *const shmcclCall_t,
    ncalls: usize,
    done: shmcclDone_t,
    arg: *mut c_void,
    request: Option<&mut shmcclRequest_t>,
) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclSubmit")?;
        let state = CommState::get(comm)?;
        // SAFETY: the caller answers for the calls.
        let asked = unsafe { elements(calls, ncalls, "calls") }?;
        // SAFETY: the caller answers for their buffers.
        let calls = unsafe { check_all(&state, asked) }?;
        let done =
            Done { function: done, arg: arg.expose_provenance(), members: Arc::clone(state.members()) };
        match request {
            Some(request) => {
                *request = start(&state, calls, done)?;
                Ok(())
            }
            None => {
                let ended = run(&state, calls);
                done.tell(ended.as_ref().err());
                ended
            }
        }
    })
}

/// # Safety
/// As for [`calls::check`], of each.
unsafe fn check_all(state: &CommState, asked: &[shmcclCall_t]) -> Result<Vec<OwnedCall>, Failure> {
    let expected = size_of::<shmcclCall_t>();
    let check = |asked: &shmcclCall_t| {
        if asked.size != expected {
            let text = format!("size of a call is {}, expected {expected}: sizeof(shmcclCall_t)", asked.size);
            return Err(Failure::argument(text));
        }
        // SAFETY: the caller's duties are the same.
        unsafe { calls::check(state, asked) }
    };
    asked.iter().map(check).collect()
}

/// Does the calls now.
fn run(state: &CommState, mut calls: Vec<OwnedCall>) -> Result<(), Failure> {
    state.with(|comm| {
        if calls.len() == 1 {
            return Ok(calls.remove(0).submit(comm)?);
        }
        let mut group = Group::start();
        let member = group.join(comm);
        calls.into_iter().try_for_each(|call| call.submit(&mut group.on(member)))?;
        Ok(group.end()?)
    })
}

/// Starts the calls as one operation.
fn start(state: &Arc<CommState>, calls: Vec<OwnedCall>, done: Done) -> Result<shmcclRequest_t, Failure> {
    let status = calls.iter().find_map(|call| Some(call.selected.as_ref()?.1.clone()));
    let ended = move |outcome: &Result<(), Arc<Error>>| {
        done.tell(outcome.as_ref().err().map(|error| Failure::from(&**error)).as_ref());
    };
    let submit = |taker: &mut Starting| calls.into_iter().try_for_each(|call| call.submit(taker));
    let place = REQUESTS.reserve()?;
    let work = state.with(|comm| Ok(comm.start(ended, submit)?))?;
    Ok(place.fill(Arc::new(RequestState { work, status })))
}

/// What is to be called when an operation has ended.
struct Done {
    function: shmcclDone_t,
    arg: usize,
    /// The ranks of the communicator, which the operation does not keep.
    members: Arc<[Rank]>,
}

impl Done {
    fn tell(&self, failure: Option<&Failure>) {
        let Some(function) = self.function else { return };
        let (code, text, rank) = match failure {
            None => (shmcclSuccess, CString::default(), -1),
            Some(failure) => {
                let rank = failure.rank().map_or(-1, |rank| place_among(&self.members, rank));
                (failure.code(), CString::new(failure.text()).unwrap_or_default(), rank)
            }
        };
        // SAFETY: the caller of `shmcclSubmit` answers for the function and its argument.
        unsafe { function(std::ptr::with_exposed_provenance_mut(self.arg), code, text.as_ptr(), rank) };
    }
}

/// An operation that was started.
struct RequestState {
    work: Work,
    /// Whose message was received, where that is open.
    status: Option<StatusHandle>,
}

static REQUESTS: Handles<RequestState, { 1 << 16 }> = Handles::new(3, "request");

/// Says whether an operation is done, and lets messages progress. It does not wait. For one that
/// has failed it stores 1 and returns the failure.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclRequestTest(request: shmcclRequest_t, isDone: Option<&mut c_int>) -> shmcclResult_t {
    answer(|| {
        let (state, isDone) = (REQUESTS.get(request)?, required(isDone, "isDone")?);
        *isDone = state.work.is_done().into();
        match state.work.outcome() {
            Some(Err(error)) => Err(Failure::from(&*error)),
            _ => Ok(()),
        }
    })
}

/// Waits until an operation is done, and returns its result. It runs in the calling thread what no
/// other one has begun. With 0 for `timeoutMs` the deadline is the operation's own. Otherwise
/// `shmcclInProgress` says that it is not done after so many milliseconds; it goes on.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclRequestWait(request: shmcclRequest_t, timeoutMs: u64) -> shmcclResult_t {
    let mut is_done = true;
    let waited = answer(|| {
        let work = REQUESTS.get(request)?.work.clone();
        match timeoutMs {
            0 => work.wait()?,
            some => is_done = work.wait_timeout(Duration::from_millis(some))?,
        }
        Ok(())
    });
    if is_done { waited } else { shmcclInProgress }
}

/// Stores the rank that has sent the message of a receive from `SHMCCL_ANY_SOURCE`, which is done.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclRequestSource(request: shmcclRequest_t, rank: Option<&mut c_int>) -> shmcclResult_t {
    answer(|| {
        let (state, rank) = (REQUESTS.get(request)?, required(rank, "rank")?);
        let missing = "the operation is not done, or receives from no open source";
        let status = state.status.as_ref().and_then(StatusHandle::get);
        *rank = signed(status.ok_or_else(|| Failure::usage(missing.into()))?.source.get());
        Ok(())
    })
}

/// Frees the handle of an operation. One that is not done goes on, and keeps its buffers until
/// then.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclRequestFree(request: shmcclRequest_t) -> shmcclResult_t {
    answer(|| REQUESTS.take(request).map(drop))
}
