//! A coordinator that follows a dead one waits for the devices of that to come back, and ends those that
//! are left when it ends itself.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::coordinator::assignment::{StartedDevice, is_dead};
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::error::CoordinatorError;
use crate::coordinator::fleet::terminate;
use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::CoordinatorEvent;
use crate::coordinator::service::Coordinator;

/// How often it is checked whether the devices that may come back live.
const CHECK: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Serves until the devices of a killed predecessor have had the time to come back.
    ///
    /// Returns the devices that have registered then, and the living ones that are in a communicator
    /// with those; `None` when it was interrupted meanwhile. Returns at once where the predecessor has
    /// ended in order.
    ///
    /// # Errors
    /// Those of [`Coordinator::serve`].
    pub fn await_adoption(&mut self) -> Result<Option<Vec<DeviceId>>, CoordinatorError> {
        if self.claimed.follows_dead {
            let now_ms = self.now_ms();
            self.handle(CoordinatorEvent::Tick { now_ms });
            while !self.machine.is_open() {
                if self.serve_once()? {
                    return Ok(None);
                }
            }
            self.drop_dead();
        }
        let present = self.devices.keys().copied().chain(self.machine.awaited());
        Ok(Some(present.collect()))
    }

    /// Drops the dead among the devices that may come back, if it is time for that.
    pub(in crate::coordinator) fn drop_dead_in_time(&mut self) {
        if self.checked_at.elapsed() >= CHECK && self.machine.is_open() {
            self.checked_at = Instant::now();
            self.drop_dead();
        }
    }

    fn drop_dead(&mut self) {
        for device in self.machine.awaited() {
            if is_dead(device) {
                self.handle(CoordinatorEvent::Gone { device });
            }
        }
    }
}

/// Ends the devices of `directory` that have outlived the process which has started them, registered or
/// not, and waits until they have ended.
///
/// The caller holds the lock of the directory. A coordinator that ends in order ends these devices as it
/// ends its own.
pub(in crate::coordinator) fn end_orphans(directory: &RuntimeDirectory) {
    let is_left = |it: &StartedDevice| it.is_orphan && it.assignment.outlives.is_some();
    let left = StartedDevice::all(directory).unwrap_or_default().into_iter().filter(is_left);
    let living: Vec<OwnedFd> = left.filter_map(|it| it.hold(directory)).collect();
    terminate(&living);
}
