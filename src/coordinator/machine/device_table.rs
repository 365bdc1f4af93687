//! The devices that are connected: what each last said, what it was last told, and whose it is.

use std::collections::BTreeMap;

use super::CoordinatorMachine;
use super::comm::Comm;
use crate::coordinator::call::AddressRange;
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::order::{DeviceMembership, DeviceOrder, DevicePhase, DeviceReport};
use crate::launch::{BeatHistory, HangRule};

/// How often a device may wait for others in a row while it does what it was told: until all have come, have made what they share, and
/// have seen it, and once more where one was lost meanwhile.
const WAITS: u64 = 4;

/// All devices that are connected.
#[derive(Debug, Default)]
pub(crate) struct DeviceTable {
    devices: BTreeMap<DeviceId, DeviceRecord>,
}

/// A device that is connected.
#[derive(Debug)]
pub(crate) struct DeviceRecord {
    pub(crate) range: AddressRange,
    /// Where its memory can be reached.
    pub(crate) socket: String,
    pub(crate) report: DeviceReport,
    /// The communicator that it was given to.
    pub(crate) owner: Option<CommId>,
    /// When it came.
    added_ms: u64,
    /// What it was told last, and when.
    last_order: Option<(DeviceOrder, u64)>,
    /// How many orders were sent over this connection.
    sent: u64,
    /// When the oldest order was sent that it has not heard, as far as is known.
    pub(crate) unheard_since: Option<u64>,
    /// Whether it has given a sign of life since the last look.
    has_beaten: bool,
    looks: BeatHistory,
}

impl DeviceRecord {
    /// Whether its report tells what all orders have led to so far.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.report.heard == self.sent
    }

    /// Whether the last thing that it was told was to come to this epoch of `comm`.
    pub(crate) fn is_told_to_come(&self, comm: CommId, epoch: u64) -> bool {
        match self.last_order.as_ref().map(|(order, _)| order) {
            Some(DeviceOrder::Host(formation) | DeviceOrder::Join { formation, .. }) => {
                (formation.comm, formation.epoch) == (comm, epoch)
            }
            _ => false,
        }
    }

    /// When it hangs that is somebody's and has not done by then what it was told, though its main thread may live; `None` where
    /// that is done, or is a group, which takes as long as it takes. What it can do alone, and ending what it is in, may take
    /// `patience_ms`; what it does with others as long as they are waited for besides, which may be several times in a row.
    fn due_ms(&self, patience_ms: u64) -> Option<u64> {
        let (Some(DeviceMembership { formation, phase, .. }), Some(_)) =
            (&self.report.membership, self.owner)
        else {
            return None;
        };
        // What it is in may be what another coordinator has told it, before it came.
        let (order, since) =
            self.last_order.as_ref().map_or((None, self.added_ms), |(order, at)| (Some(order), *at));
        let alone_ms = since.saturating_add(patience_ms);
        let together_ms = alone_ms.saturating_add(self.report.timeout_ms.saturating_mul(WAITS));
        match (order, phase) {
            (Some(DeviceOrder::Leave { comm, gracefully: false }), _) if *comm == formation.comm => {
                Some(alone_ms)
            }
            (_, DevicePhase::Hosting { id: None }) => Some(alone_ms),
            (
                _,
                DevicePhase::Joining { .. }
                | DevicePhase::Growing { .. }
                | DevicePhase::GoingOn { .. }
                | DevicePhase::Leaving,
            ) => Some(together_ms),
            (Some(DeviceOrder::Leave { comm, .. }), _) if *comm == formation.comm => Some(alone_ms),
            (Some(DeviceOrder::GoOn { comm, epoch, attempt, .. }), phase)
                if (*comm, *epoch) == (formation.comm, formation.epoch) =>
            {
                let is_done = matches!(phase, DevicePhase::Failed { attempt: tried, .. } if tried >= attempt);
                (!is_done).then_some(alone_ms)
            }
            _ => None,
        }
    }

    /// Whether it can be given to a new communicator.
    pub(crate) fn is_free(&self) -> bool {
        self.owner.is_none() && self.is_out_of_all()
    }

    /// Whether it belongs to nothing, and was not told to.
    pub(crate) fn is_out_of_all(&self) -> bool {
        self.report.membership.is_none() && self.has_heard_all()
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

    pub(crate) fn add(
        &mut self,
        device: DeviceId,
        memory: (AddressRange, String),
        report: DeviceReport,
        now_ms: u64,
    ) {
        let (range, socket) = memory;
        let new = DeviceRecord {
            range,
            socket,
            report,
            owner: None,
            added_ms: now_ms,
            last_order: None,
            sent: 0,
            unheard_since: None,
            has_beaten: true,
            looks: BeatHistory::default(),
        };
        self.devices.insert(device, new);
    }

    /// Removes a device. Returns whose it was, if it was there.
    pub(crate) fn remove(&mut self, device: DeviceId) -> Option<Option<CommId>> {
        self.devices.remove(&device).map(|device| device.owner)
    }

    /// Takes a report, unless a newer one has come before.
    pub(crate) fn report(&mut self, device: DeviceId, report: DeviceReport) -> bool {
        let Some(device) = self.devices.get_mut(&device) else { return false };
        if report.version <= device.report.version || report.heard > device.sent {
            return false;
        }
        device.report = report;
        device.has_beaten = true;
        if device.has_heard_all() {
            device.unheard_since = None;
        }
        true
    }

    /// Takes a sign of life.
    pub(crate) fn beat(&mut self, device: DeviceId) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.has_beaten = true;
        }
    }

    /// Looks for signs of life. Returns who hangs.
    pub(crate) fn look(&mut self, rule: HangRule) -> Vec<DeviceId> {
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

    /// Takes a device from `owner`, if it is there and its.
    pub(crate) fn take_back(&mut self, device: DeviceId, owner: CommId) {
        if let Some(device) = self.devices.get_mut(&device).filter(|device| device.owner == Some(owner)) {
            device.owner = None;
        }
    }

    /// Notes an order. Returns whether it is to be sent: it is not the one that was sent last, and there is somebody to hear it.
    pub(crate) fn order(&mut self, device: DeviceId, order: &DeviceOrder, now_ms: u64) -> bool {
        let Some(device) = self.devices.get_mut(&device) else { return false };
        if device.last_order.as_ref().is_some_and(|(last, _)| last == order) {
            return false;
        }
        device.last_order = Some((order.clone(), now_ms));
        device.sent += 1;
        device.unheard_since.get_or_insert(now_ms);
        true
    }

    /// Where `device` says that it is in `comm`, of which it is a member and nobody else's.
    pub(crate) fn membership(&self, device: DeviceId, comm: CommId) -> Option<&DeviceMembership> {
        let device = self.devices.get(&device).filter(|device| device.owner == Some(comm))?;
        device.report.membership.as_ref().filter(|membership| membership.formation.comm == comm)
    }

    /// Where `member` says that it is in `comm`, unless it leaves or has left: then it is taken back, and lost to the others.
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
        // What was taken back is a member no more.
        self.membership(member, comm.id)
    }

    /// How far `device` says that it is in `epoch` of `comm`.
    pub(crate) fn phase(&self, device: DeviceId, comm: CommId, epoch: u64) -> Option<&DevicePhase> {
        let membership = self.membership(device, comm)?;
        (membership.formation.epoch == epoch).then_some(&membership.phase)
    }

    /// Those that can be given to a communicator.
    pub(crate) fn free(&self) -> Vec<DeviceId> {
        self.iter().filter(|(_, device)| device.is_free()).map(|(id, _)| id).collect()
    }

    /// Who has left an order unheard for `patience_ms`.
    pub(crate) fn silent(&self, now_ms: u64, patience_ms: u64) -> Vec<DeviceId> {
        let is_silent = |device: &DeviceRecord| {
            device.unheard_since.is_some_and(|since| now_ms >= since.saturating_add(patience_ms))
        };
        self.iter().filter(|(_, device)| is_silent(device)).map(|(id, _)| id).collect()
    }

    /// Who has not done for too long what it was told.
    pub(crate) fn stuck(&self, now_ms: u64, patience_ms: u64) -> Vec<DeviceId> {
        let is_stuck = |device: &DeviceRecord| device.due_ms(patience_ms).is_some_and(|due| now_ms >= due);
        self.iter().filter(|(_, device)| is_stuck(device)).map(|(id, _)| id).collect()
    }

    /// When the next one is to have done it.
    pub(crate) fn next_due_ms(&self, patience_ms: u64) -> Option<u64> {
        self.devices.values().filter_map(|device| device.due_ms(patience_ms)).min()
    }

    pub(crate) fn oldest_unheard(&self) -> Option<u64> {
        self.devices.values().filter_map(|device| device.unheard_since).min()
    }
}

impl CoordinatorMachine {
    /// When it looks next, if there is anybody to look for.
    pub(super) fn next_look_ms(&self) -> Option<u64> {
        (self.settings.hang_rule.is_some() && self.pool.len() > 0).then_some(self.looks_ms)
    }

    /// Looks, if it is time. A look that comes late is one look.
    pub(super) fn look_for_signs(&mut self) {
        let Some(rule) = self.settings.hang_rule.filter(|_| self.now_ms >= self.looks_ms) else { return };
        self.looks_ms = self.now_ms.saturating_add(period_ms(rule));
        let hung: Vec<DeviceId> = self.pool.look(rule);
        for device in hung {
            self.give_up_on(device, format!("it hangs, without a sign of life in {rule}"));
        }
    }
}

fn period_ms(rule: HangRule) -> u64 {
    u64::try_from(rule.period().as_millis()).unwrap_or(u64::MAX).max(1)
}
