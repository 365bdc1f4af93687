//! Devices that a coordinator has started: they end with it, however it ends, and it tells when one dies before.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::kinds::Kind;
use crate::output;

/// How long devices that are told to end may take for it.
const GRACE: Duration = Duration::from_secs(2);

/// How often it is looked whether they have.
const LOOK_MS: u16 = 5;

/// The devices that were started. Dropping it ends them.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    devices: Vec<Child>,
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
                fleet.devices.push(start(kind)?);
            }
        }
        Ok(fleet)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for device in &self.devices {
            // Nobody has waited for it, so that its number is nobody else's.
            let _ = kill(pid(device), Signal::SIGTERM);
        }
        let until = Instant::now() + GRACE;
        for device in &mut self.devices {
            while matches!(device.try_wait(), Ok(None)) && Instant::now() < until {
                let _ = poll(&mut [], PollTimeout::from(LOOK_MS));
            }
            let _ = device.kill();
            let _ = device.wait();
        }
    }
}

/// Starts a device by way of the trampoline, which binds it to the life of this process.
fn start(kind: &Kind) -> Result<Child> {
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
    let (pid, name) = (pid(&device), kind.name.clone());
    let watch = move || watch(pid, name.as_deref());
    // Where there is no thread to be had, the coordinator notices its end all the same.
    let _ = std::thread::Builder::new().name("shmccl fleet".to_owned()).stack_size(128 << 10).spawn(watch);
    Ok(device)
}

/// Waits for the end of a device, and tells of it where the device was not told to end.
fn watch(pid: Pid, name: Option<&str>) {
    let end = loop {
        match waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(nix::errno::Errno::EINTR) => {}
            end => break end,
        }
    };
    let how = match end {
        Ok(WaitStatus::Exited(_, code)) if code != 0 => format!("exited with code {code}"),
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("was killed by {signal}"),
        _ => return,
    };
    let name = name.map_or_else(String::new, |name| format!(" ({name})"));
    output::note(&format!("device {pid}{name} {how}; the others go on"));
}

fn pid(device: &Child) -> Pid {
    Pid::from_raw(device.id().cast_signed())
}
