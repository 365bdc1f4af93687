//! Rebuilding communicators from what their devices report to a coordinator that has not made them.

use std::collections::BTreeSet;

use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::comm::{Comm, CommStage};
use crate::coordinator::machine::{CoordinatorAction, CoordinatorMachine};
use crate::coordinator::order::{CAUSE, CommFormation, DeviceMembership, DevicePhase};
use crate::coordinator::request::GroupOutcome;

impl CoordinatorMachine {
    /// Gives a device to the communicator of which it reports to be a member. Makes the
    /// communicator if it is not known yet.
    pub(in crate::coordinator) fn place(&mut self, device: DeviceId) {
        let Some(found) = self.table.get(device) else { return };
        let Some(membership) = found.report.membership.clone() else { return };
        if !membership.is_sound() {
            self.lose(device, None);
            self.actions.push(CoordinatorAction::Drop(device));
            return;
        }
        let id = membership.formation.comm;
        if !membership.formation.members.contains(&device) {
            // The device makes this up. No number of a communicator is to be used up by that.
            return;
        }
        self.newest = self.newest.max(id);
        if found.owner.is_some() || self.ended.contains_key(&id) {
            return;
        }
        let until_ms = self.now_ms.saturating_add(self.return_ms());
        if !membership.is_outside() {
            let new = || Comm::new(&membership.formation, CommStage::Adopting { until_ms });
            self.comms.entry(id).or_insert_with(new);
        }
        if let Some(mut comm) = self.comms.remove(&id) {
            if comm.is_adopted() {
                self.rebuild(&mut comm);
            }
            self.comms.insert(id, comm);
        }
    }

    /// Returns how long a living member has to come back: as long as it would have for an order.
    fn return_ms(&self) -> u64 {
        self.settings.patience_ms.max(self.settings.adopt_ms)
    }

    /// Sets the epoch, members and newcomers of an adopted communicator by what all its devices
    /// report.
    ///
    /// Some may be in the next epoch already, with fewer members or with newcomers. A device that
    /// is further behind was lost to the others long ago.
    fn rebuild(&mut self, comm: &mut Comm) {
        let is_its = |formation: &CommFormation| {
            (formation.comm, formation.incarnation) == (comm.id, comm.incarnation)
        };
        let all: Vec<(DeviceId, DeviceMembership)> = self
            .table
            .iter()
            .filter(|(id, found)| found.owner.is_none_or(|owner| owner == comm.id) && !comm.lost.contains(id))
            .filter_map(|(id, found)| Some((id, found.report.membership.clone()?)))
            .filter(|(id, it)| is_its(&it.formation) && it.formation.members.contains(id))
            .collect();
        let inside = || all.iter().map(|(_, membership)| membership).filter(|it| !it.is_outside());
        let highest = inside().map(|it| it.formation.epoch).max().unwrap_or_default();
        // An epoch in which something has been done has begun for all its members: a device that is
        // not in it by now was left behind.
        let is_new = inside()
            .filter(|it| it.formation.epoch == highest)
            .all(|it| matches!(it.phase, DevicePhase::Ready(_) | DevicePhase::Leaving));
        let is_there = |it: &&DeviceMembership| it.formation.epoch == highest;
        let is_awaited =
            |device: &DeviceId| inside().filter(is_there).all(|it| it.formation.members.contains(device));
        let is_coming = |(device, it): &&(DeviceId, DeviceMembership)| {
            let is_on_the_way = matches!(it.phase, DevicePhase::GoingOn(_) | DevicePhase::Growing { .. });
            is_new && is_on_the_way && it.formation.epoch + 1 == highest && is_awaited(device)
        };
        let coming = all.iter().find(is_coming).map(|(_, membership)| membership);
        let Some(first) = coming.or_else(|| inside().find(is_there)) else { return };
        (comm.epoch, comm.members) = (first.formation.epoch, first.formation.members.clone());
        let next = inside().filter_map(|it| match &it.phase {
            _ if it.formation.epoch > comm.epoch => Some(&it.formation.members),
            DevicePhase::Growing { formation, .. } if it.formation.epoch == comm.epoch => {
                Some(&formation.members)
            }
            _ => None,
        });
        let newcomers: BTreeSet<_> =
            next.flatten().filter(|it| !comm.members.contains(it)).copied().collect();
        comm.newcomers = newcomers.into_iter().collect();
        comm.lost.retain(|lost| comm.members.contains(lost));
        let present: Vec<_> = self.table.iter().map(|(id, _)| id).collect();
        present.into_iter().for_each(|device| self.table.take_back(device, comm.id));
        for (device, membership) in &all {
            let is_member = comm.members.contains(device) && membership.formation.epoch >= comm.epoch;
            if is_member || comm.newcomers.contains(device) {
                self.table.give(*device, comm.id);
            }
        }
    }

    /// Returns the devices of an adopted communicator that have not come back and are not known
    /// dead.
    fn missed(&self, comm: &Comm) -> impl Iterator<Item = DeviceId> {
        let is_known = |device: &DeviceId| {
            self.table.get(*device).is_some() || comm.lost.contains(device) || self.dead.contains(device)
        };
        comm.members.iter().chain(&comm.newcomers).copied().filter(move |device| !is_known(device))
    }

    /// Returns the devices of the coordinator before that are waited for, since others report to be
    /// in a communicator with them.
    pub(in crate::coordinator) fn awaited(&self) -> BTreeSet<DeviceId> {
        self.comms.values().filter(|comm| comm.is_adopted()).flat_map(|comm| self.missed(comm)).collect()
    }

    /// Waits until the members have come back; then their reports tell the stage of the
    /// communicator. Returns whether that is so.
    pub(in crate::coordinator) fn adopt(&mut self, comm: &mut Comm, until_ms: u64) -> bool {
        self.rebuild(comm);
        if self.judged_ms < until_ms && self.missed(comm).next().is_some() {
            return false;
        }
        for device in self.missed(comm).collect::<Vec<_>>() {
            // It lives, and may have stopped long before this coordinator began.
            let why = format!("it hangs, and has not come back in {} ms", self.return_ms());
            comm.hung.insert(device, why.clone());
            self.give_up_on(device, why);
        }
        comm.members.iter().chain(&comm.newcomers).for_each(|device| _ = self.dead.remove(device));
        let (mut missing, mut all) = (Vec::new(), Vec::new());
        for member in &comm.members {
            match self.table.membership(*member, comm.id) {
                Some(report) => all.push(report),
                None => missing.push(*member),
            }
        }
        let is_left = missing.iter().any(|member| self.table.get(*member).is_some());
        let groups = all.iter().map(|report| report.groups).max().unwrap_or_default();
        let reports = MemberReports { all, groups, is_left, is_short: !missing.is_empty() };
        (comm.groups, comm.last) = (groups, reports.outcome());
        let stage = reports.stage(comm);
        if !matches!(stage, CommStage::Growing { .. }) {
            for newcomer in comm.take_newcomers() {
                self.table.take_back(newcomer, comm.id);
            }
        }
        for member in missing {
            self.table.take_back(member, comm.id);
            comm.lost.insert(member);
        }
        if let CommStage::Leaving { .. } = stage {
            comm.end(stage, "it was not whole when its coordinator was replaced".to_owned());
        } else {
            comm.stage = stage;
        }
        true
    }
}

/// The reports of the members of an adopted communicator.
struct MemberReports<'a> {
    all: Vec<&'a DeviceMembership>,
    /// The number of groups so far.
    groups: u64,
    /// Whether a member does not report to be one.
    is_short: bool,
    /// Whether such a member lives. It is lost to those that have met.
    is_left: bool,
}

impl MemberReports<'_> {
    /// Returns how the newest group has ended, where the members report that. Where a member is
    /// missing, the group may have failed there.
    fn outcome(&self) -> Option<GroupOutcome> {
        let newest = self.all.iter().filter_map(|report| report.last.clone());
        let outcomes: Vec<_> = newest.filter(|last| last.group == self.groups).collect();
        let all_report = !self.is_short && outcomes.len() == self.all.len();
        GroupOutcome::cause(&outcomes).or_else(|| outcomes.first().filter(|_| all_report)).cloned()
    }

    fn stage(&self, comm: &Comm) -> CommStage {
        let present = || self.all.iter().filter(|report| report.formation.epoch == comm.epoch);
        let growing = present().find_map(|report| match &report.phase {
            DevicePhase::Growing { id, .. } => Some(CommStage::Growing { id: id.clone(), off: None }),
            _ => None,
        });
        let tries = present().filter_map(|report| match report.phase {
            DevicePhase::GoingOn(attempt) => Some(attempt),
            _ => None,
        });
        let why = || format!("communicator {} has lost a device", comm.id);
        let going_on = tries.max().map(|attempt| CommStage::going_on(attempt, why()));
        growing.or(going_on).unwrap_or_else(|| self.stage_at_rest())
    }

    /// Returns the stage of a communicator of which no member is growing or going on.
    fn stage_at_rest(&self) -> CommStage {
        let any = |is: fn(&DevicePhase) -> bool| self.all.iter().any(|report| is(&report.phase));
        let has_met = any(|phase| {
            matches!(phase, DevicePhase::Ready(_) | DevicePhase::Running(_) | DevicePhase::Failed { .. })
        });
        let is_over = any(|phase| {
            matches!(phase, DevicePhase::Leaving | DevicePhase::Unmet(_) | DevicePhase::Hosting(_))
        });
        if is_over || (self.is_left && !has_met) {
            // A device that the dead coordinator has told to leave, or not told to join, cannot be
            // told otherwise.
            return CommStage::Leaving { gracefully: false };
        }
        let meeting = self.all.iter().find_map(|report| match &report.phase {
            DevicePhase::Joining(id) => Some(CommStage::Meeting { id: id.clone() }),
            _ => None,
        });
        let running = self.all.iter().find_map(|report| match &report.phase {
            DevicePhase::Running(Some(work)) if report.groups == self.groups => {
                Some(CommStage::Running { work: work.clone() })
            }
            _ => None,
        });
        let is_behind = |report: &&DeviceMembership| {
            matches!(report.phase, DevicePhase::Ready(_)) && report.groups < self.groups
        };
        // Such a member cannot catch up: no report has what the others have executed.
        let has_missed = !self.is_short && self.all.iter().any(is_behind);
        let uneven = has_missed.then(|| {
            let why = "a member has missed a group".to_owned();
            CommStage::Failed { why, weight: CAUSE, gave_up: false }
        });
        meeting.or(running).or(uneven).unwrap_or(CommStage::Ready)
    }
}
