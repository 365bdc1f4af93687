use std::collections::BTreeMap;

use crate::coordinator::agent::{Agent, Outcome, Step, Task};
use crate::coordinator::call::AddressRange;
use crate::coordinator::id::{ClientId, CommId, DeviceId};
use crate::coordinator::machine::{Action, Event, Machine, Settings};
use crate::coordinator::request::Request;

/// A coordinator and devices that execute each task at once, as the test says.
struct Plane {
    machine: Machine,
    agents: BTreeMap<DeviceId, Agent>,
    replies: Vec<String>,
}

impl Plane {
    fn new(n_devices: u32) -> Self {
        let machine = Machine::new(Settings { adopt_ms: 0, patience_ms: 1000, hang_rule: None }, 1);
        let mut plane = Self { machine, agents: BTreeMap::new(), replies: Vec::new() };
        plane.happen(Event::Tick { now_ms: 1 }, &|_, _| None);
        for device in (1..=n_devices).map(DeviceId::new) {
            let mut agent = Agent::new(device);
            agent.connect();
            let (range, report) = (AddressRange { min: 0x1000, max: 0x2000 }, agent.report().clone());
            plane.agents.insert(device, agent);
            plane.happen(Event::Registered { device, range, socket: String::new(), report }, &|_, _| None);
        }
        plane
    }

    fn ask(&mut self, request: Request, outcome: &dyn Fn(DeviceId, &Task) -> Option<Outcome>) {
        self.happen(Event::Requested { client: ClientId::new(1), number: 1, request }, outcome);
    }

    /// Lets something happen, and all that follows from it. A task without an outcome is not ended.
    fn happen(&mut self, event: Event, outcome: &dyn Fn(DeviceId, &Task) -> Option<Outcome>) {
        for action in self.machine.handle(event) {
            match action {
                Action::Order { device, order } => {
                    let steps = self.agents.get_mut(&device).unwrap().take(order);
                    self.follow(device, steps, outcome);
                }
                Action::Reply { reply: Ok(_), .. } | Action::Log(_) => {}
                Action::Reply { reply: Err(refusal), .. } => self.replies.push(refusal.to_string()),
                Action::Drop { device } => panic!("device {device} was dropped"),
            }
        }
    }

    fn follow(
        &mut self,
        device: DeviceId,
        steps: Vec<Step>,
        outcome: &dyn Fn(DeviceId, &Task) -> Option<Outcome>,
    ) {
        self.report(device, outcome);
        for step in steps {
            let Step::Begin(task) = step else { continue };
            if let Some(outcome_of_task) = outcome(device, &task) {
                let next = self.agents.get_mut(&device).unwrap().finish(outcome_of_task);
                self.follow(device, next, outcome);
            }
        }
    }

    fn report(&mut self, device: DeviceId, outcome: &dyn Fn(DeviceId, &Task) -> Option<Outcome>) {
        let report = self.agents[&device].report().clone();
        self.happen(Event::Reported { device, report }, outcome);
    }
}

#[test]
fn a_newcomer_that_stops_after_it_was_told_to_come_is_named() {
    let mut plane = Plane::new(4);
    let [one, two, three, four] = [1, 2, 3, 4].map(DeviceId::new);
    plane.ask(Request::Init { devices: 2, keep_going: false }, &|_, task| match task {
        Task::Host => Some(Outcome::Hosted(Ok("id".to_owned()))),
        _ => Some(Outcome::Met(Ok(vec![one, two]))),
    });
    let late = || Some(Outcome::Met(Err("a rank has not come".to_owned())));
    plane.ask(Request::Grow { comm: CommId::new(1), devices: 2 }, &|device, task| match task {
        Task::Host => Some(Outcome::Hosted(Ok("id of the next meeting".to_owned()))),
        _ if device == four => None,
        _ => late(),
    });
    let [why] = &plane.replies[..] else { panic!("{:?}", plane.replies) };
    assert!(why.contains(&format!("device {three}: a rank has not come")), "{why}");
    assert!(why.contains(&format!("; device {four} was told to come, and has not;")), "{why}");
}
