//! Devices that a process has started for its coordinator. They end with it, and it is told when
//! one ends earlier.
//!
//! When the process is killed they end as well, or wait for the next coordinator for a time
//! ([`FleetOptions::outlives`]). One thread (`crew.rs`) starts them, waits for the next one that
//! ends, and ends them. It is their parent, at whose death the kernel kills them
//! ([`Device::from_env`](super::Device::from_env)), so it lives as long as they do. It waits for
//! its own processes and for no others.
//!
//! A device that has died may be replaced by a new one ([`FleetOptions::restarts`]). To the
//! coordinator the new one is a device like any other: no decision depends on which device it
//! replaces, and the next coordinator need not know. The fleet of the next coordinator watches the
//! devices that it finds of its kinds ([`DeviceKind::taken_over`], `adoption/fleet.rs`), and
//! replaces them like its own.

pub(super) mod crew;

use std::fmt;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;

use super::assignment::Assignment;
use super::directory::RuntimeDirectory;
use super::id::DeviceId;
use super::machine::MAX_DEVICES;
use crate::bootstrap::{poll_timeout, resource_error};
use crate::error::Error;
use crate::launch::Program;
use crate::process::OwnerProcess;
use crate::shm::HostKernel;
use crate::shm::system::pidfd_signal;
use crate::shm::undivided::undivided;
use crate::sync::grace::Grace;
use crew::{Crew, FleetSpec};

/// How long processes that are told to end may take for it.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Devices that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// The name by which the end of one of them is reported.
    pub name: Option<String>,
    /// How many of them to start.
    pub count: usize,
    /// The bytes that each has, from [`MIN_ADDRESS`](crate::heap::MIN_ADDRESS) up: a multiple of
    /// 4096.
    pub memory: u64,
    /// How long one waits for other devices.
    pub timeout: Duration,
    /// The core that they are to run on, if that matters.
    pub core: Option<usize>,
    /// Devices of this kind, besides the `count`, whose fleet was killed. The new fleet does not
    /// end them by itself. It reports when one ends, and replaces it like one of its own.
    pub taken_over: Vec<DeviceId>,
}

impl DeviceKind {
    /// Returns a kind of so many devices of 64 MiB, each of which waits 30 seconds for others and
    /// runs on any core.
    #[must_use]
    pub const fn new(count: usize) -> Self {
        let (memory, timeout) = (64 << 20, Duration::from_secs(30));
        Self { name: None, count, memory, timeout, core: None, taken_over: Vec::new() }
    }

    pub(super) fn assignment(&self, outlives: Option<Duration>) -> Assignment {
        Assignment { memory: self.memory, timeout: self.timeout, core: self.core, outlives }
    }
}

/// How the devices of a fleet are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetOptions {
    /// How long they wait for the next coordinator of the directory when this process is killed,
    /// after which they end. What they do meanwhile goes on. `None` has them end with this process.
    pub outlives: Option<Duration>,
    /// How many devices may be started, all together, to replace others that have died.
    ///
    /// Those were killed (by the coordinator as well, where one hangs), have crashed, or have ended
    /// with an error, without being told to end. Each replacement is a new device of the same kind,
    /// with fresh memory and another number. A device that dies within seconds is replaced after a
    /// pause, which grows from one to the next.
    pub restarts: u32,
}

/// A device that has ended before its fleet.
///
/// It displays as a sentence: "device 7 (big) was killed by SIGKILL".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEnd {
    /// The device.
    pub device: DeviceId,
    /// The name of its kind.
    pub name: Option<String>,
    /// How it has ended.
    ///
    /// `None` where the system does not tell: before Linux 6.15, for a device that was [taken
    /// over](DeviceKind::taken_over), and in a program that waits for all of its children itself.
    /// Such a device counts as one that has died.
    pub status: Option<ExitStatus>,
    /// Whether it had replaced another one.
    pub was_restarted: bool,
    /// Whether it was [taken over](DeviceKind::taken_over).
    pub was_taken_over: bool,
    /// How many restarts are left, to replace it or another one.
    pub restarts: u32,
}

impl DeviceEnd {
    /// Returns whether it has ended as if it was told to: in order, or by SIGINT, SIGTERM or
    /// SIGHUP. These kill a device that has only just begun.
    #[must_use]
    pub fn was_told(&self) -> bool {
        let ends = |signal| [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].contains(&signal);
        let was_told = |status: ExitStatus| {
            status.success() || status.signal().is_some_and(|number| Signal::try_from(number).is_ok_and(ends))
        };
        self.status.is_some_and(was_told)
    }

    /// Returns whether another one may be started in its place.
    #[must_use]
    pub fn can_restart(&self) -> bool {
        self.restarts > 0 && !self.was_told()
    }

    /// Returns whether another one should be started in its place: one may be, and a device in that
    /// place has worked before.
    ///
    /// That is this one, if it `has_registered` with its coordinator or was taken over, or the one
    /// that it has replaced. A device that has never registered was described wrongly, or the
    /// system is not as it should be. The next one would fail as well.
    #[must_use]
    pub fn is_to_be_followed(&self, has_registered: bool) -> bool {
        self.can_restart() && (has_registered || self.was_restarted || self.was_taken_over)
    }
}

impl fmt::Display for DeviceEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.device)?;
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        let Some(status) = self.status else { return write!(f, " has ended, it is unknown how") };
        match (status.signal().map(Signal::try_from), status.code()) {
            (Some(Ok(signal)), _) => write!(f, " was killed by {signal}"),
            (None, Some(0)) => write!(f, " has ended"),
            (None, Some(code)) => write!(f, " exited with code {code}"),
            _ => write!(f, " has ended as {status}"),
        }
    }
}

/// The devices that were started. Dropping it ends them.
#[derive(Debug)]
pub struct Fleet {
    devices: Vec<DeviceId>,
    /// Dropped to have the thread end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    process: OwnerProcess,
}

impl Fleet {
    /// Starts `program` for each device of these kinds, and calls `on_end` with each that ends
    /// before the fleet does. The program is to be a device
    /// ([`Device::from_env`](super::Device::from_env)) of the coordinator of `directory`.
    ///
    /// `on_end` returns whether to start another device in the place of that one, where that
    /// [is possible](DeviceEnd::can_restart).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more than [`MAX_DEVICES`]; [`Error::ResourceLimit`],
    /// [`Error::Os`] when one cannot be started: then none is left.
    pub fn start(
        directory: &RuntimeDirectory,
        program: &Program,
        kinds: &[DeviceKind],
        options: FleetOptions,
        on_end: impl FnMut(&DeviceEnd) -> bool + Send + 'static,
    ) -> Result<Self, Error> {
        const ACTION: &str = "starting the devices of a pool";
        let count = kinds.iter().fold(0_usize, |sum, kind| sum.saturating_add(kind.count));
        if count > MAX_DEVICES {
            let (name, expected) = ("the number of devices", "1024 at most");
            return Err(Error::InvalidArgument { name, value: count as u64, expected });
        }
        let spec = FleetSpec {
            directory: directory.clone(),
            program: program.clone(),
            kinds: kinds.iter().cloned().map(Arc::new).collect(),
            outlives: options.outlives,
        };
        let (stop, stop_pipe) = UnixStream::pair().map_err(|error| resource_error(ACTION, error))?;
        let (sender, started) = channel();
        let builder = std::thread::Builder::new().name("shmccl fleet".to_owned()).stack_size(256 << 10);
        let run = move || Crew::new(spec, options.restarts).run(&stop_pipe, &sender, on_end);
        let thread = undivided(|| builder.spawn(run)).map_err(|error| resource_error(ACTION, error))?;
        let mut fleet = Self {
            devices: Vec::new(),
            stop: Some(stop),
            thread: Some(thread),
            process: OwnerProcess::this(),
        };
        fleet.devices = started.recv().expect("the thread sends what it has started")?;
        Ok(fleet)
    }

    /// Returns the devices that were started at first.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// Begins to end the devices, and reports no more ends. Dropping the fleet waits for that.
    pub fn end(&mut self) {
        hang_up_on(self.stop.take());
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.end();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Closes a pipe, also where a child of a fork has a copy.
pub(super) fn hang_up_on(pipe: Option<UnixStream>) {
    let _ = pipe.map(|pipe| pipe.shutdown(Shutdown::Both));
}

/// Ends all processes, and waits until they have ended: tells them to end, and kills those that
/// take longer than `grace`. Children of this process are still to be waited for.
pub(super) fn terminate(processes: &[impl AsFd], grace: Duration) {
    let mut living: Vec<_> = processes.iter().map(AsFd::as_fd).collect();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        living.iter().for_each(|process| pidfd_signal(*process, signal));
        await_ends(&mut living, Grace::begin(grace, HostKernel::clock()));
    }
}

/// Takes out the processes that have ended, until all have or `grace` is over. A failed wait ends
/// it.
fn await_ends(living: &mut Vec<BorrowedFd<'_>>, mut grace: Grace) {
    while !living.is_empty() {
        let is_over = grace.is_over(HostKernel::clock());
        let mut polled: Vec<_> =
            living.iter().map(|process| PollFd::new(*process, PollFlags::POLLIN)).collect();
        match poll(&mut polled, poll_timeout(Some(grace.next_look()))) {
            Ok(0) if is_over => return,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        let mut ended = polled.iter().map(|it| it.any().unwrap_or(true));
        living.retain(|_| !ended.next().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use nix::sys::signal::kill;
    use nix::unistd::Pid;

    use super::*;
    use crate::process::is_stopped;
    use crate::shm::system::pidfd_open;
    use crate::testing::wait_until;

    #[test]
    fn who_ends_in_order_or_by_a_signal_that_ends_programs_was_told_to() {
        let end = |status| {
            let (device, name) = (DeviceId::new(7), None);
            DeviceEnd { device, name, status, was_restarted: false, was_taken_over: false, restarts: 1 }
        };
        for (status, was_told) in [
            (0, true),
            (Signal::SIGINT as i32, true),
            (Signal::SIGTERM as i32, true),
            (Signal::SIGHUP as i32, true),
            (Signal::SIGKILL as i32, false),
            (Signal::SIGSEGV as i32, false),
            (2 << 8, false),
        ] {
            let end = end(Some(ExitStatus::from_raw(status)));
            assert_eq!((end.was_told(), end.can_restart()), (was_told, !was_told), "{end}");
            assert_eq!(
                (end.is_to_be_followed(true), end.is_to_be_followed(false)),
                (!was_told, false),
                "{end}"
            );
            let next = DeviceEnd { was_restarted: true, ..end };
            assert_eq!(next.is_to_be_followed(false), !was_told, "that place has been taken before");
        }
        assert!(end(None).can_restart(), "who may have died counts as dead");
    }

    fn pid(child: &Child) -> Pid {
        Pid::from_raw(child.id().cast_signed())
    }

    #[test]
    fn processes_are_told_to_end_and_whoever_does_not_hear_it_is_killed() {
        let mut children = [(); 3].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        let [_, deaf, dead] = &mut children;
        kill(pid(deaf), Signal::SIGSTOP).unwrap();
        // Until then it may hear of its end first.
        wait_until("it is stopped", || is_stopped(deaf.id()));
        dead.kill().unwrap();
        let processes = children.each_ref().map(|child| pidfd_open(pid(child)).unwrap());
        // Nobody who is slow to hear it is killed for that.
        terminate(&processes[..1], Duration::from_secs(60));
        terminate(&processes, Duration::from_millis(20));
        let ends = children.each_mut().map(|child| child.wait().unwrap().signal());
        assert_eq!(ends, [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGKILL].map(|it| Some(it as i32)));
        terminate(&[] as &[BorrowedFd<'_>; 0], GRACE);
    }
}
