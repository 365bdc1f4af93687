//! Reads what a launcher puts into the environment of the processes that it starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

use super::control_channel::ControlChannel;
use super::member::Joining;
use super::options::Options;
use super::socket::{ControlSocket, call_error};
use crate::error::{DeviceName, Error, Result};
use crate::logs::LAUNCH;
use crate::rank::{Rank, check_n_ranks};
use crate::shm::statics;
use crate::shm::system::{SocketRefusal, ignore_quit, inherited_socket, unblock_all_in};
use crate::variables::{self, set};

pub(crate) const RANK: &str = "SHMCCL_RANK";
pub(crate) const SIZE: &str = "SHMCCL_SIZE";
pub(crate) const SOCKET: &str = "SHMCCL_SOCKET";
pub(crate) const JOB: &str = "SHMCCL_JOB";
pub(crate) const LAUNCHER: &str = "SHMCCL_LAUNCHER";
pub(crate) const TIMEOUT_MS: &str = "SHMCCL_TIMEOUT_MS";

/// The value of [`RANK`] for the proxy service.
const PROXY: &str = "proxy";

/// Joins the job that this process was started for. Returns `None` when no launcher started it,
/// also where it descends from a rank and has the rank's environment, but not its socket.
///
/// The process is killed from here on when the launcher dies. The launcher must have started it
/// without a wrapper in between. The calling thread must stay, since the kernel ties the request to
/// the thread. In any case the link to the launcher hangs up.
///
/// # Errors
/// - [`Error::Environment`] when the variables are damaged, or the job was joined already.
/// - [`Error::Layout`] when launcher and program do not fit.
/// - [`Error::PeerLost`], [`Error::ProxyLost`], [`Error::Revoked`], [`Error::Timeout`].
pub fn join_from_env() -> Result<Option<Joining>> {
    let Some(socket) = set(SOCKET) else { return Ok(None) };
    let socket = parse(SOCKET, &socket, "the number of a descriptor", |text| text.parse().ok())?;
    let n_ranks: u32 = variable(SIZE, "a number of ranks from 1 to 256", |text| text.parse().ok())?;
    check_n_ranks(n_ranks)?;
    let device = variable(RANK, "a rank, or `proxy`", |text| parse_device(text, n_ranks))?;
    let job_id = variable(JOB, "a job id in hexadecimal", |text| u64::from_str_radix(text, 16).ok())?;
    let launcher = variable(LAUNCHER, "a process id", |text| text.parse().ok())?;
    let timeout = match set(TIMEOUT_MS) {
        Some(text) => {
            let ms = parse(TIMEOUT_MS, &text, "a number of milliseconds", |text| text.parse().ok())?;
            Duration::from_millis(ms)
        }
        None => Options::default().timeout,
    };
    let socket = match inherited_socket(socket, launcher) {
        Ok(socket) => socket,
        // The rank has taken it, and this process is another one.
        Err(SocketRefusal::NotInherited) => {
            tracing::info!(target: LAUNCH, "no socket of the launcher was inherited: not started by it");
            return Ok(None);
        }
        Err(SocketRefusal::Taken) => {
            let expected = "expected the launcher's socket, not taken before by this process";
            return Err(Error::Environment { variable: SOCKET, expected });
        }
        Err(SocketRefusal::Unknown(errno)) => {
            return Err(call_error("taking the launcher's socket", "the system call getsockopt", errno));
        }
    };
    bind_to_launcher(launcher)?;
    let channel = ControlChannel {
        socket: ControlSocket::new(socket),
        job_id,
        n_ranks,
        guard: None,
        last_words: Duration::ZERO,
    };
    Joining::begin(channel, device, timeout).map(Some)
}

/// Returns whether the static objects of this process are to be symmetric:
/// [`STATICS`](crate::shm::statics::STATICS) says so, or says nothing and a launcher has started
/// the process as a rank.
///
/// # Errors
/// [`Error::Setting`] for a value of that variable that says nothing.
pub fn wants_statics() -> Result<bool> {
    let is_rank = set(SOCKET).is_some() && set(RANK).is_some_and(|rank| rank != PROXY);
    Ok(statics::switch()?.unwrap_or(is_rank))
}

/// Replaces this process by `program`, bound to the life of the launcher. A trampoline calls it.
///
/// The program begins with no signal blocked, and ignores SIGQUIT unless it says otherwise. From a
/// terminal that signal reaches all processes of the job, but it is a question to the launcher.
///
/// Returns only on failure:
/// - [`Error::Environment`] when no launcher started this process.
/// - [`Error::Revoked`] when the launcher is gone.
/// - [`Error::Os`] when the program cannot be executed.
pub fn become_program<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = A>,
) -> Error {
    let bound = variable(LAUNCHER, "a process id", |text| text.parse().ok()).and_then(|launcher| {
        bind_to_launcher(launcher)?;
        if getppid().as_raw() == launcher { Ok(()) } else { Err(Error::Revoked { by: None, awaited: None }) }
    });
    match bound {
        Ok(()) => {
            ignore_quit();
            let mut command = Command::new(program);
            unblock_all_in(&mut command);
            Error::os("executing the program", command.args(args).exec())
        }
        Err(error) => error,
    }
}

/// Asks the kernel to kill this process when the launcher dies.
///
/// Only a direct child can ask for that. For others the wrapper in between sees to it, and the
/// socket, which hangs up in any case.
pub(crate) fn bind_to_launcher(launcher: i32) -> Result<()> {
    if getppid().as_raw() != launcher {
        return Ok(());
    }
    // A sandbox may refuse it. A rank that has joined hears of the launcher's end by the socket.
    let _ = set_pdeathsig(Signal::SIGKILL);
    // The launcher may have died just before.
    if getppid().as_raw() == launcher { Ok(()) } else { Err(Error::Revoked { by: None, awaited: None }) }
}

/// Returns the variables of a process, except the number of its socket.
pub(crate) fn variables(
    device: DeviceName,
    n_ranks: u32,
    job_id: u64,
    timeout: Duration,
) -> [(&'static str, OsString); 5] {
    let rank = match device {
        DeviceName::Rank(rank) => rank.to_string(),
        DeviceName::Proxy => PROXY.to_owned(),
    };
    [
        (RANK, rank.into()),
        (SIZE, n_ranks.to_string().into()),
        (JOB, format!("{job_id:016x}").into()),
        (LAUNCHER, std::process::id().to_string().into()),
        (TIMEOUT_MS, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).to_string().into()),
    ]
}

fn parse_device(text: &str, n_ranks: u32) -> Option<DeviceName> {
    if text == PROXY {
        return Some(DeviceName::Proxy);
    }
    Rank::new(text.parse().ok()?, n_ranks).ok().map(DeviceName::Rank)
}

fn variable<T>(name: &'static str, expected: &'static str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
    parse(name, &variables::get(name).unwrap_or_default(), expected, read)
}

fn parse<T>(
    variable: &'static str,
    text: &OsStr,
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T> {
    text.to_str().and_then(read).ok_or(Error::Environment { variable, expected })
}
