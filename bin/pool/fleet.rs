//! Devices that a coordinator has started: they end with it, however it ends, and it tells when one ends before.
//!
//! One thread waits for whichever ends next. A device is reaped under the lock, so that the numbers of those that are `living` are
//! nobody else's while it is held. The command has no other children: the janitor of a job is none that a wait finds.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use super::kinds::Kind;
use crate::output;

/// How long devices that are told to end may take for it.
const GRACE: Duration = Duration::from_secs(2);

/// How often it is looked whether they have.
const LOOK_MS: u16 = 5;

/// How long it may take this process to hear of a Ctrl-C that its devices have heard of as well.
const HEARING_MS: u16 = 300;

/// The devices that were started. Dropping it ends them.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    devices: Arc<Mutex<Devices>>,
    watch: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Devices {
    /// Those that nobody has waited for, and what they are called.
    living: BTreeMap<Pid, Option<String>>,
    /// From then on it is no news that they end, and whoever drops the fleet reaps them.
    are_ending: bool,
}

impl Fleet {
    /// Starts devices of these kinds.
    ///
    /// # Errors
    /// When one cannot be started; then none is left.
    pub(super) fn start(kinds: &[Kind]) -> Result<Self> {
        let mut fleet = Self::default();
        for kind in kinds {
            for _ in 0..kind.count {
                let device = start(kind)?;
                lock(&fleet.devices).living.insert(device, kind.name.clone());
            }
        }
        let devices = Arc::clone(&fleet.devices);
        let builder = std::thread::Builder::new().name("shmccl fleet".to_owned()).stack_size(128 << 10);
        // Where there is no thread to be had, the coordinator notices the end of a device all the same.
        fleet.watch = builder.spawn(move || watch(&devices)).ok();
        Ok(fleet)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let mut devices = lock(&self.devices);
        devices.are_ending = true;
        let tell = |devices: &Devices, signal| devices.living.keys().for_each(|pid| _ = kill(*pid, signal));
        tell(&devices, Signal::SIGTERM);
        let mut until = Some(Instant::now() + GRACE);
        loop {
            let is_there =
                |pid: &Pid| waitpid(*pid, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive);
            devices.living.retain(|pid, _| is_there(pid));
            if devices.living.is_empty() {
                break;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                tell(&devices, Signal::SIGKILL);
                until = None;
            }
            let _ = poll(&mut [], PollTimeout::from(LOOK_MS));
        }
        drop(devices);
        // It ends with the last device.
        let _ = self.watch.take().map(JoinHandle::join);
    }
}

fn lock(devices: &Mutex<Devices>) -> MutexGuard<'_, Devices> {
    // Each change is one step.
    devices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a device by way of the trampoline, which binds it to the life of this process.
fn start(kind: &Kind) -> Result<Pid> {
    let this = std::env::current_exe().context("finding this executable")?;
    let mut command = Command::new(&this);
    command.args(["become", "--"]).arg(&this).arg("device");
    command.arg("--memory").arg(kind.memory.to_string());
    command.arg("--timeout").arg(format!("{}us", kind.timeout.as_micros()));
    if let Some(core) = kind.core {
        command.arg("--core").arg(core.to_string());
    }
    command.env("SHMCCL_LAUNCHER", std::process::id().to_string()).stdin(Stdio::null());
    let device = command.spawn().context("cannot start a device")?;
    Ok(Pid::from_raw(device.id().cast_signed()))
}

/// Waits for devices to end, and tells of each that was not told to.
fn watch(devices: &Mutex<Devices>) {
    loop {
        let ended = match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Ok(ended) => ended,
            Err(Errno::EINTR) => continue,
            Err(_none_is_left) => return,
        };
        if matches!(ended, WaitStatus::Exited(_, 0)) {
            let _ = poll(&mut [], PollTimeout::from(HEARING_MS));
        }
        let Some(pid) = ended.pid() else { return };
        let name = {
            let mut devices = lock(devices);
            if devices.are_ending {
                return;
            }
            let _ = waitpid(pid, None);
            devices.living.remove(&pid).flatten()
        };
        let how = match ended {
            WaitStatus::Exited(_, 0) => "has ended".to_owned(),
            WaitStatus::Exited(_, code) => format!("exited with code {code}"),
            WaitStatus::Signaled(_, signal, _) => format!("was killed by {signal}"),
            _ => continue,
        };
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        output::note(&format!("device {pid}{name} {how}; the others go on"));
    }
}
