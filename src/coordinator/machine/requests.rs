//! What clients ask: checked against what there is, answered at once or when it has come about.

use std::collections::BTreeSet;

use super::comm::{Comm, CommStage, MAX_WAITING, OpenGroup, WaitCondition};
use super::{CoordinatorMachine, RequestId};
use crate::coordinator::call::{AddressRange, DeviceCall, GroupWork, MAX_CALLS, check_together};
use crate::coordinator::error::RequestError;
use crate::coordinator::id::{CommId, DeviceId, GroupId};
use crate::coordinator::metrics::{CommMetrics, Metrics};
use crate::coordinator::order::CommFormation;
use crate::coordinator::request::{CommState, DeviceStatus, GroupOutcome, Location, Reply, Request};
use crate::rank::MAX_RANKS;

/// How many communicators an answer lists: as many as fit into a message, whatever they have to say.
const PAGE: usize = 16;

/// An answer, or `None` when it comes later.
pub(super) type MaybeReply = Result<Option<Reply>, RequestError>;

impl CoordinatorMachine {
    pub(super) fn request(&mut self, asker: RequestId, request: Request) {
        let answer = match request {
            Request::Init { devices, keep_going } => self.init(asker, devices, keep_going),
            Request::Status { comm, settled } => self.status(asker, comm, settled),
            Request::List { from } => Ok(Some(self.list(from))),
            Request::Devices => Ok(Some(self.devices())),
            Request::Metrics => Ok(Some(Reply::Metrics(self.metrics()))),
            Request::GroupStart(comm) => self.start_group(comm).map(Some),
            Request::Call { comm, group, call } => self.call((comm, group), call).map(Some),
            Request::GroupEnd { comm, group } => self.end_group(comm, group).map(Some),
            Request::GroupCancel { comm, group } => self.cancel_group(comm, group).map(Some),
            Request::GoOn(comm) => self.ask_to_go_on(asker, comm),
            Request::Grow { comm, devices } => self.ask_to_grow(asker, comm, devices),
            Request::Checkpoint { comm, directory } => {
                self.ask_for_checkpoint(asker, comm, GroupWork::Checkpoint(directory))
            }
            Request::Restore { comm, directory } => {
                self.ask_for_checkpoint(asker, comm, GroupWork::Restore(directory))
            }
            Request::Locate(device) => self.locate(device).map(Some),
            Request::Finalize(comm) => self.finalize(asker, comm),
            Request::Destroy(comm) => self.destroy(asker, comm),
        };
        match answer {
            Ok(None) => {}
            Ok(Some(reply)) => self.reply(asker, Ok(reply)),
            Err(refusal) => self.reply(asker, Err(refusal)),
        }
    }

    fn init(&mut self, asker: RequestId, asked: u32, keep_going: bool) -> MaybeReply {
        if asked == 0 || asked > MAX_RANKS {
            return Err(RequestError::BadSize { asked });
        }
        let free = self.pool.free();
        let Some(members) = free.get(..asked as usize).map(<[DeviceId]>::to_vec) else {
            return Err(RequestError::NotEnoughDevices { asked, free: free.len(), devices: self.pool.len() });
        };
        let (comm, incarnation) = (self.unused_number(), self.incarnation);
        self.newest = self.newest.max(comm);
        let formation = CommFormation { comm, incarnation, epoch: 1, members, keep_going };
        let mut comm = Comm::new(&formation, CommStage::Hosting);
        comm.waiting.push((asker, WaitCondition::Ready));
        formation.members.iter().for_each(|member| self.pool.give(*member, formation.comm));
        self.comms.insert(formation.comm, comm);
        Ok(None)
    }

    /// The number after the highest one; or, since a device that makes numbers up may have named the highest that there is, the lowest
    /// one of which nothing is known.
    fn unused_number(&self) -> CommId {
        let next = self.newest.next();
        if next.is_sound() {
            return next;
        }
        let reported = self.pool.iter().filter_map(|(_, device)| device.report.membership.as_ref());
        let reported: BTreeSet<_> = reported.map(|membership| membership.formation.comm).collect();
        let is_used =
            |id: &CommId| self.comms.contains_key(id) || self.ended.contains_key(id) || reported.contains(id);
        (1..).map(CommId::new).find(|id| !is_used(id)).expect("more numbers than are known of")
    }

    /// A page of those from `from` on.
    fn list(&self, from: CommId) -> Reply {
        let mut rest = self.comms.range(from..).map(|(_, comm)| comm.status().in_short());
        let comms = rest.by_ref().take(PAGE).collect();
        Reply::List { comms, more: rest.next().is_some() }
    }

    fn status(&mut self, asker: RequestId, comm: CommId, settled: bool) -> MaybeReply {
        if let Some(ended) = self.ended.get(&comm) {
            return Ok(Some(Reply::Status(ended.clone())));
        }
        let found = self.comm(comm)?;
        if settled {
            found.wait(asker, WaitCondition::Settled)
        } else {
            Ok(Some(Reply::Status(found.status())))
        }
    }

    fn devices(&self) -> Reply {
        let status = |(device, found): (DeviceId, &super::device_table::DeviceRecord)| DeviceStatus {
            device,
            range: found.range,
            comm: found.owner.or(found.report.membership.as_ref().map(|it| it.formation.comm)),
        };
        Reply::Devices(self.pool.iter().map(status).collect())
    }

    /// What it knows itself: of connections it has only the devices'.
    fn metrics(&self) -> Metrics {
        let figures = |comm: &Comm| CommMetrics {
            comm: comm.id,
            state: comm.state(),
            epoch: comm.epoch,
            devices: comm.members.len() as u64,
        };
        let (devices, free) = (self.pool.len() as u64, self.pool.free().len() as u64);
        Metrics {
            uptime_ms: self.told_ms.unwrap_or_default(),
            connections: [devices, 0, 0],
            free,
            allocated: devices - free,
            comms: self.comms.values().map(figures).collect(),
            counts: self.counts,
        }
    }

    fn start_group(&mut self, comm: CommId) -> Result<Reply, RequestError> {
        let id = GroupId { incarnation: self.incarnation, number: self.opened + 1 };
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready, CommState::InProgress])?;
        if found.open.is_some() {
            return Err(RequestError::GroupOpen { comm, open: true });
        }
        found.open = Some(OpenGroup { id, calls: Vec::new() });
        self.opened += 1;
        Ok(Reply::GroupStarted(id))
    }

    fn call(
        &mut self,
        (comm, group): (CommId, Option<GroupId>),
        call: DeviceCall,
    ) -> Result<Reply, RequestError> {
        let devices = self.ranges(comm)?;
        let found = self.comm(comm)?;
        found.check_group(group)?;
        found.check_usable(if found.open.is_some() {
            &[CommState::Ready, CommState::InProgress]
        } else {
            &[CommState::Ready]
        })?;
        call.check(&devices)?;
        match &mut found.open {
            None => {
                let reply = found.dispatch(GroupWork::Calls(vec![call]));
                self.counts.started += 1;
                Ok(reply)
            }
            Some(open) if open.calls.len() == MAX_CALLS => Err(RequestError::GroupFull),
            Some(open) => {
                check_together(open.calls.iter().chain([&call]), &devices)?;
                open.calls.push(call);
                Ok(Reply::Queued { group: open.id, calls: open.calls.len() })
            }
        }
    }

    fn end_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<Reply, RequestError> {
        let found = self.comm(comm)?;
        found.check_group(group)?;
        found.check_usable(&[CommState::Ready])?;
        let open = found.open.take().ok_or(RequestError::GroupOpen { comm, open: false })?;
        let reply = found.dispatch(GroupWork::Calls(open.calls));
        self.counts.started += 1;
        Ok(reply)
    }

    fn cancel_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<Reply, RequestError> {
        let found = self.comm(comm)?;
        found.check_group(group)?;
        found.open.take().ok_or(RequestError::GroupOpen { comm, open: false })?;
        Ok(Reply::GroupCancelled)
    }

    fn ask_to_go_on(&mut self, asker: RequestId, comm: CommId) -> MaybeReply {
        let found = self.comm(comm)?;
        match found.state() {
            CommState::Failed => found.wait(asker, WaitCondition::Ready),
            state => Err(RequestError::WrongState { comm, state, needs: CommState::Failed.to_string() }),
        }
    }

    pub(super) fn ask_for_checkpoint(
        &mut self,
        asker: RequestId,
        comm: CommId,
        work: GroupWork,
    ) -> MaybeReply {
        work.check()?;
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready])?;
        let answer = found.wait(asker, WaitCondition::Done)?;
        found.dispatch(work);
        self.counts.started += 1;
        Ok(answer)
    }

    fn locate(&mut self, device: DeviceId) -> Result<Reply, RequestError> {
        let found = self.pool.get(device).ok_or(RequestError::NoSuchDevice { device })?;
        let (range, socket) = (found.range, found.socket.clone());
        let owner = found.owner.ok_or(RequestError::NotAllocated { device })?;
        let states = [CommState::Ready, CommState::InProgress, CommState::Growing, CommState::Failed];
        self.comm(owner)?.check_usable(&states)?;
        Ok(Reply::Located(Location { comm: owner, range, socket }))
    }

    fn finalize(&mut self, asker: RequestId, comm: CommId) -> MaybeReply {
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready, CommState::InProgress, CommState::Finalizing])?;
        if found.open.is_some() {
            return Err(RequestError::GroupOpen { comm, open: true });
        }
        let answer = found.wait(asker, WaitCondition::Finalized)?;
        // One that is being destroyed is not saved by that.
        found.ending = found.fate.is_none();
        if found.stage == CommStage::Ready {
            found.stage = CommStage::Leaving { gracefully: true };
        }
        Ok(answer)
    }

    fn destroy(&mut self, asker: RequestId, comm: CommId) -> MaybeReply {
        let found = self.comm(comm)?;
        // However many wait already, there is room for who ends that.
        found.waiting.push((asker, WaitCondition::Ended));
        let fate = "it was destroyed".to_owned();
        let was_running = matches!(found.stage, CommStage::Running { .. });
        if was_running {
            let (group, failure) = (found.groups, Some("the communicator was destroyed".to_owned()));
            found.last = Some(GroupOutcome { group, failure, culprit: None, checkpoint: None, report: None });
        }
        found.end(CommStage::Leaving { gracefully: false }, fate.clone());
        let disappointed =
            found.take_waiting(&[WaitCondition::Ready, WaitCondition::Grown, WaitCondition::Done]);
        self.counts.failed += u64::from(was_running);
        for asker in disappointed {
            self.reply(asker, Err(RequestError::Ended { comm, why: Some(fate.clone()) }));
        }
        Ok(None)
    }

    pub(super) fn comm(&mut self, comm: CommId) -> Result<&mut Comm, RequestError> {
        let has_ended = comm <= self.newest && comm.get() > 0;
        let missing = if has_ended {
            RequestError::Ended { comm, why: self.ended.get(&comm).and_then(|ended| ended.why.clone()) }
        } else {
            RequestError::NoSuchComm { comm }
        };
        self.comms.get_mut(&comm).ok_or(missing)
    }

    /// The devices of a communicator and their addresses, in the order of their ranks, as far as they live.
    fn ranges(&mut self, comm: CommId) -> Result<Vec<(DeviceId, AddressRange)>, RequestError> {
        let members = self.comm(comm)?.members.clone();
        let range = |member: DeviceId| self.pool.get(member).map(|device| (member, device.range));
        Ok(members.into_iter().filter_map(range).collect())
    }
}

impl Comm {
    /// # Errors
    /// [`RequestError::Failed`], [`RequestError::WrongState`], unless it is in one of these states.
    pub(super) fn check_usable(&self, states: &[CommState]) -> Result<(), RequestError> {
        let (comm, state) = (self.id, self.state());
        if states.contains(&state) {
            return Ok(());
        }
        match self.status().why {
            Some(why) => Err(RequestError::Failed { comm, why }),
            None => {
                let needs = states.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
                Err(RequestError::WrongState { comm, state, needs })
            }
        }
    }

    /// # Errors
    /// [`RequestError::NoSuchGroup`] where a group is named that is not open.
    fn check_group(&self, group: Option<GroupId>) -> Result<(), RequestError> {
        let open = self.open.as_ref().map(|open| open.id);
        match group.filter(|group| open != Some(*group)) {
            Some(group) => Err(RequestError::NoSuchGroup { comm: self.id, group }),
            None => Ok(()),
        }
    }

    pub(super) fn dispatch(&mut self, work: GroupWork) -> Reply {
        self.groups += 1;
        self.stage = CommStage::Running { work };
        Reply::InProgress(self.groups)
    }

    pub(super) fn wait(&mut self, asker: RequestId, awaited: WaitCondition) -> MaybeReply {
        if self.waiting.len() >= MAX_WAITING {
            let what = format!("places to wait for communicator {}", self.id);
            return Err(RequestError::Exhausted { what, limit: MAX_WAITING });
        }
        self.waiting.push((asker, awaited));
        Ok(None)
    }
}
