//! A device's mind: what it is in, which order it executes, and what it says of that. As the coordinator's, it is a state machine
//! without clock, threads, input or output; a worker beside it executes one task at a time.

use super::call::DeviceCall;
use super::id::{CommId, DeviceId};
use super::order::{Formation, Membership, Order, Phase, Report};

/// What the worker of a device is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Make an id and host its meeting.
    Host,
    /// Meet the others under `id`.
    Join {
        /// How many they are, this one among them.
        n_ranks: u32,
        /// Its rank among them.
        rank: u32,
        /// The text of the id.
        id: String,
    },
    /// Execute a group.
    Run {
        /// What it consists of.
        calls: Vec<DeviceCall>,
    },
    /// Go on with the ranks that are left.
    GoOn,
    /// Leave, together with the others or at once.
    Leave {
        /// Together with the others, when all is done.
        gracefully: bool,
    },
}

/// What came of a [`Task`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The id is there.
    Hosted(Result<String, String>),
    /// It has met the others, or not.
    Joined(Result<(), String>),
    /// The group is done, or has failed.
    Ran(Result<(), String>),
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
}

/// The state machine of a device. See the module.
#[derive(Debug)]
pub struct Agent {
    device: DeviceId,
    report: Report,
    is_busy: bool,
    /// What to do when the present task has ended.
    next: Option<Order>,
}

impl Agent {
    /// A device that belongs to nothing.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self { device, report: Report::default(), is_busy: false, next: None }
    }

    /// What it says of itself.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The communicator that it belongs to.
    #[must_use]
    pub fn comm(&self) -> Option<CommId> {
        self.report.membership.as_ref().map(|membership| membership.formation.comm)
    }

    /// Takes note that a connection with a coordinator begins.
    pub fn connect(&mut self) {
        (self.report.version, self.report.heard) = (1, 0);
    }

    /// Takes an order. Returns what is to be done for it; the report has changed.
    pub fn take(&mut self, order: Order) -> Vec<Step> {
        self.report.version += 1;
        self.report.heard += 1;
        if !self.fits(&order) {
            return Vec::new();
        }
        let mut steps = self.interrupt(&order);
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
        let (mine, epoch, phase) = (membership.formation.comm, membership.epoch, &membership.phase);
        match order {
            Order::Host(_) => false,
            Order::Join { formation, .. } => formation.comm == mine && matches!(phase, Phase::Hosting { .. }),
            Order::Run { comm, epoch: meant, group, .. } => {
                let is_next = |groups: &u64| groups.checked_add(1) == Some(*group);
                (*comm, *meant) == (mine, epoch)
                    && matches!(phase, Phase::Ready { groups } if is_next(groups))
            }
            Order::GoOn { comm, epoch: meant, attempt, .. } => {
                let is_new = match phase {
                    Phase::Failed { attempt: tried, .. } => attempt > tried,
                    // The same again may name more who are lost.
                    Phase::GoingOn { attempt: tried, .. } => attempt >= tried,
                    Phase::Joining { .. } | Phase::Ready { .. } | Phase::Running { .. } => true,
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
            Order::GoOn { lost, .. } => {
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
                self.enter(formation, Phase::Hosting { id: None });
                Step::Begin(Task::Host)
            }
            Order::Join { formation, id } => {
                let n_ranks = u32::try_from(formation.members.len()).unwrap_or(u32::MAX);
                let rank = rank_of(&formation, self.device).unwrap_or(u32::MAX);
                self.enter(formation, Phase::Joining { id: id.clone() });
                Step::Begin(Task::Join { n_ranks, rank, id })
            }
            Order::Run { group, calls, .. } => {
                self.change(Phase::Running { group, calls: calls.clone() });
                Step::Begin(Task::Run { calls })
            }
            Order::GoOn { attempt, groups, .. } => {
                self.change(Phase::GoingOn { groups, attempt });
                Step::Begin(Task::GoOn)
            }
            Order::Leave { gracefully, .. } => {
                self.change(Phase::Leaving);
                Step::Begin(Task::Leave { gracefully })
            }
        }
    }

    fn enter(&mut self, formation: Formation, phase: Phase) {
        self.report.membership = Some(Membership { formation, epoch: 1, phase });
    }

    fn change(&mut self, phase: Phase) {
        if let Some(membership) = &mut self.report.membership {
            membership.phase = phase;
        }
    }

    fn conclude(&mut self, outcome: Outcome) {
        let Some(membership) = &mut self.report.membership else { return };
        let next = match (outcome, &membership.phase) {
            (Outcome::Hosted(Ok(id)), _) => Phase::Hosting { id: Some(id) },
            (Outcome::Joined(Ok(())), _) => Phase::Ready { groups: 0 },
            (Outcome::Hosted(Err(why)) | Outcome::Joined(Err(why)), _) => Phase::Unmet { why },
            (Outcome::Ran(Ok(())), Phase::Running { group, .. }) => Phase::Ready { groups: *group },
            (Outcome::Ran(Err(why)), Phase::Running { group, .. }) => {
                Phase::Failed { groups: *group, attempt: 0, why }
            }
            (Outcome::WentOn(Ok(lost)), Phase::GoingOn { groups, .. }) => {
                let next = Phase::Ready { groups: *groups };
                membership.epoch += 1;
                let mut rank = 0..;
                membership
                    .formation
                    .members
                    .retain(|_| rank.next().is_some_and(|rank| !lost.contains(&rank)));
                next
            }
            (Outcome::WentOn(Err(why)), Phase::GoingOn { groups, attempt }) => {
                Phase::Failed { groups: *groups, attempt: *attempt, why }
            }
            // The worker answers the task that it was given.
            _ => return,
        };
        membership.phase = next;
    }
}

fn rank_of(formation: &Formation, device: DeviceId) -> Option<u32> {
    let index = formation.members.iter().position(|member| *member == device)?;
    u32::try_from(index).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: DeviceId = DeviceId::new(2);

    fn formation() -> Formation {
        Formation {
            comm: CommId::new(5),
            incarnation: 1,
            members: [1, 2, 3].map(DeviceId::new).to_vec(),
            keep_going: false,
        }
    }

    fn ready() -> Agent {
        let mut agent = Agent::new(ME);
        agent.connect();
        agent.take(Order::Join { formation: formation(), id: "id".to_owned() });
        agent.finish(Outcome::Joined(Ok(())));
        agent
    }

    fn phase(agent: &Agent) -> &Phase {
        &agent.report().membership.as_ref().unwrap().phase
    }

    fn run(group: u64) -> Order {
        Order::Run { comm: CommId::new(5), epoch: 1, group, calls: Vec::new() }
    }

    fn go_on(attempt: u32) -> Order {
        let lost = vec![DeviceId::new(3)];
        Order::GoOn { comm: CommId::new(5), epoch: 1, attempt, groups: 1, lost }
    }

    #[test]
    fn an_order_that_comes_twice_is_executed_once() {
        let mut agent = ready();
        assert_eq!(agent.take(run(1)), [Step::Begin(Task::Run { calls: Vec::new() })]);
        assert_eq!(agent.take(run(1)), []);
        assert_eq!(agent.finish(Outcome::Ran(Ok(()))), []);
        assert_eq!(agent.take(run(1)), []);
        assert_eq!(phase(&agent), &Phase::Ready { groups: 1 });
        assert_eq!(agent.report().heard, 4, "each of them was heard");
    }

    #[test]
    fn going_on_ends_what_is_in_progress_and_leaves_the_lost_behind() {
        let mut agent = ready();
        agent.take(run(1));
        let interrupt = Step::Interrupt { lost: vec![2] };
        assert_eq!(agent.take(go_on(1)), vec![interrupt.clone()]);
        assert_eq!(agent.finish(Outcome::Ran(Err("lost".to_owned()))), [interrupt, Step::Begin(Task::GoOn)]);
        agent.finish(Outcome::WentOn(Ok(vec![2])));
        let membership = agent.report().membership.as_ref().unwrap();
        assert_eq!((membership.epoch, membership.formation.members.len()), (2, 2));
        assert_eq!(agent.take(go_on(2)), [], "it was for the epoch before");
    }

    #[test]
    fn an_attempt_that_comes_while_another_one_goes_on_is_made_only_if_that_fails() {
        let mut agent = ready();
        agent.take(go_on(1));
        let interrupt = Step::Interrupt { lost: vec![2] };
        assert_eq!(agent.take(go_on(2)), vec![interrupt.clone()]);
        assert_eq!(agent.finish(Outcome::WentOn(Ok(vec![2]))), []);
        let mut agent = ready();
        agent.take(go_on(1));
        agent.take(go_on(2));
        assert_eq!(agent.finish(Outcome::WentOn(Err("no".to_owned()))), [interrupt, Step::Begin(Task::GoOn)]);
    }

    #[test]
    fn who_is_told_to_leave_at_once_does_not_wait_for_the_others() {
        let mut agent = ready();
        let leave = |gracefully| Order::Leave { comm: CommId::new(5), gracefully };
        assert_eq!(agent.take(leave(true)), [Step::Begin(Task::Leave { gracefully: true })]);
        assert_eq!(agent.take(leave(false)), [Step::Interrupt { lost: Vec::new() }]);
        assert_eq!(agent.finish(Outcome::Left), []);
        assert_eq!(agent.comm(), None);
    }
}
