//! Whether a member that waits for messages waits for one that waits for it: see [`standoff`](crate::collective::standoff).

use std::cell::{Cell, RefCell};

use super::Queues;
use crate::collective::operation::Summary;
use crate::collective::standoff::Direction;

/// What one wait knows of those that it is for.
#[derive(Debug, Default)]
pub(super) struct Opposition {
    /// How often the wait has turned out long: first at a look at the clock, then before each sleep.
    begun: Cell<u32>,
    /// Notices of others that were there at an earlier look: the number of a batch, of a peer, of its notice. Messages were
    /// looked for since.
    known: RefCell<Vec<(usize, usize, u64)>>,
}

/// A peer with which messages of one direction are left, and what the first of them was called for.
struct Faced {
    peer: usize,
    direction: Direction,
    call: Summary,
}

impl Opposition {
    /// Hears that the wait is long, and puts up notices before its first sleep.
    pub(super) fn begin(&self, batches: &[Queues<'_, '_>]) {
        let begun = self.begun.get().saturating_add(1);
        self.begun.set(begun);
        if begun != 2 {
            return;
        }
        for batch in batches {
            for faced in faced(batch) {
                batch.team.board.notices().put_up(faced.peer, faced.call, faced.direction);
                wake(batch, faced.peer);
                // As if there were a message: it looks at their notices before it sleeps.
                wake(batch, batch.team.me());
            }
        }
    }

    /// Takes down what it has put up.
    pub(super) fn end(&self, batches: &[Queues<'_, '_>]) {
        if self.begun.get() < 2 {
            return;
        }
        for batch in batches {
            let peers = (0..batch.team.n_members()).filter(|&peer| peer != batch.team.me());
            peers.for_each(|peer| batch.team.board.notices().take_down(peer));
        }
    }

    /// Complains when a peer certainly waits for this member, which waits for it; nothing can have moved since [`Self::begin`].
    pub(super) fn look(&self, batches: &[Queues<'_, '_>]) -> Option<()> {
        if self.begun.get() < 2 {
            return None;
        }
        let mut all = batches.iter().enumerate();
        all.find_map(|(number, batch)| faced(batch).find_map(|faced| self.face(number, batch, &faced)))
    }

    fn face(&self, number: usize, batch: &Queues<'_, '_>, faced: &Faced) -> Option<()> {
        let notices = batch.team.board.notices();
        let theirs = notices.opposed(faced.peer, faced.direction)?;
        let known = (number, faced.peer, theirs.number);
        if !self.known.borrow().contains(&known) {
            self.known.borrow_mut().push(known);
            wake(batch, batch.team.me());
            return None;
        }
        if notices.tell_seen(faced.peer, theirs.number) {
            wake(batch, faced.peer);
        }
        if !notices.is_seen(faced.peer, theirs) {
            return None;
        }
        // The error is made of the complaint, on both sides.
        let _told = batch.team.board.complain(faced.peer, faced.call, theirs.call);
        Some(())
    }
}

/// Has `member` look around.
fn wake(batch: &Queues<'_, '_>, member: usize) {
    batch.team.message_park(member).wake(batch.team.board.context().kernel());
}

/// The peers with which messages of one direction only are left in `batch`.
fn faced(batch: &Queues<'_, '_>) -> impl Iterator<Item = Faced> {
    let bits = |is_sent| {
        let open = batch.open().filter(move |parcel| parcel.is_sent() == is_sent);
        open.fold(0_u64, |bits, parcel| bits | 1 << parcel.peer())
    };
    let one_way = bits(true) ^ bits(false);
    let mut found = 0_u64;
    batch.open().filter_map(move |parcel| {
        let (peer, bit) = (parcel.peer(), 1 << parcel.peer());
        let is_first = one_way & !found & bit != 0;
        found |= bit;
        let direction = if parcel.is_sent() { Direction::Sent } else { Direction::Received };
        is_first.then_some(Faced { peer, direction, call: parcel.summary() })
    })
}
