//! What a process is told that was started to be a device: by its environment, so that any program can be one.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;
use serde::{Deserialize, Serialize};

use super::{Bond, Device, DeviceOptions};
use crate::bootstrap::{LAUNCHER, bind_to_launcher};
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::id::DeviceId;
use crate::error::{Error, Result};
use crate::heap::MIN_ADDRESS;

/// The directory of the coordinator.
const POOL: &str = "SHMCCL_POOL";

/// What the device is to be like.
pub(super) const DEVICE: &str = "SHMCCL_DEVICE";

/// What a device is to be like that a coordinator's process starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::coordinator) struct Assignment {
    pub(in crate::coordinator) memory: u64,
    pub(in crate::coordinator) timeout: Duration,
    pub(in crate::coordinator) core: Option<usize>,
    /// How long it waits for another coordinator when its own was killed; `None` where it ends with the process that has started it.
    pub(in crate::coordinator) outlives: Option<Duration>,
}

impl Assignment {
    /// How a process finds it in its environment.
    pub(in crate::coordinator) fn variables(
        &self,
        directory: &RuntimeDirectory,
    ) -> [(&'static str, OsString); 3] {
        let text = serde_json::to_string(self).expect("numbers have nothing that JSON has not");
        [
            (POOL, directory.path().into()),
            (DEVICE, text.into()),
            (LAUNCHER, std::process::id().to_string().into()),
        ]
    }

    /// What a process was told that was started to be a device of the coordinator of `directory`.
    pub(in crate::coordinator) fn of(process: DeviceId, directory: &RuntimeDirectory) -> Option<Self> {
        let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
        let value = |name: &str| {
            let mut entries = environment.split(|byte| *byte == 0);
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        (value(POOL)? == directory.path().as_os_str().as_bytes())
            .then(|| serde_json::from_slice(value(DEVICE)?).ok())
            .flatten()
    }

    /// Whether both are of the same kind, however long they wait.
    pub(in crate::coordinator) fn is_alike(&self, other: &Self) -> bool {
        Self { outlives: None, ..*self } == Self { outlives: None, ..*other }
    }
}

/// Whether this process was started to be a device.
pub(in crate::coordinator) fn is_device() -> bool {
    std::env::var_os(DEVICE).is_some()
}

impl Device {
    /// The device that this process was started as, by a [`Pool`](crate::coordinator::Pool) or a [`Fleet`](crate::coordinator::Fleet);
    /// `None` when it was not. A program that has a pool asks this first of all, and then [serves](Device::serve).
    ///
    /// From here on the process ends when the process of its pool does: the kernel kills it, provided that the calling thread stays; and
    /// in any case it ends by itself when its coordinator is gone. One that was told to [outlive](crate::coordinator::Fleet::outliving)
    /// it waits for the next coordinator for that time when its own was killed, and ends at once when that has ended in order.
    ///
    /// # Errors
    /// [`Error::Environment`] when the variables are damaged; [`Error::Revoked`] when who has started it is dead already; those of
    /// [`Device::start`].
    pub fn from_env() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(DEVICE) else { return Ok(None) };
        let damaged = |variable| Error::Environment { variable, expected: "expected what a pool has set" };
        let assignment: Option<Assignment> = text.to_str().and_then(|text| serde_json::from_str(text).ok());
        let Assignment { memory, timeout, core, outlives } = assignment.ok_or(damaged(DEVICE))?;
        let launcher = std::env::var(LAUNCHER).ok().and_then(|text| text.parse().ok());
        let launcher = launcher.ok_or(damaged(LAUNCHER))?;
        if outlives.is_none() {
            if getppid().as_raw() != launcher {
                // It is dead, and another pool may have its directory by now.
                return Err(Error::Revoked { by: None });
            }
            bind_to_launcher(launcher)?;
        }
        let directory = PathBuf::from(std::env::var_os(POOL).ok_or(damaged(POOL))?);
        // Who has started it may have blocked those that end it.
        let mut ending = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| ending.add(signal));
        let _ = ending.thread_unblock();
        let options = DeviceOptions { max_address: MIN_ADDRESS.saturating_add(memory), timeout, core };
        let bond = outlives.map_or(Bond::Owned, Bond::Waits);
        Self::open(&RuntimeDirectory::at(directory)?, &options, bond).map(Some)
    }
}
