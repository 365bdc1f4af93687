//! What the root has to say to members, and how it waits to be sent: the root never blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use nix::errno::Errno;

use super::{BootstrapRoot, MemberId, MemberRecord};
use crate::bootstrap::message::ControlMessage;
use crate::bootstrap::socket::send;
use crate::logs::step;

/// A message that waits for room.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    bytes: Rc<[u8]>,
    descriptors: Rc<[OwnedFd]>,
}

impl BootstrapRoot {
    /// Sends a message to all members.
    pub(crate) fn tell_all<M: ControlMessage>(&mut self, message: &M) {
        self.broadcast(message, Rc::new([]));
    }

    pub(super) fn broadcast<M: ControlMessage>(&mut self, message: &M, descriptors: Rc<[OwnedFd]>) {
        let bytes: Rc<[u8]> = bytemuck::bytes_of(message).into();
        for index in 0..self.members.len() {
            let outgoing = Outgoing { bytes: Rc::clone(&bytes), descriptors: Rc::clone(&descriptors) };
            self.members[index].outbox.push_back(outgoing);
            step("about to tell one of all");
            self.flush(MemberId(index));
        }
    }

    pub(super) fn post<M: ControlMessage>(&mut self, id: MemberId, message: &M, descriptors: Rc<[OwnedFd]>) {
        let bytes = bytemuck::bytes_of(message).into();
        self.members[id.0].outbox.push_back(Outgoing { bytes, descriptors });
        self.flush(id);
    }

    /// Sends what waits for a member as far as its socket takes it. That it hung up is noticed on reading, after its
    /// last words.
    pub(super) fn flush(&mut self, id: MemberId) {
        let MemberRecord { socket, outbox, .. } = &mut self.members[id.0];
        let Some(socket) = socket else {
            outbox.clear();
            return;
        };
        while let Some(outgoing) = outbox.front() {
            let descriptors: Vec<_> = outgoing.descriptors.iter().map(AsFd::as_fd).collect();
            match send(socket.as_fd(), &outgoing.bytes, &descriptors) {
                Ok(()) => _ = outbox.pop_front(),
                // Full, or too many descriptors in flight: later.
                Err(Errno::EAGAIN | Errno::ETOOMANYREFS | Errno::ENOBUFS | Errno::ENOMEM) => return,
                Err(_) => return outbox.clear(),
            }
        }
    }
}
