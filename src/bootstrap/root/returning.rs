//! Members that were started again: they get a new socket and an invitation, and come back by a meeting without the root.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::{BootstrapRoot, MemberId, MemberPhase, RootEvent};
use crate::bootstrap::message::{self, ControlMessage, Invite, NotRestarted};
use crate::error::DeviceName;

impl BootstrapRoot {
    /// Puts a member that was started again into the place of its predecessor, which is lost, with the root's end of its socket.
    pub(crate) fn replace_member(&mut self, id: MemberId, socket: OwnedFd) {
        let member = &mut self.members[id.0];
        member.socket = Some(socket);
        member.phase = MemberPhase::Silent;
        member.outbox.clear();
        member.has_joined = false;
        member.restarts += 1;
        member.reported.clear();
        let code = message::member_code(member.device);
        self.losses.retain(|lost| lost.member != code);
        for other in &mut self.members {
            other.reported.retain(|reported| *reported != id);
        }
    }

    /// Whether a member was started again and is not back among the others.
    pub(crate) fn is_returning(&self, id: MemberId) -> bool {
        let member = &self.members[id.0];
        member.restarts > 0 && matches!(member.phase, MemberPhase::Silent | MemberPhase::Returning)
    }

    /// Has a member that was started again among the others, and tells it who was lost while it was on its way: to the epoch that it
    /// has come into, if it was in there.
    pub(super) fn take_back(&mut self, id: MemberId) {
        self.members[id.0].phase = MemberPhase::Running;
        self.events.push_back(RootEvent::Returned(id));
        for lost in self.losses.clone() {
            self.post(id, &lost, Rc::new([]));
        }
    }

    /// Tells the members who are there, or on their way back, that nobody is started for one that is lost; once, whoever it is that is
    /// lost in its place.
    pub(crate) fn announce_not_restarted(&mut self, id: MemberId) {
        let (header, member) =
            (NotRestarted::header(self.offer.job_id), message::member_code(self.device(id)));
        if self.not_restarted.iter().any(|not_restarted| not_restarted.member == member) {
            return;
        }
        let not_restarted = NotRestarted { header, member, reserved: 0 };
        self.not_restarted.push(not_restarted);
        for other in (0..self.members.len()).map(MemberId) {
            if matches!(self.members[other.0].phase, MemberPhase::Running | MemberPhase::Returning) {
                self.post(other, &not_restarted, Rc::new([]));
            }
        }
    }

    /// Tells a member that comes back in vain of those for whom nobody is started.
    pub(super) fn tell_not_restarted(&mut self, id: MemberId) {
        for not_restarted in self.not_restarted.clone() {
            self.post(id, &not_restarted, Rc::new([]));
        }
    }

    /// Passes on where to come to the members that were started again, and to those who will be.
    pub(super) fn invite(&mut self, invite: Invite) {
        self.invite = Some(invite);
        (0..self.members.len()).for_each(|index| self.pass_on(MemberId(index), &invite));
    }

    pub(super) fn pass_on(&mut self, id: MemberId, invite: &Invite) {
        let member = &self.members[id.0];
        let DeviceName::Rank(rank) = member.device else { return };
        if member.phase == MemberPhase::Returning && invite.ranks >> rank.get() & 1 == 1 {
            self.post(id, invite, Rc::new([]));
        }
    }
}
