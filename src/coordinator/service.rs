//! The coordinator as a process: one thread around `poll`, which carries messages between sockets and the state machine.
//!
//! It waits for nobody in particular. Who does not greet, says what the protocol does not have, asks too much at a time or does
//! not read its answers loses its connection, and nothing else happens. Another user's process is not heard at all.

mod crowd;
mod ends;
mod gathering;
mod own;
mod peer;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::directory::{Occupied, RuntimeDirectory};
use super::greeting::{Answer, GREETING_TIME, check_peer};
use super::id::{ClientId, DeviceId};
use super::link::Link;
use super::machine::{Action, Event, MAX_DEVICES, Machine, Settings, Turn};
use super::orphans;
use super::request::{CommStatus, Reply, State};
use crate::bootstrap::poll_timeout;
use crate::error::{Error, Result};
use crate::logs::COORDINATOR;
use crate::shm::system::pidfd_kill;
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;
use ends::{Answer as QuitAnswer, Ends};
pub(super) use gathering::is_dead;
use own::Own;
use peer::{Kind, MAX_CLIENTS, Peer};

/// The most connections at a time of those who have said who they are, and those who have not: a client too many takes the place of one
/// that waits for no answer, and more of the others wait at the door. So devices have room, however many clients there are.
const MAX_PEERS: usize = MAX_DEVICES + MAX_CLIENTS + 512;

/// How long the door stays shut when the system has no room for another connection.
const SHUT: Duration = Duration::from_millis(50);

/// Who is told of each device that registers.
struct News(Box<dyn FnMut(DeviceId) + Send>);

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("News")
    }
}

/// A device that counts as lost though its process lives. It displays as what has become of it: "device 7 is lost: it hangs, without
/// a sign of life in 10 of 10 looks, one in 500ms; it is killed".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HungDevice {
    /// Which.
    pub device: DeviceId,
    /// How that was found.
    pub why: String,
    /// Whether it is killed, as a [`Fleet`](super::Fleet) of the coordinator or of one before it has started it. Otherwise it is left as it
    /// is, and may come back.
    pub is_killed: bool,
}

impl fmt::Display for HungDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let then = if self.is_killed { "it is killed" } else { "it is left as it is, and may come back" };
        write!(f, "device {} is lost: {}; {then}", self.device, self.why)
    }
}

/// Who is told of each device that hangs.
struct Alarm(Box<dyn FnMut(&HungDevice) + Send>);

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alarm")
    }
}

/// Counts the devices of a coordinator that whoever has started them starts again.
#[derive(Clone, Debug, Default)]
pub struct RestartTally(Arc<AtomicU64>);

impl RestartTally {
    /// One more.
    pub fn count(&self) {
        plain::add(&self.0, 1);
    }
}

/// A coordinator that listens.
#[derive(Debug)]
pub struct Coordinator {
    listener: UnixListener,
    ends: Ends,
    /// Who is to hear of devices that register.
    news: Option<News>,
    /// Who is to hear of devices that hang.
    alarm: Option<Alarm>,
    machine: Machine,
    restarted: RestartTally,
    peers: BTreeMap<u64, Peer>,
    next_peer: u64,
    /// The connection of each device.
    devices: BTreeMap<DeviceId, u64>,
    own: Own,
    began: Instant,
    /// When it was looked last whether devices that are to come back live.
    looked_for: Instant,
    /// How often devices are to give a sign of life, if they are to.
    beat: Option<Duration>,
    is_shut: bool,
    /// Whether it was noted that the system had no room for another connection.
    has_noted: bool,
    /// Last, so that the socket goes when nobody listens any more.
    occupied: Occupied,
}

impl Coordinator {
    /// Takes `directory`, and listens there.
    ///
    /// # Errors
    /// [`Error::Coordinator`] when it has a coordinator; [`Error::Os`].
    pub fn start(directory: &RuntimeDirectory, settings: Settings) -> Result<Self> {
        Self::open(directory, settings, Ends::by_interrupt()?)
    }

    /// As [`Coordinator::start`], for a thread of a program: it serves until the other side of `rope` is dropped, and tells of each
    /// device that registers.
    pub(super) fn within(
        directory: &RuntimeDirectory,
        settings: Settings,
        rope: UnixStream,
        on_registered: impl FnMut(DeviceId) + Send + 'static,
    ) -> Result<Self> {
        let mut coordinator = Self::open(directory, settings, Ends::by_rope(rope)?)?;
        coordinator.on_registered(on_registered);
        Ok(coordinator)
    }

    fn open(directory: &RuntimeDirectory, settings: Settings, ends: Ends) -> Result<Self> {
        let mut occupied = directory.occupy()?;
        raise_descriptors();
        let listener = occupied.listen()?;
        Ok(Self {
            listener,
            ends,
            news: None,
            alarm: None,
            machine: Machine::new(settings, crate::epoch_id::fresh_job_id()),
            restarted: RestartTally::default(),
            peers: BTreeMap::new(),
            next_peer: 0,
            devices: BTreeMap::new(),
            own: Own::new(directory),
            began: Instant::now(),
            looked_for: Instant::now(),
            beat: settings.hang_rule.map(|rule| rule.beat()),
            is_shut: false,
            has_noted: false,
            occupied,
        })
    }

    /// Has `answer` called at SIGQUIT, which ends nothing. It is not to take long: devices and clients wait meanwhile.
    pub fn on_quit(&mut self, answer: impl FnMut() + Send + 'static) {
        self.ends.on_quit(QuitAnswer(Box::new(answer)));
    }

    /// Has `tell` called with each device that registers. It is not to take long, either.
    pub fn on_registered(&mut self, tell: impl FnMut(DeviceId) + Send + 'static) {
        self.news = Some(News(Box::new(tell)));
    }

    /// Has `tell` called with each device that counts as lost though its process lives, before that is killed, if it is: not to take long
    /// either.
    pub fn on_hung(&mut self, tell: impl FnMut(&HungDevice) + Send + 'static) {
        self.alarm = Some(Alarm(Box::new(tell)));
    }

    /// What its metrics tell of devices that were started again.
    #[must_use]
    pub fn restarts(&self) -> RestartTally {
        self.restarted.clone()
    }

    /// Serves until it is interrupted (SIGINT, SIGTERM, SIGHUP). Devices that were started by hand live on, for the next coordinator. Those
    /// that have outlived the coordinator that has started them end with this one, which waits for that.
    ///
    /// # Errors
    /// [`Error::Os`] when the system cannot wait any more.
    pub fn serve(self) -> Result<()> {
        self.serve_until(|| {})
    }

    /// As [`Coordinator::serve`]. When the end has come it calls `end` before devices and clients can see it: for whoever is to know
    /// that what follows was meant.
    ///
    /// # Errors
    /// Those of [`Coordinator::serve`].
    pub fn serve_until(mut self, end: impl FnOnce()) -> Result<()> {
        let now_ms = self.now_ms();
        self.handle(Event::Tick { now_ms });
        let served = loop {
            match self.serve_once() {
                Ok(false) => {}
                ended => break ended.map(drop),
            }
        };
        end();
        served
    }

    /// Waits until something happens, and does what follows. Returns whether it is to end.
    fn serve_once(&mut self) -> Result<bool> {
        if self.watch()? {
            return Ok(true);
        }
        let (now_ms, was_open) = (self.now_ms(), self.machine.is_open());
        self.handle(Event::Tick { now_ms });
        if !was_open && self.machine.is_open() {
            let all: Vec<_> = self.peers.keys().copied().collect();
            all.into_iter().for_each(|number| self.handle_all(number));
        }
        self.miss_now_and_then();
        self.see_off();
        Ok(false)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until something happens, and takes it in. Returns whether it was an interrupt.
    fn watch(&mut self) -> Result<bool> {
        let mut polled: Vec<_> =
            self.peers.values().map(|it| PollFd::new(it.link.descriptor(), it.link.interest())).collect();
        polled.extend(self.ends.descriptor().map(|it| PollFd::new(it, PollFlags::POLLIN)));
        let is_open = self.peers.len() < MAX_PEERS && !self.is_shut;
        if is_open {
            polled.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut polled, poll_timeout(self.patience())) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::os("waiting for devices and clients", errno)),
        }
        let events: Vec<_> = polled.iter().map(|it| it.revents().unwrap_or(PollFlags::empty())).collect();
        drop(polled);
        // What devices are told now is told now, and not when the wait began.
        self.machine.set_time(self.now_ms());
        self.is_shut = false;
        let ready: Vec<_> =
            self.peers.keys().copied().zip(events).filter(|(_, events)| !events.is_empty()).collect();
        for (peer, events) in ready {
            self.hear(peer, events);
        }
        if is_open {
            self.accept();
        }
        Ok(self.ends.has_come())
    }

    /// How long nothing has to be done if nothing happens.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let tick =
            self.machine.next_tick_ms().map(|tick| Duration::from_millis(tick.saturating_sub(self.now_ms())));
        let strangers = self.peers.values().filter_map(|peer| match peer.kind {
            Kind::Stranger { until } => Some(until.saturating_duration_since(now)),
            _ => None,
        });
        let shut = self.is_shut.then_some(SHUT);
        strangers.chain(tick).chain(shut).min()
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                // Whoever is refused here was not let into the directory either, and need not be told more.
                let _ = self.admit(stream);
            }
            Err(error) => {
                self.is_shut =
                    !matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EAGAIN | Errno::EINTR));
                if self.is_shut && !std::mem::replace(&mut self.has_noted, true) {
                    let connections = self.peers.len();
                    tracing::warn!(
                        target: COORDINATOR, connections, %error, "no room for more connections; raise `ulimit -n`"
                    );
                }
            }
        }
    }

    fn admit(&mut self, stream: UnixStream) -> Result<()> {
        let pid = check_peer(&stream)?;
        let kind = Kind::Stranger { until: Instant::now() + GREETING_TIME };
        self.peers.insert(self.next_peer, Peer { link: Link::new(stream)?, pid, kind });
        self.next_peer += 1;
        Ok(())
    }

    /// Takes in what a peer has sent, and sends it what there is room for now.
    fn hear(&mut self, number: u64, events: PollFlags) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.link.flush();
        if events.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            peer.link.read();
        }
        // What came before the end of a connection counts.
        self.handle_all(number);
    }

    /// Handles what a peer has sent.
    fn handle_all(&mut self, number: u64) {
        while let Some(event) = self.next_event(number) {
            self.handle(event);
        }
    }

    /// The next event that a peer has sent; `None` as well when that was the last that is heard of it.
    fn next_event(&mut self, number: u64) -> Option<Event> {
        let room = self.room(number)?;
        let (peer, beat) = (self.peers.get_mut(&number)?, self.beat);
        let message = match peer.kind {
            Kind::Stranger { .. } => peer.greeted(beat, room).map(|greeted| greeted.then_some(None)),
            // Until requests are taken they stay where what is kept for a peer is bounded.
            Kind::Client { .. } if !self.machine.is_open() => Ok(None),
            Kind::Client { .. } => peer.question(number).map(|event| event.map(Some)),
            Kind::Device { .. } => peer.bulletin().map(|event| event.map(Some)),
        };
        match message {
            Ok(Some(Some(event))) if self.is_present(&event, number) => return Some(event),
            Ok(Some(None)) => {
                self.make_room();
                // It has greeted, which it does once.
                return self.next_event(number);
            }
            Ok(None) => {}
            Ok(Some(Some(_))) | Err(_) => self.part(number),
        }
        None
    }

    /// Whether the event comes over the connection that counts: a device's latest.
    fn is_present(&mut self, event: &Event, number: u64) -> bool {
        match event {
            Event::Registered { device, .. } => {
                self.devices.insert(*device, number);
                true
            }
            Event::Reported { device, .. } | Event::Beat { device } => {
                self.devices.get(device) == Some(&number)
            }
            _ => true,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick { .. } | Event::Beat { .. } => tracing::trace!(target: COORDINATOR, ?event, "heard"),
            _ => tracing::debug!(target: COORDINATOR, ?event, "heard"),
        }
        for action in self.machine.handle(event) {
            if !matches!(action, Action::Log(_)) {
                tracing::debug!(target: COORDINATOR, ?action, "decided");
            }
            match action {
                Action::Order { device, order } => {
                    if let Some(peer) =
                        self.devices.get(&device).and_then(|number| self.peers.get_mut(number))
                    {
                        peer.link.send(&order);
                    }
                }
                Action::Reply { client, number, reply } => {
                    let reply = reply.map(|reply| self.complete(reply));
                    if let Some(peer) = self.peers.get_mut(&client.get()) {
                        peer.link.send(&Answer { number, reply });
                        if let Kind::Client { asked, .. } = &mut peer.kind {
                            *asked = asked.saturating_sub(1);
                        }
                    }
                }
                Action::Log(turn) => {
                    if let Turn::Registered { device } = &turn {
                        self.occupied.note_registered(*device);
                        self.own.note_registered(*device);
                        self.news.iter_mut().for_each(|News(tell)| tell(*device));
                    }
                    log(&turn);
                }
                Action::Drop { device } => self.hang_up_on(device),
                Action::GiveUp { device, why, kills } => self.give_up(device, why, kills),
            }
        }
    }

    /// Tells of a device that hangs before it is killed: whoever has started it tells of its death after that.
    fn give_up(&mut self, device: DeviceId, why: String, kills: bool) {
        self.hang_up_on(device);
        let process = if kills { self.own.take(device) } else { None };
        self.own.forget(device);
        let hung = HungDevice { device, why, is_killed: process.is_some() };
        tracing::warn!(target: COORDINATOR, "{hung}");
        self.alarm.iter_mut().for_each(|Alarm(tell)| tell(&hung));
        process.iter().for_each(|process| pidfd_kill(process.as_fd()));
    }

    fn hang_up_on(&mut self, device: DeviceId) {
        if let Some(number) = self.devices.remove(&device) {
            self.peers.remove(&number);
        }
    }

    /// Adds to an answer what the machine does not know.
    fn complete(&self, mut reply: Reply) -> Reply {
        if let Reply::Metrics(metrics) = &mut reply {
            metrics.counts.restarted = plain::load(&self.restarted.0);
            let count =
                |is: fn(Kind) -> bool| self.peers.values().filter(|peer| is(peer.kind)).count() as u64;
            metrics.connections = [
                count(|kind| matches!(kind, Kind::Device { .. })),
                count(|kind| matches!(kind, Kind::Client { .. })),
                count(|kind| matches!(kind, Kind::Stranger { .. })),
            ];
        }
        reply
    }

    /// Parts with those who have hung up, or have not said who they are.
    fn see_off(&mut self) {
        let now = Instant::now();
        let is_late = |kind| matches!(kind, Kind::Stranger { until } if until <= now);
        let leaving: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.link.is_over() || is_late(peer.kind))
            .map(|(number, _)| *number)
            .collect();
        leaving.into_iter().for_each(|number| self.part(number));
        self.unburden();
    }

    fn part(&mut self, number: u64) {
        let Some(peer) = self.peers.remove(&number) else { return };
        match peer.kind {
            Kind::Stranger { .. } => {}
            Kind::Client { .. } => self.handle(Event::ClientGone { client: ClientId::new(number) }),
            Kind::Device { .. } => {
                let device = DeviceId::new(peer.pid);
                // It may have another connection by now.
                if self.devices.get(&device) == Some(&number) {
                    self.devices.remove(&device);
                    self.own.forget(device);
                    self.handle(Event::Gone { device });
                }
            }
        }
    }
}

impl Drop for Coordinator {
    /// The socket goes when those have ended of which the next coordinator is not to know.
    fn drop(&mut self) {
        orphans::end(self.occupied.directory());
    }
}

fn log(turn: &Turn) {
    match turn {
        Turn::Registered { device } => tracing::info!(target: COORDINATOR, %device, "device registered"),
        Turn::Lost { device, why } => {
            let why = why.as_deref().unwrap_or("its connection has ended");
            tracing::warn!(target: COORDINATOR, %device, why, "device lost");
        }
        Turn::Comm(CommStatus { comm, state: State::Failed, epoch, why, .. }) => {
            let why = why.as_deref().unwrap_or_default();
            tracing::warn!(target: COORDINATOR, %comm, epoch, why, "communicator failed");
        }
        Turn::Comm(CommStatus { comm, state, epoch, why, devices, .. }) => {
            let (devices, why) = (devices.len(), why.as_deref().unwrap_or_default());
            tracing::info!(target: COORDINATOR, %comm, %state, epoch, devices, why, "communicator");
        }
    }
}

/// Lets this process have as many descriptors as it may need, as far as it may. Where it may not, connections wait at the door.
fn raise_descriptors() {
    // Two more for each device that this process starts: one who is its parent has, and one who may have to kill it.
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
    fn whoever_is_to_know_of_the_end_knows_before_devices_can_see_it() {
        let path = std::env::temp_dir().join(format!("shmccl-serve-until-{}", std::process::id()));
        let directory = RuntimeDirectory::at(&path).unwrap();
        let (bell, rope) = UnixStream::pair().unwrap();
        let coordinator = Coordinator::within(&directory, Settings::default(), rope, |_| {}).unwrap();
        drop(bell);
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
