//! The decisions of a device: its communicator, the order that it executes, and its report. Like
//! the coordinator's, they are a state machine without clock, threads, input or output. A worker
//! beside it executes one task at a time.

use std::time::Duration;

use super::call::GroupWork;
use super::id::{CommId, DeviceId};
use super::order::{
    CommFormation, DeviceMembership, DeviceOrder, DevicePhase, DeviceReport, FailedGrowth, FailureKind,
};
use super::request::GroupOutcome;

/// A task for the worker of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceTask {
    /// Make an id, and host its meeting.
    Host,
    /// Meet the others under `id`, in their first epoch.
    Meet {
        /// The number of all devices with this one.
        n_ranks: u32,
        /// Its rank among them.
        rank: u32,
        /// The text of the id.
        id: String,
    },
    /// Meet members that grow under `id`, as a newcomer.
    Join {
        /// The text of the id.
        id: String,
    },
    /// Meet newcomers under `id`.
    Grow {
        /// The number of all devices then.
        n_ranks: u32,
        /// The text of the id.
        id: String,
    },
    /// Execute a group.
    Run {
        /// The work of the group.
        work: GroupWork,
    },
    /// Go on with the ranks that are left.
    GoOn,
    /// Leave the communicator.
    Leave {
        /// Whether to leave together with the others, when all is done. Otherwise at once.
        gracefully: bool,
    },
}

/// The failure of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFailure {
    /// Why it has failed.
    pub why: String,
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The rank that was waited for in vain or lost, or on which it failed.
    pub rank: Option<u32>,
    /// Whether nothing has changed on any rank, so that the epoch goes on.
    pub is_undone: bool,
    /// The operations of all ranks, if it was a timeout.
    pub report: Option<String>,
}

/// The outcome of a [`DeviceTask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The text of the id, or why there is none.
    Hosted(Result<String, String>),
    /// The members by rank, if it has met the others. Otherwise it is where it was.
    Met(Result<Vec<DeviceId>, String>),
    /// It has not met the newcomers, and its epoch has ended by that.
    Ended(String),
    /// The number of the checkpoint, if the group was one, or why the group has failed.
    Ran(Result<Option<u64>, GroupFailure>),
    /// The ranks of the epoch before that it goes on without, or why it does not go on.
    WentOn(Result<Vec<u32>, String>),
    /// It has left.
    Left,
}

/// An action that the state machine of a device decides on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentStep {
    /// Give the task to the worker, which has none.
    Begin(DeviceTask),
    /// Abort the epoch, so that the worker's task ends soon. These ranks are not waited for any
    /// more.
    Interrupt {
        /// Ranks of the present epoch.
        lost: Vec<u32>,
    },
    /// End the meeting that the worker waits at, and nothing else.
    CancelMeeting,
}

/// The state machine of a device. See the module.
#[derive(Debug)]
pub struct Agent {
    device: DeviceId,
    report: DeviceReport,
    is_busy: bool,
    /// Whether the newest group was ordered by the coordinator that it is connected with.
    is_ordered_here: bool,
    /// The order to execute when the present task has ended.
    next: Option<DeviceOrder>,
}

impl Agent {
    /// Makes a device that is in no communicator.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self { device, report: DeviceReport::default(), is_busy: false, is_ordered_here: false, next: None }
    }

    /// Has it report that it waits for other devices for `timeout`.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.report.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Returns its state.
    #[must_use]
    pub fn report(&self) -> &DeviceReport {
        &self.report
    }

    /// Returns the report for the coordinator that it is connected with.
    ///
    /// It is the state, but without the work of a group that this coordinator has ordered. So the
    /// reports of many devices that begin a long group at once are short.
    #[must_use]
    pub fn outgoing_report(&self) -> DeviceReport {
        let mut membership = self.report.membership.clone();
        if let Some(DeviceMembership { phase: DevicePhase::Running { work, .. }, .. }) = &mut membership
            && self.is_ordered_here
        {
            *work = None;
        }
        DeviceReport { membership, ..self.report }
    }

    /// Returns the communicator that it belongs to.
    #[must_use]
    pub fn comm(&self) -> Option<CommId> {
        self.report.membership.as_ref().map(|membership| membership.formation.comm)
    }

    /// Notes that a connection with a coordinator begins.
    pub fn connect(&mut self) {
        (self.report.version, self.report.heard) = (1, 0);
        self.is_ordered_here = false;
    }

    /// Takes an order. Returns the actions for it; the report has changed.
    pub fn take(&mut self, order: DeviceOrder) -> Vec<AgentStep> {
        self.report.version += 1;
        self.report.heard += 1;
        if !self.fits(&order) {
            return Vec::new();
        }
        self.is_ordered_here |= matches!(order, DeviceOrder::Run { .. });
        let mut steps = self.interrupt(&order);
        if let DeviceOrder::Grow { .. } = order {
            // The others wait for this device at the meeting, even if it only comes to call it off.
            let begin = (!self.is_busy).then(|| self.begin(order));
            return begin.into_iter().chain(steps).collect();
        }
        if self.is_busy {
            self.next = Some(order);
        } else {
            steps.push(self.begin(order));
        }
        steps
    }

    /// Takes the outcome of the last task. Returns the next actions; the report has changed.
    pub fn finish(&mut self, outcome: TaskOutcome) -> Vec<AgentStep> {
        self.report.version += 1;
        self.is_busy = false;
        match outcome {
            TaskOutcome::Left => self.report.membership = None,
            outcome => self.conclude(outcome),
        }
        let Some(order) = self.next.take().filter(|order| self.fits(order)) else { return Vec::new() };
        // The interrupt before may have come before the task that it was for had begun.
        let mut steps = self.interrupt(&order);
        steps.push(self.begin(order));
        steps
    }

    /// Whether the order is meant for its present state.
    fn fits(&self, order: &DeviceOrder) -> bool {
        let Some(membership) = &self.report.membership else {
            return match order {
                DeviceOrder::Host(formation) | DeviceOrder::Join { formation, .. } => {
                    formation.members.contains(&self.device)
                }
                _ => false,
            };
        };
        let CommFormation { comm: mine, epoch, .. } = membership.formation;
        let phase = &membership.phase;
        match order {
            DeviceOrder::Host(_) => false,
            DeviceOrder::Join { formation, .. } => {
                formation.comm == mine && matches!(phase, DevicePhase::Hosting { .. })
            }
            DeviceOrder::Run { comm, epoch: meant, group, .. } => {
                let is_next = |groups: &u64| groups.checked_add(1) == Some(*group);
                (*comm, *meant) == (mine, epoch)
                    && matches!(phase, DevicePhase::Ready { groups, .. } if is_next(groups))
            }
            DeviceOrder::Grow { formation, id, off } => {
                let is_new = match phase {
                    DevicePhase::Ready { tried, .. } => tried.as_ref().is_none_or(|tried| tried.id != *id),
                    DevicePhase::Growing { id: tried, .. } => off.is_some() && tried == id,
                    _ => false,
                };
                (formation.comm, formation.epoch) == (mine, epoch + 1) && is_new
            }
            DeviceOrder::GoOn { comm, epoch: meant, attempt, .. } => {
                let is_new = match phase {
                    DevicePhase::Failed { attempt: tried, .. } => attempt > tried,
                    // The same attempt may name more lost members.
                    DevicePhase::GoingOn { attempt: tried, .. } => attempt >= tried,
                    DevicePhase::Joining { .. }
                    | DevicePhase::Ready { .. }
                    | DevicePhase::Running { .. }
                    | DevicePhase::Growing { .. } => true,
                    _ => false,
                };
                (*comm, *meant) == (mine, epoch) && is_new
            }
            DeviceOrder::Leave { comm, .. } => *comm == mine,
        }
    }

    /// Returns the actions that abort what is in progress, where the order does not wait for it.
    fn interrupt(&self, order: &DeviceOrder) -> Vec<AgentStep> {
        let Some(membership) = &self.report.membership else { return Vec::new() };
        let rank = |lost: &DeviceId| rank_of(&membership.formation, *lost);
        match order {
            DeviceOrder::Grow { off: Some(lost), .. } if lost.is_empty() => vec![AgentStep::CancelMeeting],
            DeviceOrder::GoOn { lost, .. } | DeviceOrder::Grow { off: Some(lost), .. } => {
                vec![AgentStep::Interrupt { lost: lost.iter().filter_map(rank).collect() }]
            }
            DeviceOrder::Leave { gracefully: false, .. } => vec![AgentStep::Interrupt { lost: Vec::new() }],
            _ => Vec::new(),
        }
    }

    fn begin(&mut self, order: DeviceOrder) -> AgentStep {
        self.is_busy = true;
        match order {
            DeviceOrder::Host(formation) => {
                self.enter(formation, DevicePhase::Hosting { id: None }, None);
                AgentStep::Begin(DeviceTask::Host)
            }
            DeviceOrder::Join { formation, groups, last, id } => {
                let (n_ranks, rank) = (n_ranks(&formation), rank_of(&formation, self.device));
                let is_first = formation.epoch == 1;
                self.enter(formation, DevicePhase::Joining { groups, id: id.clone() }, last);
                AgentStep::Begin(match rank {
                    Some(rank) if is_first => DeviceTask::Meet { n_ranks, rank, id },
                    _ => DeviceTask::Join { id },
                })
            }
            DeviceOrder::Grow { formation, id, .. } => {
                let (groups, n_ranks) = (self.groups(), n_ranks(&formation));
                self.change(DevicePhase::Growing { groups, formation, id: id.clone() });
                AgentStep::Begin(DeviceTask::Grow { n_ranks, id })
            }
            DeviceOrder::Run { group, work, .. } => {
                self.change(DevicePhase::Running { group, work: Some(work.clone()) });
                AgentStep::Begin(DeviceTask::Run { work })
            }
            DeviceOrder::GoOn { attempt, groups, last, .. } => {
                self.change(DevicePhase::GoingOn { groups, attempt });
                self.remember(last);
                AgentStep::Begin(DeviceTask::GoOn)
            }
            DeviceOrder::Leave { gracefully, .. } => {
                self.change(DevicePhase::Leaving);
                AgentStep::Begin(DeviceTask::Leave { gracefully })
            }
        }
    }

    fn enter(&mut self, formation: CommFormation, phase: DevicePhase, last: Option<GroupOutcome>) {
        self.report.membership = Some(DeviceMembership { formation, has_met: false, phase, last });
    }

    fn groups(&self) -> u64 {
        self.report.membership.as_ref().map_or(0, |membership| membership.phase.groups())
    }

    fn remember(&mut self, last: Option<GroupOutcome>) {
        if let Some(membership) = &mut self.report.membership {
            membership.last = last;
        }
    }

    fn change(&mut self, phase: DevicePhase) {
        if let Some(membership) = &mut self.report.membership {
            membership.phase = phase;
        }
    }

    fn conclude(&mut self, outcome: TaskOutcome) {
        let Some(membership) = &mut self.report.membership else { return };
        let ready = |groups: &u64| DevicePhase::Ready { groups: *groups, tried: None };
        let next = match (outcome, &membership.phase) {
            (TaskOutcome::Hosted(Ok(id)), _) => DevicePhase::Hosting { id: Some(id) },
            (TaskOutcome::Met(Ok(members)), DevicePhase::Joining { groups, .. }) => {
                membership.formation.members = members;
                membership.has_met = true;
                ready(groups)
            }
            (TaskOutcome::Met(Ok(members)), DevicePhase::Growing { groups, formation, .. }) => {
                membership.formation = CommFormation { members, ..formation.clone() };
                ready(groups)
            }
            (TaskOutcome::Met(Err(why)), DevicePhase::Growing { groups, id, .. }) => {
                DevicePhase::Ready { groups: *groups, tried: Some(FailedGrowth { id: id.clone(), why }) }
            }
            (TaskOutcome::Ended(why), DevicePhase::Growing { groups, .. }) => DevicePhase::Failed {
                groups: *groups,
                attempt: 0,
                why,
                kind: FailureKind::Other,
                culprit: None,
            },
            (TaskOutcome::Hosted(Err(why)) | TaskOutcome::Met(Err(why)), _) => DevicePhase::Unmet { why },
            (TaskOutcome::Ran(outcome), DevicePhase::Running { group, .. }) => {
                let checkpoint = outcome.as_ref().ok().copied().flatten();
                let trouble = outcome.err();
                let rank = trouble.as_ref().and_then(|trouble| trouble.rank);
                let members = &membership.formation.members;
                let culprit = rank.and_then(|rank| members.get(rank as usize).copied());
                let failure = trouble.as_ref().map(|trouble| trouble.why.clone());
                let report = trouble.as_ref().and_then(|trouble| trouble.report.clone());
                membership.last = Some(GroupOutcome { group: *group, failure, culprit, checkpoint, report });
                match trouble {
                    None | Some(GroupFailure { is_undone: true, .. }) => ready(group),
                    Some(GroupFailure { why, kind, .. }) => {
                        DevicePhase::Failed { groups: *group, attempt: 0, why, kind, culprit }
                    }
                }
            }
            (TaskOutcome::WentOn(Ok(lost)), DevicePhase::GoingOn { groups, .. }) => {
                let next = ready(groups);
                membership.formation.epoch += 1;
                let mut rank = 0..;
                membership
                    .formation
                    .members
                    .retain(|_| rank.next().is_some_and(|rank| !lost.contains(&rank)));
                next
            }
            (TaskOutcome::WentOn(Err(why)), DevicePhase::GoingOn { groups, attempt }) => {
                let (kind, culprit) = (FailureKind::Other, None);
                DevicePhase::Failed { groups: *groups, attempt: *attempt, why, kind, culprit }
            }
            // The worker answers only the task that it was given.
            _ => return,
        };
        membership.phase = next;
    }
}

impl From<String> for GroupFailure {
    fn from(why: String) -> Self {
        Self { why, kind: FailureKind::Other, rank: None, is_undone: false, report: None }
    }
}

fn n_ranks(formation: &CommFormation) -> u32 {
    u32::try_from(formation.members.len()).unwrap_or(u32::MAX)
}

fn rank_of(formation: &CommFormation, device: DeviceId) -> Option<u32> {
    let index = formation.members.iter().position(|member| *member == device)?;
    u32::try_from(index).ok()
}

#[cfg(test)]
mod tests;
