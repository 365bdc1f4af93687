//! Devices that a process has started for its coordinator: they end with it, and it is told when one ends before. When it is killed they
//! end as well, or wait for the next coordinator for a time ([`Fleet::outliving`]).
//!
//! One thread starts them, waits for whichever ends next, and ends them. It is their parent, by whose death the kernel kills them
//! ([`Device::from_env`](super::Device::from_env)); so it lives as long as they do. It waits for processes that are its own and for
//! no others: what else the program starts is the program's to wait for.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use super::device::{Appointed, Assignment};
use super::directory::RuntimeDirectory;
use super::id::DeviceId;
use super::machine::MAX_DEVICES;
use crate::bootstrap::{poll_timeout, resource_error};
use crate::error::{Error, Result};
use crate::launch::Program;
use crate::shm::system::pidfd_open;

/// How long devices that are told to end may take for it.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// How long it may take this process to hear of a Ctrl-C that its devices have heard of as well.
const HEARING: Duration = Duration::from_millis(300);

/// Devices that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// What they are called when one of them ends.
    pub name: Option<String>,
    /// How many of them there are to be.
    pub count: usize,
    /// The bytes that each has, from [`MIN_ADDRESS`](crate::heap::MIN_ADDRESS) up: a multiple of 4096.
    pub memory: u64,
    /// How long one waits for other devices.
    pub timeout: Duration,
    /// The core that they are to run on, if that matters.
    pub core: Option<usize>,
}

impl DeviceKind {
    /// So many devices of 64 MiB, each of which waits 30 seconds for others and runs on any core.
    #[must_use]
    pub const fn new(count: usize) -> Self {
        Self { name: None, count, memory: 64 << 20, timeout: Duration::from_secs(30), core: None }
    }

    /// How many of each of `kinds` are yet to be started where `present` are there, of which those count that a fleet has started for
    /// `directory` before, and no others. Besides, those count that are [coming](Missing::coming).
    #[must_use]
    pub fn missing(kinds: &[Self], directory: &RuntimeDirectory, present: &[DeviceId]) -> Missing {
        let mut found: Vec<_> =
            present.iter().filter_map(|device| Assignment::of(*device, directory)).collect();
        let is_coming = |it: &Appointed| {
            it.is_orphan && it.assignment.outlives.is_some() && !present.contains(&it.device)
        };
        let mut coming = Appointed::all(directory).unwrap_or_default();
        coming.retain(is_coming);
        found.extend(coming.iter().map(|it| it.assignment));
        let missing = kinds.iter().map(|kind| {
            let mut wanted = kind.count;
            let assignment = kind.assignment(None);
            found.retain(|it| {
                let counts = wanted > 0 && assignment.is_alike(it);
                wanted -= usize::from(counts);
                !counts
            });
            Self { count: wanted, ..kind.clone() }
        });
        Missing { kinds: missing.collect(), coming: coming.iter().map(|it| it.device).collect() }
    }

    fn assignment(&self, outlives: Option<Duration>) -> Assignment {
        Assignment { memory: self.memory, timeout: self.timeout, core: self.core, outlives }
    }
}

/// What [`DeviceKind::missing`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// The kinds, each with the number of devices that are yet to be started, which may be 0.
    pub kinds: Vec<DeviceKind>,
    /// Those that a fleet has started which live and outlive it, and are not there yet, of whatever kind: they may be busy or stopped,
    /// and come back. A coordinator that ends in order ends them.
    pub coming: Vec<DeviceId>,
}

/// A device that has ended before its fleet. It displays as what has become of it: "device 7 (big) was killed by SIGKILL".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEnd {
    /// Which.
    pub device: DeviceId,
    /// What its kind is called.
    pub name: Option<String>,
    /// How it has ended.
    pub status: ExitStatus,
}

impl DeviceEnd {
    /// Whether it has ended as one does that somebody tells to: in order, or by SIGINT, SIGTERM or SIGHUP, which end a device that has
    /// only just begun at once.
    #[must_use]
    pub fn was_told(&self) -> bool {
        let tells = |signal| [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].contains(&signal);
        self.status.success()
            || self.status.signal().is_some_and(|number| Signal::try_from(number).is_ok_and(tells))
    }
}

impl fmt::Display for DeviceEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.device)?;
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        match (self.status.signal().map(Signal::try_from), self.status.code()) {
            (Some(Ok(signal)), _) => write!(f, " was killed by {signal}"),
            (None, Some(0)) => write!(f, " has ended"),
            (None, Some(code)) => write!(f, " exited with code {code}"),
            _ => write!(f, " has ended as {}", self.status),
        }
    }
}

/// The devices that were started. Dropping it ends them.
#[derive(Debug)]
pub struct Fleet {
    devices: Vec<DeviceId>,
    /// Its end is what tells the thread to end.
    bell: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// As [`Fleet::start`], of devices that outlive this process when that is killed: they wait for the next coordinator of `directory` for
    /// the time `outlives`, and end then. What they do meanwhile goes on.
    ///
    /// # Errors
    /// Those of [`Fleet::start`].
    pub fn outliving(
        directory: &RuntimeDirectory,
        program: &Program,
        kinds: &[DeviceKind],
        outlives: Duration,
        on_end: impl FnMut(&DeviceEnd) + Send + 'static,
    ) -> Result<Self> {
        Self::launch(directory, program, (kinds, Some(outlives)), on_end)
    }

    /// Starts `program` for each device of these kinds, which is to be one ([`Device::from_env`](super::Device::from_env)) of the
    /// coordinator of `directory`. `on_end` is told of each that ends before the fleet does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more than [`MAX_DEVICES`]; [`Error::ResourceLimit`], [`Error::Os`] when one cannot be started:
    /// then none is left.
    pub fn start(
        directory: &RuntimeDirectory,
        program: &Program,
        kinds: &[DeviceKind],
        on_end: impl FnMut(&DeviceEnd) + Send + 'static,
    ) -> Result<Self> {
        Self::launch(directory, program, (kinds, None), on_end)
    }

    fn launch(
        directory: &RuntimeDirectory,
        program: &Program,
        (kinds, outlives): (&[DeviceKind], Option<Duration>),
        on_end: impl FnMut(&DeviceEnd) + Send + 'static,
    ) -> Result<Self> {
        const ACTION: &str = "starting the devices of a pool";
        let count = kinds.iter().fold(0_usize, |sum, kind| sum.saturating_add(kind.count));
        if count > MAX_DEVICES {
            let (name, expected) = ("the number of devices", "1024 at most");
            return Err(Error::InvalidArgument { name, value: count as u64, expected });
        }
        let orders = kinds.iter().flat_map(|kind| {
            let order = move || (command(directory, program, kind, outlives), kind.name.clone());
            std::iter::repeat_with(order).take(kind.count)
        });
        let orders: Vec<_> = orders.collect();
        let (bell, rope) = UnixStream::pair().map_err(|error| resource_error(ACTION, error))?;
        let (tell, told) = channel();
        let builder = std::thread::Builder::new().name("shmccl fleet".to_owned()).stack_size(256 << 10);
        let live = move || Crew::default().live(orders, &rope, &tell, on_end);
        let thread = builder.spawn(live).map_err(|error| resource_error(ACTION, error))?;
        let mut fleet = Self { devices: Vec::new(), bell: Some(bell), thread: Some(thread) };
        fleet.devices = told.recv().expect("the thread tells what it has started")?;
        Ok(fleet)
    }

    /// The devices that were started.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// Begins to end them, and tells of none that ends from now on. Dropping the fleet waits for that.
    pub fn end(&mut self) {
        drop(self.bell.take());
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn command(
    directory: &RuntimeDirectory,
    program: &Program,
    kind: &DeviceKind,
    outlives: Option<Duration>,
) -> Command {
    let assignment = kind.assignment(outlives);
    let mut command = program.command();
    command.envs(assignment.variables(directory)).stdin(Stdio::null());
    command
}

/// The processes that have not been waited for. Whoever is left when it is dropped is killed.
#[derive(Debug, Default)]
struct Crew {
    living: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    child: Child,
    pidfd: OwnedFd,
    name: Option<String>,
}

impl Crew {
    /// What the thread does.
    fn live(
        mut self,
        orders: Vec<(Command, Option<String>)>,
        rope: &UnixStream,
        tell: &Sender<Result<Vec<DeviceId>>>,
        mut on_end: impl FnMut(&DeviceEnd),
    ) {
        let started = orders.into_iter().try_for_each(|(command, name)| self.start(command, name));
        let is_up = started.is_ok();
        let devices = started.map(|()| self.living.iter().map(Member::device).collect());
        if tell.send(devices).is_err() || !is_up {
            return;
        }
        // Signals are for the program's own threads. What it starts has them as they were.
        let _ = SigSet::all().thread_block();
        while !self.has_rung(rope, None) {
            for end in self.reap(Some(rope)) {
                on_end(&end);
            }
        }
        self.end();
    }

    fn start(&mut self, mut command: Command, name: Option<String>) -> Result<()> {
        const ACTION: &str = "starting a device";
        let mut child = command.spawn().map_err(|error| resource_error(ACTION, error))?;
        match pidfd_open(pid_of(&child)) {
            Ok(pidfd) => {
                self.living.push(Member { child, pidfd, name });
                Ok(())
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(resource_error(ACTION, error))
            }
        }
    }

    /// Waits until a device ends, or the rope is pulled, for so long at the most. Returns whether it was the rope.
    fn has_rung(&self, rope: &UnixStream, limit: Option<Duration>) -> bool {
        let mut polled = vec![PollFd::new(rope.as_fd(), PollFlags::POLLIN)];
        if limit.is_none() {
            polled.extend(self.living.iter().map(|it| PollFd::new(it.pidfd.as_fd(), PollFlags::POLLIN)));
        }
        match poll(&mut polled, poll_timeout(limit)) {
            Ok(_) => polled[0].any().unwrap_or(true),
            // Who cannot wait any more cannot answer for devices.
            Err(errno) => errno != Errno::EINTR,
        }
    }

    /// Takes out those who have ended; where the fleet may be about to end as well, it is waited whether it does.
    fn reap(&mut self, rope: Option<&UnixStream>) -> Vec<DeviceEnd> {
        let mut ended = Vec::new();
        self.living.retain_mut(|member| {
            match member.child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => {
                    ended.push(DeviceEnd { device: member.device(), name: member.name.take(), status });
                }
                // The program has waited for all of its children, and for this one, too: how it has ended nobody can tell any more.
                Err(_) => {}
            }
            false
        });
        let were_told = ended.iter().any(DeviceEnd::was_told);
        if were_told && rope.is_some_and(|rope| self.has_rung(rope, Some(HEARING))) {
            ended.clear();
        }
        ended
    }

    /// Tells all to end, and waits for that for as long as they may take.
    fn end(&mut self) {
        // None of them has been waited for, so the numbers are theirs.
        self.living.iter().for_each(|member| _ = kill(pid_of(&member.child), Signal::SIGTERM));
        let until = Instant::now() + GRACE;
        while !self.living.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let mut polled: Vec<_> =
                self.living.iter().map(|it| PollFd::new(it.pidfd.as_fd(), PollFlags::POLLIN)).collect();
            if left.is_zero() || poll(&mut polled, poll_timeout(Some(left))) == Ok(0) {
                return;
            }
            drop(polled);
            self.reap(None);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.living.iter_mut().for_each(|member| _ = member.child.kill());
        self.living.iter_mut().for_each(|member| _ = member.child.wait());
    }
}

impl Member {
    fn device(&self) -> DeviceId {
        DeviceId::new(self.child.id())
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_in_order_or_by_a_signal_that_ends_programs_was_told_to() {
        let end = |status| DeviceEnd { device: DeviceId::new(7), name: None, status };
        for (status, was_told) in [
            (0, true),
            (Signal::SIGINT as i32, true),
            (Signal::SIGTERM as i32, true),
            (Signal::SIGHUP as i32, true),
            (Signal::SIGKILL as i32, false),
            (Signal::SIGSEGV as i32, false),
            (2 << 8, false),
        ] {
            let end = end(ExitStatus::from_raw(status));
            assert_eq!(end.was_told(), was_told, "{end}");
        }
    }
}
