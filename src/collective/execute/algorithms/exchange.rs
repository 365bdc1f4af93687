//! What recursive algorithms are made of: two members that swap runs of pieces, and what is done
//! with members past the largest power of two.
//!
//! # No deadlock
//! In an exchange, piece k is sent at time k and received at time k + 1; exchanges follow each
//! other in the same order at both members, and each pair meets in the same ones. So the rule of
//! the [`pipes`](crate::collective::transport::pipe) holds, with times (exchange, k).

use super::pieces::PieceCut;
use super::worker::{Operand, PipeWorker};
use crate::collective::call::shifted;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Transport;
use crate::error::Result;
use crate::heap::HeapOffset;

/// PieceRun at equal distances in this member's heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceRun {
    pub(super) start: HeapOffset,
    pub(super) stride: u64,
    pub(super) cut: PieceCut,
}

impl PieceRun {
    /// Makes the `len` bytes at `start`, cut for a pipeline; the peer cuts alike.
    pub(super) fn in_a_row<L: Link>(worker: &PipeWorker<'_, L>, start: HeapOffset, len: u64) -> Self {
        let cut = PieceCut::for_pipeline(len, worker.pipes.slot_len());
        Self { start, stride: cut.piece(0).1, cut }
    }

    fn piece(&self, index: u64) -> (HeapOffset, u64) {
        (shifted(self.start, index * self.stride), self.cut.piece(index).1)
    }
}

/// A fragment that has come: where it lies, which piece it is, and where the bytes of it start
/// among those of all pieces.
pub(super) struct ArrivedPiece {
    pub(super) slot: HeapOffset,
    pub(super) index: u64,
    pub(super) at: u64,
    pub(super) len: u64,
}

/// Sends `sent` to `peer` and receives pieces cut as `received` says, each of which is handed to
/// `take`.
pub(super) fn exchange<L: Link>(
    worker: &mut PipeWorker<'_, L>,
    peer: usize,
    sent: PieceRun,
    received: PieceCut,
    mut take: impl FnMut(&mut PipeWorker<'_, L>, ArrivedPiece) -> Result<()>,
) -> Result<()> {
    for time in 0..=sent.cut.n().max(received.n()) {
        let (source, len) = sent.piece(time);
        if len > 0 {
            worker.pipes.send(peer, source, len)?;
        }
        let Some(index) = time.checked_sub(1) else { continue };
        let (at, len) = received.piece(index);
        if len > 0 {
            let slot = worker.pipes.receive(peer)?;
            take(worker, ArrivedPiece { slot, index, at, len })?;
            worker.pipes.release(peer);
        }
    }
    Ok(())
}

/// The members that take part in the recursion: as many as the largest power of two, from the first
/// on.
///
/// Each member past them, an *extra*, gives its input to its *stand-in*, so many below it, before,
/// and gets the result from it after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Core {
    pub(super) size: usize,
    n: usize,
}

impl Core {
    pub(super) fn new(n: usize) -> Self {
        Self { size: 1 << n.ilog2(), n }
    }

    /// Returns whether `member` of the core stands in for another one.
    pub(super) fn stands_in(self, member: usize) -> bool {
        member + self.size < self.n
    }

    /// Moves the inputs of the extras, `len` bytes each, into the core: combined, own first, in the
    /// output of their stand-ins. Returns what this member starts from, or nothing for an extra.
    pub(super) fn fold<L: Link>(self, worker: &mut PipeWorker<'_, L>, len: u64) -> Result<Option<Operand>> {
        let (me, mine) = (worker.me(), Operand { at: worker.input(0), fresh: true });
        let pieces = PieceRun::in_a_row(worker, mine.at, len);
        let nothing = PieceCut::into_pieces_of(0, 1);
        if me >= self.size {
            exchange(worker, me - self.size, pieces, nothing, |_, _| Ok(()))?;
            return Ok(None);
        }
        if !self.stands_in(me) {
            return Ok(Some(mine));
        }
        let silent = PieceRun { cut: nothing, ..pieces };
        exchange(
            worker,
            me + self.size,
            silent,
            pieces.cut,
            |worker, ArrivedPiece { slot, at, len, .. }| {
                let theirs = Operand { at: slot, fresh: true };
                worker.combine(&[mine.shifted(at), theirs], worker.output(at), len, false)
            },
        )?;
        Ok(Some(Operand { at: worker.output(0), fresh: false }))
    }

    /// Brings the result, `len` bytes, from the outputs of stand-ins to those of the extras.
    pub(super) fn unfold<L: Link>(self, worker: &mut PipeWorker<'_, L>, len: u64) -> Result<()> {
        let me = worker.me();
        let pieces = PieceRun::in_a_row(worker, worker.output(0), len);
        let nothing = PieceCut::into_pieces_of(0, 1);
        if me >= self.size {
            let silent = PieceRun { cut: nothing, ..pieces };
            exchange(
                worker,
                me - self.size,
                silent,
                pieces.cut,
                |worker, ArrivedPiece { slot, at, len, .. }| worker.copy(slot, worker.output(at), len),
            )
        } else if self.stands_in(me) {
            exchange(worker, me + self.size, pieces, nothing, |_, _| Ok(()))
        } else {
            Ok(())
        }
    }
}

/// Returns two operands in the order of the members that they come from.
pub(super) fn in_order(me: usize, mine: Operand, peer: usize, theirs: Operand) -> [Operand; 2] {
    if me < peer { [mine, theirs] } else { [theirs, mine] }
}
