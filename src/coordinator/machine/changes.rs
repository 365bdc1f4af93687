//! The last changes of communicators, for those who watch: each is told, however soon the next one
//! follows.

use std::collections::{BTreeMap, VecDeque};

use crate::coordinator::id::CommId;
use crate::coordinator::request::{Changes, CommStatus};

/// How many are kept.
const KEPT: usize = 512;

/// How many a reply has: as many as fit into a message, however long their texts are.
const PAGE: usize = 16;

/// The changes that are kept.
#[derive(Debug, Default)]
pub(super) struct RecentChanges {
    /// The number of the newest one; they count from 1.
    newest: u64,
    kept: VecDeque<CommStatus>,
    /// How the communicators that have not ended were doing at their last change.
    last: BTreeMap<CommId, CommStatus>,
}

impl RecentChanges {
    /// Notes how a communicator is doing, if that has changed.
    pub(super) fn note(&mut self, status: CommStatus) {
        if self.last.get(&status.comm) == Some(&status) {
            return;
        }
        if status.state.has_ended() {
            self.last.remove(&status.comm);
        } else {
            self.last.insert(status.comm, status.clone());
        }
        self.newest += 1;
        self.kept.push_back(status.in_short());
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }

    /// Returns the changes behind number `after`.
    pub(super) fn since(&self, after: u64) -> Changes {
        if after == u64::MAX {
            return Changes { last: self.newest, ..Changes::default() };
        }
        let before_all = self.newest - self.kept.len() as u64;
        let is_torn = after < before_all || after > self.newest;
        let from = if is_torn { before_all } else { after };
        let skipped = usize::try_from(from - before_all).unwrap_or(usize::MAX);
        let changes: Vec<_> = self.kept.iter().skip(skipped).take(PAGE).cloned().collect();
        let last = from + changes.len() as u64;
        Changes { changes, last, more: last < self.newest, is_torn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::request::CommState;

    fn status(comm: u64, state: CommState) -> CommStatus {
        let comm = CommId::new(comm);
        CommStatus { comm, state, epoch: 1, devices: Vec::new(), lost: Vec::new(), last: None, why: None }
    }

    #[test]
    fn changes_are_told_once_and_in_their_order_by_pages_and_what_is_missing_is_said() {
        let mut changes = RecentChanges::default();
        for state in [CommState::Ready, CommState::Ready, CommState::Failed, CommState::Ready] {
            changes.note(status(1, state));
        }
        let all = changes.since(0);
        let states: Vec<_> = all.changes.iter().map(|it| it.state).collect();
        assert_eq!(states, [CommState::Ready, CommState::Failed, CommState::Ready]);
        assert_eq!((all.last, all.more, all.is_torn), (3, false, false));
        assert_eq!(changes.since(3), Changes { last: 3, ..Changes::default() });
        assert_eq!(changes.since(u64::MAX), Changes { last: 3, ..Changes::default() });
        assert!(changes.since(4).is_torn, "of another coordinator");
        (0..KEPT as u64).for_each(|comm| changes.note(status(2 + comm, CommState::Init)));
        assert!(changes.since(2).is_torn && !changes.since(3).is_torn);
        let mut read = changes.since(3);
        let mut comms: Vec<_> = read.changes.iter().map(|it| it.comm.get()).collect();
        while read.more {
            read = changes.since(read.last);
            comms.extend(read.changes.iter().map(|it| it.comm.get()));
        }
        assert_eq!(comms, (2..2 + KEPT as u64).collect::<Vec<_>>());
    }
}
