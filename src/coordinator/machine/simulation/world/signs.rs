//! Signs of life, workers that hang, and devices that are given up for either.

use super::{Broken, SimDevice, World};
use std::time::Duration;

use crate::coordinator::agent::DeviceTask;
use crate::coordinator::id::{ClientId, DeviceId};
use crate::coordinator::machine::CoordinatorEvent;
use crate::coordinator::request::Request;

/// How long a device gives no sign of life before it counts as lost by that, at least.
pub(super) const SILENCE_MS: u64 = 1600;

/// How long a device may leave an order unheard, or take for what it does alone.
pub(super) const PATIENCE_MS: u64 = 3000;

/// How long devices say that they wait for others.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the coordinator's process, or one before it, has started a device.
fn is_own(device: DeviceId) -> bool {
    device.get() % 2 == 1
}

impl World {
    /// Devices that can give signs of life.
    pub(super) fn give_signs(&mut self) -> Result<(), String> {
        let is_up = |(id, device): (&DeviceId, &SimDevice)| {
            (!device.is_stopped && device.link.is_some()).then_some(*id)
        };
        for device in self.devices.iter().filter_map(is_up).collect::<Vec<_>>() {
            if self.known.contains_key(&device) {
                self.signs.insert(device, self.now_ms);
                self.happen(CoordinatorEvent::Heartbeat { device })?;
            }
        }
        Ok(())
    }

    /// The worker of a device hangs in what it does, and does not come out of it.
    pub(super) fn stick(&mut self) {
        let is_busy = |(id, device): (&DeviceId, &SimDevice)| device.task.is_some().then_some(*id);
        let busy: Vec<_> = self.devices.iter().filter_map(is_busy).collect();
        let Some(id) = self.random.pick(&busy).filter(|_| self.random.once_in(2)) else { return };
        self.note(|| format!("the worker of device {id} hangs"));
        self.devices.entry(id).and_modify(|device| device.is_stuck = true);
    }

    /// What is executed has no end that anybody could know: a client loses patience with a group that hangs.
    pub(super) fn give_up_on_what_is_stuck(&mut self) -> Result<(), String> {
        let is_in_group =
            |device: &&SimDevice| device.is_stuck && matches!(device.task, Some(DeviceTask::Run { .. }));
        let hanging = self.devices.values().filter(is_in_group).filter_map(|device| device.agent.comm());
        for comm in hanging.collect::<std::collections::BTreeSet<_>>() {
            let number = self.requests;
            if self.machine.as_ref().is_some_and(|machine| machine.comms.contains_key(&comm)) {
                self.requests += 1;
                self.asked.insert((0, number), 0);
                let (client, request) = (ClientId::new(0), Request::Destroy(comm));
                self.happen(CoordinatorEvent::Requested { client, number, request })?;
            }
        }
        Ok(())
    }

    /// A device is given up for a reason only.
    pub(super) fn give_up(&mut self, device: DeviceId, has_left_orders_unheard: bool) -> Result<(), String> {
        if !self.known.contains_key(&device) {
            return self.give_up_unknown(device);
        }
        let silent_ms = self.now_ms - self.signs.get(&device).copied().unwrap_or(self.now_ms);
        let told_ms = self.now_ms - self.told.get(&device).copied().unwrap_or(self.now_ms);
        let is_stuck = self.devices.get(&device).is_some_and(|device| device.is_stuck);
        let is_busy = self.devices.get(&device).is_some_and(|device| device.task.is_some())
            || self.mail.iter().any(|(sender, ..)| *sender == device);
        match (has_left_orders_unheard, silent_ms < SILENCE_MS) {
            (false, false) => _ = self.seen.insert("no sign of life"),
            (false, true) if told_ms < PATIENCE_MS || !is_busy => {
                return Err(format!(
                    "device {device} was dropped, gave a sign of life {silent_ms} ms ago, and was told something {told_ms} ms ago"
                ));
            }
            (false, true) if is_stuck => _ = self.seen.insert("stuck"),
            _ => {}
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

    /// A device that this coordinator has never known, as it has not come back, is given up when it has had the time for it.
    fn give_up_unknown(&mut self, device: DeviceId) -> Result<(), String> {
        let waited_ms = self.now_ms - self.began_ms;
        if waited_ms < PATIENCE_MS {
            return Err(format!("device {device} was given up when it had {waited_ms} ms to come back"));
        }
        self.seen.insert("never came back");
        Ok(())
    }

    /// What the process of a coordinator does with a device that is given up, and whoever has started that in its place.
    pub(super) fn kill_hung(&mut self, device: DeviceId, kills: bool) -> Result<(), String> {
        if kills == self.spares_hung {
            return Err(format!("device {device} hangs, and is killed: {kills}"));
        }
        if !kills || !is_own(device) {
            self.seen.insert("hung and spared");
            return Ok(());
        }
        self.killed.insert(device);
        if self.broken == Some(Broken::HungLeft) {
            return Ok(());
        }
        if self.devices.remove(&device).is_some() {
            self.seen.insert("hung and killed");
            self.network.die(device);
            self.start_device();
        }
        Ok(())
    }
}
