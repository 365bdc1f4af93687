//! The assignment of a process that is started as a device, and the processes that have one.
//!
//! The assignment stands in the environment of the process, so that any program can be a device.
//! Every process of the same user can read it there ([`StartedDevice`]). A coordinator does so to
//! kill devices that hang, and to find those of a coordinator before it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::directory::{DIRECTORY, ProcessEnvironment, RuntimeDirectory};
use super::id::DeviceId;
use crate::bootstrap::LAUNCHER;
use crate::shm::system::{has_process_ended, pidfd_open};
use crate::variables::set;

/// The variable that holds the [`Assignment`].
pub(super) const DEVICE: &str = "SHMCCL_DEVICE";

/// The properties of a device that a coordinator's process starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Assignment {
    pub(super) memory: u64,
    pub(super) timeout: Duration,
    pub(super) core: Option<usize>,
    /// How long the device waits for another coordinator when its own was killed; `None` where it
    /// ends with the process that has started it.
    pub(super) outlives: Option<Duration>,
}

impl Assignment {
    /// Returns the variables of the environment by which a process learns of it.
    pub(super) fn variables(&self, directory: &RuntimeDirectory) -> [(&'static str, OsString); 3] {
        let text = serde_json::to_string(self).expect("numbers have nothing that JSON has not");
        [
            (DIRECTORY, directory.path().into()),
            (DEVICE, text.into()),
            (LAUNCHER, std::process::id().to_string().into()),
        ]
    }
}

/// A living process that was started as a device of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartedDevice {
    pub(super) device: DeviceId,
    pub(super) assignment: Assignment,
    /// Whether the process that has started it is dead. Until then that process may be about to end
    /// it.
    pub(super) is_orphan: bool,
}

impl StartedDevice {
    /// Finds all devices of the coordinator of `directory`, whether they are registered or not.
    ///
    /// A process that has ended is not found, even before its parent has waited for it. Children of
    /// a device have its environment, and are not counted as long as the device lives.
    ///
    /// # Errors
    /// The system's, when it lists no processes.
    pub(super) fn all(directory: &RuntimeDirectory) -> std::io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            all.extend(number.and_then(|number| Self::of(DeviceId::new(number), directory)));
        }
        let devices: Vec<_> = all.iter().map(|it| it.device).collect();
        // A device may have another device as its launcher; then it is no orphan.
        let is_child = |it: &Self| {
            it.is_orphan
                && parent_of(it.device).is_some_and(|parent| devices.contains(&DeviceId::new(parent)))
        };
        all.retain(|it| !is_child(it));
        Ok(all)
    }

    /// Returns `process`, if it was started as a device of the coordinator of `directory`.
    pub(super) fn of(process: DeviceId, directory: &RuntimeDirectory) -> Option<Self> {
        let environment = ProcessEnvironment::of(process)?;
        let named = Path::new(environment.value(DIRECTORY)?);
        // As the process finds the directory, however it was named.
        if !is_same(&environment.resolve(named), directory.path()) {
            return None;
        }
        let assignment = serde_json::from_slice(environment.value(DEVICE)?.as_bytes()).ok()?;
        let launcher: u32 = environment.value(LAUNCHER)?.to_str()?.parse().ok()?;
        let is_orphan = parent_of(process).is_some_and(|parent| parent != launcher);
        Some(Self { device: process, assignment, is_orphan })
    }

    /// Returns a descriptor of the process, if it lives and has the same assignment.
    pub(super) fn hold(self, directory: &RuntimeDirectory) -> Option<OwnedFd> {
        let process = pidfd_open(Pid::from_raw(self.device.get().cast_signed())).ok()?;
        // Once it is held, no later process can have its number.
        let now = Self::of(self.device, directory)?;
        (now.assignment == self.assignment).then_some(process)
    }
}

/// The registered devices that this coordinator may kill: its process, or one before it, has
/// started them.
///
/// They are held from the moment that they register. Of a process that hangs for good, the system
/// may not show the memory any more, and so not the environment.
#[derive(Debug)]
pub(super) struct KillableDevices {
    directory: RuntimeDirectory,
    held: BTreeMap<DeviceId, OwnedFd>,
}

impl KillableDevices {
    pub(super) fn new(directory: &RuntimeDirectory) -> Self {
        Self { directory: directory.clone(), held: BTreeMap::new() }
    }

    /// Notes that `device` has registered.
    pub(super) fn add(&mut self, device: DeviceId) {
        self.held.remove(&device);
        self.held.extend(self.hold(device).map(|process| (device, process)));
    }

    pub(super) fn forget(&mut self, device: DeviceId) {
        self.held.remove(&device);
    }

    /// Takes out the process of a device, if it lives and may be killed.
    pub(super) fn take(&mut self, device: DeviceId) -> Option<OwnedFd> {
        // A device that has never come back to this coordinator has not registered with it.
        self.held.remove(&device).or_else(|| self.hold(device))
    }

    fn hold(&self, device: DeviceId) -> Option<OwnedFd> {
        StartedDevice::of(device, &self.directory)?.hold(&self.directory)
    }
}

/// Returns whether the process of a device has ended, be it waited for or not. A process that the
/// system does not show counts as living.
pub(super) fn is_dead(device: DeviceId) -> bool {
    has_process_ended(device.get())
}

/// Returns whether this process was started as a device.
pub(super) fn is_device() -> bool {
    set(DEVICE).is_some()
}

/// Returns whether both are one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    match (file(one), file(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

fn parent_of(process: DeviceId) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use nix::sys::signal::{Signal, kill};

    use super::*;
    use crate::testing::wait_until;

    #[test]
    fn what_a_device_has_started_is_no_device() {
        let path = std::env::temp_dir().join(format!("shmccl-appointed-child-{}", std::process::id()));
        let directory = RuntimeDirectory::at(&path).unwrap();
        let (memory, timeout, core) = (4096, Duration::from_secs(1), None);
        let assignment = Assignment { memory, timeout, core, outlives: Some(timeout) };
        let mut command = Command::new("sh");
        // A child of its child as well.
        command
            .args(["-c", "sh -c 'sleep 1000 & echo $!; wait' & wait"])
            .envs(assignment.variables(&directory));
        let mut device = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut started = String::new();
        BufReader::new(device.stdout.take().unwrap()).read_line(&mut started).unwrap();
        let started: u32 = started.trim().parse().unwrap();
        let found = StartedDevice::all(&directory).unwrap();
        // Those who wait for it end as well.
        kill(Pid::from_raw(started.cast_signed()), Signal::SIGKILL).unwrap();
        let expected = DeviceId::new(device.id());
        device.wait().unwrap();
        std::fs::remove_dir_all(path).unwrap();
        assert_eq!(found, [StartedDevice { device: expected, assignment, is_orphan: false }]);
    }

    #[test]
    fn a_device_that_was_killed_is_dead_whether_anybody_has_waited_for_it_or_not() {
        assert!(!is_dead(DeviceId::new(std::process::id())));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let device = DeviceId::new(child.id());
        assert!(!is_dead(device));
        child.kill().unwrap();
        wait_until("it has ended", || is_dead(device));
        child.wait().unwrap();
        assert!(is_dead(device));
    }
}
