//! The state machine with devices that execute every order at once, except for groups, which end
//! when the test says so.

mod fixture;

use super::repeat::MOST_TRIES;
use super::*;
use crate::collective::Operation;
use crate::coordinator::agent::{Agent, GroupFailure, TaskOutcome};
use crate::coordinator::call::{DeviceCall, GroupWork};
use crate::coordinator::id::{GroupId, MAX_NUMBER};
use crate::coordinator::order::{CommFormation, DeviceMembership, DevicePhase, FailureKind};
use crate::coordinator::request::{CallProgress, CommState, GroupOutcome};
use crate::reduce::{DataType, ReduceOp};
use fixture::{Fixture, agent};

const SETTINGS: CoordinatorSettings =
    CoordinatorSettings { adopt_ms: 400, patience_ms: 3000, hang_rule: None, spares_hung: false };
const COMM: CommId = CommId::new(1);

#[test]
fn what_was_finalized_is_left_when_its_group_is_done_though_nobody_waits_for_it_any_more() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    fixture.call().unwrap();
    let request_id = fixture.ask(ClientRequest::Finalize(COMM));
    assert_eq!(fixture.status().state, CommState::Finalizing);
    fixture.happen(CoordinatorEvent::ClientGone(ClientId(request_id)));
    assert_eq!(fixture.status().state, CommState::Finalizing);
    assert!(matches!(fixture.call(), Err(RequestError::WrongState { state: CommState::Finalizing, .. })));
    fixture.end_group(&Ok(()));
    assert!(matches!(fixture.call(), Err(RequestError::Ended { .. })));
    assert_eq!(fixture.machine.table.free().len(), 2);
}

#[test]
fn a_group_that_fails_undoes_finalizing() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    fixture.call().unwrap();
    let request_id = fixture.ask(ClientRequest::Finalize(COMM));
    fixture.end_group(&Err("it went wrong".to_owned()));
    assert!(matches!(fixture.replies[&request_id], Err(RequestError::Failed { .. })));
    assert_eq!(fixture.status().state, CommState::Failed);
    fixture.answer(ClientRequest::GoOn(COMM)).unwrap();
    fixture.call().unwrap();
    assert_eq!(fixture.status().state, CommState::InProgress, "it is of use");
}

#[test]
fn how_a_communicator_has_ended_is_told_as_long_as_it_is_remembered() {
    let mut fixture = Fixture::new(3);
    fixture.init(2, false);
    fixture.call().unwrap();
    fixture.end_group(&Ok(()));
    fixture.answer(ClientRequest::Finalize(COMM)).unwrap();
    let status = fixture.status();
    assert_eq!((status.state, status.why), (CommState::Finalized, None));
    assert_eq!(status.last.map(|last| last.failure), Some(None));

    let mut fixture = Fixture::new(3);
    fixture.init(2, false);
    fixture.call().unwrap();
    fixture.answer(ClientRequest::Destroy(COMM)).unwrap();
    let status = fixture.status();
    assert_eq!((status.state, status.why.as_deref()), (CommState::Destroyed, Some("it was destroyed")));
    assert!(status.last.unwrap().failure.unwrap().contains("destroyed"), "the group did not end by itself");
}

#[test]
fn what_has_lost_all_devices_says_so_to_who_waits_and_who_wants_to_go_on() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    fixture.call().unwrap();
    let waiting = fixture.ask(ClientRequest::Status { comm: COMM, settled: true });
    for device in [1, 2].map(DeviceId::new) {
        fixture.tasks.remove(&device);
        fixture.devices.remove(&device);
    }
    for device in [1, 2].map(DeviceId::new) {
        fixture.happen(CoordinatorEvent::Gone(device));
    }
    let Some(Ok(Reply::Status(told))) = fixture.replies.remove(&waiting) else { panic!("no answer") };
    assert_eq!(told.state, CommState::Failed, "when the first is lost");
    let status = fixture.status();
    assert_eq!((status.state, status.lost.len()), (CommState::Destroyed, 2));
    assert!(status.why.unwrap().starts_with("all its devices were lost: device 1"), "and why");
    assert_eq!(status.last.unwrap().group, 1);
    let refused = fixture.answer(ClientRequest::GoOn(COMM)).unwrap_err().to_string();
    assert!(
        refused.contains("has ended (all its devices were lost: device 1 was lost); make another"),
        "{refused}"
    );
}

#[test]
fn a_pause_of_the_coordinator_is_no_silence_of_a_device() {
    let mut fixture = Fixture::new(2);
    fixture.machine.settings.spares_hung = true;
    let device = DeviceId::new(1);
    fixture.stopped.insert(device);
    fixture.ask(ClientRequest::Init { devices: 2, keep_going: false });
    fixture.pause(100 * SETTINGS.patience_ms);
    assert_eq!(fixture.dropped, [], "its answer may be on the way");
    fixture.pass(SETTINGS.patience_ms / 4);
    assert_eq!(fixture.dropped, []);
    fixture.pass(SETTINGS.patience_ms);
    assert_eq!(
        fixture.dropped,
        [device],
        "it has been heard of by nobody for all of the time that was watched"
    );
    assert_eq!(fixture.killed, [], "and is spared");
}

#[test]
fn a_pause_of_a_new_coordinator_leaves_devices_the_time_to_come_back() {
    let mut fixture = Fixture::new(0);
    fixture.begin_anew();
    fixture.pause(100 * SETTINGS.adopt_ms);
    assert!(!fixture.machine.is_open(), "who came meanwhile has yet to be taken in");
    fixture.pass(SETTINGS.adopt_ms / 2);
    assert!(!fixture.machine.is_open());
    fixture.pass(SETTINGS.adopt_ms / 4);
    assert!(fixture.machine.is_open(), "it was there to see all of that time but the pause");
}

/// Makes a communicator of two, and another coordinator to which only the first of them has come
/// back in the time for adoption.
fn half_adopted() -> (Fixture, Agent) {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    let late = fixture.devices.remove(&DeviceId::new(2)).unwrap();
    fixture.restart();
    assert_eq!(fixture.status().state, CommState::Init);
    assert_eq!(fixture.machine.awaited(), [DeviceId::new(2)].into());
    (fixture, late)
}

#[test]
fn a_member_that_comes_back_late_is_as_welcome_as_one_that_hears_an_order_late() {
    let (mut fixture, late) = half_adopted();
    fixture.pass(SETTINGS.patience_ms - SETTINGS.adopt_ms - 1);
    assert_eq!(fixture.status().state, CommState::Init);
    fixture.register(late, 2);
    assert_eq!((fixture.status().state, fixture.status().lost), (CommState::Ready, vec![]));
    let (mut fixture, _) = half_adopted();
    fixture.pass(SETTINGS.patience_ms - SETTINGS.adopt_ms);
    assert_eq!((fixture.status().state, fixture.status().lost), (CommState::Failed, vec![DeviceId::new(2)]));
    assert_eq!(fixture.killed, [DeviceId::new(2)], "it lives, and is of no use to anybody");
    assert!(fixture.status().why.unwrap().ends_with("it hangs, and has not come back in 3000 ms"));
}

#[test]
fn a_member_that_has_died_with_the_coordinator_is_not_waited_for() {
    let (mut fixture, _) = half_adopted();
    fixture.happen(CoordinatorEvent::Gone(DeviceId::new(2)));
    assert_eq!(fixture.killed, [], "another process may have its number");
    assert_eq!((fixture.status().state, fixture.status().lost), (CommState::Failed, vec![DeviceId::new(2)]));
    assert_eq!(fixture.machine.awaited(), [].into());
    // Another process may have its number by and by.
    fixture.register(agent(2), 2);
    assert!(fixture.machine.dead.is_empty());
}

#[test]
fn a_member_without_signs_of_life_is_lost_by_that_though_it_has_heard_all_and_is_named() {
    let rule = HangRule::new(std::time::Duration::from_millis(500), 3, 4).unwrap();
    let mut fixture = Fixture::new(2);
    fixture.machine.settings.hang_rule = Some(rule);
    fixture.init(2, false);
    fixture.call().unwrap();
    let (up, hung) = (DeviceId::new(1), DeviceId::new(2));
    fixture.pass(1);
    for look in 0..3 {
        assert_eq!(fixture.dropped, [], "look {look}");
        fixture.happen(CoordinatorEvent::Heartbeat(up));
        fixture.pass(500);
    }
    assert_eq!((&fixture.dropped[..], &fixture.killed[..]), (&[hung][..], &[hung][..]));
    let status = fixture.status();
    assert_eq!((status.state, status.lost), (CommState::Failed, vec![hung]));
    let last = status.last.unwrap();
    assert_eq!(last.culprit, Some(hung));
    let why = last.failure.unwrap();
    assert_eq!(why, "device 2 was lost: it hangs, without a sign of life in 3 of 4 looks, one in 500ms");
}

#[test]
fn the_member_that_was_waited_for_in_vain_is_named_whoever_tells_of_the_end_first() {
    let mut fixture = Fixture::new(3);
    fixture.init(3, false);
    fixture.call().unwrap();
    let ran = |kind, rank| {
        let why = format!("{kind:?}");
        TaskOutcome::Ran(Err(GroupFailure { why, kind, rank, is_undone: false, report: None }))
    };
    let outcomes = [(3, ran(FailureKind::Revoked, None)), (1, ran(FailureKind::Timeout, Some(1)))];
    for (device, outcome) in outcomes.map(|(device, outcome)| (DeviceId::new(device), outcome)) {
        assert_eq!(fixture.status().last, None, "it is worth a moment to hear of the cause");
        fixture.finish(device, outcome);
        fixture.report(device).into_iter().for_each(|event| fixture.happen(event));
    }
    let status = fixture.status();
    let expected = Some("device 1: Timeout (device 2)".to_owned());
    assert_eq!((status.why, status.state), (expected.clone(), CommState::Failed));
    assert_eq!(
        status.last.map(|last| (last.failure, last.culprit)),
        Some((expected, Some(DeviceId::new(2))))
    );
}

#[test]
fn a_call_that_names_a_group_is_executed_in_that_or_not_at_all() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    let start = |fixture: &mut Fixture| match fixture
        .answer(ClientRequest::GroupStart { comm: COMM, repeats: false })
    {
        Ok(Reply::GroupStarted(started)) => started.group,
        other => panic!("{other:?}"),
    };
    let (first, cancel) = (start(&mut fixture), ClientRequest::GroupCancel { comm: COMM, group: None });
    fixture.group = Some(first);
    assert!(matches!(fixture.call(), Ok(Reply::Called(CallProgress::Queued { calls: 1, .. }))));
    assert_eq!(fixture.answer(cancel.clone()), Ok(Reply::GroupCancelled));
    assert_eq!(fixture.answer(cancel), Err(RequestError::GroupOpen { comm: COMM, open: false }));
    assert_eq!(fixture.call(), Err(RequestError::NoSuchGroup { comm: COMM, group: first }));
    let second = start(&mut fixture);
    assert_eq!(
        fixture.call(),
        Err(RequestError::NoSuchGroup { comm: COMM, group: first }),
        "it is another one"
    );
    fixture.group = Some(second);
    assert!(matches!(fixture.call(), Ok(Reply::Called(CallProgress::Queued { calls: 1, .. }))));

    fixture.restart();
    assert_eq!(fixture.call(), Err(RequestError::NoSuchGroup { comm: COMM, group: second }));
    let end = ClientRequest::GroupEnd { comm: COMM, group: Some(second), settled: false };
    assert_eq!(fixture.answer(end), Err(RequestError::NoSuchGroup { comm: COMM, group: second }));
    assert_ne!(start(&mut fixture), first, "whatever the coordinator");
    assert_eq!(fixture.status().last, None, "nothing was executed");
}

#[test]
fn who_ends_a_group_may_be_answered_when_it_is_over_by_how_it_has_ended() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, true);
    let end = |group| ClientRequest::GroupEnd { comm: COMM, group, settled: true };
    assert_eq!(fixture.answer(end(None)), Err(RequestError::GroupOpen { comm: COMM, open: false }));
    for (number, outcome) in [(1, Ok(())), (2, Err("it went wrong".to_owned()))] {
        let Ok(Reply::GroupStarted(started)) =
            fixture.answer(ClientRequest::GroupStart { comm: COMM, repeats: false })
        else {
            panic!("no group")
        };
        assert_eq!((started.devices, started.after), ([1, 2].map(DeviceId::new).to_vec(), number - 1));
        fixture.group = Some(started.group);
        fixture.call().unwrap();
        let client = fixture.ask(end(fixture.group));
        assert_eq!(fixture.replies.get(&client), None, "it is in progress");
        fixture.end_group(&outcome);
        let Some(Ok(Reply::Status(status))) = fixture.replies.remove(&client) else { panic!("no answer") };
        let last = status.last.unwrap();
        assert_eq!((last.group, last.failure.is_some()), (number, outcome.is_err()));
    }
}

#[test]
fn where_memory_is_may_be_told_when_no_group_is_in_progress_in_it_any_more() {
    let mut fixture = Fixture::new(3);
    fixture.init(2, false);
    let locate = |device, settled| ClientRequest::Locate { device: DeviceId::new(device), settled };
    assert!(matches!(fixture.answer(locate(1, true)), Ok(Reply::Located(_))), "none is");
    assert!(matches!(fixture.answer(locate(3, true)), Err(RequestError::NotAllocated { .. })));
    assert!(matches!(fixture.answer(locate(4, true)), Err(RequestError::NoSuchDevice { .. })));
    fixture.call().unwrap();
    let client = fixture.ask(locate(1, true));
    assert_eq!(fixture.replies.get(&client), None);
    assert!(matches!(fixture.answer(locate(1, false)), Ok(Reply::Located(_))), "who does not wait is told");
    fixture.end_group(&Ok(()));
    assert!(matches!(fixture.replies.remove(&client), Some(Ok(Reply::Located(_)))));

    fixture.call().unwrap();
    let client = fixture.ask(locate(1, true));
    fixture.answer(ClientRequest::Destroy(COMM)).unwrap();
    let refused = RequestError::NotAllocated { device: DeviceId::new(1) };
    assert_eq!(fixture.replies.remove(&client), Some(Err(refused)));
}

fn checkpoint() -> ClientRequest {
    ClientRequest::Checkpoint { comm: COMM, directory: "/there".to_owned() }
}

/// Ends the group of all devices like this, in the order of their numbers.
fn end_checkpoint(fixture: &mut Fixture, outcomes: &[Result<Option<u64>, GroupFailure>]) {
    for (device, outcome) in (1..).map(DeviceId::new).zip(outcomes) {
        assert!(matches!(fixture.status().state, CommState::InProgress | CommState::Finalizing));
        fixture.finish(device, TaskOutcome::Ran(outcome.clone()));
        fixture.report(device).into_iter().for_each(|event| fixture.happen(event));
    }
}

fn undone(why: &str, rank: Option<u32>) -> Result<Option<u64>, GroupFailure> {
    let kind = FailureKind::Other;
    Err(GroupFailure { why: why.to_owned(), kind, rank, is_undone: true, report: None })
}

#[test]
fn a_checkpoint_is_in_progress_until_all_have_written_it_and_is_told_by_its_number() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    let request_id = fixture.ask(checkpoint());
    assert!(matches!(fixture.call(), Err(RequestError::WrongState { state: CommState::InProgress, .. })));
    assert!(matches!(fixture.answer(checkpoint()), Err(RequestError::WrongState { .. })), "one at a time");
    end_checkpoint(&mut fixture, &[Ok(Some(5)), Ok(Some(5))]);
    assert_eq!(fixture.replies[&request_id], Ok(Reply::Checkpoint(5)));
    let last = fixture.status().last.unwrap();
    assert_eq!((last.group, last.failure, last.checkpoint), (1, None, Some(5)));
    for directory in ["here", "", "/zero\0", &format!("/{}", "x".repeat(4096))] {
        let request = ClientRequest::Restore { comm: COMM, directory: directory.to_owned() };
        assert!(matches!(fixture.answer(request), Err(RequestError::BadDirectory { .. })), "{directory}");
    }
}

#[test]
fn a_checkpoint_that_fails_is_told_by_who_knows_why_and_the_communicator_is_of_use() {
    let mut fixture = Fixture::new(3);
    fixture.init(3, false);
    let request_id = fixture.ask(checkpoint());
    let finalizing = fixture.ask(ClientRequest::Finalize(COMM));
    let elsewhere = undone("failed on rank 1", Some(1));
    end_checkpoint(&mut fixture, &[elsewhere.clone(), undone("no space", None), elsewhere]);
    let why = "device 2: no space".to_owned();
    let refused = Err(RequestError::CheckpointFailed { comm: COMM, why: why.clone() });
    assert_eq!((&fixture.replies[&request_id], &fixture.replies[&finalizing]), (&refused, &refused));
    let status = fixture.status();
    assert_eq!(
        (status.state, status.why),
        (CommState::Ready, None),
        "not even finalized: the data are there"
    );
    assert_eq!(status.last.unwrap().failure, Some(why));
    fixture.call().unwrap();
    fixture.end_group(&Ok(()));
    assert_eq!(fixture.status().last.unwrap().failure, None);
}

#[test]
fn a_device_that_dies_in_a_checkpoint_is_a_failure_and_one_that_is_destroyed_is_told() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    let request_id = fixture.ask(checkpoint());
    fixture.devices.remove(&DeviceId::new(2));
    fixture.tasks.remove(&DeviceId::new(2));
    fixture.happen(CoordinatorEvent::Gone(DeviceId::new(2)));
    assert!(
        matches!(&fixture.replies[&request_id], Err(RequestError::Failed { why, .. }) if why == "device 2 was lost")
    );
    assert_eq!(fixture.status().state, CommState::Failed);
    fixture.answer(ClientRequest::GoOn(COMM)).unwrap();
    let request_id = fixture.ask(checkpoint());
    fixture.answer(ClientRequest::Destroy(COMM)).unwrap();
    assert!(matches!(&fixture.replies[&request_id], Err(RequestError::Ended { .. })));
}

#[test]
fn a_coordinator_that_takes_over_in_a_checkpoint_comes_to_know_how_it_ended() {
    for (outcome, failure) in [(Ok(Some(3)), None), (undone("no space", None), Some("no space"))] {
        let mut fixture = Fixture::new(2);
        fixture.init(2, false);
        fixture.ask(checkpoint());
        fixture.restart();
        assert_eq!(fixture.status().state, CommState::InProgress);
        end_checkpoint(&mut fixture, &[outcome.clone(), outcome]);
        let status = fixture.status();
        assert_eq!(status.state, CommState::Ready);
        let told = status.last.unwrap().failure;
        assert_eq!(told.as_deref().map(|told| told.trim_start_matches("device 1: ")), failure);
    }
}

/// Returns the report of a device that claims to be alone in a communicator of this number.
fn alone(device: u32, comm: u64, text: &str) -> DeviceReport {
    let (device, comm) = (DeviceId::new(device), CommId::new(comm));
    let formation =
        CommFormation { comm, incarnation: 9, epoch: 1, members: vec![device], keep_going: false };
    let (kind, why) = (FailureKind::Other, text.to_owned());
    let phase = DevicePhase::Failed { attempt: 1, why, kind, culprit: None };
    let (failure, report) = (Some(text.repeat(2)), Some(text.repeat(16)));
    let last = Some(GroupOutcome { group: 1, failure, culprit: None, checkpoint: None, report });
    let membership = Some(DeviceMembership { formation, has_met: true, groups: 1, phase, last });
    DeviceReport { version: 1, membership, ..DeviceReport::default() }
}

#[test]
fn numbers_for_communicators_do_not_run_out_by_one_that_a_device_makes_up() {
    let mut fixture = Fixture::new(3);
    let report = alone(9, MAX_NUMBER - 1, "");
    fixture.happen(CoordinatorEvent::Registered { device: DeviceId::new(9), report });
    for expected in 1..=2 {
        match fixture.answer(ClientRequest::Init { devices: 1, keep_going: false }) {
            Ok(Reply::Status(status)) => assert_eq!(status.comm.get(), expected),
            other => panic!("{other:?}"),
        }
    }
    fixture.answer(ClientRequest::Finalize(COMM)).unwrap();
    match fixture.answer(ClientRequest::Init { devices: 1, keep_going: false }) {
        Ok(Reply::Status(status)) => assert_eq!(status.comm.get(), 3, "how 1 has ended can still be asked"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_of_communicators_that_have_much_to_say_comes_in_messages_that_are_short_enough() {
    let mut fixture = Fixture::new(0);
    for device in 1..=100 {
        // Each of these takes six bytes in a message.
        let report = alone(device, 1000 + u64::from(device), &"\u{1}".repeat(1 << 10));
        fixture.happen(CoordinatorEvent::Registered { device: DeviceId::new(device), report });
    }
    let (mut from, mut listed) = (CommId::default(), 0);
    loop {
        let reply = fixture.answer(ClientRequest::List { from });
        crate::coordinator::wire::encode(&reply).unwrap();
        let Ok(Reply::List { comms, more }) = reply else { panic!("{reply:?}") };
        listed += comms.len();
        from = comms.last().unwrap().comm.next();
        if !more {
            break;
        }
    }
    assert_eq!(listed, 100);
}

#[test]
fn a_log_has_a_line_for_each_turn_and_none_for_what_only_goes_on() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    fixture.call().unwrap();
    fixture.end_group(&Ok(()));
    fixture.pass(10 * SETTINGS.patience_ms);
    let lost = DeviceId::new(2);
    fixture.devices.remove(&lost);
    fixture.happen(CoordinatorEvent::Gone(lost));
    fixture.answer(ClientRequest::GoOn(COMM)).unwrap();
    fixture.answer(ClientRequest::Finalize(COMM)).unwrap();
    let words = fixture.logged.iter().map(|turn| match turn {
        LogEntry::Registered(device) => format!("{device} registered"),
        LogEntry::Lost { device, .. } => format!("{device} lost"),
        LogEntry::Comm(status) => format!("{} {}", status.state, status.epoch),
    });
    let expected =
        ["1 registered", "2 registered", "ready 1", "2 lost", "failed 1", "ready 2", "finalized 2"];
    assert_eq!(words.collect::<Vec<_>>(), expected);
}

#[test]
fn a_group_of_which_only_the_end_is_told_fails_by_that_after_a_moment() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    fixture.call().unwrap();
    let (why, kind) = ("revoked".to_owned(), FailureKind::Revoked);
    let device = DeviceId::new(1);
    fixture.finish(
        device,
        TaskOutcome::Ran(Err(GroupFailure { why, kind, rank: None, is_undone: false, report: None })),
    );
    fixture.report(device).into_iter().for_each(|event| fixture.happen(event));
    assert_eq!(fixture.status().state, CommState::InProgress);
    fixture.pass(200);
    assert_eq!(fixture.status().why.as_deref(), Some("device 1: revoked"));
}

#[test]
fn a_device_whose_worker_hangs_is_gone_on_without_and_holds_no_answer_up() {
    let mut fixture = Fixture::new(3);
    fixture.init(3, false);
    fixture.slow.insert(DeviceId::new(3));
    fixture.call().unwrap();
    let lost = DeviceId::new(1);
    fixture.tasks.remove(&lost);
    fixture.devices.remove(&lost);
    fixture.happen(CoordinatorEvent::Gone(lost));
    let request_id = fixture.ask(ClientRequest::GoOn(COMM));
    fixture.pass(SETTINGS.patience_ms - 1);
    assert_eq!(
        (fixture.replies.len(), fixture.dropped.len()),
        (0, 0),
        "it may take as long for that as for an order"
    );
    fixture.slow.insert(DeviceId::new(2));
    fixture.pass(1);
    assert_eq!(fixture.dropped, [DeviceId::new(3)]);
    assert!(!fixture.replies.contains_key(&request_id));
    // Nor does it hold up that it is destroyed, though now nobody gets anything done.
    let destroyer = fixture.ask(ClientRequest::Destroy(COMM));
    assert!(matches!(fixture.replies[&request_id], Err(RequestError::Ended { .. })));
    fixture.pass(SETTINGS.patience_ms);
    assert_eq!(fixture.replies[&destroyer], Ok(Reply::Ended));
    assert_eq!(fixture.status().state, CommState::Destroyed);
}

#[test]
fn a_newcomer_that_stops_after_it_was_told_to_come_is_named() {
    let mut fixture = Fixture::new(4);
    fixture.init(2, false);
    fixture.slow.insert(DeviceId::new(4));
    fixture.meetings = Err("a rank has not come".to_owned());
    let why = fixture.answer(ClientRequest::Grow { comm: COMM, devices: 2 }).unwrap_err().to_string();
    assert!(why.contains("device 3: a rank has not come"), "{why}");
    assert!(why.contains("; device 4 was told to come, and has not;"), "{why}");
}

#[test]
fn a_coordinator_that_waits_for_ever_judges_nobody_and_has_a_next_look_at_the_time() {
    let forever = CoordinatorSettings { adopt_ms: u64::MAX, patience_ms: u64::MAX, ..SETTINGS };
    for (settings, is_open) in [(forever, false), (CoordinatorSettings { adopt_ms: 0, ..forever }, true)] {
        let mut fixture = Fixture::new(2);
        fixture.machine = CoordinatorMachine::new(settings, 2);
        fixture.pause(1);
        for device in [1, 2].map(DeviceId::new) {
            let agent = fixture.devices.remove(&device).unwrap();
            fixture.register(agent, device.get());
        }
        fixture.stopped.insert(DeviceId::new(1));
        // Before, requests wait at their connection.
        if is_open {
            fixture.ask(ClientRequest::Init { devices: 2, keep_going: false });
        }
        for ms in [1, u64::MAX / 2, u64::MAX - fixture.now_ms - 1 - u64::MAX / 2] {
            fixture.pause(ms);
            assert!(
                fixture.machine.next_tick_ms().is_some_and(|tick| tick >= fixture.now_ms),
                "{settings:?}"
            );
        }
        assert_eq!((fixture.machine.is_open(), fixture.now_ms), (is_open, u64::MAX));
        assert_eq!((fixture.dropped.len(), fixture.replies.len()), (0, 0), "{settings:?}");
    }
}

#[test]
fn a_newcomer_that_hangs_is_named_with_how_that_was_found_and_forgiven_when_it_comes_again() {
    let mut fixture = Fixture::new(3);
    fixture.init(2, false);
    let newcomer = DeviceId::new(3);
    fixture.stopped.insert(newcomer);
    let in_vain = fixture.ask(ClientRequest::Grow { comm: COMM, devices: 1 });
    fixture.pass(SETTINGS.patience_ms);
    let why = fixture.replies[&in_vain].as_ref().unwrap_err().to_string();
    assert!(why.contains("device 3 was lost: it hangs, with an order unheard for 3000 ms;"), "{why}");
    assert_eq!(fixture.status().state, CommState::Ready);
    fixture.register(agent(3), 3);
    let again = fixture.ask(ClientRequest::Grow { comm: COMM, devices: 1 });
    fixture.happen(CoordinatorEvent::Gone(newcomer));
    let why = fixture.replies[&again].as_ref().unwrap_err().to_string();
    assert!(why.contains("device 3 was lost;"), "its connection has ended this time: {why}");
}

#[test]
fn what_all_ranks_were_in_is_told_with_the_group_that_failed_by_that_and_not_in_a_list() {
    let mut fixture = Fixture::new(2);
    for number in 1..=80 {
        let comm = CommId::new(number);
        fixture.init(2, false);
        fixture.call_on(comm).unwrap();
        let (why, kind) = ("timeout".to_owned(), FailureKind::Timeout);
        let report = Some(format!("rank 0: of communicator {number}"));
        for device in [1, 2].map(DeviceId::new) {
            let (why, report) = (why.clone(), report.clone());
            let trouble = GroupFailure { why, kind, rank: Some(1), is_undone: false, report };
            fixture.finish(device, TaskOutcome::Ran(Err(trouble)));
        }
        for device in [1, 2].map(DeviceId::new) {
            fixture.report(device).into_iter().for_each(|event| fixture.happen(event));
        }
        let Ok(Reply::Status(status)) = fixture.answer(ClientRequest::Status { comm, settled: true }) else {
            panic!("no status");
        };
        assert_eq!(status.last.unwrap().report, report);
        let Ok(Reply::List { comms, .. }) = fixture.answer(ClientRequest::List { from: comm }) else {
            panic!("no list")
        };
        assert!(comms.iter().all(|it| it.last.as_ref().is_some_and(|last| last.report.is_none())));
        fixture.answer(ClientRequest::Destroy(comm)).unwrap();
    }
    let mut kept = 0;
    for number in 1..=80 {
        let status = fixture.answer(ClientRequest::Status { comm: CommId::new(number), settled: false });
        let Ok(Reply::Status(status)) = status else { panic!("{status:?}") };
        kept += usize::from(status.last.unwrap().report.is_some());
    }
    assert_eq!(kept, 64, "those that have ended last");
}

#[test]
fn what_is_ended_for_want_of_devices_is_idle_at_that_very_moment() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    let end = |abandoned| ClientRequest::DestroyIdle { comm: COMM, abandoned };
    let is_busy = |answer| matches!(answer, Err(RequestError::WrongState { .. }));
    // A client has seen it ready, and another one has a call under way since.
    fixture.call().unwrap();
    assert!(is_busy(fixture.answer(end(None))));
    fixture.end_group(&Ok(()));
    assert_eq!(fixture.status().last.map(|last| last.failure), Some(None), "it was executed");
    // A group takes calls, unless it is known that nobody ends it.
    let Ok(Reply::GroupStarted(open)) =
        fixture.answer(ClientRequest::GroupStart { comm: COMM, repeats: false })
    else {
        panic!()
    };
    assert!(is_busy(fixture.answer(end(None))));
    assert_eq!(fixture.answer(end(Some(open.group))), Ok(Reply::Ended));
    assert_eq!(fixture.machine.table.free().len(), 2);
}

#[test]
fn who_watches_is_told_of_a_failure_however_soon_the_others_go_on() {
    let mut fixture = Fixture::new(3);
    fixture.init(3, true);
    let Ok(Reply::Changes(now)) = fixture.answer(ClientRequest::Changes { after: u64::MAX }) else {
        panic!()
    };
    fixture.call().unwrap();
    let lost = DeviceId::new(2);
    fixture.tasks.remove(&lost);
    fixture.devices.remove(&lost);
    fixture.happen(CoordinatorEvent::Gone(lost));
    assert_eq!(fixture.status().state, CommState::Ready, "it has gone on already");
    let Ok(Reply::Changes(told)) = fixture.answer(ClientRequest::Changes { after: now.last }) else {
        panic!()
    };
    let mut states: Vec<_> = told.changes.iter().map(|it| it.state).collect();
    states.dedup();
    assert_eq!(states, [CommState::InProgress, CommState::Failed, CommState::Ready], "{told:#?}");
    assert!(!told.is_torn && !told.more);
}

/// Starts a group that is repeated after a loss. Returns its name.
fn start_lasting_group(fixture: &mut Fixture) -> GroupId {
    match fixture.answer(ClientRequest::GroupStart { comm: COMM, repeats: true }) {
        Ok(Reply::GroupStarted(started)) => started.group,
        other => panic!("{other:?}"),
    }
}

/// Has a device die.
fn lose(fixture: &mut Fixture, device: u32) {
    let device = DeviceId::new(device);
    fixture.tasks.remove(&device);
    fixture.devices.remove(&device);
    fixture.happen(CoordinatorEvent::Gone(device));
}

/// Returns the number and the calls of the group that each device executes.
fn running(fixture: &Fixture) -> Vec<(u64, Vec<DeviceCall>)> {
    let calls_of = |order: &DeviceOrder| match order {
        DeviceOrder::Run { group, work: GroupWork::Calls(calls), .. } => Some((*group, calls.clone())),
        _ => None,
    };
    fixture.tasks.values().filter_map(calls_of).collect()
}

fn all_reduce(addresses: &[u64]) -> DeviceCall {
    let (operation, data_type, op) = (Operation::AllReduce, DataType::F64, ReduceOp::Sum);
    let (send, recv) = (addresses.to_vec(), addresses.to_vec());
    DeviceCall { operation, data_type, op, root: 0, count: 1, send, recv }
}

fn execute(group: Option<GroupId>, addresses: &[u64], devices: &[u32]) -> ClientRequest {
    let devices = Some(devices.iter().copied().map(DeviceId::new).collect());
    ClientRequest::Execute { comm: COMM, group, call: all_reduce(addresses), devices }
}

#[test]
fn a_group_that_loses_a_device_is_executed_again_by_those_that_are_left_and_answered_once() {
    for is_alone in [true, false] {
        let mut fixture = Fixture::new(3);
        fixture.init(3, false);
        let call = |group| execute(group, &[0x1000, 0x1100, 0x1200], &[1, 2, 3]);
        let client = if is_alone {
            fixture.ask(call(None))
        } else {
            let group = Some(start_lasting_group(&mut fixture));
            fixture.answer(call(group)).unwrap();
            fixture.ask(ClientRequest::GroupEnd { comm: COMM, group, settled: true })
        };
        // The first has executed it when the second dies.
        fixture.finish(DeviceId::new(1), TaskOutcome::Ran(Ok(None)));
        fixture.report(DeviceId::new(1)).into_iter().for_each(|event| fixture.happen(event));
        lose(&mut fixture, 2);
        let left = fixture.devices.values().map(|agent| agent.report().membership.clone().unwrap());
        for DeviceMembership { formation, last, .. } in left {
            let failed = last.filter(|last| last.failure.is_some()).map(|last| last.group);
            assert_eq!((formation.epoch, failed), (2, Some(1)), "it was told what to take back");
        }
        assert_eq!(running(&fixture), vec![(2, vec![all_reduce(&[0x1000, 0x1200])]); 2]);
        assert_eq!(fixture.replies.get(&client), None);
        let settled = fixture.ask(ClientRequest::Status { comm: COMM, settled: true });
        assert_eq!((fixture.status().state, fixture.status().why), (CommState::InProgress, None));
        assert_eq!(fixture.replies.get(&settled), None);
        fixture.end_group(&Ok(()));
        for client in [client, settled] {
            let Some(Ok(Reply::Status(status))) = fixture.replies.remove(&client) else {
                panic!("no answer")
            };
            let last = status.last.unwrap();
            assert_eq!((status.state, last.group, last.failure), (CommState::Ready, 2, None));
        }
        assert_eq!(running(&fixture), [], "it is over");
    }
}

#[test]
fn a_group_that_fails_each_time_is_tried_as_often_as_that_may_be_and_has_failed_then() {
    let mut fixture = Fixture::new(2);
    fixture.init(2, false);
    let client = fixture.ask(execute(None, &[0x1000; 2], &[1, 2]));
    let finalizing = fixture.ask(ClientRequest::Finalize(COMM));
    for number in 1..=u64::from(MOST_TRIES) {
        assert_eq!((running(&fixture)[0].0, fixture.replies.get(&client)), (number, None));
        assert_eq!(fixture.status().state, CommState::Finalizing);
        let outcome = TaskOutcome::Ran(Err("it went wrong".to_owned().into()));
        fixture.finish(DeviceId::new(1), outcome);
        fixture.report(DeviceId::new(1)).into_iter().for_each(|event| fixture.happen(event));
    }
    let Some(Ok(Reply::Status(status))) = fixture.replies.remove(&client) else { panic!("no answer") };
    assert_eq!((status.state, status.last.unwrap().group), (CommState::Failed, u64::from(MOST_TRIES)));
    assert!(matches!(fixture.replies[&finalizing], Err(RequestError::Failed { .. })));
    let is_last = |(group, _): &(u64, _)| *group == u64::from(MOST_TRIES);
    assert!(running(&fixture).iter().all(is_last), "no other one has begun");
}

#[test]
fn a_lasting_group_that_loses_a_device_takes_calls_still_and_another_one_goes_with_it() {
    let mut fixture = Fixture::new(4);
    fixture.init(3, false);
    let group = Some(start_lasting_group(&mut fixture));
    fixture.answer(execute(group, &[0x1000, 0x1100, 0x1200], &[1, 2, 3])).unwrap();
    lose(&mut fixture, 1);
    assert_eq!(fixture.status().epoch, 2, "it goes on for the group");
    let short = fixture.answer(execute(group, &[0x1000], &[2])).unwrap_err();
    assert_eq!(short, RequestError::WrongCount { given: 1, devices: 2 });
    fixture.answer(execute(group, &[0x1300, 0x1400, 0x1500], &[1, 2, 3])).unwrap();
    fixture.answer(ClientRequest::GroupEnd { comm: COMM, group, settled: false }).unwrap();
    let calls = vec![all_reduce(&[0x1100, 0x1200]), all_reduce(&[0x1400, 0x1500])];
    assert_eq!(running(&fixture), vec![(1, calls); 2]);
    fixture.end_group(&Ok(()));

    let Ok(Reply::GroupStarted(started)) =
        fixture.answer(ClientRequest::GroupStart { comm: COMM, repeats: false })
    else {
        panic!("no group")
    };
    let group = Some(started.group);
    lose(&mut fixture, 2);
    assert_eq!(fixture.status().state, CommState::Failed);
    let refused = fixture.answer(ClientRequest::GroupEnd { comm: COMM, group, settled: true });
    assert!(matches!(refused, Err(RequestError::NoSuchGroup { .. })), "{refused:?}");
}

#[test]
fn a_group_that_is_to_begin_when_the_members_have_gone_on_begins_then_or_is_refused() {
    let end = |group| ClientRequest::GroupEnd { comm: COMM, group, settled: true };
    for destroys in [false, true] {
        let mut fixture = Fixture::new(3);
        fixture.init(3, false);
        fixture.call().unwrap();
        fixture.slow.insert(DeviceId::new(2));
        lose(&mut fixture, 3);
        fixture.end_group(&Err("it was lost".to_owned()));
        let group = Some(start_lasting_group(&mut fixture));
        fixture.answer(execute(group, &[0x1000, 0x1100, 0x1200], &[1, 2, 3])).unwrap();
        let client = fixture.ask(end(group));
        assert_eq!((fixture.replies.get(&client), running(&fixture)), (None, Vec::new()));
        assert_eq!(fixture.status().state, CommState::InProgress);
        let early = fixture.answer(execute(None, &[0x1000, 0x1100, 0x1200], &[1, 2, 3])).unwrap_err();
        assert!(matches!(early, RequestError::WrongState { state: CommState::InProgress, .. }), "{early:?}");
        if destroys {
            fixture.ask(ClientRequest::Destroy(COMM));
            assert!(matches!(fixture.replies[&client], Err(RequestError::Ended { .. })), "none was executed");
            continue;
        }
        fixture.slow.clear();
        fixture.pass(1);
        assert_eq!(running(&fixture), vec![(2, vec![all_reduce(&[0x1000, 0x1100])]); 2]);
        fixture.end_group(&Ok(()));
        let Some(Ok(Reply::Status(status))) = fixture.replies.remove(&client) else { panic!("no answer") };
        assert_eq!(status.last.map(|last| (last.group, last.failure)), Some((2, None)));
    }
}

#[test]
fn what_means_something_else_on_fewer_devices_is_not_repeated() {
    let mut fixture = Fixture::new(3);
    fixture.init(3, false);
    let group = Some(start_lasting_group(&mut fixture));
    let call = DeviceCall { operation: Operation::Broadcast, ..all_reduce(&[0x1000; 3]) };
    let devices = Some([1, 2, 3].map(DeviceId::new).to_vec());
    fixture.answer(ClientRequest::Execute { comm: COMM, group, call, devices }).unwrap();
    let client = fixture.ask(ClientRequest::GroupEnd { comm: COMM, group, settled: true });
    lose(&mut fixture, 2);
    let Some(Ok(Reply::Status(status))) = fixture.replies.remove(&client) else { panic!("no answer") };
    assert_eq!((status.state, status.last.unwrap().failure.is_some()), (CommState::Failed, true));
}
