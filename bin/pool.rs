//! `shmccl coordinator` and `shmccl device`: the two sides of a pool, each in the foreground until it is interrupted. A coordinator may
//! start devices itself, which end with it.

pub(crate) mod flags;
mod kinds;
mod roll;
mod scrape;
mod whereabouts;

use std::time::Duration;

use anyhow::{Context, Result};
use shmccl::collective::tuning::Table;
use shmccl::coordinator::{
    Coordinator, CoordinatorError, CoordinatorSettings, Device, DeviceEnd, DeviceKind, DeviceOptions, Fleet,
    FleetOptions, RuntimeDirectory,
};
use shmccl::heap::MIN_ADDRESS;
use shmccl::launch::Program;

use self::flags::{CoordinatorArgs, DeviceArgs};
use self::roll::Roll;
use crate::failure::UsageError;
use crate::{failure, output};

/// What `shmccl coordinator --help` ends with.
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

/// How long devices wait for the next coordinator when theirs was killed, if nothing else is said.
const OUTLIVE: Duration = Duration::from_secs(30);

/// How long a coordinator gives devices of the one before it to come back, before it takes requests.
const ADOPTION: Duration = Duration::from_millis(500);

/// Serves a pool of devices.
///
/// # Errors
/// When there is a coordinator already, the devices that it is to start are not described well, one of them ends before it has
/// registered, or the system refuses.
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
    coordinator.on_quit(move || whereabouts::tell(asked.clone()));
    let program = Program::new(std::env::current_exe().context("finding this executable")?, ["device"]);
    let roll = Roll::default();
    let come = roll.clone();
    coordinator.on_registered(move |device| come.note_come(device));
    coordinator.on_hung(|hung| output::note(&hung.to_string()));
    let Some(present) = coordinator.await_adoption()? else { return Ok(failure::DONE) };
    let missing = DeviceKind::missing(&kinds, &directory, &present);
    roll.goes_on_with(present.len() + missing.coming.len());
    let ended = roll.clone();
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
    // Devices that end by themselves, as they see the coordinator end, are none to tell of.
    coordinator.serve_until(|| fleet.end())?;
    drop(fleet);
    roll.verdict()?;
    Ok(failure::DONE)
}

/// Is a device of the pool.
///
/// # Errors
/// When there is no coordinator, or the system refuses.
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
