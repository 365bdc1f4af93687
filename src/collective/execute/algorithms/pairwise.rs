//! All pairs: every member sends to whoever needs what it has.
//!
//! In one shot, a member gets what it needs straight from all that have it. It combines a piece in
//! the order of the members' numbers when all of it is there. Each member's part waits in an inbox
//! of its own. In two shots, for an all-reduce, each member combines its share of a pass for all,
//! and sends the result to all.
//!
//! # No deadlock
//! Times are pieces: at time k a member sends its k-th pieces to all others, one after the other
//! from the next one on, and receives those numbered k - 1 from all others. In two shots it sends
//! shares k, receives shares k - 1 and sends their result, and receives results k - 2. These are
//! two fragments to each peer at a time, received at the next time in the same order. The slots of
//! a pipe hold more than those of one time.

use std::ops::Range;

use super::pieces::{ALIGN, PieceCut};
use super::worker::{Operand, PipeWorker};
use crate::collective::call::{Operation, Side};
use crate::collective::region::PIPE_SLOTS;
use crate::collective::rendezvous::members::{PerMember, fill};
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Transport;
use crate::error::Result;
use crate::heap::HeapOffset;

/// Fragments to one peer at a time, at most.
const AT_A_TIME: u64 = 2;

const _: () = assert!(AT_A_TIME < PIPE_SLOTS);

/// Returns the other members, the next one first: so they do not all begin with the same one.
fn others<L: Link>(worker: &PipeWorker<'_, L>) -> impl Iterator<Item = usize> + use<L> {
    let (me, n) = (worker.pipes.members.me(), worker.pipes.members.n_members());
    (1..n).map(move |distance| (me + distance) % n)
}

/// Does any operation but those of two shots and those that are done on a star.
pub(super) fn one_shot<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let block = worker.call.block_len()?;
    let plan = PairwisePlan {
        operation: worker.call.operation,
        me: worker.me(),
        n: worker.n(),
        root: worker.call.root,
        block,
    };
    let cut = PieceCut::for_pipeline(block, worker.pipes.slot_len());
    for time in 0..=cut.n() {
        let (at, len) = cut.piece(time);
        if len > 0 {
            plan.send(worker, at, len)?;
            plan.keep(worker, at, len)?;
        }
        let Some(before) = time.checked_sub(1) else { continue };
        let (at, len) = cut.piece(before);
        if plan.operation.reduces() {
            plan.combine(worker, at, len)?;
        } else {
            plan.collect(worker, at, len)?;
        }
    }
    Ok(())
}

/// Who sends what to whom in one shot.
#[derive(Clone, Copy)]
struct PairwisePlan {
    operation: Operation,
    me: usize,
    n: usize,
    root: usize,
    /// The length of a block.
    block: u64,
}

impl PairwisePlan {
    /// Returns where the block of the input is that goes from `from` to `to`; nothing if there is
    /// none.
    fn input_at(self, from: usize, to: usize) -> Option<u64> {
        let (input, output) = self.operation.sides();
        let is_needed = self.operation.sources(to, self.root, self.n).contains(&from);
        let first = if matches!(input, Side::Block) { 0 } else { to as u64 * self.block };
        (is_needed && output.is_there(to, self.root)).then_some(first)
    }

    /// Returns where the block that came from `from` belongs in the output, where blocks are not
    /// combined.
    fn output_at(self, from: usize) -> u64 {
        self.operation.block_from(from) as u64 * self.block
    }

    fn send<L: Link>(self, worker: &mut PipeWorker<'_, L>, at: u64, len: u64) -> Result<()> {
        for peer in others(worker) {
            if let Some(block_at) = self.input_at(self.me, peer) {
                let source = worker.input(block_at + at);
                worker.pipes.send(peer, source, len)?;
            }
        }
        Ok(())
    }

    /// Copies this member's own part to its place, if it has one.
    fn keep<L: Link>(self, worker: &PipeWorker<'_, L>, at: u64, len: u64) -> Result<()> {
        match self.input_at(self.me, self.me) {
            Some(block_at) if !self.operation.reduces() => {
                let target = worker.output(self.output_at(self.me) + at);
                worker.copy(worker.input(block_at + at), target, len)
            }
            _ => Ok(()),
        }
    }

    /// Takes the pieces that all members have sent here, and copies each to its place.
    fn collect<L: Link>(self, worker: &mut PipeWorker<'_, L>, at: u64, len: u64) -> Result<()> {
        for peer in others(worker) {
            if self.input_at(peer, self.me).is_some() {
                let slot = worker.pipes.receive(peer)?;
                worker.copy(slot, worker.output(self.output_at(peer) + at), len)?;
                worker.pipes.release(peer);
            }
        }
        Ok(())
    }

    /// Takes the pieces that all members have sent here, and combines them with this member's own.
    fn combine<L: Link>(self, worker: &mut PipeWorker<'_, L>, at: u64, len: u64) -> Result<()> {
        let contributors = self.operation.sources(self.me, self.root, self.n);
        if contributors.is_empty() {
            return Ok(());
        }
        let target = worker.output(at);
        if self.operation.combines_a_block() && worker.input(at) == target {
            // The call is in place, and the proxy may not have sent the block yet.
            worker.pipes.flush_all()?;
        }
        let own = worker.input(self.input_at(self.me, self.me).unwrap_or(0) + at);
        combine_all(worker, own, target, contributors, len)
    }
}

/// Combines the next fragment of each of `contributors` with `own`, in the order of the members, at
/// `target`.
fn combine_all<L: Link>(
    worker: &mut PipeWorker<'_, L>,
    own: HeapOffset,
    target: HeapOffset,
    contributors: Range<usize>,
    len: u64,
) -> Result<()> {
    let me = worker.me();
    let part = |member| {
        let at = if member == me { own } else { worker.pipes.receive(member)? };
        Ok(Operand { at, fresh: true })
    };
    let mut parts = PerMember::new();
    fill(&mut parts, contributors.clone().map(part))?;
    worker.combine(&parts, target, len, true)?;
    others(worker).filter(|peer| contributors.contains(peer)).for_each(|peer| worker.pipes.release(peer));
    Ok(())
}

/// Does an all-reduce in two shots.
pub(super) fn two_shot<L: Link>(worker: &mut PipeWorker<'_, L>) -> Result<()> {
    let shares = Shares::new(worker)?;
    for time in 0..shares.passes + 2 {
        shares.spread(worker, time)?;
        if let Some(pass) = time.checked_sub(1) {
            shares.reduce(worker, pass)?;
        }
        if let Some(pass) = time.checked_sub(2) {
            shares.collect(worker, pass)?;
        }
    }
    Ok(())
}

/// The vector of an all-reduce, cut into passes of one share for each member.
#[derive(Clone, Copy)]
struct Shares {
    n: u64,
    passes: u64,
    cut: PieceCut,
}

impl Shares {
    fn new<L: Link>(worker: &PipeWorker<'_, L>) -> Result<Self> {
        let (n, total) = (worker.n() as u64, worker.call.block_len()?);
        let each = PieceCut::for_pipeline(total.div_ceil(n), worker.pipes.slot_len());
        let share = total.div_ceil(n * each.n().max(1)).next_multiple_of(ALIGN);
        let share = share.clamp(ALIGN, worker.pipes.slot_len());
        let cut = PieceCut::into_pieces_of(total, share);
        Ok(Self { n, passes: cut.n().div_ceil(n), cut })
    }

    /// Returns where the share of `member` in `pass` starts, and how long it is: nothing past the
    /// last pass.
    fn of(self, member: usize, pass: u64) -> (u64, u64) {
        self.cut.piece(pass * self.n + member as u64)
    }

    /// Sends each member its share of this one's input.
    fn spread<L: Link>(self, worker: &mut PipeWorker<'_, L>, pass: u64) -> Result<()> {
        for peer in others(worker) {
            let (at, len) = self.of(peer, pass);
            if len > 0 {
                let source = worker.input(at);
                worker.pipes.send(peer, source, len)?;
            }
        }
        Ok(())
    }

    /// Combines this member's share, and sends it to all.
    fn reduce<L: Link>(self, worker: &mut PipeWorker<'_, L>, pass: u64) -> Result<()> {
        let (at, len) = self.of(worker.me(), pass);
        if len == 0 {
            return Ok(());
        }
        let (own, target) = (worker.input(at), worker.output(at));
        combine_all(worker, own, target, 0..worker.n(), len)?;
        others(worker).try_for_each(|peer| worker.pipes.send(peer, target, len))
    }

    /// Copies the other members' shares of the result to their places.
    fn collect<L: Link>(self, worker: &mut PipeWorker<'_, L>, pass: u64) -> Result<()> {
        for peer in others(worker) {
            let (at, len) = self.of(peer, pass);
            if len > 0 {
                let slot = worker.pipes.receive(peer)?;
                worker.copy(slot, worker.output(at), len)?;
                worker.pipes.release(peer);
            }
        }
        Ok(())
    }
}
