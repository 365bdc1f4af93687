//! The root's side of the bootstrap: a state machine that a poll loop drives.
//!
//! | phase of a member | what it may say | then |
//! |---|---|---|
//! | Silent | Hello | Welcomed |
//! | Welcomed | Contribution, Ready | Contributed, Ready |
//! | Contributed | nothing until all have contributed | Welcomed |
//! | Ready | nothing until all are ready | Running |
//! | Running | Report, Blame, Invite, Bye | Running, Left |
//! | Silent, restarted | Hello | Returning |
//! | Returning | Ready | Running |
//! | Silent | nothing: it hangs up | Absent |
//! | Left, Lost, Absent | hang-up | |
//!
//! A Report is accepted in every phase after the Hello, and in a meeting in every phase. A member
//! that says anything else, or hangs up before it has left, is lost. There are two exceptions:
//! - A restarted member comes back by a meeting with the others. The root knows only that they
//!   invite it, and that it has come back.
//! - A member that never said Hello may hang up. The supervisor decides what that means.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use bytemuck::Zeroable;
use nix::errno::Errno;

use super::message::{
    self, Blame, CONTRIBUTION_LEN, Contribution, ControlMessage, GATHERED_RANKS, Gathered, Go, Invite, Lost,
    NotRestarted, Ready, Report,
};
use super::options::{Options, Placement, ProxyMode};
use super::socket::{Incoming, duplicate, resource_error, try_receive};
#[cfg(doc)]
use crate::error::Error;
use crate::error::{DeviceName, ExitCause, Result};
use crate::rank::{Rank, check_n_ranks};
use sending::Outgoing;

/// How many messages of one member are read before the others get their turn.
const MAX_MESSAGES_AT_ONCE: usize = 8;

/// The job that the root offers to every member.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// The number of ranks.
    pub(crate) n_ranks: u32,
    /// The epoch of the communicator.
    pub(crate) epoch: u64,
    /// The number of this job, unique on the machine.
    pub(crate) job_id: u64,
    /// The options of all members.
    pub(crate) options: Options,
    /// Whether members that die are restarted.
    pub(crate) restarting: bool,
    /// How often members have to beat.
    pub(crate) beat: Option<Duration>,
}

/// An event of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootEvent {
    /// A member said Hello; this is the process at the other end.
    Joined(MemberId, i32),
    /// All members are ready and have got Go.
    Up,
    /// A member left.
    Left(MemberId),
    /// A member was lost, by hanging up or breaking the protocol.
    Lost(MemberId, ExitCause),
    /// The first member is about to fail because the second was lost.
    Reported(MemberId, MemberId),
    /// Should the member fail, that is because of another one.
    Blamed(MemberId, BlamedMember),
    /// A member that was started again is back among the others.
    Returned(MemberId),
}

/// The index of a member: its rank, or one past the last rank for the proxy service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemberId(pub(crate) usize);

/// A member that another one blames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlamedMember {
    pub(crate) id: MemberId,
    /// Whether that member held others up; otherwise it was lost, or had left.
    pub(crate) is_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemberPhase {
    Silent,
    Welcomed,
    Contributed,
    Ready,
    Running,
    Returning,
    Left,
    Lost,
    Absent,
}

/// The bytes that a member has contributed, and its descriptor.
type MemberContribution = ([u8; CONTRIBUTION_LEN], Option<OwnedFd>);

#[derive(Debug)]
struct MemberRecord {
    device: DeviceName,
    placement: Placement,
    /// `None` once it hung up or was cut off.
    socket: Option<OwnedFd>,
    phase: MemberPhase,
    contribution: MemberContribution,
    outbox: VecDeque<Outgoing>,
    has_joined: bool,
    /// How often it was restarted.
    restarts: u32,
    /// The members that it has reported lost.
    reported: Vec<MemberId>,
}

/// The root of one job.
#[derive(Debug)]
pub(crate) struct BootstrapRoot {
    offer: Offer,
    /// The descriptors for every member: the control segment, and where they exist trace rings and
    /// name hold.
    descriptors: Rc<[OwnedFd]>,
    traced: bool,
    members: Vec<MemberRecord>,
    round: u32,
    /// The announced losses of members that were not restarted.
    losses: Vec<Lost>,
    /// The announced members that are not restarted any more.
    not_restarted: Vec<NotRestarted>,
    /// The latest invitation to restarted members.
    invite: Option<Invite>,
    events: VecDeque<RootEvent>,
    /// Whether one member's report is enough for another one to be lost.
    trusting: bool,
}

impl BootstrapRoot {
    /// Opens a job whose members get duplicates of `control`, of the trace `rings` and of `hold`.
    /// A janitor waits until nobody has the last one any more.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a bad number of ranks or a name too long to send;
    /// [`Error::ResourceLimit`].
    pub(crate) fn new(
        offer: Offer,
        control: BorrowedFd<'_>,
        rings: Option<BorrowedFd<'_>>,
        hold: Option<BorrowedFd<'_>>,
    ) -> Result<Self> {
        check_n_ranks(offer.n_ranks)?;
        offer.options.backing.check()?;
        let mut descriptors = vec![duplicate(&control, "duplicating the control segment")?];
        let others = [(rings, "duplicating the rings of a trace"), (hold, "duplicating the hold on names")];
        for (descriptor, action) in others {
            descriptors.extend(descriptor.map(|it| duplicate(&it, action)).transpose()?);
        }
        Ok(Self {
            offer,
            descriptors: descriptors.into(),
            traced: rings.is_some(),
            members: Vec::new(),
            round: 0,
            losses: Vec::new(),
            not_restarted: Vec::new(),
            invite: None,
            events: VecDeque::new(),
            trusting: false,
        })
    }

    /// Treats a member as lost as soon as another one reports it. The reporter hangs up next, and
    /// the others have to learn the cause.
    pub(crate) fn trusting(mut self) -> Self {
        self.trusting = true;
        self
    }

    /// Adds the next member (ranks in order, then the proxy service) with the root's end of its
    /// socket.
    pub(crate) fn add_member(&mut self, socket: OwnedFd, placement: Placement) -> MemberId {
        let id = MemberId(self.members.len());
        let device = u32::try_from(id.0).ok().and_then(|rank| Rank::new(rank, self.offer.n_ranks).ok());
        self.members.push(MemberRecord {
            device: device.map_or(DeviceName::Proxy, DeviceName::Rank),
            placement,
            socket: Some(socket),
            phase: MemberPhase::Silent,
            contribution: ([0; CONTRIBUTION_LEN], None),
            outbox: VecDeque::new(),
            has_joined: false,
            restarts: 0,
            reported: Vec::new(),
        });
        id
    }

    /// Returns whether a member has met the others, and has neither left nor been lost.
    pub(crate) fn is_running(&self, id: MemberId) -> bool {
        self.members[id.0].phase == MemberPhase::Running
    }

    /// Returns the sockets to poll: for reading always, for writing too where the flag is set.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (MemberId, BorrowedFd<'_>, bool)> {
        self.members.iter().enumerate().filter_map(|(index, member)| {
            Some((MemberId(index), member.socket.as_ref()?.as_fd(), !member.outbox.is_empty()))
        })
    }

    /// Returns whether something waits to be sent. Then [`BootstrapRoot::serve`] has to be called
    /// again soon, whatever poll says: too many descriptors in flight do not show in poll.
    pub(crate) fn has_backlog(&self) -> bool {
        self.members.iter().any(|member| !member.outbox.is_empty())
    }

    /// Returns the device with that id.
    pub(crate) fn device(&self, id: MemberId) -> DeviceName {
        self.members[id.0].device
    }

    /// Returns whether a member has said Hello, whatever became of it.
    pub(crate) fn has_joined(&self, id: MemberId) -> bool {
        self.members[id.0].has_joined
    }

    /// Returns whether a member hung up without ever saying anything.
    pub(crate) fn is_absent(&self, id: MemberId) -> bool {
        self.members[id.0].phase == MemberPhase::Absent
    }

    /// Returns whether a member has said Bye.
    pub(crate) fn has_left(&self, id: MemberId) -> bool {
        self.members[id.0].phase == MemberPhase::Left
    }

    /// Takes the oldest event.
    pub(crate) fn next_event(&mut self) -> Option<RootEvent> {
        self.events.pop_front()
    }

    /// Reads all that a member has sent and sends what waits for it.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] when this process may open no more files, [`Error::Os`].
    pub(crate) fn serve(&mut self, id: MemberId) -> Result<()> {
        self.flush(id);
        for _ in 0..MAX_MESSAGES_AT_ONCE {
            let Some(socket) = &self.members[id.0].socket else { break };
            match try_receive(socket.as_fd())? {
                Incoming::Nothing => break,
                Incoming::HungUp => self.cut_off(id, ExitCause::HungUp),
                Incoming::NoDescriptors => {
                    return Err(resource_error("receiving a segment", Errno::EMFILE.into()));
                }
                Incoming::Message(bytes, received) => {
                    if self.handle(id, &bytes, received.descriptors, received.sender).is_none() {
                        self.cut_off(id, ExitCause::Protocol);
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells all others once that a member is lost. That may be one that had left, and has failed
    /// since. One that `hangs` may live, and the others count it among the dead.
    pub(crate) fn declare_lost(&mut self, id: MemberId, hangs: bool) {
        let device = self.members[id.0].device;
        self.members[id.0].phase = MemberPhase::Lost;
        let member = message::member_code(device);
        if !self.losses.iter().any(|lost| lost.member == member) {
            let restarts = self.members[id.0].restarts;
            let header = Lost::header(self.offer.job_id);
            let lost = Lost { header, member, restarts, hangs: hangs.into(), reserved: 0 };
            self.losses.push(lost);
            // A restarted member that is not back has lost nobody. The survivors tell it who is
            // there.
            for other in (0..self.members.len()).map(MemberId) {
                if !self.is_returning(other) {
                    self.post(other, &lost, Rc::new([]));
                }
            }
        }
    }

    /// Declares those members lost that are behind others; all, when none is ahead.
    pub(crate) fn declare_laggards_lost(&mut self) {
        let furthest = self.members.iter().map(|member| member.phase).max();
        let leads = |member: &MemberRecord| Some(member.phase) == furthest;
        let none_lags = self.members.iter().all(leads);
        let lags = |id: &MemberId| none_lags || !leads(&self.members[id.0]);
        for id in (0..self.members.len()).map(MemberId).filter(lags).collect::<Vec<_>>() {
            self.declare_lost(id, false);
        }
    }

    /// Closes a member's socket; unless it had left, that is a loss.
    fn cut_off(&mut self, id: MemberId, cause: ExitCause) {
        let member = &mut self.members[id.0];
        member.socket = None;
        member.outbox.clear();
        if member.phase == MemberPhase::Silent && cause == ExitCause::HungUp {
            member.phase = MemberPhase::Absent;
        } else if !matches!(member.phase, MemberPhase::Left | MemberPhase::Lost | MemberPhase::Absent) {
            self.declare_lost(id, false);
            self.events.push_back(RootEvent::Lost(id, cause));
        }
    }

    /// Acts on one message; `None` when the protocol does not allow it.
    fn handle(
        &mut self,
        id: MemberId,
        bytes: &[u8],
        mut descriptors: Vec<OwnedFd>,
        sender: Option<(i32, u32)>,
    ) -> Option<()> {
        let header = message::header_of(bytes)?;
        let phase = self.members[id.0].phase;
        let report =
            message::read::<Report>(bytes).filter(|report| report.header.job_id == self.offer.job_id);
        match report {
            Some(report) if phase != MemberPhase::Silent || self.trusting => {
                return self.record_report(id, &report);
            }
            _ if phase == MemberPhase::Silent => {
                return descriptors.is_empty().then(|| self.welcome(id, bytes, sender))?;
            }
            _ => {}
        }
        if header.job_id != self.offer.job_id || header.version != message::VERSION {
            return None;
        }
        match (phase, header.kind) {
            (MemberPhase::Welcomed, Contribution::KIND) => {
                let contribution = message::read::<Contribution>(bytes)?;
                let descriptor = descriptors.pop();
                if contribution.round != self.round || !descriptors.is_empty() {
                    return None;
                }
                self.members[id.0].contribution = (contribution.bytes, descriptor);
                self.advance(id, MemberPhase::Contributed, Self::gathered);
            }
            (MemberPhase::Welcomed, Ready::KIND) => self.advance(id, MemberPhase::Ready, Self::go),
            (MemberPhase::Returning, Ready::KIND) => self.take_back(id),
            (MemberPhase::Running, Blame::KIND) => self.record_blame(id, &message::read::<Blame>(bytes)?)?,
            (MemberPhase::Running, Invite::KIND) => self.invite(message::read::<Invite>(bytes)?),
            (MemberPhase::Running, message::Bye::KIND) => {
                self.members[id.0].phase = MemberPhase::Left;
                self.events.push_back(RootEvent::Left(id));
            }
            // A member that was declared lost may be saying its last words.
            (MemberPhase::Lost, _) => {}
            _ => return None,
        }
        Some(())
    }

    /// Records which member is reported lost.
    fn record_report(&mut self, id: MemberId, report: &Report) -> Option<()> {
        let lost = message::member_from_code(report.member, self.offer.n_ranks)?;
        // A proxy that is a thread has no id.
        let Some(lost) = self.members.iter().position(|member| member.device == lost).map(MemberId) else {
            return Some(());
        };
        if self.members[lost.0].restarts != report.restarts {
            if self.is_returning(lost) {
                self.events.push_back(RootEvent::Blamed(id, BlamedMember { id: lost, is_late: false }));
            }
            return Some(());
        }
        let reported = &mut self.members[id.0].reported;
        if !reported.contains(&lost) {
            reported.push(lost);
            if self.trusting {
                self.declare_lost(lost, false);
            }
            self.events.push_back(RootEvent::Reported(id, lost));
        }
        Some(())
    }

    /// Records which member is to blame if this one fails. An earlier process of a restarted member
    /// does not count.
    fn record_blame(&mut self, id: MemberId, blame: &Blame) -> Option<()> {
        let blamed = message::member_from_code(blame.member, self.offer.n_ranks)?;
        let is_it = |member: &MemberRecord| member.device == blamed && member.restarts == blame.restarts;
        if let Some(blamed) = self.members.iter().position(is_it).map(MemberId) {
            let blamed = BlamedMember { id: blamed, is_late: blame.is_late != 0 };
            self.events.push_back(RootEvent::Blamed(id, blamed));
        }
        Some(())
    }

    /// Moves a member to `phase`. The last one to get there makes all of them go on by `complete`.
    fn advance(&mut self, id: MemberId, phase: MemberPhase, complete: impl FnOnce(&mut Self)) {
        self.members[id.0].phase = phase;
        let services = usize::from(self.offer.options.proxy == ProxyMode::Process);
        let expected = self.offer.n_ranks as usize + services;
        if self.members.len() == expected && self.members.iter().all(|member| member.phase == phase) {
            complete(self);
        }
    }

    /// Sends what all ranks contributed to all members.
    fn gathered(&mut self) {
        let mut contributions = Vec::new();
        for member in &mut self.members {
            member.phase = MemberPhase::Welcomed;
            let contribution = std::mem::replace(&mut member.contribution, ([0; CONTRIBUTION_LEN], None));
            if matches!(member.device, DeviceName::Rank(_)) {
                contributions.push(contribution);
            }
        }
        let (n_ranks, mut contributions) = (self.offer.n_ranks, contributions.into_iter());
        for first in (0..n_ranks).step_by(GATHERED_RANKS) {
            let part = contributions.by_ref().take(GATHERED_RANKS);
            self.send_gathered(first, part);
        }
        self.round += 1;
    }

    /// Sends what the ranks from `first` on contributed, at most [`GATHERED_RANKS`] of them.
    fn send_gathered(&mut self, first: u32, part: impl Iterator<Item = MemberContribution>) {
        let mut gathered = Gathered {
            header: Gathered::header(self.offer.job_id),
            round: self.round,
            n_ranks: self.offer.n_ranks,
            first,
            ..Gathered::zeroed()
        };
        let mut descriptors = Vec::new();
        for (place, (bytes, descriptor)) in part.enumerate() {
            gathered.bytes[place] = bytes;
            gathered.with_descriptor |= u64::from(descriptor.is_some()) << place;
            descriptors.extend(descriptor);
        }
        self.broadcast(&gathered, descriptors.into());
    }

    /// Sends Go to all members, since all are ready.
    fn go(&mut self) {
        for member in &mut self.members {
            member.phase = MemberPhase::Running;
        }
        self.send_to_all(&Go { header: Go::header(self.offer.job_id) });
        self.events.push_back(RootEvent::Up);
    }
}

mod sending;
