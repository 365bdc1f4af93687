//! Requests of clients: checked, and answered at once or when they are done.

use super::comm::{Comm, CommStage, MAX_WAITING, OpenGroup, WaitCondition};
use super::repeat::{Repeat, call_among, can_repeat};
use super::{CoordinatorMachine, RequestId};
use crate::coordinator::call::{AddressRange, DeviceCall, GroupWork, MAX_CALLS, check_together};
use crate::coordinator::error::RequestError;
use crate::coordinator::id::{CommId, DeviceId, GroupId};
use crate::coordinator::metrics::{CommMetrics, Metrics};
use crate::coordinator::order::CommFormation;
use crate::coordinator::request::{
    CallProgress, ClientRequest, CommState, DeviceStatus, GroupOutcome, Location, Reply, StartedGroup,
};
use crate::rank::MAX_RANKS;

/// How many communicators a reply lists: as many as fit into a message, however long their texts
/// are.
const PAGE: usize = 16;

/// A reply, or `None` when it comes later.
pub(super) type MaybeReply = Result<Option<Reply>, RequestError>;

impl CoordinatorMachine {
    pub(super) fn request(&mut self, request_id: RequestId, request: ClientRequest) {
        let answer = match request {
            ClientRequest::Init { devices, keep_going } => self.init(request_id, devices, keep_going),
            ClientRequest::Status { comm, settled } => self.status(request_id, comm, settled),
            ClientRequest::List { from } => Ok(Some(self.list(from))),
            ClientRequest::Changes { after } => Ok(Some(Reply::Changes(self.changes.since(after)))),
            ClientRequest::Devices => Ok(Some(self.devices())),
            ClientRequest::Metrics => Ok(Some(Reply::Metrics(self.metrics()))),
            ClientRequest::GroupStart { comm, repeats } => self.start_group(comm, repeats).map(Some),
            ClientRequest::Call { comm, group, call } => self.call(comm, group, call, false).map(Some),
            ClientRequest::Execute { comm, group, call, devices } => {
                self.execute(request_id, comm, group, call, devices)
            }
            ClientRequest::GroupEnd { comm, group, settled } => {
                self.end_group(request_id, comm, group, settled)
            }
            ClientRequest::GroupCancel { comm, group } => self.cancel_group(comm, group).map(Some),
            ClientRequest::GoOn(comm) => self.ask_to_go_on(request_id, comm),
            ClientRequest::Grow { comm, devices } => self.ask_to_grow(request_id, comm, devices),
            ClientRequest::Checkpoint { comm, directory } => {
                self.ask_for_checkpoint(request_id, comm, GroupWork::Checkpoint(directory))
            }
            ClientRequest::Restore { comm, directory } => {
                self.ask_for_checkpoint(request_id, comm, GroupWork::Restore(directory))
            }
            ClientRequest::Locate { device, settled } => self.locate(request_id, device, settled),
            ClientRequest::Finalize(comm) => self.finalize(request_id, comm),
            ClientRequest::Destroy(comm) => self.destroy(request_id, comm),
            ClientRequest::DestroyIdle { comm, abandoned } => {
                self.check_idle(comm, abandoned).and_then(|()| self.destroy(request_id, comm))
            }
        };
        if let Some(reply) = answer.transpose() {
            self.reply(request_id, reply);
        }
    }

    fn init(&mut self, request_id: RequestId, asked: u32, keep_going: bool) -> MaybeReply {
        if asked == 0 || asked > MAX_RANKS {
            return Err(RequestError::BadSize { asked });
        }
        let members = self.table.some_free(asked)?;
        let (comm, incarnation) = (self.unused_number(), self.incarnation);
        self.newest = self.newest.max(comm);
        let formation = CommFormation { comm, incarnation, epoch: 1, members, keep_going };
        let mut comm = Comm::new(&formation, CommStage::Hosting);
        comm.waiting.push((request_id, WaitCondition::Ready));
        formation.members.iter().for_each(|member| self.table.give(*member, formation.comm));
        self.comms.insert(formation.comm, comm);
        Ok(None)
    }

    /// Returns the number after the highest known one. A device that makes numbers up may have
    /// reported the highest possible one; then returns the lowest unknown number.
    fn unused_number(&self) -> CommId {
        let next = self.newest.next();
        if next.is_sound() {
            return next;
        }
        let is_reported = |id| self.table.iter().any(|(_, device)| device.report.comm() == Some(id));
        let is_used =
            |id: &CommId| self.comms.contains_key(id) || self.ended.contains_key(id) || is_reported(*id);
        (1..).map(CommId::new).find(|id| !is_used(id)).expect("more numbers than are known of")
    }

    /// Returns a page of the communicators from `from` on.
    fn list(&self, from: CommId) -> Reply {
        let mut rest = self.comms.range(from..).map(|(_, comm)| comm.status().in_short());
        let comms = rest.by_ref().take(PAGE).collect();
        Reply::List { comms, more: rest.next().is_some() }
    }

    fn status(&mut self, request_id: RequestId, comm: CommId, settled: bool) -> MaybeReply {
        if let Some(ended) = self.ended.get(&comm) {
            return Ok(Some(Reply::Status(ended.clone())));
        }
        let found = self.comm(comm)?;
        if settled {
            found.wait(request_id, WaitCondition::Settled)
        } else {
            Ok(Some(Reply::Status(found.status())))
        }
    }

    fn devices(&self) -> Reply {
        let status = |(device, found): (DeviceId, &super::device_table::DeviceRecord)| DeviceStatus {
            device,
            range: found.report.range,
            comm: found.owner.or(found.report.comm()),
        };
        Reply::Devices(self.table.iter().map(status).collect())
    }

    /// Returns the metrics that the machine knows: of connections only those of devices.
    fn metrics(&self) -> Metrics {
        let figures = |comm: &Comm| CommMetrics {
            comm: comm.id,
            state: comm.state(),
            epoch: comm.epoch,
            devices: comm.members.len() as u64,
        };
        let (devices, free) = (self.table.len() as u64, self.table.free().len() as u64);
        Metrics {
            uptime_ms: self.clock_ms.unwrap_or_default(),
            connections: [devices, 0, 0],
            free,
            allocated: devices - free,
            comms: self.comms.values().map(figures).collect(),
            counts: self.counts,
        }
    }

    fn start_group(&mut self, comm: CommId, repeats: bool) -> Result<Reply, RequestError> {
        let id = GroupId { incarnation: self.incarnation, number: self.opened + 1 };
        let found = self.comm(comm)?;
        found.check_takes_calls(true, repeats)?;
        if found.open.is_some() {
            return Err(RequestError::GroupOpen { comm, open: true });
        }
        found.open = Some(OpenGroup { id, calls: Vec::new(), repeats });
        let started = StartedGroup { group: id, devices: found.members.clone(), after: found.groups };
        self.opened += 1;
        Ok(Reply::GroupStarted(started))
    }

    /// Puts a call into a group, or executes it at once, and again after a loss if it `repeats`.
    fn call(
        &mut self,
        comm: CommId,
        group: Option<GroupId>,
        call: DeviceCall,
        repeats: bool,
    ) -> Result<Reply, RequestError> {
        let found = self.comm(comm)?;
        found.check_group(group)?;
        let repeats = found.open.as_ref().map_or(repeats, |open| open.repeats) && can_repeat(&call);
        found.check_takes_calls(found.open.is_some(), repeats)?;
        self.check_calls(comm, &call)?;
        match &mut self.comm(comm)?.open {
            None => self.begin(comm, vec![call], repeats),
            Some(open) => {
                open.calls.push(call);
                open.repeats = repeats;
                Ok(Reply::Called(CallProgress::Queued { group: open.id, calls: open.calls.len() }))
            }
        }
    }

    /// Checks a call for all members, and together with those of the open group, on the members
    /// that are not lost.
    fn check_calls(&mut self, comm: CommId, call: &DeviceCall) -> Result<(), RequestError> {
        let ranges = self.ranges(comm)?;
        let living: Vec<_> = ranges.iter().map(|(device, _)| *device).collect();
        let found = self.comm(comm)?;
        let on_living = |call: &DeviceCall| call_among(call.clone(), &found.members, &living);
        let call = on_living(call)?;
        call.check(&ranges)?;
        let Some(open) = &found.open else { return Ok(()) };
        if open.calls.len() == MAX_CALLS {
            return Err(RequestError::GroupFull);
        }
        let calls = open.calls.iter().map(on_living).collect::<Result<Vec<_>, _>>()?;
        check_together(calls.iter().chain([&call]), &ranges)
    }

    fn execute(
        &mut self,
        request_id: RequestId,
        comm: CommId,
        group: Option<GroupId>,
        mut call: DeviceCall,
        devices: Option<Vec<DeviceId>>,
    ) -> MaybeReply {
        let found = self.comm(comm)?;
        found.check_room()?;
        if let Some(devices) = &devices {
            call = call_among(call, devices, &found.members)?;
        }
        match self.call(comm, group, call, devices.is_some())? {
            Reply::Called(CallProgress::InProgress(_)) => self.comm(comm)?.wait_for_group(request_id),
            reply => Ok(Some(reply)),
        }
    }

    fn end_group(
        &mut self,
        request_id: RequestId,
        comm: CommId,
        group: Option<GroupId>,
        settled: bool,
    ) -> MaybeReply {
        let found = self.comm(comm)?;
        found.check_group(group)?;
        found.check_takes_calls(false, found.has_lasting_group())?;
        if settled {
            found.check_room()?;
        }
        let open = found.open.take().ok_or(RequestError::GroupOpen { comm, open: false })?;
        let reply = self.begin(comm, open.calls, open.repeats)?;
        if settled { self.comm(comm)?.wait_for_group(request_id) } else { Ok(Some(reply)) }
    }

    /// Begins a group, or has it begin when the members have gone on.
    fn begin(&mut self, comm: CommId, calls: Vec<DeviceCall>, repeats: bool) -> Result<Reply, RequestError> {
        let found = self.comm(comm)?;
        found.repeat = repeats.then(|| Repeat { calls: calls.clone(), failures: 0 });
        if found.stage == CommStage::Ready {
            return self.dispatch(comm, GroupWork::Calls(calls));
        }
        Ok(Reply::Called(CallProgress::InProgress(found.groups + 1)))
    }

    fn cancel_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<Reply, RequestError> {
        let found = self.comm(comm)?;
        found.check_group(group)?;
        found.open.take().ok_or(RequestError::GroupOpen { comm, open: false })?;
        Ok(Reply::GroupCancelled)
    }

    fn ask_to_go_on(&mut self, request_id: RequestId, comm: CommId) -> MaybeReply {
        let found = self.comm(comm)?;
        match found.state() {
            CommState::Failed => found.wait(request_id, WaitCondition::Ready),
            state => Err(RequestError::WrongState { comm, state, needs: CommState::Failed.to_string() }),
        }
    }

    pub(super) fn ask_for_checkpoint(
        &mut self,
        request_id: RequestId,
        comm: CommId,
        work: GroupWork,
    ) -> MaybeReply {
        work.check()?;
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready])?;
        found.wait(request_id, WaitCondition::Done)?;
        self.dispatch(comm, work).map(|_| None)
    }

    fn dispatch(&mut self, comm: CommId, work: GroupWork) -> Result<Reply, RequestError> {
        let found = self.comm(comm)?;
        found.groups += 1;
        found.stage = CommStage::Running { work };
        let reply = Reply::Called(CallProgress::InProgress(found.groups));
        self.counts.started += 1;
        Ok(reply)
    }

    fn locate(&mut self, request_id: RequestId, device: DeviceId, settled: bool) -> MaybeReply {
        let found = self.table.get(device).ok_or(RequestError::NoSuchDevice { device })?;
        let owner = found.owner.ok_or(RequestError::NotAllocated { device })?;
        if settled {
            return self.comm(owner)?.wait(request_id, WaitCondition::Located(device));
        }
        let comm = self.comms.get(&owner).ok_or(RequestError::NotAllocated { device })?;
        self.location(comm, device).map(Some)
    }

    /// Returns where the memory of a device of `comm` can be reached.
    pub(super) fn location(&self, comm: &Comm, device: DeviceId) -> Result<Reply, RequestError> {
        let found = self.table.get(device).ok_or(RequestError::NoSuchDevice { device })?;
        if found.owner != Some(comm.id) {
            return Err(RequestError::NotAllocated { device });
        }
        let states = [CommState::Ready, CommState::InProgress, CommState::Growing, CommState::Failed];
        comm.check_usable(&states)?;
        let (range, socket) = (found.report.range, found.report.socket.clone());
        Ok(Reply::Located(Location { comm: comm.id, range, socket }))
    }

    fn finalize(&mut self, request_id: RequestId, comm: CommId) -> MaybeReply {
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready, CommState::InProgress, CommState::Finalizing])?;
        if found.open.is_some() {
            return Err(RequestError::GroupOpen { comm, open: true });
        }
        let answer = found.wait(request_id, WaitCondition::Finalized)?;
        // A communicator that is being destroyed is not finalized any more.
        found.ending = found.end_reason.is_none();
        if found.stage == CommStage::Ready {
            found.stage = CommStage::Leaving { gracefully: true };
        }
        Ok(answer)
    }

    fn destroy(&mut self, request_id: RequestId, comm: CommId) -> MaybeReply {
        let found = self.comm(comm)?;
        // There is always room for the request that ends the others.
        found.waiting.push((request_id, WaitCondition::Ended));
        let reason = "it was destroyed".to_owned();
        let was_running = matches!(found.stage, CommStage::Running { .. });
        if was_running {
            let (group, failure) = (found.groups, Some("the communicator was destroyed".to_owned()));
            found.last = Some(GroupOutcome { group, failure, ..GroupOutcome::default() });
        }
        found.end(CommStage::Leaving { gracefully: false }, reason.clone());
        let awaited = [WaitCondition::Ready, WaitCondition::Grown, WaitCondition::Done, WaitCondition::Begun];
        let refused = found.take_waiting(&awaited);
        self.counts.failed += u64::from(was_running);
        for request_id in refused {
            self.reply(request_id, Err(RequestError::Ended { comm, why: Some(reason.clone()) }));
        }
        Ok(None)
    }

    /// Checks that nothing is in progress in a communicator, that nobody waits for it, and that no
    /// group takes calls but one that was `abandoned`.
    fn check_idle(&mut self, comm: CommId, abandoned: Option<GroupId>) -> Result<(), RequestError> {
        let found = self.comm(comm)?;
        let rests =
            matches!(found.stage, CommStage::Ready | CommStage::Failed { .. }) && found.repeat.is_none();
        let is_open = found.open.as_ref().is_some_and(|open| Some(open.id) != abandoned);
        if rests && found.waiting.is_empty() && !is_open {
            return Ok(());
        }
        Err(RequestError::WrongState { comm, state: found.state(), needs: "idle".to_owned() })
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

    /// Returns the living devices of a communicator and their addresses, in the order of their
    /// ranks.
    fn ranges(&mut self, comm: CommId) -> Result<Vec<(DeviceId, AddressRange)>, RequestError> {
        let members = self.comm(comm)?.members.clone();
        let range = |member: DeviceId| self.table.get(member).map(|device| (member, device.report.range));
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

    /// Checks that it takes calls: in a group also while another one is in progress, and where they
    /// are repeated after a loss also before the members have gone on.
    ///
    /// # Errors
    /// Those of [`Comm::check_usable`].
    fn check_takes_calls(&self, grouped: bool, repeats: bool) -> Result<(), RequestError> {
        let states =
            [(CommState::Ready, true), (CommState::InProgress, grouped), (CommState::Failed, repeats)];
        let states = states.into_iter().filter_map(|(state, is_fit)| is_fit.then_some(state));
        self.check_usable(&states.collect::<Vec<_>>())
    }

    /// # Errors
    /// [`RequestError::Exhausted`] where too many wait.
    fn check_room(&self) -> Result<(), RequestError> {
        if self.waiting.len() < MAX_WAITING {
            return Ok(());
        }
        let what = format!("places to wait for communicator {}", self.id);
        Err(RequestError::Exhausted { what, limit: MAX_WAITING })
    }

    pub(super) fn wait(&mut self, request_id: RequestId, awaited: WaitCondition) -> MaybeReply {
        self.check_room()?;
        self.waiting.push((request_id, awaited));
        Ok(None)
    }

    /// Waits until the group that was just begun is over, or is to begin.
    fn wait_for_group(&mut self, request_id: RequestId) -> MaybeReply {
        let has_begun = matches!(self.stage, CommStage::Running { .. });
        self.wait(request_id, if has_begun { WaitCondition::Settled } else { WaitCondition::Begun })
    }
}
