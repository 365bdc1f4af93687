//! Signs of life, and devices that are dropped for want of them.

use super::{Device, World};
use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::Event;

/// How long a device gives no sign of life before it counts as lost by that, at least.
pub(super) const SILENCE_MS: u64 = 1600;

impl World {
    /// Devices that can give signs of life.
    pub(super) fn give_signs(&mut self) -> Result<(), String> {
        let is_up =
            |(id, device): (&DeviceId, &Device)| (!device.is_stopped && device.link.is_some()).then_some(*id);
        for device in self.devices.iter().filter_map(is_up).collect::<Vec<_>>() {
            if self.known.contains_key(&device) {
                self.signs.insert(device, self.now_ms);
                self.happen(Event::Beat { device })?;
            }
        }
        Ok(())
    }

    /// A device is dropped for a reason only.
    pub(super) fn drop_device(
        &mut self,
        device: DeviceId,
        has_left_orders_unheard: bool,
    ) -> Result<(), String> {
        let silent_ms = self.now_ms - self.signs.get(&device).copied().unwrap_or(self.now_ms);
        if !has_left_orders_unheard {
            if silent_ms < SILENCE_MS {
                return Err(format!(
                    "device {device} was dropped, and gave a sign of life {silent_ms} ms ago"
                ));
            }
            self.seen.insert("no sign of life");
        }
        self.seen.insert("hang");
        self.dropped.insert(device);
        self.known.remove(&device);
        if let Some(device) = self.devices.get_mut(&device) {
            device.link = None;
            device.inbox.clear();
        }
        Ok(())
    }
}
