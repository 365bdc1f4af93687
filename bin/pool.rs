//! `shmccl coordinator` and `shmccl device`: the two sides of a pool, each in the foreground until it is interrupted.

use std::time::Duration;

use anyhow::Result;
use shmccl::coordinator::{Coordinator, Device, DeviceOptions, RuntimeDirectory, Settings};
use shmccl::heap::MIN_ADDRESS;

use crate::args::{CoordinatorArgs, DeviceArgs};
use crate::{failure, output};

/// How long a coordinator gives devices of the one before it to come back, before it takes requests.
const ADOPTION: Duration = Duration::from_millis(500);

/// Serves a pool of devices.
///
/// # Errors
/// When there is a coordinator already, or the system refuses.
pub(crate) fn coordinate(args: &CoordinatorArgs) -> Result<u8> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let directory = RuntimeDirectory::open()?;
    let settings = Settings { adopt_ms: milliseconds(ADOPTION), patience_ms: milliseconds(args.patience) };
    let coordinator = Coordinator::start(&directory, settings)?;
    output::note(&format!("coordinator listens at {}; Ctrl-C ends it", directory.socket().display()));
    coordinator.serve()?;
    Ok(failure::DONE)
}

/// Is a device of the pool.
///
/// # Errors
/// When there is no coordinator, or the system refuses.
pub(crate) fn be_device(args: &DeviceArgs) -> Result<u8> {
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
