//! A coordinator and its devices within a program.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::SigSet;

use super::assignment::is_device;
use super::client::Client;
use super::directory::RuntimeDirectory;
use super::error::{CoordinatorError, Result};
use super::fleet::{DeviceEnd, DeviceKind, Fleet, FleetOptions, hang_up_on};
use super::handshake::PATIENCE;
use super::id::DeviceId;
use super::machine::CoordinatorSettings;
use super::service::{Coordinator, RestartTally};
use crate::bootstrap::resource_error;
use crate::error::Error;
use crate::launch::Program;
use crate::logs::COORDINATOR;
use crate::process::OwnerProcess;
use crate::shm::HostKernel;
use crate::shm::undivided::spawn;
use crate::sync::grace::Grace;

/// The properties of a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// The devices of the pool, by kind.
    pub devices: Vec<DeviceKind>,
    /// The program to start for each device: it calls [`Device::from_env`](super::Device::from_env)
    /// and serves. By default it is the running executable, with its own arguments.
    pub program: Program,
    /// The settings of the coordinator.
    pub settings: CoordinatorSettings,
    /// The directory of the coordinator; `None` for one of the pool's own, which is removed with
    /// it. In the user's ([`RuntimeDirectory::open`]) `shmccl ctl` finds the coordinator as well.
    pub directory: Option<RuntimeDirectory>,
    /// How long a [`Client`] of the pool waits for an answer.
    pub timeout: Duration,
    /// How many devices may be started, all together, to replace others that have registered and
    /// die, as for [`FleetOptions::restarts`]. Each begins as a free one.
    pub restarts: u32,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            program: Program::this(),
            settings: CoordinatorSettings::default(),
            directory: None,
            timeout: Duration::from_secs(60),
            restarts: 0,
        }
    }
}

/// A coordinator in a thread of this process, and devices as processes of its own. Dropping it ends
/// all of them, and leaves nothing.
///
/// The running executable is started again for each device, as by
/// [`launch`](crate::launch::launch). So a program that has a pool asks first of all whether it is
/// a device. When the program is killed, the kernel kills its devices, and a janitor, which is
/// forked as the pool starts, removes its socket. If the janitor was killed as well, the next pool
/// or `shmccl clean` removes it. Each connection takes a descriptor, so the pool raises the soft
/// limit of the program as far as the system allows.
///
/// ```no_run
/// use shmccl::collective::Operation;
/// use shmccl::coordinator::{Device, DeviceCall, Pool};
/// use shmccl::reduce::{DataType, ReduceOp};
///
/// fn main() -> shmccl::coordinator::Result<()> {
///     if let Some(device) = Device::from_env()? {
///         return device.serve();
///     }
///     let pool = Pool::start(3)?;
///     let mut client = pool.client()?;
///     let comm = client.init(3, false)?;
///     for device in &comm.devices {
///         client.copy_host_to_device(*device, 0x1000, &2.0_f64.to_ne_bytes())?;
///     }
///     let product = DeviceCall {
///         operation: Operation::AllReduce,
///         data_type: DataType::F64,
///         op: ReduceOp::Prod,
///         root: 0,
///         count: 1,
///         send: vec![0x1000; 3],
///         recv: vec![0x2000; 3],
///     };
///     client.call(comm.comm, None, product)?;
///     assert!(client.status(comm.comm, true)?.last.is_some_and(|last| last.failure.is_none()));
///     assert_eq!(client.read_device(comm.devices[2], 0x2000, 8)?, 8.0_f64.to_ne_bytes());
///     client.finalize(comm.comm)
/// }
/// ```
#[derive(Debug)]
pub struct Pool {
    directory: RuntimeDirectory,
    /// Whether the directory is removed with it.
    is_private: bool,
    process: OwnerProcess,
    timeout: Duration,
    /// Dropped to have the coordinator end.
    stop: Option<UnixStream>,
    coordinator: Option<JoinHandle<Result<()>>>,
    fleet: Option<Fleet>,
}

/// A device that has registered, or the end of one, while the pool starts.
type StartEvent = Result<DeviceId, DeviceEnd>;

/// The devices that have registered, and are not known to have ended.
type RegisteredDevices = Arc<Mutex<BTreeSet<DeviceId>>>;

fn lock(registered: &RegisteredDevices) -> MutexGuard<'_, BTreeSet<DeviceId>> {
    registered.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts a coordinator and so many devices, which have all registered when this returns.
    ///
    /// # Errors
    /// Fails as [`Pool::start_with`] does.
    pub fn start(devices: usize) -> Result<Self> {
        Self::start_with(&PoolOptions { devices: vec![DeviceKind::new(devices)], ..PoolOptions::default() })
    }

    /// Starts a coordinator and these devices, which have all registered when this returns.
    ///
    /// # Errors
    /// [`Error::Unavailable`] in a process that is a device itself;
    /// [`CoordinatorError::NotStarted`] when one of the devices does not register; those of
    /// [`Coordinator::start`] and [`Fleet::start`]. Nothing is left then.
    pub fn start_with(options: &PoolOptions) -> Result<Self> {
        if is_device() {
            // Its devices would start devices, and those would as well.
            let needs = "a program that calls Device::from_env first, and serves if it is a device";
            return Err(Error::Unavailable { operation: "Pool::start", needs }.into());
        }
        let (directory, settings) = match &options.directory {
            Some(directory) => (directory.clone(), options.settings),
            // In a new directory no device can come back.
            None => (RuntimeDirectory::private()?, CoordinatorSettings { adopt_ms: 0, ..options.settings }),
        };
        let mut pool = Self {
            directory,
            is_private: options.directory.is_none(),
            process: OwnerProcess::this(),
            timeout: options.timeout,
            stop: None,
            coordinator: None,
            fleet: None,
        };
        let ((sender, events), registered) = (channel(), RegisteredDevices::default());
        let tally = pool.start_coordinator(settings, sender.clone(), registered.clone())?;
        let is_followed = move |end: &DeviceEnd| {
            tracing::warn!(target: COORDINATOR, device = %end.device, "{end}; the others go on");
            // The receiver is gone once all have registered.
            let _ = sender.send(Err(end.clone()));
            let is_followed = end.is_to_be_followed(lock(&registered).remove(&end.device));
            if is_followed {
                tally.count();
            }
            is_followed
        };
        let fleet_options = FleetOptions { restarts: options.restarts, ..FleetOptions::default() };
        let (program, kinds) = (&options.program, &options.devices);
        let fleet = Fleet::start(&pool.directory, program, kinds, fleet_options, is_followed)?;
        let fleet = pool.fleet.insert(fleet);
        await_devices(fleet.devices(), &events)?;
        Ok(pool)
    }

    fn start_coordinator(
        &mut self,
        settings: CoordinatorSettings,
        sender: Sender<StartEvent>,
        registered: RegisteredDevices,
    ) -> Result<RestartTally> {
        const ACTION: &str = "starting the coordinator of a pool";
        let (stop, stop_pipe) = UnixStream::pair().map_err(|error| resource_error(ACTION, error))?;
        let mut coordinator = Coordinator::embedded(&self.directory, settings, stop_pipe)?;
        coordinator.on_registered(move |device| {
            lock(&registered).insert(device);
            let _ = sender.send(Ok(device));
        });
        let tally = coordinator.restarts();
        let serve = move || {
            // Signals are for the program's own threads.
            let _ = SigSet::all().thread_block();
            coordinator.serve()
        };
        let started = spawn("shmccl coordinator", serve);
        self.coordinator = Some(started.map_err(|error| resource_error(ACTION, error))?);
        self.stop = Some(stop);
        Ok(tally)
    }

    /// Connects with the coordinator. There may be many clients, in any threads.
    ///
    /// # Errors
    /// Fails as [`Client::connect`] does.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.directory, self.timeout)
    }

    /// Returns the directory of the coordinator, for clients of other processes.
    #[must_use]
    pub fn directory(&self) -> &RuntimeDirectory {
        &self.directory
    }

    /// Returns the devices that were started at first. [`Client::devices`] returns those that there
    /// are now.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        self.fleet.as_ref().map(Fleet::devices).unwrap_or_default()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget((self.coordinator.take(), self.fleet.take()));
            return;
        }
        hang_up_on(self.stop.take());
        if let Some(Ok(Err(error))) = self.coordinator.take().map(JoinHandle::join) {
            tracing::error!(target: COORDINATOR, %error, "the coordinator of a pool has failed");
        }
        drop(self.fleet.take());
        if self.is_private {
            // If this fails, the next pool or `shmccl clean` removes it.
            let _ = self.directory.remove();
        }
    }
}

/// Waits until all devices have registered.
fn await_devices(devices: &[DeviceId], events: &Receiver<StartEvent>) -> Result<()> {
    let mut awaited: BTreeSet<_> = devices.iter().copied().collect();
    let mut grace = Grace::begin(PATIENCE, HostKernel::clock());
    while let Some(next) = awaited.first() {
        let is_over = grace.is_over(HostKernel::clock());
        match events.recv_timeout(grace.next_look()) {
            Ok(Ok(device)) => _ = awaited.remove(&device),
            Ok(Err(end)) if awaited.contains(&end.device) => {
                return Err(CoordinatorError::NotStarted { how: end.to_string() });
            }
            Ok(Err(_)) => {}
            Err(RecvTimeoutError::Timeout) if !is_over => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let how = format!("device {next} has not registered in {PATIENCE:?}");
                return Err(CoordinatorError::NotStarted { how });
            }
        }
    }
    Ok(())
}
