//! The bytes of a step: from sources, combined, to targets, each plain or in packets.
//!
//! A transfer goes piece by piece. Where sources are packets, a piece is done once all its packets
//! are there: they are unpacked into the *bounce* memory of the rank, a slot for each source. So a
//! piece that has to wait leaves nothing behind.

use arrayvec::ArrayVec;
use shmccl_plan::lower::{BlockCode, Form, Lowered, Operand, Transfer};
use shmccl_plan::plan::Buffer;

use super::memory::Placed;
use crate::collective::rendezvous::members::Members;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{MAX_PLACES, Reducer, Source, SourcePlace, Target};
use crate::shm::packet::{PacketFlag, PacketKind};
use crate::shm::{CacheHint, Span};

/// The payload of a piece with packets among its operands.
const PACKET_PIECE: usize = 4 << 10;

/// The payload of other pieces, between which a rank looks whether the epoch has ended.
const PIECE: usize = 4 << 20;

/// Bytes of words that are read one by one.
const WORD: u64 = 4;

/// Returns the bytes of bounce memory that a rank needs: none without packets.
pub(super) fn bounce_len(lowered: &Lowered) -> usize {
    let blocks = || lowered.ranks.iter().flat_map(|rank| &rank.blocks);
    let has_packets = blocks().flat_map(|block| &block.operands).any(|operand| operand.form == Form::Packets);
    if has_packets { (MAX_PLACES + 1) * PACKET_PIECE } else { 0 }
}

/// Returns whether words of a rank's scratch may be plain bytes at one size and packets at another.
pub(super) fn mixes_forms(lowered: &Lowered) -> bool {
    let operands = || lowered.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.operands);
    let has = |form| operands().any(|operand| operand.buffer == Buffer::Scratch && operand.form == form);
    has(Form::Packets) && has(Form::Plain)
}

/// What transfers of a launch need besides their operands.
#[derive(Clone, Copy)]
pub(super) struct Mover<'a> {
    pub(super) members: &'a Members,
    pub(super) lowered: &'a Lowered,
    pub(super) placed: &'a Placed,
    pub(super) reducer: Option<&'a Reducer>,
    /// The bytes of an element.
    pub(super) size: u64,
    pub(super) launch: u64,
    /// Where the bounce memory of this rank starts.
    pub(super) bounce: u64,
}

/// A place in some heap, and the heap, in which it was found to be memory.
type Found<'a> = (&'a Span, u64);

impl<'a> Mover<'a> {
    /// Goes on with a transfer, of which `done` bytes are done, as far as packets have come.
    /// Returns whether it is complete.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for buffers that are not allocated; those of [`Reducer::combine`].
    pub(super) fn go_on(
        self,
        code: &BlockCode,
        transfer: &Transfer,
        iteration: usize,
        done: &mut usize,
    ) -> Result<bool> {
        let (first, bytes) = transfer.extent(iteration);
        let (sources, targets) = (code.sources(transfer), code.targets(transfer));
        let has_packets = sources.iter().chain(targets).any(|operand| operand.form == Form::Packets);
        let most = if has_packets { PACKET_PIECE } else { PIECE };
        while *done < bytes {
            let piece = most.min(bytes - *done);
            if !self.piece(sources, targets, first + *done, piece)? {
                return Ok(false);
            }
            *done += piece;
        }
        Ok(true)
    }

    /// Returns where byte `first` of the payload of an operand is.
    pub(super) fn place(self, operand: &Operand, first: usize) -> u64 {
        let first = self.lowered.place(operand, first, self.launch);
        self.placed.place(operand.rank, operand.buffer, first)
    }

    /// Does a piece if all its packets are there. There are at most [`MAX_PLACES`] operands on a
    /// side: a plan of more was not registered (`collective/plan/runnable.rs`).
    fn piece(self, sources: &[Operand], targets: &[Operand], first: usize, len: usize) -> Result<bool> {
        let mut places = ArrayVec::<Found<'a>, MAX_PLACES>::new();
        for source in sources {
            let place = match source.form {
                Form::Plain => self.reach(source, first, len as u64)?,
                Form::Packets => match self.unpack(source, first, len, places.len())? {
                    Some(place) => place,
                    None => return Ok(false),
                },
            };
            places.push(place);
        }
        let mut plain = ArrayVec::<Found<'a>, MAX_PLACES>::new();
        for target in targets.iter().filter(|target| target.form == Form::Plain) {
            plain.push(self.reach(target, first, len as u64)?);
        }
        let value = self.combine(&places, &plain, len as u64)?;
        for target in targets.iter().filter(|target| target.form == Form::Packets) {
            let (span, at) = self.reach(target, first, 2 * len as u64)?;
            span.pack_from(PacketKind::Ll8, at, value.0, value.1, len as u64, self.flag())?;
        }
        Ok(true)
    }

    /// Combines sources into all plain targets. Returns a place that has the result.
    fn combine(self, sources: &[Found<'a>], targets: &[Found<'a>], len: u64) -> Result<Found<'a>> {
        let [source] = sources else { return self.reduce(sources, targets, len) };
        for target in
            targets.iter().filter(|target| target.1 != source.1 || !std::ptr::eq(target.0, source.0))
        {
            source.0.copy_to(source.1, target.0, target.1, len, CacheHint::Keep)?;
        }
        Ok(*source)
    }

    fn reduce(self, places: &[Found<'a>], targets: &[Found<'a>], len: u64) -> Result<Found<'a>> {
        let sources: ArrayVec<_, MAX_PLACES> = places
            .iter()
            .map(|&(span, at)| Source { place: SourcePlace::Shared(span, at), fresh: false })
            .collect();
        let Some(first) = targets.first() else {
            return self.reduce(places, &[self.slot(MAX_PLACES, len)?], len);
        };
        let mut targets: ArrayVec<_, MAX_PLACES> =
            targets.iter().map(|&(span, at)| Target::Shared(span, at)).collect();
        let reducer = self.reducer.expect("a plan that reduces does calls that do");
        reducer.combine(&sources, &mut targets, len / self.size, false)?;
        Ok(*first)
    }

    /// Unpacks a piece into slot `slot` of the bounce memory, if all its packets are there.
    fn unpack(self, source: &Operand, first: usize, len: usize, slot: usize) -> Result<Option<Found<'a>>> {
        let (span, at) = self.reach(source, first, 2 * len as u64)?;
        let (bounce, to) = self.slot(slot, len as u64)?;
        // The last packet comes last as a rule: as long as it is missing, that is all to look at.
        let last = (len as u64 - 1) / WORD * WORD;
        for (from, len) in [(last, len as u64 - last), (0, len as u64)] {
            let place = at + 2 * from;
            if !span.unpack_to(PacketKind::Ll8, place, bounce, to + from, len, self.flag(), &mut 0)? {
                return Ok(None);
            }
        }
        Ok(Some((bounce, to)))
    }

    /// Returns a slot of the bounce memory.
    fn slot(self, slot: usize, len: u64) -> Result<Found<'a>> {
        let at = self.bounce + (slot * PACKET_PIECE) as u64;
        let members = self.members;
        Ok((members.heap_of(members.me(), Region::new(HeapOffset::new(at), len))?, at))
    }

    fn reach(self, operand: &Operand, first: usize, len: u64) -> Result<Found<'a>> {
        let at = self.place(operand, first);
        Ok((self.members.heap_of(operand.rank, Region::new(HeapOffset::new(at), len))?, at))
    }

    /// Returns the flag of the launch: its number, from 1 on, without 0 when that wraps.
    fn flag(self) -> PacketFlag {
        let number = (self.launch - 1) % u64::from(u32::MAX) + 1;
        u32::try_from(number).ok().and_then(PacketFlag::new).unwrap_or(PacketFlag::FIRST)
    }
}
