//! A device as a process: memory at addresses, and a member of one communicator at a time, as the
//! coordinator orders it.
//!
//! | thread | does |
//! |---|---|
//! | the caller's | carries orders and reports between the coordinator and the [`Agent`] |
//! | worker | has the communicator, and executes one order at a time |
//! | 16 for copies | each copies between a client and the memory |
//!
//! The caller's thread never waits for a single peer. When the coordinator dies, whatever is in
//! progress goes on, and the device looks for the next one (`adoption/search.rs`).

mod calls;
mod copies;
mod operand;
mod undo;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use self::copies::CopyServer;
use self::undo::Undo;
use self::worker::DeviceWorker;
use super::adoption::search::{CoordinatorSearch, OnCoordinatorLoss, Searched};
use super::agent::{Agent, AgentStep};
use super::assignment::{Assignment, DEVICE, StartedDevice};
use super::call::AddressRange;
use super::directory::{DIRECTORY, RuntimeDirectory};
use super::error::{CoordinatorError, Result};
use super::handshake::{COORDINATOR, DeviceMessage, HelloReply, PATIENCE, PeerRole, connect};
use super::id::DeviceId;
use super::order::{DeviceOrder, DeviceReport};
use super::wire::PeerConnection;
use crate::bootstrap::environment::set;
use crate::bootstrap::{
    LAUNCHER, Options, bind_to_launcher, checksums_from_env, cores_from_env, dump_heap_from_env, poll_timeout,
};
use crate::comm::Aborter;
use crate::error::Error;
use crate::faults::Faults;
use crate::heap::{DeviceAddress, DeviceMemory, MIN_ADDRESS};
use crate::launch::claim_core;
use crate::rank::{MAX_RANKS, Rank};
use crate::shm::system::InterruptWatch;
use crate::shm::{Backing, Identity};

/// The properties of a device.
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
    on_loss: OnCoordinatorLoss,
    coordinator: CoordinatorLink,
    agent: Agent,
    worker: DeviceWorker,
    copies: CopyServer,
    /// Ends the epoch of which the agent knows.
    aborter: Option<Aborter>,
    interrupts: Option<InterruptWatch>,
    /// How often it sends a heartbeat, if the coordinator wants one, and when next.
    heartbeat: Option<(Duration, Instant)>,
}

/// The connection of a device with its coordinator, or the search for the next one.
#[derive(Debug)]
enum CoordinatorLink {
    Connected(PeerConnection),
    Searching(CoordinatorSearch),
}

impl Device {
    /// Makes the memory, and registers with the coordinator of `directory`. A process is one
    /// device.
    ///
    /// # Errors
    /// [`CoordinatorError::NotRunning`], [`CoordinatorError::Dead`],
    /// [`CoordinatorError::VersionMismatch`], [`CoordinatorError::Refused`];
    /// [`Error::InvalidArgument`] for the highest address or the core; [`Error::FaultSpec`],
    /// [`Error::Setting`] for the environment; [`Error::ResourceLimit`], [`Error::Os`].
    pub fn start(directory: &RuntimeDirectory, options: &DeviceOptions) -> Result<Self> {
        Self::open(directory, options, OnCoordinatorLoss::WaitForEver)
    }

    /// Returns the device that this process was started as, by a [`Pool`](super::Pool) or a
    /// [`Fleet`](super::Fleet); `None` when it was not started as one, also where a device has
    /// started it with its own environment.
    ///
    /// A program that has a pool calls this first of all, and then [serves](Device::serve). From
    /// here on the process ends when the process of its pool does. The kernel kills it, provided
    /// that the calling thread stays. Otherwise it ends by itself when its coordinator is gone.
    ///
    /// A device that was told to [outlive](super::FleetOptions::outlives) its coordinator waits for
    /// the next one for that time, if its own was killed. It ends at once if its own has ended in
    /// order.
    ///
    /// # Errors
    /// [`Error::Environment`] when the variables are damaged; [`Error::Revoked`] when the process
    /// that has started it is dead already; those of [`Device::start`].
    pub fn from_env() -> Result<Option<Self>> {
        let Some(text) = set(DEVICE) else { return Ok(None) };
        let damaged = |variable| Error::Environment { variable, expected: "expected what a pool has set" };
        let assignment: Option<Assignment> = text.to_str().and_then(|text| serde_json::from_str(text).ok());
        let Assignment { memory, timeout, core, outlives } = assignment.ok_or(damaged(DEVICE))?;
        let launcher = set(LAUNCHER).and_then(|text| text.to_str()?.parse().ok());
        let launcher = launcher.ok_or(damaged(LAUNCHER))?;
        let directory = PathBuf::from(set(DIRECTORY).ok_or(damaged(DIRECTORY))?);
        if getppid().as_raw() != launcher {
            let parent = DeviceId::new(getppid().as_raw().unsigned_abs());
            if StartedDevice::of(parent, &RuntimeDirectory::unchecked(&directory)).is_some() {
                return Ok(None);
            }
            if outlives.is_none() {
                // It is dead, and another pool may have its directory by now.
                return Err(Error::Revoked { by: None, awaited: None }.into());
            }
        }
        if outlives.is_none() {
            bind_to_launcher(launcher)?;
        }
        let options = DeviceOptions { max_address: MIN_ADDRESS.saturating_add(memory), timeout, core };
        let on_loss = outlives.map_or(OnCoordinatorLoss::End, OnCoordinatorLoss::WaitFor);
        Self::open(&RuntimeDirectory::at(directory)?, &options, on_loss).map(Some)
    }

    fn open(
        directory: &RuntimeDirectory,
        options: &DeviceOptions,
        on_loss: OnCoordinatorLoss,
    ) -> Result<Self> {
        if let Some(core) = options.core {
            run_on(core)?;
            // Jobs that are pinned begin behind it.
            claim_core(core);
        }
        let id = DeviceId::new(std::process::id());
        let identity = Identity { job: u64::from(id.get()), epoch: 0, owner: 0 };
        let memory = Arc::new(DeviceMemory::create(
            &Backing::Anonymous,
            DeviceAddress::new(options.max_address),
            identity,
        )?);
        let comm_options = Options { timeout: options.timeout, ..Options::default() };
        // A wrong value in the environment is an error now, and not in the first communicator.
        Faults::from_env()?;
        checksums_from_env()?;
        cores_from_env()?;
        dump_heap_from_env()?;
        let undo = Undo::default();
        let worker = DeviceWorker::start(id, Arc::clone(&memory), comm_options, undo.clone())?;
        let copies = CopyServer::start(id, Arc::clone(&memory), undo, PATIENCE)?;
        let timeout_ms = u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX);
        let (range, socket) = (AddressRange::of(&memory), copies.socket().to_owned());
        let report = DeviceReport { timeout_ms, range, socket, ..DeviceReport::default() };
        let interrupts = InterruptWatch::start(true)?;
        let (stream, reply) = connect(directory, PeerRole::Device, PATIENCE)?;
        let mut device = Self {
            directory: directory.clone(),
            id,
            on_loss,
            coordinator: CoordinatorLink::Connected(PeerConnection::new(stream)?),
            agent: Agent::new(id, report),
            worker,
            copies,
            aborter: None,
            interrupts,
            heartbeat: None,
        };
        device.register(&reply);
        Ok(device)
    }

    /// Returns its number.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns its addresses.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.agent.report().range
    }

    /// Serves until it is interrupted (SIGINT, SIGTERM, SIGHUP), or has lost its coordinator and
    /// does not wait for the next one, or not any longer. SIGQUIT is for the coordinator to answer,
    /// and ends nothing.
    ///
    /// # Errors
    /// [`CoordinatorError::VersionMismatch`] when the coordinator is replaced by one of another
    /// version; [`Error::Unavailable`] when its worker has panicked; [`Error::Os`].
    pub fn serve(mut self) -> Result<()> {
        while !self.wait()? {
            while let Some((outcome, aborter)) = self.worker.finished()? {
                self.aborter = aborter;
                let steps = self.agent.finish(outcome);
                self.perform(steps);
            }
            if matches!(&self.coordinator, CoordinatorLink::Connected(connection) if connection.is_over()) {
                let search = CoordinatorSearch::new(self.id, &self.directory, self.on_loss);
                (self.coordinator, self.heartbeat) = (CoordinatorLink::Searching(search), None);
            }
            if let CoordinatorLink::Searching(search) = &mut self.coordinator {
                match search.step()? {
                    Searched::InVain => {}
                    Searched::Found(connection, reply) => {
                        self.coordinator = CoordinatorLink::Connected(connection);
                        self.register(&reply);
                    }
                    Searched::GivenUp => break,
                }
            }
        }
        Ok(())
    }

    /// Waits until something happens. Returns whether it was an interrupt.
    fn wait(&mut self) -> Result<bool> {
        let (interest, due) = match &self.coordinator {
            CoordinatorLink::Connected(it) => {
                (Some((it.descriptor(), it.interest())), self.heartbeat.map(|(_, at)| at))
            }
            CoordinatorLink::Searching(search) => (search.interest(), Some(search.due())),
        };
        let mut polled = vec![PollFd::new(self.worker.descriptor(), PollFlags::POLLIN)];
        polled.extend(interest.map(|(descriptor, events)| PollFd::new(descriptor, events)));
        polled.extend(self.interrupts.iter().map(|it| PollFd::new(it.descriptor(), PollFlags::POLLIN)));
        let limit = due.map(|at| at.saturating_duration_since(Instant::now()));
        match poll(&mut polled, poll_timeout(limit)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::os("waiting for orders", errno).into()),
        }
        drop(polled);
        self.send_heartbeat();
        self.receive()?;
        let interrupt = self.interrupts.as_mut().and_then(InterruptWatch::next);
        Ok(interrupt.is_some_and(|interrupt| interrupt.signal != Signal::SIGQUIT))
    }

    fn connection(&mut self) -> Option<&mut PeerConnection> {
        match &mut self.coordinator {
            CoordinatorLink::Connected(connection) => Some(connection),
            CoordinatorLink::Searching(_) => None,
        }
    }

    /// Sends a heartbeat, if it is time and the coordinator has read the last one.
    fn send_heartbeat(&mut self) {
        let Some((period, at)) = self.heartbeat else { return };
        let now = Instant::now();
        if at <= now {
            self.heartbeat = Some((period, now + period));
            if let Some(connection) = self.connection().filter(|it| it.unsent_bytes() == 0) {
                connection.send(&DeviceMessage::Heartbeat);
            }
        }
    }

    /// Takes the orders that have come.
    fn receive(&mut self) -> Result<()> {
        let Some(connection) = self.connection() else { return Ok(()) };
        connection.flush();
        connection.read();
        while let Some(connection) = self.connection() {
            let order = connection.next::<DeviceOrder>();
            let order = order.map_err(|what| CoordinatorError::Protocol { peer: COORDINATOR, what })?;
            let Some(order) = order else { break };
            let steps = self.agent.take(order);
            self.perform(steps);
        }
        Ok(())
    }

    fn perform(&mut self, steps: Vec<AgentStep>) {
        for step in steps {
            match step {
                AgentStep::Begin(order) => self.worker.begin(order),
                AgentStep::Interrupt { lost } => self.interrupt(&lost),
                AgentStep::CancelMeeting => self.worker.call_off(),
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
        let report = Box::new(self.agent.outgoing_report());
        if let Some(connection) = self.connection() {
            connection.send(&DeviceMessage::State(report));
        }
    }

    /// Registers with the coordinator that has taken the device by `reply`.
    fn register(&mut self, reply: &HelloReply) {
        self.heartbeat = reply.heartbeat_us.map(|us| (Duration::from_micros(us), Instant::now()));
        self.agent.connect();
        self.report();
    }
}

/// Has this thread, and those that it starts, run on `core`.
fn run_on(core: usize) -> Result<(), Error> {
    let mut cores = CpuSet::new();
    cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores)).map_err(|_| {
        let (name, expected) = ("the core", "one that this process may run on; `shmccl doctor` lists them");
        Error::InvalidArgument { name, value: core as u64, expected }
    })
}
