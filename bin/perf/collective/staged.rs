//! A limit of an all-reduce on ordinary memory, or out of place in the heap: a hand-written loop over it, staged in slots that all ranks
//! can reach.
//!
//! Each rank has two slots. In step s it takes the sums of piece s - 2 out of one of them and puts its elements of piece s there,
//! in one pass; then it adds its share of piece s - 1 to what all others have in their other slots, over which the sums return.
//! Between two steps all ranks meet. So every byte that a rank does not add itself is staged once and taken once, in whatever
//! way it is done: peers cannot reach ordinary memory where it lies. Buffers of the heap they can, but then each rank reads and writes those
//! of all others, while here most of that is in the cache.
//!
//! Nothing of it is the library's but the flags over which ranks meet: the loops are those of `shmccl-limits`. In which
//! pieces it goes, and whether sums go past the cache, is tried out in all ways; the quickest is the limit.

use std::ops::Range;

use shmccl::heap::Region;
use shmccl::shm::Span;
use shmccl::{Collectives, Communicator, Rank, Result};
use shmccl_limits::staged::{Own, add_returning, turn_over};

use super::gathering::Gathering;
use super::trial::Way;
use super::workload::{Ground, Workload};

/// The lengths of pieces that are tried, in bytes: which is best depends on the caches and on how many wait for each other.
pub(super) const PIECES: [u64; 3] = [128 << 10, 256 << 10, 1 << 20];

/// Bytes of a cache line.
const LINE: u64 = 64;

/// What a rank needs to stage up to `largest` bytes in the longest pieces, wherever in a line they begin.
pub(super) fn stage_len(largest: u64) -> u64 {
    2 * PIECES[PIECES.len() - 1].min(largest.next_multiple_of(LINE)) + LINE
}

/// Shares end at multiples of so many elements: no two ranks write to one pair of cache lines.
const ALIGN: usize = 32;

/// Bytes of an element.
const SIZE: usize = size_of::<f32>();

/// A way to go about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Bytes of a piece, at most the longest of [`PIECES`].
    pub(super) piece: u64,
    /// Whether sums go past the cache.
    pub(super) past: bool,
}

impl Cut {
    /// All ways for sums that go elsewhere than the elements, or are `in_place`: there the lines are in the cache already.
    pub(super) fn all(in_place: bool) -> Vec<Self> {
        let past = if in_place { &[false][..] } else { &[false, true] };
        past.iter().flat_map(|&past| PIECES.map(|piece| Self { piece, past })).collect()
    }

    /// The same of `bytes`, each once: of pieces that are longer than that one is like the other.
    pub(super) fn all_of(bytes: u64, in_place: bool) -> Vec<Self> {
        let shorter = |cut: &Self| PIECES.iter().rev().find(|&&piece| piece < cut.piece).copied();
        Self::all(in_place).into_iter().filter(|cut| shorter(cut).is_none_or(|piece| piece < bytes)).collect()
    }

    /// Its name in tables.
    pub(super) fn name(self) -> String {
        let past = if self.past { ", streaming" } else { "" };
        format!("bare staged sum, {} KiB{past}", self.piece >> 10)
    }
}

/// The loop of one rank.
#[derive(Debug)]
pub(super) struct Staged {
    /// The slots of all ranks. They begin as far behind a line as the rank's own elements.
    slots: Vec<Span>,
    me: usize,
    /// Elements of a piece.
    piece: usize,
    /// Whether sums go past the cache.
    past: bool,
}

/// Some of the elements, in step `number` and the two after it.
#[derive(Clone, Copy)]
struct Piece {
    number: usize,
    start: usize,
    count: usize,
}

impl Staged {
    /// Stages elements that begin so many bytes `behind` a line, on `ground`. Collective.
    ///
    /// # Errors
    /// Too little ground.
    pub(super) fn new(comm: &mut Communicator, ground: Ground, behind: usize) -> Result<Self> {
        let mut all = vec![0_u64; comm.n_ranks() as usize];
        comm.all_gather(&[behind as u64][..], &mut all[..])?;
        let slots = (0..comm.n_ranks()).zip(&all).map(|(rank, &behind)| {
            let stage: Region = ground.stage.part(behind, ground.stage.len - LINE)?;
            comm.span(Rank::new(rank, comm.n_ranks())?, stage)
        });
        let slots = slots.collect::<Result<_>>()?;
        let mut staged = Self { slots, me: comm.rank().index(), piece: 0, past: false };
        staged.cut(Cut { piece: PIECES[0], past: false });
        Ok(staged)
    }

    /// Goes on in this way.
    pub(super) fn cut(&mut self, cut: Cut) {
        self.piece = usize::try_from(cut.piece).expect("a length in memory") / SIZE;
        self.past = cut.past;
    }

    /// Piece `number` of `total` elements, if there is that one.
    fn piece(&self, number: Option<usize>, total: usize) -> Option<Piece> {
        let number = number?;
        let start = number * self.piece;
        (start < total).then(|| Piece { number, start, count: self.piece.min(total - start) })
    }

    /// What this rank adds of a piece, and what it leaves to others before and behind that.
    fn shares(&self, piece: Piece) -> (Range<usize>, [Range<usize>; 2]) {
        let each = piece.count.div_ceil(self.slots.len()).next_multiple_of(ALIGN);
        let start = (each * self.me).min(piece.count);
        let end = (start + each).min(piece.count);
        (start..end, [0..start, end..piece.count])
    }

    /// Where elements of a piece are staged by `rank`.
    fn slot(&self, rank: usize, piece: Piece, range: &Range<usize>) -> Result<Span> {
        let at = piece.number % 2 * self.piece + range.start;
        self.slots[rank].part((at * SIZE) as u64, (range.len() * SIZE) as u64)
    }

    /// Takes the sums of `done`, and stages `next` in their place.
    fn turn_over(&self, own: &mut Own<'_>, done: Option<Piece>, next: Option<Piece>) -> Result<()> {
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

    /// Takes what others add of a piece to the sums from `taken` on, and puts the elements from `given` on there, which lie behind
    /// that.
    fn turn_parts(
        &self,
        own: &mut Own<'_>,
        piece: Piece,
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
    fn add(&self, own: &mut Own<'_>, piece: Piece) -> Result<()> {
        let share = self.shares(piece).0;
        let others = (0..self.slots.len()).filter(|&rank| rank != self.me);
        let staged = others.map(|rank| self.slot(rank, piece, &share)).collect::<Result<Vec<_>>>()?;
        add_returning(own, piece.start + share.start..piece.start + share.end, &staged, self.past)
    }
}

impl Way<f32> for Staged {
    fn go(&mut self, workload: &mut Workload<f32>, gathering: &mut Gathering) -> Result<()> {
        let mut own = workload.own().expect("it lies where staging is possible");
        let total = own.count();
        for step in 0..total.div_ceil(self.piece) + 2 {
            if step > 0 {
                gathering.meet()?;
            }
            let done = self.piece(step.checked_sub(2), total);
            self.turn_over(&mut own, done, self.piece(Some(step), total))?;
            if let Some(piece) = self.piece(step.checked_sub(1), total) {
                self.add(&mut own, piece)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
