//! The bytes of a step: from sources, combined, to targets, each plain or in packets.
//!
//! A transfer goes piece by piece. Where sources are packets, a piece is done once all its packets
//! are there: they are unpacked into the *bounce* memory of the rank, a slot for each source, or
//! into the target if that is all there is to do.

use arrayvec::ArrayVec;
use shmccl_plan::lower::{BlockCode, BlockTransfer, Form, Operand};
use shmccl_plan::plan::Buffer;

use super::compiled::CompiledPlan;
use super::memory::PlanMemory;
use crate::collective::call::Operation;
use crate::collective::rendezvous::members::Members;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{MAX_PLACES, Reducer, Source, SourcePlace, Target};
use crate::shm::packet::{PacketFlag, PacketKind};
use crate::shm::{CacheHint, Span};

/// The payload of a piece with packets among its operands.
pub(super) const PACKET_PIECE: usize = 4 << 10;

/// How many of these a rank unpacks at once, and one for their combination.
pub(super) const SLOTS: usize = MAX_PLACES + 1;

/// The payload of other pieces. A rank looks whether the epoch has ended before each.
const PIECE: usize = 4 << 20;

/// Bytes of words that are read one by one.
const WORD: u64 = 4;

/// What transfers of a launch need besides their operands.
pub(super) struct Mover<'a> {
    pub(super) members: &'a Members,
    pub(super) compiled: &'a CompiledPlan,
    pub(super) memory: &'a PlanMemory,
    pub(super) reducer: Option<&'a Reducer>,
    /// The bytes of an element.
    pub(super) size: u64,
    pub(super) launch: u64,
    pub(super) operation: Operation,
    /// Whether all members have posted the call: only then it is known where their buffers lie.
    pub(super) has_met: bool,
}

/// A place in some heap, and the heap, in which it was found to be memory.
type Found<'a> = (&'a Span, u64);

impl<'a> Mover<'a> {
    /// Goes on with an `iteration` of a transfer, of which `done` bytes are done, as far as packets
    /// have come. Returns whether it is complete.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for buffers that are not allocated; those of [`Reducer::combine`] and
    /// of [`CallBoard::check_epoch`](crate::collective::rendezvous::board::CallBoard::check_epoch).
    pub(super) fn go_on(
        &self,
        code: &BlockCode,
        transfer: &BlockTransfer,
        iteration: usize,
        done: &mut usize,
    ) -> Result<bool> {
        let (first, bytes) = transfer.extent(iteration);
        let (sources, targets) = (code.sources(transfer), code.targets(transfer));
        let has_packets = sources.iter().chain(targets).any(|operand| operand.form == Form::Packets);
        let most = if has_packets { PACKET_PIECE } else { PIECE };
        while *done < bytes {
            self.members.board.check_epoch(self.operation)?;
            let piece = most.min(bytes - *done);
            if !self.piece(sources, targets, first + *done, piece)? {
                return Ok(false);
            }
            *done += piece;
        }
        Ok(true)
    }

    /// Returns whether it is known where all operands of a transfer lie.
    pub(super) fn reaches(&self, code: &BlockCode, transfer: &BlockTransfer) -> bool {
        let is_known =
            |operand: &Operand| operand.rank == self.members.me() || operand.buffer == Buffer::Scratch;
        self.has_met || code.sources(transfer).iter().chain(code.targets(transfer)).all(is_known)
    }

    /// Returns where byte `first` of the payload of an operand is.
    pub(super) fn place(&self, operand: &Operand, first: usize) -> u64 {
        let first = self.compiled.lowered.place(operand, first, self.launch);
        self.memory.place(operand.rank, operand.buffer, first)
    }

    /// Does a piece if all its packets are there. There are at most [`MAX_PLACES`] operands on a
    /// side: a plan of more was not registered (`collective/strategy/runnable.rs`).
    fn piece(&self, sources: &[Operand], targets: &[Operand], first: usize, len: usize) -> Result<bool> {
        let mut plain = ArrayVec::<Found<'a>, MAX_PLACES>::new();
        for target in targets.iter().filter(|target| target.form == Form::Plain) {
            plain.push(self.reach(target, first, len as u64)?);
        }
        let mut places = ArrayVec::<Found<'a>, MAX_PLACES>::new();
        for source in sources {
            places.push(match (source.form, plain.first()) {
                (Form::Plain, _) => self.reach(source, first, len as u64)?,
                (Form::Packets, Some(&target)) if sources.len() == 1 => target,
                (Form::Packets, _) => self.slot(places.len(), len as u64)?,
            });
            if source.form == Form::Packets && !self.unpack(source, first, len, places[places.len() - 1])? {
                return Ok(false);
            }
        }
        let value = self.combine(&places, &plain, len as u64)?;
        for target in targets.iter().filter(|target| target.form == Form::Packets) {
            let (span, at) = self.reach(target, first, 2 * len as u64)?;
            span.pack_from(PacketKind::Ll8, at, value.0, value.1, len as u64, self.flag())?;
        }
        Ok(true)
    }

    /// Combines sources into all plain targets. Returns a place that has the result.
    fn combine(&self, sources: &[Found<'a>], targets: &[Found<'a>], len: u64) -> Result<Found<'a>> {
        let [source] = sources else { return self.reduce(sources, targets, len) };
        for target in
            targets.iter().filter(|target| target.1 != source.1 || !std::ptr::eq(target.0, source.0))
        {
            source.0.copy_to(source.1, target.0, target.1, len, CacheHint::Keep)?;
        }
        Ok(*source)
    }

    fn reduce(&self, places: &[Found<'a>], targets: &[Found<'a>], len: u64) -> Result<Found<'a>> {
        // Tables that are collected are moved, with room for all ranks.
        let source = |&(span, at)| Source { place: SourcePlace::Shared(span, at), fresh: false };
        let mut sources = ArrayVec::<_, MAX_PLACES>::new();
        sources.extend(places.iter().map(source));
        let Some(first) = targets.first() else {
            return self.reduce(places, &[self.slot(MAX_PLACES, len)?], len);
        };
        let mut results = ArrayVec::<_, MAX_PLACES>::new();
        results.extend(targets.iter().map(|&(span, at)| Target::Shared(span, at)));
        let reducer = self.reducer.expect("a plan that reduces does calls that do");
        // Ranks do the same step at about the same time, as in a built-in call.
        let count = len / self.size;
        reducer.combine_for_all(&[], &sources, &mut results, count, count)?;
        Ok(*first)
    }

    /// Unpacks a piece to some place, if all its packets are there.
    fn unpack(&self, source: &Operand, first: usize, len: usize, (target, to): Found<'a>) -> Result<bool> {
        let (span, at) = self.reach(source, first, 2 * len as u64)?;
        // The last packet comes last as a rule: as long as it is missing, that is all to look at.
        let last = (len as u64 - 1) / WORD * WORD;
        for (from, len) in [(last, len as u64 - last), (0, len as u64)] {
            let place = at + 2 * from;
            if !span.unpack_to(PacketKind::Ll8, place, target, to + from, len, self.flag(), &mut 0)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a slot of the bounce memory.
    fn slot(&self, slot: usize, len: u64) -> Result<Found<'a>> {
        let members = self.members;
        let at = self.memory.bounce(members.me()) + (slot * PACKET_PIECE) as u64;
        Ok((members.heap_of(members.me(), Region::new(HeapOffset::new(at), len))?, at))
    }

    fn reach(&self, operand: &Operand, first: usize, len: u64) -> Result<Found<'a>> {
        let at = self.place(operand, first);
        Ok((self.members.heap_of(operand.rank, Region::new(HeapOffset::new(at), len))?, at))
    }

    /// Returns the flag of the launch: its number, from 1 on, without 0 when that wraps.
    fn flag(&self) -> PacketFlag {
        let number = (self.launch - 1) % u64::from(u32::MAX) + 1;
        u32::try_from(number).ok().and_then(PacketFlag::new).unwrap_or(PacketFlag::FIRST)
    }
}
