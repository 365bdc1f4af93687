//! The coordinator as a process: one thread around `poll` that carries messages between sockets and
//! the state machine.
//!
//! It never waits for a single peer. A peer loses its connection, and nothing else happens, if it
//! does not greet, breaks the protocol, asks too much at a time, or does not read its answers.
//! Messages of another user's process are not read at all.

mod connections;
mod peer;
mod shutdown;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::adoption::directory::ClaimedDirectory;
use super::adoption::end_orphans;
use super::assignment::KillableDevices;
use super::directory::RuntimeDirectory;
use super::error::CoordinatorError;
use super::handshake::NumberedReply;
use super::id::DeviceId;
use super::machine::{
    CoordinatorAction, CoordinatorEvent, CoordinatorMachine, CoordinatorSettings, LogEntry, MAX_DEVICES,
    RequestId,
};
use super::request::{CommState, CommStatus, Reply};
use crate::bootstrap::poll_timeout;
use crate::error::Error;
use crate::logs::COORDINATOR;
use crate::shm::system::pidfd_kill;
use crate::shm::unforked::Unforked;
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;
use peer::{MAX_CLIENTS, Peer, PeerState};
use shutdown::Shutdown;

/// The most connections at a time. Devices always have room, however many clients there are. A
/// client too many takes the place of an idle one. Peers too many that have not greeted wait in the
/// backlog.
const MAX_PEERS: usize = MAX_DEVICES + MAX_CLIENTS + 512;

/// How long no connection is accepted after the system had no room for one.
const NOT_ACCEPTING: Duration = Duration::from_millis(50);

/// A device that counts as lost although its process lives.
///
/// It displays as a sentence: "device 7 is lost: it hangs, without a sign of life in 10 of 10
/// looks, one in 500ms; it is killed".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HungDevice {
    /// The device.
    pub device: DeviceId,
    /// How it was found that the device hangs.
    pub why: String,
    /// Whether the device is killed, since a [`Fleet`](super::Fleet) of this coordinator or of one
    /// before it has started it. Any other device is left as it is, and may come back.
    pub is_killed: bool,
}

impl fmt::Display for HungDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let then = if self.is_killed { "it is killed" } else { "it is left as it is, and may come back" };
        write!(f, "device {} is lost: {}; {then}", self.device, self.why)
    }
}

/// Counts the devices that were started again, for the metrics of a coordinator.
#[derive(Clone, Debug, Default)]
pub struct RestartTally(Arc<AtomicU64>);

impl RestartTally {
    /// Counts one more.
    pub fn count(&self) {
        plain::add(&self.0, 1);
    }
}

/// A function that is called with each device that hangs.
type OnHung = dyn FnMut(&HungDevice) + Send;

/// A coordinator that listens.
pub struct Coordinator {
    listener: Unforked<UnixListener>,
    shutdown: Shutdown,
    on_registered: Option<Box<dyn FnMut(DeviceId) + Send>>,
    on_hung: Option<Box<OnHung>>,
    pub(super) machine: CoordinatorMachine,
    restarted: RestartTally,
    peers: BTreeMap<u64, Peer>,
    next_peer: u64,
    /// The connection of each device.
    pub(super) devices: BTreeMap<DeviceId, u64>,
    killable: KillableDevices,
    began: Instant,
    /// When it was checked last whether the devices that may come back live.
    pub(super) checked_at: Instant,
    /// How often devices are to send a heartbeat, if they are to.
    heartbeat: Option<Duration>,
    is_accepting: bool,
    /// Whether it was logged that the system had no room for another connection.
    has_logged_no_room: bool,
    /// The last field, so that the socket is removed when nothing listens any more.
    pub(super) claimed: ClaimedDirectory,
}

impl Coordinator {
    /// Takes `directory`, and listens there.
    ///
    /// # Errors
    /// [`CoordinatorError::AlreadyRunning`], [`CoordinatorError::Unusable`]; [`Error::Os`].
    pub fn start(
        directory: &RuntimeDirectory,
        settings: CoordinatorSettings,
    ) -> Result<Self, CoordinatorError> {
        Self::open(directory, settings, Shutdown::by_signal()?)
    }

    /// Like [`Coordinator::start`], but for a thread of a program: serves until the other side of
    /// `stop_pipe` is dropped.
    pub(super) fn embedded(
        directory: &RuntimeDirectory,
        settings: CoordinatorSettings,
        stop_pipe: UnixStream,
    ) -> Result<Self, CoordinatorError> {
        Self::open(directory, settings, Shutdown::by_stop_pipe(stop_pipe)?)
    }

    fn open(
        directory: &RuntimeDirectory,
        settings: CoordinatorSettings,
        shutdown: Shutdown,
    ) -> Result<Self, CoordinatorError> {
        let mut claimed = directory.claim()?;
        raise_descriptors();
        let listener = claimed.listen()?;
        Ok(Self {
            listener,
            shutdown,
            on_registered: None,
            on_hung: None,
            machine: CoordinatorMachine::new(settings, crate::epoch_id::fresh_job_id()),
            restarted: RestartTally::default(),
            peers: BTreeMap::new(),
            next_peer: 0,
            devices: BTreeMap::new(),
            killable: KillableDevices::new(directory),
            began: Instant::now(),
            checked_at: Instant::now(),
            heartbeat: settings.hang_rule.map(|rule| rule.beat()),
            is_accepting: true,
            has_logged_no_room: false,
            claimed,
        })
    }

    /// Has `answer` called at SIGQUIT, which ends nothing. `answer` is to return soon: devices and
    /// clients wait meanwhile.
    pub fn on_quit(&mut self, answer: impl FnMut() + Send + 'static) {
        self.shutdown.on_quit(Box::new(answer));
    }

    /// Has `callback` called with each device that registers. It is to return soon as well.
    pub fn on_registered(&mut self, callback: impl FnMut(DeviceId) + Send + 'static) {
        self.on_registered = Some(Box::new(callback));
    }

    /// Has `callback` called with each device that counts as lost although its process lives,
    /// before that is killed, if it is. It is to return soon as well.
    pub fn on_hung(&mut self, callback: impl FnMut(&HungDevice) + Send + 'static) {
        self.on_hung = Some(Box::new(callback));
    }

    /// Returns the counter by which the metrics learn of devices that were started again.
    #[must_use]
    pub fn restarts(&self) -> RestartTally {
        self.restarted.clone()
    }

    /// Serves until it is interrupted (SIGINT, SIGTERM, SIGHUP).
    ///
    /// Devices that were started by hand live on, for the next coordinator. Devices that have
    /// outlived the coordinator that has started them end with this one, which waits for that.
    ///
    /// # Errors
    /// [`Error::Os`] when the system cannot wait any more.
    pub fn serve(self) -> Result<(), CoordinatorError> {
        self.serve_until(|| {})
    }

    /// Like [`Coordinator::serve`], but calls `end` when the end has come, before devices and
    /// clients can see it. So the program can tell what follows from a failure.
    ///
    /// # Errors
    /// Fails as [`Coordinator::serve`] does.
    pub fn serve_until(mut self, end: impl FnOnce()) -> Result<(), CoordinatorError> {
        let now_ms = self.now_ms();
        self.handle(CoordinatorEvent::Tick(now_ms));
        let served = loop {
            match self.serve_once() {
                Ok(false) => {}
                ended => break ended.map(drop),
            }
        };
        end();
        Ok(served?)
    }

    /// Waits until something happens, and does what follows. Returns whether it is to end.
    pub(super) fn serve_once(&mut self) -> Result<bool, Error> {
        if self.wait()? {
            return Ok(true);
        }
        let (now_ms, was_open) = (self.now_ms(), self.machine.is_open());
        self.handle(CoordinatorEvent::Tick(now_ms));
        if !was_open && self.machine.is_open() {
            let all: Vec<_> = self.peers.keys().copied().collect();
            all.into_iter().for_each(|number| self.handle_all(number));
        }
        self.drop_dead_in_time();
        self.drop_idle();
        Ok(false)
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until something happens, and takes it in. Returns whether it was an interrupt.
    fn wait(&mut self) -> Result<bool, Error> {
        let connections = self.peers.values().map(|it| &it.connection);
        let mut polled: Vec<_> = connections.map(|it| PollFd::new(it.descriptor(), it.interest())).collect();
        polled.extend(self.shutdown.descriptor().map(|it| PollFd::new(it, PollFlags::POLLIN)));
        let accepts = self.peers.len() < MAX_PEERS && self.is_accepting;
        if accepts {
            polled.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut polled, poll_timeout(self.longest_wait())) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::os("waiting for devices and clients", errno)),
        }
        let events: Vec<_> = polled.iter().map(|it| it.revents().unwrap_or(PollFlags::empty())).collect();
        drop(polled);
        // Orders that are given now are stamped with this time, and not with that of the last tick.
        self.machine.set_time(self.now_ms());
        self.is_accepting = true;
        let ready: Vec<_> =
            self.peers.keys().copied().zip(events).filter(|(_, events)| !events.is_empty()).collect();
        for (peer, events) in ready {
            self.receive(peer, events);
        }
        if accepts {
            self.accept();
        }
        Ok(self.shutdown.has_come())
    }

    /// Returns how long nothing has to be done if nothing happens.
    fn longest_wait(&self) -> Option<Duration> {
        let now = Instant::now();
        let tick =
            self.machine.next_tick_ms().map(|tick| Duration::from_millis(tick.saturating_sub(self.now_ms())));
        let greetings = self.peers.values().filter_map(|peer| match peer.state {
            PeerState::Unidentified { until } => Some(until.saturating_duration_since(now)),
            _ => None,
        });
        let retry = (!self.is_accepting).then_some(NOT_ACCEPTING);
        greetings.chain(tick).chain(retry).min()
    }

    pub(super) fn handle(&mut self, event: CoordinatorEvent) {
        match event {
            CoordinatorEvent::Tick(_) | CoordinatorEvent::Heartbeat(_) => {
                tracing::trace!(target: COORDINATOR, ?event, "heard");
            }
            _ => tracing::debug!(target: COORDINATOR, ?event, "heard"),
        }
        for action in self.machine.handle(event) {
            if !matches!(action, CoordinatorAction::Log(_)) {
                tracing::debug!(target: COORDINATOR, ?action, "decided");
            }
            match action {
                CoordinatorAction::Order { device, order } => {
                    let number = self.devices.get(&device);
                    if let Some(peer) = number.and_then(|number| self.peers.get_mut(number)) {
                        peer.connection.send(&order);
                    }
                }
                CoordinatorAction::Reply { request_id: RequestId { client, number }, reply } => {
                    let reply = reply.map(|reply| self.complete(reply));
                    if let Some(peer) = self.peers.get_mut(&client.0) {
                        peer.connection.send(&NumberedReply { number, reply });
                        if let PeerState::Client { unanswered, .. } = &mut peer.state {
                            *unanswered = unanswered.saturating_sub(1);
                        }
                    }
                }
                CoordinatorAction::Log(entry) => {
                    if let LogEntry::Registered(device) = &entry {
                        self.claimed.note_registered(*device);
                        self.killable.add(*device);
                        self.on_registered.iter_mut().for_each(|call| call(*device));
                    }
                    log(&entry);
                }
                CoordinatorAction::Drop(device) => self.hang_up_on(device),
                CoordinatorAction::GiveUp { device, why, kills } => self.give_up(device, why, kills),
            }
        }
    }

    /// Reports a device that hangs, and then kills it if it may: its fleet reports its end after
    /// that.
    fn give_up(&mut self, device: DeviceId, why: String, kills: bool) {
        self.hang_up_on(device);
        let process = if kills { self.killable.take(device) } else { None };
        self.killable.forget(device);
        let hung = HungDevice { device, why, is_killed: process.is_some() };
        tracing::warn!(target: COORDINATOR, "{hung}");
        self.on_hung.iter_mut().for_each(|call| call(&hung));
        process.iter().for_each(|process| pidfd_kill(process.as_fd()));
    }

    fn hang_up_on(&mut self, device: DeviceId) {
        if let Some(number) = self.devices.remove(&device) {
            self.peers.remove(&number);
        }
    }

    /// Adds to a reply what the machine does not know.
    fn complete(&self, mut reply: Reply) -> Reply {
        if let Reply::Metrics(metrics) = &mut reply {
            metrics.counts.restarted = plain::load(&self.restarted.0);
            let count =
                |is: fn(PeerState) -> bool| self.peers.values().filter(|peer| is(peer.state)).count() as u64;
            metrics.connections = [
                count(|state| matches!(state, PeerState::Device { .. })),
                count(|state| matches!(state, PeerState::Client { .. })),
                count(|state| matches!(state, PeerState::Unidentified { .. })),
            ];
        }
        reply
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("claimed", &self.claimed).finish_non_exhaustive()
    }
}

impl Drop for Coordinator {
    /// Ends the orphaned devices before the socket is removed: the next coordinator is not to know
    /// them.
    fn drop(&mut self) {
        end_orphans(self.claimed.directory());
    }
}

fn log(entry: &LogEntry) {
    match entry {
        LogEntry::Registered(device) => tracing::info!(target: COORDINATOR, %device, "device registered"),
        LogEntry::Lost { device, why } => {
            let why = why.as_deref().unwrap_or("its connection has ended");
            tracing::warn!(target: COORDINATOR, %device, why, "device lost");
        }
        LogEntry::Comm(CommStatus { comm, state: CommState::Failed, epoch, why, .. }) => {
            let why = why.as_deref().unwrap_or_default();
            tracing::warn!(target: COORDINATOR, %comm, epoch, why, "communicator failed");
        }
        LogEntry::Comm(CommStatus { comm, state, epoch, why, devices, .. }) => {
            let (devices, why) = (devices.len(), why.as_deref().unwrap_or_default());
            tracing::info!(target: COORDINATOR, %comm, %state, epoch, devices, why, "communicator");
        }
    }
}

/// Raises the limit of descriptors to as many as this process may need, as far as the system
/// allows. Connections past the limit wait in the backlog.
fn raise_descriptors() {
    // Two more for each device that this process starts: its parent thread has one, and `killable`.
    let wanted = (MAX_PEERS + 2 * MAX_DEVICES) as u64 + 64;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted.min(hard)
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_told_of_the_end_before_devices_can_see_it() {
        let path = std::env::temp_dir().join(format!("shmccl-serve-until-{}", std::process::id()));
        let directory = RuntimeDirectory::at(&path).unwrap();
        let (stop, stop_pipe) = UnixStream::pair().unwrap();
        let coordinator =
            Coordinator::embedded(&directory, CoordinatorSettings::default(), stop_pipe).unwrap();
        drop(stop);
        let mut is_told = false;
        coordinator
            .serve_until(|| {
                UnixStream::connect(directory.socket()).unwrap();
                is_told = true;
            })
            .unwrap();
        assert!(is_told && !directory.socket().exists());
        std::fs::remove_dir_all(path).unwrap();
    }
}
