//! Requests of clients, and whether they are answered.

use super::{Broken, RANGE, World};
use crate::collective::Operation;
use crate::coordinator::call::DeviceCall;
use crate::coordinator::error::RequestError;
use crate::coordinator::id::{ClientId, CommId, DeviceId, GroupId};
use crate::coordinator::machine::{CoordinatorEvent, CoordinatorMachine, RequestId};
use crate::coordinator::request::{CallProgress, ClientRequest, CommState, CommStatus, Reply};
use crate::reduce::{DataType, ReduceOp};

impl World {
    pub(super) fn lose_client(&mut self) -> Result<(), String> {
        let client = self.random.below(3);
        self.asked.retain(|(request_id, _), _| *request_id != client);
        self.handle(CoordinatorEvent::ClientGone(ClientId(client)))
    }

    pub(super) fn ask(&mut self) -> Result<(), String> {
        // Requests that come earlier wait in their connections.
        if !self.machine.as_ref().is_some_and(CoordinatorMachine::is_open) {
            return Ok(());
        }
        let request = self.draw_request();
        let (client, number) = (self.random.below(3), self.requests);
        self.requests += 1;
        if matches!(request, ClientRequest::Finalize(_)) {
            self.finalizing.insert(number);
        }
        if matches!(request, ClientRequest::Grow { .. }) {
            self.growing.insert(number);
        }
        if matches!(request, ClientRequest::Call { group: Some(_), .. }) {
            self.grouped.insert(number);
        }
        if let ClientRequest::GroupEnd { settled: true, comm, .. } | ClientRequest::Execute { comm, .. } =
            &request
        {
            let found = self.machine.as_ref().and_then(|machine| machine.comms.get(comm));
            self.executing.insert(number, found.map_or(0, |comm| comm.groups));
        }
        self.asked.insert((client, number), 0);
        self.note(|| format!("request {number} of client {client}: {request:?}"));
        let request_id = RequestId { client: ClientId(client), number };
        self.handle(CoordinatorEvent::Requested { request_id, request })
    }

    fn draw_request(&mut self) -> ClientRequest {
        let all: Vec<_> = self.machine.iter().flat_map(|machine| machine.comms.keys().copied()).collect();
        let any = CommId::new(self.random.below(5));
        let comm = if self.random.once_in(8) { any } else { self.random.pick(&all).unwrap_or(any) };
        match self.random.below(36) {
            0..5 => ClientRequest::Init {
                devices: self.random.below(4).try_into().unwrap_or(0),
                keep_going: self.random.once_in(3),
            },
            5 => ClientRequest::Status { comm, settled: self.random.once_in(2) },
            6 => ClientRequest::List { from: any },
            7 if self.random.once_in(2) => ClientRequest::Metrics,
            7 => ClientRequest::Devices,
            8 => ClientRequest::GroupStart { comm, repeats: !self.random.once_in(4) },
            9 if self.random.once_in(4) => ClientRequest::GroupCancel { comm, group: self.draw_group() },
            9 => ClientRequest::GroupEnd { comm, group: self.draw_group(), settled: self.random.once_in(2) },
            10..15 => ClientRequest::Call { comm, group: self.draw_group(), call: self.draw_call(comm) },
            15..18 => ClientRequest::Execute {
                comm,
                group: self.draw_group(),
                call: self.draw_call(comm),
                devices: self.draw_devices(comm),
            },
            18..21 => ClientRequest::GoOn(comm),
            21 => ClientRequest::Locate {
                device: DeviceId::new(self.next_device - 1),
                settled: self.random.once_in(2),
            },
            22 => ClientRequest::Finalize(comm),
            23..31 => ClientRequest::Grow { comm, devices: self.random.below(3).try_into().unwrap_or(0) },
            31..33 => ClientRequest::Checkpoint { comm, directory: "/there".to_owned() },
            33 => ClientRequest::Restore { comm, directory: "/there".to_owned() },
            34 => ClientRequest::Restore { comm, directory: "elsewhere".to_owned() },
            _ => ClientRequest::Destroy(comm),
        }
    }

    /// Draws a group that is or was open, or none, which is likelier.
    fn draw_group(&mut self) -> Option<GroupId> {
        if self.random.once_in(3) { self.random.pick(&self.groups) } else { None }
    }

    /// Draws the members of a communicator, or nobody.
    fn draw_devices(&mut self, comm: CommId) -> Option<Vec<DeviceId>> {
        let found = self.machine.as_ref().and_then(|machine| machine.comms.get(&comm));
        let members = found.map_or(vec![DeviceId::new(1)], |comm| comm.members.clone());
        (!self.random.once_in(4)).then_some(members)
    }

    fn draw_call(&mut self, comm: CommId) -> DeviceCall {
        let found = self.machine.as_ref().and_then(|machine| machine.comms.get(&comm));
        let addresses = vec![0x1000; found.map_or(1, |comm| comm.members.len())];
        let (operation, data_type, op) = (Operation::AllReduce, DataType::F64, ReduceOp::Sum);
        // One in eight is too long.
        let count =
            1 + self.random.below(RANGE.max - RANGE.min) / 8 + u64::from(self.random.once_in(8)) * 512;
        DeviceCall { operation, data_type, op, root: 0, count, send: addresses.clone(), recv: addresses }
    }

    pub(super) fn take_reply(
        &mut self,
        client: u64,
        number: u64,
        reply: &Result<Reply, RequestError>,
    ) -> Result<(), String> {
        self.seen.extend(match reply {
            Ok(Reply::Status(_)) if self.growing.contains(&number) => Some("grown"),
            Ok(Reply::Status(_)) if self.executing.contains_key(&number) => Some("executed"),
            Ok(Reply::Status(status)) if status.state == CommState::Ready => Some("ready"),
            Ok(Reply::Status(status)) if status.state == CommState::Failed => Some("failed"),
            Ok(Reply::Called(CallProgress::InProgress(_))) => Some("group"),
            Ok(Reply::Ended) if self.finalizing.contains(&number) => Some("finalized"),
            Ok(Reply::Ended) => Some("destroyed"),
            Ok(Reply::Called(CallProgress::Queued { .. })) => Some("open group"),
            Ok(Reply::Located(_)) => Some("located"),
            Ok(Reply::Checkpoint(_)) => Some("checkpoint"),
            Err(RequestError::CheckpointFailed { .. }) => Some("checkpoint failed"),
            Ok(Reply::GroupCancelled) => Some("group cancelled"),
            Err(RequestError::NoSuchGroup { .. }) => Some("no such group"),
            Err(RequestError::NotFormed { .. }) => Some("not formed"),
            Err(RequestError::NotGrown { .. }) => Some("not grown"),
            Err(RequestError::OutOfRange { .. }) => Some("out of range"),
            Err(RequestError::Failed { .. }) => Some("failed"),
            Err(RequestError::NotEnoughDevices { .. }) => Some("not enough"),
            _ => None,
        });
        match reply {
            Ok(Reply::GroupStarted(started)) if self.groups.contains(&started.group) => {
                return Err(format!("group {} was started twice", started.group));
            }
            Ok(Reply::GroupStarted(started)) => self.groups.push(started.group),
            Ok(Reply::Status(status)) if self.executing.contains_key(&number) => {
                self.check_executed(number, status)?;
            }
            Ok(Reply::Checkpoint(written)) if !self.network.written.contains(written) => {
                return Err(format!("checkpoint {written} was told to client {client}, and nobody wrote it"));
            }
            Ok(Reply::Called(CallProgress::InProgress(_))) if self.grouped.contains(&number) => {
                return Err(format!("the call of request {number} was for a group, and runs alone"));
            }
            _ => {}
        }
        if self.broken == Some(Broken::AnswersLost) && self.random.once_in(4) {
            return Ok(());
        }
        let answers = if self.broken == Some(Broken::AnswersTwice) && self.random.once_in(4) { 2 } else { 1 };
        match self.asked.get_mut(&(client, number)) {
            Some(count) => *count += answers,
            None => return Err(format!("request {number} was answered, and client {client} is not there")),
        }
        Ok(())
    }

    /// Checks that a group is over that was answered, and was executed once or not at all.
    fn check_executed(&self, number: u64, status: &CommStatus) -> Result<(), String> {
        let before = self.executing.get(&number).copied().unwrap_or_default();
        let last = status.last.as_ref().filter(|last| last.group > before);
        let Some(last) = last.filter(|_| status.state != CommState::InProgress) else {
            return Err(format!("the group of request {number} goes on, and it was answered: {status:?}"));
        };
        let times = |device: &DeviceId| {
            // It may have left since.
            let device = self.devices.get(device).filter(|device| device.is_in(status.comm, status.epoch))?;
            Some(device.memory.executed.iter().filter(|group| **group == last.group).count())
        };
        let is_wrong = |device: &&DeviceId| times(device).is_some_and(|times| times != 1);
        match status.devices.iter().find(is_wrong).filter(|_| last.failure.is_none()) {
            Some(device) => Err(format!(
                "group {} of request {number} was executed {:?} times by device {device}",
                last.group,
                times(device)
            )),
            None => Ok(()),
        }
    }
}
