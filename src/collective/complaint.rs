//! Where a receiver leaves word that a message was not what it called for.
//!
//! The sender may be long gone on when its message is looked at. So the receiver puts up what either of them has called, ends the
//! epoch, and the sender, whose next wait ends with that, finds it. There is one complaint of a member about another at most, as
//! it is the end.
//!
//! Who waits for a message, in vain as its peer is in an operation of all and waits there for the receiver, complains likewise, about
//! all: those who have not come to that operation will not get through it.

use std::sync::Arc;

use super::operation::Summary;
use super::region::{RegionLayout, cells_between};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, HeapView};
use crate::rank::Rank;
use crate::shm::CellRef;
use crate::sync::PostCell;

/// The complaints that concern one member, by the numbers of the others.
#[derive(Debug)]
pub(crate) struct Complaints {
    members: Arc<[Rank]>,
    about_me: Vec<CellRef<PostCell>>,
    mine: Vec<CellRef<PostCell>>,
}

impl Complaints {
    /// Those of the member `me` of `members`, whose regions start at `bases`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Misaligned`] for a base that is not where a region can be.
    pub(crate) fn new(
        view: &HeapView,
        members: &Arc<[Rank]>,
        bases: &[HeapOffset],
        me: usize,
    ) -> Result<Self> {
        let [mine, about_me] = cells_between(view, members, bases, me, RegionLayout::complaint)?;
        Ok(Self { members: Arc::clone(members), about_me, mine })
    }

    /// Tells `member` that this one is in the call `mine`, which `theirs` does not answer.
    pub(crate) fn lodge(&self, member: usize, mine: Summary, theirs: Summary) {
        self.mine[member].post(1, mine.words(), &theirs.words());
    }

    /// The complaint of some member about this one, which is in the call `mine`, or of this one.
    pub(crate) fn find(&self, mine: Summary) -> Option<Error> {
        let about_me = Self::calls(&self.about_me).next().map(|(rank, [theirs, called])| {
            let mine = if called == Summary::NONE { mine } else { called };
            (mine, rank, theirs)
        });
        let others = || Self::calls(&self.mine).find(|(_, [_, theirs])| *theirs != Summary::NONE);
        let of_mine = || others().map(|(rank, [mine, theirs])| (mine, rank, theirs));
        let (mine, member, theirs) = about_me.or_else(of_mine)?;
        Some(Error::CallMismatch { mine, rank: self.members[member], theirs })
    }

    /// The complaints in `cells`, by the number of the other member: the call of who complains, and that of whom it is about.
    fn calls(cells: &[CellRef<PostCell>]) -> impl Iterator<Item = (usize, [Summary; 2])> {
        let call = |cell: &PostCell, word| Summary::from_words([cell.word(word), cell.word(word + 1)]);
        let lodged = cells.iter().enumerate().filter(|(_, cell)| cell.shows(1));
        lodged.map(move |(member, cell)| (member, [call(cell, 0), call(cell, 2)]))
    }
}
