//! The coordinator's mind: a state machine without clock, threads, input or output.
//!
//! Events go in: what devices report, what clients ask, what time it is. Actions come out: orders and replies. After each event
//! every communicator is *settled*: what its devices report is held against the stage that it is in, which decides what they
//! are to do next. Nothing depends on having seen the past, so a coordinator that was restarted takes over from reports alone.
//!
//! | stage | as clients see it | until |
//! |---|---|---|
//! | hosting, meeting, adopting | init | all members are in the communicator |
//! | ready | ready | a group comes |
//! | running | in progress | all members have executed it |
//! | inviting, growing | growing | newcomers and members are in the next epoch together, or it was in vain |
//! | failed | failed | it is told to go on, or does so by itself |
//! | going on | failed | all members that are left are in the next epoch |
//! | leaving | finalizing | all members are out of it |
//!
//! Time is what the coordinator has been there to see: a pause of its own counts for a quarter of its patience at most, and of the time
//! for adoption while that lasts, since what came meanwhile has yet to be taken in, and what has held it up may have held up devices, too.
//!
//! A device whose connection ends counts as dead at once. One that has not even heard an order for the time of
//! [`CoordinatorSettings::patience_ms`], does not give the signs of life that [`CoordinatorSettings::hang_rule`] asks for, or has not done in time what it was
//! told, since its worker hangs, is given up: it is dropped, and killed where it is the coordinator's own ([`CoordinatorAction::GiveUp`]). One that
//! is not, or is spared, may come back, as a device that is told to leave what it was in.

pub(super) mod comm;
mod device_table;
mod grow;
mod requests;
mod settle;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::call::AddressRange;
use super::error::RequestError;
use super::id::{ClientId, CommId, DeviceId};
use super::metrics::CoordinatorCounters;
use super::order::{DeviceOrder, DeviceReport};
use super::request::{CommState, CommStatus, Reply, Request};
use crate::launch::HangRule;
use comm::Comm;
use device_table::DeviceTable;

/// The most devices in the pool.
pub const MAX_DEVICES: usize = 1024;

/// How many communicators that have ended are remembered.
const REMEMBERED: usize = 4096;

/// How patient a coordinator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorSettings {
    /// How long it waits after its start for devices of the coordinator before it. Until then requests wait.
    pub adopt_ms: u64,
    /// How long a device may leave an order unheard before it counts as lost; and how long it may take for what it does alone, such as
    /// to end what it is in. For what it does with others it has four times as long as it waits for them besides. A member of a
    /// communicator that is adopted has as long to come back, unless it is dead.
    pub patience_ms: u64,
    /// When a device counts as lost that gives no sign of life, whether it has orders or not.
    pub hang_rule: Option<HangRule>,
    /// Whether a device that counts as lost though its process lives is left as it is, for a debugger, however that was found. Otherwise it
    /// is killed, where a process of the coordinator has started it ([`Fleet`](super::Fleet)): it holds memory, and is of no use to anybody.
    /// One that was started by hand is left alone in any case, and may come back.
    pub spares_hung: bool,
}

/// What happens to a coordinator.
#[derive(Clone, Debug)]
pub enum CoordinatorEvent {
    /// A device has connected.
    Registered {
        /// Which.
        device: DeviceId,
        /// Its addresses.
        range: AddressRange,
        /// Where its memory can be reached.
        socket: String,
        /// Its state.
        report: DeviceReport,
    },
    /// The state of a device has changed.
    Reported {
        /// Which.
        device: DeviceId,
        /// Its state.
        report: DeviceReport,
    },
    /// A device has sent a heartbeat.
    Heartbeat {
        /// Which.
        device: DeviceId,
    },
    /// The connection of a device has ended, or it is one of `CoordinatorMachine::awaited` and dead.
    Gone {
        /// Which.
        device: DeviceId,
    },
    /// A client asks for something.
    Requested {
        /// Who.
        client: ClientId,
        /// How the client numbers the request.
        number: u64,
        /// What.
        request: Request,
    },
    /// The connection of a client has ended.
    ClientGone {
        /// Which.
        client: ClientId,
    },
    /// Time has passed, and whatever came in it has been taken in.
    Tick {
        /// Milliseconds since whenever; never less than before.
        now_ms: u64,
    },
}

/// What a coordinator is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorAction {
    /// Send an order to a device.
    Order {
        /// Which.
        device: DeviceId,
        /// What.
        order: DeviceOrder,
    },
    /// Answer a request.
    Reply {
        /// Who asked.
        client: ClientId,
        /// How the client numbers the request.
        number: u64,
        /// The answer.
        reply: Result<Reply, RequestError>,
    },
    /// End the connection with a device that does not keep to the protocol, or for which there is no room.
    Drop {
        /// Which.
        device: DeviceId,
    },
    /// End the connection with a device that hangs, if it has one; it counts as lost already.
    GiveUp {
        /// Which.
        device: DeviceId,
        /// How that was found.
        why: String,
        /// Whether it is to be killed, if it is the coordinator's own.
        kills: bool,
    },
    /// Log that something has come about.
    Log(LogEntry),
}

/// What is worth a line in a log: devices and communicators that come, go, or are not well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEntry {
    /// A device has registered.
    Registered {
        /// Which.
        device: DeviceId,
    },
    /// A device is lost.
    Lost {
        /// Which.
        device: DeviceId,
        /// Why it is taken for that, where its connection has not ended.
        why: Option<String>,
    },
    /// A communicator is in another state, or another epoch.
    Comm(CommStatus),
}

/// A request of a client, by the number that the client has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    client: ClientId,
    number: u64,
}

/// The state machine. See the module.
#[derive(Debug)]
pub struct CoordinatorMachine {
    pub(super) settings: CoordinatorSettings,
    incarnation: u64,
    /// The time as it was told last, once it was.
    told_ms: Option<u64>,
    /// The time without its own pauses, by which orders are stamped.
    pub(super) now_ms: u64,
    /// The time of the last tick, by which all is judged: whatever had come by then has been taken in.
    pub(super) judged_ms: u64,
    /// When requests are taken, once it is known when the coordinator started.
    opens_ms: Option<u64>,
    /// When it looks for signs of life next, if it does.
    looks_ms: u64,
    pub(super) pool: DeviceTable,
    pub(super) comms: BTreeMap<CommId, Comm>,
    pub(super) newest: CommId,
    /// How many groups were opened.
    opened: u64,
    /// How communicators have ended that were the last to, and in which order.
    pub(super) ended: BTreeMap<CommId, CommStatus>,
    ended_in_order: VecDeque<CommId>,
    /// In which state and epoch communicators were when they were looked at last.
    told: BTreeMap<CommId, (CommState, u64)>,
    /// Requests that came before the coordinator knew its devices.
    early: Vec<(RequestId, Request)>,
    /// Members of communicators that are adopted which are dead, and do not come back.
    pub(super) dead: BTreeSet<DeviceId>,
    counts: CoordinatorCounters,
    pub(super) actions: Vec<CoordinatorAction>,
}

impl Default for CoordinatorSettings {
    /// Half a second for devices to come back, five seconds for orders, and ten looks in vain, one in half a second. None that hangs is
    /// spared.
    fn default() -> Self {
        let hang_rule = HangRule::new(Duration::from_millis(500), 10, 10).expect("a rule");
        Self { adopt_ms: 500, patience_ms: 5000, hang_rule: Some(hang_rule), spares_hung: false }
    }
}

impl CoordinatorMachine {
    /// A coordinator that knows nobody. Each has an `incarnation` that no other one has had.
    #[must_use]
    pub fn new(settings: CoordinatorSettings, incarnation: u64) -> Self {
        Self {
            settings,
            incarnation,
            told_ms: None,
            now_ms: 0,
            judged_ms: 0,
            opens_ms: None,
            looks_ms: 0,
            pool: DeviceTable::default(),
            comms: BTreeMap::new(),
            newest: CommId::default(),
            opened: 0,
            ended: BTreeMap::new(),
            ended_in_order: VecDeque::new(),
            told: BTreeMap::new(),
            early: Vec::new(),
            dead: BTreeSet::new(),
            counts: CoordinatorCounters::default(),
            actions: Vec::new(),
        }
    }

    /// Tells the time before what has come by then is taken in. It judges nobody: that is for [`CoordinatorEvent::Tick`], after it.
    pub fn set_time(&mut self, now_ms: u64) {
        match self.told_ms {
            None => self.now_ms = now_ms,
            Some(told_ms) => self.now_ms += now_ms.saturating_sub(told_ms).min(self.longest_pause()),
        }
        self.told_ms = self.told_ms.max(Some(now_ms));
    }

    /// How long it may be told nothing before that counts as a pause.
    fn longest_pause(&self) -> u64 {
        let CoordinatorSettings { adopt_ms, patience_ms, .. } = self.settings;
        let adopts = adopt_ms > 0 && (!self.is_open() || self.comms.values().any(Comm::is_adopted));
        let time_ms = if adopts { patience_ms.min(adopt_ms) } else { patience_ms };
        (time_ms / 4).max(1)
    }

    /// Takes in what has happened. Returns what is to be done, in that order.
    pub fn handle(&mut self, event: CoordinatorEvent) -> Vec<CoordinatorAction> {
        match event {
            CoordinatorEvent::Registered { device, range, socket, report } => {
                self.register(device, (range, socket), report)
            }
            CoordinatorEvent::Reported { device, report } => {
                if self.pool.report(device, report) {
                    self.place(device);
                }
            }
            CoordinatorEvent::Heartbeat { device } => {
                // Nothing follows from it before the next look.
                self.pool.beat(device);
                return Vec::new();
            }
            CoordinatorEvent::Gone { device } => self.gone(device),
            CoordinatorEvent::Requested { client, number, request } => {
                let asker = RequestId { client, number };
                if self.is_open() { self.request(asker, request) } else { self.early.push((asker, request)) }
            }
            CoordinatorEvent::ClientGone { client } => self.forget(client),
            CoordinatorEvent::Tick { now_ms } => self.tick(now_ms),
        }
        self.settle();
        let mut actions = std::mem::take(&mut self.actions);
        // Whoever is told that something is in progress may rely on it: the orders for it have gone out.
        actions.sort_by_key(|action| matches!(action, CoordinatorAction::Reply { .. }));
        actions
    }

    /// When it has to be told the time next, at the latest; `None` if nothing depends on it.
    #[must_use]
    pub fn next_tick_ms(&self) -> Option<u64> {
        let opens = if self.is_open() { None } else { Some(self.opens_ms.unwrap_or(self.now_ms)) };
        let silence = self.pool.oldest_unheard().map(|since| since.saturating_add(self.settings.patience_ms));
        let comms = self.comms.values().filter_map(Comm::waits_until).min();
        let (look, stuck) = (self.next_look_ms(), self.pool.next_due_ms(self.settings.patience_ms));
        let due = [opens, silence, comms, look, stuck].into_iter().flatten().min()?;
        // Told that often, it sees all of the time that it is there.
        let left = due.saturating_sub(self.now_ms).min(self.longest_pause());
        Some(self.told_ms.unwrap_or_default().saturating_add(left))
    }

    /// Whether devices have had the time to come back after a restart.
    pub(super) fn is_open(&self) -> bool {
        self.opens_ms.is_some_and(|opens| self.judged_ms >= opens)
    }

    fn register(&mut self, device: DeviceId, memory: (AddressRange, String), report: DeviceReport) {
        self.lose(device, None);
        self.dead.remove(&device);
        if self.pool.len() == MAX_DEVICES || report.heard > 0 {
            self.actions.push(CoordinatorAction::Drop { device });
            return;
        }
        self.counts.registered += 1;
        self.actions.push(CoordinatorAction::Log(LogEntry::Registered { device }));
        self.pool.add(device, memory, report, self.now_ms);
        self.place(device);
    }

    /// The device is dead.
    fn gone(&mut self, device: DeviceId) {
        if self.awaited().contains(&device) {
            self.dead.insert(device);
        }
        self.lose(device, None);
    }

    /// The device is dead, or as good as that; and why it is taken for that, where its connection has not ended.
    pub(super) fn lose(&mut self, device: DeviceId, why: Option<String>) {
        let Some(owner) = self.pool.remove(device) else { return };
        self.counts.lost += 1;
        self.actions.push(CoordinatorAction::Log(LogEntry::Lost { device, why: why.clone() }));
        if let Some(comm) = owner.and_then(|owner| self.comms.get_mut(&owner)) {
            // A newcomer that is gone is missed where it is waited for.
            if comm.members.contains(&device) {
                comm.lost.insert(device);
            }
            comm.hung.extend(why.map(|why| (device, why)));
        }
    }

    /// The device hangs, as is known by this.
    pub(super) fn give_up_on(&mut self, device: DeviceId, why: String) {
        self.lose(device, Some(why.clone()));
        self.actions.push(CoordinatorAction::GiveUp { device, why, kills: !self.settings.spares_hung });
    }

    fn forget(&mut self, client: ClientId) {
        self.early.retain(|(asker, _)| asker.client != client);
        self.comms.values_mut().for_each(|comm| comm.waiting.retain(|(asker, _)| asker.client != client));
    }

    fn tick(&mut self, now_ms: u64) {
        self.set_time(now_ms);
        self.judged_ms = self.now_ms;
        self.opens_ms.get_or_insert(self.now_ms.saturating_add(self.settings.adopt_ms));
        let patience_ms = self.settings.patience_ms;
        for device in self.pool.silent(self.now_ms, patience_ms) {
            self.give_up_on(device, format!("it hangs, with an order unheard for {patience_ms} ms"));
        }
        for device in self.pool.stuck(self.now_ms, patience_ms) {
            self.give_up_on(device, "it hangs, and has not ended in time what it was told to".to_owned());
        }
        self.look_for_signs();
        if self.is_open() {
            // Whatever has come back is in its communicator before anybody asks.
            self.settle();
            for (asker, request) in std::mem::take(&mut self.early) {
                self.request(asker, request);
                self.settle();
            }
        }
    }

    fn reply(&mut self, asker: RequestId, reply: Result<Reply, RequestError>) {
        let RequestId { client, number } = asker;
        *(if reply.is_ok() { &mut self.counts.answered } else { &mut self.counts.refused }) += 1;
        self.actions.push(CoordinatorAction::Reply { client, number, reply });
    }

    /// Tells `device` what to do, if it was not the last thing that it was told.
    fn order(&mut self, device: DeviceId, order: &DeviceOrder) {
        if self.pool.order(device, order, self.now_ms) {
            self.actions.push(CoordinatorAction::Order { device, order: order.clone() });
        }
    }
}
