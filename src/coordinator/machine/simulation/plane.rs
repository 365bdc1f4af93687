//! What goes on between devices: a model of meetings and epochs that keeps the library's promises and no more.
//!
//! A meeting succeeds for all or for nobody. An epoch that has ended fails every operation. Whoever goes on waits until each of the
//! others does, has left, or is lost; all of them are in the next epoch, or none is.

use std::collections::{BTreeMap, BTreeSet};

use super::dice::Dice;
use crate::coordinator::agent::{Outcome, Task};
use crate::coordinator::id::DeviceId;

/// One incarnation of a communicator.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    pub(super) members: Vec<DeviceId>,
    pub(super) has_ended: bool,
    given_up: BTreeSet<DeviceId>,
    gone: BTreeSet<DeviceId>,
    /// Who has come to each group.
    groups: BTreeMap<u64, BTreeSet<DeviceId>>,
    leaving: BTreeSet<DeviceId>,
    going_on: BTreeSet<DeviceId>,
    /// Who was in a round that failed, and does not know yet.
    disappointed: BTreeSet<DeviceId>,
    successors: Option<Vec<DeviceId>>,
}

/// The meeting under an id.
#[derive(Debug, Default)]
struct Meeting {
    host: Option<DeviceId>,
    guests: BTreeMap<u32, DeviceId>,
    outcome: Option<bool>,
}

/// Everything between devices.
#[derive(Debug, Default)]
pub(super) struct Plane {
    meetings: BTreeMap<String, Meeting>,
    /// By the id of the meeting and the number of the epoch.
    pub(super) epochs: BTreeMap<(String, u64), Epoch>,
}

/// A device and where it is, as the model sees it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) device: DeviceId,
    pub(super) job: Option<String>,
    pub(super) epoch: u64,
    /// The number of the group that it executes, if it does.
    pub(super) group: u64,
}

impl Plane {
    /// A device is dead.
    pub(super) fn die(&mut self, device: DeviceId) {
        for meeting in self.meetings.values_mut().filter(|meeting| meeting.outcome.is_none()) {
            let is_there = meeting.guests.values().any(|guest| *guest == device);
            if is_there || meeting.host == Some(device) {
                meeting.outcome = Some(false);
            }
        }
        for epoch in self.epochs.values_mut().filter(|epoch| epoch.members.contains(&device)) {
            epoch.has_ended |= !epoch.gone.contains(&device);
            epoch.gone.insert(device);
        }
    }

    /// A device ends its epoch, and gives these up.
    pub(super) fn interrupt(&mut self, place: &Place, lost: &[u32]) {
        let Some(epoch) = self.epoch(place) else { return };
        epoch.has_ended = true;
        let ranks = lost.iter().filter_map(|rank| epoch.members.get(*rank as usize).copied());
        let given_up: Vec<_> = ranks.collect();
        epoch.given_up.extend(given_up);
    }

    /// What comes of `task` now; `None` when it has to wait.
    pub(super) fn work(&mut self, place: &Place, task: &Task, dice: &mut Dice) -> Option<Outcome> {
        match task {
            Task::Host if dice.once_in(30) => Some(Outcome::Hosted(Err("no socket".to_owned()))),
            Task::Host => {
                let id = format!("meeting {}", self.meetings.len());
                self.meetings.insert(id.clone(), Meeting { host: Some(place.device), ..Meeting::default() });
                Some(Outcome::Hosted(Ok(id)))
            }
            Task::Join { n_ranks, rank, id } => {
                self.join(place, *n_ranks, *rank, id, dice).map(Outcome::Joined)
            }
            Task::Run { .. } => self.run(place, dice).map(Outcome::Ran),
            Task::GoOn => self.go_on(place, dice).map(Outcome::WentOn),
            Task::Leave { gracefully } => self.leave(place, *gracefully).then_some(Outcome::Left),
        }
    }

    fn epoch(&mut self, place: &Place) -> Option<&mut Epoch> {
        self.epochs.get_mut(&(place.job.clone()?, place.epoch))
    }

    fn join(
        &mut self,
        place: &Place,
        n_ranks: u32,
        rank: u32,
        id: &str,
        dice: &mut Dice,
    ) -> Option<Result<(), String>> {
        let meeting = self.meetings.entry(id.to_owned()).or_default();
        meeting.guests.insert(rank, place.device);
        if meeting.outcome.is_none() && meeting.guests.len() == n_ranks as usize {
            meeting.outcome = Some(true);
            let members = meeting.guests.values().copied().collect();
            self.epochs.insert((id.to_owned(), 1), Epoch { members, ..Epoch::default() });
        } else if meeting.outcome.is_none() && dice.once_in(20) {
            meeting.outcome = Some(false);
        }
        let meeting = self.meetings.get(id)?;
        meeting.outcome.map(|met| if met { Ok(()) } else { Err("timed out".to_owned()) })
    }

    fn run(&mut self, place: &Place, dice: &mut Dice) -> Option<Result<(), String>> {
        let epoch = self.epoch(place)?;
        let came = epoch.groups.entry(place.group).or_default();
        came.insert(place.device);
        if came.len() == epoch.members.len() {
            return Some(Ok(()));
        }
        epoch.has_ended |= dice.once_in(60);
        epoch.has_ended.then(|| Err("a rank was lost".to_owned()))
    }

    fn go_on(&mut self, place: &Place, dice: &mut Dice) -> Option<Result<Vec<u32>, String>> {
        let (device, next) = (place.device, (place.job.clone()?, place.epoch + 1));
        let epoch = self.epoch(place)?;
        epoch.has_ended = true;
        if epoch.disappointed.remove(&device) {
            return Some(Err("it failed elsewhere".to_owned()));
        }
        if epoch.successors.is_none() && !epoch.given_up.contains(&device) {
            epoch.going_on.insert(device);
        }
        let is_known = |member: &DeviceId| {
            [&epoch.going_on, &epoch.given_up, &epoch.gone].iter().any(|set| set.contains(member))
        };
        if epoch.successors.is_none() && epoch.members.iter().all(is_known) {
            let going_on = std::mem::take(&mut epoch.going_on);
            if dice.once_in(6) {
                epoch.disappointed = going_on;
                return None;
            }
            let chosen: Vec<_> = epoch.members.iter().copied().filter(|it| going_on.contains(it)).collect();
            // Who has died since it came is found to be gone in the next epoch.
            let gone: BTreeSet<_> = chosen.iter().copied().filter(|it| epoch.gone.contains(it)).collect();
            epoch.successors = Some(chosen.clone());
            let has_ended = !gone.is_empty();
            self.epochs.insert(next, Epoch { members: chosen, gone, has_ended, ..Epoch::default() });
        }
        let epoch = self.epoch(place)?;
        let Some(successors) = &epoch.successors else {
            let times_out = dice.once_in(60).then(|| Err("timed out".to_owned()));
            if times_out.is_some() {
                epoch.going_on.remove(&device);
            }
            return times_out;
        };
        if !successors.contains(&device) {
            return Some(Err("excluded".to_owned()));
        }
        let is_left = |(_, member): &(u32, &DeviceId)| !successors.contains(member);
        Some(Ok((0..).zip(&epoch.members).filter(is_left).map(|(rank, _)| rank).collect()))
    }

    fn leave(&mut self, place: &Place, gracefully: bool) -> bool {
        let Some(epoch) = self.epoch(place) else { return true };
        epoch.leaving.insert(place.device);
        let all_leave =
            epoch.members.iter().all(|member| epoch.leaving.contains(member) || epoch.gone.contains(member));
        if gracefully && !all_leave && !epoch.has_ended {
            return false;
        }
        epoch.has_ended |= !all_leave;
        epoch.gone.insert(place.device);
        true
    }
}
