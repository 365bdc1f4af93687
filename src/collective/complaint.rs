//! Where a receiver leaves word that a message was not what it called for.
//!
//! The sender may be long gone on when its message is looked at. So the receiver puts up what either of them has called, ends the
//! epoch, and the sender, whose next wait ends with that, finds it. There is one complaint of a member about another at most, as
//! it is the end.

use std::sync::Arc;

use super::operation::Summary;
use super::region::RegionLayout;
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
        let layout = RegionLayout::new(members.len() as u64);
        let cell = |receiver: usize, sender: usize| {
            let place = layout.part(bases[receiver], layout.complaint(sender as u64), 128)?;
            view.cell(members[receiver], place.offset)
        };
        Ok(Self {
            about_me: (0..members.len()).map(|member| cell(member, me)).collect::<Result<_>>()?,
            mine: (0..members.len()).map(|member| cell(me, member)).collect::<Result<_>>()?,
            members: Arc::clone(members),
        })
    }

    /// Tells `sender` that this member is in the call `mine`, which `theirs` does not answer, and returns the error that says so.
    pub(crate) fn lodge(&self, sender: usize, mine: Summary, theirs: Summary) -> Error {
        self.mine[sender].post(1, mine.words(), &theirs.words());
        Error::CallMismatch { mine, rank: self.members[sender], theirs }
    }

    /// The complaint of some member about a message of this one.
    pub(crate) fn find(&self) -> Option<Error> {
        let member = self.about_me.iter().position(|cell| cell.shows(1))?;
        let summary = |word| {
            let cell = &self.about_me[member];
            Summary::from_words([cell.word(word), cell.word(word + 1)])
        };
        Some(Error::CallMismatch { mine: summary(2), rank: self.members[member], theirs: summary(0) })
    }
}
