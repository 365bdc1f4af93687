//! `shmccl coordinator` and `shmccl device`: the two sides of a pool, each in the foreground until it is interrupted. A coordinator may
//! start devices itself, which end with it.

mod fleet;
mod kinds;
mod scrape;

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use shmccl::coordinator::{Coordinator, Device, DeviceOptions, RuntimeDirectory, Settings};
use shmccl::heap::MIN_ADDRESS;

use crate::args::{CoordinatorArgs, DeviceArgs};
use crate::{failure, output};
use fleet::Fleet;
use kinds::Kind;

/// What `shmccl coordinator --help` ends with.
pub(crate) const HELP: &str = "\
A file of devices is TOML. Every key may be left out:
  [[device]]
  name = \"big\"       # what it is called when it dies
  count = 2            # how many of them
  memory = \"256MiB\"
  timeout = \"30s\"    # the longest that it waits for other devices
  core = 1             # the core that it is to run on

Devices that a coordinator starts end with it. Others, of `shmccl device`, live on for the next coordinator.";

/// How long a coordinator gives devices of the one before it to come back, before it takes requests.
const ADOPTION: Duration = Duration::from_millis(500);

/// Serves a pool of devices.
///
/// # Errors
/// When there is a coordinator already, the devices that it is to start are not described well, or the system refuses.
pub(crate) fn coordinate(args: &CoordinatorArgs) -> Result<u8> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let kinds = match (&args.devices, args.number) {
        (Some(file), _) => kinds::read(file)?,
        (None, Some(number)) => vec![Kind::plain(number as usize, args.memory)],
        (None, None) => Vec::new(),
    };
    let directory = RuntimeDirectory::open()?;
    let settings = Settings {
        adopt_ms: milliseconds(ADOPTION),
        patience_ms: milliseconds(args.patience),
        hang_rule: args.hangs.rule(args.patience)?,
    };
    let coordinator = Coordinator::start(&directory, settings)?;
    output::note(&format!("coordinator listens at {}; Ctrl-C ends it", directory.socket().display()));
    if let Some(address) = args.metrics {
        let address = scrape::serve(address, directory)?;
        output::note(&format!("metrics are at http://{address}/metrics"));
    }
    let _fleet = Fleet::start(&kinds)?;
    coordinator.serve()?;
    Ok(failure::DONE)
}

/// Is a device of the pool.
///
/// # Errors
/// When there is no coordinator, or the system refuses.
pub(crate) fn be_device(args: &DeviceArgs) -> Result<u8> {
    if let Some(core) = args.core {
        let mut cores = CpuSet::new();
        cores
            .set(core)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores))
            .with_context(|| format!("cannot run on core {core}; `shmccl doctor` tells which there are"))?;
    }
    let directory = RuntimeDirectory::open()?;
    let max_address = MIN_ADDRESS.saturating_add(args.memory);
    let device = Device::start(&directory, &DeviceOptions { max_address, timeout: args.timeout })?;
    output::note(&format!(
        "device {} has addresses {MIN_ADDRESS:#x} to {max_address:#x}; Ctrl-C ends it",
        device.id()
    ));
    device.serve()?;
    Ok(failure::DONE)
}
