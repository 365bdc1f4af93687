//! Communicators: made, derived, asked, and left.

use std::ffi::c_int;
use std::time::Duration;

use shmccl::bootstrap::{Options, ProcessMark};
use shmccl::rank::check_n_ranks;
use shmccl::shm::undivided::spawn_scoped;
use shmccl::sync::Revocation;
use shmccl::{Communicator, Error, UniqueId};

use crate::answer::{answer, note};
use crate::arguments::{elements, process_mark, required, store_all, unsigned};
use crate::comm_state::{CommPlace, CommState, RankInit, place_among};
use crate::failure::{Failure, joined};
use crate::group::{self, PendingInit};
use crate::types::shmcclResult_t::{self, *};
use crate::types::{shmcclComm_t, shmcclProcess_t, shmcclUniqueId, signed};

/// The color of a rank that gets no communicator from `shmcclCommSplit`.
pub const SHMCCL_SPLIT_NOCOLOR: c_int = -1;

/// The options of a communicator. Begin with `SHMCCL_CONFIG_INITIALIZER`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shmcclConfig_t {
    /// The size of this structure.
    pub size: usize,
    /// Length of each rank's heap in bytes, the same on all ranks; 0 for 256 MiB.
    pub heapBytes: u64,
    /// How long a wait may take, in milliseconds; 0 for a minute.
    pub timeoutMs: u64,
    /// The processes of all ranks in order, as `shmcclGetProcess` names them, or NULL. With them
    /// the meeting fails for all as one of them ends, also before it has come.
    pub processes: *const shmcclProcess_t,
}

/// Makes a unique id, and begins to host its meeting in a thread of this process. The process must
/// not end before all ranks have met, and need not be a rank itself. An id that no rank uses within
/// an hour is used up.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGetUniqueId(uniqueId: Option<&mut shmcclUniqueId>) -> shmcclResult_t {
    answer(|| {
        let target = required(uniqueId, "uniqueId")?;
        target.internal = UniqueId::new()?.to_bytes().map(u8::cast_signed);
        Ok(())
    })
}

/// Joins the job that `shmccl run -n N -- PROGRAM` has started this process for. All ranks call it.
///
/// `shmcclInvalidUsage`: no launcher has started this process.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommInit(comm: Option<&mut shmcclComm_t>) -> shmcclResult_t {
    answer(|| {
        let comm = required(comm, "comm")?;
        let place = CommPlace::reserve()?;
        *comm = place.adopt(Communicator::from_env()?)?;
        Ok(())
    })
}

/// Meets the other ranks under `commId`, and makes a communicator of `nranks` ranks, this one being
/// `rank`. It returns when all have come. In a group it is done by `shmcclGroupEnd`, and `comm` has
/// to stay where it is until then: so one thread can be several ranks.
///
/// `shmcclNoMeeting`, `shmcclTimeout`, `shmcclPeerLost`: the ranks have not come together, and the
/// id is used up.
///
/// # Safety
/// `comm` is NULL, or a communicator handle can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclCommInitRank(
    comm: *mut shmcclComm_t,
    nranks: c_int,
    commId: shmcclUniqueId,
    rank: c_int,
) -> shmcclResult_t {
    // SAFETY: the caller's duties are the same.
    unsafe { shmcclCommInitRankConfig(comm, nranks, commId, rank, None) }
}

/// Does `shmcclCommInitRank` with options. `config` may be NULL.
///
/// # Safety
/// `comm` is NULL, or a communicator handle can be written there. `processes` of `config` is NULL,
/// or leads to `nranks` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclCommInitRankConfig(
    comm: *mut shmcclComm_t,
    nranks: c_int,
    commId: shmcclUniqueId,
    rank: c_int,
    config: Option<&shmcclConfig_t>,
) -> shmcclResult_t {
    group::answer_in_group(|| {
        if comm.is_null() {
            return Err(Failure::null("comm"));
        }
        let id = unique_id(&commId)?;
        let init = RankInit {
            n_ranks: unsigned(nranks, "nranks")?,
            rank: unsigned(rank, "rank")?,
            id,
            options: options(config)?,
            // SAFETY: the caller answers for as many as there are ranks.
            processes: unsafe { processes(config, nranks) }?,
        };
        // SAFETY: the caller answers for the place, until the end of the group if there is one.
        unsafe { group::init(PendingInit { init, place: comm }) }
    })
}

fn unique_id(id: &shmcclUniqueId) -> Result<UniqueId, Failure> {
    Ok(UniqueId::from_bytes(&id.internal.map(i8::cast_unsigned))?)
}

/// # Safety
/// `processes` of `config` is NULL, or leads to `nranks` of them.
unsafe fn processes(config: Option<&shmcclConfig_t>, nranks: c_int) -> Result<Vec<ProcessMark>, Failure> {
    let Some(config) = config.filter(|config| !config.processes.is_null()) else { return Ok(Vec::new()) };
    let count = unsigned(nranks, "nranks")? as usize;
    // SAFETY: the caller answers for as many.
    let marks = unsafe { elements(config.processes, count, "config.processes") }?;
    marks.iter().map(process_mark).collect()
}

/// Stores a name of the calling process. It tells every other process of this machine and user
/// whether that one has ended: see `processes` of `shmcclConfig_t`.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclGetProcess(process: Option<&mut shmcclProcess_t>) -> shmcclResult_t {
    answer(|| {
        *required(process, "process")? = shmcclProcess_t::own();
        Ok(())
    })
}

fn options(config: Option<&shmcclConfig_t>) -> Result<Options, Failure> {
    let mut options = Options::default();
    let Some(config) = config else { return Ok(options) };
    let size = size_of::<shmcclConfig_t>();
    if config.size != size {
        let text = format!(
            "config.size is {}, expected {size}: begin with SHMCCL_CONFIG_INITIALIZER of this version's shmccl.h",
            config.size
        );
        return Err(Failure::argument(text));
    }
    if config.heapBytes != 0 {
        options.heap_len = config.heapBytes;
    }
    if config.timeoutMs != 0 {
        options.timeout = Duration::from_millis(config.timeoutMs);
    }
    Ok(options)
}

/// Makes all `nranks` communicators of a job in this process. Rank i is `comms[i]`.
///
/// Calls of different ranks wait for each other. So each rank has a thread of its own, or one
/// thread makes the calls of all within `shmcclGroupStart` and `shmcclGroupEnd`, or on a stream for
/// each rank.
///
/// # Safety
/// `comms` is NULL, or `nranks` communicator handles can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclCommInitAll(comms: *mut shmcclComm_t, nranks: c_int) -> shmcclResult_t {
    answer(|| {
        if comms.is_null() {
            return Err(Failure::null("comms"));
        }
        let n_ranks = unsigned(nranks, "nranks")?;
        // Before that many handles are reserved.
        check_n_ranks(n_ranks).map_err(Error::from)?;
        let places = (0..n_ranks).map(|_| CommPlace::reserve()).collect::<Result<Vec<_>, _>>()?;
        let handles = prepare_all(places, Communicator::init_all(n_ranks)?)?;
        // SAFETY: there are `nranks` of them, for which the caller has room.
        unsafe { store_all(comms, &handles) };
        Ok(())
    })
}

/// Prepares the ranks of one process, each in a thread, because they wait for each other.
fn prepare_all(places: Vec<CommPlace>, comms: Vec<Communicator>) -> Result<Vec<shmcclComm_t>, Failure> {
    /// A handle on its way between threads.
    struct Handle(shmcclComm_t);
    // SAFETY: a handle is a number, and leads nowhere.
    unsafe impl Send for Handle {}
    std::thread::scope(|scope| {
        let spawn = |(place, comm): (CommPlace, Communicator)| {
            spawn_scoped(scope, move || place.adopt(comm).map(Handle))
        };
        let threads: Vec<_> = places.into_iter().zip(comms).map(spawn).collect();
        // All are joined before the first failure is returned.
        let ends = threads.into_iter().map(joined).collect::<Vec<_>>();
        ends.into_iter().map(|end| end.map(|handle| handle.0)).collect()
    })
}

/// Stores the number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommCount(comm: shmcclComm_t, count: Option<&mut c_int>) -> shmcclResult_t {
    answer(|| {
        *required(count, "count")? = c_int::try_from(CommState::get(comm)?.n_ranks()).unwrap_or(c_int::MAX);
        Ok(())
    })
}

/// Stores the rank of the caller.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommUserRank(comm: shmcclComm_t, rank: Option<&mut c_int>) -> shmcclResult_t {
    answer(|| {
        *required(rank, "rank")? = signed(CommState::get(comm)?.rank().get());
        Ok(())
    })
}

/// Stores the number that the job has for `rank` of the communicator. Texts of errors name ranks
/// so.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommJobRank(
    comm: shmcclComm_t,
    rank: c_int,
    jobRank: Option<&mut c_int>,
) -> shmcclResult_t {
    answer(|| {
        let state = CommState::get(comm)?;
        *required(jobRank, "jobRank")? = signed(state.members()[state.member(rank, "rank")?.index()].get());
        Ok(())
    })
}

/// Divides the communicator: ranks of one `color` come together in a new one, in the order of
/// `key`, then of their ranks. `SHMCCL_SPLIT_NOCOLOR` takes part, and gets NULL. All ranks call it.
/// The new communicator and the old one are independent of each other.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommSplit(
    comm: shmcclComm_t,
    color: c_int,
    key: c_int,
    newcomm: Option<&mut shmcclComm_t>,
) -> shmcclResult_t {
    answer(|| {
        let color = match color {
            SHMCCL_SPLIT_NOCOLOR => None,
            color => Some(unsigned(color, "color")?),
        };
        CommState::get(comm)?.derive(newcomm, |comm| comm.split(color, key.into()))
    })
}

/// Makes another communicator of the same ranks, with calls independent of this one's. All ranks
/// call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommDuplicate(
    comm: shmcclComm_t,
    newcomm: Option<&mut shmcclComm_t>,
) -> shmcclResult_t {
    answer(|| CommState::get(comm)?.derive(newcomm, |comm| comm.duplicate().map(Some)))
}

/// Goes on without the lost ranks, once a call has failed with `shmcclPeerLost` or another error
/// that ended the epoch. All ranks that are left call it, on the job's first communicator.
///
/// Ranks of `excludeRanksList` are given up first, whether they live or not. `lost` and `nLost` may
/// be NULL; otherwise `lost` has room for `shmcclCommCount` ranks, and gets those of `comm` that
/// are not in `newcomm`. Memory and windows of the old communicator do not belong to the new one.
/// Destroy the old one.
///
/// `shmcclExcluded`: the others have given this rank up. `shmcclTimeout` names a rank that has not
/// called it; the call can be repeated.
///
/// # Safety
/// `excludeRanksList` holds `excludeRanksCount` numbers; `lost` is NULL, or has room as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclCommShrink(
    comm: shmcclComm_t,
    excludeRanksList: *const c_int,
    excludeRanksCount: c_int,
    newcomm: Option<&mut shmcclComm_t>,
    lost: *mut c_int,
    nLost: Option<&mut c_int>,
) -> shmcclResult_t {
    answer(|| {
        let (state, newcomm) = (CommState::get(comm)?, required(newcomm, "newcomm")?);
        let count = unsigned(excludeRanksCount, "excludeRanksCount")? as usize;
        // SAFETY: the caller answers for as many numbers.
        let excluded = unsafe { elements(excludeRanksList, count, "excludeRanksList") }?;
        let excluded = excluded.iter().map(|rank| state.member(*rank, "excludeRanksList"));
        let excluded = excluded.collect::<Result<Vec<_>, _>>()?;
        let place = CommPlace::reserve()?;
        let shrunk = state.with(|comm| {
            excluded.into_iter().try_for_each(|rank| comm.give_up(rank))?;
            Ok(comm.shrink()?)
        })?;
        *newcomm = place.adopt(shrunk.comm)?;
        let numbers: Vec<_> = shrunk.lost.iter().map(|rank| signed(rank.get())).collect();
        // SAFETY: the caller has room for all ranks of `comm`, which these are some of.
        unsafe { store_all(lost, &numbers) };
        if let Some(nLost) = nLost {
            *nLost = c_int::try_from(shrunk.lost.len()).unwrap_or(c_int::MAX);
        }
        Ok(())
    })
}

/// Comes together with joining processes in a new communicator of `nranks` ranks. All ranks call
/// it. One rank at least passes the id of the meeting, and the others may pass NULL. The joining
/// processes call `shmcclCommJoin`. Ranks keep their numbers.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommGrow(
    comm: shmcclComm_t,
    nranks: c_int,
    uniqueId: Option<&shmcclUniqueId>,
    newcomm: Option<&mut shmcclComm_t>,
) -> shmcclResult_t {
    answer(|| {
        let (state, newcomm) = (CommState::get(comm)?, required(newcomm, "newcomm")?);
        let (n_ranks, id) = (unsigned(nranks, "nranks")?, uniqueId.map(unique_id).transpose()?);
        let place = CommPlace::reserve()?;
        *newcomm = place.adopt(state.with(|comm| Ok(comm.grow(n_ranks, id.as_ref())?))?)?;
        Ok(())
    })
}

/// Joins the ranks of a communicator that grow under `uniqueId`, as one of the ranks behind theirs.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommJoin(
    uniqueId: Option<&shmcclUniqueId>,
    newcomm: Option<&mut shmcclComm_t>,
) -> shmcclResult_t {
    answer(|| {
        let newcomm = required(newcomm, "newcomm")?;
        let id = unique_id(uniqueId.ok_or_else(|| Failure::null("uniqueId"))?)?;
        let place = CommPlace::reserve()?;
        *newcomm = place.adopt(Communicator::join(&id)?)?;
        Ok(())
    })
}

/// Ends the epoch of the communicator for all ranks: every wait returns `shmcclRevoked` within
/// milliseconds. Any thread may call it, also while another one is in a call. The handle stays.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommRevoke(comm: shmcclComm_t) -> shmcclResult_t {
    answer(|| {
        CommState::get(comm)?.aborter.revoke();
        Ok(())
    })
}

/// Does `shmcclCommRevoke` because the caller has waited for `rank` of `comm` for longer than it
/// would: the other ranks read so. With -1 nobody in particular was awaited.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommRevokeAwaiting(comm: shmcclComm_t, rank: c_int) -> shmcclResult_t {
    answer(|| {
        let state = CommState::get(comm)?;
        match state.member(rank, "rank") {
            Ok(member) => state.aborter.revoke_awaiting(state.members()[member.index()]),
            Err(_) if rank == -1 => state.aborter.revoke(),
            Err(failure) => return Err(failure),
        }
        Ok(())
    })
}

/// Stores which ranks of `comm` hold the others up: they are awaited, and wait for nobody. `ranks`
/// has room for all ranks of `comm`; `count` says how many it is. Any thread may call it, also
/// while another one waits.
///
/// # Safety
/// `ranks` is NULL, or as many numbers as `comm` has ranks can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclCommGetStragglers(
    comm: shmcclComm_t,
    ranks: *mut c_int,
    count: Option<&mut c_int>,
) -> shmcclResult_t {
    answer(|| {
        let (state, count) = (CommState::get(comm)?, required(count, "count")?);
        if ranks.is_null() {
            return Err(Failure::null("ranks"));
        }
        let stragglers = state.aborter.stragglers(state.members()).into_iter();
        let places = stragglers.map(|rank| place_among(state.members(), rank));
        let named: Vec<_> = places.filter(|place| *place >= 0).collect();
        // SAFETY: there are no more than ranks of the communicator; the caller answers for the
        // rest.
        unsafe { store_all(ranks, &named) };
        *count = c_int::try_from(named.len()).unwrap_or(c_int::MAX);
        Ok(())
    })
}

/// Does `shmcclCommRevoke`, and destroys the communicator. A call of another thread returns first.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommAbort(comm: shmcclComm_t) -> shmcclResult_t {
    answer(|| {
        CommState::take(comm)?.aborter.revoke();
        Ok(())
    })
}

/// Waits until all ranks have called it and have done their enqueued calls, and leaves. The handle
/// is good for `shmcclCommDestroy` only. The ranks of one process call it in threads.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommFinalize(comm: shmcclComm_t) -> shmcclResult_t {
    answer(|| {
        let state = CommState::get(comm)?;
        let comm = state.lock()?.take()?;
        Ok(comm.finalize()?)
    })
}

/// Leaves the communicator, once its enqueued calls are done, and frees the handle. It waits for no
/// other rank. A rank that still needs this one gets `shmcclPeerLost`: where ranks may be at
/// different points, all call `shmcclCommFinalize` before.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommDestroy(comm: shmcclComm_t) -> shmcclResult_t {
    answer(|| CommState::take(comm).map(drop))
}

/// Stores why the epoch of the communicator has ended, or `shmcclSuccess` if it has not. Every call
/// returns that code from then on. It waits for nobody, and any thread may call it. The reason is
/// the thread's last failure as well: `shmcclGetLastError`, `shmcclGetLastErrorRank`.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommGetAsyncError(
    comm: shmcclComm_t,
    asyncError: Option<&mut shmcclResult_t>,
) -> shmcclResult_t {
    answer(|| {
        let asyncError = required(asyncError, "asyncError")?;
        let ended = CommState::get(comm)?.aborter.revoked().map(Failure::from);
        *asyncError = ended.map_or(shmcclSuccess, |failure| note(&failure));
        Ok(())
    })
}

/// Gives every wait that begins from now on `timeoutMs` milliseconds, which is not 0. It concerns
/// all communicators of this rank in the job, and no other rank.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommSetTimeout(comm: shmcclComm_t, timeoutMs: u64) -> shmcclResult_t {
    answer(|| CommState::get(comm)?.with(|comm| Ok(comm.set_timeout(Duration::from_millis(timeoutMs))?)))
}

/// Stores how many bytes of this rank's inputs its calls have copied to where other ranks read
/// them, through all communicators of the job.
///
/// Calls whose buffers are memory of `shmcclMemAlloc` on all ranks copy none, but for an all-reduce
/// out of place that was measured to be quicker so. What a small call carries with itself is not
/// counted.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommStagedBytes(comm: shmcclComm_t, bytes: Option<&mut u64>) -> shmcclResult_t {
    answer(|| {
        let bytes = required(bytes, "bytes")?;
        *bytes = CommState::get(comm)?.with(|comm| Ok(comm.staged_bytes()))?;
        Ok(())
    })
}

impl From<Revocation> for Failure {
    fn from(reason: Revocation) -> Self {
        Self::from(match reason {
            Revocation::PeerLost(rank) => Error::PeerLost { rank },
            Revocation::ProxyLost => Error::ProxyLost,
            Revocation::Aborted(by) => Error::Revoked { by, awaited: None },
            Revocation::TimedOut { by, awaited } => Error::Revoked { by: Some(by), awaited: Some(awaited) },
            Revocation::Corrupted(rank) => Error::PutCorrupted { rank },
            _ => Error::Revoked { by: None, awaited: None },
        })
    }
}
