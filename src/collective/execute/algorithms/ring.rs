//! The ring: every member sends to the next one and receives from the one before.
//!
//! The data are cut into blocks, one per member, that travel at the same time. In a reduce-scatter
//! block b starts at member b + 1, which sends its input. Each member on the way combines what
//! comes with its own and sends it on; member b is the last one. In an all-gather block b starts at
//! member b and is copied at each stop. An all-reduce is the one after the other. Its step s, of
//! `2 (n - 1)` steps, sends block `me - 1 - s`. Each member sends `2 (n - 1) / n` of the vector,
//! the least there can be (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters
//! of workstations, 2009).
//!
//! # Order
//! Block b is combined as ((b + 1) op (b + 2)) op ... op b, modulo n: on each member what has
//! come first, its own second.
//!
//! # No deadlock
//! A block goes in passes of [`LANES`] pieces. Times are (pass, step, lane); in one step of a lane
//! a member receives, combines and sends on. The fragment of a step is received [`LANES`] times
//! after it was sent, which is less than the slots of a pipe.
//!
//! # Overwriting
//! Partial results are made on the send staging, as they all go to one peer. What is sent from the
//! input is overwritten, in a call in place, only by the result for it, which has gone round the
//! ring after it.

use super::pieces::{ALIGN, WORTH_SENDING};
use super::worker::{Operand, PipeWorker};
use crate::collective::call::Operation;
use crate::collective::region::PIPE_SLOTS;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Transport;
use crate::error::Result;
use crate::heap::HeapOffset;

/// Pieces of a block that are under way at the same time: while one is received, the peer can work
/// on the other.
const LANES: u64 = 2;

const _: () = assert!(LANES < PIPE_SLOTS);

/// Does an all-reduce, an all-gather or a reduce-scatter.
pub(super) fn run<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let ring = RingWalk::new(worker)?;
    for pass in 0..ring.passes {
        for step in ring.first..=ring.last {
            for lane in 0..ring.lanes {
                ring.step(worker, pass, step, lane)?;
            }
        }
    }
    Ok(())
}

/// One turn of a call around the ring.
#[derive(Clone, Copy, Debug)]
struct RingWalk {
    operation: Operation,
    n: u64,
    /// The length of what is cut into pieces: the vector of an all-reduce, the block of another
    /// operation.
    len: u64,
    /// The length of a piece.
    piece: u64,
    lanes: u64,
    passes: u64,
    /// The first step, in which this member sends and does not receive.
    first: u64,
    /// The last one, in which it receives and does not send.
    last: u64,
}

/// Where a piece is: in the input, and in the output.
struct RingPiece {
    input_at: u64,
    output_at: u64,
    len: u64,
}

impl RingWalk {
    fn new<L: Link>(worker: &PipeWorker<'_, L>) -> Result<Self> {
        let (operation, n, len) = (worker.call.operation, worker.n() as u64, worker.call.block_len()?);
        let (first, last) = match operation {
            Operation::ReduceScatter => (0, n - 1),
            Operation::AllGather => (n - 1, 2 * n - 2),
            _ => (0, 2 * n - 2),
        };
        // The share of one member in a pass.
        let share = if operation == Operation::AllReduce { len.div_ceil(n) } else { len };
        let lanes = if share < LANES * WORTH_SENDING { 1 } else { LANES };
        let passes = share.div_ceil(lanes * worker.pipes.slot_len()).max(1);
        let piece = share.div_ceil(passes * lanes).next_multiple_of(ALIGN);
        Ok(Self { operation, n, len, piece, lanes, passes, first, last })
    }

    /// Returns the piece of `block` that travels in `lane` of `pass`; nothing past the end.
    fn piece(&self, pass: u64, block: u64, lane: u64) -> RingPiece {
        let row = pass * self.lanes + lane;
        let at = match self.operation {
            Operation::AllReduce => ((pass * self.n + block) * self.lanes + lane) * self.piece,
            _ => row * self.piece,
        };
        let at = at.min(self.len);
        let len = self.piece.min(self.len - at);
        match self.operation {
            Operation::ReduceScatter => RingPiece { input_at: block * self.len + at, output_at: at, len },
            Operation::AllGather => RingPiece { input_at: at, output_at: block * self.len + at, len },
            _ => RingPiece { input_at: at, output_at: at, len },
        }
    }

    fn step<L: Link>(&self, worker: &mut PipeWorker<'_, L>, pass: u64, step: u64, lane: u64) -> Result<()> {
        let (me, n) = (worker.me() as u64, self.n);
        let piece = self.piece(pass, (me + 2 * n - 1 - step) % n, lane);
        if piece.len == 0 {
            return Ok(());
        }
        let source = if step == self.first {
            Some(self.start(worker, &piece)?)
        } else {
            self.pass_on(worker, &piece, step)?
        };
        source.map_or(Ok(()), |source| worker.pipes.send(right(worker), source, piece.len))
    }

    /// Returns what this member sends of its own.
    fn start<L: Link>(&self, worker: &PipeWorker<'_, L>, piece: &RingPiece) -> Result<HeapOffset> {
        let source = worker.input(piece.input_at);
        if self.operation == Operation::AllGather {
            worker.copy(source, worker.output(piece.output_at), piece.len)?;
        }
        Ok(source)
    }

    /// Receives `piece` and does what is to be done to it; returns what to send on.
    fn pass_on<L: Link>(
        &self,
        worker: &mut PipeWorker<'_, L>,
        piece: &RingPiece,
        step: u64,
    ) -> Result<Option<HeapOffset>> {
        let (left, len) = (left(worker), piece.len);
        let slot = worker.pipes.receive(left)?;
        let target = if step < self.n - 1 {
            worker.pipes.reserve(right(worker))?
        } else {
            worker.output(piece.output_at)
        };
        if step < self.n {
            let come = Operand { at: slot, fresh: step == 1 };
            let own = Operand { at: worker.input(piece.input_at), fresh: true };
            worker.combine(&[come, own], target, len, step == self.n - 1)?;
        } else {
            worker.copy(slot, target, len)?;
        }
        worker.pipes.release(left);
        Ok((step < self.last).then_some(target))
    }
}

fn right<L: Link>(worker: &PipeWorker<'_, L>) -> usize {
    (worker.me() + 1) % worker.n()
}

fn left<L: Link>(worker: &PipeWorker<'_, L>) -> usize {
    (worker.me() + worker.n() - 1) % worker.n()
}
