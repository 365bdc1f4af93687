//! The thread that is the parent of a fleet's devices.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::SigSet;

use super::{DeviceEnd, DeviceKind, GRACE, terminate};
use crate::bootstrap::{poll_timeout, resource_error};
use crate::coordinator::adoption::fleet::AdoptedDevice;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::id::DeviceId;
use crate::error::Error;
use crate::launch::Program;
use crate::logs::COORDINATOR;
use crate::process::{self, OwnedChild};
use crate::shm::system::KeptChildren;

/// How long a Ctrl-C that the devices have received may take to reach this process as well.
const CTRL_C_DELAY: Duration = Duration::from_millis(300);

/// How often it is checked meanwhile whether the system tells how a device has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The devices to start.
#[derive(Debug)]
pub(super) struct FleetSpec {
    pub(super) directory: RuntimeDirectory,
    pub(super) program: Program,
    pub(super) kinds: Vec<Arc<DeviceKind>>,
    pub(super) outlives: Option<Duration>,
}

impl FleetSpec {
    fn command(&self, kind: &DeviceKind) -> io::Result<Command> {
        let assignment = kind.assignment(self.outlives);
        let mut command = self.program.command();
        command.envs(assignment.variables(&self.directory)).stdin(process::no_input()?);
        Ok(command)
    }
}

/// The processes that were not waited for. Those that are left when it is dropped are killed.
#[derive(Debug)]
pub(super) struct Crew {
    spec: FleetSpec,
    restarts: RestartBudget,
    living: Vec<ChildDevice>,
    /// The devices that it has not started.
    adopted: Vec<AdoptedDevice>,
    _kept: KeptChildren,
}

#[derive(Debug)]
struct ChildDevice {
    child: OwnedChild,
    kind: Arc<DeviceKind>,
    began: Instant,
    was_restarted: bool,
}

/// A device that was waited for.
#[derive(Debug)]
pub(in crate::coordinator) struct EndedDevice {
    pub(in crate::coordinator) end: DeviceEnd,
    pub(in crate::coordinator) kind: Arc<DeviceKind>,
    pub(in crate::coordinator) lived: Duration,
}

impl Crew {
    pub(super) fn new(spec: FleetSpec, restarts: u32) -> Self {
        let (restarts, _kept) = (RestartBudget::new(restarts), KeptChildren::start());
        Self { spec, restarts, living: Vec::new(), adopted: Vec::new(), _kept }
    }

    /// Starts the devices, replaces those that die, and ends all when the other side of `stop` is
    /// dropped.
    pub(super) fn run(
        mut self,
        stop: &UnixStream,
        started: &Sender<Result<Vec<DeviceId>, Error>>,
        mut on_end: impl FnMut(&DeviceEnd) -> bool,
    ) {
        let began = self.start_all();
        let is_up = began.is_ok();
        let devices = began.map(|()| self.living.iter().map(ChildDevice::device).collect());
        if started.send(devices).is_err() || !is_up {
            return;
        }
        // Signals are for the program's own threads.
        let _ = SigSet::all().thread_block();
        while !self.is_stopped(stop, None) {
            let mut dead = self.reap(stop);
            dead.extend(self.reap_adopted(stop));
            self.replace(dead, stop, &mut on_end);
        }
        terminate(&self.living, GRACE);
    }

    fn start_all(&mut self) -> Result<(), Error> {
        for kind in self.spec.kinds.clone() {
            let mut missing = kind.count;
            for device in &kind.taken_over {
                match AdoptedDevice::hold(*device, &kind, &self.spec.directory) {
                    Some(it) => self.adopted.push(it),
                    // It has ended since it was found.
                    None => missing += 1,
                }
            }
            (0..missing).try_for_each(|_| self.start(&kind, false).map(drop))?;
        }
        Ok(())
    }

    /// Takes out the adopted devices that have ended. Waits for a moment to learn how, and returns
    /// none if it is stopped meanwhile.
    fn reap_adopted(&mut self, stop: &UnixStream) -> Vec<EndedDevice> {
        let until = Instant::now() + CTRL_C_DELAY;
        let ended: Vec<_> = self.adopted.extract_if(.., |it| it.has_ended()).collect();
        let mut dead = Vec::new();
        for it in ended {
            let status = loop {
                match it.status() {
                    Ok(None) if Instant::now() < until => {}
                    known => break known.ok().flatten(),
                }
                if self.is_stopped(stop, Some(LOOK)) {
                    return Vec::new();
                }
            };
            dead.push(it.into_ended(status));
        }
        dead
    }

    fn start(&mut self, kind: &Arc<DeviceKind>, was_restarted: bool) -> Result<DeviceId, Error> {
        const ACTION: &str = "starting a device";
        let spawned = self.spec.command(kind).and_then(|mut command| process::spawn(&mut command));
        let child = spawned.and_then(OwnedChild::watch);
        let child = child.map_err(|error| resource_error(ACTION, error))?;
        let member = ChildDevice { child, kind: Arc::clone(kind), began: Instant::now(), was_restarted };
        let device = member.device();
        self.living.push(member);
        Ok(device)
    }

    /// Reports the dead devices, and starts others in their places where `on_end` says so, unless
    /// it is stopped meanwhile.
    fn replace(
        &mut self,
        dead: Vec<EndedDevice>,
        stop: &UnixStream,
        on_end: &mut impl FnMut(&DeviceEnd) -> bool,
    ) {
        let (mut places, mut pause) = (Vec::new(), Duration::ZERO);
        for EndedDevice { mut end, kind, lived } in dead {
            end.restarts = self.restarts.left;
            if on_end(&end) && end.can_restart() {
                pause = self.restarts.take(lived).max(pause);
                places.push((end.device, kind));
            }
        }
        if places.is_empty() || self.is_stopped(stop, Some(pause)) {
            return;
        }
        for (dead, kind) in places {
            let (left, name) = (self.restarts.left, kind.name.as_deref().unwrap_or_default());
            match self.start(&kind, true) {
                Ok(device) => {
                    tracing::info!(
                        target: COORDINATOR, %device, in_place_of = %dead, name, left, "device started again"
                    );
                }
                Err(error) => {
                    tracing::error!(
                        target: COORDINATOR, %error, in_place_of = %dead, name, left, "no device started again"
                    );
                }
            }
        }
    }

    /// Waits until a device ends or the fleet is to stop; with a `limit`, for that long and for the
    /// stop only. Returns whether it is to stop.
    fn is_stopped(&self, stop: &UnixStream, limit: Option<Duration>) -> bool {
        let mut polled = vec![PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        if limit.is_none() {
            polled.extend(self.living.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
            polled.extend(self.adopted.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
        }
        match poll(&mut polled, poll_timeout(limit)) {
            Ok(_) => polled[0].any().unwrap_or(true),
            // A crew that cannot wait any more cannot keep devices either.
            Err(errno) => errno != Errno::EINTR,
        }
    }

    /// Takes out the devices that have ended. Where they were told to end, waits for a moment
    /// whether the fleet is to stop as well, and returns none then.
    fn reap(&mut self, stop: &UnixStream) -> Vec<EndedDevice> {
        let gone = self.living.extract_if(.., |it| it.child.end().is_some());
        let mut ended: Vec<_> = gone.map(ChildDevice::into_ended).collect();
        let were_told = ended.iter().any(|it| it.end.was_told());
        if were_told && self.is_stopped(stop, Some(CTRL_C_DELAY)) {
            ended.clear();
        }
        ended
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // All of them before the first one is waited for.
        self.living.iter().for_each(|member| member.child.kill());
    }
}

impl ChildDevice {
    fn device(&self) -> DeviceId {
        DeviceId::new(self.child.pid().as_raw().cast_unsigned())
    }

    fn into_ended(mut self) -> EndedDevice {
        let (device, status) = (self.device(), self.child.end().flatten());
        let Self { kind, began, was_restarted, .. } = self;
        let name = kind.name.clone();
        let end = DeviceEnd { device, name, status, was_restarted, was_taken_over: false, restarts: 0 };
        EndedDevice { end, kind, lived: began.elapsed() }
    }
}

impl AsFd for ChildDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.child.as_fd()
    }
}

/// How long a device must have lived for its replacement to start at once.
const STEADY: Duration = Duration::from_secs(10);

/// The pause before a replacement otherwise, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How many devices may still be restarted, and how soon: no clock, no process.
#[derive(Debug)]
struct RestartBudget {
    left: u32,
    /// The pause before the newest replacement.
    pause: Duration,
}

impl RestartBudget {
    fn new(left: u32) -> Self {
        Self { left, pause: Duration::ZERO }
    }

    /// Takes one, which there must be, for a device that has lived so long. Returns the pause
    /// before its replacement.
    fn take(&mut self, lived: Duration) -> Duration {
        self.left -= 1;
        self.pause =
            if lived < STEADY { (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE) } else { Duration::ZERO };
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_dies_at_once_again_and_again_is_replaced_after_pauses_that_grow_up_to_a_limit() {
        let mut restarts = RestartBudget::new(9);
        let pauses: Vec<_> = (0..8).map(|_| restarts.take(Duration::from_millis(3)).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.take(STEADY), Duration::ZERO, "one that has lived is followed at once");
        assert_eq!(restarts.left, 0);
    }
}
