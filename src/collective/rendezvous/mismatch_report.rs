//! Where a receiver leaves word that a message was not what it called for.
//!
//! The sender may be long gone on when its message is looked at. So the receiver puts up what either of them has called, ends the
//! epoch, and the sender, whose next wait ends with that, finds it. There is one complaint of a member about another at most, as
//! it is the end.
//!
//! Who waits for a message, in vain as its peer is in an operation of all and waits there for the receiver, complains likewise, about
//! all: those who have not come to that operation will not get through it. And who finds on the board that another one has made a
//! different call tells the rest, which may be in messages still.

use std::sync::Arc;

use crate::collective::call::Summary;
use crate::collective::region::{RegionLayout, cells_between};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, HeapView};
use crate::rank::Rank;
use crate::shm::CellRef;
use crate::sync::PostCell;

/// The complaints that concern one member, by the numbers of the others.
#[derive(Debug)]
pub(crate) struct Complaints {
    members: Arc<[Rank]>,
    me: usize,
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
        Ok(Self { members: Arc::clone(members), me, about_me, mine })
    }

    /// Tells `member` that this one is in the call `mine`, which `theirs` does not answer. The first complaint stays.
    pub(crate) fn lodge(&self, member: usize, mine: Summary, theirs: Summary) {
        self.post(member, Complaint { who: self.me, call: mine, called: theirs });
    }

    /// Tells `member`, whatever it is in, that `odd` is in the call `theirs`, which is not what others are in.
    pub(crate) fn pass_on(&self, member: usize, odd: usize, theirs: Summary) {
        self.post(member, Complaint { who: odd, call: theirs, called: Summary::NONE });
    }

    fn post(&self, member: usize, complaint: Complaint) {
        let Complaint { who, call, called } = complaint;
        if !self.mine[member].shows(1) {
            let [first, second] = called.words();
            self.mine[member].post(1, call.words(), &[first, second, who as u64]);
        }
    }

    /// The complaint of some member about this one, which is in the call `mine`, or of this one.
    pub(crate) fn find(&self, mine: Summary) -> Option<Error> {
        let about_me = Self::complaints(&self.about_me).map(|(_, complaint)| {
            let mine = if complaint.called == Summary::NONE { mine } else { complaint.called };
            (mine, complaint.who, complaint.call)
        });
        let is_own = |complaint: &Complaint| complaint.who == self.me && complaint.called != Summary::NONE;
        let own = Self::complaints(&self.mine).filter(|(_, complaint)| is_own(complaint));
        let of_mine = own.map(|(member, complaint)| (complaint.call, member, complaint.called));
        let mut differing = about_me.chain(of_mine).filter(|(mine, _, theirs)| mine != theirs);
        differing.find_map(|(mine, member, theirs)| {
            Some(Error::CallMismatch { mine, rank: *self.members.get(member)?, theirs })
        })
    }

    /// The complaints in `cells`, by the number of the other member.
    fn complaints(cells: &[CellRef<PostCell>]) -> impl Iterator<Item = (usize, Complaint)> {
        let lodged = cells.iter().enumerate().filter(|(_, cell)| cell.shows(1));
        lodged.map(|(member, cell)| (member, Complaint::read(cell)))
    }
}

/// What a member is told.
#[derive(Clone, Copy, Debug)]
struct Complaint {
    /// Who is in the call that is told of.
    who: usize,
    call: Summary,
    /// What the member that is told has called itself; [`Summary::NONE`] where only it knows.
    called: Summary,
}

impl Complaint {
    fn read(cell: &PostCell) -> Self {
        let call = |word| Summary::from_words([cell.word(word), cell.word(word + 1)]);
        let who = usize::try_from(cell.word(4)).unwrap_or(usize::MAX);
        Self { who, call: call(0), called: call(2) }
    }
}
