//! Settling: the reports of members decide the stage of a communicator and the orders to its
//! members.
//!
//! A checkpoint is a group with one task for all members. They write or read, each its own memory,
//! and agree on whether it went well. A checkpoint that fails leaves the communicator ready and as
//! it was. A member that dies meanwhile is a failure of the communicator, as in any group.

use super::comm::{Comm, CommFailure, CommStage, LoggedState, WaitCondition};
use super::device_table::{DeviceRecord, DeviceTable};
use super::{CoordinatorAction, CoordinatorMachine, LogEntry, REMEMBERED};
use crate::coordinator::call::GroupWork;
use crate::coordinator::error::RequestError;
use crate::coordinator::id::DeviceId;
use crate::coordinator::order::{CAUSE, CommFormation, DeviceOrder, DevicePhase, FailureKind};
use crate::coordinator::request::{CommState, CommStatus, GroupOutcome, Reply};

/// How long the cause of a failure is awaited.
const CAUSE_MS: u64 = 200;

/// For how many communicators the report of a failed last group is kept after their end.
const WITH_REPORTS: usize = 64;

/// Whether a communicator has entered another stage, so that there may be more to do.
pub(super) type Moved = bool;

impl CoordinatorMachine {
    /// Brings every communicator as far as reports allow, and expels devices from communicators
    /// that do not have them.
    pub(super) fn settle(&mut self) {
        let all: Vec<_> = self.comms.keys().copied().collect();
        for id in all {
            let Some(mut comm) = self.comms.remove(&id) else { continue };
            self.changes.note(comm.status());
            while self.step(&mut comm) {
                self.changes.note(comm.status());
            }
            // A step that enters no other stage may change the rest.
            self.changes.note(comm.status());
            let is = LoggedState { state: comm.state(), epoch: comm.epoch };
            if is_worth_logging(comm.logged.replace(is), is) {
                self.actions.push(CoordinatorAction::Log(LogEntry::Comm(comm.status())));
            }
            self.answer_waiting(&mut comm);
            if comm.stage == CommStage::Ended {
                self.remember(comm.status());
            } else {
                self.comms.insert(id, comm);
            }
        }
        self.expel_strays();
    }

    /// Remembers how a communicator has ended, and forgets the oldest one where there are too many.
    fn remember(&mut self, ended: CommStatus) {
        self.ended_in_order.push_back(ended.comm);
        self.ended.insert(ended.comm, ended);
        let late = self.ended_in_order.iter().rev().nth(WITH_REPORTS).and_then(|it| self.ended.get_mut(it));
        late.and_then(|late| late.last.as_mut()).into_iter().for_each(|last| last.report = None);
        if self.ended_in_order.len() > REMEMBERED {
            let oldest = self.ended_in_order.pop_front();
            oldest.and_then(|oldest| self.ended.remove(&oldest));
        }
    }

    fn step(&mut self, comm: &mut Comm) -> Moved {
        match comm.stage.clone() {
            CommStage::Hosting => self.host(comm),
            CommStage::Meeting { id } => self.meet(comm, &id),
            CommStage::Adopting { until_ms } => self.adopt(comm, until_ms),
            CommStage::Ready => self.watch(comm) || self.try_again(comm),
            CommStage::Running { work } => self.run(comm, work),
            CommStage::Inviting => self.invite(comm),
            CommStage::Growing { id, off } => self.grow(comm, &id, off),
            CommStage::Failed { why, .. } | CommStage::GoingOn { why, .. } if comm.living().is_empty() => {
                comm.end(CommStage::Ended, format!("all its devices were lost: {why}"));
                true
            }
            CommStage::Failed { why, weight, gave_up } => self.wait_to_go_on(comm, why, weight, gave_up),
            CommStage::GoingOn { attempt, last, why } => self.go_on(comm, attempt, last, why),
            CommStage::Leaving { gracefully } => self.leave(comm, gracefully),
            CommStage::Ended => false,
        }
    }

    fn host(&mut self, comm: &mut Comm) -> Moved {
        if let Some(CommFailure { why, .. }) = comm.failure(&self.table) {
            return self.abandon(comm, why);
        }
        let Some(id) = self.meeting_id(comm.members[0], comm.formation()) else { return false };
        comm.stage = CommStage::Meeting { id };
        true
    }

    /// Returns the id of the meeting that leads to `formation`, if `host` has made it. Otherwise
    /// orders it to.
    pub(super) fn meeting_id(&mut self, host: DeviceId, formation: CommFormation) -> Option<String> {
        match self.table.phase(host, formation.comm, formation.epoch) {
            Some(DevicePhase::Hosting(Some(id))) => Some(id.clone()),
            _ => {
                self.order(host, &DeviceOrder::Host(formation));
                None
            }
        }
    }

    fn meet(&mut self, comm: &mut Comm, id: &str) -> Moved {
        if let Some(CommFailure { why, .. }) = comm.failure(&self.table) {
            return self.abandon(comm, why);
        }
        let order = comm.join(comm.formation(), id);
        let mut all_there = true;
        for member in comm.members.clone() {
            if !matches!(self.table.phase(member, comm.id, comm.epoch), Some(DevicePhase::Ready(_))) {
                all_there = false;
                self.order(member, &order);
            }
            if self.table.get(member).is_some_and(DeviceRecord::is_out_of_all) {
                return self.abandon(comm, format!("device {member} has left"));
            }
        }
        if all_there {
            self.counts.formed += u64::from(comm.epoch == 1);
            comm.stage = CommStage::Ready;
        }
        all_there
    }

    /// Ends a communicator whose members have not come together. Those that have come leave.
    fn abandon(&mut self, comm: &mut Comm, why: String) -> Moved {
        self.refuse(comm, &[WaitCondition::Ready], &RequestError::NotFormed { why: why.clone() });
        comm.end(CommStage::Leaving { gracefully: false }, format!("it did not come about: {why}"));
        true
    }

    fn watch(&mut self, comm: &mut Comm) -> Moved {
        let Some(CommFailure { why, weight, .. }) = comm.failure(&self.table) else { return false };
        comm.drop_open_group();
        comm.stage = CommStage::Failed { why, weight, gave_up: false };
        true
    }

    fn run(&mut self, comm: &mut Comm, work: GroupWork) -> Moved {
        let group = comm.groups;
        let trouble = comm.failure(&self.table);
        if trouble.as_ref().is_some_and(|trouble| self.may_be_explained(comm, trouble)) {
            return false;
        }
        comm.cause_by_ms = None;
        if let Some(CommFailure { why, culprit, report, .. }) = trouble {
            let failure = Some(why.clone());
            comm.last = Some(GroupOutcome { group, failure, culprit, checkpoint: None, report });
            self.counts.failed += 1;
            if !comm.is_tried_again() {
                self.undo_group(comm, &RequestError::Failed { comm: comm.id, why });
            }
            return self.watch(comm);
        }
        let order = DeviceOrder::Run { comm: comm.id, epoch: comm.epoch, group, work };
        let mut all_done = true;
        for member in comm.members.clone() {
            let done = self.table.groups_done(member, comm.id, comm.epoch);
            all_done &= done.is_some_and(|done| done >= group);
            if done.is_some_and(|done| done < group) {
                self.order(member, &order);
            }
        }
        all_done && self.conclude_group(comm)
    }

    /// Concludes the newest group, after which all members are ready: it has succeeded, or is
    /// undone.
    pub(super) fn conclude_group(&mut self, comm: &mut Comm) -> Moved {
        let outcome = comm.outcome(&self.table);
        comm.last = Some(outcome.clone());
        let Some(why) = outcome.failure else {
            self.counts.succeeded += 1;
            comm.repeat = None;
            for request_id in comm.take_waiting(&[WaitCondition::Done]) {
                // Only a checkpoint is waited for, and that has a number.
                self.reply(request_id, Ok(Reply::Checkpoint(outcome.checkpoint.unwrap_or_default())));
            }
            comm.stage = if comm.ending { CommStage::Leaving { gracefully: true } } else { CommStage::Ready };
            return true;
        };
        self.counts.failed += 1;
        self.undo_group(comm, &RequestError::CheckpointFailed { comm: comm.id, why });
        comm.stage = CommStage::Ready;
        true
    }

    /// Refuses what waits for a group to succeed that has failed.
    fn undo_group(&mut self, comm: &mut Comm, refusal: &RequestError) {
        comm.ending = false;
        self.refuse(comm, &[WaitCondition::Done, WaitCondition::Finalized, WaitCondition::Begun], refusal);
    }

    fn wait_to_go_on(&self, comm: &mut Comm, why: String, weight: u8, gave_up: bool) -> Moved {
        if !gave_up && self.find_cause(comm, &why, weight) {
            return true;
        }
        let is_asked = comm.waiting.iter().any(|(_, awaited)| *awaited == WaitCondition::Ready);
        let goes_on_alone = comm.keep_going || comm.has_lasting_group();
        let begins = is_asked || comm.repeat.is_some() || (goes_on_alone && !gave_up);
        if begins {
            comm.stage = CommStage::going_on(comm.next_attempt(&self.table), why);
        }
        begins
    }

    /// Returns whether the failure is only that another member has ended the epoch, whose report
    /// may follow.
    fn may_be_explained(&self, comm: &mut Comm, trouble: &CommFailure) -> bool {
        let until_ms = *comm.cause_by_ms.get_or_insert(self.now_ms.saturating_add(CAUSE_MS));
        trouble.weight == FailureKind::Revoked.weight() && self.judged_ms < until_ms
    }

    /// Replaces a failure of this weight by its cause, if a member has reported that meanwhile.
    fn find_cause(&self, comm: &mut Comm, why: &str, weight: u8) -> bool {
        let Some(cause) = comm.failure(&self.table).filter(|finding| finding.weight > weight) else {
            return false;
        };
        if let Some(last) = comm.last.as_mut().filter(|last| last.failure.as_deref() == Some(why)) {
            (last.failure, last.culprit) = (Some(cause.why.clone()), cause.culprit);
            last.report = cause.report;
        }
        comm.stage = CommStage::Failed { why: cause.why, weight: cause.weight, gave_up: false };
        true
    }

    fn go_on(&mut self, comm: &mut Comm, attempt: u32, last: u32, why: String) -> Moved {
        let lost = comm.lost.iter().copied().collect();
        let (epoch, groups, outcome) = (comm.epoch, comm.groups, comm.last.clone());
        let order = DeviceOrder::GoOn { comm: comm.id, epoch, attempt, groups, last: outcome, lost };
        let (mut successors, mut refused, mut all_tried) = (None, why, true);
        for member in comm.living() {
            let Some(membership) = self.table.membership_or_loss(member, comm) else { continue };
            match &membership.phase {
                _ if membership.formation.epoch > epoch => {
                    successors = Some(membership.formation.members.clone());
                }
                DevicePhase::Failed { attempt: tried, why, .. } if *tried >= attempt => {
                    refused = format!("device {member}: {why}");
                }
                _ => {
                    all_tried = false;
                    self.order(member, &order);
                }
            }
        }
        match successors {
            _ if !all_tried => false,
            Some(members) => self.succeed(comm, members),
            None if attempt < last => {
                comm.stage = CommStage::GoingOn { attempt: attempt + 1, last, why: refused };
                true
            }
            None => self.give_up(comm, refused),
        }
    }

    /// Concludes going on: the members that are left are in the next epoch.
    fn succeed(&mut self, comm: &mut Comm, members: Vec<DeviceId>) -> Moved {
        self.enter_next_epoch(comm, members);
        self.counts.recovered += 1;
        comm.stage = match comm.failure(&self.table) {
            Some(CommFailure { why, .. }) => CommStage::going_on(comm.next_attempt(&self.table), why),
            None => CommStage::Ready,
        };
        true
    }

    /// Enters the next epoch, which has these members. Devices that are not in it are taken back,
    /// whether the others count on them or not.
    pub(super) fn enter_next_epoch(&mut self, comm: &mut Comm, members: Vec<DeviceId>) {
        let was_repeated = comm.repeat.is_some();
        comm.carry_groups_over(&members);
        if was_repeated && comm.repeat.is_none() {
            let why = "the next epoch has devices that its group does not name".to_owned();
            self.undo_group(comm, &RequestError::Failed { comm: comm.id, why });
        }
        let next = comm.epoch + 1;
        for device in comm.living().into_iter().chain(std::mem::take(&mut comm.newcomers)) {
            if self.table.phase(device, comm.id, next).is_none() {
                self.table.take_back(device, comm.id);
            }
        }
        let is_lost = |member: &DeviceId| self.table.phase(*member, comm.id, next).is_none();
        comm.lost = members.iter().copied().filter(is_lost).collect();
        comm.hung.retain(|device, _| comm.lost.contains(device));
        (comm.members, comm.epoch) = (members, next);
    }

    fn give_up(&mut self, comm: &mut Comm, why: String) -> Moved {
        let refusal = RequestError::Failed { comm: comm.id, why: why.clone() };
        self.refuse(comm, &[WaitCondition::Ready], &refusal);
        if !comm.is_tried_again() {
            comm.open = None;
            self.undo_group(comm, &refusal);
        }
        comm.stage = CommStage::Failed { why, weight: CAUSE, gave_up: true };
        true
    }

    fn leave(&mut self, comm: &mut Comm, gracefully: bool) -> Moved {
        let gracefully = gracefully && comm.lost.is_empty();
        let order = DeviceOrder::Leave { comm: comm.id, gracefully };
        let mut all_out = true;
        for member in comm.living().into_iter().chain(comm.newcomers.clone()) {
            let Some(device) = self.table.get(member).filter(|device| device.owner == Some(comm.id)) else {
                continue;
            };
            if device.is_out_of_all() {
                self.table.take_back(member, comm.id);
            } else {
                all_out = false;
                self.order(member, &order);
            }
        }
        if all_out {
            comm.stage = CommStage::Ended;
        }
        all_out
    }

    /// Answers the requests for which the wait is over.
    fn answer_waiting(&mut self, comm: &mut Comm) {
        for (request_id, condition) in std::mem::take(&mut comm.waiting) {
            let is_settled = comm.repeat.is_none()
                && matches!(comm.stage, CommStage::Ready | CommStage::Failed { .. } | CommStage::Ended);
            let reply = match (&comm.stage, condition) {
                (CommStage::Ended, WaitCondition::Finalized | WaitCondition::Ended) => Ok(Reply::Ended),
                (
                    CommStage::Ended,
                    WaitCondition::Ready | WaitCondition::Grown | WaitCondition::Done | WaitCondition::Begun,
                ) => Err(RequestError::Ended { comm: comm.id, why: comm.end_reason.clone() }),
                (CommStage::Ready, WaitCondition::Ready | WaitCondition::Grown) => {
                    Ok(Reply::Status(comm.status()))
                }
                (_, WaitCondition::Settled) if is_settled => Ok(Reply::Status(comm.status())),
                (_, WaitCondition::Located(device)) if is_settled => self.location(comm, device),
                _ => {
                    comm.waiting.push((request_id, condition));
                    continue;
                }
            };
            self.reply(request_id, reply);
        }
    }

    /// Refuses the requests that wait for one of these conditions.
    pub(super) fn refuse(&mut self, comm: &mut Comm, conditions: &[WaitCondition], refusal: &RequestError) {
        for request_id in comm.take_waiting(conditions) {
            self.reply(request_id, Err(refusal.clone()));
        }
    }

    /// Orders devices to leave communicators that do not have them.
    fn expel_strays(&mut self) {
        let mut strays = Vec::new();
        for (id, device) in self.table.iter() {
            let Some(membership) = &device.report.membership else { continue };
            let comm = membership.formation.comm;
            // The members that a newcomer is to join may come back until requests are taken.
            let may_stay = membership.is_outside() && !self.is_open();
            if device.owner != Some(comm) && !may_stay {
                strays.push((id, DeviceOrder::Leave { comm, gracefully: false }));
            }
        }
        for (device, order) in strays {
            self.order(device, &order);
        }
    }
}

impl Comm {
    /// Returns how the newest group has ended, by the reports of its members, which are all ready
    /// after it.
    fn outcome(&self, table: &DeviceTable) -> GroupOutcome {
        let outcome_of = |member: &DeviceId| {
            let last = table.membership(*member, self.id)?.last.clone();
            let last = last.filter(|last| last.group == self.groups)?;
            let failure = last.failure.map(|failure| format!("device {member}: {failure}"));
            Some(GroupOutcome { failure, ..last })
        };
        let outcomes: Vec<_> = self.members.iter().filter_map(outcome_of).collect();
        let (group, failed) = (self.groups, GroupOutcome::cause(&outcomes));
        let checkpoint = outcomes.iter().find_map(|last| last.checkpoint).filter(|_| failed.is_none());
        GroupOutcome { group, checkpoint, ..failed.cloned().unwrap_or_default() }
    }
}

/// Returns whether a communicator has begun an epoch, has failed, or has ended since the log was
/// considered last.
fn is_worth_logging(was: Option<LoggedState>, is: LoggedState) -> bool {
    let is_up = |state| matches!(state, CommState::Ready | CommState::InProgress | CommState::Growing);
    let has_begun = is_up(is.state) && was.is_none_or(|was| !is_up(was.state) || was.epoch != is.epoch);
    let has_failed = is.state == CommState::Failed && was.is_none_or(|was| was.state != CommState::Failed);
    has_begun || has_failed || is.state.has_ended()
}
