//! Makes a process a member of a job: it joins, creates its segment, maps all segments, and becomes
//! ready.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;

use super::core_set::CoreSet;
use super::epoch_commit::EpochCommit;
use super::heartbeat::Heartbeat;
use super::job_barrier::JobBarrier;
use super::launcher_link::Incarnation;
use super::ports::Ports;
use super::workspace::Workspace;
use super::{JobMembership, OwnSegment};
use crate::bootstrap::{Joining, Options, ProxyMode, Shared, checksums_from_env, cores_from_env};
use crate::channel::{Control, EpochMapping, RankContext};
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::faults::{FaultHit, Faults, Injector};
use crate::heap::MemoryRegistrar;
use crate::heap::layout::HeapShape;
use crate::heap::registered::heap_windows;
use crate::logs::{EPOCH, step};
use crate::observe::report_of;
use crate::rank::Rank;
use crate::shm::LifeLock;
use crate::shm::statics::JobStatics;
use crate::trace::{Recorder, Rings};

/// Returns the trace rings of a member, if it is traced.
pub(in crate::comm) fn rings_of(joining: &Joining) -> Result<Option<Rings>> {
    let attach = |rings| Rings::attach(duplicate(rings)?, joining.epoch_id);
    joining.rings.as_ref().map(attach).transpose()
}

/// Joins the ranks that this process has met without a launcher.
///
/// The host of the meeting is not needed from here on, so its line is closed. Life locks show what
/// a launcher would report. A number of cores that this rank was `told` takes the place of
/// counting.
///
/// # Errors
/// Fails as [`join_job`] does.
pub(in crate::comm) fn join_assembled(
    mut joining: Joining,
    told: Option<NonZeroU32>,
) -> Result<Communicator> {
    let rank = joining.rank().expect("only ranks meet");
    let cores = CoreSet::own();
    let all: Vec<_> =
        joining.all_gather(cores.bytes(), None)?.into_iter().map(|contribution| contribution.bytes).collect();
    let params = JoinParams::with_proxy_threads(cores.spinners(&all), told, joining.options.timeout);
    let AttachedMember { shared, mapped, own } = AttachedMember::of(joining)?;
    let live = LiveRank::announce(&mapped, rank)?;
    let guard = shared.joining.guard().cloned();
    let epoch_commit = EpochCommit::new(&mapped, rank, params.spinners, params.timeout, guard);
    // The host is not needed from here on.
    shared.ready().map(drop).map_err(|error| epoch_commit.abandon(error))?;
    let mut comm = live.join(&mapped, &params).map_err(|error| epoch_commit.abandon(error))?;
    comm.alone()._own = own;
    epoch_commit.complete()?;
    step("with the others");
    Ok(comm)
}

/// The decisions of a job for its ranks.
#[derive(Clone, Debug)]
pub(in crate::comm) struct JoinParams {
    pub(in crate::comm) mode: ProxyMode,
    /// How many threads that may spin share a core, proxies left aside.
    pub(in crate::comm) spinners: u32,
    /// How many cores the ranks were told to count on instead.
    pub(in crate::comm) cores: Option<NonZeroU32>,
    /// Whether the proxy service process runs on the same core.
    pub(in crate::comm) beside_service: bool,
    pub(in crate::comm) timeout: Duration,
}

impl JoinParams {
    /// Returns the decisions of a job without a launcher, whose proxies are threads.
    pub(super) fn with_proxy_threads(spinners: u32, cores: Option<NonZeroU32>, timeout: Duration) -> Self {
        Self { mode: ProxyMode::Thread, spinners, cores, beside_service: false, timeout }
    }
}

/// A member that everybody's segments are mapped into, and its own into everybody.
pub(in crate::comm) struct AttachedMember {
    pub(in crate::comm) shared: Shared,
    pub(in crate::comm) mapped: Arc<EpochMapping>,
    pub(in crate::comm) own: Option<OwnSegment>,
}

impl AttachedMember {
    pub(in crate::comm) fn of(joining: Joining) -> Result<Self> {
        let (epoch_id, backing) = (joining.epoch_id, joining.options.backing.clone());
        let shape = HeapShape::new(joining.n_ranks(), joining.options.heap_len)?;
        let mut own = None;
        let mut shared = joining.share(|joining| {
            let rank = joining.rank().expect("only devices create segments");
            let segment = EpochMapping::create_segment(epoch_id, rank, shape, &backing)?;
            let hold = joining.hold.as_ref().map(duplicate).transpose()?;
            let descriptor = duplicate(&segment)?;
            step("made a segment");
            own = Some(OwnSegment { _segment: segment, _hold: hold });
            Ok(descriptor)
        })?;
        let control = Control::attach(duplicate(&shared.joining.control)?, shape.n_ranks(), epoch_id)?;
        let segments = shared.segments.iter().map(duplicate).collect::<Result<Vec<_>>>()?;
        let mapped = EpochMapping::attach(epoch_id, shape, control, segments, &backing)?;
        let statics = std::mem::replace(&mut shared.statics, Ok(Vec::new()));
        let mapped = mapped.with_statics(JobStatics::attach(shared.joining.rank(), statics)?);
        step("attached to all segments");
        Ok(Self { shared, mapped: Arc::new(mapped), own })
    }
}

/// A rank that peers see alive, and that has nothing to do with them yet.
pub(in crate::comm) struct LiveRank {
    rank: Rank,
    life: LifeLock,
    registrar: MemoryRegistrar,
}

impl LiveRank {
    pub(in crate::comm) fn announce(mapped: &Arc<EpochMapping>, rank: Rank) -> Result<Self> {
        let mut registrar = MemoryRegistrar::new(mapped.memory_table(rank)?);
        heap_windows(&mut registrar, mapped.windows())?;
        let heartbeat = Heartbeat::new(Arc::clone(mapped), rank);
        let (kernel, control) = (*mapped.kernel(), mapped.control());
        let life = LifeLock::take(kernel, control.lives(), control.segment(), rank, heartbeat)?;
        step("seen alive");
        Ok(Self { rank, life, registrar })
    }

    pub(in crate::comm) fn join(
        self,
        mapped: &Arc<EpochMapping>,
        params: &JoinParams,
    ) -> Result<Communicator> {
        let Self { rank, life, registrar } = self;
        let context = RankContext::new(Arc::clone(mapped), rank, params.spinners, params.timeout, report_of)?;
        let context = match params.cores {
            Some(cores) => context.counting_on(cores),
            None => context,
        };
        let context = Arc::new(if params.beside_service { context.beside_service() } else { context });
        let (epoch_id, n_ranks) = (mapped.epoch_id(), mapped.n_ranks());
        let job = format_args!("{:016x}", epoch_id.job);
        tracing::info!(target: EPOCH, %job, epoch = epoch_id.epoch, %rank, n_ranks, "in an epoch");
        let job_barrier = JobBarrier::new(&context);
        let membership = JobMembership {
            context,
            ports: Ports::new(params.mode, n_ranks),
            registrar: Mutex::new(registrar),
            workspace: Workspace::default(),
            life: Some(life),
            launcher: None,
            incarnations: Incarnation::first(mapped.n_ranks()),
            was_restarted: false,
            recovery_callbacks: Mutex::default(),
            _own: None,
        };
        Ok(Communicator::first(job_barrier, membership))
    }
}

/// Names a hang-up of the host's socket for what it is. Nobody revokes a job that does not exist
/// yet.
pub(in crate::comm) fn name_hang_up(error: Error) -> Error {
    match error {
        Error::Revoked { by: None, .. } => Error::NoMeeting { source: Errno::ECONNRESET.into() },
        other => other,
    }
}

pub(in crate::comm) fn duplicate(descriptor: &impl AsFd) -> Result<OwnedFd> {
    crate::bootstrap::duplicate(descriptor, "duplicating a descriptor")
}

/// The settings that options, or else the environment, ask for.
#[derive(Debug)]
pub(in crate::comm) struct Overrides {
    pub(in crate::comm) faults: Faults,
    pub(in crate::comm) checksums: bool,
    pub(in crate::comm) cores: Option<NonZeroU32>,
}

impl Overrides {
    /// # Errors
    /// [`crate::Error::FaultSpec`], [`crate::Error::Setting`] for what the environment says.
    pub(in crate::comm) fn of(options: &Options) -> Result<Self> {
        let checksums = options.checksums || checksums_from_env()?;
        let cores = options.cores.map_or_else(cores_from_env, |cores| Ok(Some(cores)))?;
        Ok(Self { faults: options.faults.or_from_env()?, checksums, cores })
    }
}

impl Communicator {
    /// Returns the faults that were injected into this rank in this process, in order, up to the
    /// first thousand. See [`crate::faults`].
    #[must_use]
    pub fn fault_hits(&self) -> Vec<FaultHit> {
        self.context().injector().map_or_else(Vec::new, |injector| injector.fault_hits())
    }

    /// Keeps the launcher link of `old` in this new communicator, whose ranks the launcher knows by
    /// `incarnations`.
    pub(in crate::comm) fn succeed(&mut self, old: &Self, incarnations: Vec<Option<Incarnation>>) {
        self.alone().succeed(&old.membership, incarnations);
    }

    /// Returns the membership of this new communicator, which nothing else shares.
    pub(in crate::comm) fn alone(&mut self) -> &mut JobMembership {
        Arc::get_mut(&mut self.membership).expect("a new communicator is alone on its membership")
    }

    /// Notes what this rank does from now on in `rings`, where it is known as `rank`.
    pub(in crate::comm) fn record_in(&self, rings: Option<&Rings>, rank: Rank) {
        let context = self.context();
        let recorder = rings.and_then(|rings| Recorder::new(rings, rank, context.mapped().epoch_id().epoch));
        recorder.into_iter().for_each(|recorder| context.set_recorder(recorder));
    }

    /// Applies the settings to this new communicator, and plans the faults of its rank. The rank
    /// may be a thread among others of its process.
    pub(in crate::comm) fn apply(&self, overrides: &Overrides, is_thread: bool) {
        if overrides.checksums {
            self.context().take_checksums();
        }
        let context = self.context();
        if let Some(injector) = Injector::new(&overrides.faults, context.rank(), is_thread) {
            let told = context.mapped().control().faults(context.rank());
            context.plan_faults(Arc::new(injector.telling(told)));
        }
    }
}
