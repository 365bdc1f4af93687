//! Checksums of what is staged, and faults that strike it: a wrapper of what moves the bytes.
//!
//! A staged piece is read part by part: a block as a whole or, where results are returned, the share
//! of each member. For each part and slot there is a word beside the member's scratch. The member
//! writes that word before the step by which it has staged the part. Another word is for the result;
//! the member that has combined the part writes it before the step by which it has. So the edge that
//! says that a part may be read (C2) carries its checksum, too, and a word is written again when its
//! slot is.
//!
//! | words of part k beside the scratch of a member | what | written by |
//! |---|---|---|
//! | slots 0..4 | bits 0..32 the CRC32C of the input that is staged there, 63 always | the member |
//! | 4 + slots 0..4 | that of the result that has taken its place | member k |
//!
//! The checksum of an input is that of the caller's buffer. The checksum of a result is that of the
//! output of the member that made it, if it has one. Held against it are the bytes in the slot,
//! before they are used.

use super::slots::Piece;
use super::staging::Staging;
use super::{MovePieces, Part, Pipeline, receivers, shifted};
use crate::collective::call::{Call, Output, part};
use crate::collective::rendezvous::members::Team;
use crate::collective::transport::checksum::{self, PARTS};
use crate::collective::transport::pipe::Arrival;
use crate::error::Result;
use crate::faults::STAGE;
use crate::heap::{HeapOffset, Place, Region};
use crate::sync::plain;

/// Which of the two words of a slot.
#[derive(Clone, Copy)]
enum Kind {
    Staged,
    Result,
}

/// A [`Pipeline`] whose bytes are checked, where all members take checksums, and struck, where faults
/// are planned.
#[derive(Debug)]
pub(super) struct Checked<'p> {
    plain: &'p Pipeline,
}

impl<'p> Checked<'p> {
    pub(super) fn new(plain: &'p Pipeline) -> Self {
        Self { plain }
    }
}

impl MovePieces for Checked<'_> {
    #[cold]
    fn stage(&self, team: &Team, call: &Call<'_>, number: u64) -> Result<()> {
        stage(&self.plain.staging, team, call, number)
    }

    #[cold]
    fn take(
        &self,
        team: &Team,
        call: &mut Call<'_>,
        piece: Piece,
        member: usize,
        block: usize,
        to: u64,
    ) -> Result<()> {
        if team.checksums && member != team.me() && !matches!(call.output, Output::None) {
            let part = Part::new(piece, block as u64, 0..piece.len);
            self.plain.check_staged(team, call, member, &part, block)?;
        }
        self.plain.take(team, call, piece, member, block, to)
    }

    #[cold]
    fn reduce(&self, team: &Team, call: &mut Call<'_>, part: &Part) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        if team.checksums {
            others(team)
                .try_for_each(|member| self.plain.check_staged(team, call, member, part, team.me()))?;
        }
        self.plain.reduce(team, call, part)?;
        if team.checksums {
            self.plain.tell_result(team, call, part)?;
        }
        let receivers = receivers(call.operation, call.root, team.n_members());
        let others = receivers.filter(|&member| member != team.me());
        others.for_each(|member| damage(team, member, self.plain.slot(team, member, part)));
        Ok(())
    }

    #[cold]
    fn take_results(&self, team: &Team, call: &mut Call<'_>, piece: Piece) -> Result<()> {
        if team.checksums {
            self.plain.check_results(team, call, piece)?;
        }
        self.plain.take_results(team, call, piece)
    }

    #[cold]
    fn exchange(&self, team: &Team, call: &mut Call<'_>, done: Piece, next: Piece) -> Result<()> {
        if team.checksums {
            self.plain.check_results(team, call, done)?;
        }
        self.plain.exchange(team, call, done, next)?;
        for bytes in self.plain.staging.others_shares(team, done) {
            damage(team, team.me(), self.plain.slot(team, team.me(), &Part::new(done, 0, bytes)));
        }
        if team.checksums { self.plain.staging.tell_shares(team, call, next) } else { Ok(()) }
    }
}

/// Does what [`Staging::stage`] does, and tells checksums of it.
///
/// # Errors
/// Those of [`Staging::stage`].
#[cold]
pub(super) fn stage(staging: &Staging, team: &Team, call: &Call<'_>, number: u64) -> Result<()> {
    staging.stage(team, call, number)?;
    let Some(piece) = staging.own_piece(call, number) else { return Ok(()) };
    staging.each_part(team, call, piece, |index, part| {
        damage(team, team.me(), staging.own_slot(team, call, part));
        let is_told = team.checksums && !staging.returns;
        if is_told { staging.tell_staged(team, call, part, index) } else { Ok(()) }
    })?;
    let is_told = team.checksums && staging.returns;
    if is_told { staging.tell_shares(team, call, piece) } else { Ok(()) }
}

/// Has faults strike what this member has written to `region` of the heap of `member`.
fn damage(team: &Team, member: usize, region: Region) {
    let place = Place { rank: team.members()[member], offset: region.offset };
    team.board.fabric().damage(STAGE, place, region.len);
}

impl Staging {
    /// Tells the checksums of the shares of `piece` that this member has staged for the members
    /// that combine them.
    fn tell_shares(&self, team: &Team, call: &Call<'_>, piece: Piece) -> Result<()> {
        others(team).try_for_each(|member| {
            self.tell_staged(team, call, &Part::new(piece, 0, self.share(team, member, piece)), member)
        })
    }

    /// Tells the checksum of `part` of this member's input, number `index` of what it has staged in that slot.
    fn tell_staged(&self, team: &Team, call: &Call<'_>, part: &Part, index: usize) -> Result<()> {
        let at = part.block * call.block_len()? + part.start();
        let crc = checksum::of_call(team, call, at, part.len())?;
        self.tell(team, (team.me(), index), (part.piece, Kind::Staged), crc)
    }

    fn tell(
        &self,
        team: &Team,
        (owner, index): (usize, usize),
        (piece, kind): (Piece, Kind),
        crc: u32,
    ) -> Result<()> {
        if let Some(word) = team.staged_checks(owner, index)?.get(self.word(piece, kind)) {
            plain::store(word, checksum::told(crc));
        }
        Ok(())
    }

    /// Which of the words of a part is for the slot of `piece`.
    fn word(&self, piece: Piece, kind: Kind) -> usize {
        let slot =
            usize::try_from(piece.number % (2 * self.slots.lag)).expect("there are four slots at most");
        match kind {
            Kind::Staged => slot,
            Kind::Result => PARTS / 2 + slot,
        }
    }
}

impl Pipeline {
    /// Holds `part`, number `index` of what `member` has staged in that slot, against what it was.
    ///
    /// # Errors
    /// Those of [`checksum::compare`].
    fn check_staged(
        &self,
        team: &Team,
        call: &Call<'_>,
        member: usize,
        part: &Part,
        index: usize,
    ) -> Result<()> {
        self.check(team, call, (member, index, member), (part, Kind::Staged))
    }

    /// Tells all who need it the checksum of the result of `part`, this member's share.
    fn tell_result(&self, team: &Team, call: &Call<'_>, part: &Part) -> Result<()> {
        let own = own_result(team, &call.output, part)?;
        for receiver in receivers(call.operation, call.root, team.n_members()).filter(|&it| it != team.me()) {
            let crc = own.map_or_else(|| self.crc_of_slot(team, receiver, part), Ok)?;
            self.staging.tell(team, (receiver, team.me()), (part.piece, Kind::Result), crc)?;
        }
        Ok(())
    }

    /// Holds the results of `piece` in this member's scratch against what others have made, if it gets them.
    ///
    /// # Errors
    /// Those of [`checksum::compare`].
    fn check_results(&self, team: &Team, call: &Call<'_>, piece: Piece) -> Result<()> {
        if !receivers(call.operation, call.root, team.n_members()).contains(&team.me()) {
            return Ok(());
        }
        others(team).try_for_each(|member| {
            let part = Part::new(piece, 0, self.staging.share(team, member, piece));
            self.check(team, call, (team.me(), member, member), (&part, Kind::Result))
        })
    }

    /// Holds `part` in the scratch of `owner` against its word, that of number `index`, which `writer` has written.
    fn check(
        &self,
        team: &Team,
        call: &Call<'_>,
        (owner, index, writer): (usize, usize, usize),
        (part, kind): (&Part, Kind),
    ) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        let told =
            team.staged_checks(owner, index)?.get(self.staging.word(part.piece, kind)).map_or(0, plain::load);
        let from = Arrival { operation: call.operation, member: writer, number: part.piece.number };
        checksum::compare(team, from, told, self.crc_of_slot(team, owner, part)?)
    }

    fn crc_of_slot(&self, team: &Team, member: usize, part: &Part) -> Result<u32> {
        let (span, offset) = self.staged(team, member, part)?;
        span.crc32c(0, offset, part.len())
    }
}

/// The checksum of the result of `part` in this member's own output, if it has one.
fn own_result(team: &Team, output: &Output<'_>, result: &Part) -> Result<Option<u32>> {
    match output {
        Output::Heap(offset) => {
            let region = Region::new(shifted(HeapOffset::new(offset.get()), result.start()), result.len());
            team.heap_of(team.me(), region)?.crc32c(0, region.offset.get(), region.len).map(Some)
        }
        Output::Memory(bytes) => Ok(Some(crc32c::crc32c(part(bytes, result.start(), result.len())?))),
        Output::Within(bytes, start) => {
            Ok(Some(crc32c::crc32c(part(bytes, start.saturating_add(result.start()), result.len())?)))
        }
        Output::None => Ok(None),
    }
}

fn others(team: &Team) -> impl Iterator<Item = usize> {
    let me = team.me();
    (0..team.n_members()).filter(move |&member| member != me)
}
