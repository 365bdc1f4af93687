//! How a member waits for whichever of several things comes first, from other members and proxies.

use std::time::Duration;

use super::board::CallBoard;
use crate::collective::call::Operation;
use crate::error::Result;
use crate::rank::RankSet;
use crate::sync::{SleepWord, Stop, Watch, wait_until};

/// What a wait for any of several things looks after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited<'a> {
    /// Members without whom it is in vain.
    pub(crate) members: &'a [usize],
    /// Whether a proxy may end it, who does not wake this member: it looks up every 20 ms then.
    pub(crate) by_proxy: bool,
}

impl CallBoard {
    /// Waits within `operation`, which all members have posted, until `poll` returns something.
    /// Members make it do so before they call [`CallBoard::wake`]. One that is in another call has
    /// ended this one.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does, but for a mismatch of calls.
    pub(crate) fn wait_for_any<T>(
        &self,
        operation: Operation,
        awaited: Awaited<'_>,
        poll: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let watch = AnyWait { board: self, operation, awaited };
        let waiting = self.context.waiting(&watch);
        wait_until(&waiting, &self.park, poll).map_err(|stop| {
            let only = match *awaited.members {
                [member] => Some(self.ranks[member]),
                _ => None,
            };
            self.context.error(&waiting, stop, operation.name(), only)
        })
    }
}

/// Watches the epoch, and whether the members live and have not left who are awaited.
#[derive(Debug)]
struct AnyWait<'a> {
    board: &'a CallBoard,
    operation: Operation,
    awaited: Awaited<'a>,
}

impl AnyWait<'_> {
    fn ranks(&self) -> RankSet {
        RankSet::from_iter(self.awaited.members.iter().map(|&member| self.board.ranks[member]))
    }
}

impl Watch for AnyWait<'_> {
    fn check(&self) -> Option<Stop> {
        let board = self.board;
        let lost = || self.awaited.members.iter().find_map(|&member| board.check_member(member));
        board.context.watch(None).check().or_else(lost).or_else(|| board.check_barrier())
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        (!self.awaited.by_proxy).then(|| self.board.context.mapped().revocation().bell())
    }

    fn begin(&self, since: Duration) {
        let seen = self.board.waiting_in(self.operation, self.ranks());
        self.board.context.activity().begin_wait(&seen, since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        let seen = self.board.waiting_in(self.operation, self.ranks());
        self.board.context.tell_end(&seen, since, stop);
    }
}
