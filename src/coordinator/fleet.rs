//! Devices that a process has started for its coordinator: they end with it, and it is told when one ends before. When it is killed they
//! end as well, or wait for the next coordinator for a time ([`FleetOptions::outlives`]).
//!
//! One thread (`crew.rs`) starts them, waits for whichever ends next, and ends them. It is their parent, by whose death the kernel kills
//! them ([`Device::from_env`](super::Device::from_env)); so it lives as long as they do. It waits for processes that are its own and for
//! no others: what else the program starts is the program's to wait for.
//!
//! In the place of one that has died it starts another where it may ([`FleetOptions::restarts`]). To the coordinator that is a device that
//! comes, as any may at any time: nothing that it decides depends on whom it follows, and the next coordinator need not know. The fleet of
//! that one watches those that it finds of its kinds ([`DeviceKind::taken_over`], `inherited.rs`), and follows them as its own.

mod crew;
mod inherited;
mod restarts;

use std::fmt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::device::{Assignment, StartedDevice};
use super::directory::RuntimeDirectory;
use super::id::DeviceId;
use super::machine::MAX_DEVICES;
use crate::bootstrap::resource_error;
use crate::error::{Error, Result};
use crate::launch::Program;
use crew::{Crew, FleetPlan};

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
    /// Those of them that a fleet before has started, whose process is dead, besides the `count`. This one ends none of them, tells of
    /// each that ends, and starts another in its place as it would for one of its own.
    pub taken_over: Vec<DeviceId>,
}

impl DeviceKind {
    /// So many devices of 64 MiB, each of which waits 30 seconds for others and runs on any core.
    #[must_use]
    pub const fn new(count: usize) -> Self {
        let (memory, timeout) = (64 << 20, Duration::from_secs(30));
        Self { name: None, count, memory, timeout, core: None, taken_over: Vec::new() }
    }

    /// How many of each of `kinds` are yet to be started where `present` are there, of which those count that a fleet has started for
    /// `directory` before, and no others. Besides, those count that are [coming](Missing::coming).
    #[must_use]
    pub fn missing(kinds: &[Self], directory: &RuntimeDirectory, present: &[DeviceId]) -> MissingDevices {
        let is_there = |device: &DeviceId| Some((*device, Assignment::of(*device, directory)?));
        let mut found: Vec<_> = present.iter().filter_map(is_there).collect();
        let is_coming = |it: &StartedDevice| {
            it.is_orphan && it.assignment.outlives.is_some() && !present.contains(&it.device)
        };
        let mut coming = StartedDevice::all(directory).unwrap_or_default();
        coming.retain(is_coming);
        found.extend(coming.iter().map(|it| (it.device, it.assignment)));
        let missing = kinds.iter().map(|kind| {
            let assignment = kind.assignment(None);
            let alike = found.extract_if(.., |(_, it)| assignment.is_alike(it)).take(kind.count);
            let taken_over: Vec<_> = alike.map(|(device, _)| device).collect();
            Self { count: kind.count - taken_over.len(), taken_over, ..kind.clone() }
        });
        MissingDevices { kinds: missing.collect(), coming: coming.iter().map(|it| it.device).collect() }
    }

    fn assignment(&self, outlives: Option<Duration>) -> Assignment {
        Assignment { memory: self.memory, timeout: self.timeout, core: self.core, outlives }
    }
}

/// What [`DeviceKind::missing`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingDevices {
    /// The kinds, each with the number of devices that are yet to be started, which may be 0, and those that are there or coming.
    pub kinds: Vec<DeviceKind>,
    /// Those that a fleet has started which live and outlive it, and are not there yet, of whatever kind: they may be busy or stopped,
    /// and come back. A coordinator that ends in order ends them.
    pub coming: Vec<DeviceId>,
}

/// How devices of a fleet are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetOptions {
    /// How long they wait for the next coordinator of the directory when this process is killed, after which they end; what they do
    /// meanwhile goes on. Without it they end with this process.
    pub outlives: Option<Duration>,
    /// How many devices may be started, all together, in the place of others that have died: killed (by the coordinator, too, where one
    /// hangs), crashed, or ended with an error, and not told to end. Each is a new device of the same kind, with fresh memory and another
    /// number. One that dies within seconds is not followed at once, and the next one less so.
    pub restarts: u32,
}

/// A device that has ended before its fleet. It displays as what has become of it: "device 7 (big) was killed by SIGKILL".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEnd {
    /// Which.
    pub device: DeviceId,
    /// What its kind is called.
    pub name: Option<String>,
    /// How it has ended. `None` for one that was [taken over](DeviceKind::taken_over) where the system tells that to its parent only, which
    /// is dead: before Linux 6.15. That one counts as one that has died.
    pub status: Option<ExitStatus>,
    /// Whether it was started in the place of another one.
    pub was_restarted: bool,
    /// Whether it was [taken over](DeviceKind::taken_over).
    pub was_taken_over: bool,
    /// How many may be started again from now on, in its place or in another's.
    pub restarts: u32,
}

impl DeviceEnd {
    /// Whether it has ended as one does that somebody tells to: in order, or by SIGINT, SIGTERM or SIGHUP, which end a device that has
    /// only just begun at once.
    #[must_use]
    pub fn was_told(&self) -> bool {
        let tells = |signal| [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].contains(&signal);
        let was_told = |status: ExitStatus| {
            status.success()
                || status.signal().is_some_and(|number| Signal::try_from(number).is_ok_and(tells))
        };
        self.status.is_some_and(was_told)
    }

    /// Whether another one may be started in its place.
    #[must_use]
    pub fn can_restart(&self) -> bool {
        self.restarts > 0 && !self.was_told()
    }

    /// Whether another one should be started in its place: one may be, and that place has been taken before, by this one where it
    /// `has_registered` with its coordinator, or under the one before, or by the one that it has followed. Who has never come was not
    /// described well, or finds the system not as it should be, and so would the next one.
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
        let Some(status) = self.status else { return write!(f, " has ended, nobody can tell how") };
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
    /// Its end is what tells the thread to end.
    bell: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
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
        mut on_end: impl FnMut(&DeviceEnd) + Send + 'static,
    ) -> Result<Self> {
        let tell = move |end: &DeviceEnd| {
            on_end(end);
            false
        };
        Self::start_with(directory, program, kinds, FleetOptions::default(), tell)
    }

    /// As [`Fleet::start`], of devices that are kept in this way. `on_end` says besides whether another device is to be started in the
    /// place of that one, where that [can be](DeviceEnd::can_restart).
    ///
    /// # Errors
    /// Those of [`Fleet::start`].
    pub fn start_with(
        directory: &RuntimeDirectory,
        program: &Program,
        kinds: &[DeviceKind],
        options: FleetOptions,
        on_end: impl FnMut(&DeviceEnd) -> bool + Send + 'static,
    ) -> Result<Self> {
        const ACTION: &str = "starting the devices of a pool";
        let count = kinds.iter().fold(0_usize, |sum, kind| sum.saturating_add(kind.count));
        if count > MAX_DEVICES {
            let (name, expected) = ("the number of devices", "1024 at most");
            return Err(Error::InvalidArgument { name, value: count as u64, expected });
        }
        let orders = FleetPlan {
            directory: directory.clone(),
            program: program.clone(),
            kinds: kinds.iter().cloned().map(Arc::new).collect(),
            outlives: options.outlives,
        };
        let (bell, rope) = UnixStream::pair().map_err(|error| resource_error(ACTION, error))?;
        let (tell, told) = channel();
        let builder = std::thread::Builder::new().name("shmccl fleet".to_owned()).stack_size(256 << 10);
        let live = move || Crew::new(orders, options.restarts).live(&rope, &tell, on_end);
        let thread = builder.spawn(live).map_err(|error| resource_error(ACTION, error))?;
        let mut fleet = Self { devices: Vec::new(), bell: Some(bell), thread: Some(thread) };
        fleet.devices = told.recv().expect("the thread tells what it has started")?;
        Ok(fleet)
    }

    /// The devices that were started at first.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
