//! What outlives a coordinator that was killed, and how the next one takes it over.
//!
//! Devices go on with what they do when their coordinator dies. Those that were told to outlive it
//! wait for the next one, which learns from their reports which communicators there are. The rest
//! of the coordinator can be read without this folder. It touches these modules in these places
//! only:
//!
//! - [`device`](super::device), when it has lost its connection: [`search`] looks for the next
//!   coordinator, or ends the device.
//! - [`directory`](super::directory), where it is claimed or swept: [`directory`] has the lock, the
//!   socket and its janitor.
//! - [`service`](super::service), at its start and its end, and now and then: this file waits for
//!   devices to come back, and ends the orphans.
//! - [`machine`](super::machine), in the stage `Adopting`: [`machine`] rebuilds communicators from
//!   reports.
//! - [`fleet`](super::fleet), for [`DeviceKind::taken_over`](super::DeviceKind::taken_over):
//!   [`fleet`] counts and watches devices that the fleet has not started.
//!
//! A device, a process of its own, is found by its environment ([`assignment`](super::assignment)).
//! Its communicators are known only to the devices in them: each reports its whole state to every
//! coordinator that it connects with.
//!
//! Tried by its unit tests and `command coordinator::orphans:: coordinator::restarts::`.

pub(super) mod directory;
pub(super) mod fleet;
pub(super) mod machine;
pub(super) mod search;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::assignment::{StartedDevice, is_dead};
use super::directory::RuntimeDirectory;
use super::error::Result;
use super::fleet::{GRACE, terminate};
use super::id::DeviceId;
use super::machine::CoordinatorEvent;
use super::service::Coordinator;

/// How often it is checked whether the devices that may come back live.
const CHECK: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Serves until the devices of a killed predecessor have had the time to come back.
    ///
    /// Returns the devices that have registered then, and the living ones that are in a
    /// communicator with those; `None` when it was interrupted meanwhile. Returns at once where the
    /// predecessor has ended in order.
    ///
    /// # Errors
    /// Fails as [`Coordinator::serve`] does.
    pub fn await_adoption(&mut self) -> Result<Option<Vec<DeviceId>>> {
        if self.claimed.follows_dead {
            let now_ms = self.now_ms();
            self.handle(CoordinatorEvent::Tick(now_ms));
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
    pub(super) fn drop_dead_in_time(&mut self) {
        if self.checked_at.elapsed() >= CHECK && self.machine.is_open() {
            self.checked_at = Instant::now();
            self.drop_dead();
        }
    }

    fn drop_dead(&mut self) {
        for device in self.machine.awaited() {
            if is_dead(device) {
                self.handle(CoordinatorEvent::Gone(device));
            }
        }
    }
}

/// Ends the devices of `directory` that have outlived the process which has started them,
/// registered or not, and waits until they have ended.
///
/// The caller holds the lock of the directory. A coordinator that ends in order ends these devices
/// as it ends its own.
pub(super) fn end_orphans(directory: &RuntimeDirectory) {
    let is_left = |it: &StartedDevice| it.is_orphan && it.assignment.outlives.is_some();
    let left = StartedDevice::all(directory).unwrap_or_default().into_iter().filter(is_left);
    let living: Vec<OwnedFd> = left.filter_map(|it| it.hold(directory)).collect();
    terminate(&living, GRACE);
}
