//! The messages of the root to members. They wait in a queue where a socket is full: the root never
//! blocks.
//!
//! A restarted member gets a new socket and an invitation, and comes back by a meeting without the
//! root.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use bytemuck::Zeroable;
use nix::errno::Errno;

use super::{BootstrapRoot, MemberId, MemberPhase, MemberRecord, RootEvent};
use crate::bootstrap::message::{
    self, ControlMessage, Hello, Invite, LAYOUT_VERSION, MemberRefusal, Misfit, NotRestarted, Refused,
    Welcome, check_fit,
};
use crate::bootstrap::socket::send;
use crate::error::{DeviceName, ExitCause};
use crate::logs::step;
use crate::rank::RankSet;
use crate::shm::system;

/// A message that waits for room.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    bytes: Rc<[u8]>,
    descriptors: Rc<[OwnedFd]>,
}

impl BootstrapRoot {
    /// Sends a message to all members.
    pub(crate) fn send_to_all<M: ControlMessage>(&mut self, message: &M) {
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

    /// Sends what waits for a member, as far as its socket takes it. A hang-up is noticed on
    /// reading, after the member's last messages.
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

impl BootstrapRoot {
    /// Answers a Hello.
    pub(super) fn welcome(&mut self, id: MemberId, bytes: &[u8], sender: Option<(i32, u32)>) -> Option<()> {
        let member = &self.members[id.0];
        let code = message::member_code(member.device);
        let (pid, user) = sender?;
        let version = message::header_of(bytes)?.version;
        let fits = match check_fit(MemberRefusal::Version, message::VERSION.into(), version.into()) {
            Ok(()) => self.check_hello(&message::read(bytes)?, code, user),
            misfit => misfit,
        };
        if let Err(misfit) = fits {
            self.refuse(id, misfit);
            return Some(());
        }
        let options = &self.offer.options;
        let name = options.backing.name().as_bytes();
        let mut welcome = Welcome {
            header: Welcome::header(self.offer.job_id),
            epoch: self.offer.epoch,
            heap_len: options.heap_len,
            timeout_ms: u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX),
            member: code,
            n_ranks: self.offer.n_ranks,
            proxy_mode: options.proxy.code(),
            backing: options.backing.code(),
            cpu: member.placement.cpu.unwrap_or(message::NO_CPU),
            devices: member.placement.devices,
            proxies: member.placement.proxies,
            backing_name_len: u32::try_from(name.len()).ok()?,
            restarts: member.restarts,
            restarting: self.offer.restarting.into(),
            traced: self.traced.into(),
            beat_us: self.offer.beat.map_or(0, |beat| u64::try_from(beat.as_micros()).unwrap_or(u64::MAX)),
            ..Welcome::zeroed()
        };
        welcome.backing_name.get_mut(..name.len())?.copy_from_slice(name);
        let restarts = self.members[id.0].restarts;
        self.members[id.0].phase = if restarts == 0 { MemberPhase::Welcomed } else { MemberPhase::Returning };
        self.members[id.0].has_joined = true;
        self.post(id, &welcome, Rc::clone(&self.descriptors));
        self.invite.into_iter().for_each(|invite| self.pass_on(id, &invite));
        self.send_not_restarted(id);
        self.events.push_back(RootEvent::Joined(id, pid));
        Some(())
    }

    fn refuse(&mut self, id: MemberId, misfit: Misfit) {
        self.post(id, &Refused::new(self.offer.job_id, misfit), Rc::new([]));
        let cause = match misfit {
            (refusal @ (MemberRefusal::Version | MemberRefusal::Layout), launcher, device) => {
                ExitCause::Version { what: refusal.what(), launcher, device }
            }
            (MemberRefusal::Job | MemberRefusal::User | MemberRefusal::Member, ..) => ExitCause::Protocol,
        };
        self.cut_off(id, cause);
    }

    fn check_hello(&self, hello: &Hello, code: u32, user: u32) -> Result<(), Misfit> {
        check_fit(MemberRefusal::User, system::user().into(), user.into())?;
        check_fit(MemberRefusal::Layout, LAYOUT_VERSION.into(), hello.layout_version.into())?;
        check_fit(MemberRefusal::Job, self.offer.job_id, hello.header.job_id)?;
        check_fit(MemberRefusal::Member, code.into(), hello.member.into())
    }
}

impl BootstrapRoot {
    /// Puts a restarted member into the place of its lost predecessor, with the root's end of its
    /// socket.
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

    /// Returns whether a member was restarted and is not back among the others.
    pub(crate) fn is_returning(&self, id: MemberId) -> bool {
        let member = &self.members[id.0];
        member.restarts > 0 && matches!(member.phase, MemberPhase::Silent | MemberPhase::Returning)
    }

    /// Counts a restarted member among the others again. Sends it the losses of the meantime, which
    /// may concern the epoch that it has entered.
    pub(super) fn take_back(&mut self, id: MemberId) {
        self.members[id.0].phase = MemberPhase::Running;
        self.events.push_back(RootEvent::Returned(id));
        for lost in self.losses.clone() {
            self.post(id, &lost, Rc::new([]));
        }
    }

    /// Tells the members that run, or are on their way back, that a lost member is not restarted.
    /// It does so once per member.
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

    /// Tells a restarted member which others are not restarted, so that it does not come back in
    /// vain.
    pub(super) fn send_not_restarted(&mut self, id: MemberId) {
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
        if member.phase == MemberPhase::Returning && RankSet::from_words(invite.ranks).contains(rank) {
            self.post(id, invite, Rc::new([]));
        }
    }
}
