//! What goes on between devices: a model of meetings and epochs that keeps the promises of the
//! library, and no more.
//!
//! A meeting succeeds for all or for none. Members grow when all of them have begun to, and stay in
//! their epoch when that fails, unless one of them is gone. An aborted epoch fails every operation.
//! A member that goes on waits until each of the others does, has left, or is lost; all of them are
//! in the next epoch, or none is. A checkpoint is written by all or by none, as long as the epoch
//! lasts.

use std::collections::{BTreeMap, BTreeSet};

use super::Random;
use super::world::Broken;
use crate::coordinator::agent::{GroupFailure, TaskOutcome};
use crate::coordinator::call::GroupWork;
use crate::coordinator::id::DeviceId;
use crate::coordinator::order::{DeviceOrder, FailureKind};

/// One epoch of a communicator.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    pub(super) members: Vec<DeviceId>,
    pub(super) has_ended: bool,
    given_up: BTreeSet<DeviceId>,
    gone: BTreeSet<DeviceId>,
    /// The members that have come to each group.
    groups: BTreeMap<u64, BTreeSet<DeviceId>>,
    /// The number of the checkpoint on which all agree, or that none was written or read back, by
    /// group.
    checkpoints: BTreeMap<u64, Option<u64>>,
    leaving: BTreeSet<DeviceId>,
    going_on: BTreeSet<DeviceId>,
    /// The members that have begun to grow, by the id of the meeting.
    growing: BTreeMap<String, BTreeSet<DeviceId>>,
    /// The members that were in a failed attempt to go on, and do not know yet.
    failed: BTreeSet<DeviceId>,
    successors: Option<Vec<DeviceId>>,
}

/// The meeting under an id.
#[derive(Debug, Default)]
struct Meeting {
    host: Option<DeviceId>,
    ranked: BTreeMap<u32, DeviceId>,
    /// The newcomers, in the order in which they came.
    newcomers: Vec<DeviceId>,
    /// How many are to come with a rank, and how many in all, once that is known.
    awaited: Option<(usize, usize)>,
    outcome: Option<bool>,
}

/// The network between the devices.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// A promise that is not kept on purpose.
    broken: Option<Broken>,
    meetings: BTreeMap<String, Meeting>,
    /// The numbers of the checkpoints that were written or read back.
    pub(super) written: Vec<u64>,
    /// The epochs, by the id of the meeting and the number of the epoch.
    pub(super) epochs: BTreeMap<(String, u64), Epoch>,
}

/// The position of a device in the model.
#[derive(Clone, Debug)]
pub(super) struct Position {
    pub(super) device: DeviceId,
    pub(super) job: Option<String>,
    pub(super) epoch: u64,
    /// The number of the group that it executes, if it does.
    pub(super) group: u64,
    /// Whether it is to wait at no meeting any longer.
    pub(super) is_called_off: bool,
}

impl Meeting {
    /// Ends the meeting if all have come, one has cancelled it, or chance has it time out. Returns
    /// the members when all have just come.
    fn go_on(&mut self, place: &Position, random: &mut Random) -> Option<Vec<DeviceId>> {
        if self.outcome.is_some() {
            return None;
        }
        let there = (self.ranked.len(), self.ranked.len() + self.newcomers.len());
        if place.is_called_off {
            self.outcome = Some(false);
        } else if self.awaited == Some(there) {
            self.outcome = Some(true);
            return Some(self.ranked.values().chain(&self.newcomers).copied().collect());
        } else if random.once_in(20) {
            self.outcome = Some(false);
        }
        None
    }
}

impl Network {
    pub(super) fn new(broken: Option<Broken>) -> Self {
        Self { broken, ..Self::default() }
    }

    /// Has a device die.
    pub(super) fn die(&mut self, device: DeviceId) {
        for meeting in self.meetings.values_mut().filter(|meeting| meeting.outcome.is_none()) {
            let is_there = meeting.ranked.values().chain(&meeting.newcomers).any(|guest| *guest == device);
            if is_there || meeting.host == Some(device) {
                meeting.outcome = Some(false);
            }
        }
        for epoch in self.epochs.values_mut().filter(|epoch| epoch.members.contains(&device)) {
            epoch.has_ended |= !epoch.gone.contains(&device);
            epoch.gone.insert(device);
        }
    }

    /// Has a device abort its epoch, and give up these ranks.
    pub(super) fn interrupt(&mut self, place: &Position, lost: &[u32]) {
        let Some(epoch) = self.epoch(place) else { return };
        epoch.has_ended = true;
        let ranks = lost.iter().filter_map(|rank| epoch.members.get(*rank as usize).copied());
        let given_up: Vec<_> = ranks.collect();
        epoch.given_up.extend(given_up);
    }

    /// Returns the outcome of `order`; `None` when it has to wait.
    pub(super) fn work(
        &mut self,
        place: &Position,
        order: &DeviceOrder,
        random: &mut Random,
    ) -> Option<TaskOutcome> {
        match order {
            DeviceOrder::Host(_) if random.once_in(30) => {
                Some(TaskOutcome::Hosted(Err("no socket".to_owned())))
            }
            DeviceOrder::Host(_) => {
                let id = format!("meeting {}", self.meetings.len());
                self.meetings.insert(id.clone(), Meeting { host: Some(place.device), ..Meeting::default() });
                Some(TaskOutcome::Hosted(Ok(id)))
            }
            DeviceOrder::Join { formation, id, .. } if formation.epoch == 1 => {
                let (n_ranks, rank) = (formation.members.len(), formation.rank_of(place.device)?);
                let meeting = self.meetings.entry(id.clone()).or_default();
                meeting.ranked.insert(rank, place.device);
                meeting.awaited = Some((n_ranks, n_ranks));
                self.meet(place, (id, 1), random).map(TaskOutcome::Met)
            }
            DeviceOrder::Join { id, .. } => {
                let meeting = self.meetings.entry(id.clone()).or_default();
                if !meeting.newcomers.contains(&place.device) {
                    meeting.newcomers.push(place.device);
                }
                self.meet(place, (id, place.epoch), random).map(TaskOutcome::Met)
            }
            DeviceOrder::Grow { formation, id, .. } => self.grow(place, formation.members.len(), id, random),
            DeviceOrder::Run { work, .. } => self.run(place, work, random).map(TaskOutcome::Ran),
            DeviceOrder::GoOn { .. } => self.go_on(place, random).map(TaskOutcome::WentOn),
            DeviceOrder::Leave { gracefully, .. } => {
                self.leave(place, *gracefully).then_some(TaskOutcome::Left)
            }
        }
    }

    fn epoch(&mut self, place: &Position) -> Option<&mut Epoch> {
        self.epochs.get_mut(&(place.job.clone()?, place.epoch))
    }

    /// Waits for the others at a meeting that leads to `epoch`.
    fn meet(
        &mut self,
        place: &Position,
        (id, epoch): (&str, u64),
        random: &mut Random,
    ) -> Option<Result<Vec<DeviceId>, String>> {
        let meeting = self.meetings.get_mut(id)?;
        let key = (id.to_owned(), epoch);
        if let Some(members) = meeting.go_on(place, random) {
            self.epochs.insert(key.clone(), Epoch { members, ..Epoch::default() });
        }
        match meeting.outcome? {
            true => Some(Ok(self.epochs.get(&key)?.members.clone())),
            false => Some(Err("it has failed".to_owned())),
        }
    }

    fn grow(
        &mut self,
        place: &Position,
        n_ranks: usize,
        id: &str,
        random: &mut Random,
    ) -> Option<TaskOutcome> {
        let epoch = self.epoch(place)?;
        let n_members = epoch.members.len();
        let rank = epoch.members.iter().position(|member| *member == place.device)?;
        let agreed = epoch.growing.entry(id.to_owned()).or_default();
        agreed.insert(place.device);
        if agreed.len() < n_members {
            epoch.has_ended |= random.once_in(60);
            return epoch.has_ended.then(|| TaskOutcome::Ended("they have not agreed".to_owned()));
        }
        let is_one_gone = !epoch.gone.is_empty();
        let meeting = self.meetings.entry(id.to_owned()).or_default();
        meeting.ranked.insert(u32::try_from(rank).ok()?, place.device);
        meeting.awaited = Some((n_members, n_ranks));
        if is_one_gone {
            meeting.outcome.get_or_insert(false);
        }
        let met = self.meet(place, (id, place.epoch + 1), random)?;
        let broken = self.broken == Some(Broken::HalfGrown) && rank > 0;
        let epoch = self.epoch(place)?;
        match met {
            Ok(_) if broken => Some(TaskOutcome::Met(Err("it has missed the others".to_owned()))),
            Ok(members) => {
                epoch.gone.insert(place.device);
                Some(TaskOutcome::Met(Ok(members)))
            }
            Err(why) => {
                epoch.has_ended |= is_one_gone;
                Some(if epoch.has_ended { TaskOutcome::Ended(why) } else { TaskOutcome::Met(Err(why)) })
            }
        }
    }

    fn run(
        &mut self,
        place: &Position,
        work: &GroupWork,
        random: &mut Random,
    ) -> Option<Result<Option<u64>, GroupFailure>> {
        let newest = self.written.last().map_or(1, |newest| newest + 1);
        let is_made_up = self.broken == Some(Broken::NothingWritten);
        let epoch = self.epoch(place)?;
        let came = epoch.groups.entry(place.group).or_default();
        came.insert(place.device);
        let all_came = came.len() == epoch.members.len();
        if all_came && matches!(work, GroupWork::Calls(_)) {
            return Some(Ok(None));
        }
        if all_came && !(epoch.has_ended && random.once_in(4)) {
            let is_ended = epoch.has_ended;
            let is_new = !epoch.checkpoints.contains_key(&place.group);
            // All members agree on how it went.
            let draw = || if is_ended || random.once_in(3) { None } else { Some(newest) };
            let verdict = *epoch.checkpoints.entry(place.group).or_insert_with(draw);
            if is_new && !is_made_up {
                self.written.extend(verdict);
            }
            let (why, kind) = ("no space".to_owned(), FailureKind::Other);
            let rank = place.device.get().is_multiple_of(2).then_some(0);
            let trouble = GroupFailure { why, kind, rank, is_undone: !is_ended, report: None };
            return Some(verdict.map(Some).ok_or(trouble));
        }
        epoch.has_ended |= random.once_in(60);
        let has_ended = epoch.has_ended;
        let kind = random.pick(&[FailureKind::Revoked, FailureKind::PeerLost, FailureKind::Timeout])?;
        let rank = (kind != FailureKind::Revoked).then_some(0);
        has_ended.then(|| {
            Err(GroupFailure { why: "it has ended".to_owned(), kind, rank, is_undone: false, report: None })
        })
    }

    fn go_on(&mut self, place: &Position, random: &mut Random) -> Option<Result<Vec<u32>, String>> {
        let (device, next) = (place.device, (place.job.clone()?, place.epoch + 1));
        let epoch = self.epoch(place)?;
        epoch.has_ended = true;
        if epoch.failed.remove(&device) {
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
            if random.once_in(6) {
                epoch.failed = going_on;
                return None;
            }
            let chosen: Vec<_> = epoch.members.iter().copied().filter(|it| going_on.contains(it)).collect();
            // A member that has died since it came is found to be gone in the next epoch.
            let gone: BTreeSet<_> = chosen.iter().copied().filter(|it| epoch.gone.contains(it)).collect();
            epoch.successors = Some(chosen.clone());
            let has_ended = !gone.is_empty();
            self.epochs.insert(next, Epoch { members: chosen, gone, has_ended, ..Epoch::default() });
        }
        let epoch = self.epoch(place)?;
        let Some(successors) = &epoch.successors else {
            let times_out = random.once_in(60).then(|| Err("timed out".to_owned()));
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

    fn leave(&mut self, place: &Position, gracefully: bool) -> bool {
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
