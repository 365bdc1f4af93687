//! The limit of an all-reduce on ordinary memory: a hand-written loop over it, staged in slots that all ranks can reach.
//!
//! Each rank has two slots. In step s it takes the sums of piece s - 2 out of one of them and puts its elements of piece s there,
//! in one pass; then it adds its share of piece s - 1 to what all others have in their other slots, over which the sums return.
//! Between two steps all ranks meet. So every byte that a rank does not add itself is staged once and taken once, in whatever
//! way it is done: peers cannot reach it where it lies.
//!
//! The copies are the library's own (`Span::exchange`), so this limit tells what the library loses around them, not in them.

use std::ops::Range;

use shmccl::heap::Region;
use shmccl::shm::copy::choose;
use shmccl::shm::yardstick::{Own, add_returning};
use shmccl::shm::{ReadSoon, Span};
use shmccl::{Communicator, Rank, Result};

use super::gathering::Gathering;
use super::trial::Way;
use super::workload::{Ground, Workload};

/// The lengths of pieces that are tried, in bytes: which is best depends on the caches and on how many wait for each other.
pub(super) const PIECES: [u64; 3] = [64 << 10, 256 << 10, 1 << 20];

/// What a rank needs to stage the longest ones.
pub(super) const STAGE_LEN: u64 = 2 * PIECES[PIECES.len() - 1];

/// Shares end at multiples of so many elements: no two ranks write to one pair of cache lines.
const ALIGN: usize = 32;

/// Bytes of an element.
const SIZE: usize = size_of::<f32>();

/// The loop of one rank.
#[derive(Debug)]
pub(super) struct Staged {
    /// The slots of all ranks.
    slots: Vec<Span>,
    me: usize,
    /// Elements of a piece.
    piece: usize,
}

/// Some of the elements, in step `number` and the two after it.
#[derive(Clone, Copy)]
struct Piece {
    number: usize,
    start: usize,
    count: usize,
}

impl Staged {
    /// Stages on `ground`.
    ///
    /// # Errors
    /// Too little ground.
    pub(super) fn new(comm: &Communicator, ground: Ground) -> Result<Self> {
        let stage: Region = ground.stage.part(0, STAGE_LEN)?;
        let ranks = (0..comm.n_ranks()).map(|rank| Rank::new(rank, comm.n_ranks()));
        let slots = ranks.map(|rank| comm.span(rank?, stage)).collect::<Result<_>>()?;
        let mut staged = Self { slots, me: comm.rank().index(), piece: 0 };
        staged.cut(PIECES[0]);
        Ok(staged)
    }

    /// Goes on in pieces of `len` bytes, at most the longest of [`PIECES`].
    pub(super) fn cut(&mut self, len: u64) {
        self.piece = usize::try_from(len).expect("a length in memory") / SIZE;
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
            let parts = self.shares(done).1;
            return parts.into_iter().try_for_each(|part| {
                exchange(
                    &self.slot(self.me, done, &part)?,
                    own,
                    done.start + part.start,
                    next.start + part.start,
                )
            });
        }
        if let Some(done) = done {
            for part in self.shares(done).1 {
                let bytes = bytemuck::cast_slice_mut(&mut sums(own)[done.start..][part.clone()]);
                self.slot(self.me, done, &part)?.copy_out(0, bytes)?;
            }
        }
        if let Some(next) = next {
            for part in self.shares(next).1 {
                let bytes = bytemuck::cast_slice(&elements(own)[next.start..][part.clone()]);
                self.slot(self.me, next, &part)?.copy_in(0, bytes)?;
            }
        }
        Ok(())
    }

    /// Adds this rank's share of a piece.
    fn add(&self, own: &mut Own<'_>, piece: Piece) -> Result<()> {
        let share = self.shares(piece).0;
        let others = (0..self.slots.len()).filter(|&rank| rank != self.me);
        let staged = others.map(|rank| self.slot(rank, piece, &share)).collect::<Result<Vec<_>>>()?;
        add_returning(own.part(piece.start + share.start..piece.start + share.end), &staged)
    }
}

impl Way<f32> for Staged {
    fn go(&mut self, workload: &mut Workload<f32>, gathering: &mut Gathering) -> Result<()> {
        let mut own = workload.own().expect("ordinary memory");
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

/// Takes what is in `slot` to the sums from `taken` on, and puts the elements from `given` on there, which lie behind that. Sums
/// that are long and not in place go past the cache.
fn exchange(slot: &Span, own: &mut Own<'_>, taken: usize, given: usize) -> Result<()> {
    let count = usize::try_from(slot.len()).expect("a length in memory") / SIZE;
    let read_soon = match own {
        Own::Apart(elements, _) if choose(size_of_val(*elements) as u64, ReadSoon::Yes).is_streaming() => {
            ReadSoon::No
        }
        _ => ReadSoon::Yes,
    };
    let (sums, elements) = match own {
        Own::Apart(elements, sums) => (&mut sums[taken..][..count], &elements[given..][..count]),
        Own::InPlace(both) => {
            let (before, behind) = both.split_at_mut(given);
            (&mut before[taken..][..count], &behind[..count])
        }
    };
    slot.exchange(0, bytemuck::cast_slice_mut(sums), bytemuck::cast_slice(elements), read_soon)
}

fn elements<'o>(own: &'o Own<'_>) -> &'o [f32] {
    match own {
        Own::Apart(elements, _) => elements,
        Own::InPlace(both) => both,
    }
}

fn sums<'o>(own: &'o mut Own<'_>) -> &'o mut [f32] {
    match own {
        Own::Apart(_, sums) => sums,
        Own::InPlace(both) => both,
    }
}

#[cfg(test)]
mod tests;
