//! A member of a job as the launcher sees it: its process, spawned with its socket, watched by
//! descriptor, killed and reaped at the latest on drop; and what is known of its part in the job.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::Launch;
use super::held::HeldProgram;
use super::observer::{OutputPipe, OutputStream};
use crate::bootstrap::{CHECKSUMS, CORES, ProxyMode, call_error, environment, pair, resource_error};
use crate::error::{DeviceName, Error, ExitCause, Result};
use crate::process::{OwnedChild, has_ended, no_input};
use crate::rank::Rank;
use crate::shm::system::{pidfd_kill, pidfd_open, pidfd_signal};
use crate::shm::undivided::ForkMutex;
use crate::sync::grace::Grace;

/// Held while a descriptor is inheritable, so that only the process it is meant for inherits it.
static SPAWNING: ForkMutex<()> = ForkMutex::new(());

/// What errors say was being done.
const STARTING: &str = "starting a device process";

/// A started process and, when a wrapper stands between, the process that joined in its place.
#[derive(Debug)]
pub(super) struct Process {
    child: OwnedChild,
    /// The descriptor of the process that joined, where it is not the child itself.
    joined: Option<OwnedFd>,
    /// Whether the launcher has killed it.
    pub(super) was_killed: bool,
    /// Whether that was because it had nothing to do.
    pub(super) was_stopped_idle: bool,
    /// Whether the observer knows of its loss.
    pub(super) is_reported: bool,
    /// Whether it has left. The others do not take such a member back.
    pub(super) has_left: bool,
    /// Whether the system has refused to start another process in its place.
    pub(super) cannot_restart: bool,
    /// The time after which it is killed if it has not ended, where it is lost and to be restarted.
    pub(super) restart_deadline: Option<Grace>,
}

/// A process that was just started, with its socket and pipes.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) process: Process,
    /// The launcher's end of the control socket.
    pub(super) socket: OwnedFd,
    pub(super) pipes: Vec<OutputPipe>,
}

/// Returns the members of a job in the order of their ids.
pub(super) fn devices(launch: &Launch) -> impl Iterator<Item = DeviceName> + use<> {
    let service = (launch.options.proxy == ProxyMode::Process).then_some(DeviceName::Proxy);
    (0..launch.n_ranks).map(Rank::known).map(DeviceName::Rank).chain(service)
}

/// Starts the process of one member. A restarted one (`again`) suffers no faults, and runs what the
/// first one ran, where that is `held`.
///
/// # Errors
/// [`Error::ResourceLimit`] or [`Error::Os`].
pub(super) fn start(
    launch: &Launch,
    device: DeviceName,
    again: bool,
    held: Option<&HeldProgram>,
) -> Result<Started> {
    let (socket, inherited) = pair()?;
    let mut command = command(launch, device, held.filter(|_| again));
    // Keyboard input goes to one reader.
    if !matches!(device, DeviceName::Rank(rank) if rank.get() == 0) {
        command.stdin(no_input().map_err(|error| call_error(STARTING, "the system call pipe2", error))?);
    }
    command.env(environment::SOCKET, inherited.as_raw_fd().to_string());
    if again {
        command.env_remove(crate::faults::VARIABLE);
    }
    let child = spawn(&mut command, &inherited)?;
    drop(inherited);
    let mut process = Process::watch(child)?;
    let outputs = [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(process.child.take_outputs());
    let pipes = outputs.filter_map(|(stream, pipe)| Some(OutputPipe::new(device, stream, pipe?)));
    let pipes = pipes.collect::<Result<_>>()?;
    Ok(Started { process, socket, pipes })
}

fn command(launch: &Launch, device: DeviceName, held: Option<&HeldProgram>) -> Command {
    let mut program = match device {
        DeviceName::Rank(_) => launch.program.clone(),
        DeviceName::Proxy => launch.service.clone(),
    };
    if let (DeviceName::Rank(_), Some(held)) = (device, held) {
        program.path = Some(held.name());
    }
    let mut command = match &launch.trampoline {
        Some(trampoline) => {
            let mut command = trampoline.command();
            command.arg(program.path()).args(&program.args);
            command
        }
        None => program.command(),
    };
    command.envs(environment::variables(device, launch.n_ranks, launch.job_id, launch.options.timeout));
    if !launch.options.faults.is_empty() {
        command.env(crate::faults::VARIABLE, launch.options.faults.to_string());
    }
    if launch.options.checksums {
        command.env(CHECKSUMS, "1");
    }
    if let Some(cores) = launch.options.cores {
        command.env(CORES, cores.to_string());
    }
    command.envs(launch.env.iter().map(|(name, value)| (name, value)));
    if launch.capture_output {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command
}

fn spawn(command: &mut Command, inherited: &OwnedFd) -> Result<Child> {
    let set = |flags| {
        fcntl(inherited, FcntlArg::F_SETFD(flags))
            .map_err(|errno| call_error("passing on the control socket", "the system call fcntl", errno))
    };
    let child = SPAWNING.with(|()| -> Result<_> {
        set(FdFlag::empty())?;
        let child = crate::process::spawn(command);
        set(FdFlag::FD_CLOEXEC)?;
        Ok(child)
    });
    child?.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        // Of the program, which this user may not execute.
        Some(Errno::EACCES) => Error::os(STARTING, error),
        _ => call_error(STARTING, "the system call clone3 (or dup2, execve)", error),
    })
}

impl Process {
    fn watch(child: Child) -> Result<Self> {
        let child =
            OwnedChild::watch(child).map_err(|error| resource_error("watching a device process", error))?;
        Ok(Self {
            child,
            joined: None,
            was_killed: false,
            was_stopped_idle: false,
            is_reported: false,
            has_left: false,
            cannot_restart: false,
            restart_deadline: None,
        })
    }

    pub(super) fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Returns the descriptors that become readable when a part of this process ends.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let child = self.child.known_end().is_none().then(|| self.child.as_fd());
        child.into_iter().chain(self.joined.as_ref().map(AsFd::as_fd))
    }

    /// Notes which process is at the other end of the socket.
    pub(super) fn joined_as(&mut self, pid: i32) {
        if pid != self.pid().as_raw() && pid > 0 {
            // One that is gone already hangs up, and that is enough.
            self.joined = pidfd_open(Pid::from_raw(pid)).ok();
        }
    }

    /// Returns whether the process that joined has ended just now, even if its wrapper is still
    /// there.
    pub(super) fn joined_has_ended(&mut self) -> bool {
        let ended = self.joined.as_ref().is_some_and(|joined| has_ended(joined.as_fd()));
        if ended {
            self.joined = None;
        }
        ended
    }

    /// Reaps the child if it has ended in this moment, and says so.
    pub(super) fn reap(&mut self) -> bool {
        self.child.known_end().is_none() && self.child.end().is_some()
    }

    /// Returns whether another process than the child has joined and is there.
    pub(super) fn has_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Returns whether nothing of it is left.
    pub(super) fn has_ended(&self) -> bool {
        self.child.known_end().is_some() && self.joined.is_none()
    }

    /// Returns how the ended child failed. It is `None` for exit code 0, for an unknown end of a
    /// member that has left, and when the launcher killed it.
    pub(super) fn failure(&self) -> Option<ExitCause> {
        let Some(status) = self.child.known_end()? else {
            return (!self.was_killed && !self.has_left).then_some(ExitCause::Unknown);
        };
        match (status.signal(), status.code()) {
            (Some(signal), _) if self.was_killed && signal == Signal::SIGKILL as i32 => None,
            (Some(signal), _) => Some(ExitCause::Signal(signal)),
            (None, Some(0)) => None,
            (None, code) => Some(ExitCause::Code(code.unwrap_or(-1))),
        }
    }

    /// Passes a signal on.
    pub(super) fn signal(&self, signal: Signal) {
        pidfd_signal(self.child.as_fd(), signal);
    }

    /// Kills what is left of it.
    pub(super) fn kill(&mut self) {
        if !self.has_ended() {
            self.was_killed = true;
            self.kill_as_failure();
        }
    }

    /// Kills what is left of it, which is no failure of anybody's: it had nothing to do.
    pub(super) fn stop_idle(&mut self) {
        if !self.has_ended() {
            self.was_stopped_idle = true;
            self.kill();
        }
    }

    /// Kills what is left of it, which counts as its own failure.
    pub(super) fn kill_as_failure(&mut self) {
        self.child.kill();
        if let Some(joined) = &self.joined {
            pidfd_kill(joined.as_fd());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
