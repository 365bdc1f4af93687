//! A communicator as the coordinator knows it.

use std::collections::{BTreeMap, BTreeSet};

use super::RequestId;
use super::device_table::DeviceTable;
use crate::coordinator::call::{DeviceCall, GroupWork};
use crate::coordinator::id::{CommId, DeviceId, GroupId};
use crate::coordinator::order::{CAUSE, CommFormation, DevicePhase, FailureKind};
use crate::coordinator::request::{CommState, CommStatus, GroupOutcome};

/// How many requests may wait for one communicator, other than to destroy it.
pub(crate) const MAX_WAITING: usize = 64;

/// How many times the members are told to go on before it is left to the client.
const MAX_ATTEMPTS: u32 = 3;

/// A communicator, and who waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Comm {
    pub(crate) id: CommId,
    /// The coordinator that made it.
    pub(crate) incarnation: u64,
    /// The members of this epoch, in the order of their ranks.
    pub(crate) members: Vec<DeviceId>,
    /// Those of them that are gone.
    pub(crate) lost: BTreeSet<DeviceId>,
    /// How it was found that members or newcomers hang that were lost by that.
    pub(crate) hung: BTreeMap<DeviceId, String>,
    /// Who is about to join the members, while they grow.
    pub(crate) newcomers: Vec<DeviceId>,
    pub(crate) epoch: u64,
    /// The number of the newest group.
    pub(crate) groups: u64,
    /// What a client has put into a group that has not ended.
    pub(crate) open: Option<OpenGroup>,
    pub(crate) keep_going: bool,
    /// It was finalized: it is left when what is in progress is done, whoever waits for that. A failure undoes it.
    pub(crate) ending: bool,
    /// Why it ends, where it was not finalized.
    pub(crate) fate: Option<String>,
    pub(crate) stage: CommStage,
    pub(crate) last: Option<GroupOutcome>,
    /// Until when the cause of a failure is waited for, of which only consequences have been told.
    pub(crate) cause_by_ms: Option<u64>,
    pub(crate) waiting: Vec<(RequestId, WaitCondition)>,
}

/// A group that takes calls.
#[derive(Clone, Debug)]
pub(crate) struct OpenGroup {
    pub(crate) id: GroupId,
    pub(crate) calls: Vec<DeviceCall>,
}

/// Where a communicator is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommStage {
    /// Rank 0 makes the id of the meeting.
    Hosting,
    /// All meet under this id.
    Meeting { id: String },
    /// It was there before this coordinator, which waits for its members until then.
    Adopting { until_ms: u64 },
    /// Nothing to do.
    Ready,
    /// All execute the group of the communicator's number.
    Running { work: GroupWork },
    /// The first newcomer makes the id of the meeting.
    Inviting,
    /// Members and newcomers meet under this id; unless it is `off`, for that reason.
    Growing { id: String, off: Option<String> },
    /// A member is lost, or a group has failed; it may have been tried in vain to go on.
    Failed { why: String, weight: u8, in_vain: bool },
    /// The members that are left go on to the next epoch, which is tried until attempt `last`.
    GoingOn { attempt: u32, last: u32, why: String },
    /// All members leave.
    Leaving { gracefully: bool },
    /// Nobody is left in it.
    Ended,
}

/// What is wrong with a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommFailure {
    pub(crate) why: String,
    /// How near it is to the cause: of [`FailureKind::weight`](crate::coordinator::order::FailureKind::weight).
    pub(crate) weight: u8,
    /// By which device.
    pub(crate) culprit: Option<DeviceId>,
    /// What every rank was in, where that is known.
    pub(crate) report: Option<String>,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// That it is ready, from the start or after a loss.
    Ready,
    /// That it has grown.
    Grown,
    /// That its checkpoint is written, or read back.
    Done,
    /// That nothing is in progress.
    Settled,
    /// That it is left when all is done.
    Finalized,
    /// That it is left.
    Ended,
}

impl CommStage {
    /// The members go on, from this attempt on.
    pub(crate) fn going_on(attempt: u32, why: String) -> Self {
        Self::GoingOn { attempt, last: attempt.saturating_add(MAX_ATTEMPTS - 1), why }
    }
}

impl Comm {
    pub(crate) fn new(formation: &CommFormation, stage: CommStage) -> Self {
        Self {
            id: formation.comm,
            incarnation: formation.incarnation,
            members: formation.members.clone(),
            lost: BTreeSet::new(),
            hung: BTreeMap::new(),
            newcomers: Vec::new(),
            epoch: formation.epoch,
            groups: 0,
            open: None,
            keep_going: formation.keep_going,
            ending: false,
            fate: None,
            stage,
            last: None,
            cause_by_ms: None,
            waiting: Vec::new(),
        }
    }

    /// What its members are told that it is.
    pub(crate) fn formation(&self) -> CommFormation {
        let Self { id: comm, incarnation, epoch, keep_going, .. } = *self;
        CommFormation { comm, incarnation, epoch, members: self.members.clone(), keep_going }
    }

    /// What it is when it has grown, whoever of the newcomers comes first.
    pub(crate) fn next_formation(&self) -> CommFormation {
        let members = self.members.iter().chain(&self.newcomers).copied().collect();
        CommFormation { epoch: self.epoch + 1, members, ..self.formation() }
    }

    /// It ends now or when all have left it, and was not finalized.
    pub(crate) fn end(&mut self, stage: CommStage, fate: String) {
        (self.ending, self.stage) = (false, stage);
        self.fate.get_or_insert(fate);
    }

    /// The newcomers, who are none any more.
    pub(crate) fn turn_out(&mut self) -> Vec<DeviceId> {
        let newcomers = std::mem::take(&mut self.newcomers);
        self.hung.retain(|device, _| !newcomers.contains(device));
        newcomers
    }

    /// The members that are not lost.
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
            CommStage::Failed { .. } | CommStage::GoingOn { .. } => CommState::Failed,
            CommStage::Leaving { .. } => CommState::Finalizing,
            CommStage::Ended if self.ending => CommState::Finalized,
            CommStage::Ended => CommState::Destroyed,
        }
    }

    pub(crate) fn status(&self) -> CommStatus {
        let why = match &self.stage {
            CommStage::Failed { why, .. } | CommStage::GoingOn { why, .. } => Some(why.clone()),
            _ => self.fate.clone(),
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

    /// Whether it waits for the members that it had before this coordinator.
    pub(crate) fn is_adopted(&self) -> bool {
        matches!(self.stage, CommStage::Adopting { .. })
    }

    /// When it does not wait any longer for its adoption, or the cause of a failure, if it does.
    pub(crate) fn waits_until(&self) -> Option<u64> {
        match self.stage {
            CommStage::Adopting { until_ms } => Some(until_ms),
            CommStage::Running { .. } => self.cause_by_ms,
            _ => None,
        }
    }

    /// Takes out those who wait for one of `awaited`.
    pub(crate) fn take_waiting(&mut self, awaited: &[WaitCondition]) -> Vec<RequestId> {
        let (taken, kept) = self.waiting.drain(..).partition(|(_, it)| awaited.contains(it));
        self.waiting = kept;
        let taken: Vec<(RequestId, WaitCondition)> = taken;
        taken.into_iter().map(|(asker, _)| asker).collect()
    }

    /// The number of the next attempt to go on: members pass over those that they have tried.
    pub(crate) fn next_attempt(&self, pool: &DeviceTable) -> u32 {
        let tried = |member: &DeviceId| match pool.phase(*member, self.id, self.epoch) {
            Some(DevicePhase::Failed { attempt, .. } | DevicePhase::GoingOn { attempt, .. }) => {
                Some(*attempt)
            }
            _ => None,
        };
        self.members.iter().filter_map(tried).max().unwrap_or_default().saturating_add(1)
    }

    /// That a member or newcomer was lost, and how, as far as that is known.
    pub(crate) fn loss_of(&self, lost: DeviceId) -> String {
        let how = self.hung.get(&lost).map_or_else(String::new, |how| format!(": {how}"));
        format!("device {lost} was lost{how}")
    }

    /// What is wrong with its members, if anything: one is lost, tells of a failure, or has left as another coordinator told it. Of
    /// several findings it is the first one of those that are nearest to the cause.
    pub(crate) fn trouble(&self, pool: &DeviceTable) -> Option<CommFailure> {
        let lost = self.lost.first().map(|lost| CommFailure {
            why: self.loss_of(*lost),
            weight: CAUSE,
            culprit: Some(*lost),
            report: None,
        });
        let told = self.members.iter().filter_map(|member| self.finding(pool, *member));
        // The last of equals would be taken.
        let all: Vec<_> = lost.into_iter().chain(told).collect();
        all.into_iter().rev().max_by_key(|finding| finding.weight)
    }

    /// What is wrong by what a member says.
    fn finding(&self, pool: &DeviceTable, member: DeviceId) -> Option<CommFailure> {
        let is_formed =
            matches!(self.stage, CommStage::Ready | CommStage::Running { .. } | CommStage::Inviting);
        let left = || {
            let (why, weight) = (format!("device {member} has left"), FailureKind::PeerLost.weight());
            Some(CommFailure { why, weight, culprit: Some(member), report: None })
        };
        match pool.phase(member, self.id, self.epoch) {
            Some(DevicePhase::Failed { why, kind, culprit, .. }) => {
                let named = culprit.map_or_else(String::new, |culprit| format!(" (device {culprit})"));
                let why = format!("device {member}: {why}{named}");
                let last = pool.membership(member, self.id).and_then(|it| it.last.as_ref());
                let report = last.filter(|last| last.group == self.groups).and_then(|it| it.report.clone());
                Some(CommFailure { why, weight: kind.weight(), culprit: *culprit, report })
            }
            Some(DevicePhase::Unmet { why }) => {
                let why = format!("device {member}: {why}");
                Some(CommFailure { why, weight: CAUSE, culprit: None, report: None })
            }
            Some(DevicePhase::Leaving) => left(),
            // One that is lost is told of as that.
            None if is_formed && !self.lost.contains(&member) => left(),
            _ => None,
        }
    }
}
