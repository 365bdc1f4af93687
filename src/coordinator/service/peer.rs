//! The peer at the other side of a connection, and what it may send.

use std::time::{Duration, Instant};

use crate::coordinator::error::RequestError;
use crate::coordinator::handshake::{DeviceMessage, Hello, HelloReply, NumberedRequest, PeerRole, VERSION};
use crate::coordinator::id::{ClientId, DeviceId};
use crate::coordinator::machine::{CoordinatorEvent, MAX_DEVICES, RequestId};
use crate::coordinator::wire::PeerConnection;

/// The most clients at a time. Devices and unidentified peers have places of their own.
pub(super) const MAX_CLIENTS: usize = 448;

/// The most requests of one client that may wait for their answers.
const MAX_UNANSWERED: usize = 64;

/// The peer at the other side of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) connection: PeerConnection,
    pub(super) pid: u32,
    pub(super) state: PeerState,
}

/// The role of a peer, and how far it is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// It has not greeted yet, and has time for that until then.
    Unidentified { until: Instant },
    /// A client that waits for so many answers, and has greeted or asked last at `asked_at`.
    Client { unanswered: usize, asked_at: Instant },
    /// A device, which the machine may know already.
    Device { is_known: bool },
}

impl Peer {
    /// Takes a greeting. Returns whether there was one. `is_full` says of which roles there are
    /// as many as there may be.
    ///
    /// # Errors
    /// A text that says why the peer is refused.
    pub(super) fn greeted(
        &mut self,
        heartbeat: Option<Duration>,
        is_full: impl FnOnce(PeerRole) -> bool,
    ) -> Result<bool, String> {
        let Some(Hello { shmccl, role }) = self.connection.next()? else { return Ok(false) };
        let is_ours = shmccl == VERSION;
        let heartbeat = heartbeat.filter(|_| role == PeerRole::Device && is_ours);
        let heartbeat_us = heartbeat.map(|period| u64::try_from(period.as_micros()).unwrap_or(u64::MAX));
        let refusal = if is_ours && is_full(role) { one_too_many(role) } else { None };
        let is_refused = refusal.is_some();
        self.connection.send(&HelloReply { refusal, ..HelloReply::new(heartbeat_us) });
        if !is_ours {
            return Err("another version".to_owned());
        }
        self.state = match role {
            _ if is_refused => return Err("one too many".to_owned()),
            PeerRole::Client => PeerState::Client { unanswered: 0, asked_at: Instant::now() },
            // A device whose process cannot be seen from here has no number here.
            PeerRole::Device if self.pid == 0 => {
                return Err("a device of another process namespace".to_owned());
            }
            PeerRole::Device => PeerState::Device { is_known: false },
            PeerRole::Unknown => return Err("neither a client nor a device".to_owned()),
        };
        Ok(true)
    }

    /// Returns how many bytes are kept on account of the peer: messages that were not taken out,
    /// and answers that it has not read.
    ///
    /// Orders that a device has not read do not count: it has not asked for them, and they are few.
    pub(super) fn buffered_bytes(&self) -> usize {
        let is_device = matches!(self.state, PeerState::Device { .. });
        self.connection.received_bytes() + if is_device { 0 } else { self.connection.unsent_bytes() }
    }

    /// Returns since when the peer has been an idle client: it waits for no answer, and no request
    /// of it has come that was not taken out.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        match self.state {
            PeerState::Client { unanswered: 0, asked_at } if !self.connection.has_next() => Some(asked_at),
            _ => None,
        }
    }

    /// Takes a request of a client, if one has come.
    ///
    /// # Errors
    /// A text that says what is wrong with it.
    pub(super) fn request(&mut self, client: u64) -> Result<Option<CoordinatorEvent>, String> {
        let PeerState::Client { unanswered, asked_at } = &mut self.state else { return Ok(None) };
        let Some(NumberedRequest { number, request }) = self.connection.next()? else { return Ok(None) };
        (*unanswered, *asked_at) = (*unanswered + 1, Instant::now());
        if *unanswered > MAX_UNANSWERED {
            return Err("too many requests at a time".to_owned());
        }
        let request_id = RequestId { client: ClientId(client), number };
        Ok(Some(CoordinatorEvent::Requested { request_id, request }))
    }

    /// Takes a message of a device, if one has come.
    ///
    /// # Errors
    /// A text that says what is wrong with it.
    pub(super) fn device_message(&mut self) -> Result<Option<CoordinatorEvent>, String> {
        let PeerState::Device { is_known } = &mut self.state else { return Ok(None) };
        let Some(message) = self.connection.next::<DeviceMessage>()? else { return Ok(None) };
        let device = DeviceId::new(self.pid);
        let was_known = std::mem::replace(is_known, true);
        Ok(Some(match message {
            DeviceMessage::Heartbeat if was_known => CoordinatorEvent::Heartbeat(device),
            DeviceMessage::Heartbeat => return Err("a device that has not reported its state".to_owned()),
            DeviceMessage::State(report) if was_known => {
                CoordinatorEvent::Reported { device, report: *report }
            }
            DeviceMessage::State(report) => CoordinatorEvent::Registered { device, report: *report },
        }))
    }
}

/// Returns why another peer of this role is refused.
fn one_too_many(role: PeerRole) -> Option<RequestError> {
    let (what, limit) = match role {
        PeerRole::Device => ("places for devices in the pool", MAX_DEVICES),
        PeerRole::Client => ("places for clients", MAX_CLIENTS),
        PeerRole::Unknown => return None,
    };
    Some(RequestError::Exhausted { what: what.to_owned(), limit })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::coordinator::handshake::GREETING_TIME;
    use crate::coordinator::wire::{IoContext, encode, read};

    /// Greets where there is no room for any peer. Returns the answer, and the outcome for the
    /// peer.
    fn greet(shmccl: &str, role: &str) -> (String, Result<bool, String>) {
        let (here, mut there) = UnixStream::pair().unwrap();
        let state = PeerState::Unidentified { until: Instant::now() };
        let mut peer = Peer { connection: PeerConnection::new(here).unwrap(), pid: 7, state };
        let greeting = serde_json::json!({ "shmccl": shmccl, "role": role });
        std::io::Write::write_all(&mut there, &encode(&greeting).unwrap()).unwrap();
        peer.connection.read();
        let greeted = peer.greeted(None, |_| true);
        let context = IoContext { peer: "coordinator", operation: "asking", patience: GREETING_TIME };
        let reply = read::<HelloReply>(&mut there, context).unwrap();
        (reply.check().map_or_else(|error| error.to_string(), |reply| reply.shmccl), greeted)
    }

    #[test]
    fn a_peer_too_many_is_told_why_it_is_refused() {
        for (role, told) in [
            ("device", "no places for devices in the pool left: all 1024 are in use"),
            ("client", "no places for clients left: all 448 are in use"),
        ] {
            assert_eq!(greet(VERSION, role), (told.to_owned(), Err("one too many".to_owned())));
        }
    }

    #[test]
    fn a_peer_of_another_version_is_told_this_one_whatever_its_role() {
        for role in ["device", "client", "observer"] {
            let told = (VERSION.to_owned(), Err("another version".to_owned()));
            assert_eq!(greet("9.9.9", role), told, "{role}");
        }
        assert_eq!(greet(VERSION, "observer").1, Err("neither a client nor a device".to_owned()));
    }
}
