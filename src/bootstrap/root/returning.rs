//! Members that were started again: they get a new socket and an invitation, and come back by a meeting without the root.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::{Event, Phase, Root, Seat};
use crate::bootstrap::message::{self, Forsaken, Invite, Message};
use crate::error::DeviceName;

impl Root {
    /// Puts a member that was started again into the place of its predecessor, which is lost, with the root's end of its socket.
    pub(crate) fn reseat(&mut self, seat: Seat, socket: OwnedFd) {
        let member = &mut self.members[seat.0];
        member.socket = Some(socket);
        member.phase = Phase::Silent;
        member.outbox.clear();
        member.has_joined = false;
        member.restarts += 1;
        member.reported.clear();
        let code = message::member_code(member.device);
        self.losses.retain(|lost| lost.member != code);
        for other in &mut self.members {
            other.reported.retain(|reported| *reported != seat);
        }
    }

    /// Whether a member was started again and is not back among the others.
    pub(crate) fn is_returning(&self, seat: Seat) -> bool {
        let member = &self.members[seat.0];
        member.restarts > 0 && matches!(member.phase, Phase::Silent | Phase::Returning)
    }

    /// Has a member that was started again among the others, and tells it who was lost while it was on its way: to the epoch that it
    /// has come into, if it was in there.
    pub(super) fn take_back(&mut self, seat: Seat) {
        self.members[seat.0].phase = Phase::Running;
        self.events.push_back(Event::Returned(seat));
        for lost in self.losses.clone() {
            self.post(seat, &lost, Rc::new([]));
        }
    }

    /// Tells the members who are there, or on their way back, that nobody is started for one that is lost; once, whoever it is that is
    /// lost in its place.
    pub(crate) fn forsake(&mut self, seat: Seat) {
        let (head, member) = (Forsaken::head(self.offer.job_id), message::member_code(self.device(seat)));
        if self.forsaken.iter().any(|forsaken| forsaken.member == member) {
            return;
        }
        let forsaken = Forsaken { head, member, reserved: 0 };
        self.forsaken.push(forsaken);
        for other in (0..self.members.len()).map(Seat) {
            if matches!(self.members[other.0].phase, Phase::Running | Phase::Returning) {
                self.post(other, &forsaken, Rc::new([]));
            }
        }
    }

    /// Tells a member that comes back in vain of those for whom nobody is started.
    pub(super) fn tell_forsaken(&mut self, seat: Seat) {
        for forsaken in self.forsaken.clone() {
            self.post(seat, &forsaken, Rc::new([]));
        }
    }

    /// Passes on where to come to the members that were started again, and to those who will be.
    pub(super) fn invite(&mut self, invite: Invite) {
        self.invite = Some(invite);
        (0..self.members.len()).for_each(|index| self.pass_on(Seat(index), &invite));
    }

    pub(super) fn pass_on(&mut self, seat: Seat, invite: &Invite) {
        let member = &self.members[seat.0];
        let DeviceName::Rank(rank) = member.device else { return };
        if member.phase == Phase::Returning && invite.ranks >> rank.get() & 1 == 1 {
            self.post(seat, invite, Rc::new([]));
        }
    }
}
