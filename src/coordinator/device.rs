//! A device as a process: memory at addresses, and a place in one communicator at a time, as the coordinator orders it.
//!
//! | thread | does |
//! |---|---|
//! | the caller's | carries orders and reports between the coordinator and the [`Agent`]; waits for nobody |
//! | worker | has the communicator, and executes one task at a time |
//! | 16 for copies | each copies between a client and the memory |
//!
//! When the coordinator dies, whatever is in progress goes on, and the device looks for the next one: for ever, or as long as who has
//! started it has said; or it ends, where it belongs to a program ([`Device::from_env`]).

mod assignment;
mod bond;
mod calls;
mod copies;
mod door;
mod environment;
mod worker;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use self::assignment::is_outlived;
pub(super) use self::assignment::{Assignment, POOL, StartedDevice, is_device};
use self::bond::{Absence, OnCoordinatorLoss};
use self::copies::Copies;
use self::door::{Reconnect, ReconnectState};
pub(super) use self::environment::ProcessEnvironment;
use self::worker::DeviceWorker;
use super::agent::{Agent, AgentStep};
use super::call::AddressRange;
use super::client::{connect, greeting};
use super::directory::RuntimeDirectory;
use super::fault::CoordinatorError;
use super::greeting::{DeviceMessage, HelloReply, PATIENCE, PeerRole, greet};
use super::id::DeviceId;
use super::link::Connection;
use super::order::DeviceOrder;
use crate::bootstrap::{Options, checksums_from_env, cores_from_env, poll_timeout};
use crate::comm::Aborter;
use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::heap::{DeviceAddress, DeviceMemory};
use crate::rank::{MAX_RANKS, Rank};
use crate::shm::system::InterruptWatch;
use crate::shm::{Backing, Identity};

const COORDINATOR: &str = "coordinator";

/// How often a device without a coordinator looks for one.
const LOOK: Duration = Duration::from_millis(20);

/// What a device is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// One past its highest address: a multiple of 4096.
    pub max_address: u64,
    /// How long it waits for other devices.
    pub timeout: Duration,
    /// The core that its process is to run on, if that matters.
    pub core: Option<usize>,
}

/// A device that is registered with a coordinator.
#[derive(Debug)]
pub struct Device {
    directory: RuntimeDirectory,
    id: DeviceId,
    bond: OnCoordinatorLoss,
    /// Since it has no coordinator, if it has none.
    absence: Option<Absence>,
    agent: Agent,
    link: Option<Connection>,
    /// The next coordinator, where there is no link and it was found.
    door: Option<Reconnect>,
    worker: DeviceWorker,
    copies: Copies,
    memory: Arc<DeviceMemory>,
    /// What ends the epoch of which the agent knows.
    aborter: Option<Aborter>,
    interrupts: Option<InterruptWatch>,
    /// When it looks for a coordinator again, if it has none.
    looks_at: Instant,
    /// How often it gives a sign of life, if the coordinator looks for one, and when next.
    beat: Option<(Duration, Instant)>,
}

impl Device {
    /// Makes the memory, and registers with the coordinator of `directory`. A process is one device.
    ///
    /// # Errors
    /// [`Error::Coordinator`] when there is no coordinator, or one of another version; [`Error::InvalidArgument`] for the
    /// highest address or the core; [`Error::FaultPlan`], [`Error::Setting`] for the environment; [`Error::ResourceLimit`],
    /// [`Error::Os`].
    pub fn start(directory: &RuntimeDirectory, options: &DeviceOptions) -> Result<Self> {
        Self::open(directory, options, OnCoordinatorLoss::Free)
    }

    fn open(directory: &RuntimeDirectory, options: &DeviceOptions, bond: OnCoordinatorLoss) -> Result<Self> {
        if let Some(core) = options.core {
            run_on(core)?;
        }
        let id = DeviceId::new(std::process::id());
        let identity = Identity { job: u64::from(id.get()), epoch: 0, owner: 0 };
        let memory = Arc::new(DeviceMemory::create(
            &Backing::Anonymous,
            DeviceAddress::new(options.max_address),
            identity,
        )?);
        let comm_options = Options { timeout: options.timeout, ..Options::default() };
        // What the environment says wrongly is told now, and not by the first communicator.
        Faults::from_env()?;
        checksums_from_env()?;
        cores_from_env()?;
        let mut device = Self {
            directory: directory.clone(),
            id,
            bond,
            absence: None,
            agent: Agent::new(id).patient_for(options.timeout),
            link: None,
            door: None,
            worker: DeviceWorker::start(Arc::clone(&memory), comm_options)?,
            copies: Copies::start(id, Arc::clone(&memory))?,
            memory,
            aborter: None,
            interrupts: InterruptWatch::start(true)
                .map_err(|error| Error::os("catching the signals that end a device", error))?,
            looks_at: Instant::now(),
            beat: None,
        };
        device.register()?;
        Ok(device)
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        AddressRange { min: self.memory.min_address().get(), max: self.memory.max_address().get() }
    }

    /// Serves until it is interrupted (SIGINT, SIGTERM, SIGHUP), or its coordinator is gone where it was started by that and does not wait
    /// for the next one, or not any longer. SIGQUIT is a question to the coordinator, and ends nothing.
    ///
    /// # Errors
    /// [`Error::Coordinator`] when the coordinator is replaced by one of another version; [`Error::Unavailable`] when its
    /// worker has panicked; [`Error::Os`].
    pub fn serve(mut self) -> Result<()> {
        while !self.watch()? {
            while let Some((outcome, aborter)) = self.worker.finished()? {
                self.aborter = aborter;
                let steps = self.agent.finish(outcome);
                self.perform(steps);
            }
            if self.link.as_ref().is_some_and(Connection::is_over) {
                // One that drops this device at once is not to be kept busy with it.
                (self.link, self.looks_at, self.beat) = (None, Instant::now() + LOOK, None);
                self.absence = Some(Absence::new());
            }
            if self.link.is_none() && self.look_for_another()?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Waits until something happens. Returns whether it was an interrupt.
    fn watch(&mut self) -> Result<bool> {
        let mut polled = vec![PollFd::new(self.worker.descriptor(), PollFlags::POLLIN)];
        polled.extend(self.link.iter().map(|link| PollFd::new(link.descriptor(), link.interest())));
        polled.extend(self.interrupts.iter().map(|it| PollFd::new(it.descriptor(), PollFlags::POLLIN)));
        polled.extend(self.door.iter().map(|door| PollFd::new(door.descriptor(), door.interest())));
        let looks_at = self.door.as_ref().map_or(self.looks_at, Reconnect::until);
        let look = self.link.is_none().then(|| looks_at.saturating_duration_since(Instant::now()));
        let beat = self.beat.map(|(_, at)| at.saturating_duration_since(Instant::now()));
        match poll(&mut polled, poll_timeout(look.into_iter().chain(beat).min())) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::os("waiting for orders", errno)),
        }
        drop(polled);
        self.give_sign();
        self.hear()?;
        let interrupt = self.interrupts.as_mut().and_then(InterruptWatch::next);
        Ok(interrupt.is_some_and(|interrupt| interrupt.signal != Signal::SIGQUIT))
    }

    /// Tells the coordinator that this thread does not hang, if it is time. One that has not read the last sign needs no other.
    fn give_sign(&mut self) {
        let (Some(link), Some((period, at))) = (&mut self.link, &mut self.beat) else { return };
        let now = Instant::now();
        if *at <= now {
            *at = now + *period;
            if !link.is_behind() {
                link.send(&DeviceMessage::Beat);
            }
        }
    }

    /// Takes the orders that have come.
    fn hear(&mut self) -> Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        link.flush();
        link.read();
        loop {
            let Some(link) = &mut self.link else { return Ok(()) };
            let order = link
                .next::<DeviceOrder>()
                .map_err(|what| CoordinatorError::Garbled { peer: COORDINATOR, what }.error())?;
            let Some(order) = order else { return Ok(()) };
            let steps = self.agent.take(order);
            self.perform(steps);
        }
    }

    fn perform(&mut self, steps: Vec<AgentStep>) {
        for step in steps {
            match step {
                AgentStep::Begin(task) => self.worker.begin(task),
                AgentStep::Interrupt { lost } => self.interrupt(&lost),
                AgentStep::CallOff => self.worker.call_off(),
            }
        }
        self.copies.admit(self.agent.comm());
        self.report();
    }

    fn interrupt(&self, lost: &[u32]) {
        self.worker.call_off();
        let Some(aborter) = &self.aborter else { return };
        let ranks = lost.iter().filter_map(|rank| Rank::new(*rank, MAX_RANKS).ok());
        ranks.for_each(|rank| aborter.give_up(rank));
        aborter.revoke();
    }

    fn report(&mut self) {
        let range = self.range();
        let (socket, report) = (self.copies.socket().to_owned(), Box::new(self.agent.bulletin()));
        if let Some(link) = &mut self.link {
            link.send(&DeviceMessage::State { range, socket, report });
        }
    }

    fn register(&mut self) -> Result<()> {
        let stream = connect(&self.directory, PATIENCE)?;
        let welcome = greet(&stream, PeerRole::Device, greeting(PATIENCE))?;
        self.enter(Connection::new(stream)?, &welcome);
        Ok(())
    }

    /// Is with the coordinator at the other side of `link` from now on.
    fn enter(&mut self, link: Connection, welcome: &HelloReply) {
        (self.link, self.absence) = (Some(link), None);
        self.beat = welcome.beat_us.map(|us| (Duration::from_micros(us), Instant::now()));
        self.agent.connect();
        self.report();
    }

    /// Registers with another coordinator, or the same one again, if there is one by now and it answers. Breaks where there is none to
    /// wait for.
    ///
    /// # Errors
    /// [`CoordinatorError::Version`], [`CoordinatorError::OtherUser`], [`CoordinatorError::Refused`].
    fn look_for_another(&mut self) -> Result<ControlFlow<()>> {
        let knocked = match self.door.take() {
            Some(door) => door.listen(),
            None if self.looks_at > Instant::now() => return Ok(ControlFlow::Continue(())),
            None => {
                self.looks_at = Instant::now() + LOOK;
                Reconnect::knock(&self.directory).map(ReconnectState::Waits)
            }
        };
        match knocked {
            Ok(ReconnectState::Open(link, welcome)) => self.enter(link, &welcome),
            Ok(ReconnectState::Waits(door)) => {
                self.door = Some(door);
                self.absence.iter_mut().for_each(Absence::is_answered);
            }
            Ok(ReconnectState::Shut) => self.looks_at = Instant::now() + LOOK,
            Err(Error::Coordinator { fault })
                if matches!(
                    fault,
                    CoordinatorError::Version { .. }
                        | CoordinatorError::OtherUser { .. }
                        | CoordinatorError::Refused(_)
                ) =>
            {
                return Err(fault.error());
            }
            // It is not there yet, has no time, or is something else.
            Err(error) => {
                self.looks_at = Instant::now() + LOOK;
                if self.absence.get_or_insert_with(Absence::new).is_over(self.bond, &error) {
                    // Whoever is the last takes with it what the dead coordinator has left.
                    let is_last = || !is_outlived(self.id, self.bond.limit(), &self.directory);
                    let _ = self.directory.sweep(false, is_last);
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Has this thread, and those that it starts, run on `core`.
fn run_on(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores)).map_err(|_| {
        let (name, expected) = ("the core", "one that this process may run on; `shmccl doctor` lists them");
        Error::InvalidArgument { name, value: core as u64, expected }
    })
}
