//! Recursive doubling: in round r each member exchanges all that it has with the one at distance
//! 2^r (Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
//! MPICH, 2005).
//!
//! For an all-reduce, log2 n rounds of the whole vector: for short ones. Members past the largest
//! power of two are folded in and out ([`Core`]). Both partners combine the same two operands in
//! the same order, the lower member's first, so after each round the members of a group have the
//! same bits.
//!
//! For an all-gather, what a member has doubles in every round; only where the number of members is
//! a power of two.

use super::exchange::{ArrivedPiece, Core, PieceRun, exchange, in_order};
use super::worker::{Operand, PipeWorker};
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Transport;
use crate::error::Result;

pub(super) fn all_reduce<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let (me, len) = (worker.me(), worker.call.block_len()?);
    let core = Core::new(worker.n());
    if let Some(mut mine) = core.fold(worker, len)? {
        for round in 0..core.size.ilog2() {
            let peer = me ^ 1 << round;
            let theirs_fresh = round == 0 && !core.stands_in(peer);
            let finish = 2 << round == core.size;
            swap(worker, peer, mine, theirs_fresh, finish)?;
            mine = Operand { at: worker.output(0), fresh: false };
        }
    }
    core.unfold(worker, len)
}

/// Exchanges `mine` with `peer` and leaves both, combined, in the output.
fn swap<L: Link>(
    worker: &mut PipeWorker<'_, L>,
    peer: usize,
    mine: Operand,
    theirs_fresh: bool,
    finish: bool,
) -> Result<()> {
    let me = worker.me();
    let pieces = PieceRun::in_a_row(worker, mine.at, worker.call.block_len()?);
    exchange(worker, peer, pieces, pieces.cut, |worker, ArrivedPiece { slot, at, len, .. }| {
        if mine.at == worker.output(0) {
            // The bytes that are about to be written were just sent, perhaps by a proxy that has
            // not come to them yet.
            worker.pipes.flush(peer)?;
        }
        let theirs = Operand { at: slot, fresh: theirs_fresh };
        let operands = in_order(me, mine.shifted(at), peer, theirs);
        worker.combine(&operands, worker.output(at), len, finish)
    })
}

pub(super) fn all_gather<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let (me, block) = (worker.me(), worker.call.block_len()?);
    worker.copy(worker.input(0), worker.output(me as u64 * block), block)?;
    for round in 0..worker.n().ilog2() {
        let (size, mine) = (1 << round, me >> round << round);
        let theirs = (mine ^ size) as u64 * block;
        let start = worker.output(mine as u64 * block);
        let pieces = PieceRun::in_a_row(worker, start, size as u64 * block);
        exchange(worker, me ^ size, pieces, pieces.cut, |worker, ArrivedPiece { slot, at, len, .. }| {
            worker.copy(slot, worker.output(theirs + at), len)
        })?;
    }
    Ok(())
}
