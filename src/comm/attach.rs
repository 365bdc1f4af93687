//! How a process becomes a member of a job: it joins, creates its segment, maps everybody's, and says that it is ready.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Communicator;
use super::epoch_commit::EpochCommit;
use super::heartbeat::Heartbeat;
use super::job_barrier::JobBarrier;
use super::launcher_link::{Incarnation, LauncherLink};
use super::membership::JobMembership;
use super::oversubscription::CoreSet;
use super::ports::Ports;
use super::recovery::come_back;
use super::stream::EngineLoan;
use super::workspace::Workspace;
use crate::bootstrap::{
    Joining, MemberHeartbeat, Options, ProxyMode, SegmentBacking, Shared, checksums_from_env, cores_from_env,
    join_from_env,
};
use crate::channel::{Control, Era, Fabric, World, serve_all};
use crate::collective::Manner;
use crate::error::{Error, Result};
use crate::faults::{Faults, Injector, Strike};
use crate::heap::MemoryRegistrar;
use crate::heap::layout::HeapShape;
use crate::heap::registered::heap_windows;
use crate::logs::{EPOCH, step};
use crate::rank::Rank;
use crate::shm::{LifeLock, Segment};
use crate::trace::{Recorder, Rings};

/// What a process is in the job that it was started for.
#[derive(Debug)]
pub enum JoinedAs {
    /// A device, with its communicator.
    Device(Box<Communicator>),
    /// The proxy service. It has served until the job ended: nothing is left to do.
    Proxy,
}

impl Communicator {
    /// Joins the job that `shmccl run` started this process for.
    ///
    /// # Errors
    /// [`Error::Environment`] when no launcher started this process; otherwise those of [`join_job`].
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

/// Joins the job that this process was started for; `None` when no launcher started it.
///
/// In the proxy service process it serves until the job ends and then returns [`JoinedAs::Proxy`]. In a rank that the launcher has
/// started again ([`Launch::restart`](crate::launch::Launch::restart)) it waits until the others take this rank back
/// ([`Communicator::recover`]): see [`Communicator::on_recovery`].
///
/// # Errors
/// Those of [`join_from_env`], of creating and mapping segments, and [`Error::PeerLost`] when a rank is lost meanwhile.
pub fn join_job() -> Result<Option<JoinedAs>> {
    let Some(joining) = join_from_env()? else { return Ok(None) };
    if joining.restarts() > 0 {
        return Ok(Some(JoinedAs::Device(Box::new(come_back(joining)?))));
    }
    let (restarting, beat, device) = (joining.is_restarting(), joining.beat(), joining.device());
    let overrides = Overrides::of(joining.options())?;
    let rings = rings_of(&joining)?;
    let AttachedMember { shared, world, own } = AttachedMember::of(joining)?;
    let pulse = beat.map(|every| MemberHeartbeat::new(world.control().beat(device), every));
    let Some(rank) = shared.joining().rank() else {
        let membership = shared.ready()?;
        // It hears from the devices when the job is over.
        let _beating = membership.link.watch(pulse, |_| {})?;
        let spinners = membership.placement.devices + membership.placement.proxies;
        serve_all(&world, spinners, (&overrides.faults, overrides.checksums), rings.as_ref())?;
        return Ok(Some(JoinedAs::Proxy));
    };
    let live = LiveRank::announce(&world, rank)?;
    let membership = shared.ready()?;
    let terms = JoinParams {
        mode: membership.options.proxy,
        spinners: membership.placement.devices,
        cores: overrides.cores,
        beside_service: is_beside_service(membership.options.proxy, membership.placement.proxies),
        timeout: membership.options.timeout,
    };
    let incarnations = Incarnation::first(world.n_ranks());
    let line = LauncherLink::begin(membership.link, pulse, restarting, &world, incarnations)?;
    let comm = live.join(&world, &terms, Some(line), own)?;
    comm.apply(&overrides, false);
    comm.record_in(rings.as_ref(), rank);
    Ok(Some(JoinedAs::Device(Box::new(comm))))
}

/// The rings in which a member is to note what it does, if it is.
pub(super) fn rings_of(joining: &Joining) -> Result<Option<Rings>> {
    let era = Era { job: joining.job_id(), epoch: joining.epoch() };
    joining.rings().map(|rings| Rings::attach(duplicate(&rings)?, era)).transpose()
}

impl Communicator {
    /// Notes what this rank does from now on in `rings`, where it is known as `rank`.
    pub(super) fn record_in(&self, rings: Option<&Rings>, rank: Rank) {
        let fabric = self.fabric();
        let recorder = rings.and_then(|rings| Recorder::new(rings, rank, fabric.world().era().epoch));
        recorder.into_iter().for_each(|recorder| fabric.record(recorder));
    }
}

/// Joins those whom this process has met without a launcher.
///
/// Nobody needs the host of the meeting from here on, so the line to it is closed. What a launcher would tell, the life
/// locks tell. Where this rank was `told` how many cores there are, it does not go by who shares its own.
///
/// # Errors
/// Those of [`join_job`].
pub(super) fn join_assembled(mut joining: Joining, told: Option<NonZeroU32>) -> Result<Communicator> {
    let rank = joining.rank().expect("only ranks meet");
    let cores = CoreSet::own();
    let all: Vec<_> = joining.all_gather(cores.bytes(), None)?.into_iter().map(|gift| gift.bytes).collect();
    let timeout = joining.options().timeout;
    let terms = JoinParams {
        mode: ProxyMode::Thread,
        spinners: cores.spinners(&all),
        cores: told,
        beside_service: false,
        timeout,
    };
    let AttachedMember { shared, world, own } = AttachedMember::of(joining)?;
    let live = LiveRank::announce(&world, rank)?;
    let epoch_commit =
        EpochCommit::new(&world, rank, terms.spinners, timeout, shared.joining().guard().cloned());
    // The host is not needed from here on.
    shared.ready().map(drop).map_err(|error| epoch_commit.abandon(error))?;
    let comm = live.join(&world, &terms, None, own).map_err(|error| epoch_commit.abandon(error))?;
    epoch_commit.complete()?;
    step("with the others");
    Ok(comm)
}

/// Makes the communicators of device threads that share this process, its window and its mappings.
///
/// # Errors
/// Those of creating and mapping segments.
pub(super) fn attach_threads(
    era: Era,
    shape: HeapShape,
    backing: &SegmentBacking,
    terms: &JoinParams,
    overrides: &Overrides,
) -> Result<Vec<Communicator>> {
    let (control, _segment) = Control::create(shape.n_ranks(), era)?;
    let ranks = || (0..shape.n_ranks()).map(Rank::known);
    let create = |rank| World::create_segment(era, rank, shape, backing);
    let segments = ranks().map(|rank| create(rank).map(Arc::new)).collect::<Result<_>>()?;
    let world = Arc::new(World::over(shape, control, segments)?);
    let all_live = ranks().map(|rank| LiveRank::announce(&world, rank)).collect::<Result<Vec<_>>>()?;
    let join =
        |live: LiveRank| live.join(&world, terms, None, None).inspect(|comm| comm.apply(overrides, true));
    all_live.into_iter().map(join).collect()
}

/// What a job has decided for its ranks.
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

/// A member that everybody's segments are mapped into, and its own into everybody.
struct AttachedMember {
    shared: Shared,
    world: Arc<World>,
    own: Option<OwnSegment>,
}

impl AttachedMember {
    fn of(joining: Joining) -> Result<Self> {
        let shape = HeapShape::new(joining.n_ranks(), joining.options().heap_len)?;
        let era = Era { job: joining.job_id(), epoch: joining.epoch() };
        let mut own = None;
        let shared = joining.share(|joining| create_segment(joining, era, shape, &mut own))?;
        let world = attach(&shared, era, shape)?;
        step("attached to all segments");
        Ok(Self { shared, world, own })
    }
}

/// A process's own segment, kept because its name goes with it, where it has one.
#[derive(Debug)]
pub(super) struct OwnSegment {
    _segment: Segment,
    /// Let go of when the name is gone: until then the launcher's janitor waits.
    _hold: Option<OwnedFd>,
}

/// A rank that peers see alive, and that has nothing to do with them yet.
pub(super) struct LiveRank {
    rank: Rank,
    life: LifeLock,
    registrar: MemoryRegistrar,
}

impl LiveRank {
    pub(super) fn announce(world: &Arc<World>, rank: Rank) -> Result<Self> {
        let mut registrar = MemoryRegistrar::new(world.memory_table(rank)?);
        heap_windows(&mut registrar, world.windows())?;
        let heart = Heartbeat::new(Arc::clone(world), rank);
        let life = LifeLock::take(*world.kernel(), world.control().lives(), rank, heart)?;
        step("seen alive");
        Ok(Self { rank, life, registrar })
    }

    pub(super) fn join(
        self,
        world: &Arc<World>,
        terms: &JoinParams,
        launcher: Option<LauncherLink>,
        own: Option<OwnSegment>,
    ) -> Result<Communicator> {
        let Self { rank, life, registrar } = self;
        let fabric = Fabric::new(Arc::clone(world), rank, terms.spinners, terms.timeout)?;
        let fabric = match terms.cores {
            Some(cores) => fabric.counting_on(cores),
            None => fabric,
        };
        let fabric = Arc::new(if terms.beside_service { fabric.beside_service() } else { fabric });
        let (era, n_ranks) = (world.era(), world.n_ranks());
        let job = format_args!("{:016x}", era.job);
        tracing::info!(target: EPOCH, %job, epoch = era.epoch, %rank, n_ranks, "in an epoch");
        let job_barrier = JobBarrier::new(&fabric);
        let membership = JobMembership {
            fabric,
            ports: Ports::new(terms.mode, n_ranks),
            registrar: Mutex::new(registrar),
            workspace: Workspace::default(),
            life: Some(life),
            launcher: launcher.map(Arc::new),
            incarnations: Incarnation::first(world.n_ranks()),
            was_restarted: false,
            recovery_callbacks: Mutex::default(),
            _own: own,
        };
        Ok(Communicator {
            rank,
            members: (0..world.n_ranks()).map(Rank::known).collect(),
            job_barrier: Some(job_barrier),
            engine: None,
            loan: EngineLoan::default(),
            manner: Manner::default(),
            membership: Arc::new(membership),
        })
    }
}

fn create_segment(
    joining: &Joining,
    era: Era,
    shape: HeapShape,
    own: &mut Option<OwnSegment>,
) -> Result<OwnedFd> {
    let rank = joining.rank().expect("only devices create segments");
    let segment = World::create_segment(era, rank, shape, &joining.options().backing)?;
    let hold = joining.hold().map(|hold| duplicate(&hold)).transpose()?;
    let descriptor = duplicate(&segment)?;
    step("made a segment");
    *own = Some(OwnSegment { _segment: segment, _hold: hold });
    Ok(descriptor)
}

fn attach(shared: &Shared, era: Era, shape: HeapShape) -> Result<Arc<World>> {
    let joining = shared.joining();
    let control = Control::attach(duplicate(&joining.control())?, joining.n_ranks(), era)?;
    let segments = shared.segments().iter().map(duplicate).collect::<Result<Vec<_>>>()?;
    World::attach(era, shape, control, segments, &joining.options().backing).map(Arc::new)
}

/// Whether the service process is among the `proxies` on a device's core.
fn is_beside_service(mode: ProxyMode, proxies: u32) -> bool {
    mode == ProxyMode::Process && proxies > 0
}

fn duplicate(descriptor: &impl AsFd) -> Result<OwnedFd> {
    let copy = descriptor.as_fd().try_clone_to_owned();
    copy.map_err(|source| crate::bootstrap::resource_error("duplicating a descriptor", source))
}

/// What options, or else the environment, ask for.
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
    /// The faults that were injected into this rank, in this process, in the order in which they struck; of very many the first
    /// thousand. See [`crate::faults`].
    #[must_use]
    pub fn strikes(&self) -> Vec<Strike> {
        self.fabric().injector().map_or_else(Vec::new, |injector| injector.strikes())
    }

    /// Has this new communicator do what is asked for, and suffer what is planned for its rank, which may be a thread among others of its
    /// process.
    pub(super) fn apply(&self, overrides: &Overrides, is_thread: bool) {
        if overrides.checksums {
            self.fabric().take_checksums();
        }
        let fabric = self.fabric();
        if let Some(injector) = Injector::new(&overrides.faults, fabric.rank(), is_thread) {
            let told = fabric.world().control().faults(fabric.rank());
            fabric.inject(Arc::new(injector.telling(told)));
        }
    }
}
