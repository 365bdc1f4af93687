use super::*;
use crate::coordinator::call::GroupWork;

const ME: DeviceId = DeviceId::new(2);

impl From<String> for GroupFailure {
    fn from(why: String) -> Self {
        Self { why, kind: FailureKind::Other, rank: None, is_undone: false, report: None }
    }
}

fn formation() -> CommFormation {
    CommFormation {
        comm: CommId::new(5),
        incarnation: 1,
        epoch: 1,
        members: [1, 2, 3].map(DeviceId::new).to_vec(),
        keep_going: false,
    }
}

fn ready() -> Agent {
    let mut agent = Agent::new(ME, DeviceReport::default());
    agent.connect();
    agent.take(DeviceOrder::Join { formation: formation(), groups: 0, last: None, id: "id".to_owned() });
    agent.finish(TaskOutcome::Met(Ok(formation().members)));
    agent
}

fn phase(agent: &Agent) -> &DevicePhase {
    &agent.report().membership.as_ref().unwrap().phase
}

fn groups(agent: &Agent) -> u64 {
    agent.report().membership.as_ref().unwrap().groups
}

fn run(group: u64) -> DeviceOrder {
    DeviceOrder::Run { comm: CommId::new(5), epoch: 1, group, work: GroupWork::Calls(Vec::new()) }
}

fn go_on(attempt: u32) -> DeviceOrder {
    let lost = vec![DeviceId::new(3)];
    DeviceOrder::GoOn { comm: CommId::new(5), epoch: 1, attempt, groups: 1, last: None, lost }
}

#[test]
fn an_order_that_comes_twice_is_executed_once() {
    let mut agent = ready();
    assert_eq!(agent.take(run(1)), [AgentStep::Begin(run(1))]);
    assert_eq!(agent.take(run(1)), []);
    assert_eq!(agent.finish(TaskOutcome::Ran(Ok(None))), []);
    assert_eq!(agent.take(run(1)), []);
    assert_eq!((groups(&agent), phase(&agent)), (1, &DevicePhase::Ready(None)));
    assert_eq!(agent.report().heard, 4, "each of them was heard");
}

#[test]
fn what_a_group_consists_of_is_told_to_a_coordinator_that_has_not_ordered_it_and_to_no_other() {
    let mut agent = ready();
    agent.take(run(1));
    let told = |agent: &Agent| match agent.outgoing_report().membership.unwrap().phase {
        DevicePhase::Running(work) => work,
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&agent), None);
    agent.take(run(1));
    assert_eq!(told(&agent), None);
    agent.connect();
    assert_eq!(told(&agent), Some(GroupWork::Calls(Vec::new())));
    agent.finish(TaskOutcome::Ran(Ok(None)));
    assert_eq!(agent.outgoing_report(), *agent.report());
}

#[test]
fn going_on_ends_what_is_in_progress_and_leaves_the_lost_behind() {
    let mut agent = ready();
    agent.take(run(1));
    let interrupt = AgentStep::Interrupt { lost: vec![2] };
    assert_eq!(agent.take(go_on(1)), vec![interrupt.clone()]);
    assert_eq!(
        agent.finish(TaskOutcome::Ran(Err("lost".to_owned().into()))),
        [interrupt, AgentStep::Begin(go_on(1))]
    );
    agent.finish(TaskOutcome::WentOn(Ok(vec![2])));
    let membership = agent.report().membership.as_ref().unwrap();
    assert_eq!((membership.formation.epoch, membership.formation.members.len()), (2, 2));
    assert_eq!(agent.take(go_on(2)), [], "it was for the epoch before");
}

#[test]
fn an_attempt_that_comes_while_another_one_goes_on_is_made_only_if_that_fails() {
    let mut agent = ready();
    agent.take(go_on(1));
    let interrupt = AgentStep::Interrupt { lost: vec![2] };
    assert_eq!(agent.take(go_on(2)), vec![interrupt.clone()]);
    assert_eq!(agent.finish(TaskOutcome::WentOn(Ok(vec![2]))), []);
    let mut agent = ready();
    agent.take(go_on(1));
    agent.take(go_on(2));
    assert_eq!(
        agent.finish(TaskOutcome::WentOn(Err("no".to_owned()))),
        [interrupt, AgentStep::Begin(go_on(2))]
    );
}

#[test]
fn who_is_told_to_leave_at_once_does_not_wait_for_the_others() {
    let mut agent = ready();
    let leave = |gracefully| DeviceOrder::Leave { comm: CommId::new(5), gracefully };
    assert_eq!(agent.take(leave(true)), [AgentStep::Begin(leave(true))]);
    assert_eq!(agent.take(leave(false)), [AgentStep::Interrupt { lost: Vec::new() }]);
    assert_eq!(agent.finish(TaskOutcome::Left), []);
    assert_eq!(agent.comm(), None);
}

fn grow(id: &str, is_off: bool) -> DeviceOrder {
    let off = is_off.then(Vec::new);
    let members = [1, 2, 3, 4].map(DeviceId::new).to_vec();
    DeviceOrder::Grow {
        formation: CommFormation { epoch: 2, members, ..formation() },
        id: id.to_owned(),
        off,
    }
}

#[test]
fn what_has_grown_in_vain_stays_what_it_was_and_is_not_tried_again_under_that_id() {
    let mut agent = ready();
    let begun = |id: &str, is_off| AgentStep::Begin(grow(id, is_off));
    assert_eq!(agent.take(grow("a", false)), [begun("a", false)]);
    assert_eq!(agent.take(grow("a", false)), []);
    assert_eq!(agent.take(grow("a", true)), [AgentStep::CancelMeeting]);
    assert_eq!(agent.finish(TaskOutcome::Met(Err("nobody came".to_owned()))), []);
    assert_eq!(agent.take(grow("a", true)), []);
    assert_eq!(agent.take(run(1)), [AgentStep::Begin(run(1))], "it is of use");
    agent.finish(TaskOutcome::Ran(Ok(None)));
    assert_eq!(
        agent.take(grow("b", true)),
        [begun("b", true), AgentStep::CancelMeeting],
        "the others count on it"
    );
    let members = [1, 2, 3, 7].map(DeviceId::new).to_vec();
    agent.finish(TaskOutcome::Met(Ok(members.clone())));
    let membership = agent.report().membership.as_ref().unwrap();
    assert_eq!((membership.formation.epoch, &membership.formation.members), (2, &members));
    assert_eq!((membership.groups, &membership.phase), (1, &DevicePhase::Ready(None)));
    assert_eq!(agent.take(grow("c", false)), [], "it was for the epoch before");
}

#[test]
fn who_is_told_to_leave_while_it_grows_leaves_when_the_meeting_has_ended() {
    let mut agent = ready();
    agent.take(grow("a", false));
    let leave = DeviceOrder::Leave { comm: CommId::new(5), gracefully: false };
    assert_eq!(agent.take(leave.clone()), [AgentStep::Interrupt { lost: Vec::new() }]);
    let steps = agent.finish(TaskOutcome::Ended("revoked".to_owned()));
    let gone = AgentStep::Begin(leave);
    assert_eq!(steps, [AgentStep::Interrupt { lost: Vec::new() }, gone]);
}

#[test]
fn a_checkpoint_that_is_undone_leaves_the_device_ready_and_is_told() {
    let mut agent = ready();
    let work = GroupWork::Checkpoint("/there".to_owned());
    let order = DeviceOrder::Run { comm: CommId::new(5), epoch: 1, group: 1, work };
    assert_eq!(agent.take(order.clone()), [AgentStep::Begin(order)]);
    let (why, kind) = ("no space".to_owned(), FailureKind::Other);
    agent.finish(TaskOutcome::Ran(Err(GroupFailure {
        why,
        kind,
        rank: Some(0),
        is_undone: true,
        report: None,
    })));
    assert_eq!((groups(&agent), phase(&agent)), (1, &DevicePhase::Ready(None)));
    let last = agent.report().membership.as_ref().unwrap().last.clone().unwrap();
    assert_eq!((last.group, last.failure.as_deref(), last.checkpoint), (1, Some("no space"), None));
    assert_eq!(last.culprit, Some(DeviceId::new(1)), "where it failed");
    agent.take(run(2));
    agent.finish(TaskOutcome::Ran(Ok(Some(7))));
    assert_eq!(agent.report().membership.as_ref().unwrap().last.as_ref().unwrap().checkpoint, Some(7));
}
