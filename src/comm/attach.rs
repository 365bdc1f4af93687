//! Makes a process a member of a job: it joins, creates its segment, maps all segments, and becomes
//! ready.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;

use super::Communicator;
use super::call_queue::EngineLoan;
use super::epoch_commit::EpochCommit;
use super::heartbeat::Heartbeat;
use super::init::CoreSet;
use super::job_barrier::JobBarrier;
use super::launcher_link::{Incarnation, LauncherLink};
use super::membership::{JobMembership, OwnSegment};
use super::ports::Ports;
use super::recovery::rejoin;
use super::workspace::Workspace;
use crate::bootstrap::{
    Joining, MemberHeartbeat, Options, ProxyMode, Shared, checksums_from_env, cores_from_env, join_from_env,
};
use crate::channel::{Control, EpochMapping, RankContext, serve_all};
use crate::collective::Choice;
use crate::error::{Error, Result};
use crate::faults::{FaultHit, Faults, Injector};
use crate::heap::MemoryRegistrar;
use crate::heap::layout::HeapShape;
use crate::heap::registered::heap_windows;
use crate::logs::{EPOCH, step};
use crate::observe::report_of;
use crate::rank::Rank;
use crate::shm::LifeLock;
use crate::trace::{Recorder, Rings};

/// The part of a process in the job that it was started for.
#[derive(Debug)]
pub enum JoinedAs {
    /// A device, with its communicator.
    Device(Box<Communicator>),
    /// The proxy service. It has served until the job ended, and nothing is left to do.
    Proxy,
}

impl Communicator {
    /// Joins the job that `shmccl run` started this process for.
    ///
    /// # Errors
    /// [`Error::Environment`] when no launcher started this process; otherwise those of
    /// [`join_job`].
    pub fn from_env() -> Result<Self> {
        match join_job()? {
            Some(JoinedAs::Device(comm)) => Ok(*comm),
            Some(JoinedAs::Proxy) | None => Err(Error::Environment {
                variable: "SHMCCL_SOCKET",
                expected: "expected the control socket of a launcher",
            }),
        }
    }
}

/// Joins the job that this process was started for. Returns `None` when no launcher started it,
/// also where a rank has started it with its own environment.
///
/// The proxy service process serves until the job ends, and then returns [`JoinedAs::Proxy`]. A
/// restarted rank ([`Launch::restart`](crate::launch::Launch::restart)) waits until the others take
/// it back ([`Communicator::recover`]): see [`Communicator::on_recovery`].
///
/// # Errors
/// Those of [`join_from_env`], of creating and mapping segments, and [`Error::PeerLost`] when a
/// rank is lost meanwhile.
pub fn join_job() -> Result<Option<JoinedAs>> {
    let Some(joining) = join_from_env()? else { return Ok(None) };
    if joining.restarts > 0 {
        return Ok(Some(JoinedAs::Device(Box::new(rejoin(joining)?))));
    }
    let (restarting, beat, device) = (joining.is_restarting, joining.beat, joining.device);
    let (options, placement) = (joining.options.clone(), joining.placement);
    let overrides = Overrides::of(&options)?;
    let rings = rings_of(&joining)?;
    let AttachedMember { shared, mapped, own } = AttachedMember::of(joining)?;
    let heartbeat = beat.map(|every| MemberHeartbeat::new(mapped.control().beat(device), every));
    let Some(rank) = shared.joining.rank() else {
        let link = shared.ready()?;
        // It hears from the devices when the job is over.
        let _beating = link.watch(heartbeat, |_| {})?;
        let spinners = placement.devices + placement.proxies;
        serve_all(&mapped, spinners, (&overrides.faults, overrides.checksums), rings.as_ref())?;
        return Ok(Some(JoinedAs::Proxy));
    };
    let live = LiveRank::announce(&mapped, rank)?;
    let link = shared.ready()?;
    let params = JoinParams {
        mode: options.proxy,
        spinners: placement.devices,
        cores: overrides.cores,
        beside_service: options.proxy == ProxyMode::Process && placement.proxies > 0,
        timeout: options.timeout,
    };
    let incarnations = Incarnation::first(mapped.n_ranks());
    let line = LauncherLink::begin(link, heartbeat, restarting, &mapped, incarnations)?;
    let mut comm = live.join(&mapped, &params)?;
    let membership = comm.alone();
    (membership.launcher, membership._own) = (Some(Arc::new(line)), own);
    comm.apply(&overrides, false);
    comm.record_in(rings.as_ref(), rank);
    Ok(Some(JoinedAs::Device(Box::new(comm))))
}

/// Returns the trace rings of a member, if it is traced.
pub(super) fn rings_of(joining: &Joining) -> Result<Option<Rings>> {
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
/// Those of [`join_job`].
pub(super) fn join_assembled(mut joining: Joining, told: Option<NonZeroU32>) -> Result<Communicator> {
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
pub(super) struct JoinParams {
    pub(super) mode: ProxyMode,
    /// How many threads that may spin share a core, proxies left aside.
    pub(super) spinners: u32,
    /// How many cores the ranks were told to count on instead.
    pub(super) cores: Option<NonZeroU32>,
    /// Whether the proxy service process runs on the same core.
    pub(super) beside_service: bool,
    pub(super) timeout: Duration,
}

impl JoinParams {
    /// Returns the decisions of a job without a launcher, whose proxies are threads.
    pub(super) fn with_proxy_threads(spinners: u32, cores: Option<NonZeroU32>, timeout: Duration) -> Self {
        Self { mode: ProxyMode::Thread, spinners, cores, beside_service: false, timeout }
    }
}

/// A member that everybody's segments are mapped into, and its own into everybody.
struct AttachedMember {
    shared: Shared,
    mapped: Arc<EpochMapping>,
    own: Option<OwnSegment>,
}

impl AttachedMember {
    fn of(joining: Joining) -> Result<Self> {
        let (epoch_id, backing) = (joining.epoch_id, joining.options.backing.clone());
        let shape = HeapShape::new(joining.n_ranks(), joining.options.heap_len)?;
        let mut own = None;
        let shared = joining.share(|joining| {
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
        step("attached to all segments");
        Ok(Self { shared, mapped: Arc::new(mapped), own })
    }
}

/// A rank that peers see alive, and that has nothing to do with them yet.
pub(super) struct LiveRank {
    rank: Rank,
    life: LifeLock,
    registrar: MemoryRegistrar,
}

impl LiveRank {
    pub(super) fn announce(mapped: &Arc<EpochMapping>, rank: Rank) -> Result<Self> {
        let mut registrar = MemoryRegistrar::new(mapped.memory_table(rank)?);
        heap_windows(&mut registrar, mapped.windows())?;
        let heartbeat = Heartbeat::new(Arc::clone(mapped), rank);
        let (kernel, control) = (*mapped.kernel(), mapped.control());
        let life = LifeLock::take(kernel, control.lives(), control.segment(), rank, heartbeat)?;
        step("seen alive");
        Ok(Self { rank, life, registrar })
    }

    pub(super) fn join(self, mapped: &Arc<EpochMapping>, params: &JoinParams) -> Result<Communicator> {
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
        Ok(Communicator {
            rank,
            members: (0..mapped.n_ranks()).map(Rank::known).collect(),
            job_barrier: Some(job_barrier),
            engine: None,
            loan: EngineLoan::default(),
            choice: Choice::default(),
            membership: Arc::new(membership),
        })
    }
}

/// Names a hang-up of the host's socket for what it is. Nobody revokes a job that does not exist
/// yet.
pub(super) fn name_hang_up(error: Error) -> Error {
    match error {
        Error::Revoked { by: None, .. } => Error::NoMeeting { source: Errno::ECONNRESET.into() },
        other => other,
    }
}

pub(super) fn duplicate(descriptor: &impl AsFd) -> Result<OwnedFd> {
    crate::bootstrap::duplicate(descriptor, "duplicating a descriptor")
}

/// The settings that options, or else the environment, ask for.
#[derive(Debug)]
pub(super) struct Overrides {
    pub(super) faults: Faults,
    pub(super) checksums: bool,
    pub(super) cores: Option<NonZeroU32>,
}

impl Overrides {
    /// # Errors
    /// [`crate::Error::FaultPlan`], [`crate::Error::Setting`] for what the environment says.
    pub(super) fn of(options: &Options) -> Result<Self> {
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

    /// Notes what this rank does from now on in `rings`, where it is known as `rank`.
    pub(super) fn record_in(&self, rings: Option<&Rings>, rank: Rank) {
        let context = self.context();
        let recorder = rings.and_then(|rings| Recorder::new(rings, rank, context.mapped().epoch_id().epoch));
        recorder.into_iter().for_each(|recorder| context.set_recorder(recorder));
    }

    /// Applies the settings to this new communicator, and plans the faults of its rank. The rank
    /// may be a thread among others of its process.
    pub(super) fn apply(&self, overrides: &Overrides, is_thread: bool) {
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
