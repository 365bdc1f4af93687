//! An operation by puts of a program's own: each rank puts its part to every other, and signals.
//!
//! Short parts of operations in which all ranks hear from all others go to slots of the reader, of
//! which each writer has two that take turns. Whoever has the signals of one turn knows that all
//! slots of the turn before are read. Other parts are put once the reader has told that its memory
//! is free: straight to the output, or into a slot where they are reduced.

use arrayvec::ArrayVec;
use shmccl::collective::Operation;
use shmccl::heap::{HeapOffset, HeapPlace, Region};
use shmccl::rank::MAX_RANKS;
use shmccl::reduce::{DataType, Reducer, Source, SourcePlace, Target};
use shmccl::shm::{CacheHint, Span};
use shmccl::symmetric::{Comparison, Symmetric, WordSignal};
use shmccl::{Communicator, Error, Rank, Result};

use crate::case::{CaseSpec, CollectiveBuffers};

/// The name of this way, among those of algorithms.
pub const PUTS: &str = "puts";

/// Up to so many bytes parts go to slots that take turns.
const SHORT_BYTES: u64 = 8 << 10;

/// Bytes from one word or slot to the next: a pair of cache lines.
const LINE: u64 = 128;

/// Returns whether `operation` is one in which each rank has a part for every other, or for a root.
#[must_use]
pub fn is_done_by_puts(operation: Operation) -> bool {
    use Operation::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    matches!(
        operation,
        AllReduce | AllGather | ReduceScatter | AllToAll | Reduce | Broadcast | Gather | Scatter
    )
}

/// Returns the bytes of heap for an operation among `n_ranks` whose larger buffer has `bytes`; none
/// for an operation that is not done by puts.
#[must_use]
pub fn landing_len(operation: Operation, n_ranks: u32, bytes: u64) -> u64 {
    let slot = slot_len(operation, n_ranks, bytes);
    let slots = slot.saturating_mul(if is_short(operation, bytes) { 2 } else { 1 });
    if is_done_by_puts(operation) {
        u64::from(n_ranks).saturating_mul(slots.saturating_add(2 * LINE))
    } else {
        0
    }
}

/// Whether parts go to slots that take turns, and nobody asks.
fn is_short(operation: Operation, bytes: u64) -> bool {
    !operation.has_root() && bytes <= SHORT_BYTES
}

/// Returns the bytes from one slot to the next; none where parts go straight to the output.
fn slot_len(operation: Operation, n_ranks: u32, bytes: u64) -> u64 {
    let part = match operation {
        Operation::AllReduce | Operation::Reduce => bytes,
        Operation::ReduceScatter => bytes.div_ceil(n_ranks.into()),
        _ if is_short(operation, bytes) => bytes.div_ceil(n_ranks.into()),
        _ => 0,
    };
    part.checked_next_multiple_of(LINE).unwrap_or(u64::MAX)
}

/// A part of this rank for another one.
#[derive(Debug)]
struct SentPart {
    reader: Rank,
    source: Region,
    /// Where it goes to in each of two turns.
    targets: [Region; 2],
}

/// A part of another rank for this one.
#[derive(Debug)]
struct ReceivedPart {
    writer: Rank,
    /// Where it lies in each of two turns.
    slots: [Span; 2],
    /// Where it belongs, if it is not there already and is not reduced.
    output: Option<Span>,
}

/// The way of one rank to do an operation by puts.
#[derive(Debug)]
pub struct ByPuts {
    all: Symmetric,
    landing: Landing,
    /// Whether writers wait until readers have told that their memory is free.
    asks: bool,
    sent: Vec<SentPart>,
    received: Vec<ReceivedPart>,
    /// The own part, and where it belongs in the own output or is reduced to.
    own: Option<(Span, Span)>,
    reducer: Option<Reducer>,
    /// Bytes of an element.
    size: u64,
    turn: u64,
}

impl ByPuts {
    /// Prepares the operation of `spec` on elements of `data_type`. Collective, since it allocates
    /// [`landing_len`] bytes.
    ///
    /// # Errors
    /// Too little memory; ranks that do not come.
    pub fn new(
        comm: &mut Communicator,
        spec: &CaseSpec,
        data_type: DataType,
        buffers: CollectiveBuffers,
    ) -> Result<Self> {
        let (operation, layout) = (spec.operation, spec.layout);
        let (n_ranks, me, size) = (comm.n_ranks(), comm.rank(), data_type.size() as u64);
        let bytes = layout.largest() * size;
        let is_short = is_short(operation, bytes);
        let parts = CaseParts { spec, n_ranks, size };
        let landing = Landing::alloc(comm, operation, bytes)?;
        let (input, output) = buffers.regions(layout, me.get().into(), size, false)?;
        let way = PartPlaces { comm, landing, output, parts: &parts, is_short };
        let (mut sent, mut received, mut own) = (Vec::new(), Vec::new(), None);
        for rank in 0..n_ranks {
            let rank = Rank::new(rank, n_ranks)?;
            let source = input.part(parts.input(me, rank).0, parts.input(me, rank).1)?;
            if rank == me && parts.is_read(me, me) {
                let target = output.part(parts.output_at(me, me), source.len)?;
                own = Some((comm.span(me, source)?, comm.span(me, target)?));
            } else if rank != me && parts.is_read(me, rank) {
                sent.push(SentPart { reader: rank, source, targets: way.targets(me, rank)? });
            }
            if rank != me && parts.is_read(rank, me) {
                received.push(way.received(rank)?);
            }
        }
        let op = spec.op.as_ref().filter(|_| own.is_some());
        let reducer = op.map(|op| Reducer::new(data_type, op, n_ranks)).transpose()?;
        let all = comm.symmetric();
        Ok(Self { all, landing, asks: !is_short, sent, received, own, reducer, size, turn: 0 })
    }

    /// Prepares the operation as [`ByPuts::new`] does, where there is memory for it. `None` where
    /// any rank has none, on all ranks alike.
    ///
    /// # Errors
    /// Ranks that do not come.
    pub fn if_there_is_room(
        comm: &mut Communicator,
        spec: &CaseSpec,
        data_type: DataType,
        buffers: CollectiveBuffers,
    ) -> Result<Option<Self>> {
        match Self::new(comm, spec, data_type, buffers) {
            // Only the allocation fails so, and then on all ranks.
            Err(Error::OutOfMemory { .. } | Error::ResourceLimit { .. } | Error::FailedElsewhere { .. }) => {
                Ok(None)
            }
            puts => puts.map(Some),
        }
    }

    /// Does the operation.
    ///
    /// # Errors
    /// Those of puts and waits.
    pub fn run(&mut self) -> Result<()> {
        self.turn += 1;
        let (all, me, turn, landing) = (&self.all, self.all.rank(), self.turn, self.landing);
        let half = usize::from(turn % 2 == 1);
        if self.asks {
            for received in &self.received {
                all.signal(received.writer, WordSignal::set(landing.free_word(me), turn))?;
            }
        }
        for sent in &self.sent {
            if self.asks {
                all.wait_until(landing.free_word(sent.reader), Comparison::GreaterOrEqual, turn)?;
            }
            let source = HeapPlace { rank: me, offset: sent.source.offset };
            let target = HeapPlace { rank: sent.reader, offset: sent.targets[half].offset };
            all.copy_signal(
                source,
                target,
                sent.source.len,
                WordSignal::set(landing.arrived_word(me), turn),
            )?;
        }
        if let (Some((source, target)), None) = (&self.own, &self.reducer) {
            copy(source, target)?;
        }
        for received in &self.received {
            all.wait_until(landing.arrived_word(received.writer), Comparison::GreaterOrEqual, turn)?;
            if let Some(output) = &received.output {
                copy(&received.slots[half], output)?;
            }
        }
        self.reduce(half)
    }

    /// Reduces the own part and the slots, in the order of ranks, where there is something to.
    fn reduce(&self, half: usize) -> Result<()> {
        let (Some(reducer), Some((own, output))) = (&self.reducer, &self.own) else { return Ok(()) };
        let slots = |before: bool| {
            let of_side = move |received: &&ReceivedPart| (received.writer < self.all.rank()) == before;
            self.received.iter().filter(of_side).map(move |received| &received.slots[half])
        };
        let sources: ArrayVec<_, { MAX_RANKS as usize }> = slots(true)
            .chain([own])
            .chain(slots(false))
            .map(|span| Source::fresh(SourcePlace::Shared(span, 0)))
            .collect();
        reducer.combine(&sources, &mut [Target::Shared(output, 0)], own.len() / self.size, true)
    }
}

/// Where parts go to.
struct PartPlaces<'p> {
    comm: &'p Communicator,
    landing: Landing,
    output: Region,
    parts: &'p CaseParts<'p>,
    is_short: bool,
}

impl PartPlaces<'_> {
    /// Returns where the part of `writer` for `reader` goes to in each of two turns.
    fn targets(&self, writer: Rank, reader: Rank) -> Result<[Region; 2]> {
        let (parts, (_, len)) = (self.parts, self.parts.input(writer, reader));
        if self.is_short || parts.spec.operation.reduces() {
            return Ok([0, u64::from(self.is_short)].map(|half| self.landing.slot(half, writer, len)));
        }
        Ok([self.output.part(parts.output_at(writer, reader), len)?; 2])
    }

    /// Returns the part of `writer` for this rank.
    fn received(&self, writer: Rank) -> Result<ReceivedPart> {
        let (comm, me) = (self.comm, self.comm.rank());
        let [even, odd] = self.targets(writer, me)?;
        let place = self.output.part(self.parts.output_at(writer, me), even.len)?;
        let is_moved = self.is_short && !self.parts.spec.operation.reduces();
        Ok(ReceivedPart {
            writer,
            slots: [comm.span(me, even)?, comm.span(me, odd)?],
            output: is_moved.then(|| comm.span(me, place)).transpose()?,
        })
    }
}

/// Who has which part for whom, in bytes.
struct CaseParts<'s> {
    spec: &'s CaseSpec,
    n_ranks: u32,
    size: u64,
}

impl CaseParts<'_> {
    /// Whether `reader` needs a part of `writer`.
    fn is_read(&self, writer: Rank, reader: Rank) -> bool {
        let CaseSpec { operation, root, layout, .. } = self.spec;
        let sources = operation.sources(reader.index(), root.index(), self.n_ranks as usize);
        layout.blocks_of(reader.get(), *root).1 > 0 && sources.contains(&writer.index())
    }

    /// Returns where the part lies in the input of `writer`, and its length.
    fn input(&self, writer: Rank, reader: Rank) -> (u64, u64) {
        let CaseSpec { operation, layout, .. } = self.spec;
        let is_cut = matches!(operation, Operation::ReduceScatter | Operation::AllToAll | Operation::Scatter);
        let (start, count) = match is_cut {
            true => layout.part(writer.get().into(), reader.get().into()),
            false => (0, layout.send()),
        };
        (start * self.size, count * self.size)
    }

    /// Returns where the part belongs in the output of `reader`.
    fn output_at(&self, writer: Rank, reader: Rank) -> u64 {
        let CaseSpec { operation, layout, .. } = self.spec;
        match operation {
            Operation::AllGather | Operation::Gather | Operation::AllToAll => {
                layout.part(reader.get().into(), writer.get().into()).0 * self.size
            }
            _ => 0,
        }
    }
}

/// The words of all ranks in the heap of each, and behind them the slots.
#[derive(Clone, Copy, Debug)]
struct Landing {
    start: u64,
    n_ranks: u64,
    /// Bytes from one slot to the next.
    slot: u64,
}

impl Landing {
    fn alloc(comm: &mut Communicator, operation: Operation, bytes: u64) -> Result<Self> {
        let n_ranks = comm.n_ranks();
        let region = comm.alloc_region(landing_len(operation, n_ranks, bytes), 4096)?;
        comm.span(comm.rank(), region)?.fill(0, 2 * u64::from(n_ranks) * LINE, 0)?;
        comm.barrier()?;
        let slot = slot_len(operation, n_ranks, bytes);
        Ok(Self { start: region.offset.get(), n_ranks: n_ranks.into(), slot })
    }

    fn at(self, bytes: u64) -> HeapOffset {
        HeapOffset::new(self.start + bytes)
    }

    /// Returns the word by which `reader` tells a writer that its memory is free.
    fn free_word(self, reader: Rank) -> HeapOffset {
        self.at(u64::from(reader.get()) * LINE)
    }

    /// Returns the word by which `writer` tells a reader that its part has come.
    fn arrived_word(self, writer: Rank) -> HeapOffset {
        self.at((self.n_ranks + u64::from(writer.get())) * LINE)
    }

    /// Returns the slot of `writer` in one `half` of them.
    fn slot(self, half: u64, writer: Rank, len: u64) -> Region {
        let before = half * self.n_ranks + u64::from(writer.get());
        Region::new(self.at(2 * self.n_ranks * LINE + before * self.slot), len)
    }
}

/// Copies all of one span to another.
fn copy(source: &Span, target: &Span) -> Result<()> {
    source.copy_to(0, target, 0, source.len(), CacheHint::Keep)
}

#[cfg(test)]
mod tests;
