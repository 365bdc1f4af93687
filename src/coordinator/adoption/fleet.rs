//! Devices that a fleet has not started: their parent is dead, and whoever reaps them now tells nobody. A descriptor of the process says
//! when one has ended, and, where the system is new enough, how.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::crew::EndedDevice;
use super::{DeviceEnd, DeviceKind};
use crate::coordinator::device::StartedDevice;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::id::DeviceId;
use crate::process;
use crate::shm::system::pidfd_exit;

/// One of them.
#[derive(Debug)]
pub(super) struct AdoptedDevice {
    device: DeviceId,
    process: OwnedFd,
    kind: Arc<DeviceKind>,
    since: Instant,
}

impl AdoptedDevice {
    /// That device, if it lives.
    pub(super) fn hold(
        device: DeviceId,
        kind: &Arc<DeviceKind>,
        directory: &RuntimeDirectory,
    ) -> Option<Self> {
        let process = StartedDevice::of(device, directory)?.hold(directory)?;
        Some(Self { device, process, kind: Arc::clone(kind), since: Instant::now() })
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// How it has ended; `None` as long as that cannot be told yet.
    ///
    /// # Errors
    /// The system's, where it does not tell.
    pub(super) fn status(&self) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = pidfd_exit(self.as_fd())? {
            return Ok(Some(status));
        }
        // Whoever reaps it may take seconds. As long as nobody has, its number is its own.
        let status = process::exit_of_unreaped(self.device.get());
        Ok(pidfd_exit(self.as_fd())?.or(status))
    }

    /// It has ended, in this way as far as that is known.
    pub(super) fn bury(self, status: Option<ExitStatus>) -> EndedDevice {
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
