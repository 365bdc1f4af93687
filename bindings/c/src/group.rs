//! Groups: calls of a thread that are put together, and done together at the end.

use std::cell::RefCell;
use std::sync::Arc;

use shmccl::Group;
use shmccl::comm::OwnedCall;
use shmccl::shm::undivided::spawn_scoped;

use crate::answer::answer;
use crate::comm_state::{CommState, LockedComm, RankInit};
use crate::failure::{Failure, attempt, joined};
use crate::stream::StreamState;
use crate::types::{shmcclComm_t, shmcclResult_t};

/// What a thread has called between `shmcclGroupStart` and `shmcclGroupEnd`.
#[derive(Default)]
struct OpenGroup {
    /// How many starts have not ended.
    depth: u32,
    /// The first failure of a call in it: nothing is done then.
    failure: Option<Failure>,
    inits: Vec<PendingInit>,
    calls: Vec<PendingCall>,
}

/// A communicator that is to be made, and the place for its handle.
pub(crate) struct PendingInit {
    pub(crate) init: RankInit,
    pub(crate) place: *mut shmcclComm_t,
}

/// A call that is to be done, on a stream or now.
struct PendingCall {
    comm: Arc<CommState>,
    stream: Option<Arc<StreamState>>,
    call: OwnedCall,
}

thread_local! {
    static OPEN: RefCell<OpenGroup> = RefCell::default();
}

/// Does `run` as a function that a group may take. A failure makes the end of the group fail.
pub(crate) fn answer_in_group(run: impl FnOnce() -> Result<(), Failure>) -> shmcclResult_t {
    answer(|| {
        attempt(run).inspect_err(|failure| {
            OPEN.with_borrow_mut(|open| {
                if open.depth > 0 && open.failure.is_none() {
                    open.failure = Some(failure.clone());
                }
            });
        })
    })
}

/// Makes a communicator now, or at the end of the group.
///
/// # Safety
/// A handle can be written to its place until then.
pub(crate) unsafe fn init(pending: PendingInit) -> Result<(), Failure> {
    if is_open() {
        OPEN.with_borrow_mut(|open| open.inits.push(pending));
        return Ok(());
    }
    let made = pending.init.meet()?;
    // SAFETY: the caller answers for the place.
    unsafe { pending.place.write(made) };
    Ok(())
}

/// Does a call now, enqueues it on `stream`, or adds it to the group.
pub(crate) fn submit(
    comm: &Arc<CommState>,
    stream: Option<Arc<StreamState>>,
    call: OwnedCall,
) -> Result<(), Failure> {
    if is_open() {
        let comm = Arc::clone(comm);
        OPEN.with_borrow_mut(|open| open.calls.push(PendingCall { comm, stream, call }));
        return Ok(());
    }
    comm.with(|comm| match stream {
        None => Ok(call.submit(comm)?),
        Some(stream) => Ok(call.submit(&mut stream.for_call(comm)?.on(comm))?),
    })
}

/// Refuses what a group cannot take.
pub(crate) fn refuse(function: &str) -> Result<(), Failure> {
    if is_open() {
        return Err(Failure::usage(format!("{function} cannot be called in a group: end it first")));
    }
    Ok(())
}

fn is_open() -> bool {
    OPEN.with_borrow(|open| open.depth > 0)
}

/// Starts a group of calls of this thread. Groups may be nested: the outermost end counts.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGroupStart() -> shmcclResult_t {
    answer(|| {
        OPEN.with_borrow_mut(|open| open.depth += 1);
        Ok(())
    })
}

/// Ends a group. The outermost end does all its calls: collective calls in the order in which they
/// were put in, then all messages at once, so that no order of them blocks. Calls without a stream
/// are done when it returns, and others are enqueued. The calls of one rank name the same stream,
/// or none.
///
/// Collective calls of one communicator that share memory behave as one after the other. A message
/// that was put in before a collective call, and a call of another communicator, share no memory
/// with it that one of both writes: `shmcclInvalidArgument`, and nothing is done.
///
/// Calls of several ranks of this process may be in one group: each rank has a thread meanwhile,
/// unless it names a stream.
///
/// Where a call of the group has failed, the end returns that failure and does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGroupEnd() -> shmcclResult_t {
    answer(|| {
        let ended = OPEN.with_borrow_mut(|open| {
            let missing = "shmcclGroupEnd without shmcclGroupStart in this thread";
            open.depth = open.depth.checked_sub(1).ok_or_else(|| Failure::usage(missing.into()))?;
            Ok::<_, Failure>(if open.depth == 0 { std::mem::take(open) } else { OpenGroup::default() })
        })?;
        if let Some(failure) = ended.failure {
            return Err(failure);
        }
        make_all(&ended.inits)?;
        let mut ranks = shares(ended.calls)?;
        match ranks.len() {
            0 => Ok(()),
            1 => ranks.remove(0).run(),
            _ => run_all(ranks),
        }
    })
}

/// Makes communicators of several ranks, each in a thread, because they wait for each other.
fn make_all(inits: &[PendingInit]) -> Result<(), Failure> {
    let made = std::thread::scope(|scope| {
        let inits = inits.iter().map(|pending| &pending.init);
        let threads: Vec<_> =
            inits.map(|init| spawn_scoped(scope, || init.meet().map(|comm| comm.addr()))).collect();
        threads.into_iter().map(joined).collect::<Vec<Result<usize, Failure>>>()
    });
    for (pending, made) in inits.iter().zip(made) {
        let handle = std::ptr::without_provenance_mut(made?);
        // SAFETY: the caller of `init` has answered for the place until now.
        unsafe { pending.place.write(handle) };
    }
    Ok(())
}

/// The calls of one rank.
struct Share {
    stream: Option<Arc<StreamState>>,
    comms: Vec<(Arc<CommState>, Vec<OwnedCall>)>,
}

/// Divides calls among the ranks that make them.
fn shares(calls: Vec<PendingCall>) -> Result<Vec<Share>, Failure> {
    let mut shares: Vec<Share> = Vec::new();
    for PendingCall { comm, stream, call } in calls {
        let is_of = |share: &&mut Share| share.comms[0].0.membership == comm.membership;
        let Some(share) = shares.iter_mut().find(is_of) else {
            shares.push(Share { stream, comms: vec![(comm, vec![call])] });
            continue;
        };
        if share.stream.as_ref().map(Arc::as_ptr) != stream.as_ref().map(Arc::as_ptr) {
            let text = "the calls of one rank in a group name different streams, expected the same";
            return Err(Failure::usage(text.into()));
        }
        match share.comms.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &comm)) {
            Some((_, calls)) => calls.push(call),
            None => share.comms.push((comm, vec![call])),
        }
    }
    Ok(shares)
}

/// Does the calls of several ranks: at once, each rank in a thread, where they have no stream.
fn run_all(shares: Vec<Share>) -> Result<(), Failure> {
    let (enqueued, now): (Vec<_>, Vec<_>) = shares.into_iter().partition(|share| share.stream.is_some());
    enqueued.into_iter().try_for_each(Share::run)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = now.into_iter().map(|share| spawn_scoped(scope, || share.run())).collect();
        threads.into_iter().map(joined).collect::<Vec<_>>().into_iter().collect()
    })
}

impl Share {
    /// Does the calls, or enqueues them.
    fn run(self) -> Result<(), Failure> {
        let Self { stream, mut comms } = self;
        // In one order by all threads.
        comms.sort_by_key(|(comm, _)| Arc::as_ptr(comm));
        let (comms, calls): (Vec<_>, Vec<_>) = comms.into_iter().unzip();
        let mut locked = comms.iter().map(|comm| comm.lock()).collect::<Result<Vec<_>, _>>()?;
        let mut members = locked.iter_mut().map(LockedComm::get).collect::<Result<Vec<_>, _>>()?;
        let stream = match (&stream, members.first()) {
            (Some(stream), Some(comm)) => Some(stream.for_call(comm)?),
            _ => None,
        };
        let mut group = Group::start();
        for (comm, calls) in members.drain(..).zip(calls) {
            let member = group.join(comm);
            calls.into_iter().try_for_each(|call| call.submit(&mut group.on(member)))?;
        }
        match stream {
            Some(stream) => Ok(group.end_on(stream)?),
            None => Ok(group.end()?),
        }
    }
}
