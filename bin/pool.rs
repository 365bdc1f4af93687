//! `shmccl coordinator` and `shmccl device`: the two sides of a pool, each in the foreground until
//! it is interrupted. A coordinator may start devices itself, which end with it.
//!
//! Tried by its unit tests and `command coordinator::fleet:: coordinator::embedded::`.

pub(crate) mod flags;
mod kinds;
mod scrape;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::coordinator::{
    Client, Coordinator, CoordinatorError, CoordinatorSettings, Device, DeviceEnd, DeviceId, DeviceKind,
    DeviceOptions, Fleet, FleetOptions, RuntimeDirectory,
};
use shmccl::heap::MIN_ADDRESS;
use shmccl::launch::Program;

use self::flags::{CoordinatorArgs, DeviceArgs};
use crate::failure::{self, UsageError};
use crate::{jobs, output, tuning};

/// Ends the help of `shmccl coordinator`.
pub(crate) const HELP: &str = "\
A file of devices is TOML. Every key may be left out:
  [[device]]
  name = \"big\"       # what it is called when it dies
  count = 2            # how many of them
  memory = \"256MiB\"
  timeout = \"30s\"    # the longest that it waits for other devices
  core = 1             # the core that it is to run on

Devices that a coordinator starts end with it, at Ctrl-C or SIGTERM. Devices of `shmccl device` live \
on. A device that cannot begin says why, and ends the pool, unless the pool has taken over others.

A device that dies later is gone, unless --restart replaces it by a new, free device of the same \
kind. The replacement never takes the place of the dead one: its communicator fails, goes on without \
it at `shmccl ctl go-on COMM`, and takes in a free device at `shmccl ctl grow COMM`, with the memory \
that the program copies there. A device that hangs is killed, unless --spare-hung leaves it to a \
debugger, or it was started by hand.

When the coordinator is killed, its devices go on, and wait for the next one for the time of \
--outlive. A coordinator with the same -n or --devices takes them over, and starts only those that \
are missing. SIGQUIT (Ctrl-\\) prints what every device of a communicator is doing; all goes on.";

/// The time that devices wait for the next coordinator after theirs was killed, by default.
const OUTLIVE: Duration = Duration::from_secs(30);

/// The time that a coordinator gives devices of the previous one to come back, before it takes
/// requests.
const ADOPTION: Duration = Duration::from_millis(500);

/// The longest time in which the coordinator answers the request for a report.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

/// How long a reader of the last notes may take.
const LAST_NOTES: Duration = Duration::from_secs(1);

/// The devices that have registered, and the first that has failed to.
#[derive(Clone, Debug, Default)]
struct Registrations(Arc<Mutex<RegistrationState>>);

#[derive(Debug, Default)]
struct RegistrationState {
    come: BTreeSet<DeviceId>,
    /// Whether the pool goes on if a device fails to register, as it has others to lose.
    goes_on: bool,
    /// The first device that has failed to register, if that has ended the pool.
    failed: Option<String>,
}

/// Serves a pool of devices.
///
/// # Errors
/// A second coordinator; a bad description of devices; a device that ends before it has registered;
/// those of the system.
pub(crate) fn coordinate(args: &CoordinatorArgs) -> Result<u8> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let kinds = match (&args.devices, args.number) {
        (Some(file), _) => kinds::read(file)?,
        (None, Some(number)) => {
            let plain = DeviceKind::new(number as usize);
            vec![DeviceKind { memory: args.memory.unwrap_or(plain.memory), ..plain }]
        }
        (None, None) => Vec::new(),
    };
    let idle = [("--outlive", args.outlive.is_some()), ("--restart", args.restart > 0)];
    if let Some((flag, _)) = idle.into_iter().find(|(_, is_given)| *is_given && kinds.is_empty()) {
        let what = format!("{flag} is of no use without -n or --devices; leave it out");
        return Err(UsageError::new(what).into());
    }
    if !kinds.is_empty() {
        tuning::check_and_note()?;
    }
    output::detach();
    let directory = RuntimeDirectory::open()?;
    let settings = CoordinatorSettings {
        adopt_ms: milliseconds(ADOPTION),
        patience_ms: milliseconds(args.patience),
        hang_rule: args.hangs.rule(args.patience)?,
        spares_hung: args.hangs.spares_hung(),
    };
    let mut coordinator = Coordinator::start(&directory, settings)?;
    output::note(&format!("coordinator listens at {}; Ctrl-C ends it", directory.socket().display()));
    if let Some(address) = args.metrics {
        let address = scrape::serve(address, directory.clone())?;
        output::note(&format!("metrics are at http://{address}/metrics"));
    }
    let asked = directory.clone();
    coordinator.on_quit(move || print_reports(asked.clone()));
    let program = Program::this_with(["device"]);
    let registrations = Registrations::default();
    let come = registrations.clone();
    coordinator.on_registered(move |device| come.note_come(device));
    coordinator.on_hung(|hung| output::note(&hung.to_string()));
    let Some(present) = coordinator.await_adoption()? else { return Ok(failure::DONE) };
    let missing = DeviceKind::missing(&kinds, &directory, &present);
    registrations.goes_on_with(present.len() + missing.coming.len());
    let ended = registrations.clone();
    let tally = coordinator.restarts();
    let is_followed = move |end: &DeviceEnd| {
        let is_followed = ended.note_end(end);
        if is_followed {
            tally.count();
        }
        is_followed
    };
    let options = FleetOptions { outlives: Some(args.outlive.unwrap_or(OUTLIVE)), restarts: args.restart };
    let mut fleet = Fleet::start(&directory, &program, &missing.kinds, options, is_followed)?;
    // Devices that end because the coordinator ends are not reported.
    coordinator.serve_until(|| fleet.end())?;
    drop(fleet);
    output::settle(Some(LAST_NOTES));
    registrations.verdict()?;
    Ok(failure::DONE)
}

/// Serves as a device of the pool.
///
/// # Errors
/// No coordinator; those of the system.
pub(crate) fn be_device(args: &DeviceArgs) -> Result<u8> {
    output::detach();
    let device = match Device::from_env()? {
        Some(device) => device,
        None => {
            tuning::check_and_note()?;
            let max_address = MIN_ADDRESS.saturating_add(args.memory);
            let options = DeviceOptions { max_address, timeout: args.timeout, core: args.core };
            Device::start(&RuntimeDirectory::open()?, &options).map_err(|error| match error {
                CoordinatorError::Engine(shmccl::Error::InvalidArgument { .. }) => {
                    UsageError::new(error.to_string()).into()
                }
                error => anyhow::Error::new(error),
            })?
        }
    };
    let (id, range) = (device.id(), device.range());
    output::note(&format!("device {id} has addresses {:#x} to {:#x}; Ctrl-C ends it", range.min, range.max));
    device.serve()?;
    output::settle(Some(LAST_NOTES));
    Ok(failure::DONE)
}

/// Prints what all devices in communicators are doing. A thread of its own asks the coordinator,
/// which goes on serving.
fn print_reports(directory: RuntimeDirectory) {
    let print = move || match reports(&directory) {
        Ok(reports) if reports.is_empty() => output::note("no device of the pool is in a communicator"),
        Ok(reports) => reports.iter().for_each(|report| output::note(report)),
        Err(error) => output::note(&format!("nothing can be told of the devices: {error}")),
    };
    // The next request may succeed.
    let _ = std::thread::Builder::new().name("shmccl report".to_owned()).spawn(print);
}

fn reports(directory: &RuntimeDirectory) -> Result<Vec<String>, CoordinatorError> {
    let devices = Client::connect(directory, CLIENT_PATIENCE)?.devices()?;
    let is_its = |process: &u32| devices.iter().any(|device| device.device.get() == *process);
    let seen = jobs::all().into_iter().filter(|seen| seen.job.processes.iter().any(is_its));
    Ok(seen.map(|seen| seen.report.to_string()).collect())
}

impl Registrations {
    /// Sets whether the pool has other devices, taken over or about to be.
    fn goes_on_with(&self, others: usize) {
        self.state().goes_on = others > 0;
    }

    fn note_come(&self, device: DeviceId) {
        self.state().come.insert(device);
    }

    /// Reports the end of a device, and returns whether another one is started in its place. A
    /// device that has not registered ends the pool, as Ctrl-C would. The pool goes on if it has
    /// other devices, or if the device was told to end.
    fn note_end(&self, end: &DeviceEnd) -> bool {
        let mut state = self.state();
        let has_come = state.come.remove(&end.device);
        let told = if has_come { end.to_string() } else { format!("{end} before it had registered") };
        if end.is_to_be_followed(has_come) {
            output::note(&format!("{told}; started again ({} more times at most)", end.restarts - 1));
            return true;
        }
        if has_come {
            output::note(&format!("{told}; the others go on"));
            return false;
        }
        if state.goes_on || end.was_restarted || end.was_taken_over || end.was_told() {
            output::note(&format!("{told}, and the pool goes on without it"));
            return false;
        }
        if state.failed.is_none() {
            state.failed = Some(told);
            // The process id is that of this process.
            let _ = kill(Pid::this(), Signal::SIGTERM);
        }
        false
    }

    /// Fails if a device has ended the pool.
    ///
    /// # Errors
    /// The end of that device.
    fn verdict(&self) -> Result<()> {
        match self.state().failed.take() {
            Some(failed) => bail!("{failed}, so the pool has ended; what was wrong it has told above"),
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, RegistrationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
