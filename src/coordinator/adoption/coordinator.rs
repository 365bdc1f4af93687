//! The devices of a coordinator that was killed, which come back to the one that follows it.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use super::Coordinator;
use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::CoordinatorEvent;
use crate::error::Result;
use crate::shm::state_of_process;

/// How often it is looked whether devices live that are waited for.
const LOOK: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Serves until devices of the one before it have had the time to come back, where that was killed. Returns who is there then, and
    /// who lives and is in a communicator with those, or `None` when it was interrupted meanwhile.
    ///
    /// # Errors
    /// Those of [`Coordinator::serve`].
    pub fn gather(&mut self) -> Result<Option<Vec<DeviceId>>> {
        if self.occupied.follows_dead {
            let now_ms = self.now_ms();
            self.handle(CoordinatorEvent::Tick { now_ms });
            while !self.machine.is_open() {
                if self.serve_once()? {
                    return Ok(None);
                }
            }
            self.miss();
        }
        let present = self.devices.keys().copied().chain(self.machine.awaited());
        Ok(Some(present.collect()))
    }

    /// Looks, if it is time, which of the devices that are to come back are dead.
    pub(super) fn miss_now_and_then(&mut self) {
        if self.looked_for.elapsed() >= LOOK && self.machine.is_open() {
            self.looked_for = Instant::now();
            self.miss();
        }
    }

    /// Looks which of the devices that are to come back are dead: nobody waits for those.
    fn miss(&mut self) {
        for device in self.machine.awaited() {
            if is_dead(device) {
                self.handle(CoordinatorEvent::Gone { device });
            }
        }
    }
}

/// Whether there is no process of this number, which is the device's, or it has ended and nobody has waited for it. One of which
/// that cannot be told lives.
pub(in crate::coordinator) fn is_dead(device: DeviceId) -> bool {
    match std::fs::read_to_string(format!("/proc/{device}/stat")) {
        Ok(stat) => matches!(state_of_process(&stat), Some("Z" | "X")),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::testing::wait_until;

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
