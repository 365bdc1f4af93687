//! Devices that a process of the coordinator, or of one before it, has started: those may be killed, and others may not.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::coordinator::device::StartedDevice;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::id::DeviceId;

/// See the module. They are held from the moment that they register: where a process hangs for good, what the system tells of
/// its memory, and so of its environment, may be waited for in vain.
#[derive(Debug)]
pub(super) struct KillableDevices {
    directory: RuntimeDirectory,
    held: BTreeMap<DeviceId, OwnedFd>,
}

impl KillableDevices {
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

    /// The process of a device, if it is one of those and lives.
    pub(super) fn take(&mut self, device: DeviceId) -> Option<OwnedFd> {
        // One that has never come back to this coordinator has not registered with it.
        self.held.remove(&device).or_else(|| self.hold(device))
    }

    fn hold(&self, device: DeviceId) -> Option<OwnedFd> {
        StartedDevice::of(device, &self.directory)?.hold(&self.directory)
    }
}
