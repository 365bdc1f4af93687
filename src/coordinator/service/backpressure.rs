//! Who has to go where there are too many, or what they have sent and not read is too much.

use super::Coordinator;
use super::peer::{MAX_CLIENTS, Peer, PeerCapacity, PeerState};
use crate::coordinator::frame::MAX_MESSAGE;
use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::MAX_DEVICES;

/// How much may be kept for all peers together: see [`Peer::burden`].
const MAX_BURDEN: usize = 64 * MAX_MESSAGE;

impl Coordinator {
    /// What room there is for one who may be about to greet, or `None` where nobody is there.
    pub(super) fn room(&self, number: u64) -> Option<PeerCapacity> {
        let peer = self.peers.get(&number)?;
        if !matches!(peer.kind, PeerState::Unidentified { .. }) {
            return Some(PeerCapacity::default());
        }
        let is_back = self.devices.contains_key(&DeviceId::new(peer.pid));
        let is_full_of_clients = self.clients() >= MAX_CLIENTS && self.most_idle().is_none();
        Some(PeerCapacity {
            is_full_of_devices: self.devices.len() >= MAX_DEVICES && !is_back,
            is_full_of_clients,
        })
    }

    /// Parts with the client that has waited for no answer for longest, where the newest one is one too many.
    pub(super) fn make_room(&mut self) {
        if self.clients() > MAX_CLIENTS {
            self.most_idle().into_iter().for_each(|number| self.part(number));
        }
    }

    fn clients(&self) -> usize {
        self.peers.values().filter(|peer| matches!(peer.kind, PeerState::Client { .. })).count()
    }

    fn most_idle(&self) -> Option<u64> {
        let idle = self.peers.iter().filter_map(|(number, peer)| Some((peer.idle_since()?, *number)));
        idle.min().map(|(_, number)| number)
    }

    /// Parts with those for whom most is kept, until it is not too much.
    pub(super) fn unburden(&mut self) {
        while self.peers.values().map(Peer::burden).sum::<usize>() > MAX_BURDEN {
            let most = self.peers.iter().max_by_key(|(_, peer)| peer.burden()).map(|(number, _)| *number);
            most.into_iter().for_each(|number| self.part(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use nix::sys::socket::{setsockopt, sockopt::SndBuf};

    use super::*;
    use crate::coordinator::RuntimeDirectory;
    use crate::coordinator::frame::encode;
    use crate::coordinator::greeting::NumberedRequest;
    use crate::coordinator::id::CommId;
    use crate::coordinator::link::Connection;
    use crate::coordinator::machine::CoordinatorSettings;
    use crate::coordinator::request::Request;

    const CLIENT: fn() -> PeerState = || PeerState::Client { asked: 0, heard: Instant::now() };
    const DEVICE: fn() -> PeerState = || PeerState::Device { is_known: true };

    /// A coordinator that does not serve, in a directory of its own.
    struct Fixture {
        coordinator: Coordinator,
        /// What keeps it from its end, and the other sides of all connections.
        held: Vec<UnixStream>,
        path: std::path::PathBuf,
    }

    impl Fixture {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("shmccl-crowd-{name}-{}", std::process::id()));
            let (bell, rope) = UnixStream::pair().unwrap();
            let directory = RuntimeDirectory::at(&path).unwrap();
            let coordinator =
                Coordinator::within(&directory, CoordinatorSettings::default(), rope, |_| {}).unwrap();
            Self { coordinator, held: vec![bell], path }
        }

        /// Connects one who has sent `unheard`, and has not read a message of `unread` bytes.
        fn connect(&mut self, kind: PeerState, unheard: &[u8], unread: usize) -> u64 {
            let (here, mut there) = UnixStream::pair().unwrap();
            // So that hardly anything is in the system's hands.
            setsockopt(&here, SndBuf, &4096).unwrap();
            let number = self.coordinator.next_peer;
            self.coordinator.next_peer += 1;
            let mut peer = Peer { link: Connection::new(here).unwrap(), pid: 1 << 30, kind };
            for piece in unheard.chunks(16 << 10) {
                there.write_all(piece).unwrap();
                peer.link.read();
            }
            if unread > 0 {
                peer.link.send(&"x".repeat(unread));
            }
            self.coordinator.peers.insert(number, peer);
            self.held.push(there);
            number
        }

        /// Who is left when it was looked at what is kept.
        fn left(&mut self) -> Vec<u64> {
            self.coordinator.unburden();
            self.coordinator.peers.keys().copied().collect()
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }

    /// More of the longest messages than are kept at a time, even where some bytes of each have gone already.
    const TOO_MANY: usize = MAX_BURDEN / MAX_MESSAGE + 16;

    #[test]
    fn who_has_been_answered_and_is_quiet_stays_however_long_its_question_was() {
        let mut bench = Fixture::new("answered");
        let mut question =
            encode(&NumberedRequest { number: 1, request: Request::List { from: CommId::new(1) } }).unwrap();
        question.resize(MAX_MESSAGE, b' ');
        let len = u32::try_from(question.len() - 4).unwrap();
        question[..4].copy_from_slice(&len.to_le_bytes());
        for _ in 0..TOO_MANY {
            let number = bench.connect(CLIENT(), &question, 0);
            let peer = bench.coordinator.peers.get_mut(&number).unwrap();
            assert!(peer.question(number).unwrap().is_some() && peer.question(number).unwrap().is_none());
        }
        assert_eq!(bench.left().len(), TOO_MANY);
    }

    #[test]
    fn questions_that_come_too_early_are_heard_later_and_who_asks_too_much_meanwhile_has_to_go() {
        let mut bench = Fixture::new("early");
        let question =
            encode(&NumberedRequest { number: 1, request: Request::List { from: CommId::new(1) } }).unwrap();
        let long = |len: usize| {
            let mut question = question.clone();
            question.resize(4 + len, b' ');
            question[..4].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
            question
        };
        let short = bench.connect(CLIENT(), &question, 0);
        for _ in 0..TOO_MANY {
            let number = bench.connect(CLIENT(), &long(MAX_MESSAGE), 0);
            assert!(bench.coordinator.next_event(number).is_none(), "nobody is answered yet");
            assert!(bench.coordinator.peers[&number].idle_since().is_none(), "it waits all the same");
        }
        let left = bench.left();
        assert!(left.len() <= MAX_BURDEN / MAX_MESSAGE + 1 && left[0] == short, "{} are left", left.len());
        let mut now_ms = 0;
        while !bench.coordinator.machine.is_open() {
            bench.coordinator.handle(crate::coordinator::CoordinatorEvent::Tick { now_ms });
            now_ms += 10;
        }
        assert!(left.iter().all(|number| bench.coordinator.next_event(*number).is_some()));
    }

    #[test]
    fn clients_that_do_not_read_have_to_go_and_devices_that_have_said_all_stay() {
        let mut bench = Fixture::new("unread");
        let devices: Vec<_> = (0..TOO_MANY).map(|_| bench.connect(DEVICE(), b"", MAX_MESSAGE - 2)).collect();
        let quiet = bench.connect(CLIENT(), b"some", 0);
        assert_eq!(bench.left(), [&devices[..], &[quiet]].concat(), "of orders nothing counts");
        (0..TOO_MANY).for_each(|_| _ = bench.connect(CLIENT(), b"", MAX_MESSAGE - 2));
        let left = bench.left();
        assert_eq!(left[..=TOO_MANY], [&devices[..], &[quiet]].concat());
        assert!(left.len() <= 2 * TOO_MANY, "{} are left", left.len());
    }

    #[test]
    fn whoever_never_ends_a_long_message_has_to_go_be_it_a_device() {
        let mut bench = Fixture::new("unheard");
        let mut begun = u32::try_from(MAX_MESSAGE).unwrap().to_le_bytes().to_vec();
        begun.resize(MAX_MESSAGE, b' ');
        let quiet = bench.connect(DEVICE(), b"", 0);
        (0..TOO_MANY).for_each(|_| _ = bench.connect(DEVICE(), &begun, 0));
        let left = bench.left();
        assert!(left.len() == 1 + MAX_BURDEN / MAX_MESSAGE && left[0] == quiet, "{} are left", left.len());
    }
}
