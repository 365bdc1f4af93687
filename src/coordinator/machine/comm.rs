//! A communicator as the coordinator knows it.

use std::collections::{BTreeMap, BTreeSet};

use super::RequestId;
use super::device_table::DeviceTable;
use super::repeat::Repeat;
use crate::coordinator::call::{DeviceCall, GroupWork};
use crate::coordinator::id::{CommId, DeviceId, GroupId};
use crate::coordinator::order::{CAUSE, CommFormation, DevicePhase, FailureKind};
use crate::coordinator::request::{CommState, CommStatus, GroupOutcome};

/// The most requests that may wait for one communicator, other than to destroy it.
pub(crate) const MAX_WAITING: usize = 64;

/// How many times the members are told to go on until the next attempt is left to the client.
const MAX_ATTEMPTS: u32 = 3;

/// A communicator, and the requests that wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comm {
    pub(crate) id: CommId,
    /// The coordinator that made it.
    pub(crate) incarnation: u64,
    /// The members of this epoch, in the order of their ranks.
    pub(crate) members: Vec<DeviceId>,
    /// The members that are gone.
    pub(crate) lost: BTreeSet<DeviceId>,
    /// How it was found that a lost member or newcomer hangs.
    pub(crate) hung: BTreeMap<DeviceId, String>,
    /// The devices that are about to join the members, while they grow.
    pub(crate) newcomers: Vec<DeviceId>,
    pub(crate) epoch: u64,
    /// The number of the newest group.
    pub(crate) groups: u64,
    /// The group that takes calls, if one does.
    pub(crate) open: Option<OpenGroup>,
    pub(crate) keep_going: bool,
    /// Whether it was finalized: it is left when what is in progress is done, even if no client
    /// waits for that any more. A failure undoes it.
    pub(crate) ending: bool,
    /// Why it ends, if it was not finalized.
    pub(crate) end_reason: Option<String>,
    /// The group that is in progress, if it is repeated after a loss.
    pub(crate) repeat: Option<Repeat>,
    pub(crate) stage: CommStage,
    pub(crate) last: Option<GroupOutcome>,
    /// Until when the cause of a failure is awaited of which only consequences were reported.
    pub(crate) cause_by_ms: Option<u64>,
    pub(crate) waiting: Vec<(RequestId, WaitCondition)>,
    /// The state and epoch when the log was considered last.
    pub(crate) logged: Option<LoggedState>,
}

/// What the log tells of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedState {
    pub(crate) state: CommState,
    pub(crate) epoch: u64,
}

/// A group that takes calls.
#[derive(Clone, Debug)]
pub(crate) struct OpenGroup {
    pub(crate) id: GroupId,
    pub(crate) calls: Vec<DeviceCall>,
    /// Whether it outlives losses, and is repeated after them.
    pub(crate) repeats: bool,
}

/// The stage of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CommStage {
    /// Rank 0 makes the id of the meeting.
    #[default]
    Hosting,
    /// All meet under this id.
    Meeting { id: String },
    /// It is older than this coordinator, which waits for its members until then.
    Adopting { until_ms: u64 },
    /// All members are idle.
    Ready,
    /// All execute the group of number [`Comm::groups`].
    Running { work: GroupWork },
    /// The first newcomer makes the id of the meeting.
    Inviting,
    /// Members and newcomers meet under this id, unless that is called `off` for this reason.
    Growing { id: String, off: Option<String> },
    /// A member is lost, or a group has failed. `gave_up` is whether the attempts to go on have
    /// failed.
    Failed { why: String, weight: u8, gave_up: bool },
    /// The members that are left go on to the next epoch. Attempt `last` is the last one.
    GoingOn { attempt: u32, last: u32, why: String },
    /// All members leave.
    Leaving { gracefully: bool },
    /// No device is left in it.
    Ended,
}

/// A failure of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommFailure {
    pub(crate) why: String,
    /// How near it is to the cause, by [`FailureKind::weight`].
    pub(crate) weight: u8,
    /// The device that has caused it, where that is known.
    pub(crate) culprit: Option<DeviceId>,
    /// The operation of every rank, where that is known.
    pub(crate) report: Option<String>,
}

/// The condition that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// It is ready, at the start or after a loss.
    Ready,
    /// It has grown.
    Grown,
    /// Its checkpoint is written, or read back.
    Done,
    /// Nothing is in progress.
    Settled,
    /// Its group has begun, once the members have gone on. Then it waits until nothing is in
    /// progress.
    Begun,
    /// Nothing is in progress, so that the memory of this device can be copied.
    Located(DeviceId),
    /// All members have left it after all was done.
    Finalized,
    /// All members have left it.
    Ended,
}

impl CommFailure {
    fn new(why: String, weight: u8, culprit: Option<DeviceId>) -> Self {
        Self { why, weight, culprit, report: None }
    }
}

impl CommStage {
    /// Returns the stage in which members go on, from this attempt on.
    pub(crate) fn going_on(attempt: u32, why: String) -> Self {
        Self::GoingOn { attempt, last: attempt.saturating_add(MAX_ATTEMPTS - 1), why }
    }
}

impl Comm {
    pub(crate) fn new(formation: &CommFormation, stage: CommStage) -> Self {
        let CommFormation { comm: id, incarnation, epoch, members, keep_going } = formation.clone();
        Self { id, incarnation, epoch, members, keep_going, stage, ..Self::default() }
    }

    /// Returns the formation of which the members are told.
    pub(crate) fn formation(&self) -> CommFormation {
        let Self { id: comm, incarnation, epoch, keep_going, .. } = *self;
        CommFormation { comm, incarnation, epoch, members: self.members.clone(), keep_going }
    }

    /// Returns the formation after growing. The newcomers may take another order.
    pub(crate) fn next_formation(&self) -> CommFormation {
        let members = self.members.iter().chain(&self.newcomers).copied().collect();
        CommFormation { epoch: self.epoch + 1, members, ..self.formation() }
    }

    /// Has it end now, or when all have left it, without being finalized.
    pub(crate) fn end(&mut self, stage: CommStage, end_reason: String) {
        (self.ending, self.stage, self.repeat) = (false, stage, None);
        self.end_reason.get_or_insert(end_reason);
    }

    /// Takes out the newcomers.
    pub(crate) fn take_newcomers(&mut self) -> Vec<DeviceId> {
        let newcomers = std::mem::take(&mut self.newcomers);
        self.hung.retain(|device, _| !newcomers.contains(device));
        newcomers
    }

    /// Returns the members that are not lost.
    pub(crate) fn living(&self) -> Vec<DeviceId> {
        self.members.iter().copied().filter(|member| !self.lost.contains(member)).collect()
    }

    pub(crate) fn state(&self) -> CommState {
        match self.stage {
            CommStage::Hosting | CommStage::Meeting { .. } | CommStage::Adopting { .. } => CommState::Init,
            CommStage::Ready => CommState::Ready,
            CommStage::Running { .. } if self.ending => CommState::Finalizing,
            CommStage::Running { .. } => CommState::InProgress,
            CommStage::Inviting | CommStage::Growing { .. } => CommState::Growing,
            CommStage::Failed { .. } | CommStage::GoingOn { .. } if self.repeat.is_none() => {
                CommState::Failed
            }
            CommStage::Failed { .. } | CommStage::GoingOn { .. } if self.ending => CommState::Finalizing,
            CommStage::Failed { .. } | CommStage::GoingOn { .. } => CommState::InProgress,
            CommStage::Leaving { .. } => CommState::Finalizing,
            CommStage::Ended if self.ending => CommState::Finalized,
            CommStage::Ended => CommState::Destroyed,
        }
    }

    pub(crate) fn status(&self) -> CommStatus {
        let why = match &self.stage {
            CommStage::Failed { why, .. } | CommStage::GoingOn { why, .. } if self.repeat.is_none() => {
                Some(why.clone())
            }
            _ => self.end_reason.clone(),
        };
        CommStatus {
            comm: self.id,
            state: self.state(),
            epoch: self.epoch,
            devices: self.members.clone(),
            lost: self.lost.iter().copied().collect(),
            last: self.last.clone(),
            why,
        }
    }

    /// Returns whether it waits for members of a coordinator before this one.
    pub(crate) fn is_adopted(&self) -> bool {
        matches!(self.stage, CommStage::Adopting { .. })
    }

    /// Returns until when it waits for its adoption, or for the cause of a failure, if it does.
    pub(crate) fn waits_until(&self) -> Option<u64> {
        match self.stage {
            CommStage::Adopting { until_ms } => Some(until_ms),
            CommStage::Running { .. } => self.cause_by_ms,
            _ => None,
        }
    }

    /// Takes out the requests that wait for one of these conditions.
    pub(crate) fn take_waiting(&mut self, conditions: &[WaitCondition]) -> Vec<RequestId> {
        let taken = self.waiting.extract_if(.., |(_, it)| conditions.contains(it));
        taken.map(|(request_id, _)| request_id).collect()
    }

    /// Returns the number of the next attempt to go on. Members ignore attempts that they have
    /// made.
    pub(crate) fn next_attempt(&self, table: &DeviceTable) -> u32 {
        let tried = |member: &DeviceId| match table.phase(*member, self.id, self.epoch) {
            Some(DevicePhase::Failed { attempt, .. } | DevicePhase::GoingOn(attempt)) => Some(*attempt),
            _ => None,
        };
        self.members.iter().filter_map(tried).max().unwrap_or_default().saturating_add(1)
    }

    /// Describes the loss of a member or newcomer, and how it was found if it hangs.
    pub(crate) fn loss_of(&self, lost: DeviceId) -> String {
        let how = self.hung.get(&lost).map_or_else(String::new, |how| format!(": {how}"));
        format!("device {lost} was lost{how}")
    }

    /// Returns the failure of its members, if there is one: a member is lost, reports a failure, or
    /// has left as another coordinator has ordered. Of several, returns the first of those nearest
    /// to the cause.
    pub(crate) fn failure(&self, table: &DeviceTable) -> Option<CommFailure> {
        let lost = self.lost.first().map(|lost| CommFailure::new(self.loss_of(*lost), CAUSE, Some(*lost)));
        let reported = self.members.iter().filter_map(|member| self.failure_of(table, *member));
        // `max_by_key` takes the last of equals.
        let all: Vec<_> = lost.into_iter().chain(reported).collect();
        all.into_iter().rev().max_by_key(|finding| finding.weight)
    }

    /// Returns the failure that a member reports, if it does.
    fn failure_of(&self, table: &DeviceTable, member: DeviceId) -> Option<CommFailure> {
        let is_formed =
            matches!(self.stage, CommStage::Ready | CommStage::Running { .. } | CommStage::Inviting);
        let left = || {
            let weight = FailureKind::PeerLost.weight();
            CommFailure::new(format!("device {member} has left"), weight, Some(member))
        };
        Some(match table.phase(member, self.id, self.epoch) {
            Some(DevicePhase::Failed { why, kind, culprit, .. }) => {
                let named = culprit.map_or_else(String::new, |culprit| format!(" (device {culprit})"));
                let why = format!("device {member}: {why}{named}");
                let last = table.membership(member, self.id).and_then(|it| it.last.as_ref());
                let report = last.filter(|last| last.group == self.groups).and_then(|it| it.report.clone());
                CommFailure { report, ..CommFailure::new(why, kind.weight(), *culprit) }
            }
            Some(DevicePhase::Unmet(why)) => CommFailure::new(format!("device {member}: {why}"), CAUSE, None),
            Some(DevicePhase::Leaving) => left(),
            // A lost member is reported as lost.
            None if is_formed && !self.lost.contains(&member) => left(),
            _ => return None,
        })
    }
}
