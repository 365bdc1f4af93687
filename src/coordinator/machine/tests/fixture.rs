//! A coordinator, its devices and clients, driven by a test.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::{COMM, SETTINGS};
use crate::collective::Operation;
use crate::coordinator::agent::{Agent, AgentStep, GroupFailure, TaskOutcome};
use crate::coordinator::call::{AddressRange, DeviceCall};
use crate::coordinator::id::GroupId;
use crate::coordinator::request::CommStatus;
use crate::reduce::{DataType, ReduceOp};

/// A coordinator, devices, and clients, each of which sends one request.
pub(super) struct Fixture {
    pub(super) machine: CoordinatorMachine,
    pub(super) devices: BTreeMap<DeviceId, Agent>,
    pub(super) tasks: BTreeMap<DeviceId, DeviceOrder>,
    /// The devices that take no orders.
    pub(super) stopped: BTreeSet<DeviceId>,
    /// The devices that take orders, and never end a task.
    pub(super) slow: BTreeSet<DeviceId>,
    /// The outcome of meetings.
    pub(super) meetings: Result<(), String>,
    pub(super) dropped: Vec<DeviceId>,
    /// The dropped devices that are to be killed, if the coordinator has started them.
    pub(super) killed: Vec<DeviceId>,
    pub(super) logged: Vec<LogEntry>,
    pub(super) replies: BTreeMap<u64, Result<Reply, RequestError>>,
    pub(super) asked: u64,
    /// The group that calls name.
    pub(super) group: Option<GroupId>,
    pub(super) now_ms: u64,
}

/// A device that is in no communicator.
pub(super) fn agent(device: u32) -> Agent {
    let range = AddressRange { min: 0x1000, max: 0x2000 };
    Agent::new(DeviceId::new(device), DeviceReport { range, ..DeviceReport::default() })
}

impl Fixture {
    /// Makes devices 1 to `devices`, and a coordinator that takes requests.
    pub(super) fn new(devices: u32) -> Self {
        let mut fixture = Self {
            machine: CoordinatorMachine::new(SETTINGS, 1),
            devices: BTreeMap::new(),
            tasks: BTreeMap::new(),
            stopped: BTreeSet::new(),
            slow: BTreeSet::new(),
            meetings: Ok(()),
            dropped: Vec::new(),
            killed: Vec::new(),
            logged: Vec::new(),
            replies: BTreeMap::new(),
            asked: 0,
            group: None,
            now_ms: 0,
        };
        fixture.pass(0);
        (1..=devices).for_each(|device| fixture.register(agent(device), device));
        fixture.pass(SETTINGS.adopt_ms);
        fixture
    }

    /// Has another coordinator take over.
    pub(super) fn restart(&mut self) {
        self.begin_anew();
        for (device, agent) in std::mem::take(&mut self.devices) {
            self.register(agent, device.get());
        }
        self.pass(SETTINGS.adopt_ms);
    }

    /// Has another coordinator begin, to which no device has come back.
    pub(super) fn begin_anew(&mut self) {
        self.machine = CoordinatorMachine::new(SETTINGS, self.machine.incarnation + 1);
        self.pause(0);
    }

    pub(super) fn register(&mut self, mut agent: Agent, device: u32) {
        agent.connect();
        let (device, report) = (DeviceId::new(device), agent.outgoing_report());
        self.devices.insert(device, agent);
        self.happen(CoordinatorEvent::Registered { device, report });
    }

    /// Lets time pass while the coordinator runs.
    pub(super) fn pass(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while let Some(tick) = self.machine.next_tick_ms().filter(|tick| *tick < until) {
            self.pause(tick.saturating_sub(self.now_ms).max(1));
        }
        self.pause(until.saturating_sub(self.now_ms));
    }

    /// Lets time pass, of which the coordinator learns afterwards.
    pub(super) fn pause(&mut self, ms: u64) {
        self.now_ms += ms;
        self.happen(CoordinatorEvent::Tick(self.now_ms));
    }

    pub(super) fn happen(&mut self, event: CoordinatorEvent) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.machine.handle(event) {
                match action {
                    CoordinatorAction::Order { device, order } if !self.stopped.contains(&device) => {
                        let Some(agent) = self.devices.get_mut(&device) else { continue };
                        let steps = agent.take(order);
                        self.perform(device, steps);
                        events.extend(self.report(device));
                    }
                    CoordinatorAction::Order { .. } => {}
                    CoordinatorAction::Drop(device) => self.dropped.push(device),
                    CoordinatorAction::GiveUp { device, kills, .. } => {
                        self.dropped.push(device);
                        self.killed.extend(kills.then_some(device));
                    }
                    CoordinatorAction::Log(turn) => self.logged.push(turn),
                    CoordinatorAction::Reply { request_id, reply } => {
                        _ = self.replies.insert(request_id.client.0, reply)
                    }
                }
            }
            if events.is_empty() {
                events.extend(self.work());
            }
        }
    }

    pub(super) fn report(&self, device: DeviceId) -> Option<CoordinatorEvent> {
        let report = self.devices.get(&device)?.outgoing_report();
        Some(CoordinatorEvent::Reported { device, report })
    }

    pub(super) fn perform(&mut self, device: DeviceId, steps: Vec<AgentStep>) {
        for step in steps {
            match (step, self.tasks.get(&device)) {
                (AgentStep::Begin(order), _) => _ = self.tasks.insert(device, order),
                (AgentStep::Interrupt { .. }, Some(DeviceOrder::Run { .. }))
                    if !self.slow.contains(&device) =>
                {
                    self.finish(device, TaskOutcome::Ran(Err("it was interrupted".to_owned().into())));
                }
                _ => {}
            }
        }
    }

    pub(super) fn finish(&mut self, device: DeviceId, outcome: TaskOutcome) {
        self.tasks.remove(&device);
        let steps = self.devices.get_mut(&device).map(|agent| agent.finish(outcome));
        self.perform(device, steps.unwrap_or_default());
    }

    /// Does one task that is no group. Returns the report of the device.
    pub(super) fn work(&mut self) -> Option<CoordinatorEvent> {
        let is_to_do = |device: &DeviceId, task: &DeviceOrder| {
            !matches!(task, DeviceOrder::Run { .. }) && !self.slow.contains(device)
        };
        // Newcomers are the first to learn the outcome of a meeting.
        let found = self.tasks.iter().rfind(|(device, task)| is_to_do(device, task));
        let (device, task) = found.map(|(device, task)| (*device, task.clone()))?;
        let members = self.devices[&device].report().membership.as_ref()?.formation.members.clone();
        let is_lost = |member: &DeviceId| !self.devices.contains_key(member) || self.stopped.contains(member);
        let lost = (0..).zip(&members).filter(|(_, member)| is_lost(member)).map(|(rank, _)| rank).collect();
        self.finish(
            device,
            match task {
                DeviceOrder::Host(_) => TaskOutcome::Hosted(Ok("id".to_owned())),
                DeviceOrder::GoOn { .. } => TaskOutcome::WentOn(Ok(lost)),
                DeviceOrder::Leave { .. } => TaskOutcome::Left,
                _ => TaskOutcome::Met(self.meetings.clone().map(|()| members)),
            },
        );
        self.report(device)
    }

    /// Sends a request as a new client. Returns the client.
    pub(super) fn ask(&mut self, request: ClientRequest) -> u64 {
        self.asked += 1;
        let client = ClientId(self.asked);
        let request_id = RequestId { client, number: 1 };
        self.happen(CoordinatorEvent::Requested { request_id, request });
        self.asked
    }

    #[track_caller]
    pub(super) fn answer(&mut self, request: ClientRequest) -> Result<Reply, RequestError> {
        let client = self.ask(request);
        self.replies.remove(&client).expect("an answer at once")
    }

    #[track_caller]
    pub(super) fn status(&mut self) -> CommStatus {
        match self.answer(ClientRequest::Status { comm: COMM, settled: false }) {
            Ok(Reply::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn init(&mut self, devices: u32, keep_going: bool) {
        self.answer(ClientRequest::Init { devices, keep_going }).unwrap();
    }

    pub(super) fn call(&mut self) -> Result<Reply, RequestError> {
        self.call_on(COMM)
    }

    pub(super) fn call_on(&mut self, comm: CommId) -> Result<Reply, RequestError> {
        let (operation, data_type, op) = (Operation::AllReduce, DataType::F64, ReduceOp::Sum);
        let addresses = vec![0x1000; self.machine.comms.get(&comm).map_or(1, |comm| comm.members.len())];
        let (send, recv) = (addresses.clone(), addresses);
        let call = DeviceCall { operation, data_type, op, root: 0, count: 1, send, recv };
        self.answer(ClientRequest::Call { comm, group: self.group, call })
    }

    /// Ends the group of all devices like this.
    pub(super) fn end_group(&mut self, outcome: &Result<(), String>) {
        for device in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.finish(device, TaskOutcome::Ran(outcome.clone().map(|()| None).map_err(GroupFailure::from)));
            self.report(device).into_iter().for_each(|event| self.happen(event));
        }
    }
}
