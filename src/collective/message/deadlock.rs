//! Whether a member that waits for messages waits for one that waits for it: see
//! [the notices](crate::collective::rendezvous::deadlock).

use std::cell::{Cell, RefCell};

use super::queues::MessageQueues;
use crate::collective::call::CallSignature;
use crate::collective::rendezvous::deadlock::MessageDirection;
use crate::rank::{MAX_RANKS, RankSet};

/// What one wait knows of those that it is for.
#[derive(Debug, Default)]
pub(super) struct PairDeadlock {
    /// How often the wait has turned out long: first at a look at the clock, then before each
    /// sleep.
    begun: Cell<u32>,
    /// Notices of others that were there at an earlier look: the number of a batch, of a peer, of
    /// its notice. Messages were looked for since.
    known: RefCell<Vec<(usize, usize, u64)>>,
}

/// A peer with which messages of one direction are left, and what the first of them was called for.
struct WaitingPeer {
    peer: usize,
    direction: MessageDirection,
    call: CallSignature,
}

impl PairDeadlock {
    /// Hears that the wait is long, and puts up notices before its first sleep.
    pub(super) fn begin(&self, batches: &[MessageQueues<'_, '_>]) {
        let begun = self.begun.get().saturating_add(1);
        self.begun.set(begun);
        if begun != 2 {
            return;
        }
        for batch in batches {
            for waiting in one_way_peers(batch) {
                batch.members.board.notices.post(waiting.peer, waiting.call, waiting.direction);
                wake(batch, waiting.peer);
                // Wakes this member, as a message would: it looks at their notices before it
                // sleeps.
                wake(batch, batch.members.me());
            }
        }
    }

    /// Takes down what it has put up.
    pub(super) fn end(&self, batches: &[MessageQueues<'_, '_>]) {
        if self.begun.get() < 2 {
            return;
        }
        for batch in batches {
            let peers = (0..batch.members.n_members()).filter(|&peer| peer != batch.members.me());
            peers.for_each(|peer| batch.members.board.notices.withdraw(peer));
        }
    }

    /// Complains when a peer certainly waits for this member, which waits for it; nothing can have
    /// moved since [`Self::begin`].
    pub(super) fn look(&self, batches: &[MessageQueues<'_, '_>]) -> Option<()> {
        if self.begun.get() < 2 {
            return None;
        }
        let mut all = batches.iter().enumerate();
        all.find_map(|(number, batch)| {
            one_way_peers(batch).find_map(|waiting| self.confirm(number, batch, &waiting))
        })
    }

    fn confirm(&self, number: usize, batch: &MessageQueues<'_, '_>, waiting: &WaitingPeer) -> Option<()> {
        let notices = &batch.members.board.notices;
        let theirs = notices.opposing(waiting.peer, waiting.direction)?;
        let known = (number, waiting.peer, theirs.number);
        if !self.known.borrow().contains(&known) {
            self.known.borrow_mut().push(known);
            wake(batch, batch.members.me());
            return None;
        }
        if notices.tell_seen(waiting.peer, theirs.number) {
            wake(batch, waiting.peer);
        }
        if !notices.is_seen(waiting.peer, theirs) {
            return None;
        }
        // The error is made of the complaint, on both sides.
        let _told = batch.members.board.report_mismatch(waiting.peer, waiting.call, theirs.call);
        Some(())
    }
}

/// Has `member` look around.
fn wake(batch: &MessageQueues<'_, '_>, member: usize) {
    batch.members.message_park(member).wake(batch.members.board.context().kernel());
}

/// Returns the peers with which messages of one direction only are left in `batch`.
fn one_way_peers(batch: &MessageQueues<'_, '_>) -> impl Iterator<Item = WaitingPeer> {
    let ranks = batch.members.ranks();
    let peers = |is_sent| {
        let open = batch.open_with_peer().filter(move |message| message.is_sent() == is_sent);
        open.map(|message| ranks[message.state.peer]).collect::<RankSet>()
    };
    let (sent, mut received) = (peers(true), peers(false));
    // A receive from any member may take a message of this one.
    if batch.open_to_any().is_some() {
        received = RankSet::all(MAX_RANKS);
    }
    let mut one_way = sent.without(received).or(received.without(sent));
    batch.open_with_peer().filter_map(move |message| {
        let peer = message.state.peer;
        let is_first = one_way.remove(ranks[peer]);
        let direction = match (message.is_sent(), batch.is_stalled(peer)) {
            (true, _) => MessageDirection::Sent,
            (false, true) => MessageDirection::Stalled,
            (false, false) => MessageDirection::Received,
        };
        is_first.then_some(WaitingPeer { peer, direction, call: message.state.signature })
    })
}
