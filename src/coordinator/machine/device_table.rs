//! The connected devices: the last report and the last order of each, and the communicator that it
//! was given to.

use std::collections::BTreeMap;

use super::CoordinatorMachine;
use super::comm::Comm;
use crate::coordinator::error::RequestError;
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::order::{DeviceMembership, DeviceOrder, DevicePhase, DeviceReport};
use crate::launch::{BeatHistory, HangRule};

/// How often a device may wait for others in a row while it does an order. It waits until all have
/// come, have made what they share, and have seen it. It waits once more where one was lost
/// meanwhile.
const WAITS: u64 = 4;

/// All connected devices.
#[derive(Debug, Default)]
pub(crate) struct DeviceTable {
    devices: BTreeMap<DeviceId, DeviceRecord>,
}

/// A connected device.
#[derive(Debug, Default)]
pub(crate) struct DeviceRecord {
    pub(crate) report: DeviceReport,
    /// The communicator that it was given to.
    pub(crate) owner: Option<CommId>,
    /// When it has registered.
    added_ms: u64,
    /// The last order, and when that was sent.
    last_order: Option<(DeviceOrder, u64)>,
    /// The number of orders that were sent over this connection.
    sent: u64,
    /// When the oldest order was sent that its reports do not confirm.
    pub(crate) unconfirmed_since: Option<u64>,
    /// Whether a heartbeat has come since the last check.
    has_beaten: bool,
    looks: BeatHistory,
}

impl DeviceRecord {
    /// Returns whether its report is later than all orders.
    pub(crate) fn has_confirmed_all(&self) -> bool {
        self.report.heard == self.sent
    }

    /// Returns whether its last order was to join this epoch of `comm`.
    pub(crate) fn is_ordered_to_join(&self, comm: CommId, epoch: u64) -> bool {
        match self.last_order.as_ref().map(|(order, _)| order) {
            Some(DeviceOrder::Host(formation) | DeviceOrder::Join { formation, .. }) => {
                (formation.comm, formation.epoch) == (comm, epoch)
            }
            _ => false,
        }
    }

    /// Returns when the device counts as hanging if it has not confirmed all orders by then.
    fn confirmation_due_ms(&self, patience_ms: u64) -> Option<u64> {
        self.unconfirmed_since.map(|since| since.saturating_add(patience_ms))
    }

    /// Returns when the device counts as hanging if it has not done its order by then, although its
    /// main thread may live; `None` where the order is done, the device has no owner, or the order
    /// is a group, which may take any time.
    ///
    /// What it does alone, and aborting an epoch, may take `patience_ms`. What it does with others
    /// may take its timeout [`WAITS`] times in addition.
    fn due_ms(&self, patience_ms: u64) -> Option<u64> {
        let (Some(DeviceMembership { formation, phase, .. }), Some(_)) =
            (&self.report.membership, self.owner)
        else {
            return None;
        };
        // Its phase may be the effect of an order of another coordinator, before it has registered.
        let (order, since) =
            self.last_order.as_ref().map_or((None, self.added_ms), |(order, at)| (Some(order), *at));
        let alone_ms = since.saturating_add(patience_ms);
        let together_ms = alone_ms.saturating_add(self.report.timeout_ms.saturating_mul(WAITS));
        let is_with_others = matches!(
            phase,
            DevicePhase::Joining(_)
                | DevicePhase::Growing { .. }
                | DevicePhase::GoingOn(_)
                | DevicePhase::Leaving
        );
        match order {
            Some(DeviceOrder::Leave { comm, gracefully }) if *comm == formation.comm => {
                Some(if *gracefully && is_with_others { together_ms } else { alone_ms })
            }
            _ if is_with_others => Some(together_ms),
            _ if *phase == DevicePhase::Hosting(None) => Some(alone_ms),
            Some(DeviceOrder::GoOn { comm, epoch, attempt, .. })
                if (*comm, *epoch) == (formation.comm, formation.epoch) =>
            {
                let is_done = matches!(phase, DevicePhase::Failed { attempt: tried, .. } if tried >= attempt);
                (!is_done).then_some(alone_ms)
            }
            _ => None,
        }
    }

    /// Returns whether it can be given to a new communicator.
    pub(crate) fn is_free(&self) -> bool {
        self.owner.is_none() && self.is_out_of_all()
    }

    /// Returns whether it is in no communicator, and was not ordered to be.
    pub(crate) fn is_out_of_all(&self) -> bool {
        self.report.membership.is_none() && self.has_confirmed_all()
    }
}

impl DeviceTable {
    pub(crate) fn len(&self) -> usize {
        self.devices.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (DeviceId, &DeviceRecord)> {
        self.devices.iter().map(|(id, device)| (*id, device))
    }

    pub(crate) fn get(&self, device: DeviceId) -> Option<&DeviceRecord> {
        self.devices.get(&device)
    }

    pub(crate) fn add(&mut self, device: DeviceId, report: DeviceReport, added_ms: u64) {
        let new = DeviceRecord { report, added_ms, has_beaten: true, ..DeviceRecord::default() };
        self.devices.insert(device, new);
    }

    /// Removes a device. Returns the communicator that it was given to, if it was there.
    pub(crate) fn remove(&mut self, device: DeviceId) -> Option<Option<CommId>> {
        self.devices.remove(&device).map(|device| device.owner)
    }

    /// Takes a report. Returns whether it is the newest. A device keeps its addresses and its
    /// socket, which calls were checked against, for as long as it is registered.
    pub(crate) fn report(&mut self, device: DeviceId, report: DeviceReport) -> bool {
        let Some(device) = self.devices.get_mut(&device) else { return false };
        let is_new = report.version > device.report.version && report.heard <= device.sent;
        let is_there = (report.range, &report.socket) == (device.report.range, &device.report.socket);
        if !is_new || !is_there {
            return false;
        }
        device.report = report;
        device.has_beaten = true;
        if device.has_confirmed_all() {
            device.unconfirmed_since = None;
        }
        true
    }

    /// Takes a heartbeat.
    pub(crate) fn heartbeat(&mut self, device: DeviceId) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.has_beaten = true;
        }
    }

    /// Checks for heartbeats. Returns the devices that hang.
    pub(crate) fn check_heartbeats(&mut self, rule: HangRule) -> Vec<DeviceId> {
        let mut hung = Vec::new();
        for (id, device) in &mut self.devices {
            device.looks = device.looks.after(!std::mem::take(&mut device.has_beaten));
            hung.extend(rule.is_broken_by(device.looks).then_some(*id));
        }
        hung
    }

    pub(crate) fn give(&mut self, device: DeviceId, owner: CommId) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.owner = Some(owner);
        }
    }

    /// Takes a device from `owner`, if it was given to it.
    pub(crate) fn take_back(&mut self, device: DeviceId, owner: CommId) {
        if let Some(device) = self.devices.get_mut(&device).filter(|device| device.owner == Some(owner)) {
            device.owner = None;
        }
    }

    /// Notes an order. Returns whether it is to be sent: it differs from the last one, and the
    /// device is connected.
    pub(crate) fn order(&mut self, device: DeviceId, order: &DeviceOrder, now_ms: u64) -> bool {
        let Some(device) = self.devices.get_mut(&device) else { return false };
        if device.last_order.as_ref().is_some_and(|(last, _)| last == order) {
            return false;
        }
        device.last_order = Some((order.clone(), now_ms));
        device.sent += 1;
        device.unconfirmed_since.get_or_insert(now_ms);
        true
    }

    /// Returns the membership in `comm` that `device` reports, if it was given to `comm`.
    pub(crate) fn membership(&self, device: DeviceId, comm: CommId) -> Option<&DeviceMembership> {
        let device = self.devices.get(&device).filter(|device| device.owner == Some(comm))?;
        device.report.membership.as_ref().filter(|membership| membership.formation.comm == comm)
    }

    /// Returns the membership in `comm` that `member` reports. One that leaves or has left is taken
    /// back, and counts as lost.
    pub(crate) fn membership_or_loss(
        &mut self,
        member: DeviceId,
        comm: &mut Comm,
    ) -> Option<&DeviceMembership> {
        let is_in = |membership: &DeviceMembership| membership.phase != DevicePhase::Leaving;
        if !self.membership(member, comm.id).is_some_and(is_in) {
            self.take_back(member, comm.id);
            comm.lost.insert(member);
        }
        // `None` after it was taken back.
        self.membership(member, comm.id)
    }

    /// Returns the phase in `epoch` of `comm` that `device` reports.
    pub(crate) fn phase(&self, device: DeviceId, comm: CommId, epoch: u64) -> Option<&DevicePhase> {
        let membership = self.membership(device, comm)?;
        (membership.formation.epoch == epoch).then_some(&membership.phase)
    }

    /// Returns how many groups `device` reports to have executed, if it is idle in `epoch` of
    /// `comm`.
    pub(crate) fn groups_done(&self, device: DeviceId, comm: CommId, epoch: u64) -> Option<u64> {
        let is_idle = matches!(self.phase(device, comm, epoch), Some(DevicePhase::Ready(_)));
        self.membership(device, comm).filter(|_| is_idle).map(|membership| membership.groups)
    }

    /// Returns as many devices as are `asked` for that can be given to a communicator.
    ///
    /// # Errors
    /// [`RequestError::NotEnoughDevices`].
    pub(crate) fn some_free(&self, asked: u32) -> Result<Vec<DeviceId>, RequestError> {
        let free = self.free();
        let some = free.get(..asked as usize).map(<[DeviceId]>::to_vec);
        some.ok_or(RequestError::NotEnoughDevices { asked, free: free.len(), devices: self.len() })
    }

    /// Returns the devices that can be given to a communicator.
    pub(crate) fn free(&self) -> Vec<DeviceId> {
        self.iter().filter(|(_, device)| device.is_free()).map(|(id, _)| id).collect()
    }

    /// Returns the devices that hang, as they have left an order unconfirmed for `patience_ms`, or
    /// have not done it in time, and which of that it is.
    pub(crate) fn overdue(&self, now_ms: u64, patience_ms: u64) -> Vec<(DeviceId, String)> {
        let is_over = |due: Option<u64>| due.is_some_and(|due| now_ms >= due);
        let why = |(id, device): (DeviceId, &DeviceRecord)| {
            if is_over(device.confirmation_due_ms(patience_ms)) {
                Some((id, format!("it hangs, with an order unheard for {patience_ms} ms")))
            } else if is_over(device.due_ms(patience_ms)) {
                Some((id, "it hangs, and has not done its order in time".to_owned()))
            } else {
                None
            }
        };
        self.iter().filter_map(why).collect()
    }

    /// Returns when the next device is to have confirmed or done its order.
    pub(crate) fn next_due_ms(&self, patience_ms: u64) -> Option<u64> {
        let dues =
            |device: &DeviceRecord| [device.confirmation_due_ms(patience_ms), device.due_ms(patience_ms)];
        self.devices.values().flat_map(dues).flatten().min()
    }
}

impl CoordinatorMachine {
    /// Returns when heartbeats are checked next, if they are.
    pub(super) fn next_heartbeat_check_ms(&self) -> Option<u64> {
        (self.settings.hang_rule.is_some() && self.table.len() > 0).then_some(self.next_check_ms)
    }

    /// Checks for heartbeats, if it is time. A check that comes late counts as one.
    pub(super) fn check_heartbeats(&mut self) {
        let Some(rule) = self.settings.hang_rule.filter(|_| self.now_ms >= self.next_check_ms) else {
            return;
        };
        self.next_check_ms = self.now_ms.saturating_add(period_ms(rule));
        let hung: Vec<DeviceId> = self.table.check_heartbeats(rule);
        for device in hung {
            self.give_up_on(device, format!("it hangs, without a sign of life in {rule}"));
        }
    }
}

fn period_ms(rule: HangRule) -> u64 {
    u64::try_from(rule.period().as_millis()).unwrap_or(u64::MAX).max(1)
}
