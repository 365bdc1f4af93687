//! The thread that is the parent of a fleet's devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::SigSet;
use nix::unistd::Pid;

use super::inherited::AdoptedDevice;
use super::restarts::RestartBudget;
use super::{DeviceEnd, DeviceKind};
use crate::bootstrap::{poll_timeout, resource_error};
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::id::DeviceId;
use crate::coordinator::sendoff;
use crate::error::Result;
use crate::launch::Program;
use crate::logs::COORDINATOR;
use crate::shm::system::{pidfd_kill, pidfd_open};

/// How long it may take this process to hear of a Ctrl-C that its devices have heard of as well.
const HEARING: Duration = Duration::from_millis(300);

/// How often it is looked meanwhile whether the system tells how somebody has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What is to be started.
#[derive(Debug)]
pub(super) struct FleetPlan {
    pub(super) directory: RuntimeDirectory,
    pub(super) program: Program,
    pub(super) kinds: Vec<Arc<DeviceKind>>,
    pub(super) outlives: Option<Duration>,
}

impl FleetPlan {
    fn command(&self, kind: &DeviceKind) -> Command {
        let assignment = kind.assignment(self.outlives);
        let mut command = self.program.command();
        command.envs(assignment.variables(&self.directory)).stdin(Stdio::null());
        command
    }
}

/// The processes that have not been waited for. Whoever is left when it is dropped is killed.
#[derive(Debug)]
pub(super) struct Crew {
    orders: FleetPlan,
    restarts: RestartBudget,
    living: Vec<ChildDevice>,
    /// Those that it has not started.
    inherited: Vec<AdoptedDevice>,
}

#[derive(Debug)]
struct ChildDevice {
    child: Child,
    pidfd: OwnedFd,
    kind: Arc<DeviceKind>,
    began: Instant,
    was_restarted: bool,
}

/// One who was waited for.
#[derive(Debug)]
pub(super) struct EndedDevice {
    pub(super) end: DeviceEnd,
    pub(super) kind: Arc<DeviceKind>,
    pub(super) lived: Duration,
}

impl Crew {
    pub(super) fn new(orders: FleetPlan, restarts: u32) -> Self {
        Self { orders, restarts: RestartBudget::new(restarts), living: Vec::new(), inherited: Vec::new() }
    }

    /// What the thread does.
    pub(super) fn live(
        mut self,
        rope: &UnixStream,
        tell: &Sender<Result<Vec<DeviceId>>>,
        mut on_end: impl FnMut(&DeviceEnd) -> bool,
    ) {
        let started = self.start_all();
        let is_up = started.is_ok();
        let devices = started.map(|()| self.living.iter().map(ChildDevice::device).collect());
        if tell.send(devices).is_err() || !is_up {
            return;
        }
        // Signals are for the program's own threads. What it starts has them as they were.
        let before = SigSet::thread_get_mask();
        let _ = SigSet::all().thread_block();
        while !self.has_rung(rope, None) {
            let mut dead = self.reap(rope);
            dead.extend(self.reap_inherited(rope));
            self.replace(dead, rope, &mut on_end, before.as_ref().ok());
        }
        sendoff::end(&self.living);
    }

    fn start_all(&mut self) -> Result<()> {
        for kind in self.orders.kinds.clone() {
            let mut missing = kind.count;
            for device in &kind.taken_over {
                match AdoptedDevice::hold(*device, &kind, &self.orders.directory) {
                    Some(it) => self.inherited.push(it),
                    // It has ended since it was found.
                    None => missing += 1,
                }
            }
            (0..missing).try_for_each(|_| self.start(&kind, false).map(drop))?;
        }
        Ok(())
    }

    /// Takes out those who have ended that it has not started, unless the rope is pulled while it waits to hear how.
    fn reap_inherited(&mut self, rope: &UnixStream) -> Vec<EndedDevice> {
        let until = Instant::now() + HEARING;
        let ended: Vec<_> = self.inherited.extract_if(.., |it| it.has_ended()).collect();
        let mut dead = Vec::new();
        for it in ended {
            let status = loop {
                match it.status() {
                    Ok(None) if Instant::now() < until => {}
                    told => break told.ok().flatten(),
                }
                if self.has_rung(rope, Some(LOOK)) {
                    return Vec::new();
                }
            };
            dead.push(it.bury(status));
        }
        dead
    }

    fn start(&mut self, kind: &Arc<DeviceKind>, was_restarted: bool) -> Result<DeviceId> {
        const ACTION: &str = "starting a device";
        let mut child = self.orders.command(kind).spawn().map_err(|error| resource_error(ACTION, error))?;
        match pidfd_open(pid_of(&child)) {
            Ok(pidfd) => {
                let member = ChildDevice {
                    child,
                    pidfd,
                    kind: Arc::clone(kind),
                    began: Instant::now(),
                    was_restarted,
                };
                let device = member.device();
                self.living.push(member);
                Ok(device)
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(resource_error(ACTION, error))
            }
        }
    }

    /// Tells of those who are dead, and starts others in the place of those of whom `on_end` says so, unless the rope is pulled meanwhile.
    /// They have the signals `mask`ed that the first ones had.
    fn replace(
        &mut self,
        dead: Vec<EndedDevice>,
        rope: &UnixStream,
        on_end: &mut impl FnMut(&DeviceEnd) -> bool,
        mask: Option<&SigSet>,
    ) {
        let (mut places, mut pause) = (Vec::new(), Duration::ZERO);
        for EndedDevice { mut end, kind, lived } in dead {
            end.restarts = self.restarts.left();
            if on_end(&end) && end.can_restart() {
                pause = self.restarts.take(lived).max(pause);
                places.push((end.device, kind));
            }
        }
        if places.is_empty() || self.has_rung(rope, Some(pause)) {
            return;
        }
        let ours = SigSet::thread_get_mask();
        mask.map(SigSet::thread_set_mask);
        for (dead, kind) in places {
            let (left, name) = (self.restarts.left(), kind.name.as_deref().unwrap_or_default());
            match self.start(&kind, true) {
                Ok(device) => {
                    tracing::info!(target: COORDINATOR, %device, in_place_of = %dead, name, left, "device started again");
                }
                Err(error) => {
                    tracing::error!(target: COORDINATOR, %error, in_place_of = %dead, name, left, "no device started again");
                }
            }
        }
        let _ = ours.map(|ours| ours.thread_set_mask());
    }

    /// Waits until a device ends, or the rope is pulled, for so long at the most. Returns whether it was the rope.
    fn has_rung(&self, rope: &UnixStream, limit: Option<Duration>) -> bool {
        let mut polled = vec![PollFd::new(rope.as_fd(), PollFlags::POLLIN)];
        if limit.is_none() {
            polled.extend(self.living.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
            polled.extend(self.inherited.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
        }
        match poll(&mut polled, poll_timeout(limit)) {
            Ok(_) => polled[0].any().unwrap_or(true),
            // Who cannot wait any more cannot answer for devices.
            Err(errno) => errno != Errno::EINTR,
        }
    }

    /// Takes out those who have ended; where the fleet may be about to end as well, it is waited whether it does.
    fn reap(&mut self, rope: &UnixStream) -> Vec<EndedDevice> {
        let mut ended = Vec::new();
        self.living.retain_mut(|member| {
            match member.child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => {
                    let (device, name) = (member.device(), member.kind.name.clone());
                    let (status, was_restarted) = (Some(status), member.was_restarted);
                    let end =
                        DeviceEnd { device, name, status, was_restarted, was_taken_over: false, restarts: 0 };
                    let (kind, lived) = (Arc::clone(&member.kind), member.began.elapsed());
                    ended.push(EndedDevice { end, kind, lived });
                }
                // The program has waited for all of its children, and for this one, too: how it has ended nobody can tell any more.
                Err(_) => {}
            }
            false
        });
        let were_told = ended.iter().any(|it| it.end.was_told());
        if were_told && self.has_rung(rope, Some(HEARING)) {
            ended.clear();
        }
        ended
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // The program may have waited for all of its children, and another process may have the number of one.
        self.living.iter().for_each(|member| pidfd_kill(member.as_fd()));
        self.living.iter_mut().for_each(|member| _ = member.child.wait());
    }
}

impl ChildDevice {
    fn device(&self) -> DeviceId {
        DeviceId::new(self.child.id())
    }
}

impl AsFd for ChildDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}
