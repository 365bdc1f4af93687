//! Devices that die or misbehave: who is the cause, and who learns of it.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use shmccl::bootstrap::ProxyMode;
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Observer, OutputLine, Program};

use crate::{DEVICE, failure, launch, own_path, rank, run};

/// Where a device can go wrong, in order.
const STEPS: [&str; 5] = ["before-join", "welcomed", "shared", "up", "left"];

#[test]
fn the_loss_of_the_service_process_is_told_as_such() {
    for step in &STEPS[..3] {
        let scenario = format!("die:{step}:9@proxy wait");
        let (result, record) = run(&launch(2, &scenario).proxy(ProxyMode::Process));
        assert_eq!(failure(result), (DeviceName::Proxy, ExitCause::Signal(9)));
        assert_eq!(record.losses[0], DeviceName::Proxy);
        assert_eq!(record.said(rank(0)).last().unwrap(), &"the proxy was lost", "{step}");
    }
}

#[test]
fn a_rank_that_dies_at_any_step_is_the_cause_and_the_others_learn_of_it() {
    for step in &STEPS[..4] {
        for signal in [Signal::SIGKILL, Signal::SIGABRT] {
            let signal = signal as i32;
            let (result, record) = run(&launch(3, &format!("die:{step}:{signal}@1 wait")));
            assert_eq!(failure(result), (rank(1), ExitCause::Signal(signal)), "{step}");
            assert_eq!(record.losses[0], rank(1), "{step}");
            for survivor in [0, 2] {
                let last = *record.said(rank(survivor)).last().unwrap();
                // Which of the two depends on whether it was still waiting for Go.
                assert!(last == "rank 1 was lost" || last == "lost rank 1", "{step}: {record:?}");
            }
        }
    }
}

#[test]
fn exit_codes_other_than_zero_are_the_cause_even_after_leaving() {
    for step in STEPS {
        let scenario = if step == "left" { "exit:left:3@1" } else { &format!("exit:{step}:3@1 wait") };
        let (result, record) = run(&launch(3, scenario));
        assert_eq!(failure(result), (rank(1), ExitCause::Code(3)), "{step}");
        assert_eq!(record.losses[0], rank(1));
    }
}

#[test]
fn exit_code_zero_without_having_left_is_a_failure_when_others_have_joined() {
    for step in &STEPS[..4] {
        let (result, record) = run(&launch(3, &format!("exit:{step}:0@1 wait")));
        assert_eq!(failure(result), (rank(1), ExitCause::Code(0)), "{step}");
        assert_eq!(record.losses[0], rank(1));
    }
}

#[test]
fn garbage_on_the_socket_is_the_cause_although_the_process_has_to_be_killed() {
    let began = Instant::now();
    let grace = Duration::from_millis(100);
    let (result, record) = run(&launch(3, "garbage:before-join@1 wait").grace(grace));
    assert_eq!(failure(result), (rank(1), ExitCause::Protocol));
    assert_eq!(record.losses[0], rank(1));
    assert!(began.elapsed() >= grace);
    let (result, record) = run(&launch(3, "nonsense:before-join@1 wait"));
    assert_eq!(failure(result), (rank(1), ExitCause::Protocol));
    for survivor in [0, 2] {
        assert_eq!(record.said(rank(survivor)).last().unwrap(), &"rank 1 was lost");
    }
}

#[test]
fn a_rank_that_does_not_end_after_a_failure_is_killed_and_not_blamed() {
    let launch = launch(3, "die:up:9@1 hang:up").grace(Duration::from_millis(100));
    let (result, record) = run(&launch);
    assert_eq!(failure(result), (rank(1), ExitCause::Signal(9)));
    assert_eq!(record.losses, [rank(1)]);
}

#[test]
fn a_death_behind_a_wrapper_is_noticed_while_the_wrapper_lives() {
    let exe = own_path();
    let wrapper = |after: &str| {
        let script = format!("\"$0\" \"$@\"; code=$?; {after} exit $code");
        let args = [&["-c", &script, &exe][..], &DEVICE].concat();
        Program::new("sh", args)
    };
    let (result, _) = run(&launch(2, "").program(wrapper("")));
    assert!(result.unwrap().ready_after.is_some());
    let (result, record) = run(&launch(2, "die:up:9@1 wait").program(wrapper("")));
    assert_eq!(failure(result), (rank(1), ExitCause::Code(137)));
    assert_eq!(record.losses[0], rank(1));
    let lingering = launch(2, "die:up:9@1 wait").program(wrapper("test $code = 137 && exec sleep 1000;"));
    let (result, _) = run(&lingering.grace(Duration::from_millis(200)));
    assert_eq!(failure(result), (rank(1), ExitCause::HungUp));

    let told = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("told-{}", std::process::id()));
    // One of an earlier run may have had this number.
    let _ = std::fs::remove_file(&told);
    let until_told = format!("test $code = 137 && until test -e '{}'; do sleep 0.01; done;", told.display());
    let lingering = launch(2, "die:up:9@1 wait").program(wrapper(&until_told));
    let mut witness = Witness { told: &told, has_heard: false };
    let result = lingering.supervise(&mut witness);
    assert_eq!(failure(result), (rank(1), ExitCause::Code(137)));
    assert!(witness.has_heard, "the wrapper ended before rank 0 knew");
    std::fs::remove_file(&told).unwrap();
}

/// Makes a file when rank 0 says that it has lost rank 1.
struct Witness<'a> {
    told: &'a Path,
    has_heard: bool,
}

impl Observer for Witness<'_> {
    fn on_loss(&mut self, _: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        if line.device == rank(0) && String::from_utf8_lossy(line.text).contains("> lost rank 1") {
            self.has_heard = true;
            File::create(self.told).unwrap();
        }
    }
}

#[test]
fn a_job_that_keeps_going_ends_well_when_a_rank_does() {
    let (result, record) = run(&launch(3, "exit:up:3@1 go-on").keep_going(true));
    assert_eq!(result.unwrap().lost, [(rank(1), ExitCause::Code(3))], "{record:?}");
    assert_eq!(record.losses, [rank(1)]);
    let (result, _) = run(&launch(2, "exit:up:3").keep_going(true));
    assert_eq!(failure(result).1, ExitCause::Code(3), "nobody went on");
}
