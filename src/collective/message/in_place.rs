//! A block whose contents go to a member and are replaced by what comes from there: one place that
//! two messages share.
//!
//! Nothing is overwritten that is still to be sent:
//!
//! 1. What is sent is copied out of the block before it counts as *given*: into the inbox of the
//!    peer, or onto the bounce buffer, where a proxy finds it. No rendezvous get and no proxy reads
//!    such a block. So nobody looks at given bytes any more.
//! 2. A fragment that has come is *kept* until as much of the block is given as it is to be copied
//!    over: the piece of the same number, or all of it where the peer, whose buffers lie apart,
//!    leaves its block to a rendezvous get.
//! 3. Before that, its header has shown that both have called for as many elements: a block that
//!    the two disagree about stays as it is.
//!
//! No memory is needed for it but the slots of the pipe, through which both ways go piece by piece.
//!
//! # No deadlock
//! At time k a member sends piece k, and then it receives the piece of that number. To be sent,
//! piece k waits until the peer has received what was sent
//! [`PIPE_SLOTS`](crate::collective::region::PIPE_SLOTS) fragments before; to be received, until
//! the peer has sent it, and this member its own. All of that is earlier: of all steps that are not
//! done, one with the least time can be taken. Calls that follow each other on a pipe have times in
//! their order, which is the same at both ends. A peer whose buffers lie apart does not even wait
//! for what it sends itself.

use std::cell::{Cell, RefCell};

use crate::collective::call::{Input, Output};
use crate::heap::HeapOffset;

/// The block, and how far it is.
#[derive(Debug)]
pub(crate) struct InPlaceBlock<'a> {
    block: RefCell<Output<'a>>,
    /// Bytes from the start that were copied out of it.
    copied_out: Cell<u64>,
    kept: Cell<Option<WaitingFragment>>,
}

/// A fragment that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingFragment {
    pub(super) number: u64,
    /// Where it is in this member's heap.
    pub(super) at: HeapOffset,
    /// Where the elements are, or [`HERE`](super::state::HERE).
    pub(super) place: u64,
}

impl<'a> InPlaceBlock<'a> {
    /// Makes all of `block`.
    pub(crate) fn new(block: Output<'a>) -> Self {
        Self { block: RefCell::new(block), copied_out: Cell::new(0), kept: Cell::new(None) }
    }

    /// Lets `visit` read the block.
    pub(super) fn read<R>(&self, visit: impl FnOnce(&Input<'_>) -> R) -> R {
        visit(&self.block.borrow().contents())
    }

    /// Returns the block, to be written.
    pub(super) fn block(&self) -> &RefCell<Output<'a>> {
        &self.block
    }

    /// Tells that the first `bytes` were copied out.
    pub(super) fn count_copied_out(&self, bytes: u64) {
        self.copied_out.set(bytes);
    }

    /// Returns whether the first `bytes` were copied out.
    pub(super) fn was_copied_out(&self, bytes: u64) -> bool {
        self.copied_out.get() >= bytes
    }

    /// Returns the fragment that is kept.
    pub(super) fn kept(&self) -> Option<WaitingFragment> {
        self.kept.take()
    }

    /// Returns whether a fragment is kept.
    pub(super) fn keeps_one(&self) -> bool {
        self.kept.get().is_some()
    }

    /// Says whether `fragment` may be opened, which the first `needed` bytes have to be given for;
    /// otherwise keeps it.
    pub(super) fn admits(&self, fragment: WaitingFragment, needed: u64) -> bool {
        let is_given = self.was_copied_out(needed);
        if !is_given {
            self.kept.set(Some(fragment));
        }
        is_given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_kept_until_what_it_is_copied_over_was_given() {
        let mut bytes = [1_u8, 2, 3];
        let in_place = InPlaceBlock::new(Output::Memory(&mut bytes));
        assert!(in_place.kept().is_none());
        let fragment = WaitingFragment { number: 7, at: HeapOffset::new(64), place: 0 };
        for copied_out in [0, 1] {
            in_place.count_copied_out(copied_out);
            assert!(!in_place.admits(fragment, 2));
            assert_eq!(in_place.kept(), Some(fragment));
        }
        in_place.count_copied_out(2);
        assert!(in_place.admits(fragment, 2) && in_place.kept().is_none());
    }

    #[test]
    fn what_is_read_of_a_block_is_what_it_holds_now() {
        let mut bytes = [1_u8, 2, 3];
        let in_place = InPlaceBlock::new(Output::Memory(&mut bytes));
        let first = || in_place.read(|input| if let Input::Memory(bytes) = input { bytes[0] } else { 0 });
        assert_eq!(first(), 1);
        if let Output::Memory(bytes) = &mut *in_place.block().borrow_mut() {
            bytes[0] = 9;
        }
        assert_eq!(first(), 9);
    }
}
