//! What the tables of handles hold for a communicator, and how it gets there.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shmccl::bootstrap::{Options, ProcessMark};
use shmccl::comm::{Aborter, Statics};
use shmccl::heap::{HeapView, Region};
use shmccl::shm::Span;
use shmccl::{Arena, Communicator, Error, Rank, UniqueId};

use crate::arguments::{required, unsigned};
use crate::failure::Failure;
use crate::handles::{Handles, Reserved, lock};
use crate::signals::Signals;
use crate::types::shmcclComm_t;

/// A communicator of one rank, with what can be known of it while a call has it.
pub(crate) struct CommState {
    /// `None` once it was finalized.
    comm: Mutex<Option<Communicator>>,
    rank: Rank,
    members: Arc<[Rank]>,
    /// Tells the ranks of jobs apart that this process is. Derived communicators share it.
    pub(crate) membership: usize,
    pub(crate) arena: Arena,
    /// The way to the heaps of the job, whose ranks are numbered as the job does.
    heaps: HeapView,
    /// The way to the static objects of its ranks.
    pub(crate) statics: Statics,
    pub(crate) aborter: Aborter,
    /// What its windows signal with, made with the first of them.
    pub(crate) signals: Mutex<Option<Arc<Signals>>>,
    /// The recovery that led to its epoch.
    pub(crate) recovery: Option<RecoveredFrom>,
}

static COMMS: Handles<CommState, MAX_COMMS> = Handles::new(1, "comm");

const MAX_COMMS: usize = 4096;

/// Where a communicator will stand that is still to be made. Each rank takes it first: the others
/// are not left behind with a communicator that one of them has no room for.
pub(crate) struct CommPlace(Reserved<'static, CommState, MAX_COMMS>);

static MEMBERSHIPS: AtomicUsize = AtomicUsize::new(0);

impl CommState {
    /// Wraps a communicator of a new membership in a job.
    fn first(comm: Communicator, recovery: Option<RecoveredFrom>) -> Arc<Self> {
        // Relaxed: only that numbers differ matters.
        Self::of(comm, MEMBERSHIPS.fetch_add(1, Ordering::Relaxed), recovery)
    }

    fn of(comm: Communicator, membership: usize, recovery: Option<RecoveredFrom>) -> Arc<Self> {
        Arc::new(Self {
            rank: comm.rank(),
            members: comm.members().into(),
            membership,
            arena: comm.arena(),
            heaps: comm.heap().view().clone(),
            statics: comm.statics(),
            aborter: comm.aborter(),
            signals: Mutex::new(None),
            recovery,
            comm: Mutex::new(Some(comm)),
        })
    }

    pub(crate) fn get(handle: shmcclComm_t) -> Result<Arc<Self>, Failure> {
        COMMS.get(handle)
    }

    /// Returns what a handle leads to, which is none from now on.
    pub(crate) fn take(handle: shmcclComm_t) -> Result<Arc<Self>, Failure> {
        COMMS.take(handle)
    }

    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn n_ranks(&self) -> usize {
        self.members.len()
    }

    /// Returns its ranks as the job numbers them.
    pub(crate) fn members(&self) -> &Arc<[Rank]> {
        &self.members
    }

    /// Reads a rank of it.
    pub(crate) fn member(&self, rank: c_int, name: &str) -> Result<Rank, Failure> {
        let n_ranks = u32::try_from(self.n_ranks()).unwrap_or(u32::MAX);
        Ok(Rank::new(unsigned(rank, name)?, n_ranks).map_err(Error::from)?)
    }

    /// Returns bytes of the caller's as a region of this rank's heap, if they lie there.
    pub(crate) fn region_of(&self, address: usize, len: u64) -> Option<Region> {
        self.heaps.region_of(address, len)
    }

    /// Returns whether a region is of that part of the heap which all ranks allocate together.
    pub(crate) fn is_symmetric(&self, region: Region) -> bool {
        region.offset.get() + region.len <= self.heaps.watermark()
    }

    /// Returns whose heap some bytes lie in, as C has the rank, and where.
    pub(crate) fn place_of(&self, address: usize, len: u64) -> Option<(c_int, Region)> {
        let (rank, region) = self.heaps.place_of(address, len)?;
        Some((place_among(&self.members, rank), region))
    }

    /// Returns bytes in the heap of a rank.
    pub(crate) fn span(&self, rank: Rank, region: Region) -> Result<Span, Failure> {
        Ok(self.heaps.span(self.members[rank.index()], region)?)
    }

    /// Lets `run` have the communicator, alone.
    pub(crate) fn with<R>(
        &self,
        run: impl FnOnce(&mut Communicator) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        run(self.lock()?.get()?)
    }

    /// Waits until the calling thread has the communicator alone.
    pub(crate) fn lock(&self) -> Result<LockedComm<'_>, Failure> {
        self.check_process()?;
        Ok(LockedComm(lock(&self.comm)))
    }

    /// Refuses calls in a child that the rank has forked. There a thread may have had a lock that
    /// is no more.
    pub(crate) fn check_process(&self) -> Result<(), Failure> {
        Ok(self.aborter.check_process("a call")?)
    }

    /// Makes a communicator of the same membership by `derive`, and stores its handle.
    pub(crate) fn derive(
        &self,
        newcomm: Option<&mut shmcclComm_t>,
        derive: impl FnOnce(&mut Communicator) -> Result<Option<Communicator>, Error>,
    ) -> Result<(), Failure> {
        let (newcomm, place) = (required(newcomm, "newcomm")?, COMMS.reserve()?);
        let derived = self.with(|comm| Ok(derive(comm)?))?;
        *newcomm = match derived.map(prepared).transpose()? {
            Some(derived) => place.fill(Self::of(derived, self.membership, self.recovery)),
            None => std::ptr::null_mut(),
        };
        Ok(())
    }
}

/// A communicator that the calling thread has alone.
pub(crate) struct LockedComm<'a>(std::sync::MutexGuard<'a, Option<Communicator>>);

impl LockedComm<'_> {
    pub(crate) fn get(&mut self) -> Result<&mut Communicator, Failure> {
        self.0.as_mut().ok_or_else(|| Failure::usage("the communicator was finalized; destroy it".into()))
    }

    /// Takes the communicator out, which is finalized for everybody else from then on.
    pub(crate) fn take(&mut self) -> Result<Communicator, Failure> {
        self.get()?;
        Ok(self.0.take().expect("looked at just now"))
    }
}

/// Returns the place of `rank` among `members`, as C has it: -1 where it is none of them.
pub(crate) fn place_among(members: &[Rank], rank: Rank) -> c_int {
    let place = members.iter().position(|member| *member == rank);
    place.map_or(-1, |place| c_int::try_from(place).unwrap_or(c_int::MAX))
}

impl CommPlace {
    /// # Errors
    /// All places are taken.
    pub(crate) fn reserve() -> Result<Self, Failure> {
        COMMS.reserve().map(Self)
    }

    /// Takes a communicator that all its ranks have made, with the memory of its calls.
    pub(crate) fn adopt(self, mut comm: Communicator) -> Result<shmcclComm_t, Failure> {
        if comm.was_restarted() {
            // It is not yet with the others.
            let told = RecoveredFrom::hear(&mut comm);
            return Ok(self.keep(comm, *lock(&told)));
        }
        Ok(self.keep(prepared(comm)?, None))
    }

    /// Takes a communicator of a new epoch.
    pub(crate) fn keep(self, comm: Communicator, recovery: Option<RecoveredFrom>) -> shmcclComm_t {
        self.0.fill(CommState::first(comm, recovery))
    }
}

/// What a rank knows of the recovery that led to its epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoveredFrom {
    pub(crate) was_restarted: bool,
    /// The step that all survivors had completed.
    pub(crate) step: u64,
}

impl RecoveredFrom {
    /// Lets the communicator tell of its recovery: at once, or when it is recovered.
    pub(crate) fn hear(comm: &mut Communicator) -> Arc<Mutex<Option<Self>>> {
        let told = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&told);
        comm.on_recovery(move |recovery| {
            *lock(&heard) = Some(Self { was_restarted: recovery.was_restarted, step: recovery.sequence });
        });
        told
    }
}

/// Takes the memory of calls, so that no later one waits for ranks that it does not concern.
fn prepared(mut comm: Communicator) -> Result<Communicator, Failure> {
    comm.prepare()?;
    Ok(comm)
}

/// A rank that is to meet others.
pub(crate) struct RankInit {
    pub(crate) n_ranks: u32,
    pub(crate) rank: u32,
    pub(crate) id: UniqueId,
    pub(crate) options: Options,
    /// The marks of all ranks, or of none.
    pub(crate) processes: Vec<ProcessMark>,
}

impl RankInit {
    /// Meets the others, and returns the handle of the communicator.
    pub(crate) fn meet(&self) -> Result<shmcclComm_t, Failure> {
        let place = CommPlace::reserve()?;
        let Self { n_ranks, rank, id, options, processes } = self;
        place.adopt(if processes.is_empty() {
            Communicator::init_rank_with(*n_ranks, id, *rank, options)?
        } else {
            Communicator::init_rank_among(*n_ranks, id, *rank, options, processes.clone())?
        })
    }
}
