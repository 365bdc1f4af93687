//! A limit of an all-reduce on ordinary memory, or out of place in the heap: a hand-written loop
//! that stages the data in slots that all ranks can reach.
//!
//! Each rank has two slots. In step s it takes the sums of piece s - 2 out of one of them and puts
//! its elements of piece s there, in one pass. Then it adds its share of piece s - 1 to what all
//! others have in their other slots, over which the sums return. Between two steps all ranks meet.
//! So every byte that a rank does not add itself is staged once and taken once. Peers cannot reach
//! ordinary memory, so there is no shorter way. They can reach buffers of the heap; but then each
//! rank reads and writes the buffers of all others, most of which here are in the cache.
//!
//! The loops are those of [`crate::staged`]. All lengths of pieces are tried, with sums past the
//! cache and through it; the quickest is the limit.

use std::ops::Range;

use shmccl::heap::Region;
use shmccl::shm::Span;
use shmccl::{Collectives, Communicator, Rank, Result};

use crate::staged::{Own, add_returning, turn_over};

/// The lengths of pieces that are tried, in bytes. Which is best depends on the caches and on the
/// number of ranks.
pub const PIECES: [u64; 3] = [128 << 10, 256 << 10, 1 << 20];

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Returns the bytes that a rank needs to stage up to `largest` bytes in the longest pieces,
/// wherever in a line they begin.
pub fn staging_len(largest: u64) -> u64 {
    2 * PIECES[PIECES.len() - 1].min(largest.next_multiple_of(LINE)) + LINE
}

/// Shares end at multiples of so many elements: no two ranks write to one pair of cache lines.
const ALIGN: usize = 32;

/// Bytes of an element.
const SIZE: usize = size_of::<f32>();

/// A length of pieces, and a kind of stores.
#[derive(Clone, Copy, Debug)]
pub struct StagedVariant {
    /// Bytes of a piece, at most the longest of [`PIECES`].
    pub piece: u64,
    /// Whether sums go past the cache.
    pub past: bool,
}

impl StagedVariant {
    /// Returns all variants. Sums that are `in_place` go through the cache only, where their lines
    /// are already.
    pub fn all(in_place: bool) -> Vec<Self> {
        let past = if in_place { &[false][..] } else { &[false, true] };
        past.iter().flat_map(|&past| PIECES.map(|piece| Self { piece, past })).collect()
    }

    /// Returns the variants that differ for `bytes`: pieces longer than that are all alike.
    pub fn all_of(bytes: u64, in_place: bool) -> Vec<Self> {
        let shorter = |cut: &Self| PIECES.iter().rev().find(|&&piece| piece < cut.piece).copied();
        Self::all(in_place).into_iter().filter(|cut| shorter(cut).is_none_or(|piece| piece < bytes)).collect()
    }

    /// Returns the name in tables.
    pub fn name(self) -> String {
        let past = if self.past { ", streaming" } else { "" };
        format!("bare staged sum, {} KiB{past}", self.piece >> 10)
    }
}

/// The loop of one rank.
#[derive(Debug)]
pub struct StagedLimit {
    /// The slots of all ranks. They begin as far behind a line as the elements of their rank.
    slots: Vec<Span>,
    me: usize,
    /// Elements of a piece.
    piece: usize,
    /// Whether sums go past the cache.
    past: bool,
}

/// Some of the elements, in step `number` and the two after it.
#[derive(Clone, Copy)]
struct LimitPiece {
    number: usize,
    start: usize,
    count: usize,
}

impl StagedLimit {
    /// Stages elements that begin so many bytes `behind` a line, in `staging` of each rank.
    /// Collective.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(comm: &mut Communicator, staging: Region, behind: usize) -> Result<Self> {
        let mut all = vec![0_u64; comm.n_ranks() as usize];
        comm.all_gather(&[behind as u64][..], &mut all[..])?;
        let slots = (0..comm.n_ranks()).zip(&all).map(|(rank, &behind)| {
            comm.span(Rank::new(rank, comm.n_ranks())?, staging.part(behind, staging.len - LINE)?)
        });
        let slots = slots.collect::<Result<_>>()?;
        let mut staged = Self { slots, me: comm.rank().index(), piece: 0, past: false };
        staged.set_variant(StagedVariant { piece: PIECES[0], past: false });
        Ok(staged)
    }

    /// Sets the variant of the next runs.
    pub fn set_variant(&mut self, variant: StagedVariant) {
        self.piece = usize::try_from(variant.piece).expect("a length in memory") / SIZE;
        self.past = variant.past;
    }

    /// Returns piece `number` of `total` elements, if there is such a piece.
    fn piece(&self, number: Option<usize>, total: usize) -> Option<LimitPiece> {
        let number = number?;
        let start = number * self.piece;
        (start < total).then(|| LimitPiece { number, start, count: self.piece.min(total - start) })
    }

    /// Returns the part of a piece that this rank adds, and the parts before and behind it.
    fn shares(&self, piece: LimitPiece) -> (Range<usize>, [Range<usize>; 2]) {
        let each = piece.count.div_ceil(self.slots.len()).next_multiple_of(ALIGN);
        let start = (each * self.me).min(piece.count);
        let end = (start + each).min(piece.count);
        (start..end, [0..start, end..piece.count])
    }

    /// Returns where `rank` stages elements of a piece.
    fn slot(&self, rank: usize, piece: LimitPiece, range: &Range<usize>) -> Result<Span> {
        let at = piece.number % 2 * self.piece + range.start;
        self.slots[rank].part((at * SIZE) as u64, (range.len() * SIZE) as u64)
    }

    /// Takes the sums of `done`, and stages `next` in their place.
    fn turn_over(&self, own: &mut Own<'_>, done: Option<LimitPiece>, next: Option<LimitPiece>) -> Result<()> {
        if let (Some(done), Some(next)) = (done, next)
            && done.count == next.count
        {
            return self.turn_parts(own, done, Some(done.start), Some(next.start));
        }
        if let Some(done) = done {
            self.turn_parts(own, done, Some(done.start), None)?;
        }
        next.map_or(Ok(()), |next| self.turn_parts(own, next, None, Some(next.start)))
    }

    /// Takes what others add of a piece to the sums from `taken` on, and puts the elements from
    /// `given` on there, which lie behind that.
    fn turn_parts(
        &self,
        own: &mut Own<'_>,
        piece: LimitPiece,
        taken: Option<usize>,
        given: Option<usize>,
    ) -> Result<()> {
        self.shares(piece).1.into_iter().try_for_each(|part| {
            let slot = self.slot(self.me, piece, &part)?;
            let at = |start: Option<usize>| start.map(|start| start + part.start);
            turn_over(&slot, own, at(taken), at(given), self.past)
        })
    }

    /// Adds this rank's share of a piece.
    fn add(&self, own: &mut Own<'_>, piece: LimitPiece) -> Result<()> {
        let share = self.shares(piece).0;
        let others = (0..self.slots.len()).filter(|&rank| rank != self.me);
        let staged = others.map(|rank| self.slot(rank, piece, &share)).collect::<Result<Vec<_>>>()?;
        add_returning(own, piece.start + share.start..piece.start + share.end, &staged, self.past)
    }

    /// Sums the data of all ranks, `own` among them. All ranks `meet` between steps.
    ///
    /// # Errors
    /// Those of `meet`.
    pub fn run(&mut self, own: &mut Own<'_>, mut meet: impl FnMut() -> Result<()>) -> Result<()> {
        let total = own.count();
        for step in 0..total.div_ceil(self.piece) + 2 {
            if step > 0 {
                meet()?;
            }
            let done = self.piece(step.checked_sub(2), total);
            self.turn_over(own, done, self.piece(Some(step), total))?;
            if let Some(piece) = self.piece(step.checked_sub(1), total) {
                self.add(own, piece)?;
            }
        }
        Ok(())
    }
}
