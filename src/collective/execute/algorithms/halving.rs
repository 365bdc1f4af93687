//! Recursive halving, and doubling back: Rabenseifner's all-reduce (Optimization of collective
//! reduction operations, 2004), and the first half of it as a reduce-scatter.
//!
//! In each round a member exchanges with the one at half the distance of the round before, from
//! half the group down to 1. Each gives the half of its elements that is nearer to the other, and
//! combines the half that it keeps with what comes, the lower member's first. After log2 n rounds a
//! member has one block of the result; the same exchanges backwards collect all. 2 (n - 1) / n of
//! the vector goes over each member's pipes, as in a ring, in fewer hops. Members past the largest
//! power of two are folded in and out ([`Core`]).
//!
//! What was given away is not written before the result for it comes back, from the partner that
//! had it; so nothing has to be flushed in an all-reduce. A reduce-scatter keeps its partial
//! results on the send staging, and goes over the blocks in passes of as much as has room there; it
//! flushes before the send staging is used again. It needs a power of two.

use std::ops::Range;

use super::exchange::{ArrivedPiece, Core, PieceRun, exchange, in_order};
use super::pieces::{ALIGN, PieceCut};
use super::worker::{Operand, PipeWorker};
use crate::collective::call::shifted;
use crate::collective::transport::link::Link;
use crate::error::Result;
use crate::heap::HeapOffset;

/// Splits `range` for the exchange with the partner at `distance`: what `me` keeps, and what it
/// gives away.
fn halves(range: &Range<usize>, me: usize, distance: usize) -> (Range<usize>, Range<usize>) {
    let (low, high) = (range.start..range.start + distance, range.start + distance..range.end);
    if me & distance == 0 { (low, high) } else { (high, low) }
}

pub(super) fn all_reduce<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let len = worker.call.block_len()?;
    let core = Core::new(worker.n());
    if let Some(mine) = core.fold(worker, len)? {
        reduce_halves(worker, core, mine, len)?;
        gather_halves(worker, core, len)?;
    }
    core.unfold(worker, len)
}

/// Returns the bytes of a vector of `len` that belong to `blocks` of the core's members.
fn bytes_of(blocks: &Range<usize>, core: Core, len: u64) -> (u64, u64) {
    let block = len.div_ceil(core.size as u64).next_multiple_of(ALIGN);
    let bound = |block_index: usize| (block_index as u64).saturating_mul(block).min(len);
    (bound(blocks.start), bound(blocks.end) - bound(blocks.start))
}

/// Leaves the result for this member's block in the output, beginning with `mine`.
fn reduce_halves<L: Link>(
    worker: &mut PipeWorker<'_, L>,
    core: Core,
    mut mine: Operand,
    len: u64,
) -> Result<()> {
    let (me, mut blocks) = (worker.me(), 0..core.size);
    for round in (0..core.size.ilog2()).rev() {
        let distance = 1 << round;
        let peer = me ^ distance;
        let (kept, given) = halves(&blocks, me, distance);
        let (kept_at, kept_len) = bytes_of(&kept, core, len);
        let (given_at, given_len) = bytes_of(&given, core, len);
        let sent = PieceRun::in_a_row(worker, shifted(mine.at, given_at), given_len);
        let received = PieceCut::for_pipeline(kept_len, worker.pipes.slot_len());
        let theirs_fresh = distance * 2 == core.size && !core.stands_in(peer);
        exchange(worker, peer, sent, received, |worker, ArrivedPiece { slot, at, len, .. }| {
            let theirs = Operand { at: slot, fresh: theirs_fresh };
            let operands = in_order(me, mine.shifted(kept_at + at), peer, theirs);
            worker.combine(&operands, worker.output(kept_at + at), len, distance == 1)
        })?;
        mine = Operand { at: worker.output(0), fresh: false };
        blocks = kept;
    }
    Ok(())
}

/// Collects the result from the blocks that each member of the core has in its output.
fn gather_halves<L: Link>(worker: &mut PipeWorker<'_, L>, core: Core, len: u64) -> Result<()> {
    let me = worker.me();
    for round in 0..core.size.ilog2() {
        let (size, first) = (1 << round, me >> round << round);
        let (mine_at, mine_len) = bytes_of(&(first..first + size), core, len);
        let (theirs_at, theirs_len) = bytes_of(&(first ^ size..(first ^ size) + size), core, len);
        let sent = PieceRun::in_a_row(worker, worker.output(mine_at), mine_len);
        let received = PieceCut::for_pipeline(theirs_len, worker.pipes.slot_len());
        exchange(worker, me ^ size, sent, received, |worker, ArrivedPiece { slot, at, len, .. }| {
            worker.copy(slot, worker.output(theirs_at + at), len)
        })?;
    }
    Ok(())
}

pub(super) fn reduce_scatter<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let (block, n) = (worker.call.block_len()?, worker.n() as u64);
    let layout = worker.pipes.members.layout();
    let share = layout.send_staging_len() / (n / 2) / ALIGN * ALIGN;
    let passes = PieceCut::into_pieces_of(block, share.min(layout.slot_len()));
    for pass in 0..passes.n() {
        let (at, len) = passes.piece(pass);
        reduce_pass(worker, at, len)?;
        worker.pipes.flush_all()?;
    }
    Ok(())
}

/// Where the pieces of some blocks are, at equal distances.
#[derive(Clone, Copy)]
struct BlockPlaces {
    /// The place of the piece of block `base`.
    start: HeapOffset,
    base: usize,
    stride: u64,
}

impl BlockPlaces {
    fn of(self, block: usize) -> HeapOffset {
        shifted(self.start, (block - self.base) as u64 * self.stride)
    }
}

/// Does the `len` bytes at `at` of every block.
fn reduce_pass<L: Link>(worker: &mut PipeWorker<'_, L>, at: u64, len: u64) -> Result<()> {
    let (me, n, members) = (worker.me(), worker.n(), worker.pipes.members);
    // The half of the blocks that is kept in the first round has its places there for all rounds.
    let send_staging = BlockPlaces {
        start: members.place(me, members.layout().send_staging()),
        base: me & (n / 2),
        stride: len,
    };
    let mut mine = BlockPlaces { start: worker.input(at), base: 0, stride: worker.call.block_len()? };
    let (mut blocks, mut fresh) = (0..n, true);
    for round in (0..n.ilog2()).rev() {
        let distance = 1 << round;
        let peer = me ^ distance;
        let (kept, given) = halves(&blocks, me, distance);
        let cut = PieceCut::into_pieces_of(len * distance as u64, len);
        let sent = PieceRun { start: mine.of(given.start), stride: mine.stride, cut };
        exchange(worker, peer, sent, cut, |worker, ArrivedPiece { slot, index, len, .. }| {
            // There are fewer pieces than members.
            let block = kept.start + usize::try_from(index).unwrap_or(0);
            let (own, theirs) = (Operand { at: mine.of(block), fresh }, Operand { at: slot, fresh });
            let target = if distance == 1 { worker.output(at) } else { send_staging.of(block) };
            worker.combine(&in_order(me, own, peer, theirs), target, len, distance == 1)
        })?;
        (mine, blocks, fresh) = (send_staging, kept, false);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_is_left_with_its_own_block() {
        for me in 0..16 {
            let mut blocks = 0..16;
            for distance in [8, 4, 2, 1] {
                let (kept, given) = halves(&blocks, me, distance);
                assert_eq!(halves(&blocks, me ^ distance, distance), (given, kept.clone()));
                blocks = kept;
            }
            assert_eq!(blocks, me..me + 1);
        }
    }

    #[test]
    fn blocks_cover_a_vector_of_any_length() {
        for len in [0, 4, 127, 128, 1000, 4096, 100_000] {
            let core = Core::new(11);
            let (mut end, all) = (0, 0..core.size);
            for block in all.clone() {
                let (at, bytes) = bytes_of(&(block..block + 1), core, len);
                assert_eq!(at, end);
                end += bytes;
            }
            assert_eq!((end, bytes_of(&all, core, len)), (len, (0, len)));
        }
    }
}
