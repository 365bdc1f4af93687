//! Launching real processes: this test binary re-executes itself as launcher, device, proxy service and trampoline.
//!
//! The tests named `*_process` are entry points: they do nothing unless the environment tells them their part.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::{Pid, pause};
use shmccl::bootstrap::{LinkEvent, ProxyMode};
use shmccl::bootstrap::{become_program, join_from_env};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, Outcome, OutputLine, Program};
use shmccl::{Error, Rank};

const SCENARIO: &str = "SHMCCL_TEST_SCENARIO";
const LAUNCHER: &str = "SHMCCL_TEST_LAUNCHER";
const TRAMPOLINE: &str = "SHMCCL_TEST_TRAMPOLINE";
const WATCHDOG: Duration = Duration::from_secs(30);

/// Where a device can go wrong, in order.
const STEPS: [&str; 5] = ["before-join", "welcomed", "shared", "up", "left"];

fn memory() -> OwnedFd {
    memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap()
}

fn rank(value: u32) -> DeviceName {
    DeviceName::Rank(Rank::new(value, 64).unwrap())
}

fn say(text: impl std::fmt::Display) {
    // In one write, so that lines of several processes do not mix.
    std::io::stdout().write_all(format!("{text}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

fn entry(name: &str) -> Program {
    Program::new(std::env::current_exe().unwrap(), ["--exact", name, "--nocapture"])
}

/// A launch of devices that play `scenario`.
fn launch(n_ranks: u32, scenario: &str) -> Launch {
    Launch::new(n_ranks)
        .unwrap()
        .program(entry("device_process"))
        .service(entry("device_process"))
        .timeout(WATCHDOG)
        .env(SCENARIO, scenario)
        .capture_output(true)
}

/// What was observed.
#[derive(Debug, Default)]
struct Record {
    losses: Vec<DeviceName>,
    interrupts: u32,
    ready: Option<Duration>,
    /// Lines that begin with `> `, without that.
    lines: Vec<(DeviceName, String)>,
}

impl Observer for Record {
    fn on_loss(&mut self, device: DeviceName) {
        self.losses.push(device);
    }

    fn on_interrupt(&mut self) {
        self.interrupts += 1;
    }

    fn on_ready(&mut self, after: Duration) {
        self.ready = Some(after);
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        if let Some(text) = String::from_utf8_lossy(line.text).split("> ").nth(1) {
            self.lines.push((line.device, text.to_owned()));
        }
    }
}

impl Record {
    fn said(&self, device: DeviceName) -> Vec<&str> {
        self.lines.iter().filter(|(who, _)| *who == device).map(|(_, text)| text.as_str()).collect()
    }
}

fn run(launch: &Launch) -> (shmccl::Result<Outcome>, Record) {
    let control = memory();
    let mut record = Record::default();
    let result = launch.spawn_and_supervise(control.as_fd(), &mut record);
    (result, record)
}

fn failure(result: shmccl::Result<Outcome>) -> (DeviceName, ExitCause) {
    match result {
        Err(Error::DeviceFailed { device, cause }) => (device, cause),
        other => panic!("expected the failure of a device, got {other:?}"),
    }
}

/// A device whose scenario is a list of words: `die:STEP:SIGNAL`, `exit:STEP:CODE`, `hang:STEP`, `garbage:STEP`,
/// `ignore-interrupts`, each only on the rank after `@` (all without), `wait` to await a loss and fail, `go-on` to await one and leave.
#[test]
fn device_process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    if std::env::var(LAUNCHER).is_ok() || std::env::var("SHMCCL_RANK").is_err() {
        return;
    }
    let code = match play(&scenario) {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("> {error}"));
            1
        }
    };
    std::process::exit(code);
}

fn play(scenario: &str) -> shmccl::Result<()> {
    let own = std::env::var("SHMCCL_RANK").unwrap();
    let words: Vec<&str> = scenario
        .split(' ')
        .filter_map(|word| match word.split_once('@') {
            Some((word, rank)) => (rank == own).then_some(word),
            None => Some(word),
        })
        .collect();
    let at = |step: &str| {
        for word in &words {
            act(word, step);
        }
    };
    say(format_args!("> pid {}", std::process::id()));
    at("before-join");
    let joining = join_from_env()?.expect("started by a launcher");
    at("welcomed");
    let shared = joining.share(|_| Ok(memory()))?;
    at("shared");
    let membership = shared.ready()?;
    say("> ready");
    at("up");
    if words.contains(&"wait") {
        let event = membership.link.wait_event(WATCHDOG)?;
        let LinkEvent::Lost { device, restarts, .. } = event else { panic!("the launcher is gone") };
        membership.link.report_loss(device, restarts);
        say(format_args!("> lost {device}"));
        // Without unwinding: whoever loses a peer fails.
        std::process::exit(1);
    }
    if words.contains(&GO_ON) {
        membership.link.wait_event(WATCHDOG)?;
        say("> gone on");
    }
    membership.link.finalize()?;
    at("left");
    Ok(())
}

/// What ranks of a job that keeps going do.
const GO_ON: &str = "go-on";

fn act(word: &str, step: &str) {
    let mut parts = word.split(':');
    let (verb, at, argument) = (parts.next().unwrap(), parts.next(), parts.next());
    if at != Some(step) {
        return;
    }
    let number = || argument.unwrap().parse::<i32>().unwrap();
    match verb {
        "die" => {
            raise(Signal::try_from(number()).unwrap()).unwrap();
            hang();
        }
        "exit" => std::process::exit(number()),
        "hang" => hang(),
        "garbage" => {
            let socket = std::env::var("SHMCCL_SOCKET").unwrap().parse().unwrap();
            nix::sys::socket::send(socket, b"garbage", nix::sys::socket::MsgFlags::empty()).unwrap();
            hang();
        }
        "deaf" => {
            let script = "trap '' INT TERM; echo '> deaf'; exec sleep 1000";
            panic!("{}", Command::new("sh").args(["-c", script]).exec());
        }
        "few-descriptors" => setrlimit(Resource::RLIMIT_NOFILE, 8, 8).unwrap(),
        "descriptors" => say(format_args!("> descriptors {:?}", inheritable())),
        _ => panic!("no such word: {word}"),
    }
}

fn hang() -> ! {
    loop {
        pause();
    }
}

/// The numbers of the descriptors that a child would inherit.
fn inheritable() -> BTreeSet<i32> {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let kept = numbers.filter(|number| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).unwrap() & 0o2_000_000 == 0)
    });
    kept.map(|number| number.parse().unwrap()).collect()
}

/// Calls `become_program` with what follows its own arguments.
#[test]
fn trampoline_process() {
    if std::env::var(TRAMPOLINE).is_err() {
        return;
    }
    let mut args = std::env::args_os().skip_while(|arg| arg != "--nocapture").skip(1);
    let program = args.next().unwrap();
    let error = become_program(program, args);
    say(format_args!("> {error}"));
    std::process::exit(2);
}

/// Launches three ranks that play the scenario, and prints `> ready` and the result. The variable holds the time of
/// grace in milliseconds.
#[test]
fn launcher_process() {
    let Ok(grace) = std::env::var(LAUNCHER) else { return };
    let scenario = std::env::var(SCENARIO).unwrap();
    struct Print;
    impl Observer for Print {
        fn on_loss(&mut self, _: DeviceName) {}
        fn on_ready(&mut self, _: Duration) {
            say("> all ready");
        }
    }
    let mut launch = launch(3, &scenario)
        .capture_output(false)
        .keep_going(scenario.contains(GO_ON))
        .grace(Duration::from_millis(grace.parse().unwrap()))
        .program(Program::new(
            "env",
            [&["-u", LAUNCHER, "-u", TRAMPOLINE][..], &[&own_path()], &DEVICE].concat(),
        ));
    if std::env::var(TRAMPOLINE).is_ok() {
        launch = launch.program(Program::new("sleep", ["1000"])).trampoline(entry("trampoline_process"));
    }
    let result = launch.spawn_and_supervise(memory().as_fd(), &mut Print);
    say(match result {
        Ok(_) => "> result ok".to_owned(),
        Err(error) => format!("> result {error}"),
    });
    std::process::exit(0);
}

const DEVICE: [&str; 3] = ["--exact", "device_process", "--nocapture"];

fn own_path() -> String {
    std::env::current_exe().unwrap().into_os_string().into_string().unwrap()
}

/// A launcher in a process of its own, and what it and its devices print.
struct Launcher {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Launcher {
    fn start(scenario: &str, grace: Duration, trampoline: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "launcher_process", "--nocapture"]);
        command.env(SCENARIO, scenario).env(LAUNCHER, grace.as_millis().to_string()).stdout(Stdio::piped());
        if trampoline {
            command.env(TRAMPOLINE, "1");
        }
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (told, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if let Some(text) = String::from_utf8_lossy(&line).split("> ").nth(1) {
                    let _ = told.send(text.to_owned());
                }
            }
        });
        Self { child, lines }
    }

    fn wait_for(&self, expected: &str, times: usize) {
        for _ in 0..times {
            while self.lines.recv_timeout(WATCHDOG).expect("the launcher and its devices are silent")
                != expected
            {}
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits until nobody holds the output any more, which is when the launcher and all devices are gone.
    fn end(mut self) -> (Vec<String>, ExitStatus) {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(WATCHDOG) {
                Ok(line) => lines.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(timeout) => panic!("processes are left behind ({timeout}), after {lines:?}"),
            }
        }
        (lines, self.child.wait().unwrap())
    }
}

#[test]
fn all_ranks_join_and_leave() {
    for n_ranks in [1, 2, 5] {
        let (result, record) = run(&launch(n_ranks, ""));
        assert!(result.unwrap().ready_after.is_some());
        assert_eq!(record.losses, []);
        for index in 0..n_ranks {
            assert_eq!(record.said(rank(index)).len(), 2, "{record:?}");
        }
    }
}

#[test]
fn the_largest_job_starts() {
    let (result, record) = run(&launch(64, ""));
    result.unwrap();
    assert_eq!(record.lines.len(), 128);
}

#[test]
fn a_rank_that_may_not_open_all_segments_gets_a_typed_error() {
    let (result, record) = run(&launch(8, "few-descriptors:welcomed@1 wait"));
    assert_eq!(failure(result), (rank(1), ExitCause::Code(1)));
    let said = record.said(rank(1));
    assert!(said.last().unwrap().starts_with("not enough file descriptors"), "{said:?}");
}

#[test]
fn the_service_process_is_a_member() {
    let (result, record) = run(&launch(2, "").proxy(ProxyMode::Process));
    result.unwrap();
    assert_eq!(record.said(DeviceName::Proxy)[1], "ready");
}

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
fn programs_that_never_join_and_succeed_are_fine() {
    let (result, record) = run(&launch(2, "exit:before-join:0"));
    assert_eq!(result.unwrap().ready_after, None);
    assert_eq!(record.losses, []);
    let (result, _) = run(&launch(3, "").program(Program::new::<&str>("true", [])));
    result.unwrap();
    let (result, _) = run(&launch(1, "").program(Program::new::<&str>("false", [])));
    assert_eq!(failure(result), (rank(0), ExitCause::Code(1)));
}

#[test]
fn a_program_that_does_not_exist_is_an_error() {
    let (result, _) = run(&launch(3, "").program(Program::new::<&str>("/nonexistent/program", [])));
    assert!(matches!(result, Err(Error::Os { .. })), "{result:?}");
}

#[test]
fn garbage_on_the_socket_is_the_cause_although_the_process_has_to_be_killed() {
    let began = Instant::now();
    let grace = Duration::from_millis(100);
    let (result, record) = run(&launch(3, "garbage:before-join@1 wait").grace(grace));
    assert_eq!(failure(result), (rank(1), ExitCause::Protocol));
    assert_eq!(record.said(rank(0)).last().unwrap(), &"rank 1 was lost");
    assert!(began.elapsed() >= grace);
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
    let (result, record) = run(&lingering.grace(Duration::from_millis(200)));
    assert_eq!(failure(result), (rank(1), ExitCause::HungUp));
    assert!(record.said(rank(0)).contains(&"lost rank 1"), "{record:?}");
}

#[test]
fn a_job_can_be_joined_once() {
    let (result, record) = run(&launch(1, "").program(entry("second_join_process")));
    result.unwrap();
    assert!(record.said(rank(0))[0].starts_with("SHMCCL_SOCKET: "), "{record:?}");
}

#[test]
fn second_join_process() {
    if std::env::var("SHMCCL_RANK").is_err() {
        return;
    }
    let joining = join_from_env().unwrap().unwrap();
    say(format_args!("> {}", join_from_env().unwrap_err()));
    joining.share(|_| Ok(memory())).unwrap().ready().unwrap();
}

#[test]
fn outside_a_job_there_is_nothing_to_join() {
    if std::env::var("SHMCCL_RANK").is_err() {
        assert!(join_from_env().unwrap().is_none());
    }
}

#[test]
fn output_comes_by_lines_and_a_last_line_needs_no_line_feed() {
    #[derive(Default)]
    struct Prefixed(Vec<u8>);
    impl Observer for Prefixed {
        fn on_loss(&mut self, _: DeviceName) {}
        fn on_output(&mut self, line: OutputLine<'_>) {
            line.write_prefixed(&mut self.0).unwrap();
        }
    }
    let script = "printf 'one\\n\\ntwo'; head -c 200000 /dev/zero | tr '\\0' x >&2";
    let launch = launch(1, "").program(Program::new("sh", ["-c", script]));
    let mut prefixed = Prefixed::default();
    launch.spawn_and_supervise(memory().as_fd(), &mut prefixed).unwrap();
    let text = String::from_utf8(prefixed.0).unwrap();
    let (long, short): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.contains('x'));
    assert_eq!(short, ["[rank 0] one", "[rank 0] ", "[rank 0] two"]);
    assert!(long.len() > 1, "a line without end is handed on in parts");
    assert_eq!(long.iter().map(|line| line.len() - "[rank 0] ".len()).sum::<usize>(), 200_000);
}

#[test]
fn ranks_run_on_the_core_that_the_plan_says() {
    let script = "grep Cpus_allowed_list /proc/self/status | sed 's/.*:./> /'";
    for pin in [true, false] {
        let launch = launch(3, "").pin(pin).program(Program::new("sh", ["-c", script]));
        let (result, record) = run(&launch);
        result.unwrap();
        for index in 0..3 {
            let said = record.said(rank(index))[0];
            match launch.plan().placement(rank(index)).cpu {
                Some(cpu) => assert_eq!(said, cpu.to_string()),
                None => assert!(!pin),
            }
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

#[test]
fn an_interrupt_of_a_job_that_keeps_going_is_the_result_whatever_came_before() {
    let launcher = Launcher::start("exit:up:3@1 go-on hang:left", Duration::from_millis(300), false);
    launcher.wait_for("gone on", 2);
    launcher.signal(Signal::SIGINT);
    let (lines, _) = launcher.end();
    assert_eq!(lines.last().unwrap(), "result interrupted by SIGINT");
}

#[test]
fn an_interrupt_ends_everyone_and_is_the_result() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let launcher = Launcher::start("hang:up", Duration::from_secs(20), false);
        launcher.wait_for("all ready", 1);
        launcher.signal(signal);
        let (lines, status) = launcher.end();
        assert_eq!(lines.last().unwrap(), &format!("result interrupted by {signal}"));
        assert!(status.success());
    }
}

#[test]
fn whoever_ignores_an_interrupt_is_killed_after_the_time_of_grace_or_at_the_second_one() {
    for grace in [Duration::from_millis(50), Duration::from_secs(3600)] {
        let launcher = Launcher::start("deaf:before-join", grace, false);
        launcher.wait_for("deaf", 3);
        launcher.signal(Signal::SIGINT);
        if grace > WATCHDOG {
            // Two of the same in a row may be merged into one.
            launcher.signal(Signal::SIGTERM);
        }
        let (lines, _) = launcher.end();
        assert!(lines.last().unwrap().starts_with("result interrupted by SIG"), "{lines:?}");
    }
}

/// Twenty random moments, from before the processes start until after they are up.
#[test]
fn killing_the_launcher_leaves_no_process() {
    let seed = std::process::id();
    say(format_args!("seed {seed}"));
    let mut state = u64::from(seed);
    for _ in 0..20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let launcher = Launcher::start("hang:up", Duration::from_secs(3600), false);
        let (told, timer) = std::sync::mpsc::channel::<()>();
        let _ = timer.recv_timeout(Duration::from_micros((state >> 33) % 40_000));
        drop(told);
        launcher.signal(Signal::SIGKILL);
        launcher.end();
    }
}

#[test]
fn killing_the_launcher_leaves_no_process_that_never_joins_when_there_is_a_trampoline() {
    let launcher = Launcher::start("", Duration::from_secs(3600), true);
    wait_until("three processes sleep", || sleepers_of(launcher.child.id()) == 3);
    launcher.signal(Signal::SIGKILL);
    launcher.end();
}

/// How many processes that descend from `parent` at first hand have become `sleep`.
fn sleepers_of(parent: u32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains("(sleep)") && stat.split(' ').nth(3) == Some(&parent.to_string()))
        .count()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < WATCHDOG, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// Runs alone in a process, because the tests of one process share its descriptors.
#[test]
fn no_descriptor_is_left_and_none_reaches_a_sibling() {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "descriptors_process", "--nocapture"])
        .env("SHMCCL_TEST_DESCRIPTORS", "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn descriptors_process() {
    if std::env::var("SHMCCL_TEST_DESCRIPTORS").is_err() {
        return;
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The first launch opens the pipe for interrupts, which is kept.
    run(&launch(1, "")).0.unwrap();
    let (before, inherited) = (open(), inheritable());
    for scenario in ["", "die:welcomed:9@1 wait", "garbage:before-join@0 wait", "exit:before-join:0"] {
        let scenario = launch(3, scenario).proxy(ProxyMode::Process).grace(Duration::from_millis(50));
        let _ = run(&scenario);
        assert_eq!(open(), before, "{scenario:?}");
    }
    let _ = run(&launch(3, "").program(Program::new::<&str>("/nonexistent/program", [])));
    assert_eq!(open(), before);
    // Four launchers at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (result, record) = run(&launch(3, "descriptors:before-join"));
                result.unwrap();
                for index in 0..3 {
                    let said = record.said(rank(index));
                    let text = said.iter().find_map(|text| text.strip_prefix("descriptors ")).unwrap();
                    let count = text.split(',').count();
                    // Besides what this process had inherited itself: the control socket.
                    assert_eq!(count, inherited.len() + 1, "{text}, inherited {inherited:?}");
                }
            });
        }
    });
    assert_eq!(open(), before);
}

/// Prints how long it takes; the time has no bound here, because other tests run beside it.
#[test]
fn eight_ranks_are_ready_soon() {
    let mut times: Vec<_> = (0..7).map(|_| run(&launch(8, "")).0.unwrap().ready_after.unwrap()).collect();
    times.sort_unstable();
    say(format_args!("8 ranks ready after {:?} (median; from {:?} to {:?})", times[3], times[0], times[6]));
}
