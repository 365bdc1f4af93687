//! A coordinator and its devices within a program.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use super::client::Client;
use super::device::is_device;
use super::directory::RuntimeDirectory;
use super::fault::CoordinatorError;
use super::fleet::{DeviceEnd, DeviceKind, Fleet, FleetOptions};
use super::greeting::PATIENCE;
use super::id::DeviceId;
use super::machine::CoordinatorSettings;
use super::service::{Coordinator, RestartTally};
use crate::bootstrap::resource_error;
use crate::error::{Error, Result};
use crate::launch::Program;
use crate::logs::COORDINATOR;

/// What a pool is to be like.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Its devices, kind by kind.
    pub devices: Vec<DeviceKind>,
    /// What is started for each device: a program that asks [`Device::from_env`](super::Device::from_env) and serves. By default it is
    /// the running executable, with the arguments that it was itself given.
    pub program: Program,
    /// How patient the coordinator is.
    pub settings: CoordinatorSettings,
    /// Where the coordinator is to be found: in a directory of the pool's own, which goes with it, if nothing else is said. In the user's
    /// ([`RuntimeDirectory::open`]) it can be asked by `shmccl ctl` as well.
    pub directory: Option<RuntimeDirectory>,
    /// How long a [`Client`] of the pool waits for an answer.
    pub timeout: Duration,
    /// How many devices may be started, all together, in the place of others that have registered and die, as
    /// [`FleetOptions::restarts`] has it: each comes as a free one.
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

/// A coordinator in a thread of this process, and devices as processes of its own. Dropping it ends all of them, and leaves nothing.
///
/// The running executable is started again for each device, as by [`launch`](crate::launch::launch); so a program that has a pool asks
/// first of all whether it is a device. When the program is killed the kernel kills its devices, and a janitor, which is forked as the pool
/// starts, removes its socket; where that was killed as well the next pool does, or `shmccl clean`. The program may have as many descriptors
/// open from then on as the system lets it (the soft limit is raised), since each connection takes one.
///
/// ```no_run
/// use shmccl::coordinator::{Collective, Device, DeviceCall, DeviceReduceOp, Pool};
/// use shmccl::reduce::DataType;
///
/// fn main() -> shmccl::Result<()> {
///     if let Some(device) = Device::from_env()? {
///         return device.serve();
///     }
///     let pool = Pool::start(3)?;
///     let mut client = pool.client()?;
///     let comm = client.init(3, false)?;
///     for device in &comm.devices {
///         client.copy_host_to_device(*device, 0x1000, &2.0_f64.to_ne_bytes())?;
///     }
///     let (send, recv) = (vec![0x1000; 3], vec![0x2000; 3]);
///     let (collective, data_type, op) = (Collective::AllReduce, DataType::F64, DeviceReduceOp::Prod);
///     client.call(comm.comm, None, DeviceCall { collective, data_type, op, root: 0, count: 1, send, recv })?;
///     assert!(client.status(comm.comm, true)?.last.is_some_and(|last| last.failure.is_none()));
///     assert_eq!(client.read_device(comm.devices[2], 0x2000, 8)?, 8.0_f64.to_ne_bytes());
///     client.finalize(comm.comm)
/// }
/// ```
#[derive(Debug)]
pub struct Pool {
    directory: RuntimeDirectory,
    /// Whether the directory goes with it.
    is_private: bool,
    timeout: Duration,
    /// Whose end ends the coordinator.
    bell: Option<UnixStream>,
    coordinator: Option<JoinHandle<Result<()>>>,
    fleet: Option<Fleet>,
}

/// What is heard of devices while they start.
#[derive(Debug)]
enum StartEvent {
    Registered(DeviceId),
    Ended(DeviceEnd),
}

/// The devices that have registered, and are not known to have ended.
#[derive(Clone, Debug, Default)]
struct RegisteredDevices(Arc<Mutex<BTreeSet<DeviceId>>>);

impl RegisteredDevices {
    fn devices(&self) -> MutexGuard<'_, BTreeSet<DeviceId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Starts a coordinator and so many devices, which are all there when this returns.
    ///
    /// # Errors
    /// Those of [`Pool::start_with`].
    pub fn start(devices: usize) -> Result<Self> {
        Self::start_with(&PoolOptions { devices: vec![DeviceKind::new(devices)], ..PoolOptions::default() })
    }

    /// Starts a coordinator and these devices, which are all there when this returns.
    ///
    /// # Errors
    /// [`Error::Unavailable`] in a process that is a device itself; [`CoordinatorError::NotStarted`] when one of the devices does not come; those of
    /// [`Coordinator::start`] and [`Fleet::start`]. Nothing is left then.
    pub fn start_with(options: &PoolOptions) -> Result<Self> {
        if is_device() {
            // Or else its devices would start devices, which would start devices.
            let needs = "a program that asks Device::from_env first, and serves if it is a device";
            return Err(Error::Unavailable { operation: "Pool::start", needs });
        }
        let (directory, settings) = match &options.directory {
            Some(directory) => (directory.clone(), options.settings),
            // Where nobody was before nobody comes back.
            None => (RuntimeDirectory::private()?, CoordinatorSettings { adopt_ms: 0, ..options.settings }),
        };
        let mut pool = Self {
            directory,
            is_private: options.directory.is_none(),
            timeout: options.timeout,
            bell: None,
            coordinator: None,
            fleet: None,
        };
        let ((tell, told), come) = (channel(), RegisteredDevices::default());
        let tally = pool.start_coordinator(settings, tell.clone(), come.clone())?;
        let is_followed = move |end: &DeviceEnd| {
            tracing::warn!(target: COORDINATOR, device = %end.device, "{end}; the others go on");
            // Nobody listens once all have come.
            let _ = tell.send(StartEvent::Ended(end.clone()));
            let is_followed = end.is_to_be_followed(come.devices().remove(&end.device));
            if is_followed {
                tally.count();
            }
            is_followed
        };
        let fleet_options = FleetOptions { restarts: options.restarts, ..FleetOptions::default() };
        let (program, kinds) = (&options.program, &options.devices);
        let fleet = Fleet::start_with(&pool.directory, program, kinds, fleet_options, is_followed)?;
        let fleet = pool.fleet.insert(fleet);
        await_devices(fleet.devices(), &told)?;
        Ok(pool)
    }

    fn start_coordinator(
        &mut self,
        settings: CoordinatorSettings,
        tell: Sender<StartEvent>,
        come: RegisteredDevices,
    ) -> Result<RestartTally> {
        const ACTION: &str = "starting the coordinator of a pool";
        let (bell, rope) = UnixStream::pair().map_err(|error| resource_error(ACTION, error))?;
        let coordinator = Coordinator::within(&self.directory, settings, rope, move |device| {
            come.devices().insert(device);
            let _ = tell.send(StartEvent::Registered(device));
        })?;
        let tally = coordinator.restarts();
        let serve = move || {
            // Signals are for the program's own threads.
            let _ = SigSet::all().thread_block();
            coordinator.serve()
        };
        let builder = std::thread::Builder::new().name("shmccl coordinator".to_owned());
        self.coordinator = Some(builder.spawn(serve).map_err(|error| resource_error(ACTION, error))?);
        self.bell = Some(bell);
        Ok(tally)
    }

    /// A connection with the coordinator. There may be many, in any threads.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.directory, self.timeout)
    }

    /// Where the coordinator is to be found, for clients of other processes.
    #[must_use]
    pub fn directory(&self) -> &RuntimeDirectory {
        &self.directory
    }

    /// The devices that were started at first. [`Client::devices`] tells which there are now.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        self.fleet.as_ref().map(Fleet::devices).unwrap_or_default()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.bell.take());
        if let Some(Ok(Err(error))) = self.coordinator.take().map(JoinHandle::join) {
            tracing::error!(target: COORDINATOR, %error, "the coordinator of a pool has failed");
        }
        drop(self.fleet.take());
        if self.is_private {
            // The next pool, or `shmccl clean`, would do so as well.
            let _ = self.directory.remove();
        }
    }
}

/// Waits until all have registered.
fn await_devices(devices: &[DeviceId], told: &Receiver<StartEvent>) -> Result<()> {
    let mut awaited: BTreeSet<_> = devices.iter().copied().collect();
    let until = Instant::now() + PATIENCE;
    while let Some(next) = awaited.first() {
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(StartEvent::Registered(device)) => _ = awaited.remove(&device),
            Ok(StartEvent::Ended(end)) if awaited.contains(&end.device) => {
                return Err(CoordinatorError::NotStarted { how: end.to_string() }.error());
            }
            Ok(StartEvent::Ended(_)) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let how = format!("device {next} has not registered in {PATIENCE:?}");
                return Err(CoordinatorError::NotStarted { how }.error());
            }
        }
    }
    Ok(())
}
