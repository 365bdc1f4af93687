//! What a process is told that was started to be a device: by its environment, so that any program can be one.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};
use serde::{Deserialize, Serialize};

use super::environment::ProcessEnvironment;
use super::{Device, DeviceOptions, OnCoordinatorLoss};
use crate::bootstrap::{LAUNCHER, bind_to_launcher};
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::id::DeviceId;
use crate::error::{Error, Result};
use crate::heap::MIN_ADDRESS;
use crate::shm::system::pidfd_open;

/// The directory of the coordinator.
pub(in crate::coordinator) const POOL: &str = "SHMCCL_POOL";

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
        StartedDevice::of(process, directory).map(|appointed| appointed.assignment)
    }

    /// Whether both are of the same kind, however long they wait.
    pub(in crate::coordinator) fn is_alike(&self, other: &Self) -> bool {
        Self { outlives: None, ..*self } == Self { outlives: None, ..*other }
    }
}

/// A living process that was started to be a device of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::coordinator) struct StartedDevice {
    pub(in crate::coordinator) device: DeviceId,
    pub(in crate::coordinator) assignment: Assignment,
    /// Whether the process that has started it is dead: as long as that lives it may be about to end the device.
    pub(in crate::coordinator) is_orphan: bool,
}

impl StartedDevice {
    /// All that belong to the coordinator of `directory`, whether they are registered or not. A process that has ended has no
    /// environment any more, whoever is yet to wait for it. What a device has started has the environment of that, and is none, as
    /// long as who has started it lives.
    ///
    /// # Errors
    /// The system's, when it lists no processes.
    pub(in crate::coordinator) fn all(directory: &RuntimeDirectory) -> std::io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            all.extend(number.and_then(|number| Self::of(DeviceId::new(number), directory)));
        }
        let devices: Vec<_> = all.iter().map(|it| it.device).collect();
        // Who has a device for its launcher is one all the same.
        let is_child = |it: &Self| {
            it.is_orphan
                && parent_of(it.device).is_some_and(|parent| devices.contains(&DeviceId::new(parent)))
        };
        all.retain(|it| !is_child(it));
        Ok(all)
    }

    pub(in crate::coordinator) fn of(process: DeviceId, directory: &RuntimeDirectory) -> Option<Self> {
        let environment = ProcessEnvironment::of(process)?;
        let told = Path::new(environment.value(POOL)?);
        // As the process finds it, whichever way it was named.
        if !is_same(&environment.resolve(told), directory.path()) {
            return None;
        }
        let assignment = serde_json::from_slice(environment.value(DEVICE)?.as_bytes()).ok()?;
        let launcher: u32 = environment.value(LAUNCHER)?.to_str()?.parse().ok()?;
        let is_orphan = parent_of(process).is_some_and(|parent| parent != launcher);
        Some(Self { device: process, assignment, is_orphan })
    }

    /// A descriptor of the process, if it lives and is still what it was.
    pub(in crate::coordinator) fn hold(self, directory: &RuntimeDirectory) -> Option<OwnedFd> {
        let process = pidfd_open(Pid::from_raw(self.device.get().cast_signed())).ok()?;
        // Looked at again once it is held: then it is no later process of this number.
        let now = Self::of(self.device, directory)?;
        (now.assignment == self.assignment).then_some(process)
    }
}

/// Whether both are one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    match (place(one), place(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

fn parent_of(process: DeviceId) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Whether another device of `directory` lives that waits for the next coordinator for longer than `limit`, or may.
pub(super) fn is_outlived(device: DeviceId, limit: Option<Duration>, directory: &RuntimeDirectory) -> bool {
    let waits = |it: &StartedDevice| it.device != device && it.assignment.outlives > limit;
    StartedDevice::all(directory).map_or(true, |all| all.iter().any(waits))
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
    /// in any case it ends by itself when its coordinator is gone. One that was told to [outlive](crate::coordinator::FleetOptions::outlives)
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
        let bond = outlives.map_or(OnCoordinatorLoss::Owned, OnCoordinatorLoss::Waits);
        Self::open(&RuntimeDirectory::at(directory)?, &options, bond).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::testing::wait_until;
    use nix::sys::signal::kill;

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
    fn devices_of_a_directory_are_found_however_it_was_named_until_they_end() {
        let path = std::env::temp_dir().join(format!("shmccl-appointed-{}", std::process::id()));
        let [this, other] = ["this", "other"].map(|name| {
            std::fs::create_dir_all(&path).unwrap();
            RuntimeDirectory::at(path.join(name)).unwrap()
        });
        let assignment = |seconds| Assignment {
            memory: 4096,
            timeout: Duration::from_secs(1),
            core: None,
            outlives: Some(Duration::from_secs(seconds)),
        };
        let start = |assignment: &Assignment, directory: &RuntimeDirectory| {
            let mut command = Command::new("sleep");
            command.arg("1000").envs(assignment.variables(directory));
            command.current_dir(&path).spawn().unwrap()
        };
        let mut near = start(&assignment(1), &this);
        let mut far = start(&assignment(9), &other);
        let mut same = start(&assignment(2), &RuntimeDirectory::unchecked("./this"));
        let found = || {
            let mut all = StartedDevice::all(&this).unwrap();
            all.sort_by_key(|it| it.device);
            all
        };
        let expected = [(near.id(), 1), (same.id(), 2)].map(|(process, seconds)| StartedDevice {
            device: DeviceId::new(process),
            assignment: assignment(seconds),
            is_orphan: false,
        });
        wait_until("they have become what they are", || found() == expected);
        let waits = |process: u32, seconds| {
            is_outlived(DeviceId::new(process), Some(Duration::from_secs(seconds)), &this)
        };
        assert!(waits(near.id(), 1), "the other one waits for two seconds");
        assert!(!waits(same.id(), 2) && !waits(near.id(), 2), "whoever waits as long gives up as well");
        near.kill().unwrap();
        wait_until("one has ended", || found() == expected[1..]);
        [&mut same, &mut far].into_iter().for_each(|child| child.kill().unwrap());
        [near, same, far].iter_mut().for_each(|child| _ = child.wait().unwrap());
        std::fs::remove_dir_all(path).unwrap();
    }
}
