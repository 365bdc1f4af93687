//! The ground of all channels of one rank: the mapped epoch, its heap, its slots, and how it waits.

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

mod condition;
mod waits;
mod watches;

use super::epoch::EpochMapping;
use super::slot::ChannelSlots;
use crate::bootstrap::dump_heap_from_env;
use crate::error::{EpochReport, Error, Result};
use crate::heap::SymmetricHeap;
use crate::process::OwnerProcess;
use crate::rank::Rank;
use crate::shm::{CellRef, HostKernel};
use crate::sync::atomic::AtomicU64;
use crate::sync::{
    ActivityCell, ParkCell, SemaphoreCell, SemaphoreReceiver, WaitPolicy, Waiting, Watch, plain,
};
use condition::RankState;
use watches::PeerWatch;
pub(crate) use watches::{EpochWatch, LongWait};

/// The receiving side of a channel's semaphore.
pub(crate) type Inbound = SemaphoreReceiver<CellRef<SemaphoreCell>>;

/// Looks at what all ranks of an epoch are in, for the error of a wait that has come to nothing.
pub(crate) type Observe = fn(&EpochMapping) -> Option<Box<dyn EpochReport>>;

/// One rank's view of a [`EpochMapping`].
#[derive(Debug)]
pub(crate) struct RankContext {
    mapped: Arc<EpochMapping>,
    rank: Rank,
    /// The process that is the rank.
    process: OwnerProcess,
    heap: Arc<SymmetricHeap>,
    slots: ChannelSlots,
    cores: CoreSharing,
    /// How long a wait may take, in nanoseconds.
    timeout: AtomicU64,
    /// How many bytes of inputs calls have moved through staging areas.
    staged: AtomicU64,
    observe: Observe,
    state: RankState,
    /// The rank that this one blames, if a wait has come to nothing.
    blamed: OnceLock<Blamed>,
}

/// A rank that lives or has left, and by which a wait of another one has come to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blamed {
    pub(crate) rank: Rank,
    /// It held others up until the deadline had passed; otherwise it had left.
    pub(crate) is_late: bool,
}

/// Who shares the core of a rank.
#[derive(Debug)]
struct CoreSharing {
    /// How many threads that may spin share this rank's core.
    spinners: AtomicU64,
    /// Whether there was more than one from the start.
    oversubscribed: bool,
    /// How many cores the ranks were told to count on, instead of those on which they may run.
    told: Option<NonZeroU32>,
    /// Where the proxy service process sleeps, when it runs on this rank's core.
    service: Option<CellRef<ParkCell>>,
    /// Where this rank's proxy thread sleeps, once there is one.
    proxy: OnceLock<CellRef<ParkCell>>,
}

impl CoreSharing {
    fn among(spinners: u32) -> Self {
        Self {
            spinners: AtomicU64::new(spinners.into()),
            oversubscribed: spinners > 1,
            told: None,
            service: None,
            proxy: OnceLock::new(),
        }
    }
}

impl RankContext {
    /// Looks at `mapped` as `rank`, which shares its core with `spinners` spinning threads in all,
    /// itself included. The errors of its waits carry what `observe` sees.
    ///
    /// # Errors
    /// Fails as [`SymmetricHeap::new`] does, or with [`Error::Setting`] for what the environment
    /// says of dumps.
    pub(crate) fn new(
        mapped: Arc<EpochMapping>,
        rank: Rank,
        spinners: u32,
        timeout: Duration,
        observe: Observe,
    ) -> Result<Self> {
        let heap = SymmetricHeap::new(mapped.view(rank).clone(), Arc::clone(mapped.segment(rank)))?;
        let heap = if dump_heap_from_env()? { heap.dumped()? } else { heap };
        Ok(Self {
            slots: ChannelSlots::new(mapped.n_ranks()),
            mapped,
            rank,
            process: OwnerProcess::this(),
            heap: Arc::new(heap),
            cores: CoreSharing::among(spinners),
            timeout: AtomicU64::new(plain::nanos(timeout)),
            staged: AtomicU64::new(0),
            observe,
            state: RankState::ordinary(),
            blamed: OnceLock::new(),
        })
    }

    /// Puts the rank on the core of the proxy service process, which counts while it is awake.
    pub(crate) fn beside_service(mut self) -> Self {
        self.cores.service = Some(self.mapped.control().proxy_doorbell());
        self
    }

    /// Counts the spinning threads on its core as if the ranks had so many `cores`.
    pub(crate) fn counting_on(self, cores: NonZeroU32) -> Self {
        let sharing = CoreSharing::among(self.mapped.n_ranks().div_ceil(cores.get()));
        Self { cores: CoreSharing { told: Some(cores), service: self.cores.service, ..sharing }, ..self }
    }

    pub(crate) fn mapped(&self) -> &Arc<EpochMapping> {
        &self.mapped
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns whether this process is a child of the rank that has forked, and not the rank: it
    /// must not leave in the rank's name. It asks the system, so it knows of children of all kinds.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    pub(crate) fn heap(&self) -> &Arc<SymmetricHeap> {
        &self.heap
    }

    pub(crate) fn slots(&self) -> &ChannelSlots {
        &self.slots
    }

    #[inline]
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_nanos(plain::load(&self.timeout))
    }

    /// Gives waits that begin from now on so much time.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        plain::store(&self.timeout, plain::nanos(timeout));
    }

    /// Counts bytes of an input that go through a staging area.
    #[inline]
    pub(crate) fn count_staged(&self, len: u64) {
        plain::add(&self.staged, len);
    }

    pub(crate) fn staged(&self) -> u64 {
        plain::load(&self.staged)
    }

    #[inline]
    pub(crate) fn kernel(&self) -> &HostKernel {
        self.mapped.kernel()
    }

    /// Counts one more thread that spins on this rank's core.
    pub(crate) fn add_spinner(&self) {
        plain::add(&self.cores.spinners, 1);
    }

    /// Takes back an [`add_spinner`](Self::add_spinner).
    pub(crate) fn remove_spinner(&self) {
        plain::add(&self.cores.spinners, u64::MAX);
    }

    /// Notes that this rank has a proxy thread from now on. It sleeps on `doorbell`, and counts as
    /// long as it is awake.
    pub(crate) fn host_proxy(&self, doorbell: CellRef<ParkCell>) {
        self.cores.proxy.get_or_init(|| doorbell);
    }

    /// Returns whether this rank shares its core, with proxies left aside.
    pub(crate) fn oversubscribed(&self) -> bool {
        self.cores.oversubscribed
    }

    /// Returns how many spinning threads share this rank's core, itself included and proxies left
    /// aside.
    pub(crate) fn sharing(&self) -> u64 {
        plain::load(&self.cores.spinners)
    }

    /// Returns the number of cores that it was told to count on, where it was.
    pub(crate) fn told_cores(&self) -> Option<NonZeroU32> {
        self.cores.told
    }

    #[inline]
    pub(crate) fn policy(&self) -> WaitPolicy {
        // A rank that pushes for a sleeping proxy has marked it awake before it waits itself.
        let is_awake = |doorbell: &CellRef<ParkCell>| !doorbell.is_slept_on();
        let awake = |proxy: Option<&CellRef<ParkCell>>| u64::from(proxy.is_some_and(is_awake));
        let proxies = awake(self.cores.service.as_ref()) + awake(self.cores.proxy.get());
        let spinners = self.sharing().saturating_add(proxies);
        WaitPolicy::for_spinners(u32::try_from(spinners).unwrap_or(u32::MAX))
    }

    /// Returns semaphore number `index` of `rank`.
    pub(crate) fn semaphore(&self, rank: Rank, index: u32) -> Result<CellRef<SemaphoreCell>> {
        let semaphores = self.mapped.semaphores(rank);
        semaphores.get_ref(index as usize).ok_or(Error::OutOfRange {
            what: "semaphores of a rank",
            offset: index.into(),
            len: 1,
            limit: semaphores.len() as u64,
        })
    }

    /// Watches the epoch and, where one is awaited, a rank.
    pub(crate) fn watch(&self, awaited: Option<Rank>) -> PeerWatch<'_> {
        PeerWatch { mapped: &self.mapped, awaited }
    }

    /// Looks at what all ranks are in.
    #[cold]
    pub(crate) fn observe(&self) -> Option<Box<dyn EpochReport>> {
        (self.observe)(&self.mapped)
    }

    /// Returns the terms of a wait that `watch` looks after.
    pub(crate) fn waiting<'a, W: Watch>(&'a self, watch: &'a W) -> Waiting<'a, HostKernel, W> {
        Waiting::new(self.kernel(), watch, self.policy(), self.timeout())
    }

    /// Returns the cell in which this rank tells observers of itself.
    pub(crate) fn activity(&self) -> &ActivityCell {
        self.mapped.activity(self.rank)
    }
}
