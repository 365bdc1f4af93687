//! Connections: accepted, read, and dropped where they are too many or keep too much memory.

use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::PollFlags;

use super::Coordinator;
use super::peer::{MAX_CLIENTS, Peer, PeerState};
use crate::coordinator::error::Result;
use crate::coordinator::handshake::{GREETING_TIME, PeerRole, check_peer};
use crate::coordinator::id::{ClientId, DeviceId};
use crate::coordinator::machine::{CoordinatorEvent, MAX_DEVICES};
use crate::coordinator::wire::{MAX_MESSAGE, PeerConnection};
use crate::logs::COORDINATOR;

/// The most bytes that are kept for all peers together: see [`Peer::buffered_bytes`].
const MAX_BUFFERED: usize = 64 * MAX_MESSAGE;

impl Coordinator {
    pub(super) fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                // A peer that is refused here may not enter the directory either, and is told
                // nothing.
                let _ = self.admit(stream);
            }
            Err(error) => {
                let errno = error.raw_os_error().map(Errno::from_raw);
                self.is_accepting = matches!(errno, Some(Errno::EAGAIN | Errno::EINTR));
                if !self.is_accepting && !std::mem::replace(&mut self.has_logged_no_room, true) {
                    let connections = self.peers.len();
                    tracing::warn!(
                        target: COORDINATOR, connections, %error,
                        "no room for more connections; raise `ulimit -n`"
                    );
                }
            }
        }
    }

    fn admit(&mut self, stream: UnixStream) -> Result<()> {
        let pid = check_peer(&stream)?;
        let state = PeerState::Unidentified { until: Instant::now() + GREETING_TIME };
        self.peers.insert(self.next_peer, Peer { connection: PeerConnection::new(stream)?, pid, state });
        self.next_peer += 1;
        Ok(())
    }

    /// Takes in what a peer has sent, and sends it what there is room for now.
    pub(super) fn receive(&mut self, number: u64, events: PollFlags) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.connection.flush();
        if events.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            peer.connection.read();
        }
        // Messages that came before the end of a connection count.
        self.handle_all(number);
    }

    /// Handles all messages of a peer.
    pub(super) fn handle_all(&mut self, number: u64) {
        while let Some(event) = self.next_event(number) {
            self.handle(event);
        }
    }

    /// Returns the next event of a peer; `None` as well when nothing more is to be taken of it.
    fn next_event(&mut self, number: u64) -> Option<CoordinatorEvent> {
        if matches!(self.peers.get(&number)?.state, PeerState::Unidentified { .. }) {
            self.greet(number);
        }
        let peer = self.peers.get_mut(&number)?;
        let event = match peer.state {
            // Until requests are taken they stay in the connection, where their memory is bounded.
            PeerState::Client { .. } if !self.machine.is_open() => Ok(None),
            PeerState::Client { .. } => peer.request(number),
            PeerState::Unidentified { .. } | PeerState::Device { .. } => peer.device_message(),
        };
        match event {
            Ok(Some(event)) if self.is_current(&event, number) => return Some(event),
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => self.disconnect(number),
        }
        None
    }

    /// Takes the greeting of a peer, if it has come.
    fn greet(&mut self, number: u64) {
        let (heartbeat, devices) = (self.heartbeat, &self.devices);
        let is_full_of_clients = self.clients() >= MAX_CLIENTS && self.most_idle().is_none();
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let is_back = devices.contains_key(&DeviceId::new(peer.pid));
        let greeted = peer.greeted(heartbeat, |role| match role {
            PeerRole::Client => is_full_of_clients,
            _ => devices.len() >= MAX_DEVICES && !is_back,
        });
        match greeted {
            Ok(true) => self.make_room(),
            Ok(false) => {}
            Err(_) => self.disconnect(number),
        }
    }

    /// Returns whether the event comes over the connection that counts: a device's latest.
    fn is_current(&mut self, event: &CoordinatorEvent, number: u64) -> bool {
        match event {
            CoordinatorEvent::Registered { device, .. } => {
                self.devices.insert(*device, number);
                true
            }
            CoordinatorEvent::Reported { device, .. } | CoordinatorEvent::Heartbeat(device) => {
                self.devices.get(device) == Some(&number)
            }
            _ => true,
        }
    }

    /// Disconnects peers that have hung up or not greeted in time, and those that keep too much
    /// memory.
    pub(super) fn drop_idle(&mut self) {
        let now = Instant::now();
        let is_late = |state| matches!(state, PeerState::Unidentified { until } if until <= now);
        let leaving: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.connection.is_over() || is_late(peer.state))
            .map(|(number, _)| *number)
            .collect();
        leaving.into_iter().for_each(|number| self.disconnect(number));
        self.shed_load();
    }

    fn disconnect(&mut self, number: u64) {
        let Some(peer) = self.peers.remove(&number) else { return };
        match peer.state {
            PeerState::Unidentified { .. } => {}
            PeerState::Client { .. } => {
                self.handle(CoordinatorEvent::ClientGone(ClientId(number)));
            }
            PeerState::Device { .. } => {
                let device = DeviceId::new(peer.pid);
                // The device may have another connection by now.
                if self.devices.get(&device) == Some(&number) {
                    self.devices.remove(&device);
                    self.killable.forget(device);
                    self.handle(CoordinatorEvent::Gone(device));
                }
            }
        }
    }

    /// Disconnects the client that has been idle for longest, where the newest one is one too many.
    fn make_room(&mut self) {
        if self.clients() > MAX_CLIENTS {
            self.most_idle().into_iter().for_each(|number| self.disconnect(number));
        }
    }

    fn clients(&self) -> usize {
        self.peers.values().filter(|peer| matches!(peer.state, PeerState::Client { .. })).count()
    }

    fn most_idle(&self) -> Option<u64> {
        let idle = self.peers.iter().filter_map(|(number, peer)| Some((peer.idle_since()?, *number)));
        idle.min().map(|(_, number)| number)
    }

    /// Disconnects the peers for which most is kept, until it is not too much any more.
    fn shed_load(&mut self) {
        while self.peers.values().map(Peer::buffered_bytes).sum::<usize>() > MAX_BUFFERED {
            let most = self.peers.iter().max_by_key(|(_, peer)| peer.buffered_bytes());
            let most = most.map(|(number, _)| *number);
            most.into_iter().for_each(|number| self.disconnect(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nix::sys::socket::{setsockopt, sockopt::SndBuf};

    use super::*;
    use crate::coordinator::directory::RuntimeDirectory;
    use crate::coordinator::handshake::NumberedRequest;
    use crate::coordinator::id::CommId;
    use crate::coordinator::machine::CoordinatorSettings;
    use crate::coordinator::request::ClientRequest;
    use crate::coordinator::wire::{PeerConnection, encode};

    const CLIENT: fn() -> PeerState = || PeerState::Client { unanswered: 0, asked_at: Instant::now() };
    const DEVICE: fn() -> PeerState = || PeerState::Device { is_known: true };

    /// A coordinator that does not serve, in a directory of its own.
    struct Fixture {
        coordinator: Coordinator,
        /// The stop pipe, and the other sides of all connections.
        held: Vec<UnixStream>,
        path: std::path::PathBuf,
    }

    impl Fixture {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("shmccl-connections-{name}-{}", std::process::id()));
            let (stop, stop_pipe) = UnixStream::pair().unwrap();
            let directory = RuntimeDirectory::at(&path).unwrap();
            let coordinator =
                Coordinator::embedded(&directory, CoordinatorSettings::default(), stop_pipe).unwrap();
            Self { coordinator, held: vec![stop], path }
        }

        /// Connects a peer that has sent `received`, and has not read a message of `unread` bytes.
        fn connect(&mut self, kind: PeerState, received: &[u8], unread: usize) -> u64 {
            let (here, mut there) = UnixStream::pair().unwrap();
            // So that the system buffers hardly anything.
            setsockopt(&here, SndBuf, &4096).unwrap();
            let number = self.coordinator.next_peer;
            self.coordinator.next_peer += 1;
            let mut peer = Peer { connection: PeerConnection::new(here).unwrap(), pid: 1 << 30, state: kind };
            for piece in received.chunks(16 << 10) {
                there.write_all(piece).unwrap();
                peer.connection.read();
            }
            if unread > 0 {
                peer.connection.send(&"x".repeat(unread));
            }
            self.coordinator.peers.insert(number, peer);
            self.held.push(there);
            number
        }

        /// Returns the peers that are left after shedding load.
        fn left(&mut self) -> Vec<u64> {
            self.coordinator.shed_load();
            self.coordinator.peers.keys().copied().collect()
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }

    /// More of the longest messages than are kept at a time, even if some bytes of each were sent
    /// already.
    const TOO_MANY: usize = MAX_BUFFERED / MAX_MESSAGE + 16;

    #[test]
    fn a_client_that_was_answered_and_is_idle_stays_however_long_its_request_was() {
        let mut fixture = Fixture::new("answered");
        let mut request_bytes =
            encode(&NumberedRequest { number: 1, request: ClientRequest::List { from: CommId::new(1) } })
                .unwrap();
        request_bytes.resize(MAX_MESSAGE, b' ');
        let len = u32::try_from(request_bytes.len() - 4).unwrap();
        request_bytes[..4].copy_from_slice(&len.to_le_bytes());
        for _ in 0..TOO_MANY {
            let number = fixture.connect(CLIENT(), &request_bytes, 0);
            let peer = fixture.coordinator.peers.get_mut(&number).unwrap();
            assert!(peer.request(number).unwrap().is_some() && peer.request(number).unwrap().is_none());
        }
        assert_eq!(fixture.left().len(), TOO_MANY);
    }

    #[test]
    fn requests_that_come_too_early_are_handled_later_and_clients_that_ask_too_much_meanwhile_are_dropped() {
        let mut fixture = Fixture::new("early");
        let request_bytes =
            encode(&NumberedRequest { number: 1, request: ClientRequest::List { from: CommId::new(1) } })
                .unwrap();
        let long = |len: usize| {
            let mut request_bytes = request_bytes.clone();
            request_bytes.resize(4 + len, b' ');
            request_bytes[..4].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
            request_bytes
        };
        let short = fixture.connect(CLIENT(), &request_bytes, 0);
        for _ in 0..TOO_MANY {
            let number = fixture.connect(CLIENT(), &long(MAX_MESSAGE), 0);
            assert!(fixture.coordinator.next_event(number).is_none(), "nobody is answered yet");
            assert!(fixture.coordinator.peers[&number].idle_since().is_none(), "it waits all the same");
        }
        let left = fixture.left();
        assert!(left.len() <= MAX_BUFFERED / MAX_MESSAGE + 1 && left[0] == short, "{} are left", left.len());
        let mut now_ms = 0;
        while !fixture.coordinator.machine.is_open() {
            fixture.coordinator.handle(CoordinatorEvent::Tick(now_ms));
            now_ms += 10;
        }
        assert!(left.iter().all(|number| fixture.coordinator.next_event(*number).is_some()));
    }

    #[test]
    fn clients_that_do_not_read_are_dropped_and_devices_stay() {
        let mut fixture = Fixture::new("unread");
        let devices: Vec<_> =
            (0..TOO_MANY).map(|_| fixture.connect(DEVICE(), b"", MAX_MESSAGE - 2)).collect();
        let quiet = fixture.connect(CLIENT(), b"some", 0);
        assert_eq!(fixture.left(), [&devices[..], &[quiet]].concat(), "of orders nothing counts");
        (0..TOO_MANY).for_each(|_| _ = fixture.connect(CLIENT(), b"", MAX_MESSAGE - 2));
        let left = fixture.left();
        assert_eq!(left[..=TOO_MANY], [&devices[..], &[quiet]].concat());
        assert!(left.len() <= 2 * TOO_MANY, "{} are left", left.len());
    }

    #[test]
    fn a_peer_that_never_ends_a_long_message_is_dropped_be_it_a_device() {
        let mut fixture = Fixture::new("unheard");
        let mut begun = u32::try_from(MAX_MESSAGE).unwrap().to_le_bytes().to_vec();
        begun.resize(MAX_MESSAGE, b' ');
        let quiet = fixture.connect(DEVICE(), b"", 0);
        (0..TOO_MANY).for_each(|_| _ = fixture.connect(DEVICE(), &begun, 0));
        let left = fixture.left();
        assert!(left.len() == 1 + MAX_BUFFERED / MAX_MESSAGE && left[0] == quiet, "{} are left", left.len());
    }
}
