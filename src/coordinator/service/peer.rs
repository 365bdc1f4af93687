//! Who is at the other side of a connection, and what that one may say.

use std::time::{Duration, Instant};

use crate::coordinator::greeting::{Bulletin, Greeting, Question, Role, VERSION, Welcome};
use crate::coordinator::id::{ClientId, DeviceId};
use crate::coordinator::link::Link;
use crate::coordinator::machine::{Event, MAX_DEVICES};
use crate::coordinator::refusal::Refusal;

/// How many requests of one client may wait for their answers.
const MAX_ASKED: usize = 64;

/// Who is at the other side of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) link: Link,
    pub(super) pid: u32,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It has not said yet.
    Stranger { until: Instant },
    /// It asks, and waits for so many answers.
    Client { asked: usize },
    /// A device, which the machine may know already.
    Device { is_known: bool },
}

impl Peer {
    /// Takes a greeting. Returns whether there was one.
    pub(super) fn greeted(
        &mut self,
        beat: Option<Duration>,
        is_full: bool,
    ) -> std::result::Result<bool, String> {
        let Some(greeting) = self.link.next::<Greeting>()? else { return Ok(false) };
        let beat = beat.filter(|_| greeting.role == Role::Device && greeting.shmccl == VERSION);
        let beat_us = beat.map(|beat| u64::try_from(beat.as_micros()).unwrap_or(u64::MAX));
        let limit = MAX_DEVICES;
        let refusal = (is_full && greeting.role == Role::Device && greeting.shmccl == VERSION)
            .then(|| Refusal::Exhausted { what: "places for devices in the pool".to_owned(), limit });
        let is_refused = refusal.is_some();
        self.link.send(&Welcome { refusal, ..Welcome::new(beat_us) });
        if greeting.shmccl != VERSION {
            return Err("another version".to_owned());
        }
        self.kind = match greeting.role {
            Role::Client => Kind::Client { asked: 0 },
            // A device whose process cannot be seen from here cannot be named.
            Role::Device if self.pid == 0 => return Err("a device of another process namespace".to_owned()),
            Role::Device if is_refused => return Err("one device too many".to_owned()),
            Role::Device => Kind::Device { is_known: false },
        };
        Ok(true)
    }

    pub(super) fn question(&mut self, number: u64) -> std::result::Result<Option<Event>, String> {
        let Kind::Client { asked } = &mut self.kind else { return Ok(None) };
        let Some(question) = self.link.next::<Question>()? else { return Ok(None) };
        *asked += 1;
        if *asked > MAX_ASKED {
            return Err("too many requests at a time".to_owned());
        }
        let (client, Question { number, request }) = (ClientId::new(number), question);
        Ok(Some(Event::Requested { client, number, request }))
    }

    pub(super) fn bulletin(&mut self) -> std::result::Result<Option<Event>, String> {
        let Kind::Device { is_known } = &mut self.kind else { return Ok(None) };
        let Some(bulletin) = self.link.next::<Bulletin>()? else { return Ok(None) };
        let device = DeviceId::new(self.pid);
        match bulletin {
            Bulletin::Beat if *is_known => Ok(Some(Event::Beat { device })),
            Bulletin::Beat => Err("a device that has not said how it is".to_owned()),
            Bulletin::State { range, socket, report } => Ok(Some(if std::mem::replace(is_known, true) {
                Event::Reported { device, report: *report }
            } else {
                Event::Registered { device, range, socket, report: *report }
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::coordinator::frame::{Exchange, encode, read};
    use crate::coordinator::greeting::GREETING_TIME;

    #[test]
    fn a_device_too_many_is_told_why_it_is_not_taken() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let kind = Kind::Stranger { until: Instant::now() };
        let mut peer = Peer { link: Link::new(here).unwrap(), pid: 7, kind };
        let greeting = Greeting { shmccl: VERSION.to_owned(), role: Role::Device };
        std::io::Write::write_all(&mut there, &encode(&greeting).unwrap()).unwrap();
        peer.link.read();
        peer.greeted(None, true).unwrap_err();
        let exchange = Exchange { peer: "coordinator", operation: "asking", patience: GREETING_TIME };
        let told = read::<Welcome>(&mut there, exchange).unwrap().check().unwrap_err().to_string();
        assert_eq!(told, "no places for devices in the pool left: all 1024 are in use");
    }
}
