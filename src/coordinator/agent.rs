//! The decisions of a device: its communicator, the order that it executes, and its report. Like
//! the coordinator's, they are a state machine without clock, threads, input or output. A worker
//! beside it executes one order at a time.

use super::id::{CommId, DeviceId};
use super::order::{
    CommFormation, DeviceMembership, DeviceOrder, DevicePhase, DeviceReport, FailedGrowth, FailureKind,
};
use super::request::GroupOutcome;

/// The failure of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupFailure {
    /// Why it has failed.
    pub(super) why: String,
    /// The kind of the failure.
    pub(super) kind: FailureKind,
    /// The rank that was waited for in vain or lost, or on which it failed.
    pub(super) rank: Option<u32>,
    /// Whether nothing has changed on any rank, so that the epoch goes on.
    pub(super) is_undone: bool,
    /// The operations of all ranks, if it was a timeout.
    pub(super) report: Option<String>,
}

/// The outcome of an order that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaskOutcome {
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
pub(super) enum AgentStep {
    /// Give the order to the worker, which has none.
    Begin(DeviceOrder),
    /// Abort the epoch, so that the worker's order ends soon. These ranks are not waited for any
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
pub(super) struct Agent {
    device: DeviceId,
    report: DeviceReport,
    is_busy: bool,
    /// Whether the newest group was ordered by the coordinator that it is connected with.
    is_ordered_here: bool,
    /// The order to execute when the present one has ended.
    next: Option<DeviceOrder>,
}

impl Agent {
    /// Makes a device that is in no communicator, and whose memory and timeout are as in `report`.
    pub(super) fn new(device: DeviceId, report: DeviceReport) -> Self {
        Self { device, report, is_busy: false, is_ordered_here: false, next: None }
    }

    /// Returns its state.
    pub(super) fn report(&self) -> &DeviceReport {
        &self.report
    }

    /// Returns the report for the coordinator that it is connected with.
    ///
    /// It is the state, but without the work of a group that this coordinator has ordered. So the
    /// reports of many devices that begin a long group at once are short.
    pub(super) fn outgoing_report(&self) -> DeviceReport {
        let mut report = self.report.clone();
        if let Some(DeviceMembership { phase: DevicePhase::Running(work), .. }) = &mut report.membership
            && self.is_ordered_here
        {
            *work = None;
        }
        report
    }

    /// Returns the communicator that it belongs to.
    pub(super) fn comm(&self) -> Option<CommId> {
        self.report.comm()
    }

    /// Notes that a connection with a coordinator begins.
    pub(super) fn connect(&mut self) {
        (self.report.version, self.report.heard) = (1, 0);
        self.is_ordered_here = false;
    }

    /// Takes an order. Returns the actions for it; the report has changed.
    pub(super) fn take(&mut self, order: DeviceOrder) -> Vec<AgentStep> {
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

    /// Takes the outcome of the last order. Returns the next actions; the report has changed.
    pub(super) fn finish(&mut self, outcome: TaskOutcome) -> Vec<AgentStep> {
        self.report.version += 1;
        self.is_busy = false;
        match outcome {
            TaskOutcome::Left => self.report.membership = None,
            outcome => self.conclude(outcome),
        }
        let Some(order) = self.next.take().filter(|order| self.fits(order)) else { return Vec::new() };
        // The interrupt before may have come before the order that it was for had begun.
        let mut steps = self.interrupt(&order);
        steps.push(self.begin(order));
        steps
    }

    /// Returns whether the order is meant for its present state.
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
                formation.comm == mine && matches!(phase, DevicePhase::Hosting(_))
            }
            DeviceOrder::Run { comm, epoch: meant, group, .. } => {
                let is_next = membership.groups.checked_add(1) == Some(*group);
                (*comm, *meant) == (mine, epoch) && is_next && matches!(phase, DevicePhase::Ready(_))
            }
            DeviceOrder::Grow { formation, id, off } => {
                let is_new = match phase {
                    DevicePhase::Ready(tried) => tried.as_ref().is_none_or(|tried| tried.id != *id),
                    DevicePhase::Growing { id: tried, .. } => off.is_some() && tried == id,
                    _ => false,
                };
                (formation.comm, formation.epoch) == (mine, epoch + 1) && is_new
            }
            DeviceOrder::GoOn { comm, epoch: meant, attempt, .. } => {
                let is_new = match phase {
                    DevicePhase::Failed { attempt: tried, .. } => attempt > tried,
                    // The same attempt may name more lost members.
                    DevicePhase::GoingOn(tried) => attempt >= tried,
                    DevicePhase::Joining(_)
                    | DevicePhase::Ready(_)
                    | DevicePhase::Running(_)
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
        let rank = |lost: &DeviceId| membership.formation.rank_of(*lost);
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
        match (&order, &mut self.report.membership) {
            (DeviceOrder::Host(formation), _) => {
                self.enter(formation, 0, None, DevicePhase::Hosting(None));
            }
            (DeviceOrder::Join { formation, groups, last, id }, _) => {
                self.enter(formation, *groups, last.clone(), DevicePhase::Joining(id.clone()));
            }
            (DeviceOrder::Grow { formation, id, .. }, Some(mine)) => {
                mine.phase = DevicePhase::Growing { formation: formation.clone(), id: id.clone() };
            }
            (DeviceOrder::Run { group, work, .. }, Some(mine)) => {
                mine.groups = *group;
                mine.phase = DevicePhase::Running(Some(work.clone()));
            }
            (DeviceOrder::GoOn { attempt, groups, last, .. }, Some(mine)) => {
                (mine.groups, mine.last) = (*groups, last.clone());
                mine.phase = DevicePhase::GoingOn(*attempt);
            }
            (DeviceOrder::Leave { .. }, Some(mine)) => mine.phase = DevicePhase::Leaving,
            // No other order fits a device that is in no communicator.
            (_, None) => {}
        }
        AgentStep::Begin(order)
    }

    fn enter(
        &mut self,
        formation: &CommFormation,
        groups: u64,
        last: Option<GroupOutcome>,
        phase: DevicePhase,
    ) {
        let formation = formation.clone();
        self.report.membership = Some(DeviceMembership { formation, has_met: false, groups, phase, last });
    }

    fn conclude(&mut self, outcome: TaskOutcome) {
        let Some(mine) = &mut self.report.membership else { return };
        let failed = |attempt, why| {
            let (kind, culprit) = (FailureKind::Other, None);
            DevicePhase::Failed { attempt, why, kind, culprit }
        };
        mine.phase = match (outcome, &mine.phase) {
            (TaskOutcome::Hosted(Ok(id)), _) => DevicePhase::Hosting(Some(id)),
            (TaskOutcome::Met(Ok(members)), DevicePhase::Joining(_)) => {
                (mine.formation.members, mine.has_met) = (members, true);
                DevicePhase::Ready(None)
            }
            (TaskOutcome::Met(Ok(members)), DevicePhase::Growing { formation, .. }) => {
                mine.formation = CommFormation { members, ..formation.clone() };
                DevicePhase::Ready(None)
            }
            (TaskOutcome::Met(Err(why)), DevicePhase::Growing { id, .. }) => {
                DevicePhase::Ready(Some(FailedGrowth { id: id.clone(), why }))
            }
            (TaskOutcome::Ended(why), DevicePhase::Growing { .. }) => failed(0, why),
            (TaskOutcome::Hosted(Err(why)) | TaskOutcome::Met(Err(why)), _) => DevicePhase::Unmet(why),
            (TaskOutcome::Ran(Ok(checkpoint)), DevicePhase::Running(_)) => {
                mine.last = Some(GroupOutcome { group: mine.groups, checkpoint, ..GroupOutcome::default() });
                DevicePhase::Ready(None)
            }
            (TaskOutcome::Ran(Err(failure)), DevicePhase::Running(_)) => {
                let GroupFailure { why, kind, rank, is_undone, report } = failure;
                let culprit = rank.and_then(|rank| mine.formation.members.get(rank as usize).copied());
                let (group, failure) = (mine.groups, Some(why.clone()));
                mine.last = Some(GroupOutcome { group, failure, culprit, checkpoint: None, report });
                if is_undone {
                    DevicePhase::Ready(None)
                } else {
                    DevicePhase::Failed { attempt: 0, why, kind, culprit }
                }
            }
            (TaskOutcome::WentOn(Ok(lost)), DevicePhase::GoingOn(_)) => {
                mine.formation.epoch += 1;
                let mut ranks = 0..;
                mine.formation.members.retain(|_| ranks.next().is_some_and(|rank| !lost.contains(&rank)));
                DevicePhase::Ready(None)
            }
            (TaskOutcome::WentOn(Err(why)), DevicePhase::GoingOn(attempt)) => failed(*attempt, why),
            // The worker answers only the order that it was given.
            _ => return,
        };
    }
}

#[cfg(test)]
mod tests;
