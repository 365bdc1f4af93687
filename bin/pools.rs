//! Which communicator of which pool a job is, as the coordinators say. Where none answers, nobody knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shmccl::coordinator::{Client, DeviceId, DeviceStatus, RuntimeDirectory};

/// How long a coordinator may take to say which devices it has.
const PATIENCE: Duration = Duration::from_secs(1);

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
        let pool = RuntimeDirectory::of(DeviceId::new(process))?;
        let devices = self.asked.entry(pool.clone()).or_insert_with(|| devices_of(&pool).unwrap_or_default());
        let device = devices.iter().find(|device| device.device.get() == process)?;
        Some(Owner { communicator: device.comm?.get(), pool })
    }
}

fn devices_of(pool: &Path) -> Option<Vec<DeviceStatus>> {
    // Opening it would make it.
    let directory = pool.is_dir().then(|| RuntimeDirectory::at(pool).ok())??;
    Client::connect(&directory, PATIENCE).ok()?.devices().ok()
}
