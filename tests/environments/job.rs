//! Jobs that the tests start: the real command, and devices that this binary plays.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error};
use support::{Watchdog, heeding_interrupts, is_running, plain_command, wait_until};

use crate::{descendants, forks, namespaces, pauses};

/// No started job is there for longer, be the machine as busy as it may.
const PATIENCE: Duration = Duration::from_secs(60);

const SCENARIO: &str = "SHMCCL_TEST_SCENARIO";
/// Where a checkpoint goes.
pub(crate) const DIRECTORY: &str = "SHMCCL_TEST_DIRECTORY";

const LAUNCHES: &str = "SHMCCL_TEST_LAUNCHES";

/// The command with these words.
pub(crate) fn shmccl(words: &[&str]) -> Command {
    let mut command = plain_command(env!("CARGO_BIN_EXE_shmccl"));
    command.args(words);
    command
}

/// `shmccl run` with these flags, of devices that play `scenario` ([`play`]).
pub(crate) fn job(flags: &[&str], scenario: &str) -> Command {
    job_within(flags, &[], scenario)
}

/// Like [`job`], but with the devices within the program of `wrapper`.
pub(crate) fn job_within(flags: &[&str], wrapper: &[&str], scenario: &str) -> Command {
    let program = this_program();
    let words = [&["run"], flags, &["--"], wrapper, &program.each_ref().map(String::as_str)].concat();
    let mut command = shmccl(&words);
    command.env(SCENARIO, scenario);
    command
}

/// Returns `command` with what another one changes in the environment.
pub(crate) fn with_environment_of(other: &Command, mut command: Command) -> Command {
    other.get_envs().for_each(|(name, value)| match value {
        Some(value) => _ = command.env(name, value),
        None => _ = command.env_remove(name),
    });
    command
}

/// A process that plays `scenario`, and that no launcher starts.
pub(crate) fn alone(scenario: &str) -> Command {
    let [program, args @ ..] = this_program();
    let mut command = Command::new(program);
    command.args(args).env(SCENARIO, scenario).env("SHMCCL_TUNING", "");
    heeding_interrupts(&mut command);
    command
}

/// The words that start this program as a device.
pub(crate) fn this_program() -> [String; 4] {
    let this = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
    [this, "--exact".into(), "job::device_process".into(), "--nocapture".into()]
}

/// This program, which launches two devices of itself that play `scenario`.
pub(crate) fn launching(scenario: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "job::launching_process", "--nocapture"]).stdin(Stdio::null());
    command.env(LAUNCHES, scenario);
    heeding_interrupts(&mut command);
    command
}

/// Starts a command and returns its exit code, or 128 plus the number of the signal that ended it,
/// and stderr.
pub(crate) fn end_of(command: &mut Command) -> (i32, String) {
    let started = Started::new(command, 0);
    let (code, stderr, _) = started.end();
    (code, stderr)
}

/// A started command whose devices say `pid N` as soon as they are where they are to be.
pub(crate) struct Started {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) pids: Vec<Pid>,
    _watchdog: Watchdog,
}

impl Started {
    /// Starts the command, and waits for `n_pids` devices.
    pub(crate) fn new(command: &mut Command, n_pids: usize) -> Self {
        // Its thread is named after the test.
        let watchdog = Watchdog::start(std::thread::current().name().unwrap_or_default(), PATIENCE);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut started = Self { child, stdout, pids: Vec::new(), _watchdog: watchdog };
        while started.pids.len() < n_pids {
            let pid = started.hear("pid ").trim().parse().unwrap();
            started.pids.push(Pid::from_raw(pid));
        }
        started
    }

    /// Reads on to the next line that has `word` in it, and returns what stands behind it.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "it ended before {word:?} was said");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.to_owned();
            }
        }
    }

    /// The devices that have said who they are, in that order.
    pub(crate) fn pids(&self) -> &[Pid] {
        &self.pids
    }

    /// The started process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Sends a signal to the started process.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Awaits its end, and sees to it that no device is left. Returns exit code (128 plus the
    /// signal), stderr, stdout.
    pub(crate) fn end(mut self) -> (i32, String, String) {
        use std::os::unix::process::ExitStatusExt;
        let mut stderr = self.child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut rest = Vec::new();
        self.stdout.read_to_end(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        wait_until("all processes have ended", || !self.pids.iter().any(|&pid| is_running(pid)));
        (code, errors.join().unwrap(), String::from_utf8_lossy(&rest).into_owned())
    }
}

/// A device whose scenario is one word, with a number behind it where it takes one.
#[test]
fn device_process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
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

/// The launcher and its devices in one program.
#[test]
fn launching_process() {
    let Ok(scenario) = std::env::var(LAUNCHES) else { return };
    let code = match shmccl::launch::launch(2, |comm| play_in(comm, &scenario)) {
        Ok(_) => 0,
        Err(shmccl::Error::Interrupted { signal }) => 128 + signal,
        Err(error) => {
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

/// Says a line in one write, so that lines of several processes do not mix.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

fn play(scenario: &str) -> shmccl::Result<()> {
    match scenario {
        "lone" => return descendants::lone(),
        "pool" => return descendants::pool(),
        "no device" => return descendants::no_device(),
        "private" => return forks::private(),
        "refused" => return forks::refused(),
        "short" => return forks::short(),
        "steps" => return forks::steps(),
        "orphan" => return forks::orphan(),
        "host" => return pauses::host(),
        "guest" => return pauses::guest(),
        _ => {}
    }
    let Some(JoinedAs::Device(mut comm)) = join_job()? else { panic!("a device was to be started") };
    match scenario {
        "fork" => descendants::forks(*comm),
        "held" => pauses::held(*comm),
        "parent" => descendants::parent(*comm),
        "report" => namespaces::report(*comm),
        "shrink" => namespaces::shrink(*comm),
        _ => play_in(&mut comm, scenario),
    }
}

fn play_in(comm: &mut Communicator, scenario: &str) -> shmccl::Result<()> {
    let (word, number) = scenario.split_once(' ').unwrap_or((scenario, "0"));
    match word {
        "sum" => sum(comm),
        "alloc" => {
            comm.alloc::<u8>(3 << 20)?.fill(number.parse().unwrap());
            comm.barrier()
        }
        "abort" => {
            comm.alloc::<u8>(1 << 20)?.fill(0xA7);
            let local = comm.arena().alloc::<u8>(1 << 20)?;
            local.fill(0xA8);
            comm.barrier()?;
            if comm.rank().get().to_string() == number {
                std::process::abort();
            }
            comm.barrier()
        }
        "fill" => fill(comm),
        "checkpoint" => {
            let _held = comm.alloc::<u8>(1 << 20)?;
            setrlimit(Resource::RLIMIT_FSIZE, 4096, 4096).unwrap();
            comm.checkpoint(std::env::var_os(DIRECTORY).unwrap()).map(drop)
        }
        "wait" => {
            say(format_args!("pid {}", std::process::id()));
            comm.barrier()?;
            loop {
                std::thread::park();
            }
        }
        "recover" => recover(comm),
        _ => panic!("{scenario} is no scenario"),
    }
}

/// Allocates alone until the system has no more memory, and goes on with what it has.
fn fill(comm: &mut Communicator) -> shmccl::Result<()> {
    const LEN: usize = 1 << 20;
    comm.prepare()?;
    // Before the other takes all that there is.
    let arena = comm.arena();
    let mut kept = vec![arena.alloc::<u8>(LEN)?];
    comm.barrier()?;
    let error = loop {
        match arena.alloc::<u8>(LEN) {
            Ok(buffer) => {
                buffer.fill(1);
                kept.push(buffer);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::ResourceLimit { .. }), "{error}");
    comm.barrier()?;
    let (n_kept, usage) = (kept.len(), arena.usage());
    kept.pop();
    let again = arena.alloc::<u8>(LEN)?;
    again.fill(1);
    assert_eq!((arena.usage(), kept.len() + 1), (usage, n_kept));
    comm.all_reduce_in_place(&again, &ReduceOp::Sum)?;
    assert!(again.to_vec().iter().all(|sum| *sum == 2));
    comm.barrier()
}

/// Does one all_reduce and says its result.
pub(crate) fn sum(comm: &mut Communicator) -> shmccl::Result<()> {
    let mut sum = [u64::from(comm.rank().get()) + 1];
    comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    say(format_args!("sum {}", sum[0]));
    Ok(())
}

/// Says who it is, rank 1 last, whose successor the other one comes together with; or it goes on
/// without one.
fn recover(comm: &mut Communicator) -> shmccl::Result<()> {
    if comm.was_restarted() {
        comm.barrier()?;
        say(format_args!("back"));
        return Ok(());
    }
    if comm.rank().get() == 1 {
        comm.barrier()?;
        say(format_args!("pid {}", std::process::id()));
        loop {
            std::thread::park();
        }
    }
    say(format_args!("pid {}", std::process::id()));
    comm.barrier()?;
    let lost = comm.barrier().unwrap_err();
    match comm.recover(0) {
        Ok(mut comm) => {
            comm.barrier()?;
            say(format_args!("back"));
            Ok(())
        }
        Err(_) if comm.shrink().is_ok() => Ok(()),
        Err(_) => Err(lost),
    }
}
