//! The devices of a coordinator that was killed, which come back to the one that follows it.

use super::Coordinator;
use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::Event;
use crate::error::Result;

impl Coordinator {
    /// Serves until devices of the one before it have had the time to come back, where that was killed. Returns who is there then, or
    /// `None` when it was interrupted meanwhile.
    ///
    /// # Errors
    /// Those of [`Coordinator::serve`].
    pub fn gather(&mut self) -> Result<Option<Vec<DeviceId>>> {
        if self.occupied.follows_dead {
            let now_ms = self.now_ms();
            self.handle(Event::Tick { now_ms });
            while !self.machine.is_open() {
                if self.serve_once()? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(self.devices.keys().copied().collect()))
    }
}
