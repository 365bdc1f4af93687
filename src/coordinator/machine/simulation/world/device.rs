//! Device processes: agents and their tasks, heartbeats, workers that hang, and devices that are
//! given up.

use std::collections::{BTreeSet, VecDeque};

use super::super::network::Position;
use super::{Broken, World};
use crate::coordinator::agent::{Agent, TaskOutcome};
use crate::coordinator::call::GroupWork;
use crate::coordinator::id::{ClientId, CommId, DeviceId};
use crate::coordinator::machine::{CoordinatorEvent, RequestId};
use crate::coordinator::order::{DeviceMembership, DeviceOrder, DevicePhase};
use crate::coordinator::request::ClientRequest;

/// The shortest time without heartbeats after which a device counts as lost.
pub(super) const SILENCE_MS: u64 = 1600;

/// How long a device may leave an order unconfirmed, or take for what it does alone.
pub(super) const PATIENCE_MS: u64 = 3000;

/// How long devices report that they wait for others.
pub(super) const TIMEOUT_MS: u64 = 1000;

/// A device process.
pub(in super::super) struct SimDevice {
    pub(in super::super) agent: Agent,
    /// The orders that are on their way to it.
    pub(in super::super) inbox: VecDeque<DeviceOrder>,
    /// The meeting at which its communicator was formed.
    pub(in super::super) job: Option<String>,
    pub(super) task: Option<DeviceOrder>,
    pub(in super::super) memory: SimMemory,
    pub(super) is_stopped: bool,
    /// Its worker hangs for ever, although it takes orders and sends heartbeats.
    pub(in super::super) is_stuck: bool,
    /// Its task is not to wait at a meeting any longer.
    pub(super) is_called_off: bool,
    /// The number of its connection, if it has one.
    pub(super) link: Option<u64>,
}

/// What groups have done to the memory of a device.
#[derive(Debug, Default)]
pub(in super::super) struct SimMemory {
    /// The groups whose results are in it.
    pub(in super::super) executed: Vec<u64>,
    /// The newest group, if it can be taken back.
    kept: Option<u64>,
}

impl SimMemory {
    /// Notes that a task begins.
    pub(super) fn begin(&mut self, order: &DeviceOrder) {
        match order {
            DeviceOrder::Join { .. } => *self = Self::default(),
            DeviceOrder::Run { .. } => self.kept = None,
            _ => {}
        }
    }

    /// Takes the failed group back that an order to go on names.
    pub(super) fn take_back(&mut self, order: &DeviceOrder) {
        let DeviceOrder::GoOn { last: Some(last), .. } = order else { return };
        if last.failure.is_some() && self.kept.take_if(|kept| *kept == last.group).is_some() {
            self.executed.retain(|group| *group != last.group);
        }
    }

    /// Notes how a task has ended.
    pub(super) fn finish(&mut self, order: &DeviceOrder, outcome: &TaskOutcome) {
        if let (DeviceOrder::Run { group, work: GroupWork::Calls(_), .. }, TaskOutcome::Ran(Ok(_))) =
            (order, outcome)
        {
            self.executed.push(*group);
            self.kept = Some(*group);
        }
    }
}

impl SimDevice {
    pub(in super::super) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Whether it reports to be in this epoch of a communicator.
    pub(in super::super) fn is_in(&self, comm: CommId, epoch: u64) -> bool {
        let formation = self.agent.report().membership.as_ref().map(|membership| &membership.formation);
        formation.is_some_and(|formation| (formation.comm, formation.epoch) == (comm, epoch))
    }

    /// Whether it is growing, as a member or as a newcomer.
    pub(super) fn grows(&self) -> bool {
        let membership = self.agent.report().membership.as_ref();
        membership.is_some_and(|it| it.is_outside() || matches!(it.phase, DevicePhase::Growing { .. }))
    }

    /// Whether it writes a checkpoint, or reads one.
    pub(super) fn is_in_checkpoint(&self) -> bool {
        let membership = self.agent.report().membership.as_ref();
        membership.is_some_and(|it| match &it.phase {
            DevicePhase::Running(Some(work)) => work.directory().is_some(),
            _ => false,
        })
    }

    /// Whether it is in a phase that does not last long, so that it is to be hit more often.
    pub(super) fn is_soon_over(&self) -> bool {
        self.grows() || self.is_in_checkpoint()
    }

    pub(super) fn place(&self, device: DeviceId) -> Position {
        let membership = self.agent.report().membership.as_ref();
        let group = match membership {
            Some(DeviceMembership { phase: DevicePhase::Running(_), groups, .. }) => *groups,
            _ => 0,
        };
        Position {
            device,
            job: self.job.clone(),
            epoch: membership.map_or(0, |membership| membership.formation.epoch),
            group,
            is_called_off: self.is_called_off,
        }
    }
}

impl World {
    /// Sends heartbeats of all devices that can.
    pub(super) fn send_heartbeats(&mut self) -> Result<(), String> {
        let is_up = |(id, device): (&DeviceId, &SimDevice)| {
            (!device.is_stopped && device.link.is_some()).then_some(*id)
        };
        for device in self.devices.iter().filter_map(is_up).collect::<Vec<_>>() {
            if self.known.contains_key(&device) {
                self.heartbeats.insert(device, self.now_ms);
                self.handle(CoordinatorEvent::Heartbeat(device))?;
            }
        }
        Ok(())
    }

    /// Has the worker of a device hang in its task for ever.
    pub(super) fn hang_worker(&mut self) {
        let is_busy = |(id, device): (&DeviceId, &SimDevice)| device.task.is_some().then_some(*id);
        let busy: Vec<_> = self.devices.iter().filter_map(is_busy).collect();
        let Some(id) = self.random.pick(&busy).filter(|_| self.random.once_in(2)) else { return };
        self.note(|| format!("the worker of device {id} hangs"));
        self.devices.entry(id).and_modify(|device| device.is_stuck = true);
    }

    /// Destroys communicators whose group hangs, as an impatient client would: no coordinator can
    /// know how long a group takes.
    pub(super) fn give_up_on_what_is_stuck(&mut self) -> Result<(), String> {
        let is_in_group =
            |device: &&SimDevice| device.is_stuck && matches!(device.task, Some(DeviceOrder::Run { .. }));
        let hanging = self.devices.values().filter(is_in_group).filter_map(|device| device.agent.comm());
        for comm in hanging.collect::<BTreeSet<_>>() {
            let number = self.requests;
            if self
                .machine
                .as_ref()
                .is_some_and(|machine| machine.is_open() && machine.comms.contains_key(&comm))
            {
                self.requests += 1;
                self.asked.insert((0, number), 0);
                let request_id = RequestId { client: ClientId(0), number };
                let request = ClientRequest::Destroy(comm);
                self.handle(CoordinatorEvent::Requested { request_id, request })?;
            }
        }
        Ok(())
    }

    /// Checks that a device is given up for a reason only.
    pub(super) fn give_up(&mut self, device: DeviceId, has_left_orders_unheard: bool) -> Result<(), String> {
        if !self.known.contains_key(&device) {
            return self.give_up_unknown(device);
        }
        let silent_ms = self.now_ms - self.heartbeats.get(&device).copied().unwrap_or(self.now_ms);
        let ordered_ms = self.now_ms - self.last_orders.get(&device).copied().unwrap_or(self.now_ms);
        let is_stuck = self.devices.get(&device).is_some_and(|device| device.is_stuck);
        let is_busy = self.devices.get(&device).is_some_and(|device| device.task.is_some())
            || self.mail.iter().any(|(sender, ..)| *sender == device);
        match (has_left_orders_unheard, silent_ms < SILENCE_MS) {
            (false, false) => _ = self.seen.insert("no sign of life"),
            (false, true) if ordered_ms < PATIENCE_MS || !is_busy => {
                return Err(format!(
                    "device {device} was dropped, sent a heartbeat {silent_ms} ms ago, and an order came {ordered_ms} ms ago"
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

    /// Checks that a device which has never come back to this coordinator has had the time for it.
    fn give_up_unknown(&mut self, device: DeviceId) -> Result<(), String> {
        let waited_ms = self.now_ms - self.began_ms;
        if waited_ms < PATIENCE_MS {
            return Err(format!("device {device} was given up when it had {waited_ms} ms to come back"));
        }
        self.seen.insert("never came back");
        Ok(())
    }

    /// Does what the process of a coordinator does with a device that is given up, and what its
    /// fleet does then.
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

/// Whether the process of the coordinator, or one before it, has started a device.
fn is_own(device: DeviceId) -> bool {
    device.get() % 2 == 1
}
