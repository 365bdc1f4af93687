//! Settling: what members report decides how a communicator's life goes on, and what they are to do for it.

use super::comm::{Comm, CommFailure, CommStage, WaitCondition};
use super::device_table::{DeviceRecord, DeviceTable};
use super::{CoordinatorAction, CoordinatorMachine, LogEntry, REMEMBERED};
use crate::coordinator::call::GroupWork;
use crate::coordinator::error::RequestError;
use crate::coordinator::id::DeviceId;
use crate::coordinator::order::{CAUSE, DeviceMembership, DeviceOrder, DevicePhase, FailureKind};
use crate::coordinator::request::{CommState, CommStatus, GroupOutcome, Reply};

/// How long the cause of a failure is waited for.
const CAUSE_MS: u64 = 200;

/// Of how many communicators that have ended it is remembered what their ranks were in, where the last group has failed by that.
const WITH_REPORTS: usize = 64;

/// Whether a communicator has come into another stage, so that there may be more to do.
pub(super) type Moved = bool;

impl CoordinatorMachine {
    /// Brings every communicator as far as reports allow, and turns out devices that are where they do not belong.
    pub(super) fn settle(&mut self) {
        let all: Vec<_> = self.comms.keys().copied().collect();
        for id in all {
            let Some(mut comm) = self.comms.remove(&id) else { continue };
            let was = self.told.get(&id).copied();
            while self.step(&mut comm) {}
            let is = (comm.state(), comm.epoch);
            if is_turn(was, is) {
                self.actions.push(CoordinatorAction::Log(LogEntry::Comm(comm.status())));
            }
            self.told.insert(id, is);
            self.tell(&mut comm);
            if comm.stage == CommStage::Ended {
                self.told.remove(&id);
                self.remember(comm.status());
            } else {
                self.comms.insert(id, comm);
            }
        }
        self.turn_out();
    }

    /// Remembers how a communicator has ended, and forgets the one that has been remembered longest where there are too many.
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
            CommStage::Ready => self.watch(comm),
            CommStage::Running { work } => self.run(comm, work),
            CommStage::Inviting => self.invite(comm),
            CommStage::Growing { id, off } => self.grow(comm, &id, off),
            CommStage::Failed { why, weight, in_vain } => self.wait_to_go_on(comm, (why, weight), in_vain),
            CommStage::GoingOn { attempt, last, why } => self.go_on(comm, (attempt, last), why),
            CommStage::Leaving { gracefully } => self.leave(comm, gracefully),
            CommStage::Ended => false,
        }
    }

    fn host(&mut self, comm: &mut Comm) -> Moved {
        if let Some(CommFailure { why, .. }) = comm.trouble(&self.pool) {
            return self.abandon(comm, why);
        }
        let host = comm.members[0];
        match self.pool.phase(host, comm.id, comm.epoch) {
            Some(DevicePhase::Hosting { id: Some(id) }) => {
                comm.stage = CommStage::Meeting { id: id.clone() };
                true
            }
            _ => {
                self.order(host, &DeviceOrder::Host(comm.formation()));
                false
            }
        }
    }

    fn meet(&mut self, comm: &mut Comm, id: &str) -> Moved {
        if let Some(CommFailure { why, .. }) = comm.trouble(&self.pool) {
            return self.abandon(comm, why);
        }
        let order = comm.join(comm.formation(), id);
        let mut all_there = true;
        for member in comm.members.clone() {
            if !matches!(self.pool.phase(member, comm.id, comm.epoch), Some(DevicePhase::Ready { .. })) {
                all_there = false;
                self.order(member, &order);
            }
            if self.pool.get(member).is_some_and(DeviceRecord::is_out_of_all) {
                return self.abandon(comm, format!("device {member} has left"));
            }
        }
        if all_there {
            self.counts.formed += u64::from(comm.epoch == 1);
            comm.stage = CommStage::Ready;
        }
        all_there
    }

    /// The members have not come together: those that have come leave.
    fn abandon(&mut self, comm: &mut Comm, why: String) -> Moved {
        for asker in comm.take_waiting(&[WaitCondition::Ready]) {
            self.reply(asker, Err(RequestError::NotFormed { why: why.clone() }));
        }
        comm.end(CommStage::Leaving { gracefully: false }, format!("it did not come about: {why}"));
        true
    }

    fn watch(&mut self, comm: &mut Comm) -> Moved {
        let Some(CommFailure { why, weight, .. }) = comm.trouble(&self.pool) else { return false };
        comm.open = None;
        comm.stage = CommStage::Failed { why, weight, in_vain: false };
        true
    }

    fn run(&mut self, comm: &mut Comm, work: GroupWork) -> Moved {
        let group = comm.groups;
        let trouble = comm.trouble(&self.pool);
        if trouble.as_ref().is_some_and(|trouble| self.may_be_explained(comm, trouble)) {
            return false;
        }
        comm.cause_by_ms = None;
        if let Some(CommFailure { why, culprit, report, .. }) = trouble {
            let failure = Some(why.clone());
            comm.last = Some(GroupOutcome { group, failure, culprit, checkpoint: None, report });
            self.counts.failed += 1;
            comm.ending = false;
            for asker in comm.take_waiting(&[WaitCondition::Done, WaitCondition::Finalized]) {
                self.reply(asker, Err(RequestError::Failed { comm: comm.id, why: why.clone() }));
            }
            return self.watch(comm);
        }
        let order = DeviceOrder::Run { comm: comm.id, epoch: comm.epoch, group, work };
        let mut all_done = true;
        for member in comm.members.clone() {
            let phase = self.pool.phase(member, comm.id, comm.epoch);
            all_done &= matches!(phase, Some(DevicePhase::Ready { groups, .. }) if *groups >= group);
            if matches!(phase, Some(DevicePhase::Ready { groups, .. }) if *groups < group) {
                self.order(member, &order);
            }
        }
        all_done && self.conclude_group(comm)
    }

    /// All members have ended the newest group and are ready: it has succeeded, or is undone.
    pub(super) fn conclude_group(&mut self, comm: &mut Comm) -> Moved {
        let outcome = comm.outcome(&self.pool);
        comm.last = Some(outcome.clone());
        *(if outcome.failure.is_none() { &mut self.counts.succeeded } else { &mut self.counts.failed }) += 1;
        let Some(why) = outcome.failure else {
            for asker in comm.take_waiting(&[WaitCondition::Done]) {
                // Whoever waits has asked for one that has a number.
                self.reply(asker, Ok(Reply::Checkpoint(outcome.checkpoint.unwrap_or_default())));
            }
            comm.stage = if comm.ending { CommStage::Leaving { gracefully: true } } else { CommStage::Ready };
            return true;
        };
        comm.ending = false;
        for asker in comm.take_waiting(&[WaitCondition::Done, WaitCondition::Finalized]) {
            self.reply(asker, Err(RequestError::CheckpointFailed { comm: comm.id, why: why.clone() }));
        }
        comm.stage = CommStage::Ready;
        true
    }

    fn wait_to_go_on(&self, comm: &mut Comm, (why, weight): (String, u8), in_vain: bool) -> Moved {
        if comm.living().is_empty() {
            comm.end(CommStage::Ended, format!("all its devices were lost: {why}"));
            return true;
        }
        if !in_vain && self.find_cause(comm, &why, weight) {
            return true;
        }
        let is_asked = comm.waiting.iter().any(|(_, awaited)| *awaited == WaitCondition::Ready);
        let begins = is_asked || (comm.keep_going && !in_vain);
        if begins {
            comm.stage = CommStage::going_on(comm.next_attempt(&self.pool), why);
        }
        begins
    }

    /// Whether a member tells only that another one has ended the epoch, who is about to tell why.
    fn may_be_explained(&self, comm: &mut Comm, trouble: &CommFailure) -> bool {
        let until_ms = *comm.cause_by_ms.get_or_insert(self.now_ms.saturating_add(CAUSE_MS));
        trouble.weight == FailureKind::Revoked.weight() && self.judged_ms < until_ms
    }

    /// Finds what explains a failure of this weight, if a member has come to tell of it meanwhile.
    fn find_cause(&self, comm: &mut Comm, why: &str, weight: u8) -> bool {
        let Some(cause) = comm.trouble(&self.pool).filter(|finding| finding.weight > weight) else {
            return false;
        };
        if let Some(last) = comm.last.as_mut().filter(|last| last.failure.as_deref() == Some(why)) {
            (last.failure, last.culprit) = (Some(cause.why.clone()), cause.culprit);
            last.report = cause.report;
        }
        comm.stage = CommStage::Failed { why: cause.why, weight: cause.weight, in_vain: false };
        true
    }

    fn go_on(&mut self, comm: &mut Comm, (attempt, last): (u32, u32), why: String) -> Moved {
        let living = comm.living();
        if living.is_empty() {
            comm.end(CommStage::Ended, format!("all its devices were lost: {why}"));
            return true;
        }
        let lost = comm.lost.iter().copied().collect();
        let (epoch, groups, outcome) = (comm.epoch, comm.groups, comm.last.clone());
        let order = DeviceOrder::GoOn { comm: comm.id, epoch, attempt, groups, last: outcome, lost };
        let (mut successors, mut refused, mut all_told) = (None, why, true);
        for member in living {
            let Some(membership) = self.pool.membership_or_loss(member, comm) else { continue };
            match &membership.phase {
                _ if membership.formation.epoch > epoch => {
                    successors = Some(membership.formation.members.clone());
                }
                DevicePhase::Failed { attempt: tried, why, .. } if *tried >= attempt => {
                    refused = format!("device {member}: {why}");
                }
                _ => {
                    all_told = false;
                    self.order(member, &order);
                }
            }
        }
        match successors {
            _ if !all_told => false,
            Some(members) => self.succeed(comm, members),
            None if attempt < last => {
                comm.stage = CommStage::GoingOn { attempt: attempt + 1, last, why: refused };
                true
            }
            None => self.give_up(comm, refused),
        }
    }

    /// The members that are left are in the next epoch.
    fn succeed(&mut self, comm: &mut Comm, members: Vec<DeviceId>) -> Moved {
        self.enter_next_epoch(comm, members);
        self.counts.recovered += 1;
        comm.stage = match comm.trouble(&self.pool) {
            Some(CommFailure { why, .. }) => CommStage::going_on(comm.next_attempt(&self.pool), why),
            None => CommStage::Ready,
        };
        true
    }

    /// The next epoch has begun, with these members. Whoever of all is not there by now is turned out, whether the others count on it
    /// or not.
    pub(super) fn enter_next_epoch(&mut self, comm: &mut Comm, members: Vec<DeviceId>) {
        let next = comm.epoch + 1;
        for device in comm.living().into_iter().chain(std::mem::take(&mut comm.newcomers)) {
            if self.pool.phase(device, comm.id, next).is_none() {
                self.pool.take_back(device, comm.id);
            }
        }
        let is_lost = |member: &DeviceId| self.pool.phase(*member, comm.id, next).is_none();
        comm.lost = members.iter().copied().filter(is_lost).collect();
        comm.hung.retain(|device, _| comm.lost.contains(device));
        (comm.members, comm.epoch) = (members, next);
    }

    fn give_up(&mut self, comm: &mut Comm, why: String) -> Moved {
        for asker in comm.take_waiting(&[WaitCondition::Ready]) {
            self.reply(asker, Err(RequestError::Failed { comm: comm.id, why: why.clone() }));
        }
        comm.stage = CommStage::Failed { why, weight: CAUSE, in_vain: true };
        true
    }

    fn leave(&mut self, comm: &mut Comm, gracefully: bool) -> Moved {
        let gracefully = gracefully && comm.lost.is_empty();
        let order = DeviceOrder::Leave { comm: comm.id, gracefully };
        let mut all_out = true;
        for member in comm.living().into_iter().chain(comm.newcomers.clone()) {
            let Some(device) = self.pool.get(member).filter(|device| device.owner == Some(comm.id)) else {
                continue;
            };
            if device.is_out_of_all() {
                self.pool.take_back(member, comm.id);
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

    /// Answers those for whom the wait is over.
    fn tell(&mut self, comm: &mut Comm) {
        let over: &[WaitCondition] = match comm.stage {
            CommStage::Ended => &[
                WaitCondition::Ready,
                WaitCondition::Grown,
                WaitCondition::Done,
                WaitCondition::Settled,
                WaitCondition::Finalized,
                WaitCondition::Ended,
            ],
            CommStage::Ready => &[WaitCondition::Ready, WaitCondition::Grown, WaitCondition::Settled],
            CommStage::Failed { .. } => &[WaitCondition::Settled],
            _ => &[],
        };
        let (waiting, id) = (std::mem::take(&mut comm.waiting), comm.id);
        for (asker, awaited) in waiting {
            let reply = match awaited {
                awaited if !over.contains(&awaited) => {
                    comm.waiting.push((asker, awaited));
                    continue;
                }
                WaitCondition::Finalized | WaitCondition::Ended => Ok(Reply::Ended),
                WaitCondition::Ready | WaitCondition::Grown | WaitCondition::Done
                    if comm.stage == CommStage::Ended =>
                {
                    Err(RequestError::Ended { comm: id, why: comm.fate.clone() })
                }
                _ => Ok(Reply::Status(comm.status())),
            };
            self.reply(asker, reply);
        }
    }

    /// Tells devices to leave what they say that they belong to, where they do not.
    fn turn_out(&mut self) {
        let mut strays = Vec::new();
        for (id, device) in self.pool.iter() {
            let is_outside = device.report.membership.as_ref().is_some_and(DeviceMembership::is_outside);
            if is_outside && !self.is_open() {
                // Those whom it is to join may come back.
                continue;
            }
            let comm = device.report.membership.as_ref().map(|membership| membership.formation.comm);
            if let Some(comm) = comm.filter(|comm| device.owner != Some(*comm)) {
                strays.push((id, DeviceOrder::Leave { comm, gracefully: false }));
            }
        }
        for (device, order) in strays {
            self.order(device, &order);
        }
    }
}

impl Comm {
    /// What came of the newest group, as its members tell, who are all ready after it.
    fn outcome(&self, pool: &DeviceTable) -> GroupOutcome {
        let told = |member: &DeviceId| {
            let last = pool.membership(*member, self.id)?.last.clone()?;
            (last.group == self.groups).then_some((*member, last))
        };
        let told: Vec<_> = self.members.iter().filter_map(told).collect();
        let failed = || told.iter().filter(|(_, last)| last.failure.is_some());
        // Who names another one tells only that it failed there.
        let first = failed().find(|(_, last)| last.culprit.is_none()).or_else(|| failed().next());
        let failure = first.and_then(|(member, last)| {
            last.failure.as_ref().map(|failure| format!("device {member}: {failure}"))
        });
        let culprit = first.and_then(|(_, last)| last.culprit);
        let checkpoint = told.iter().find_map(|(_, last)| last.checkpoint).filter(|_| failure.is_none());
        let report = first.and_then(|(_, last)| last.report.clone());
        GroupOutcome { group: self.groups, failure, culprit, checkpoint, report }
    }
}

/// Whether a communicator has begun an epoch, has failed, or has ended since it was looked at last.
fn is_turn(was: Option<(CommState, u64)>, is: (CommState, u64)) -> bool {
    let is_up = |state| matches!(state, CommState::Ready | CommState::InProgress | CommState::Growing);
    let has_begun = is_up(is.0) && was.is_none_or(|was| !is_up(was.0) || was.1 != is.1);
    let has_failed = is.0 == CommState::Failed && was.is_none_or(|was| was.0 != CommState::Failed);
    has_begun || has_failed || is.0.has_ended()
}
