//! The decisions of the coordinator: a state machine without clock, threads, input or output.
//!
//! Events go in: reports of devices, requests of clients, the time. Actions come out: orders and
//! replies. After each event every communicator is *settled*: the reports of its devices, compared
//! with the stage of the communicator, decide what they are to do next. Nothing depends on the
//! past, so a coordinator that was restarted takes over from reports alone.
//!
//! | stage | state that clients see | until |
//! |---|---|---|
//! | hosting, meeting, adopting | init | all members are in the communicator |
//! | ready | ready | a group comes |
//! | running | in progress | all members have executed it |
//! | inviting, growing | growing | newcomers are in the next epoch with the members, or fail to |
//! | failed | failed (*) | it is told to go on, or does so by itself |
//! | going on | failed (*) | all members that are left are in the next epoch |
//! | leaving | finalizing | all members are out of it |
//!
//! (*) While a group is repeated after a loss (`repeat.rs`), it is in progress for clients.
//!
//! Time counts only while the coordinator runs. A pause of its own counts for a quarter of its
//! patience at most, and for a quarter of the time for adoption while that lasts. Messages that
//! came meanwhile are not taken in yet, and the cause of the pause may have stopped devices as
//! well.
//!
//! A device whose connection ends counts as dead at once. A device is given up when it hangs: it
//! has not confirmed an order for [`CoordinatorSettings::patience_ms`], does not send the
//! heartbeats that [`CoordinatorSettings::hang_rule`] asks for, or has not done an order in time.
//! It is dropped, and killed if a process of the coordinator has started it
//! ([`CoordinatorAction::GiveUp`]). Otherwise, or if it is spared, it may come back, and is told to
//! leave its communicator.

mod changes;
pub(super) mod comm;
mod device_table;
mod grow;
mod repeat;
mod requests;
mod settle;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::error::RequestError;
use super::id::{ClientId, CommId, DeviceId};
use super::metrics::CoordinatorCounters;
use super::order::{DeviceOrder, DeviceReport};
use super::request::{ClientRequest, CommStatus, Reply};
use crate::launch::HangRule;
use changes::RecentChanges;
use comm::Comm;
use device_table::DeviceTable;

/// The most devices in the pool.
pub const MAX_DEVICES: usize = 1024;

/// The number of communicators that are remembered after their end.
const REMEMBERED: usize = 4096;

/// The timeouts of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorSettings {
    /// How long it waits after its start for devices of the coordinator before it. Requests wait
    /// until then.
    pub adopt_ms: u64,
    /// How long a device may leave an order unconfirmed before it counts as lost. It may take as
    /// long for what it does alone, such as aborting an epoch.
    ///
    /// For what it does with other devices, it has four times its own timeout in addition. A living
    /// member of an adopted communicator has as long to come back.
    pub patience_ms: u64,
    /// The time after which a device without heartbeats counts as lost, whether it has orders or
    /// not.
    pub hang_rule: Option<HangRule>,
    /// Whether a device that counts as lost although its process lives is left as it is, for a
    /// debugger.
    ///
    /// Otherwise it is killed where a process of the coordinator has started it
    /// ([`Fleet`](super::Fleet)), since it holds memory and is of no use. A device that was started
    /// by hand is never killed, and may come back.
    pub spares_hung: bool,
}

/// An event for the state machine.
#[derive(Clone, Debug)]
pub(super) enum CoordinatorEvent {
    /// A device has connected.
    Registered {
        /// The device.
        device: DeviceId,
        /// Its state.
        report: DeviceReport,
    },
    /// A device reports that its state has changed.
    Reported {
        /// The device.
        device: DeviceId,
        /// Its state.
        report: DeviceReport,
    },
    /// A device has sent a heartbeat.
    Heartbeat(DeviceId),
    /// The connection of a device has ended, or the device is awaited and dead.
    Gone(DeviceId),
    /// A client sends a request, once [`CoordinatorMachine::is_open`].
    Requested {
        /// Whose request it is, and which.
        request_id: RequestId,
        /// The request.
        request: ClientRequest,
    },
    /// The connection of a client has ended.
    ClientGone(ClientId),
    /// It is so many milliseconds since some start, and all that came until then was taken in. The
    /// number is never less than before.
    Tick(u64),
}

/// An action that the state machine decides on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CoordinatorAction {
    /// Send an order to a device.
    Order {
        /// The device.
        device: DeviceId,
        /// The order.
        order: DeviceOrder,
    },
    /// Reply to a request.
    Reply {
        /// Whose request it is, and which.
        request_id: RequestId,
        /// The reply.
        reply: Result<Reply, RequestError>,
    },
    /// End the connection with a device that breaks the protocol, or for which there is no room.
    Drop(DeviceId),
    /// End the connection with a device that hangs, if there is one. The device counts as lost
    /// already.
    GiveUp {
        /// The device.
        device: DeviceId,
        /// How it was found that it hangs.
        why: String,
        /// Whether it is to be killed, if a process of the coordinator has started it.
        kills: bool,
    },
    /// Write a line to the log.
    Log(LogEntry),
}

/// A line of the log: a device or communicator that comes, goes or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogEntry {
    /// A device has registered.
    Registered(DeviceId),
    /// A device is lost.
    Lost {
        /// The device.
        device: DeviceId,
        /// Why it counts as lost, where its connection has not ended.
        why: Option<String>,
    },
    /// A communicator has begun an epoch, has failed, or has ended.
    Comm(CommStatus),
}

/// A request of a client, by the number that the client has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(super) client: ClientId,
    pub(super) number: u64,
}

/// The state machine of a coordinator. See the module.
#[derive(Debug, Default)]
pub(super) struct CoordinatorMachine {
    pub(super) settings: CoordinatorSettings,
    incarnation: u64,
    /// The time by the clock at the last event, once there was one.
    clock_ms: Option<u64>,
    /// The time without pauses of the coordinator, by which orders are stamped.
    pub(super) now_ms: u64,
    /// The time of the last tick, by which devices are judged: all that had come by then was taken
    /// in.
    pub(super) judged_ms: u64,
    /// When requests are taken, once the time of the start is known.
    opens_ms: Option<u64>,
    /// When it checks for heartbeats next, if it does.
    next_check_ms: u64,
    pub(super) table: DeviceTable,
    pub(super) comms: BTreeMap<CommId, Comm>,
    pub(super) newest: CommId,
    /// The number of groups that were opened.
    opened: u64,
    /// How the last communicators have ended, and in which order.
    pub(super) ended: BTreeMap<CommId, CommStatus>,
    ended_in_order: VecDeque<CommId>,
    /// The dead members of adopted communicators, which do not come back.
    pub(super) dead: BTreeSet<DeviceId>,
    changes: RecentChanges,
    counts: CoordinatorCounters,
    pub(super) actions: Vec<CoordinatorAction>,
}

impl Default for CoordinatorSettings {
    /// Gives devices half a second to come back, five seconds for orders, and ten missing
    /// heartbeats, two a second. No device that hangs is spared.
    fn default() -> Self {
        let hang_rule = HangRule::new(Duration::from_millis(500), 10, 10).expect("a rule");
        Self { adopt_ms: 500, patience_ms: 5000, hang_rule: Some(hang_rule), spares_hung: false }
    }
}

impl CoordinatorMachine {
    /// Makes a coordinator without devices. Its `incarnation` is one that no other coordinator has
    /// had.
    pub(super) fn new(settings: CoordinatorSettings, incarnation: u64) -> Self {
        Self { settings, incarnation, ..Self::default() }
    }

    /// Sets the time before messages that have come by then are taken in. Devices are judged only
    /// by a [`CoordinatorEvent::Tick`] after that.
    pub(super) fn set_time(&mut self, now_ms: u64) {
        match self.clock_ms {
            None => self.now_ms = now_ms,
            Some(clock_ms) => self.now_ms += now_ms.saturating_sub(clock_ms).min(self.longest_pause()),
        }
        self.clock_ms = self.clock_ms.max(Some(now_ms));
    }

    /// Returns the longest time between two settings of the time that is not a pause.
    fn longest_pause(&self) -> u64 {
        let CoordinatorSettings { adopt_ms, patience_ms, .. } = self.settings;
        let adopts = adopt_ms > 0 && (!self.is_open() || self.comms.values().any(Comm::is_adopted));
        let time_ms = if adopts { patience_ms.min(adopt_ms) } else { patience_ms };
        (time_ms / 4).max(1)
    }

    /// Handles an event. Returns the actions that follow, in their order.
    pub(super) fn handle(&mut self, event: CoordinatorEvent) -> Vec<CoordinatorAction> {
        match event {
            CoordinatorEvent::Registered { device, report } => self.register(device, report),
            CoordinatorEvent::Reported { device, report } => {
                if self.table.report(device, report) {
                    self.place(device);
                }
            }
            CoordinatorEvent::Heartbeat(device) => {
                // Nothing follows from it before the next check.
                self.table.heartbeat(device);
                return Vec::new();
            }
            CoordinatorEvent::Gone(device) => self.gone(device),
            CoordinatorEvent::Requested { request_id, request } => {
                debug_assert!(self.is_open(), "requests wait at their connection until then");
                self.request(request_id, request);
            }
            CoordinatorEvent::ClientGone(client) => self.forget(client),
            CoordinatorEvent::Tick(now_ms) => self.tick(now_ms),
        }
        self.settle();
        let mut actions = std::mem::take(&mut self.actions);
        // A client that reads "in progress" may rely on it: the orders have gone out before the
        // reply.
        actions.sort_by_key(|action| matches!(action, CoordinatorAction::Reply { .. }));
        actions
    }

    /// Returns when the next tick is due at the latest; `None` if nothing depends on the time.
    pub(super) fn next_tick_ms(&self) -> Option<u64> {
        let opens = if self.is_open() { None } else { Some(self.opens_ms.unwrap_or(self.now_ms)) };
        let comms = self.comms.values().filter_map(Comm::waits_until).min();
        let (check, order) =
            (self.next_heartbeat_check_ms(), self.table.next_due_ms(self.settings.patience_ms));
        let due = [opens, comms, check, order].into_iter().flatten().min()?;
        // At that rate all of the time counts, as long as the coordinator runs.
        let left = due.saturating_sub(self.now_ms).min(self.longest_pause());
        Some(self.clock_ms.unwrap_or_default().saturating_add(left))
    }

    /// Returns whether devices have had the time to come back after a restart, so that requests are
    /// taken.
    pub(super) fn is_open(&self) -> bool {
        self.opens_ms.is_some_and(|opens| self.judged_ms >= opens)
    }

    fn register(&mut self, device: DeviceId, report: DeviceReport) {
        self.lose(device, None);
        self.dead.remove(&device);
        if self.table.len() == MAX_DEVICES || report.heard > 0 {
            self.actions.push(CoordinatorAction::Drop(device));
            return;
        }
        self.counts.registered += 1;
        self.actions.push(CoordinatorAction::Log(LogEntry::Registered(device)));
        self.table.add(device, report, self.now_ms);
        self.place(device);
    }

    /// Notes that the device is dead.
    fn gone(&mut self, device: DeviceId) {
        if self.awaited().contains(&device) {
            self.dead.insert(device);
        }
        self.lose(device, None);
    }

    /// Removes a device that is dead or counts as dead. `why` says so where its connection has not
    /// ended.
    pub(super) fn lose(&mut self, device: DeviceId, why: Option<String>) {
        let Some(owner) = self.table.remove(device) else { return };
        self.counts.lost += 1;
        self.actions.push(CoordinatorAction::Log(LogEntry::Lost { device, why: why.clone() }));
        if let Some(comm) = owner.and_then(|owner| self.comms.get_mut(&owner)) {
            // A lost newcomer is noticed where it is awaited.
            if comm.members.contains(&device) {
                comm.lost.insert(device);
            }
            comm.hung.extend(why.map(|why| (device, why)));
        }
    }

    /// Gives up a device that hangs, as `why` says.
    pub(super) fn give_up_on(&mut self, device: DeviceId, why: String) {
        self.lose(device, Some(why.clone()));
        self.actions.push(CoordinatorAction::GiveUp { device, why, kills: !self.settings.spares_hung });
    }

    fn forget(&mut self, client: ClientId) {
        self.comms
            .values_mut()
            .for_each(|comm| comm.waiting.retain(|(request_id, _)| request_id.client != client));
    }

    fn tick(&mut self, now_ms: u64) {
        self.set_time(now_ms);
        self.judged_ms = self.now_ms;
        self.opens_ms.get_or_insert(self.now_ms.saturating_add(self.settings.adopt_ms));
        for (device, why) in self.table.overdue(self.now_ms, self.settings.patience_ms) {
            self.give_up_on(device, why);
        }
        self.check_heartbeats();
    }

    fn reply(&mut self, request_id: RequestId, reply: Result<Reply, RequestError>) {
        *(if reply.is_ok() { &mut self.counts.answered } else { &mut self.counts.refused }) += 1;
        self.actions.push(CoordinatorAction::Reply { request_id, reply });
    }

    /// Sends `device` an order, unless the last one was the same.
    fn order(&mut self, device: DeviceId, order: &DeviceOrder) {
        if self.table.order(device, order, self.now_ms) {
            self.actions.push(CoordinatorAction::Order { device, order: order.clone() });
        }
    }
}
