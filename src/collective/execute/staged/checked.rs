//! Checksums of what is staged, and faults that strike it: called before and after what moves the
//! bytes, where somebody watches.
//!
//! A staged piece is read part by part: a block as a whole or, where results are returned, the
//! share of each member. For each part and slot there is a word beside the member's staging area.
//! The member writes that word before the step by which it has staged the part. Another word is for
//! the result; the member that has combined the part writes it before the step by which it has. So
//! the edge that says that a part may be read (C2) carries its checksum, too, and a word is written
//! again when its slot is.
//!
//! | words of part k beside the staging area of a member | what | written by |
//! |---|---|---|
//! | slots 0..4 | bits 0..32 the CRC32C of the input that is staged there, 63 always | the member |
//! | 4 + slots 0..4 | that of the result that has taken its place | member k |
//!
//! The checksum of an input is that of the caller's buffer. The checksum of a result is that of the
//! output of the member that made it, if it has one, and all get the same result; else that of the
//! slot. Held against it are the bytes in the slot, before they are used.

use super::slots::{Slots, StagedPiece};
use super::{StagedCall, StagedPart, other_receivers, receivers};
use crate::collective::call::{Call, Output};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::checksum::{self, PARTS};
use crate::collective::transport::pipe::FragmentArrival;
use crate::error::Result;
use crate::faults::STAGE;
use crate::heap::{HeapPlace, Region};
use crate::shm::CellSlice;
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// One of the two words of a slot.
#[derive(Clone, Copy)]
enum SlotWord {
    Staged,
    Result,
}

/// The words of a part, one for each slot.
#[derive(Clone, Copy)]
struct PartWords {
    /// The member that stages the part.
    owner: usize,
    /// The number of the part among those that it stages.
    index: usize,
    kind: SlotWord,
}

impl PartWords {
    /// Returns the member that writes them.
    fn writer(self) -> usize {
        match self.kind {
            SlotWord::Staged => self.owner,
            SlotWord::Result => self.index,
        }
    }
}

/// Has faults strike what this member has written to `region` of the heap of `member`.
fn damage(members: &Members, member: usize, region: Region) {
    let place = HeapPlace { rank: members.ranks()[member], offset: region.offset };
    members.board.context().damage(STAGE, place, region.len);
}

impl Slots {
    /// Has faults strike what this member has staged of `piece`, and tells checksums of it.
    ///
    /// # Errors
    /// Fails as [`Slots::stage`] does.
    #[cold]
    pub(super) fn tell_piece(&self, members: &Members, call: &Call<'_>, piece: StagedPiece) -> Result<()> {
        self.each_part(members, call, piece, |index, part| {
            damage(members, members.me(), self.own_slot(members, call, part));
            if self.returns { Ok(()) } else { self.tell_staged(members, call, part, index) }
        })?;
        if self.returns { self.tell_shares(members, call, piece) } else { Ok(()) }
    }

    /// Tells the checksums of the shares of `piece` that this member has staged for the members
    /// that combine them.
    fn tell_shares(&self, members: &Members, call: &Call<'_>, piece: StagedPiece) -> Result<()> {
        others(members).try_for_each(|member| {
            let part = StagedPart::new(piece, 0, self.share(members, member, piece));
            self.tell_staged(members, call, &part, member)
        })
    }

    /// Tells the checksum of `part` of this member's input, number `index` of what it has staged in
    /// that slot.
    fn tell_staged(&self, members: &Members, call: &Call<'_>, part: &StagedPart, index: usize) -> Result<()> {
        if !members.checksums {
            return Ok(());
        }
        let (at, len) = (part.block * call.block_len()? + part.start(), part.len());
        let crc = call.source(members.view(), at, len)?.crc32c(0, len)?;
        self.tell(members, PartWords { owner: members.me(), index, kind: SlotWord::Staged }, part.piece, crc)
    }

    fn tell(&self, members: &Members, words: PartWords, piece: StagedPiece, crc: u32) -> Result<()> {
        plain::store(&checks(members, words)?[self.word(piece, words.kind)], checksum::told(crc));
        Ok(())
    }

    /// Returns which of the words of a part is for the slot of `piece`.
    fn word(&self, piece: StagedPiece, kind: SlotWord) -> usize {
        let slot = usize::try_from(piece.number % (2 * self.lag)).expect("there are four slots at most");
        match kind {
            SlotWord::Staged => slot,
            SlotWord::Result => PARTS / 2 + slot,
        }
    }
}

impl StagedCall {
    /// Holds `part`, number `index` of what `member` has staged in that slot, against what it was.
    ///
    /// # Errors
    /// Fails as [`checksum::compare`] does.
    #[cold]
    pub(super) fn check_staged(
        &self,
        members: &Members,
        call: &Call<'_>,
        member: usize,
        part: &StagedPart,
        index: usize,
    ) -> Result<()> {
        self.check(members, call, PartWords { owner: member, index, kind: SlotWord::Staged }, part)
    }

    /// Holds `part` of what all others have staged for this member against what it was.
    ///
    /// # Errors
    /// Fails as [`checksum::compare`] does.
    #[cold]
    pub(super) fn check_inputs(&self, members: &Members, call: &Call<'_>, part: &StagedPart) -> Result<()> {
        others(members).try_for_each(|member| self.check_staged(members, call, member, part, members.me()))
    }

    /// Tells all who need it the checksum of the result of `part`, this member's share, and has
    /// faults strike the result there.
    #[cold]
    pub(super) fn tell_result(&self, members: &Members, call: &Call<'_>, part: &StagedPart) -> Result<()> {
        if members.checksums {
            let (start, len) = (part.start(), part.len());
            let own = match &call.output {
                // Each member has another result.
                _ if call.operation.is_prefix() => None,
                Output::None => None,
                output => Some(output.contents().place(members.view(), start, len)?.crc32c(0, len)?),
            };
            for receiver in other_receivers(members, call) {
                let crc = own.map_or_else(|| self.crc_of_slot(members, receiver, part), Ok)?;
                let words = PartWords { owner: receiver, index: members.me(), kind: SlotWord::Result };
                self.slots.tell(members, words, part.piece, crc)?;
            }
        }
        let receivers = other_receivers(members, call);
        receivers.for_each(|member| damage(members, member, self.slot(members, member, part)));
        Ok(())
    }

    /// Holds the results of `piece` in this member's staging area against what others have made, if
    /// it gets them.
    ///
    /// # Errors
    /// Fails as [`checksum::compare`] does.
    #[cold]
    pub(super) fn check_results(&self, members: &Members, call: &Call<'_>, piece: StagedPiece) -> Result<()> {
        if !receivers(members, call).contains(&members.me()) {
            return Ok(());
        }
        others(members).try_for_each(|member| {
            let part = StagedPart::new(piece, 0, self.slots.share(members, member, piece));
            let words = PartWords { owner: members.me(), index: member, kind: SlotWord::Result };
            self.check(members, call, words, &part)
        })
    }

    /// Has faults strike what this member has staged of `next` in the place of `done`, and tells
    /// checksums of it.
    #[cold]
    pub(super) fn tell_exchanged(
        &self,
        members: &Members,
        call: &Call<'_>,
        done: StagedPiece,
        next: StagedPiece,
    ) -> Result<()> {
        for bytes in self.slots.others_shares(members, done) {
            let slot = self.slot(members, members.me(), &StagedPart::new(done, 0, bytes));
            damage(members, members.me(), slot);
        }
        self.slots.tell_shares(members, call, next)
    }

    /// Holds `part`, as it is staged, against its word of `words`.
    fn check(&self, members: &Members, call: &Call<'_>, words: PartWords, part: &StagedPart) -> Result<()> {
        if part.len() == 0 || !members.checksums {
            return Ok(());
        }
        let (operation, member, number) = (call.operation, words.writer(), part.piece.number);
        let told = plain::load(&checks(members, words)?[self.slots.word(part.piece, words.kind)]);
        let from = FragmentArrival { operation, member, number };
        checksum::compare(members, from, told, self.crc_of_slot(members, words.owner, part)?)
    }

    fn crc_of_slot(&self, members: &Members, member: usize, part: &StagedPart) -> Result<u32> {
        let (span, offset) = self.staged(members, member, part)?;
        span.crc32c(0, offset, part.len())
    }
}

/// Returns all words of the part that has `words`.
fn checks(members: &Members, words: PartWords) -> Result<CellSlice<AtomicU64>> {
    members.cells(words.owner, members.layout().staged_checks(words.index as u64), PARTS as u64)
}

fn others(members: &Members) -> impl Iterator<Item = usize> {
    let me = members.me();
    (0..members.n_members()).filter(move |&member| member != me)
}
