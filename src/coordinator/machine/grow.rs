//! Growing: free devices join a communicator that is ready, all of them or none.
//!
//! The first newcomer hosts a meeting, to which members and newcomers are told to come. Either all of them are in the next epoch
//! then, or the members go on in the one that they have and the newcomers are turned out. While it is open which, nobody is turned
//! out: what has become hopeless is called off, for all members, and their reports tell whether that came too late.

use super::comm::{Comm, CommFailure, CommStage, WaitCondition};
use super::requests::MaybeReply;
use super::settle::Moved;
use super::{CoordinatorMachine, RequestId};
use crate::coordinator::error::RequestError;
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::order::{CommFormation, DeviceOrder, DevicePhase};
use crate::coordinator::request::CommState;
use crate::rank::MAX_RANKS;

/// How far a newcomer is.
enum NewcomerProgress {
    /// It can still come.
    OnTheWay,
    /// It is in the next epoch, of these members.
    In(Vec<DeviceId>),
    /// It does not come.
    Out(String),
}

impl CoordinatorMachine {
    pub(super) fn ask_to_grow(&mut self, asker: RequestId, comm: CommId, asked: u32) -> MaybeReply {
        let (free, devices) = (self.pool.free(), self.pool.len());
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready])?;
        if found.open.is_some() {
            return Err(RequestError::GroupOpen { comm, open: true });
        }
        let total = u32::try_from(found.members.len()).unwrap_or(u32::MAX).saturating_add(asked);
        if asked == 0 || total > MAX_RANKS {
            return Err(RequestError::BadSize { asked: if asked == 0 { 0 } else { total } });
        }
        let newcomers = free.get(..asked as usize).map(<[DeviceId]>::to_vec);
        let newcomers =
            newcomers.ok_or(RequestError::NotEnoughDevices { asked, free: free.len(), devices })?;
        let answer = found.wait(asker, WaitCondition::Grown)?;
        found.newcomers.clone_from(&newcomers);
        found.stage = CommStage::Inviting;
        newcomers.into_iter().for_each(|newcomer| self.pool.give(newcomer, comm));
        Ok(answer)
    }

    pub(super) fn invite(&mut self, comm: &mut Comm) -> Moved {
        let is_out = |newcomer: &DeviceId| match self.progress(comm, *newcomer) {
            NewcomerProgress::Out(why) => Some(why),
            _ => None,
        };
        let trouble = comm.trouble(&self.pool).map(|finding| finding.why);
        if let Some(why) = trouble.or_else(|| comm.newcomers.iter().find_map(is_out)) {
            return self.remain(comm, &why);
        }
        let host = comm.newcomers[0];
        match self.pool.membership(host, comm.id).map(|membership| &membership.phase) {
            Some(DevicePhase::Hosting { id: Some(id) }) => {
                comm.stage = CommStage::Growing { id: id.clone(), off: None };
                true
            }
            _ => {
                self.order(host, &DeviceOrder::Host(comm.next_formation()));
                false
            }
        }
    }

    pub(super) fn grow(&mut self, comm: &mut Comm, id: &str, mut off: Option<String>) -> Moved {
        let formation = comm.next_formation();
        let (mut successors, mut undecided, mut on_the_way) = (None, Vec::new(), Vec::new());
        for newcomer in comm.newcomers.clone() {
            match self.progress(comm, newcomer) {
                NewcomerProgress::OnTheWay => on_the_way.push(newcomer),
                NewcomerProgress::In(members) => successors = Some(members),
                NewcomerProgress::Out(why) => _ = off.get_or_insert(why),
            }
        }
        for member in comm.living() {
            let Some(membership) = self.pool.membership_or_loss(member, comm) else { continue };
            match &membership.phase {
                _ if membership.formation.epoch > comm.epoch => {
                    successors = Some(membership.formation.members.clone());
                }
                DevicePhase::Ready { tried: Some(tried), .. } if tried.id == id => {
                    off.get_or_insert_with(|| format!("device {member}: {}", tried.why));
                }
                DevicePhase::Failed { why, .. } => {
                    _ = off.get_or_insert_with(|| format!("device {member}: {why}"))
                }
                _ => undecided.push(member),
            }
        }
        if let Some(lost) = comm.lost.first() {
            off.get_or_insert_with(|| comm.loss_of(*lost));
        }
        match successors {
            Some(members) if undecided.is_empty() && on_the_way.is_empty() => {
                self.counts.joined += members.len().saturating_sub(comm.members.len()) as u64;
                self.counts.grown += 1;
                self.enter_next_epoch(comm, members);
                self.conclude(comm)
            }
            None if undecided.is_empty() => self.remain(comm, &blame(off.unwrap_or_default(), &on_the_way)),
            successors => {
                if successors.is_none() {
                    self.send_for(comm, (&on_the_way, &undecided), &formation, (id, off.is_some()));
                }
                comm.stage = CommStage::Growing { id: id.to_owned(), off };
                false
            }
        }
    }

    /// Tells newcomers and members to meet; or to these that it is off, which ends it for those as well.
    fn send_for(
        &mut self,
        comm: &Comm,
        (newcomers, members): (&[DeviceId], &[DeviceId]),
        formation: &CommFormation,
        (id, off): (&str, bool),
    ) {
        if !off {
            let join = comm.join(formation.clone(), id);
            newcomers.iter().for_each(|newcomer| self.order(*newcomer, &join));
        }
        let off = off.then(|| comm.lost.iter().copied().collect());
        let grow = DeviceOrder::Grow { formation: formation.clone(), id: id.to_owned(), off };
        members.iter().for_each(|member| self.order(*member, &grow));
    }

    fn progress(&self, comm: &Comm, newcomer: DeviceId) -> NewcomerProgress {
        let Some(device) = self.pool.get(newcomer).filter(|device| device.owner == Some(comm.id)) else {
            return NewcomerProgress::Out(comm.loss_of(newcomer));
        };
        let Some(membership) = self.pool.membership(newcomer, comm.id) else {
            // It has not heard yet that it is to come, or was not told.
            let has_left = device.has_heard_all() && device.is_told_to_come(comm.id, comm.epoch + 1);
            let why = || NewcomerProgress::Out(format!("device {newcomer} has left"));
            return if has_left { why() } else { NewcomerProgress::OnTheWay };
        };
        match &membership.phase {
            DevicePhase::Hosting { .. } | DevicePhase::Joining { .. } => NewcomerProgress::OnTheWay,
            DevicePhase::Unmet { why } => NewcomerProgress::Out(format!("device {newcomer}: {why}")),
            DevicePhase::Leaving => NewcomerProgress::Out(format!("device {newcomer} has left")),
            _ => NewcomerProgress::In(membership.formation.members.clone()),
        }
    }

    /// It goes on as it was, and the newcomers are turned out.
    fn remain(&mut self, comm: &mut Comm, why: &str) -> Moved {
        for newcomer in comm.turn_out() {
            self.pool.take_back(newcomer, comm.id);
        }
        for asker in comm.take_waiting(&[WaitCondition::Grown]) {
            self.reply(asker, Err(RequestError::NotGrown { comm: comm.id, why: why.to_owned() }));
        }
        comm.stage = CommStage::Ready;
        true
    }

    /// It has grown; if one of all was lost meanwhile, that is what those who wait for it are told.
    fn conclude(&mut self, comm: &mut Comm) -> Moved {
        comm.stage = CommStage::Ready;
        if let Some(CommFailure { why, .. }) = comm.trouble(&self.pool) {
            for asker in comm.take_waiting(&[WaitCondition::Grown]) {
                self.reply(asker, Err(RequestError::Failed { comm: comm.id, why: why.clone() }));
            }
        }
        true
    }
}

/// Why it has not grown, and which newcomers have said nothing since they were told to come: one that has stopped just then is
/// silent without leaving an order unheard.
fn blame(why: String, on_the_way: &[DeviceId]) -> String {
    match on_the_way {
        [] => why,
        [device] => format!("{why}; device {device} was told to come, and has not"),
        devices => {
            let devices: Vec<_> = devices.iter().map(ToString::to_string).collect();
            format!("{why}; devices {} were told to come, and have not", devices.join(", "))
        }
    }
}

impl Comm {
    /// What tells a device to meet the others.
    pub(super) fn join(&self, formation: CommFormation, id: &str) -> DeviceOrder {
        DeviceOrder::Join { formation, groups: self.groups, last: self.last.clone(), id: id.to_owned() }
    }
}
