//! Launching real processes: this test binary re-executes itself as launcher, device, proxy service
//! and trampoline.
//!
//! The tests named `*_process` are entry points: they do nothing unless the environment tells them
//! their part.

mod deaths;
mod descriptors;
mod device;
mod interrupts;
mod launcher;
mod starting;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{JobOutcome, Launch, Observer, OutputLine, Program};
use shmccl::{Error, Rank};

const SCENARIO: &str = "SHMCCL_TEST_SCENARIO";
const LAUNCHER: &str = "SHMCCL_TEST_LAUNCHER";
const TRAMPOLINE: &str = "SHMCCL_TEST_TRAMPOLINE";
const WATCHDOG: Duration = Duration::from_secs(30);

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
        // What survivors say does not depend on how soon they are scheduled.
        .grace(WATCHDOG)
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

fn run(launch: &Launch) -> (shmccl::Result<JobOutcome>, Record) {
    let mut record = Record::default();
    let result = launch.supervise(&mut record);
    (result, record)
}

fn failure(result: shmccl::Result<JobOutcome>) -> (DeviceName, ExitCause) {
    match result {
        Err(Error::DeviceFailed { device, cause }) => (device, cause),
        other => panic!("expected the failure of a device, got {other:?}"),
    }
}

/// A device whose scenario is a list of words: `die:STEP:SIGNAL`, `exit:STEP:CODE`, `hang:STEP`,
/// `garbage:STEP`, `nonsense:STEP` (the same, but ends once the launcher has hung up),
/// `ignore-interrupts`, each only on the rank after `@` (all without), `wait` to await a loss and
/// fail, `go-on` to await one and leave.
#[test]
fn device_process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    if std::env::var(LAUNCHER).is_ok() || std::env::var("SHMCCL_RANK").is_err() {
        return;
    }
    let code = match device::play(&scenario) {
        Ok(()) => 0,
        Err(error) => {
            say(format_args!("> {error}"));
            1
        }
    };
    std::process::exit(code);
}

const DEVICE: [&str; 3] = ["--exact", "device_process", "--nocapture"];

fn own_path() -> String {
    std::env::current_exe().unwrap().into_os_string().into_string().unwrap()
}
