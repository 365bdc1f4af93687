//! A coordinator, its devices and clients, and what happens to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::dice::Dice;
use super::plane::{Place, Plane};
use super::rules;
use crate::coordinator::agent::{Agent, Outcome, Step, Task};
use crate::coordinator::call::{AddressRange, Collective, DeviceCall, Operator};
use crate::coordinator::id::{ClientId, CommId, DeviceId};
use crate::coordinator::machine::{Action, Event, Machine, Settings};
use crate::coordinator::order::{Order, Phase, Report};
use crate::coordinator::refusal::Refusal;
use crate::coordinator::request::{Reply, Request, State};
use crate::reduce::DataType;

const SETTINGS: Settings = Settings { adopt_ms: 400, patience_ms: 3000 };
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
    /// A report that was overtaken is taken for the newest.
    StaleReports,
}

/// A device process.
pub(super) struct Device {
    pub(super) agent: Agent,
    /// The orders that are on their way to it.
    pub(super) inbox: VecDeque<Order>,
    /// The meeting that its communicator came of.
    pub(super) job: Option<String>,
    task: Option<Task>,
    is_stopped: bool,
    /// The number of its connection, if it has one.
    link: Option<u64>,
}

/// See the module.
pub(super) struct World {
    pub(super) machine: Option<Machine>,
    pub(super) devices: BTreeMap<DeviceId, Device>,
    pub(super) plane: Plane,
    /// How often each request was answered that can still be.
    pub(super) asked: BTreeMap<(u64, u64), u32>,
    /// What has come to pass.
    pub(super) seen: BTreeSet<&'static str>,
    pub(super) log: Vec<String>,
    dice: Dice,
    broken: Option<Broken>,
    now_ms: u64,
    links: u64,
    incarnations: u64,
    requests: u64,
    /// The numbers of requests to finalize.
    finalizing: BTreeSet<u64>,
    next_device: u32,
    /// On their way to the coordinator: by device, with the connection, and no report for the end of it.
    mail: Vec<(DeviceId, u64, Option<Report>)>,
    /// The connection by which the coordinator knows each device.
    known: BTreeMap<DeviceId, u64>,
}

impl Device {
    pub(super) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    fn place(&self, device: DeviceId) -> Place {
        let membership = self.agent.report().membership.as_ref();
        let group = match membership.map(|membership| &membership.phase) {
            Some(Phase::Running { group, .. }) => *group,
            _ => 0,
        };
        Place {
            device,
            job: self.job.clone(),
            epoch: membership.map_or(0, |membership| membership.epoch),
            group,
        }
    }
}

impl World {
    pub(super) fn new(seed: u64, broken: Option<Broken>) -> Self {
        let mut world = Self {
            machine: Some(Machine::new(SETTINGS, 0)),
            devices: BTreeMap::new(),
            plane: Plane::default(),
            asked: BTreeMap::new(),
            seen: BTreeSet::new(),
            log: Vec::new(),
            dice: Dice::new(seed),
            broken,
            now_ms: 0,
            links: 0,
            incarnations: 1,
            requests: 0,
            finalizing: BTreeSet::new(),
            next_device: 1,
            mail: Vec::new(),
            known: BTreeMap::new(),
        };
        (0..2 + world.dice.below(4)).for_each(|_| world.start_device());
        world
    }

    /// Something happens.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn step(&mut self) -> Result<(), String> {
        match self.dice.below(100) {
            0..3 if self.devices.len() < 8 => self.start_device(),
            3..5 => self.kill(),
            5..8 => self.stop_or_wake(),
            8..10 => self.restart(),
            10..11 => self.lose_client()?,
            11..45 => self.ask()?,
            45..65 => self.connect()?,
            _ => self.pass_time(700)?,
        }
        (0..self.dice.below(12)).try_for_each(|_| self.bustle())
    }

    /// Nothing new happens, and what is in progress goes on.
    pub(super) fn rest(&mut self) -> Result<(), String> {
        self.devices.values_mut().for_each(|device| device.is_stopped = false);
        if self.machine.is_none() {
            self.restart();
        }
        for _ in 0..=self.devices.len() {
            self.connect()?;
        }
        (0..12).try_for_each(|_| self.bustle())?;
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
        let (agent, inbox) = (Agent::new(id), VecDeque::new());
        self.devices
            .insert(id, Device { agent, inbox, job: None, task: None, is_stopped: false, link: None });
    }

    fn any_device(&mut self) -> Option<DeviceId> {
        let all: Vec<_> = self.devices.keys().copied().collect();
        self.dice.pick(&all)
    }

    fn kill(&mut self) {
        let Some(id) = self.any_device() else { return };
        self.note(|| format!("device {id} dies"));
        let device = self.devices.remove(&id).and_then(|device| device.link);
        self.plane.die(id);
        self.mail.extend(device.map(|link| (id, link, None)));
    }

    fn stop_or_wake(&mut self) {
        let Some(id) = self.any_device() else { return };
        if let Some(device) = self.devices.get_mut(&id) {
            device.is_stopped = !device.is_stopped;
        }
    }

    /// The coordinator dies, or another one starts.
    fn restart(&mut self) {
        self.note(|| "the coordinator dies, or starts".to_owned());
        self.machine = match self.machine {
            Some(_) => None,
            None => Some(Machine::new(SETTINGS, self.incarnations)),
        };
        self.machine.iter_mut().for_each(|machine| machine.set_time(self.now_ms));
        self.incarnations += 1;
        self.seen.insert("restart");
        self.asked.clear();
        self.mail.clear();
        self.known.clear();
        self.devices.values_mut().for_each(|device| {
            device.link = None;
            device.inbox.clear();
        });
    }

    fn lose_client(&mut self) -> Result<(), String> {
        let client = self.dice.below(3);
        self.asked.retain(|(asker, _), _| *asker != client);
        self.happen(Event::ClientGone { client: ClientId::new(client) })
    }

    fn ask(&mut self) -> Result<(), String> {
        if self.machine.is_none() {
            return Ok(());
        }
        let request = self.draw_request();
        let (client, number) = (self.dice.below(3), self.requests);
        self.requests += 1;
        if matches!(request, Request::Finalize(_)) {
            self.finalizing.insert(number);
        }
        self.asked.insert((client, number), 0);
        self.note(|| format!("request {number} of client {client}: {request:?}"));
        self.happen(Event::Requested { client: ClientId::new(client), number, request })
    }

    fn draw_request(&mut self) -> Request {
        let all: Vec<_> = self.machine.iter().flat_map(|machine| machine.comms.keys().copied()).collect();
        let any = CommId::new(self.dice.below(5));
        let comm = if self.dice.once_in(8) { any } else { self.dice.pick(&all).unwrap_or(any) };
        match self.dice.below(24) {
            0..5 => Request::Init {
                devices: self.dice.below(4).try_into().unwrap_or(0),
                keep_going: self.dice.once_in(3),
            },
            5 => Request::Status { comm, settled: self.dice.once_in(2) },
            6 => Request::List,
            7 => Request::Devices,
            8 => Request::GroupStart(comm),
            9 => Request::GroupEnd(comm),
            10..18 => Request::Call { comm, call: self.draw_call(comm) },
            18..21 => Request::GoOn(comm),
            21 => Request::Locate(DeviceId::new(self.next_device - 1)),
            22 => Request::Finalize(comm),
            _ => Request::Destroy(comm),
        }
    }

    fn draw_call(&mut self, comm: CommId) -> DeviceCall {
        let found = self.machine.as_ref().and_then(|machine| machine.comms.get(&comm));
        let addresses = vec![0x1000; found.map_or(1, |comm| comm.members.len())];
        let (collective, data_type, op) = (Collective::AllReduce, DataType::F64, Operator::Sum);
        // One in so many is an element too long.
        let count = 1 + self.dice.below(RANGE.max - RANGE.min) / 8 + u64::from(self.dice.once_in(8)) * 512;
        DeviceCall { collective, data_type, op, root: 0, count, send: addresses.clone(), recv: addresses }
    }

    /// A device that is not connected connects.
    fn connect(&mut self) -> Result<(), String> {
        let is_apart =
            |(id, device): (&DeviceId, &Device)| (!device.is_stopped && device.link.is_none()).then_some(*id);
        let apart: Vec<_> = self.devices.iter().filter_map(is_apart).collect();
        let (Some(id), true) = (self.dice.pick(&apart), self.machine.is_some()) else { return Ok(()) };
        self.links += 1;
        let Some(device) = self.devices.get_mut(&id) else { return Ok(()) };
        device.link = Some(self.links);
        device.agent.connect();
        let report = device.agent.report().clone();
        if report.membership.is_some() {
            self.seen.insert("adopted");
        }
        self.known.insert(id, self.links);
        self.note(|| format!("device {id} connects: {report:?}"));
        self.happen(Event::Registered { device: id, range: RANGE, socket: String::new(), report })
    }

    fn pass_time(&mut self, most: u64) -> Result<(), String> {
        self.now_ms += self.dice.below(most);
        if let (true, Some(machine)) = (self.dice.once_in(3), &mut self.machine) {
            machine.set_time(self.now_ms);
            return Ok(());
        }
        self.happen(Event::Tick { now_ms: self.now_ms })
    }

    /// Something that is on its way arrives, or somebody works.
    fn bustle(&mut self) -> Result<(), String> {
        if self.dice.once_in(2) && !self.mail.is_empty() {
            return self.deliver();
        }
        let Some(id) = self.any_device() else { return Ok(()) };
        let Some(device) = self.devices.get_mut(&id).filter(|device| !device.is_stopped) else {
            return Ok(());
        };
        let has_order = !device.inbox.is_empty();
        if has_order && (device.task.is_none() || self.dice.once_in(2)) {
            self.take_order(id);
        } else {
            self.work(id);
        }
        Ok(())
    }

    /// A report arrives, in any order; some come twice.
    fn deliver(&mut self) -> Result<(), String> {
        let all: Vec<_> = (0..self.mail.len()).collect();
        let Some(index) = self.dice.pick(&all) else { return Ok(()) };
        let (device, link, mut report) =
            if self.dice.once_in(8) { self.mail[index].clone() } else { self.mail.swap_remove(index) };
        if self.known.get(&device) != Some(&link) {
            return Ok(());
        }
        let Some(report) = &mut report else {
            self.known.remove(&device);
            return self.happen(Event::Gone { device });
        };
        if self.broken == Some(Broken::StaleReports) {
            report.version = self.now_ms + 1_000_000;
            report.heard = self.machine.as_ref().map_or(0, |machine| machine.pool.iter().count() as u64);
        }
        self.note(|| format!("device {device} reports {report:?}"));
        self.happen(Event::Reported { device, report: report.clone() })
    }

    fn take_order(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let Some(order) = device.inbox.pop_front() else { return };
        let steps = device.agent.take(order);
        self.perform(id, steps);
    }

    fn work(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let Some(task) = device.task.clone() else { return };
        let Some(outcome) = self.plane.work(&device.place(id), &task, &mut self.dice) else { return };
        device.task = None;
        match (&task, &outcome) {
            (Task::Join { id, .. }, Outcome::Joined(Ok(()))) => device.job = Some(id.clone()),
            (_, Outcome::Left) => device.job = None,
            _ => {}
        }
        let steps = device.agent.finish(outcome);
        self.perform(id, steps);
    }

    /// Does what an agent has said, and sends its report.
    fn perform(&mut self, id: DeviceId, steps: Vec<Step>) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        for step in steps {
            match step {
                Step::Begin(task) => device.task = Some(task),
                Step::Interrupt { lost } => self.plane.interrupt(&device.place(id), &lost),
            }
        }
        let report = device.agent.report().clone();
        self.mail.extend(device.link.map(|link| (id, link, Some(report))));
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let waited_for = rules::unheard(machine);
        let actions = machine.handle(event);
        rules::stamped_now(&waited_for, machine, self.now_ms)?;
        for action in actions {
            self.act(action)?;
        }
        let Some(machine) = &mut self.machine else { return Ok(()) };
        if machine.comms.values().any(|comm| comm.epoch > 1) {
            self.seen.insert("next epoch");
        }
        let owned = machine.pool.iter().find(|(_, device)| device.owner.is_some()).map(|(id, _)| id);
        if let (Some(Broken::TwoOwners), Some(device)) = (self.broken, owned) {
            machine.pool.give(device, CommId::new(99));
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        self.note(|| format!("    {action:?}"));
        match action {
            Action::Order { device, order } => {
                if let Some(device) = self.devices.get_mut(&device).filter(|device| device.link.is_some()) {
                    device.inbox.push_back(order);
                }
            }
            Action::Drop { device } => {
                self.seen.insert("hang");
                self.known.remove(&device);
                if let Some(device) = self.devices.get_mut(&device) {
                    device.link = None;
                    device.inbox.clear();
                }
            }
            Action::Reply { client, number, reply } => self.take_reply(client.get(), number, &reply)?,
        }
        Ok(())
    }

    fn take_reply(&mut self, client: u64, number: u64, reply: &Result<Reply, Refusal>) -> Result<(), String> {
        self.seen.extend(match reply {
            Ok(Reply::Status(status)) if status.state == State::Ready => Some("ready"),
            Ok(Reply::Status(status)) if status.state == State::Failed => Some("failed"),
            Ok(Reply::InProgress(_)) => Some("group"),
            Ok(Reply::Ended) if self.finalizing.contains(&number) => Some("finalized"),
            Ok(Reply::Ended) => Some("destroyed"),
            Ok(Reply::Queued(_)) => Some("open group"),
            Ok(Reply::Located(_)) => Some("located"),
            Err(Refusal::NotFormed { .. }) => Some("not formed"),
            Err(Refusal::OutOfRange { .. }) => Some("out of range"),
            Err(Refusal::Failed { .. }) => Some("failed"),
            Err(Refusal::NotEnoughDevices { .. }) => Some("not enough"),
            _ => None,
        });
        if self.broken == Some(Broken::AnswersLost) && self.dice.once_in(4) {
            return Ok(());
        }
        let answers = if self.broken == Some(Broken::AnswersTwice) && self.dice.once_in(4) { 2 } else { 1 };
        match self.asked.get_mut(&(client, number)) {
            Some(count) => *count += answers,
            None => return Err(format!("request {number} was answered, and client {client} is not there")),
        }
        Ok(())
    }
}

impl Broken {
    pub(super) const ALL: [Self; 4] =
        [Self::AnswersTwice, Self::AnswersLost, Self::TwoOwners, Self::StaleReports];
}
