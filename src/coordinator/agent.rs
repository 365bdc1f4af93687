//! A device's mind: what it is in, which order it executes, and what it says of that. As the coordinator's, it is a state machine
//! without clock, threads, input or output; a worker beside it executes one task at a time.

use std::time::Duration;

use super::id::{CommId, DeviceId};
use super::order::{FailureKind, Formation, Membership, Order, Phase, Report, Setback};
use super::request::GroupOutcome;
use super::work::Work;

/// What the worker of a device is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Make an id and host its meeting.
    Host,
    /// Meet the others under `id`, all of whom come for the first time.
    Meet {
        /// How many they are, this one among them.
        n_ranks: u32,
        /// Its rank among them.
        rank: u32,
        /// The text of the id.
        id: String,
    },
    /// Meet members that grow, under `id`, as a newcomer.
    Join {
        /// The text of the id.
        id: String,
    },
    /// Meet newcomers under `id`.
    Grow {
        /// How many all are then.
        n_ranks: u32,
        /// The text of the id.
        id: String,
    },
    /// Execute a group.
    Run {
        /// What it consists of.
        work: Work,
    },
    /// Go on with the ranks that are left.
    GoOn,
    /// Leave, together with the others or at once.
    Leave {
        /// Together with the others, when all is done.
        gracefully: bool,
    },
}

/// Why a group has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In words.
    pub why: String,
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// The rank that was waited for in vain, or lost, or where it failed.
    pub rank: Option<u32>,
    /// Nothing has changed by it, on any rank, and the epoch goes on.
    pub is_undone: bool,
    /// What every rank was in, where it was a wait that has lasted too long.
    pub report: Option<String>,
}

/// What came of a [`Task`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The id is there.
    Hosted(Result<String, String>),
    /// It has met the others, who are these by rank; or has not, and is where it was.
    Met(Result<Vec<DeviceId>, String>),
    /// It has not met newcomers, and its epoch has ended by that.
    Ended(String),
    /// The group is done, with the number of the checkpoint where it was one, or has failed.
    Ran(Result<Option<u64>, Trouble>),
    /// It goes on, without these ranks of the epoch before; or does not.
    WentOn(Result<Vec<u32>, String>),
    /// It has left.
    Left,
}

/// What a device is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Give the task to the worker, which has none.
    Begin(Task),
    /// End the epoch, so that the worker's task ends soon; these ranks are not to be waited for any more.
    Interrupt {
        /// Ranks of the present epoch.
        lost: Vec<u32>,
    },
    /// End the meeting that the worker waits at, and nothing else.
    CallOff,
}

/// The state machine of a device. See the module.
#[derive(Debug)]
pub struct Agent {
    device: DeviceId,
    report: Report,
    is_busy: bool,
    /// Whether the coordinator that it is connected with has ordered the newest group.
    is_ordered_here: bool,
    /// What to do when the present task has ended.
    next: Option<Order>,
}

impl Agent {
    /// A device that belongs to nothing.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self { device, report: Report::default(), is_busy: false, is_ordered_here: false, next: None }
    }

    /// The same, which says that it waits for other devices for `timeout`.
    #[must_use]
    pub fn patient_for(mut self, timeout: Duration) -> Self {
        self.report.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// What it knows of itself.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What it says of itself to the coordinator that it is connected with: the same, but for what a group consists of that came from
    /// there. So what comes from many devices at once when they begin a long group is short.
    #[must_use]
    pub fn bulletin(&self) -> Report {
        let mut membership = self.report.membership.clone();
        if let Some(Membership { phase: Phase::Running { work, .. }, .. }) = &mut membership
            && self.is_ordered_here
        {
            *work = None;
        }
        Report { membership, ..self.report }
    }

    /// The communicator that it belongs to.
    #[must_use]
    pub fn comm(&self) -> Option<CommId> {
        self.report.membership.as_ref().map(|membership| membership.formation.comm)
    }

    /// Takes note that a connection with a coordinator begins.
    pub fn connect(&mut self) {
        (self.report.version, self.report.heard) = (1, 0);
        self.is_ordered_here = false;
    }

    /// Takes an order. Returns what is to be done for it; the report has changed.
    pub fn take(&mut self, order: Order) -> Vec<Step> {
        self.report.version += 1;
        self.report.heard += 1;
        if !self.fits(&order) {
            return Vec::new();
        }
        self.is_ordered_here |= matches!(order, Order::Run { .. });
        let mut steps = self.interrupt(&order);
        if let Order::Grow { .. } = order {
            // The others wait for this one at the door, even if it only tells them that it does not come in.
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

    /// Takes what came of the task that was begun last. Returns what is to be done next; the report has changed.
    pub fn finish(&mut self, outcome: Outcome) -> Vec<Step> {
        self.report.version += 1;
        self.is_busy = false;
        match outcome {
            Outcome::Left => self.report.membership = None,
            outcome => self.conclude(outcome),
        }
        let Some(order) = self.next.take().filter(|order| self.fits(order)) else { return Vec::new() };
        // Of what was ended before, this task may have been the beginning.
        let mut steps = self.interrupt(&order);
        steps.push(self.begin(order));
        steps
    }

    /// Whether the order is meant for the state that it is in.
    fn fits(&self, order: &Order) -> bool {
        let Some(membership) = &self.report.membership else {
            return match order {
                Order::Host(formation) | Order::Join { formation, .. } => {
                    formation.members.contains(&self.device)
                }
                _ => false,
            };
        };
        let Formation { comm: mine, epoch, .. } = membership.formation;
        let phase = &membership.phase;
        match order {
            Order::Host(_) => false,
            Order::Join { formation, .. } => formation.comm == mine && matches!(phase, Phase::Hosting { .. }),
            Order::Run { comm, epoch: meant, group, .. } => {
                let is_next = |groups: &u64| groups.checked_add(1) == Some(*group);
                (*comm, *meant) == (mine, epoch)
                    && matches!(phase, Phase::Ready { groups, .. } if is_next(groups))
            }
            Order::Grow { formation, id, off } => {
                let is_new = match phase {
                    Phase::Ready { tried, .. } => tried.as_ref().is_none_or(|tried| tried.id != *id),
                    Phase::Growing { id: tried, .. } => off.is_some() && tried == id,
                    _ => false,
                };
                (formation.comm, formation.epoch) == (mine, epoch + 1) && is_new
            }
            Order::GoOn { comm, epoch: meant, attempt, .. } => {
                let is_new = match phase {
                    Phase::Failed { attempt: tried, .. } => attempt > tried,
                    // The same again may name more who are lost.
                    Phase::GoingOn { attempt: tried, .. } => attempt >= tried,
                    Phase::Joining { .. }
                    | Phase::Ready { .. }
                    | Phase::Running { .. }
                    | Phase::Growing { .. } => true,
                    _ => false,
                };
                (*comm, *meant) == (mine, epoch) && is_new
            }
            Order::Leave { comm, .. } => *comm == mine,
        }
    }

    /// Ends the epoch, where the order is not for the end of what is in progress.
    fn interrupt(&self, order: &Order) -> Vec<Step> {
        let Some(membership) = &self.report.membership else { return Vec::new() };
        let rank = |lost: &DeviceId| rank_of(&membership.formation, *lost);
        match order {
            Order::Grow { off: Some(lost), .. } if lost.is_empty() => vec![Step::CallOff],
            Order::GoOn { lost, .. } | Order::Grow { off: Some(lost), .. } => {
                vec![Step::Interrupt { lost: lost.iter().filter_map(rank).collect() }]
            }
            Order::Leave { gracefully: false, .. } => vec![Step::Interrupt { lost: Vec::new() }],
            _ => Vec::new(),
        }
    }

    fn begin(&mut self, order: Order) -> Step {
        self.is_busy = true;
        match order {
            Order::Host(formation) => {
                self.enter(formation, Phase::Hosting { id: None }, None);
                Step::Begin(Task::Host)
            }
            Order::Join { formation, groups, last, id } => {
                let (n_ranks, rank) = (n_ranks(&formation), rank_of(&formation, self.device));
                let is_first = formation.epoch == 1;
                self.enter(formation, Phase::Joining { groups, id: id.clone() }, last);
                Step::Begin(match rank {
                    Some(rank) if is_first => Task::Meet { n_ranks, rank, id },
                    _ => Task::Join { id },
                })
            }
            Order::Grow { formation, id, .. } => {
                let (groups, n_ranks) = (self.groups(), n_ranks(&formation));
                self.change(Phase::Growing { groups, formation, id: id.clone() });
                Step::Begin(Task::Grow { n_ranks, id })
            }
            Order::Run { group, work, .. } => {
                self.change(Phase::Running { group, work: Some(work.clone()) });
                Step::Begin(Task::Run { work })
            }
            Order::GoOn { attempt, groups, last, .. } => {
                self.change(Phase::GoingOn { groups, attempt });
                self.remember(last);
                Step::Begin(Task::GoOn)
            }
            Order::Leave { gracefully, .. } => {
                self.change(Phase::Leaving);
                Step::Begin(Task::Leave { gracefully })
            }
        }
    }

    fn enter(&mut self, formation: Formation, phase: Phase, last: Option<GroupOutcome>) {
        self.report.membership = Some(Membership { formation, has_met: false, phase, last });
    }

    fn groups(&self) -> u64 {
        self.report.membership.as_ref().map_or(0, |membership| membership.phase.groups())
    }

    fn remember(&mut self, last: Option<GroupOutcome>) {
        if let Some(membership) = &mut self.report.membership {
            membership.last = last;
        }
    }

    fn change(&mut self, phase: Phase) {
        if let Some(membership) = &mut self.report.membership {
            membership.phase = phase;
        }
    }

    fn conclude(&mut self, outcome: Outcome) {
        let Some(membership) = &mut self.report.membership else { return };
        let ready = |groups: &u64| Phase::Ready { groups: *groups, tried: None };
        let next = match (outcome, &membership.phase) {
            (Outcome::Hosted(Ok(id)), _) => Phase::Hosting { id: Some(id) },
            (Outcome::Met(Ok(members)), Phase::Joining { groups, .. }) => {
                membership.formation.members = members;
                membership.has_met = true;
                ready(groups)
            }
            (Outcome::Met(Ok(members)), Phase::Growing { groups, formation, .. }) => {
                membership.formation = Formation { members, ..formation.clone() };
                ready(groups)
            }
            (Outcome::Met(Err(why)), Phase::Growing { groups, id, .. }) => {
                Phase::Ready { groups: *groups, tried: Some(Setback { id: id.clone(), why }) }
            }
            (Outcome::Ended(why), Phase::Growing { groups, .. }) => {
                Phase::Failed { groups: *groups, attempt: 0, why, kind: FailureKind::Other, culprit: None }
            }
            (Outcome::Hosted(Err(why)) | Outcome::Met(Err(why)), _) => Phase::Unmet { why },
            (Outcome::Ran(outcome), Phase::Running { group, .. }) => {
                let checkpoint = outcome.as_ref().ok().copied().flatten();
                let trouble = outcome.err();
                let rank = trouble.as_ref().and_then(|trouble| trouble.rank);
                let members = &membership.formation.members;
                let culprit = rank.and_then(|rank| members.get(rank as usize).copied());
                let failure = trouble.as_ref().map(|trouble| trouble.why.clone());
                let report = trouble.as_ref().and_then(|trouble| trouble.report.clone());
                membership.last = Some(GroupOutcome { group: *group, failure, culprit, checkpoint, report });
                match trouble {
                    None | Some(Trouble { is_undone: true, .. }) => ready(group),
                    Some(Trouble { why, kind, .. }) => {
                        Phase::Failed { groups: *group, attempt: 0, why, kind, culprit }
                    }
                }
            }
            (Outcome::WentOn(Ok(lost)), Phase::GoingOn { groups, .. }) => {
                let next = ready(groups);
                membership.formation.epoch += 1;
                let mut rank = 0..;
                membership
                    .formation
                    .members
                    .retain(|_| rank.next().is_some_and(|rank| !lost.contains(&rank)));
                next
            }
            (Outcome::WentOn(Err(why)), Phase::GoingOn { groups, attempt }) => {
                let (kind, culprit) = (FailureKind::Other, None);
                Phase::Failed { groups: *groups, attempt: *attempt, why, kind, culprit }
            }
            // The worker answers the task that it was given.
            _ => return,
        };
        membership.phase = next;
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self { why, kind: FailureKind::Other, rank: None, is_undone: false, report: None }
    }
}

fn n_ranks(formation: &Formation) -> u32 {
    u32::try_from(formation.members.len()).unwrap_or(u32::MAX)
}

fn rank_of(formation: &Formation, device: DeviceId) -> Option<u32> {
    let index = formation.members.iter().position(|member| *member == device)?;
    u32::try_from(index).ok()
}

#[cfg(test)]
mod tests;
