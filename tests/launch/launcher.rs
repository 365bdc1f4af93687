//! A launcher in a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::bootstrap::become_program;
use shmccl::error::DeviceName;
use shmccl::launch::{Observer, Program};

use crate::device::GO_ON;
use crate::{DEVICE, LAUNCHER, SCENARIO, TRAMPOLINE, WATCHDOG, entry, launch, own_path, say};

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

/// Launches three ranks that play the scenario, and prints `> ready` and the result. The variable
/// holds the time of grace in milliseconds.
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
        launch =
            launch.program(Program::new("sleep", ["1000"])).trampoline(entry("launcher::trampoline_process"));
    }
    let result = launch.supervise(&mut Print);
    say(match result {
        Ok(_) => "> result ok".to_owned(),
        Err(error) => format!("> result {error}"),
    });
    std::process::exit(0);
}

/// A launcher in a process of its own, and what it and its devices print.
pub(crate) struct Launcher {
    pub(crate) child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Launcher {
    pub(crate) fn start(scenario: &str, grace: Duration, trampoline: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "launcher::launcher_process", "--nocapture"]);
        command.env(SCENARIO, scenario).env(LAUNCHER, grace.as_millis().to_string()).stdout(Stdio::piped());
        if trampoline {
            command.env(TRAMPOLINE, "1");
        }
        let mut child = support::heeding_interrupts(&mut command).spawn().unwrap();
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

    pub(crate) fn wait_for(&self, expected: &str, times: usize) {
        for _ in 0..times {
            while self.lines.recv_timeout(WATCHDOG).expect("the launcher and its devices are silent")
                != expected
            {}
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits until nobody holds the output any more, which is when the launcher and all devices are
    /// gone.
    pub(crate) fn end(mut self) -> (Vec<String>, ExitStatus) {
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
