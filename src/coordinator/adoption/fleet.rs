//! Devices of a fleet that this process has not started: which of them there are, and how they end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Instant;

use crate::coordinator::assignment::StartedDevice;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::fleet::crew::EndedDevice;
use crate::coordinator::fleet::{DeviceEnd, DeviceKind};
use crate::coordinator::id::DeviceId;
use crate::process::{self, ProcessEnd};
use crate::shm::system::pidfd_exit;

/// The devices that a fleet still has to start, as [`DeviceKind::missing`] finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingDevices {
    /// The kinds, each with the number of devices to start, which may be 0, and those that are
    /// taken over.
    pub kinds: Vec<DeviceKind>,
    /// The living devices of any kind that have outlived their fleet and have not registered yet.
    /// They may be busy or stopped, and come back. A coordinator that ends in order ends them.
    pub coming: Vec<DeviceId>,
}

impl DeviceKind {
    /// Returns how many devices of each of `kinds` are still to be started, where `present` are
    /// there.
    ///
    /// Of `present`, those count that a fleet has started for `directory`. Those that are
    /// [coming](MissingDevices::coming) count as well.
    #[must_use]
    pub fn missing(kinds: &[Self], directory: &RuntimeDirectory, present: &[DeviceId]) -> MissingDevices {
        let of = |device: &DeviceId| StartedDevice::of(*device, directory);
        let mut found: Vec<_> = present.iter().filter_map(of).collect();
        let is_coming = |it: &StartedDevice| {
            it.is_orphan && it.assignment.outlives.is_some() && !present.contains(&it.device)
        };
        let mut coming = StartedDevice::all(directory).unwrap_or_default();
        coming.retain(is_coming);
        found.extend(&coming);
        let missing = kinds.iter().map(|kind| {
            // However long they outlive their coordinator.
            let is_alike = |it: &mut StartedDevice| kind.assignment(it.assignment.outlives) == it.assignment;
            let alike = found.extract_if(.., is_alike).take(kind.count);
            let taken_over: Vec<_> = alike.map(|it| it.device).collect();
            Self { count: kind.count - taken_over.len(), taken_over, ..kind.clone() }
        });
        MissingDevices { kinds: missing.collect(), coming: coming.iter().map(|it| it.device).collect() }
    }
}

/// A device of a fleet that another process has started, which is dead.
///
/// The process that reaps the device now reports nothing. A descriptor tells when the device has
/// ended and, from Linux 6.15 on, how.
#[derive(Debug)]
pub(in crate::coordinator) struct AdoptedDevice {
    device: DeviceId,
    process: OwnedFd,
    kind: Arc<DeviceKind>,
    since: Instant,
}

impl AdoptedDevice {
    /// Holds `device`, if it lives.
    pub(in crate::coordinator) fn hold(
        device: DeviceId,
        kind: &Arc<DeviceKind>,
        directory: &RuntimeDirectory,
    ) -> Option<Self> {
        let process = StartedDevice::of(device, directory)?.hold(directory)?;
        Some(Self { device, process, kind: Arc::clone(kind), since: Instant::now() })
    }

    pub(in crate::coordinator) fn has_ended(&self) -> bool {
        process::has_ended(self.as_fd())
    }

    /// Returns how the device has ended; `None` as long as that is not known yet.
    ///
    /// # Errors
    /// The system's, where it does not tell.
    pub(in crate::coordinator) fn status(&self) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = pidfd_exit(self.as_fd())? {
            return Ok(Some(status));
        }
        // It may take seconds until it is reaped. Until then no other process has its number.
        let status = process::exit_of_unreaped(self.device.get());
        Ok(pidfd_exit(self.as_fd())?.or(status))
    }

    /// Returns the end of the device, with this status as far as it is known.
    pub(in crate::coordinator) fn into_ended(self, status: ProcessEnd) -> EndedDevice {
        let Self { device, kind, since, .. } = self;
        let name = kind.name.clone();
        let end = DeviceEnd { device, name, status, was_restarted: false, was_taken_over: true, restarts: 0 };
        EndedDevice { end, kind, lived: since.elapsed() }
    }
}

impl AsFd for AdoptedDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}
