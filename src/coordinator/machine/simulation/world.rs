//! A coordinator, its devices and clients, and the events that happen to them.

mod clients;
mod device;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::Random;
use super::network::Network;
use super::rules;
use crate::coordinator::agent::{Agent, AgentStep, TaskOutcome};
use crate::coordinator::call::AddressRange;
use crate::coordinator::id::{CommId, DeviceId, GroupId};
use crate::coordinator::machine::comm::{Comm, CommStage};
use crate::coordinator::machine::{
    CoordinatorAction, CoordinatorEvent, CoordinatorMachine, CoordinatorSettings, RequestId,
};
use crate::coordinator::order::{DeviceOrder, DeviceReport};
use crate::coordinator::wire::encode;
use crate::launch::HangRule;
pub(super) use device::SimDevice;
use device::{PATIENCE_MS, SILENCE_MS, SimMemory, TIMEOUT_MS};

/// How long a coordinator waits for devices of the one before it.
const ADOPT_MS: u64 = 400;

fn settings(spares_hung: bool) -> CoordinatorSettings {
    let hang_rule = HangRule::new(Duration::from_millis(SILENCE_MS / 2), 3, 3).expect("a rule");
    CoordinatorSettings {
        adopt_ms: ADOPT_MS,
        patience_ms: PATIENCE_MS,
        hang_rule: Some(hang_rule),
        spares_hung,
    }
}

const RANGE: AddressRange = AddressRange { min: 0x1000, max: 0x2000 };

/// A rule that the world breaks on purpose, to see that it is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Some answers are given twice.
    AnswersTwice,
    /// Some answers are not given.
    AnswersLost,
    /// A device that belongs to a communicator is given away.
    TwoOwners,
    /// A report that was overtaken counts as the newest.
    StaleReports,
    /// When members grow, only the first of them gets into the next epoch with the newcomers.
    HalfGrown,
    /// Newcomers that were released are given to the members all the same.
    NewcomersKept,
    /// Devices report checkpoints that were not written.
    NothingWritten,
    /// Devices that are given up, and may be killed, live on.
    HungLeft,
    /// Devices that go on keep what they have executed of a failed group.
    NothingTakenBack,
}

/// The simulated world. See the module.
pub(super) struct World {
    pub(super) machine: Option<CoordinatorMachine>,
    pub(super) devices: BTreeMap<DeviceId, SimDevice>,
    pub(super) network: Network,
    /// How often each request was answered that can still be answered.
    pub(super) asked: BTreeMap<(u64, u64), u32>,
    /// The kinds of events that have happened.
    pub(super) seen: BTreeSet<&'static str>,
    /// The groups that have failed, by communicator and number.
    pub(super) failed: BTreeSet<(CommId, u64)>,
    /// The devices that the coordinator has dropped.
    pub(super) dropped: BTreeSet<DeviceId>,
    /// The devices that the coordinator has started, given up, and does not spare.
    pub(super) killed: BTreeSet<DeviceId>,
    pub(super) log: Vec<String>,
    random: Random,
    /// Whether one coordinator lives all the time, so that no ignorance excuses it.
    is_steady: bool,
    /// Whether devices that hang are left as they are.
    spares_hung: bool,
    broken: Option<Broken>,
    now_ms: u64,
    /// When the present coordinator has begun.
    began_ms: u64,
    links: u64,
    incarnations: u64,
    requests: u64,
    /// The numbers of requests to finalize.
    finalizing: BTreeSet<u64>,
    /// Groups that were started.
    groups: Vec<GroupId>,
    /// The numbers of calls that name a group.
    grouped: BTreeSet<u64>,
    /// The requests that are answered when a group has been executed, each with the number of the
    /// group before.
    executing: BTreeMap<u64, u64>,
    /// The numbers of requests to grow.
    growing: BTreeSet<u64>,
    next_device: u32,
    /// The reports on their way to the coordinator, by device and connection; no report for the end
    /// of one.
    mail: Vec<(DeviceId, u64, Option<DeviceReport>)>,
    /// The connection by which the coordinator knows each device.
    known: BTreeMap<DeviceId, u64>,
    /// When each device was sent the last order.
    last_orders: BTreeMap<DeviceId, u64>,
    /// When each connected device has sent the last heartbeat.
    heartbeats: BTreeMap<DeviceId, u64>,
}

impl World {
    pub(super) fn new(seed: u64, broken: Option<Broken>) -> Self {
        let spares_hung = seed.is_multiple_of(4);
        let mut world = Self {
            machine: Some(CoordinatorMachine::new(settings(spares_hung), 0)),
            devices: BTreeMap::new(),
            network: Network::new(broken),
            asked: BTreeMap::new(),
            seen: BTreeSet::new(),
            failed: BTreeSet::new(),
            dropped: BTreeSet::new(),
            killed: BTreeSet::new(),
            log: Vec::new(),
            random: Random::new(seed),
            is_steady: seed.is_multiple_of(3),
            spares_hung,
            broken,
            now_ms: 0,
            began_ms: 0,
            links: 0,
            incarnations: 1,
            requests: 0,
            finalizing: BTreeSet::new(),
            groups: Vec::new(),
            grouped: BTreeSet::new(),
            executing: BTreeMap::new(),
            growing: BTreeSet::new(),
            next_device: 1,
            mail: Vec::new(),
            known: BTreeMap::new(),
            last_orders: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
        };
        (0..2 + world.random.below(4)).for_each(|_| world.start_device());
        world
    }

    /// Something happens.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn step(&mut self) -> Result<(), String> {
        if self.devices.values().any(SimDevice::is_soon_over) && !self.is_steady && self.random.once_in(8) {
            self.restart();
        }
        if !self.in_lasting_groups().is_empty() && self.random.once_in(4) {
            self.kill();
        }
        match self.random.below(100) {
            0..3 if self.devices.len() < 8 => self.start_device(),
            3..5 => self.kill(),
            5..7 => self.stop_or_wake(),
            7 => self.hang_worker(),
            8..10 if !self.is_steady => self.restart(),
            10..11 => self.lose_client()?,
            11..45 => self.ask()?,
            45..65 => self.connect()?,
            _ => self.pass_time(700)?,
        }
        (0..self.random.below(12)).try_for_each(|_| self.make_progress())
    }

    /// Has no new event happen, while what is in progress goes on.
    pub(super) fn rest(&mut self) -> Result<(), String> {
        self.devices.values_mut().for_each(|device| device.is_stopped = false);
        if self.machine.is_none() {
            self.restart();
        }
        for _ in 0..=self.devices.len() {
            self.connect()?;
        }
        self.give_up_on_what_is_stuck()?;
        (0..12).try_for_each(|_| self.make_progress())?;
        self.pass_time(200)
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if std::env::var_os("SHMCCL_SEED").is_some() {
            self.log.push(line());
        }
    }

    fn start_device(&mut self) {
        let id = DeviceId::new(self.next_device);
        self.next_device += 1;
        let report = DeviceReport { timeout_ms: TIMEOUT_MS, range: RANGE, ..DeviceReport::default() };
        let (agent, inbox) = (Agent::new(id, report), VecDeque::new());
        let (job, task, link) = (None, None, None);
        let (is_stopped, is_stuck, is_called_off) = (false, false, false);
        let memory = SimMemory::default();
        let device = SimDevice { agent, inbox, job, task, memory, is_stopped, is_stuck, is_called_off, link };
        self.devices.insert(id, device);
    }

    fn any_device(&mut self) -> Option<DeviceId> {
        let all: Vec<_> = self.devices.keys().copied().collect();
        self.random.pick(&all)
    }

    /// Returns the devices of groups that outlive a loss.
    fn in_lasting_groups(&self) -> Vec<DeviceId> {
        let has_one = |comm: &&Comm| {
            let takes_calls = comm.open.as_ref().is_some_and(|open| open.repeats && !open.calls.is_empty());
            takes_calls || comm.repeat.is_some()
        };
        let all = self.machine.iter().flat_map(|machine| machine.comms.values()).filter(has_one);
        all.flat_map(Comm::living).filter(|device| self.devices.contains_key(device)).collect()
    }

    fn kill(&mut self) {
        let mut soon_over = self.in_lasting_groups();
        soon_over.extend(self.devices.iter().filter(|it| it.1.is_soon_over()).map(|it| *it.0));
        let Some(id) = self.random.pick(&soon_over).or_else(|| self.any_device()) else { return };
        self.note(|| format!("device {id} dies"));
        if self.devices.get(&id).is_some_and(SimDevice::grows) {
            self.seen.insert("death while growing");
        }
        if self.devices.get(&id).is_some_and(SimDevice::is_in_checkpoint) {
            self.seen.insert("death in a checkpoint");
        }
        let device = self.devices.remove(&id).and_then(|device| device.link);
        self.network.die(id);
        self.mail.extend(device.map(|link| (id, link, None)));
    }

    fn stop_or_wake(&mut self) {
        let Some(id) = self.any_device() else { return };
        if let Some(device) = self.devices.get_mut(&id) {
            device.is_stopped = !device.is_stopped;
        }
    }

    /// Has the coordinator die, or another one start.
    fn restart(&mut self) {
        self.note(|| "the coordinator dies, or starts".to_owned());
        self.machine = match self.machine {
            Some(_) => None,
            None => Some(CoordinatorMachine::new(settings(self.spares_hung), self.incarnations)),
        };
        self.began_ms = self.now_ms;
        self.machine.iter_mut().for_each(|machine| machine.set_time(self.now_ms));
        self.incarnations += 1;
        self.seen.insert("restart");
        if self.devices.values().any(SimDevice::grows) {
            self.seen.insert("restart while growing");
        }
        if self.devices.values().any(SimDevice::is_in_checkpoint) {
            self.seen.insert("restart in a checkpoint");
        }
        self.asked.clear();
        self.mail.clear();
        self.known.clear();
        self.devices.values_mut().for_each(|device| {
            device.link = None;
            device.inbox.clear();
        });
    }

    /// Connects a device that is not connected.
    fn connect(&mut self) -> Result<(), String> {
        let is_apart = |(id, device): (&DeviceId, &SimDevice)| {
            (!device.is_stopped && device.link.is_none()).then_some(*id)
        };
        let apart: Vec<_> = self.devices.iter().filter_map(is_apart).collect();
        let (Some(id), true) = (self.random.pick(&apart), self.machine.is_some()) else { return Ok(()) };
        self.links += 1;
        let Some(device) = self.devices.get_mut(&id) else { return Ok(()) };
        device.link = Some(self.links);
        device.agent.connect();
        let report = device.agent.outgoing_report();
        if report.membership.is_some() {
            self.seen.insert("adopted");
        }
        self.known.insert(id, self.links);
        self.last_orders.insert(id, self.now_ms);
        self.heartbeats.insert(id, self.now_ms);
        self.note(|| format!("device {id} connects: {report:?}"));
        self.handle(CoordinatorEvent::Registered { device: id, report })
    }

    fn pass_time(&mut self, most: u64) -> Result<(), String> {
        let mut left = self.random.below(most);
        while left > 0 {
            // The coordinator runs all the time. Its time is set before messages that have come by
            // then are taken in.
            let piece = left.min(ADOPT_MS / 4);
            (self.now_ms, left) = (self.now_ms + piece, left - piece);
            self.machine.iter_mut().for_each(|machine| machine.set_time(self.now_ms));
        }
        self.send_heartbeats()?;
        self.find_dead()?;
        if self.random.once_in(3) {
            return Ok(());
        }
        self.handle(CoordinatorEvent::Tick(self.now_ms))
    }

    /// Has the coordinator find that awaited devices are dead.
    fn find_dead(&mut self) -> Result<(), String> {
        let awaited = self.machine.as_ref().map(CoordinatorMachine::awaited).unwrap_or_default();
        let mut dead =
            awaited.into_iter().filter(|device| !self.devices.contains_key(device)).collect::<Vec<_>>();
        dead.retain(|_| self.random.once_in(2));
        dead.into_iter().try_for_each(|device| self.handle(CoordinatorEvent::Gone(device)))
    }

    /// Has a message arrive, or a device work.
    fn make_progress(&mut self) -> Result<(), String> {
        if self.random.once_in(2) && !self.mail.is_empty() {
            return self.deliver();
        }
        let Some(id) = self.any_device() else { return Ok(()) };
        let Some(device) = self.devices.get_mut(&id).filter(|device| !device.is_stopped) else {
            return Ok(());
        };
        let has_order = !device.inbox.is_empty();
        if has_order && (device.task.is_none() || self.random.once_in(2)) {
            self.take_order(id);
        } else {
            self.work(id);
        }
        Ok(())
    }

    /// Has a report arrive, in any order; some come twice.
    fn deliver(&mut self) -> Result<(), String> {
        let all: Vec<_> = (0..self.mail.len()).collect();
        let Some(index) = self.random.pick(&all) else { return Ok(()) };
        let (device, link, mut report) =
            if self.random.once_in(8) { self.mail[index].clone() } else { self.mail.swap_remove(index) };
        if self.known.get(&device) != Some(&link) {
            return Ok(());
        }
        let Some(report) = &mut report else {
            self.known.remove(&device);
            return self.handle(CoordinatorEvent::Gone(device));
        };
        if self.broken == Some(Broken::StaleReports) {
            report.version = self.now_ms + 1_000_000;
            report.heard = self.machine.as_ref().map_or(0, |machine| machine.table.iter().count() as u64);
        }
        self.note(|| format!("device {device} reports {report:?}"));
        self.handle(CoordinatorEvent::Reported { device, report: report.clone() })
    }

    fn take_order(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let Some(order) = device.inbox.pop_front() else { return };
        let steps = device.agent.take(order);
        self.perform(id, steps);
    }

    fn work(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let Some(order) = device.task.clone().filter(|_| !device.is_stuck) else { return };
        if self.broken != Some(Broken::NothingTakenBack) {
            device.memory.take_back(&order);
        }
        let Some(outcome) = self.network.work(&device.place(id), &order, &mut self.random) else { return };
        device.task = None;
        device.memory.finish(&order, &outcome);
        match (&order, &outcome) {
            (DeviceOrder::Join { id, .. } | DeviceOrder::Grow { id, .. }, TaskOutcome::Met(Ok(_))) => {
                device.job = Some(id.clone());
            }
            (_, TaskOutcome::Left) => device.job = None,
            _ => {}
        }
        let steps = device.agent.finish(outcome);
        self.perform(id, steps);
    }

    /// Does the actions of an agent, and sends its report.
    fn perform(&mut self, id: DeviceId, steps: Vec<AgentStep>) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        for step in steps {
            match step {
                AgentStep::Begin(order) => {
                    device.memory.begin(&order);
                    (device.task, device.is_called_off) = (Some(order), false);
                }
                AgentStep::Interrupt { lost } => {
                    device.is_called_off = true;
                    self.network.interrupt(&device.place(id), &lost);
                }
                AgentStep::CancelMeeting => device.is_called_off = true,
            }
        }
        let report = device.agent.outgoing_report();
        self.mail.extend(device.link.map(|link| (id, link, Some(report))));
    }

    fn handle(&mut self, event: CoordinatorEvent) -> Result<(), String> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let waited_for = rules::unheard(machine);
        let actions = machine.handle(event);
        rules::stamped_now(&waited_for, machine, self.now_ms)?;
        for action in actions {
            self.act(action, &waited_for)?;
        }
        let Some(machine) = &mut self.machine else { return Ok(()) };
        for comm in machine.comms.values() {
            self.seen.extend((comm.epoch > 1).then_some("next epoch"));
            let is_carried = comm.open.as_ref().is_some_and(|open| open.repeats && !open.calls.is_empty());
            self.seen.extend((is_carried && !comm.lost.is_empty()).then_some("loss in an open group"));
            let is_repeated = comm.repeat.as_ref().is_some_and(|repeat| repeat.failures > 0);
            let runs = matches!(comm.stage, CommStage::Running { .. });
            self.seen.extend((is_repeated && runs).then_some("repeated"));
            let failed = comm.last.as_ref().filter(|last| last.failure.is_some());
            self.failed.extend(failed.map(|last| (comm.id, last.group)));
        }
        let owned = machine.table.iter().find(|(_, device)| device.owner.is_some()).map(|(id, _)| id);
        if let (Some(Broken::TwoOwners), Some(device)) = (self.broken, owned) {
            machine.table.give(device, CommId::new(99));
        }
        let released = |(id, device): (DeviceId, &super::super::device_table::DeviceRecord)| {
            let membership = device.report.membership.as_ref()?;
            let is_released = device.owner.is_none() && membership.is_outside();
            is_released.then_some((id, membership.formation.comm))
        };
        let released = machine.table.iter().find_map(released);
        if let (Some(Broken::NewcomersKept), Some((device, comm))) = (self.broken, released) {
            machine.table.give(device, comm);
        }
        Ok(())
    }

    fn act(&mut self, action: CoordinatorAction, waited_for: &BTreeSet<DeviceId>) -> Result<(), String> {
        self.note(|| format!("    {action:?}"));
        let is_short = match &action {
            CoordinatorAction::Order { order, .. } => encode(order).is_ok(),
            CoordinatorAction::Reply { reply, .. } => encode(reply).is_ok(),
            CoordinatorAction::Drop(_) | CoordinatorAction::GiveUp { .. } | CoordinatorAction::Log(_) => true,
        };
        if !is_short {
            return Err(format!("there is no room in a message for {action:?}"));
        }
        match action {
            CoordinatorAction::Order { device, order } => {
                self.last_orders.insert(device, self.now_ms);
                if let Some(device) = self.devices.get_mut(&device).filter(|device| device.link.is_some()) {
                    device.inbox.push_back(order);
                }
            }
            CoordinatorAction::Drop(device) => {
                return Err(format!("device {device} was dropped, which is sound"));
            }
            CoordinatorAction::GiveUp { device, kills, .. } => {
                self.give_up(device, waited_for.contains(&device))?;
                self.kill_hung(device, kills)?;
            }
            CoordinatorAction::Log(_) => {}
            CoordinatorAction::Reply { request_id: RequestId { client, number }, reply } => {
                self.take_reply(client.0, number, &reply)?
            }
        }
        Ok(())
    }
}

impl Broken {
    pub(super) const ALL: [Self; 9] = [
        Self::AnswersTwice,
        Self::AnswersLost,
        Self::TwoOwners,
        Self::StaleReports,
        Self::HalfGrown,
        Self::NewcomersKept,
        Self::NothingWritten,
        Self::HungLeft,
        Self::NothingTakenBack,
    ];
}
