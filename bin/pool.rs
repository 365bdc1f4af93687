//! `shmccl coordinator` and `shmccl device`: the two sides of a pool, each in the foreground until
//! it is interrupted. A coordinator may start devices itself, which end with it.

pub(crate) mod flags;
mod kinds;
mod registrations;
mod scrape;

use std::time::Duration;

use anyhow::{Context, Result};
use shmccl::collective::tuning::Table;
use shmccl::coordinator::{
    Client, Coordinator, CoordinatorError, CoordinatorSettings, Device, DeviceEnd, DeviceKind, DeviceOptions,
    Fleet, FleetOptions, RuntimeDirectory,
};
use shmccl::heap::MIN_ADDRESS;
use shmccl::launch::Program;

use self::flags::{CoordinatorArgs, DeviceArgs};
use self::registrations::Registrations;
use crate::failure::UsageError;
use crate::{failure, jobs, output};

/// Ends the help of `shmccl coordinator`.
pub(crate) const HELP: &str = "\
A file of devices is TOML. Every key may be left out:
  [[device]]
  name = \"big\"       # what it is called when it dies
  count = 2            # how many of them
  memory = \"256MiB\"
  timeout = \"30s\"    # the longest that it waits for other devices
  core = 1             # the core that it is to run on

Devices that a coordinator starts end with it at Ctrl-C or SIGTERM. One that cannot begin ends the pool, unless that has taken over \
others, and says why. One that dies later is gone, unless --restart says how many are started again, each as a new device of the \
same kind that belongs to nothing; those that were taken over are as well. It never comes back in the place of the one that has died: \
a communicator that has lost one fails, goes on without it at `shmccl ctl go-on COMM`, and has a free device join it at `shmccl ctl grow \
COMM`, whose memory has what the program copies there. A device that hangs is killed, unless --spare-hung leaves it to a debugger, or it was \
started by hand. When the coordinator is killed they go on with what they do, and wait for the \
next one as long as --outlive says; one that is started with the same -n or --devices takes them over, and starts only what is missing \
of them. At SIGQUIT (Ctrl-\\) it prints what every device of a communicator is doing, and all goes on. Devices of `shmccl device` live on in any case.";

/// The time that devices wait for the next coordinator after theirs was killed, by default.
const OUTLIVE: Duration = Duration::from_secs(30);

/// The time that a coordinator gives devices of the previous one to come back, before it takes
/// requests.
const ADOPTION: Duration = Duration::from_millis(500);

/// The longest time in which the coordinator answers the request for a report.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

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
        Table::load()?;
    }
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
    let program = Program::new(std::env::current_exe().context("finding this executable")?, ["device"]);
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
    let mut fleet = Fleet::start_with(&directory, &program, &missing.kinds, options, is_followed)?;
    // Devices that end because the coordinator ends are not reported.
    coordinator.serve_until(|| fleet.end())?;
    drop(fleet);
    registrations.verdict()?;
    Ok(failure::DONE)
}

/// Serves as a device of the pool.
///
/// # Errors
/// No coordinator; those of the system.
pub(crate) fn be_device(args: &DeviceArgs) -> Result<u8> {
    let device = match Device::from_env()? {
        Some(device) => device,
        None => {
            Table::load()?;
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
    let seen = jobs::all().into_iter().filter(|seen| seen.job.processes().iter().any(is_its));
    Ok(seen.map(|seen| seen.report.to_string()).collect())
}
