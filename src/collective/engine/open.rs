//! Messages of one communicator that were started, by whatever calls, and are not done. All of them
//! move together, as those of a group do, whoever looks.

use super::{Engine, group};
use crate::collective::call::{Call, CallSignature, ChannelKind, StatusHandle};
use crate::collective::message::MessageEnd;
use crate::collective::message::progress;
use crate::error::Result;
use crate::rank::RankSet;
use crate::sync::Stop;

/// Messages in the order of their calls.
#[derive(Debug, Default)]
pub(crate) struct OpenMessages {
    ends: Vec<MessageEnd<'static>>,
    /// The number of the call that each is of.
    calls: Vec<u64>,
    /// Where each leaves its status, if it is to come from any member.
    statuses: Vec<Option<StatusHandle>>,
    kind: ChannelKind,
}

impl OpenMessages {
    /// Adds the messages that `calls` are: those of call `number`, which comes after all others.
    /// They go over channels of `kind`, as all that are open.
    ///
    /// # Errors
    /// Those of [`group::messages`].
    pub(crate) fn add(
        &mut self,
        engine: &Engine,
        number: u64,
        calls: &mut [Call<'static>],
        kind: ChannelKind,
    ) -> Result<()> {
        for (end, status) in group::messages(engine, calls)? {
            self.ends.push(end);
            self.statuses.push(status);
        }
        self.calls.resize(self.ends.len(), number);
        self.kind = kind;
        Ok(())
    }

    /// Returns whether messages of call `number` are left.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.calls.binary_search(&number).is_ok()
    }

    /// Does what can be done now, without waiting. Returns whether that was anything.
    ///
    /// # Errors
    /// Those of [`progress::run`], which end the epoch.
    pub(crate) fn advance(&mut self, engine: &mut Engine) -> Result<bool> {
        if self.ends.is_empty() {
            return Ok(false);
        }
        let moved = engine.batch(self.kind, &mut self.ends, &[]).and_then(progress::poll);
        let has_moved = moved.inspect_err(|error| engine.members.board.revoke_after(error))?;
        if has_moved && self.ends.iter().any(|end| end.state.is_done()) {
            engine.members.board.report_delivered();
            self.tell(engine)?;
            self.remove(|end| end.state.is_done());
        }
        Ok(has_moved)
    }

    /// Gives up the receives of which nothing has come. Returns the numbers of their calls.
    pub(crate) fn cancel_receives(&mut self) -> Vec<u64> {
        let is_idle = |end: &MessageEnd<'_>| !end.is_sent() && end.state.is_fresh();
        let calls = self.ends.iter().zip(&self.calls);
        let cancelled = calls.filter(|(end, _)| is_idle(end)).map(|(_, call)| *call).collect();
        self.remove(is_idle);
        cancelled
    }

    /// Gives up all.
    pub(crate) fn clear(&mut self) {
        self.remove(|_| true);
    }

    /// Returns why a message is in vain, if one is, and whom it awaits.
    pub(crate) fn check(&self, engine: &Engine) -> Option<Stop> {
        self.ends.iter().find_map(|end| end.check(&engine.members))
    }

    /// Returns what the first is called as.
    pub(crate) fn call(&self) -> Option<CallSignature> {
        self.ends.first().map(|end| end.state.signature)
    }

    /// Returns the ranks of the job that are awaited.
    pub(crate) fn awaited(&self, engine: &Engine) -> RankSet {
        self.ends.iter().flat_map(|end| end.awaited(&engine.members).iter()).collect()
    }

    /// Leaves the statuses of those that are done.
    fn tell(&self, engine: &Engine) -> Result<()> {
        let mut told = self.ends.iter().zip(&self.statuses).filter(|(end, _)| end.state.is_done());
        told.try_for_each(|(end, status)| match status {
            Some(status) => end.status(&engine.members).map(|told| status.set(told)),
            None => Ok(()),
        })
    }

    fn remove(&mut self, is_over: impl Fn(&MessageEnd<'_>) -> bool) {
        let mut over = self.ends.iter().map(&is_over);
        self.calls.retain(|_| !over.next().unwrap_or_default());
        let mut over = self.ends.iter().map(&is_over);
        self.statuses.retain(|_| !over.next().unwrap_or_default());
        self.ends.retain(|end| !is_over(end));
    }
}
