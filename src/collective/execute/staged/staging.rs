//! Staging: what a member copies of its own input to its staging area, and where.
//! Both depend on the call and on the member's own buffers, and on nothing that others tell.
//!
//! # Staging before a call is posted
//!
//! A member that knows that its input will be needed in its staging area stages the first pieces
//! before it posts. Nobody touches its staging area then: each operation ends when all that is read
//! or written in it has been. Where all members have, the post tells of the first steps, and nobody
//! waits for these apart. Where all is one piece, this saves one hand-over of three. That is much
//! of a short call, above all where members take turns on their cores.
//!
//! Whether a member does follows from its post, and from what all members know before. So all know
//! it of each other. It is in vain where others turn out to have their buffers elsewhere: in place
//! in the heap, or where a table has another algorithm for all. Calls in which some members are in
//! place and others are not pay for that each time.

use std::ops::Range;

use super::StagedPart;
use super::slots::{Slots, StagedPiece};
use crate::collective::call::{Call, Input, Operation, shifted};
use crate::collective::execute::zero_copy::share;
use crate::collective::rendezvous::buffers::Buffers;
use crate::collective::rendezvous::members::Members;
use crate::error::Result;
use crate::heap::Region;

impl Slots {
    /// Makes how members of `members` stage `call`; `oversubscribed` ones share cores.
    pub(super) fn of(call: &Call<'_>, members: &Members, oversubscribed: bool) -> Self {
        let n_members = members.n_members() as u64;
        Self::new(call.operation, call.data_type, call.count, n_members, oversubscribed)
    }

    /// Returns how many bytes the slots of a member whose `buffers` are there begin behind a line.
    pub(super) fn behind(&self, buffers: Buffers) -> u64 {
        if self.returns { buffers.input.behind_line() } else { 0 }
    }

    /// Returns where `part` is in the staging area of `member`, whose slots begin so far `behind` a
    /// line.
    pub(super) fn slot(&self, members: &Members, member: usize, behind: u64, part: &StagedPart) -> Region {
        let at = self.place(part.piece, part.block) + behind + part.bytes.start;
        Region::new(shifted(members.staging(member).offset, at), part.len())
    }

    /// Returns the bytes of a piece that `member` combines, of those whose results are returned.
    pub(super) fn share(&self, members: &Members, member: usize, piece: StagedPiece) -> Range<u64> {
        share(piece.count, self.size, member, members.n_members())
    }

    /// Returns the bytes of a piece that this member leaves to others to combine.
    pub(super) fn others_shares(&self, members: &Members, piece: StagedPiece) -> [Range<u64>; 2] {
        let mine = self.share(members, members.me(), piece);
        [0..mine.start, mine.end..piece.len]
    }

    /// Copies what others need of piece `number` of this member's input, if there is that piece,
    /// into its staging area; what is `WATCHED` is told of and struck.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for a buffer that is not allocated.
    pub(super) fn stage<const WATCHED: bool>(
        &self,
        members: &Members,
        call: &Call<'_>,
        number: u64,
    ) -> Result<()> {
        let Some(piece) = self.piece(number).filter(|_| !matches!(call.input, Input::None)) else {
            return Ok(());
        };
        self.each_part(members, call, piece, |_, part| self.stage_part(members, call, part))?;
        if WATCHED { self.tell_piece(members, call, piece) } else { Ok(()) }
    }

    /// Hands `visit` each part of `piece` that this member stages, with its number among them.
    pub(super) fn each_part(
        &self,
        members: &Members,
        call: &Call<'_>,
        piece: StagedPiece,
        mut visit: impl FnMut(usize, &StagedPart) -> Result<()>,
    ) -> Result<()> {
        if self.returns {
            let mut parts = self.others_shares(members, piece).into_iter().enumerate();
            return parts.try_for_each(|(index, bytes)| visit(index, &StagedPart::new(piece, 0, bytes)));
        }
        let blocks = call.operation.blocks(members.n_members() as u64).0;
        let own = unshared_block(members, call);
        (0..members.n_members())
            .zip(0..blocks)
            .filter(|&(_, block)| Some(block) != own)
            .try_for_each(|(index, block)| visit(index, &StagedPart::new(piece, block, 0..piece.len)))
    }

    /// Returns where `part` of this member's input is staged.
    pub(super) fn own_slot(&self, members: &Members, call: &Call<'_>, part: &StagedPart) -> Region {
        self.slot(members, members.me(), self.behind(Buffers::of(call)), part)
    }

    fn stage_part(&self, members: &Members, call: &Call<'_>, part: &StagedPart) -> Result<()> {
        let target = self.own_slot(members, call, part);
        let at = part.block * call.block_len()? + part.start();
        let span = members.heap_of(members.me(), target)?;
        // Lines into which results return stay with this member, if it is to have some; others are
        // read by its peers and written to by nobody else.
        if self.returns {
            call.give_input(members.view(), at, span, target)
        } else {
            call.copy_input(members.view(), at, span, target)
        }
    }
}

/// Returns the block of this member's input that nobody else needs.
fn unshared_block(members: &Members, call: &Call<'_>) -> Option<u64> {
    match call.operation {
        Operation::ReduceScatter | Operation::Scatter | Operation::AllToAll => Some(members.me() as u64),
        Operation::Gather if call.root == members.me() => Some(0),
        _ => None,
    }
}

/// Stages the first pieces of `call`, which this member has not posted yet; `oversubscribed` ones
/// share cores.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for a buffer that is not allocated.
pub(crate) fn prestage(call: &Call<'_>, members: &Members, oversubscribed: bool) -> Result<()> {
    let slots = Slots::of(call, members, oversubscribed);
    (0..slots.lag).try_for_each(|number| {
        if members.is_watched() {
            slots.stage::<true>(members, call, number)
        } else {
            slots.stage::<false>(members, call, number)
        }
    })
}
