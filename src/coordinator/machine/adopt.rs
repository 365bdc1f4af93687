//! Taking over from reports: after a restart, communicators are there of which this coordinator knows nothing.

use super::comm::{Comm, Stage};
use super::{Action, Machine};
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::order::{Membership, Phase};
use crate::coordinator::request::GroupOutcome;

impl Machine {
    /// Gives a device to the communicator that it says it is a member of: if that knows it, or is not known yet.
    pub(super) fn place(&mut self, device: DeviceId) {
        let Some(found) = self.pool.get(device) else { return };
        let Some(membership) = found.report.membership.clone() else { return };
        if !membership.is_sound() {
            self.lose(device);
            self.actions.push(Action::Drop { device });
            return;
        }
        let id = membership.formation.comm;
        if !membership.formation.members.contains(&device) {
            // It makes this up: no number is to be used up by that.
            return;
        }
        self.newest = self.newest.max(id);
        if found.owner.is_some() || self.ended.contains(&id) {
            return;
        }
        let until_ms = self.now_ms + self.settings.adopt_ms;
        let comm = self.comms.entry(id).or_insert_with(|| {
            let mut comm = Comm::new(&membership.formation, Stage::Adopting { until_ms });
            comm.epoch = membership.epoch;
            comm
        });
        let is_same = comm.incarnation == membership.formation.incarnation;
        let is_adopting = is_same && matches!(comm.stage, Stage::Adopting { .. });
        if is_adopting && membership.epoch < comm.epoch {
            // Some have gone on already: who is still behind knows from where.
            comm.epoch = membership.epoch;
            comm.members.clone_from(&membership.formation.members);
        }
        if is_adopting && comm.members.contains(&device) && !comm.lost.contains(&device) {
            self.pool.give(device, id);
        }
    }

    /// Waits for the members to come back; then their reports say where the communicator is.
    pub(super) fn adopt(&mut self, comm: &mut Comm, until_ms: u64) -> bool {
        let is_there = |member: &DeviceId| self.pool.get(*member).is_some() || comm.lost.contains(member);
        let all_known = comm.members.iter().all(is_there);
        if self.judged_ms < until_ms && !all_known {
            return false;
        }
        let reports: Vec<_> =
            comm.members.iter().filter_map(|member| self.pool.membership(*member, comm.id)).collect();
        let missing = comm.members.iter().filter(|member| self.pool.membership(**member, comm.id).is_none());
        let missing: Vec<DeviceId> = missing.copied().collect();
        let is_left = missing.iter().any(|member| self.pool.get(*member).is_some());
        let seen = Seen::new(comm.id, comm.epoch, &reports, is_left, !missing.is_empty());
        for member in missing {
            self.pool.take_back(member, comm.id);
            comm.lost.insert(member);
        }
        (comm.groups, comm.last) = (seen.groups, seen.last);
        comm.stage = seen.stage;
        true
    }
}

/// What the reports of the members amount to.
struct Seen {
    stage: Stage,
    groups: u64,
    last: Option<GroupOutcome>,
}

impl Seen {
    /// `is_left` is whether a member lives that says it is none, which is lost to those that have met, `is_short` whether one does not say that it is one.
    fn new(id: CommId, epoch: u64, reports: &[&Membership], is_left: bool, is_short: bool) -> Self {
        let groups = reports.iter().map(|report| report.phase.groups()).max().unwrap_or_default();
        let tries =
            reports.iter().filter(|report| report.epoch == epoch).filter_map(|report| match report.phase {
                Phase::GoingOn { attempt, .. } => Some(attempt),
                _ => None,
            });
        let is_ahead = reports.iter().any(|report| report.epoch > epoch);
        let stage = match tries.max() {
            Some(attempt) => Stage::going_on(attempt, format!("communicator {id} has lost a device")),
            None if is_ahead => Stage::going_on(1, format!("communicator {id} has lost a device")),
            None => Self::at_rest(reports, groups, is_left, is_short),
        };
        let last = if epoch == 1 { Self::outcome(reports, groups, is_short) } else { None };
        Self { stage, groups, last }
    }

    /// What came of the newest group, where the members of the first epoch say so. In a later one, a group that has failed counts as
    /// one that has been.
    fn outcome(reports: &[&Membership], groups: u64, is_short: bool) -> Option<GroupOutcome> {
        let failure = reports.iter().find_map(|report| match &report.phase {
            Phase::Failed { groups: failed, attempt: 0, why } if *failed == groups => Some(why.clone()),
            _ => None,
        });
        let is_done = |report: &&Membership| {
            report.epoch == 1 && matches!(report.phase, Phase::Ready { groups: done } if done == groups)
        };
        let has_succeeded = groups > 0 && !is_short && reports.iter().all(is_done);
        (failure.is_some() || has_succeeded).then_some(GroupOutcome { group: groups, failure })
    }

    /// The stage of a communicator of which nobody is going on.
    fn at_rest(reports: &[&Membership], groups: u64, is_left: bool, is_short: bool) -> Stage {
        let any = |is: fn(&Phase) -> bool| reports.iter().any(|report| is(&report.phase));
        let has_met =
            any(|phase| matches!(phase, Phase::Ready { .. } | Phase::Running { .. } | Phase::Failed { .. }));
        if any(|phase| matches!(phase, Phase::Leaving | Phase::Unmet { .. } | Phase::Hosting { .. }))
            || (is_left && !has_met)
        {
            // Who was told to leave, or not told to join, by a coordinator that is gone cannot be told otherwise.
            return Stage::Leaving { gracefully: false };
        }
        let meeting = reports.iter().find_map(|report| match &report.phase {
            Phase::Joining { id } => Some(id.clone()),
            _ => None,
        });
        let running = reports.iter().find_map(|report| match &report.phase {
            Phase::Running { group, calls } if *group == groups => Some(calls.clone()),
            _ => None,
        });
        let is_uneven = reports
            .iter()
            .any(|report| matches!(&report.phase, Phase::Ready { groups: done } if *done < groups));
        match (meeting, running) {
            (Some(id), _) => Stage::Meeting { id },
            (None, Some(calls)) => Stage::Running { calls },
            // What the others have executed nobody can tell this one.
            (None, None) if is_uneven && !is_short => {
                Stage::Failed { why: "a member has missed a group".to_owned(), in_vain: false }
            }
            (None, None) => Stage::Ready,
        }
    }
}
