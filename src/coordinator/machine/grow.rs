//! Growing: free devices join a communicator that is ready, all of them or none.
//!
//! The first newcomer hosts a meeting, to which members and newcomers are ordered. In the end
//! either all of them are in the next epoch, or the members stay in the present one and the
//! newcomers are free again. While that is open, no newcomer is released: a hopeless meeting is
//! called off for all members, and their reports tell whether that came too late.

use super::comm::{Comm, CommFailure, CommStage, WaitCondition};
use super::requests::MaybeReply;
use super::settle::Moved;
use super::{CoordinatorMachine, RequestId};
use crate::coordinator::error::RequestError;
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::order::{CommFormation, DeviceOrder, DevicePhase};
use crate::coordinator::request::CommState;
use crate::rank::MAX_RANKS;

impl CoordinatorMachine {
    pub(super) fn ask_to_grow(&mut self, request_id: RequestId, comm: CommId, asked: u32) -> MaybeReply {
        let free = self.table.some_free(asked);
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready])?;
        if found.open.is_some() {
            return Err(RequestError::GroupOpen { comm, open: true });
        }
        let total = u32::try_from(found.members.len()).unwrap_or(u32::MAX).saturating_add(asked);
        if asked == 0 || total > MAX_RANKS {
            return Err(RequestError::BadSize { asked: if asked == 0 { 0 } else { total } });
        }
        let newcomers = free?;
        let answer = found.wait(request_id, WaitCondition::Grown)?;
        found.newcomers.clone_from(&newcomers);
        found.stage = CommStage::Inviting;
        newcomers.into_iter().for_each(|newcomer| self.table.give(newcomer, comm));
        Ok(answer)
    }

    pub(super) fn invite(&mut self, comm: &mut Comm) -> Moved {
        let trouble = comm.failure(&self.table).map(|finding| finding.why);
        let out = || comm.newcomers.iter().find_map(|newcomer| self.progress(comm, *newcomer).err());
        if let Some(why) = trouble.or_else(out) {
            return self.stay_ungrown(comm, &why);
        }
        let Some(id) = self.meeting_id(comm.newcomers[0], comm.next_formation()) else { return false };
        comm.stage = CommStage::Growing { id, off: None };
        true
    }

    pub(super) fn grow(&mut self, comm: &mut Comm, id: &str, mut off: Option<String>) -> Moved {
        let (mut successors, mut undecided, mut on_the_way) = (None, Vec::new(), Vec::new());
        for newcomer in comm.newcomers.clone() {
            match self.progress(comm, newcomer) {
                Ok(None) => on_the_way.push(newcomer),
                Ok(members) => successors = members,
                Err(why) => _ = off.get_or_insert(why),
            }
        }
        for member in comm.living() {
            let Some(membership) = self.table.membership_or_loss(member, comm) else { continue };
            match &membership.phase {
                _ if membership.formation.epoch > comm.epoch => {
                    successors = Some(membership.formation.members.clone());
                }
                DevicePhase::Ready(Some(tried)) if tried.id == id => {
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
            None if undecided.is_empty() => {
                self.stay_ungrown(comm, &name_silent(off.unwrap_or_default(), &on_the_way))
            }
            successors => {
                if successors.is_none() && off.is_none() {
                    let join = comm.join(comm.next_formation(), id);
                    on_the_way.iter().for_each(|newcomer| self.order(*newcomer, &join));
                }
                if successors.is_none() {
                    // Members that call it off end it for the newcomers as well.
                    let off = off.as_ref().map(|_| comm.lost.iter().copied().collect());
                    let grow = DeviceOrder::Grow { formation: comm.next_formation(), id: id.to_owned(), off };
                    undecided.iter().for_each(|member| self.order(*member, &grow));
                }
                comm.stage = CommStage::Growing { id: id.to_owned(), off };
                false
            }
        }
    }

    /// Returns the members of the next epoch, if a newcomer is in it; `None` while it can still
    /// come.
    ///
    /// # Errors
    /// Why it does not come.
    fn progress(&self, comm: &Comm, newcomer: DeviceId) -> Result<Option<Vec<DeviceId>>, String> {
        let Some(device) = self.table.get(newcomer).filter(|device| device.owner == Some(comm.id)) else {
            return Err(comm.loss_of(newcomer));
        };
        let Some(membership) = self.table.membership(newcomer, comm.id) else {
            // The order has not reached it yet, or was not sent.
            let has_left = device.has_confirmed_all() && device.is_ordered_to_join(comm.id, comm.epoch + 1);
            return if has_left { Err(format!("device {newcomer} has left")) } else { Ok(None) };
        };
        match &membership.phase {
            DevicePhase::Hosting(_) | DevicePhase::Joining(_) => Ok(None),
            DevicePhase::Unmet(why) => Err(format!("device {newcomer}: {why}")),
            DevicePhase::Leaving => Err(format!("device {newcomer} has left")),
            _ => Ok(Some(membership.formation.members.clone())),
        }
    }

    /// Has the communicator stay as it was, and releases the newcomers.
    fn stay_ungrown(&mut self, comm: &mut Comm, why: &str) -> Moved {
        for newcomer in comm.take_newcomers() {
            self.table.take_back(newcomer, comm.id);
        }
        let refusal = RequestError::NotGrown { comm: comm.id, why: why.to_owned() };
        self.refuse(comm, &[WaitCondition::Grown], &refusal);
        comm.stage = CommStage::Ready;
        true
    }

    /// Concludes growing. If a device was lost meanwhile, the requests that wait for it fail by
    /// that.
    fn conclude(&mut self, comm: &mut Comm) -> Moved {
        comm.stage = CommStage::Ready;
        if let Some(CommFailure { why, .. }) = comm.failure(&self.table) {
            self.refuse(comm, &[WaitCondition::Grown], &RequestError::Failed { comm: comm.id, why });
        }
        true
    }
}

/// Returns why it has not grown, and which newcomers have reported nothing since they were told to
/// come. A newcomer that has stopped just then leaves no order unconfirmed.
fn name_silent(why: String, on_the_way: &[DeviceId]) -> String {
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
    /// Returns the order to meet the others.
    pub(super) fn join(&self, formation: CommFormation, id: &str) -> DeviceOrder {
        DeviceOrder::Join { formation, groups: self.groups, last: self.last.clone(), id: id.to_owned() }
    }
}
