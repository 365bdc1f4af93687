//! Checkpoints: a group of its own, of one thing that all members do.
//!
//! Devices write and read, each its own memory, and agree on whether it went well; the coordinator only tells them to. What fails
//! leaves the communicator as it was, so it stays ready. A member that dies meanwhile is a failure of the communicator, as in any group.

use super::comm::{Comm, CommStage, WaitCondition};
use super::pool::DeviceTable;
use super::requests::MaybeReply;
use super::settle::Moved;
use super::{CoordinatorMachine, RequestId};
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::refusal::RequestError;
use crate::coordinator::request::{CommState, GroupOutcome, Reply};
use crate::coordinator::work::GroupWork;

impl CoordinatorMachine {
    pub(super) fn ask_for_checkpoint(
        &mut self,
        asker: RequestId,
        comm: CommId,
        work: GroupWork,
    ) -> MaybeReply {
        work.check()?;
        let found = self.comm(comm)?;
        found.check_usable(&[CommState::Ready])?;
        let answer = found.wait(asker, WaitCondition::Done)?;
        found.dispatch(work);
        self.counts.started += 1;
        Ok(answer)
    }

    /// All members have ended the newest group and are ready: it has succeeded, or is undone.
    pub(super) fn conclude_group(&mut self, comm: &mut Comm) -> Moved {
        let outcome = comm.outcome(&self.pool);
        comm.last = Some(outcome.clone());
        *(if outcome.failure.is_none() { &mut self.counts.succeeded } else { &mut self.counts.failed }) += 1;
        let Some(why) = outcome.failure else {
            for asker in comm.take_waiting(&[WaitCondition::Done]) {
                // Whoever waits has asked for one that has a number.
                self.reply(asker, Ok(Reply::Checkpoint(outcome.checkpoint.unwrap_or_default())));
            }
            comm.stage = if comm.ending { CommStage::Leaving { gracefully: true } } else { CommStage::Ready };
            return true;
        };
        comm.ending = false;
        for asker in comm.take_waiting(&[WaitCondition::Done, WaitCondition::Finalized]) {
            self.reply(asker, Err(RequestError::CheckpointFailed { comm: comm.id, why: why.clone() }));
        }
        comm.stage = CommStage::Ready;
        true
    }
}

impl Comm {
    /// What came of the newest group, as its members tell, who are all ready after it.
    fn outcome(&self, pool: &DeviceTable) -> GroupOutcome {
        let told = |member: &DeviceId| {
            let last = pool.membership(*member, self.id)?.last.clone()?;
            (last.group == self.groups).then_some((*member, last))
        };
        let told: Vec<_> = self.members.iter().filter_map(told).collect();
        let failed = || told.iter().filter(|(_, last)| last.failure.is_some());
        // Who names another one tells only that it failed there.
        let first = failed().find(|(_, last)| last.culprit.is_none()).or_else(|| failed().next());
        let failure = first.and_then(|(member, last)| {
            last.failure.as_ref().map(|failure| format!("device {member}: {failure}"))
        });
        let culprit = first.and_then(|(_, last)| last.culprit);
        let checkpoint = told.iter().find_map(|(_, last)| last.checkpoint).filter(|_| failure.is_none());
        let report = first.and_then(|(_, last)| last.report.clone());
        GroupOutcome { group: self.groups, failure, culprit, checkpoint, report }
    }
}
