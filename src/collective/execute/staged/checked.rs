//! Checksums of what is staged, and faults that strike it: a wrapper of what moves the bytes.
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
//! output of the member that made it, if it has one. Held against it are the bytes in the slot,
//! before they are used.

use super::slots::StagedPiece;
use super::staging::Staging;
use super::{MovePieces, StagedCall, StagedPart, receivers, shifted};
use crate::collective::call::{Call, Output, part};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::checksum::{self, PARTS};
use crate::collective::transport::pipe::FragmentArrival;
use crate::error::Result;
use crate::faults::STAGE;
use crate::heap::{HeapOffset, HeapPlace, Region};
use crate::sync::plain;

/// Which of the two words of a slot.
#[derive(Clone, Copy)]
enum SlotWord {
    Staged,
    Result,
}

/// A [`StagedCall`] whose bytes are checked, where all members take checksums, and struck, where
/// faults are planned.
#[derive(Debug)]
pub(super) struct Checked<'p> {
    plain: &'p StagedCall,
}

impl<'p> Checked<'p> {
    pub(super) fn new(plain: &'p StagedCall) -> Self {
        Self { plain }
    }
}

impl MovePieces for Checked<'_> {
    #[cold]
    fn stage(&self, members: &Members, call: &Call<'_>, number: u64) -> Result<()> {
        stage(&self.plain.staging, members, call, number)
    }

    #[cold]
    fn take(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        piece: StagedPiece,
        member: usize,
        block: usize,
        to: u64,
    ) -> Result<()> {
        if members.checksums && member != members.me() && !matches!(call.output, Output::None) {
            let part = StagedPart::new(piece, block as u64, 0..piece.len);
            self.plain.check_staged(members, call, member, &part, block)?;
        }
        self.plain.take(members, call, piece, member, block, to)
    }

    #[cold]
    fn reduce(&self, members: &Members, call: &mut Call<'_>, part: &StagedPart) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        if members.checksums {
            others(members)
                .try_for_each(|member| self.plain.check_staged(members, call, member, part, members.me()))?;
        }
        self.plain.reduce(members, call, part)?;
        if members.checksums {
            self.plain.tell_result(members, call, part)?;
        }
        let receivers = receivers(call.operation, call.root, members.n_members());
        let others = receivers.filter(|&member| member != members.me());
        others.for_each(|member| damage(members, member, self.plain.slot(members, member, part)));
        Ok(())
    }

    #[cold]
    fn take_results(&self, members: &Members, call: &mut Call<'_>, piece: StagedPiece) -> Result<()> {
        if members.checksums {
            self.plain.check_results(members, call, piece)?;
        }
        self.plain.take_results(members, call, piece)
    }

    #[cold]
    fn exchange(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        done: StagedPiece,
        next: StagedPiece,
    ) -> Result<()> {
        if members.checksums {
            self.plain.check_results(members, call, done)?;
        }
        self.plain.exchange(members, call, done, next)?;
        for bytes in self.plain.staging.others_shares(members, done) {
            damage(
                members,
                members.me(),
                self.plain.slot(members, members.me(), &StagedPart::new(done, 0, bytes)),
            );
        }
        if members.checksums { self.plain.staging.tell_shares(members, call, next) } else { Ok(()) }
    }
}

/// Does what [`Staging::stage`] does, and tells checksums of it.
///
/// # Errors
/// Those of [`Staging::stage`].
#[cold]
pub(super) fn stage(staging: &Staging, members: &Members, call: &Call<'_>, number: u64) -> Result<()> {
    staging.stage(members, call, number)?;
    let Some(piece) = staging.own_piece(call, number) else { return Ok(()) };
    staging.each_part(members, call, piece, |index, part| {
        damage(members, members.me(), staging.own_slot(members, call, part));
        let is_told = members.checksums && !staging.returns;
        if is_told { staging.tell_staged(members, call, part, index) } else { Ok(()) }
    })?;
    let is_told = members.checksums && staging.returns;
    if is_told { staging.tell_shares(members, call, piece) } else { Ok(()) }
}

/// Has faults strike what this member has written to `region` of the heap of `member`.
fn damage(members: &Members, member: usize, region: Region) {
    let place = HeapPlace { rank: members.ranks()[member], offset: region.offset };
    members.board.context().damage(STAGE, place, region.len);
}

impl Staging {
    /// Tells the checksums of the shares of `piece` that this member has staged for the members
    /// that combine them.
    fn tell_shares(&self, members: &Members, call: &Call<'_>, piece: StagedPiece) -> Result<()> {
        others(members).try_for_each(|member| {
            self.tell_staged(
                members,
                call,
                &StagedPart::new(piece, 0, self.share(members, member, piece)),
                member,
            )
        })
    }

    /// Tells the checksum of `part` of this member's input, number `index` of what it has staged in
    /// that slot.
    fn tell_staged(&self, members: &Members, call: &Call<'_>, part: &StagedPart, index: usize) -> Result<()> {
        let at = part.block * call.block_len()? + part.start();
        let crc = checksum::of_call(members, call, at, part.len())?;
        self.tell(members, (members.me(), index), (part.piece, SlotWord::Staged), crc)
    }

    fn tell(
        &self,
        members: &Members,
        (owner, index): (usize, usize),
        (piece, kind): (StagedPiece, SlotWord),
        crc: u32,
    ) -> Result<()> {
        if let Some(word) = members.staged_checks(owner, index)?.get(self.word(piece, kind)) {
            plain::store(word, checksum::told(crc));
        }
        Ok(())
    }

    /// Returns which of the words of a part is for the slot of `piece`.
    fn word(&self, piece: StagedPiece, kind: SlotWord) -> usize {
        let slot =
            usize::try_from(piece.number % (2 * self.slots.lag)).expect("there are four slots at most");
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
    /// Those of [`checksum::compare`].
    fn check_staged(
        &self,
        members: &Members,
        call: &Call<'_>,
        member: usize,
        part: &StagedPart,
        index: usize,
    ) -> Result<()> {
        self.check(members, call, (member, index, member), (part, SlotWord::Staged))
    }

    /// Tells all who need it the checksum of the result of `part`, this member's share.
    fn tell_result(&self, members: &Members, call: &Call<'_>, part: &StagedPart) -> Result<()> {
        let own = own_result(members, &call.output, part)?;
        for receiver in
            receivers(call.operation, call.root, members.n_members()).filter(|&it| it != members.me())
        {
            let crc = own.map_or_else(|| self.crc_of_slot(members, receiver, part), Ok)?;
            self.staging.tell(members, (receiver, members.me()), (part.piece, SlotWord::Result), crc)?;
        }
        Ok(())
    }

    /// Holds the results of `piece` in this member's staging area against what others have made, if
    /// it gets them.
    ///
    /// # Errors
    /// Those of [`checksum::compare`].
    fn check_results(&self, members: &Members, call: &Call<'_>, piece: StagedPiece) -> Result<()> {
        if !receivers(call.operation, call.root, members.n_members()).contains(&members.me()) {
            return Ok(());
        }
        others(members).try_for_each(|member| {
            let part = StagedPart::new(piece, 0, self.staging.share(members, member, piece));
            self.check(members, call, (members.me(), member, member), (&part, SlotWord::Result))
        })
    }

    /// Holds `part` in the staging area of `owner` against its word, that of number `index`, which
    /// `writer` has written.
    fn check(
        &self,
        members: &Members,
        call: &Call<'_>,
        (owner, index, writer): (usize, usize, usize),
        (part, kind): (&StagedPart, SlotWord),
    ) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        let told = members
            .staged_checks(owner, index)?
            .get(self.staging.word(part.piece, kind))
            .map_or(0, plain::load);
        let from = FragmentArrival { operation: call.operation, member: writer, number: part.piece.number };
        checksum::compare(members, from, told, self.crc_of_slot(members, owner, part)?)
    }

    fn crc_of_slot(&self, members: &Members, member: usize, part: &StagedPart) -> Result<u32> {
        let (span, offset) = self.staged(members, member, part)?;
        span.crc32c(0, offset, part.len())
    }
}

/// Returns the checksum of the result of `part` in this member's own output, if it has one.
fn own_result(members: &Members, output: &Output<'_>, result: &StagedPart) -> Result<Option<u32>> {
    match output {
        Output::Heap(offset) => {
            let region = Region::new(shifted(HeapOffset::new(offset.get()), result.start()), result.len());
            members.heap_of(members.me(), region)?.crc32c(0, region.offset.get(), region.len).map(Some)
        }
        Output::Memory(bytes) => Ok(Some(crc32c::crc32c(part(bytes, result.start(), result.len())?))),
        Output::Within(bytes, start) => {
            Ok(Some(crc32c::crc32c(part(bytes, start.saturating_add(result.start()), result.len())?)))
        }
        Output::None => Ok(None),
    }
}

fn others(members: &Members) -> impl Iterator<Item = usize> {
    let me = members.me();
    (0..members.n_members()).filter(move |&member| member != me)
}
