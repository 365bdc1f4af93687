//! The devices that are connected: what each last said, what it was last told, and whose it is.

use std::collections::BTreeMap;

use super::comm::Comm;
use crate::coordinator::call::AddressRange;
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::order::{Membership, Order, Phase, Report};
use crate::launch::{BeatHistory, HangRule};

/// How often a device may wait for others in a row while it does what it was told: until all have come, have made what they share, and
/// have seen it, and once more where one was lost meanwhile.
const WAITS: u64 = 4;

/// All devices that are connected.
#[derive(Debug, Default)]
pub(super) struct Pool {
    devices: BTreeMap<DeviceId, Device>,
}

/// A device that is connected.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) range: AddressRange,
    /// Where its memory can be reached.
    pub(super) socket: String,
    pub(super) report: Report,
    /// The communicator that it was given to.
    pub(super) owner: Option<CommId>,
    /// When it came.
    added_ms: u64,
    /// What it was told last, and when.
    last_order: Option<(Order, u64)>,
    /// How many orders were sent over this connection.
    sent: u64,
    /// When the oldest order was sent that it has not heard, as far as is known.
    pub(super) unheard_since: Option<u64>,
    /// Whether it has given a sign of life since the last look.
    has_beaten: bool,
    looks: BeatHistory,
}

impl Device {
    /// Whether its report tells what all orders have led to so far.
    pub(super) fn has_heard_all(&self) -> bool {
        self.report.heard == self.sent
    }

    /// Whether the last thing that it was told was to come to this epoch of `comm`.
    pub(super) fn is_told_to_come(&self, comm: CommId, epoch: u64) -> bool {
        match self.last_order.as_ref().map(|(order, _)| order) {
            Some(Order::Host(formation) | Order::Join { formation, .. }) => {
                (formation.comm, formation.epoch) == (comm, epoch)
            }
            _ => false,
        }
    }

    /// When it hangs that is somebody's and has not done by then what it was told, though its main thread may live; `None` where
    /// that is done, or is a group, which takes as long as it takes. What it can do alone, and ending what it is in, may take
    /// `patience_ms`; what it does with others as long as they are waited for besides, which may be several times in a row.
    fn due_ms(&self, patience_ms: u64) -> Option<u64> {
        let (Some(Membership { formation, phase, .. }), Some(_)) = (&self.report.membership, self.owner)
        else {
            return None;
        };
        // What it is in may be what another coordinator has told it, before it came.
        let (order, since) =
            self.last_order.as_ref().map_or((None, self.added_ms), |(order, at)| (Some(order), *at));
        let alone_ms = since.saturating_add(patience_ms);
        let together_ms = alone_ms.saturating_add(self.report.timeout_ms.saturating_mul(WAITS));
        match (order, phase) {
            (Some(Order::Leave { comm, gracefully: false }), _) if *comm == formation.comm => Some(alone_ms),
            (_, Phase::Hosting { id: None }) => Some(alone_ms),
            (_, Phase::Joining { .. } | Phase::Growing { .. } | Phase::GoingOn { .. } | Phase::Leaving) => {
                Some(together_ms)
            }
            (Some(Order::Leave { comm, .. }), _) if *comm == formation.comm => Some(alone_ms),
            (Some(Order::GoOn { comm, epoch, attempt, .. }), phase)
                if (*comm, *epoch) == (formation.comm, formation.epoch) =>
            {
                let is_done = matches!(phase, Phase::Failed { attempt: tried, .. } if tried >= attempt);
                (!is_done).then_some(alone_ms)
            }
            _ => None,
        }
    }

    /// Whether it can be given to a new communicator.
    pub(super) fn is_free(&self) -> bool {
        self.owner.is_none() && self.is_out_of_all()
    }

    /// Whether it belongs to nothing, and was not told to.
    pub(super) fn is_out_of_all(&self) -> bool {
        self.report.membership.is_none() && self.has_heard_all()
    }
}

impl Pool {
    pub(super) fn len(&self) -> usize {
        self.devices.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        self.devices.iter().map(|(id, device)| (*id, device))
    }

    pub(super) fn get(&self, device: DeviceId) -> Option<&Device> {
        self.devices.get(&device)
    }

    pub(super) fn add(
        &mut self,
        device: DeviceId,
        memory: (AddressRange, String),
        report: Report,
        now_ms: u64,
    ) {
        let (range, socket) = memory;
        let new = Device {
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
    pub(super) fn remove(&mut self, device: DeviceId) -> Option<Option<CommId>> {
        self.devices.remove(&device).map(|device| device.owner)
    }

    /// Takes a report, unless a newer one has come before.
    pub(super) fn report(&mut self, device: DeviceId, report: Report) -> bool {
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
    pub(super) fn beat(&mut self, device: DeviceId) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.has_beaten = true;
        }
    }

    /// Looks for signs of life. Returns who hangs.
    pub(super) fn look(&mut self, rule: HangRule) -> Vec<DeviceId> {
        let mut hung = Vec::new();
        for (id, device) in &mut self.devices {
            device.looks = device.looks.after(!std::mem::take(&mut device.has_beaten));
            hung.extend(rule.is_broken_by(device.looks).then_some(*id));
        }
        hung
    }

    pub(super) fn give(&mut self, device: DeviceId, owner: CommId) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.owner = Some(owner);
        }
    }

    /// Takes a device from `owner`, if it is there and its.
    pub(super) fn take_back(&mut self, device: DeviceId, owner: CommId) {
        if let Some(device) = self.devices.get_mut(&device).filter(|device| device.owner == Some(owner)) {
            device.owner = None;
        }
    }

    /// Notes an order. Returns whether it is to be sent: it is not the one that was sent last, and there is somebody to hear it.
    pub(super) fn order(&mut self, device: DeviceId, order: &Order, now_ms: u64) -> bool {
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
    pub(super) fn membership(&self, device: DeviceId, comm: CommId) -> Option<&Membership> {
        let device = self.devices.get(&device).filter(|device| device.owner == Some(comm))?;
        device.report.membership.as_ref().filter(|membership| membership.formation.comm == comm)
    }

    /// Where `member` says that it is in `comm`, unless it leaves or has left: then it is taken back, and lost to the others.
    pub(super) fn membership_or_loss(&mut self, member: DeviceId, comm: &mut Comm) -> Option<&Membership> {
        let is_in = |membership: &Membership| membership.phase != Phase::Leaving;
        if !self.membership(member, comm.id).is_some_and(is_in) {
            self.take_back(member, comm.id);
            comm.lost.insert(member);
        }
        // What was taken back is a member no more.
        self.membership(member, comm.id)
    }

    /// How far `device` says that it is in `epoch` of `comm`.
    pub(super) fn phase(&self, device: DeviceId, comm: CommId, epoch: u64) -> Option<&Phase> {
        let membership = self.membership(device, comm)?;
        (membership.formation.epoch == epoch).then_some(&membership.phase)
    }

    /// Those that can be given to a communicator.
    pub(super) fn free(&self) -> Vec<DeviceId> {
        self.iter().filter(|(_, device)| device.is_free()).map(|(id, _)| id).collect()
    }

    /// Who has left an order unheard for `patience_ms`.
    pub(super) fn silent(&self, now_ms: u64, patience_ms: u64) -> Vec<DeviceId> {
        let is_silent = |device: &Device| {
            device.unheard_since.is_some_and(|since| now_ms >= since.saturating_add(patience_ms))
        };
        self.iter().filter(|(_, device)| is_silent(device)).map(|(id, _)| id).collect()
    }

    /// Who has not done for too long what it was told.
    pub(super) fn stuck(&self, now_ms: u64, patience_ms: u64) -> Vec<DeviceId> {
        let is_stuck = |device: &Device| device.due_ms(patience_ms).is_some_and(|due| now_ms >= due);
        self.iter().filter(|(_, device)| is_stuck(device)).map(|(id, _)| id).collect()
    }

    /// When the next one is to have done it.
    pub(super) fn next_due_ms(&self, patience_ms: u64) -> Option<u64> {
        self.devices.values().filter_map(|device| device.due_ms(patience_ms)).min()
    }

    pub(super) fn oldest_unheard(&self) -> Option<u64> {
        self.devices.values().filter_map(|device| device.unheard_since).min()
    }
}
