//! Who is at the other side of a connection, and what that one may say.

use std::time::{Duration, Instant};

use crate::coordinator::greeting::{DeviceMessage, Hello, HelloReply, NumberedRequest, PeerRole, VERSION};
use crate::coordinator::id::{ClientId, DeviceId};
use crate::coordinator::link::Connection;
use crate::coordinator::machine::{CoordinatorEvent, MAX_DEVICES};
use crate::coordinator::refusal::RequestError;

/// The most clients at a time. Devices, and those who have not said yet who they are, have places of their own.
pub(super) const MAX_CLIENTS: usize = 448;

/// How many requests of one client may wait for their answers.
const MAX_ASKED: usize = 64;

/// Who is at the other side of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: Connection,
    pub(super) pid: u32,
    pub(super) kind: PeerState,
}

/// For whom there is no room any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerCapacity {
    pub(super) is_full_of_devices: bool,
    pub(super) is_full_of_clients: bool,
}

impl PeerCapacity {
    fn refusal(self, role: PeerRole) -> Option<RequestError> {
        let (what, limit) = match role {
            PeerRole::Device if self.is_full_of_devices => ("places for devices in the pool", MAX_DEVICES),
            PeerRole::Client if self.is_full_of_clients => ("places for clients", MAX_CLIENTS),
            _ => return None,
        };
        Some(RequestError::Exhausted { what: what.to_owned(), limit })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// It has not said yet.
    Unidentified { until: Instant },
    /// It asks, waits for so many answers, and has greeted or asked last then.
    Client { asked: usize, heard: Instant },
    /// A device, which the machine may know already.
    Device { is_known: bool },
}

impl Peer {
    /// Takes a greeting. Returns whether there was one.
    pub(super) fn greeted(
        &mut self,
        beat: Option<Duration>,
        room: PeerCapacity,
    ) -> std::result::Result<bool, String> {
        let Some(Hello { shmccl, role }) = self.link.next()? else { return Ok(false) };
        let is_ours = shmccl == VERSION;
        let beat = beat.filter(|_| role == PeerRole::Device && is_ours);
        let beat_us = beat.map(|beat| u64::try_from(beat.as_micros()).unwrap_or(u64::MAX));
        let refusal = room.refusal(role).filter(|_| is_ours);
        let is_refused = refusal.is_some();
        self.link.send(&HelloReply { refusal, ..HelloReply::new(beat_us) });
        if !is_ours {
            return Err("another version".to_owned());
        }
        self.kind = match role {
            _ if is_refused => return Err("one too many".to_owned()),
            PeerRole::Client => PeerState::Client { asked: 0, heard: Instant::now() },
            // A device whose process cannot be seen from here cannot be named.
            PeerRole::Device if self.pid == 0 => {
                return Err("a device of another process namespace".to_owned());
            }
            PeerRole::Device => PeerState::Device { is_known: false },
            PeerRole::Unknown => return Err("neither a client nor a device".to_owned()),
        };
        Ok(true)
    }

    /// How much is kept for it that it is to answer for: of messages that have not been taken out, and of what it has not read. Orders that a
    /// device has not read are not its doing, and each device has but a few of them.
    pub(super) fn burden(&self) -> usize {
        let unread = if matches!(self.kind, PeerState::Device { .. }) { 0 } else { self.link.unread() };
        self.link.unheard() + unread
    }

    /// Since when it has been a client that waits for no answer, and has not asked for one that is yet to be heard, if it is one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        match self.kind {
            PeerState::Client { asked: 0, heard } if !self.link.has_next() => Some(heard),
            _ => None,
        }
    }

    pub(super) fn question(&mut self, number: u64) -> std::result::Result<Option<CoordinatorEvent>, String> {
        let PeerState::Client { asked, heard } = &mut self.kind else { return Ok(None) };
        let Some(question) = self.link.next::<NumberedRequest>()? else { return Ok(None) };
        (*asked, *heard) = (*asked + 1, Instant::now());
        if *asked > MAX_ASKED {
            return Err("too many requests at a time".to_owned());
        }
        let (client, NumberedRequest { number, request }) = (ClientId::new(number), question);
        Ok(Some(CoordinatorEvent::Requested { client, number, request }))
    }

    pub(super) fn bulletin(&mut self) -> std::result::Result<Option<CoordinatorEvent>, String> {
        let PeerState::Device { is_known } = &mut self.kind else { return Ok(None) };
        let Some(bulletin) = self.link.next::<DeviceMessage>()? else { return Ok(None) };
        let device = DeviceId::new(self.pid);
        match bulletin {
            DeviceMessage::Beat if *is_known => Ok(Some(CoordinatorEvent::Beat { device })),
            DeviceMessage::Beat => Err("a device that has not said how it is".to_owned()),
            DeviceMessage::State { range, socket, report } => {
                Ok(Some(if std::mem::replace(is_known, true) {
                    CoordinatorEvent::Reported { device, report: *report }
                } else {
                    CoordinatorEvent::Registered { device, range, socket, report: *report }
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::coordinator::frame::{IoContext, encode, read};
    use crate::coordinator::greeting::GREETING_TIME;

    /// What who greets as this is told, and what becomes of it, where there is no room for anybody.
    fn greet(shmccl: &str, role: &str) -> (String, std::result::Result<bool, String>) {
        let (here, mut there) = UnixStream::pair().unwrap();
        let kind = PeerState::Unidentified { until: Instant::now() };
        let mut peer = Peer { link: Connection::new(here).unwrap(), pid: 7, kind };
        let greeting = serde_json::json!({ "shmccl": shmccl, "role": role });
        std::io::Write::write_all(&mut there, &encode(&greeting).unwrap()).unwrap();
        peer.link.read();
        let room = PeerCapacity { is_full_of_devices: true, is_full_of_clients: true };
        let greeted = peer.greeted(None, room);
        let exchange = IoContext { peer: "coordinator", operation: "asking", patience: GREETING_TIME };
        let welcome = read::<HelloReply>(&mut there, exchange).unwrap();
        (welcome.check().map_or_else(|error| error.to_string(), |welcome| welcome.shmccl), greeted)
    }

    #[test]
    fn one_too_many_is_told_why_it_is_not_taken() {
        for (role, told) in [
            ("device", "no places for devices in the pool left: all 1024 are in use"),
            ("client", "no places for clients left: all 448 are in use"),
        ] {
            assert_eq!(greet(VERSION, role), (told.to_owned(), Err("one too many".to_owned())));
        }
    }

    #[test]
    fn whoever_is_of_another_version_is_told_this_one_whatever_it_says_that_it_is() {
        for role in ["device", "client", "observer"] {
            let told = (VERSION.to_owned(), Err("another version".to_owned()));
            assert_eq!(greet("9.9.9", role), told, "{role}");
        }
        assert_eq!(greet(VERSION, "observer").1, Err("neither a client nor a device".to_owned()));
    }
}
