//! `shmccl run` as a user meets it: the real command starts this test binary, shells and nonsense.
//!
//! `device_process` is an entry point: it does nothing unless the environment tells it its part.

mod arguments;
mod endings;
mod faults;
mod hanging;
mod logging;
mod output;
mod segments;
mod tables;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::channel::Channel;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error};
use support::{Watchdog, is_running, plain_command, wait_until};

use crate::{scratch, text};

/// No started job is there for longer, be the machine as busy as it may.
const PATIENCE: Duration = Duration::from_secs(120);

const SCENARIO: &str = "SHMCCL_TEST_SCENARIO";

/// `shmccl run` with these flags and program.
fn shmccl(words: &[&str]) -> Command {
    let mut command = plain_command(env!("CARGO_BIN_EXE_shmccl"));
    command.arg("run").args(words);
    command
}

fn run(words: &[&str]) -> Output {
    shmccl(words).output().unwrap()
}

/// `shmccl run` with these flags, of devices that play `scenario`.
fn job(flags: &[&str], scenario: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let program = ["--", this.to_str().unwrap(), "--exact", "run::device_process", "--nocapture"];
    let mut command = shmccl(&[flags, &program].concat());
    command.env(SCENARIO, scenario);
    command
}

/// Exit code and stderr.
fn told(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), text(&output.stderr))
}

/// A started job, whose ranks say `pid N` as soon as they are where they are to be.
struct Started {
    launcher: Child,
    stdout: BufReader<ChildStdout>,
    pids: Vec<Pid>,
    _watchdog: Watchdog,
}

impl Started {
    fn new(mut command: Command, n_pids: usize) -> Self {
        // Its thread is named after the test.
        let watchdog = Watchdog::start(std::thread::current().name().unwrap_or_default(), PATIENCE);
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(launcher.stdout.take().unwrap());
        let mut started = Self { launcher, stdout, pids: Vec::new(), _watchdog: watchdog };
        while started.pids.len() < n_pids {
            let pid = started.hear("pid ").trim().parse().unwrap();
            started.pids.push(Pid::from_raw(pid));
        }
        started
    }

    /// Reads on to the next line that has `word` in it, and returns what stands behind it.
    ///
    /// What the test harness of a device prints may stand before it in the line.
    fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.stdout.read_line(&mut line).unwrap(),
                0,
                "the job ended before {word:?} was said"
            );
            if let Some((_, rest)) = line.split_once(word) {
                return rest.to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.launcher.id().try_into().unwrap()), signal).unwrap();
    }

    /// The process that cleans up behind the launcher.
    fn janitor(&self) -> Pid {
        let launcher = self.launcher.id();
        let path = format!("/proc/{launcher}/task/{launcher}/children");
        let is_janitor = |pid: &&str| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default() == "shmccl janitor\n"
        };
        let mut found = None;
        wait_until("a job with names has a janitor", || {
            let children = std::fs::read_to_string(&path).unwrap();
            found = children.split_whitespace().find(is_janitor).map(|pid| pid.parse().unwrap());
            found.is_some()
        });
        Pid::from_raw(found.unwrap())
    }

    /// Awaits the end of the launcher, and sees to it that nobody who has spoken is left.
    fn end(mut self) -> (i32, String) {
        let mut stderr = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let code = self.launcher.wait().unwrap().code().unwrap_or(-1);
        wait_until("all processes have ended", || !self.pids.iter().any(|&pid| is_running(pid)));
        (code, stderr)
    }
}

/// A device whose scenario is one word, with a number behind it where it takes one.
#[test]
fn device_process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    if std::env::var("SHMCCL_RANK").is_err() {
        return;
    }
    let code = match play(&scenario) {
        Ok(()) => 0,
        Err(error) => {
            // In one write, so that lines of several processes do not mix.
            let _ = std::io::stderr().write_all(format!("{}\n", chain(&error)).as_bytes());
            3
        }
    };
    std::process::exit(code);
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn say(line: std::fmt::Arguments<'_>) {
    // In one write, so that lines of several processes do not mix.
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

fn play(scenario: &str) -> shmccl::Result<()> {
    let (word, number) = scenario.split_once(' ').unwrap_or((scenario, "0"));
    if word == "absent" && std::env::var("SHMCCL_RANK").unwrap() == number {
        return Ok(());
    }
    if word == "misfit" {
        endings::come_with_layout_version(number.parse().unwrap());
        return Ok(());
    }
    let Some(JoinedAs::Device(mut comm)) = join_job()? else { panic!("a device was to be started") };
    match word {
        "ring" => ring(&mut comm)?,
        "absent" => comm.barrier()?,
        "alloc" => match comm.alloc::<u8>(number.parse().unwrap()) {
            Ok(buffer) => comm.free(buffer)?,
            Err(error) => {
                say(format_args!("refused: {}", chain(&error)));
                assert!(
                    matches!(error, Error::ResourceLimit { .. } | Error::FailedElsewhere { .. }),
                    "{error}"
                );
                // The job goes on.
                let small = comm.alloc::<u8>(1 << 20)?;
                comm.free(small)?;
            }
        },
        "reduce" => {
            let done = comm.all_reduce_in_place(&mut [1_u64; 2], &ReduceOp::Sum);
            if let Err(error) = done {
                // In one write, and answered by no exit code, so that every rank is heard.
                say(format_args!("rank {}: {error}", comm.rank()));
                // Leaves in peace: whoever goes without does not leave the others the time to
                // speak.
                drop(comm);
                std::process::exit(0);
            }
        }
        "wait" => {
            say(format_args!("pid {}", std::process::id()));
            let mut channel = comm.memory_channel(comm.right())?;
            channel.wait()?;
        }
        "stop-and-stay" => comm = hanging::stop_and_stay(comm)?,
        "recover" => {
            comm = hanging::stop(comm, 0)?;
            let plans = std::env::var_os("SHMCCL_FAULTS").is_some();
            assert_eq!(plans, !comm.was_restarted(), "those that make communicators of their own, too");
        }
        "stop" => comm = hanging::stop(comm, number.parse().unwrap())?,
        _ => panic!("no such scenario: {scenario}"),
    }
    comm.finalize()
}

/// Passes a number around through the proxy, every rank adding one.
fn ring(comm: &mut Communicator) -> shmccl::Result<()> {
    let (right, left) = (comm.right(), comm.left());
    let slots = comm.alloc::<u64>(2)?;
    let (outgoing, incoming) = (slots.part(0, 1)?.offset, slots.part(1, 1)?.offset);
    let mut to_right = comm.port_channel(right)?;
    let mut from_left = if left == right { None } else { Some(comm.port_channel(left)?) };
    let is_first = comm.rank().get() == 0;
    if is_first {
        slots.set(0, 1)?;
        to_right.put_with_signal(incoming, outgoing, 8)?;
    }
    from_left.as_mut().unwrap_or(&mut to_right).wait()?;
    let sum = slots.get(1)?;
    if is_first {
        assert_eq!(sum, u64::from(comm.n_ranks()));
        say(format_args!("sum {sum}"));
    } else {
        slots.set(0, sum + 1)?;
        to_right.put_with_signal(incoming, outgoing, 8)?;
    }
    to_right.flush()
}
