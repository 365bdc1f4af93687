//! Devices that a process of the coordinator, or of one before it, has started: those may be killed, and others may not.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use crate::coordinator::device::Appointed;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::id::DeviceId;
use crate::shm::system::pidfd_kill;

/// See the module. They are held from the moment that they register: where a process hangs for good, what the system tells of
/// its memory, and so of its environment, may be waited for in vain.
#[derive(Debug)]
pub(super) struct Own {
    directory: RuntimeDirectory,
    held: BTreeMap<DeviceId, OwnedFd>,
}

impl Own {
    pub(super) fn new(directory: &RuntimeDirectory) -> Self {
        Self { directory: directory.clone(), held: BTreeMap::new() }
    }

    pub(super) fn note_registered(&mut self, device: DeviceId) {
        self.held.remove(&device);
        self.held.extend(self.hold(device).map(|process| (device, process)));
    }

    pub(super) fn forget(&mut self, device: DeviceId) {
        self.held.remove(&device);
    }

    /// Kills a device, if it is one of those and lives. Returns whether it is.
    pub(super) fn kill(&mut self, device: DeviceId) -> bool {
        // One that has never come back to this coordinator has not registered with it.
        let process = self.held.remove(&device).or_else(|| self.hold(device));
        process.iter().for_each(|process| pidfd_kill(process.as_fd()));
        process.is_some()
    }

    fn hold(&self, device: DeviceId) -> Option<OwnedFd> {
        Appointed::of(device, &self.directory)?.hold(&self.directory)
    }
}
