//! Which communicator of which pool a job is, as the coordinators say. Where none answers, nobody knows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use shmccl::coordinator::{Client, DeviceStatus, RuntimeDirectory};

/// How long a coordinator may take to say which devices it has.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a device that a coordinator has started finds the directory of that.
const POOL: &str = "SHMCCL_POOL";

/// A communicator of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) communicator: u64,
    /// The coordinator's directory.
    pub(crate) pool: PathBuf,
}

/// The pools that were asked for their devices, by their directories.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    asked: BTreeMap<PathBuf, Vec<DeviceStatus>>,
}

impl Pools {
    /// The communicator that one of these processes belongs to, as a device. Each coordinator is asked once.
    pub(crate) fn owner(&mut self, processes: impl IntoIterator<Item = u32>) -> Option<Owner> {
        processes.into_iter().find_map(|process| self.owner_of(process))
    }

    fn owner_of(&mut self, process: u32) -> Option<Owner> {
        let pool = directory_of(process)?;
        let devices = self.asked.entry(pool.clone()).or_insert_with(|| devices_of(&pool).unwrap_or_default());
        let device = devices.iter().find(|device| device.device.get() == process)?;
        Some(Owner { communicator: device.comm?.get(), pool })
    }
}

/// Whom this process would have for a coordinator, by its environment, were it a device.
fn directory_of(process: u32) -> Option<PathBuf> {
    let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let value = |name: &str| {
        let mut entries = environment.split(|byte| *byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        (!value.is_empty()).then(|| PathBuf::from(OsString::from_vec(value.to_vec())))
    };
    let usual = || match value("XDG_RUNTIME_DIR") {
        Some(parent) => parent.join("shmccl"),
        None => PathBuf::from(format!("/tmp/shmccl-{}", geteuid())),
    };
    Some(value(POOL).unwrap_or_else(usual))
}

fn devices_of(pool: &Path) -> Option<Vec<DeviceStatus>> {
    // Opening it would make it.
    let directory = pool.is_dir().then(|| RuntimeDirectory::at(pool).ok())??;
    Client::connect(&directory, PATIENCE).ok()?.devices().ok()
}
