//! The limit of an operation on few bytes: a hand-written loop in which every byte is handed over
//! once.
//!
//! A sender puts its data into a slot behind a flag, and goes on. A receiver waits for that flag
//! and for nothing else. So an operation has one hand-over, where ranks that read each other's
//! buffers have to meet twice. Where data go one way only, senders do not wait for receivers.
//!
//! A slot is written again some operations later. By then a receiver that sends to the slot's
//! writer has read it, since it reads one slot before it writes the next. Other receivers set a
//! flag of their own every few operations, and the writer waits for that flag as often.

use shmccl::collective::Operation;
use shmccl::heap::Region;
use shmccl::shm::{CellRef, CopyKernel, Span};
use shmccl::{Communicator, Rank, Result};

use crate::flags::BareFlag;
use crate::rank_buffers::{RankBuffers, SIZE, moving, sources};
use crate::sum::{self, SumKernel};

/// The longest input in bytes.
pub const MOST_BYTES: u64 = 8 << 10;

/// Slots in a ring at least: those of the longest data.
const TURNS: u64 = 8;

/// Slots in a ring at most. Of short data there are more slots, so that a writer seldom has to wait
/// for the flag of a reader.
const MOST_TURNS: u64 = 32;

/// Slots in a ring where all that read from each other also write to each other: none is ahead by
/// more than one.
const TURNS_OF_MUTUAL: u64 = 2;

/// Alignment of what one writer writes, in bytes: pairs of cache lines.
const CELL: u64 = 128;

/// Where data begin in a slot that so fits into fewer lines: behind the flag.
const SHORT: u64 = 8;

/// Where data begin in any other slot: at a line.
const LONG: u64 = 64;

/// A block of the input of a rank that a rank reads, its own included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockRead {
    writer: u32,
    /// The number of the block in the writer's input, which tells slots apart.
    block: u32,
    /// The block of the output. It is the first one where all are added.
    to: u32,
}

/// Returns what a rank reads in an operation with this `root`.
fn takings(operation: Operation, n_ranks: u32, root: u32, reader: u32) -> Vec<BlockRead> {
    let of = |writer, block, to| BlockRead { writer, block, to };
    let operation = match operation {
        Operation::Send => return vec![of((reader + n_ranks - 1) % n_ranks, 0, 0)],
        // Its blocks are of several lengths.
        Operation::AllToAllV => Operation::AllToAll,
        _ => operation,
    };
    let (inputs, outputs) = operation.blocks(2);
    let taking =
        |writer| of(writer, if inputs > 1 { reader } else { 0 }, if outputs > 1 { writer } else { 0 });
    sources(operation, n_ranks, root, reader).into_iter().map(taking).collect()
}

/// A slot, as its writer and its readers see it.
#[derive(Clone, Debug)]
struct EagerSlot {
    flag: CellRef<BareFlag>,
    data: Span,
}

/// The slots of one turn of the ring.
#[derive(Clone, Debug)]
struct SlotTurn {
    /// The data to send, and the slot of each.
    sent: Vec<(Span, EagerSlot)>,
    /// The slots to read, and where the data of each go.
    taken: Vec<(EagerSlot, Span)>,
    /// The data to add, if any are added.
    summands: Vec<Span>,
}

/// The loop of one rank.
#[derive(Debug)]
pub struct EagerLimit {
    turns: Vec<SlotTurn>,
    /// The data that do not leave the rank.
    own: Vec<(Span, Span)>,
    /// The memory of sums.
    sum: Option<Span>,
    /// The flags of readers that do not write to this rank.
    readers: Vec<CellRef<BareFlag>>,
    /// The flag of this rank, if it reads from a rank that it does not write to.
    read_flag: Option<CellRef<BareFlag>>,
    number: u64,
    /// Operations after which a reader sets its flag.
    flag_every: u64,
    /// Whether the lines of the next slots are fetched while these are under way.
    ahead: bool,
    /// Whether a wait yields, since ranks share cores.
    yields: bool,
}

/// Returns the bytes of all slots of a rank, for inputs of up to [`MOST_BYTES`], with and without
/// fetching ahead.
pub fn eager_len(n_ranks: u32) -> u64 {
    2 * (CELL + TURNS * (MOST_BYTES + u64::from(n_ranks) * (LONG + CELL))).next_multiple_of(CELL)
}

impl EagerLimit {
    /// Makes the loop of this rank, if its data are few. Fetching lines of slots `ahead` gains
    /// where cores are far apart, and costs where they are near. Collective, since all slots are
    /// emptied before ranks `meet`.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(
        all: &RankBuffers<'_>,
        meet: impl FnOnce() -> Result<()>,
        oversubscribed: bool,
        ahead: bool,
    ) -> Result<Option<Self>> {
        let comm = all.comm;
        if all.sent * SIZE > MOST_BYTES {
            return Ok(None);
        }
        let half = all.eager.len / 2;
        let slots = all.eager.part(u64::from(ahead) * half, half)?;
        comm.span(comm.rank(), slots)?.fill(0, slots.len, 0)?;
        meet()?;
        let map = SlotMap { comm, all, slots };
        let me = comm.rank().get();
        let is_mutual = (0..comm.n_ranks()).all(|rank| map.one_way_readers_of(rank).next().is_none());
        // A slot that is fetched ahead must have been read long ago.
        let n_turns = if is_mutual && !ahead { TURNS_OF_MUTUAL } else { map.turns() };
        let turns = (0..n_turns).map(|turn| map.turn(turn)).collect::<Result<_>>()?;
        let own = if all.operation.reduces() { Vec::new() } else { map.own()? };
        let readers = map.one_way_readers_of(me).map(|rank| map.reader_flag(rank)).collect::<Result<_>>()?;
        let tells = (0..comm.n_ranks()).any(|writer| map.one_way_readers_of(writer).any(|rank| rank == me));
        let sums = all.operation.reduces() && !map.takings(me).is_empty();
        let block = all.block * SIZE;
        Ok(Some(Self {
            turns,
            own,
            sum: sums.then(|| all.output(me, 0, block)).transpose()?,
            readers,
            read_flag: tells.then(|| map.reader_flag(me)).transpose()?,
            number: 0,
            flag_every: n_turns / 2,
            ahead,
            yields: oversubscribed,
        }))
    }

    /// Does the operation.
    ///
    /// # Errors
    /// None while the job lasts.
    #[inline]
    pub fn run(&mut self) -> Result<()> {
        self.number += 1;
        let number = self.number;
        let n_turns = self.turns.len() as u64;
        if !self.readers.is_empty() && number % self.flag_every == 1 && number > n_turns {
            self.readers.iter().for_each(|reader| self.wait(reader, number - 1 - self.flag_every));
        }
        let turn_of = |number: u64| &self.turns[usize::try_from(number).unwrap_or(0) % self.turns.len()];
        let turn = turn_of(number);
        for (source, slot) in &turn.sent {
            source.copy_with(CopyKernel::Memcpy, &slot.data)?;
            slot.flag.set(number);
        }
        if self.ahead {
            // The flags show that already.
            let shown = (number + 1).saturating_sub(n_turns);
            turn_of(number + 1).sent.iter().for_each(|(_, slot)| slot.flag.set(shown));
        }
        for (source, target) in &self.own {
            source.copy_with(CopyKernel::Memcpy, target)?;
        }
        for (slot, target) in &turn.taken {
            self.wait(&slot.flag, number);
            if self.sum.is_none() {
                slot.data.copy_with(CopyKernel::Memcpy, target)?;
            }
        }
        if let Some(sum) = &self.sum {
            let [kernel, _] = SumKernel::by_widest();
            sum::add(kernel, &turn.summands, std::slice::from_ref(sum))?;
        }
        if let Some(flag) = &self.read_flag
            && number.is_multiple_of(self.flag_every)
        {
            flag.set(number);
        }
        Ok(())
    }

    /// Waits until `flag` shows `number`.
    #[inline]
    fn wait(&self, flag: &BareFlag, number: u64) {
        if self.yields {
            flag.spin_yielding(number);
        } else {
            flag.spin(number);
        }
    }
}

/// The addresses of slots.
struct SlotMap<'a> {
    comm: &'a Communicator,
    all: &'a RankBuffers<'a>,
    slots: Region,
}

impl SlotMap<'_> {
    fn takings(&self, reader: u32) -> Vec<BlockRead> {
        takings(self.all.operation, self.comm.n_ranks(), self.all.root.get(), reader)
    }

    /// Returns how many turns the rings have: equally many for all writers, as far as there is
    /// memory.
    fn turns(&self) -> u64 {
        let heads = u64::from(self.comm.n_ranks()) * (LONG + CELL);
        let len = self.all.sent * SIZE;
        (TURNS * (MOST_BYTES + heads) / (len + heads)).clamp(TURNS, MOST_TURNS) / 2 * 2
    }

    /// Returns whether one rank reads from another.
    fn reads(&self, reader: u32, writer: u32) -> bool {
        self.takings(reader).iter().any(|taking| taking.writer == writer)
    }

    /// Returns the ranks that read from `writer`, but do not write to it.
    fn one_way_readers_of(&self, writer: u32) -> impl Iterator<Item = u32> {
        let others = (0..self.comm.n_ranks()).filter(move |&rank| rank != writer);
        others.filter(move |&rank| self.reads(rank, writer) && !self.reads(writer, rank))
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let me = self.comm.rank().get();
        // The next one first, so that not all begin at one.
        (me + 1..self.comm.n_ranks()).chain(0..me)
    }

    fn reader_flag(&self, rank: u32) -> Result<CellRef<BareFlag>> {
        self.comm.cell(Rank::new(rank, self.comm.n_ranks())?, self.slots.offset)
    }

    /// Returns the slot of `turn` for this block of the input of its writer.
    fn slot(&self, turn: u64, taking: BlockRead) -> Result<EagerSlot> {
        let len_of = |index| self.all.part(taking.writer, index).1;
        let data_at =
            |len| if SHORT + len <= LONG || LONG < len && SHORT + len <= CELL { SHORT } else { LONG };
        let stride = |index| (data_at(len_of(index)) + len_of(index)).next_multiple_of(CELL);
        // Blocks without elements are at most one for each rank.
        let n_blocks = self.all.sent.checked_div(self.all.block);
        let n_slots = n_blocks.and_then(|blocks| u32::try_from(blocks).ok()).unwrap_or(self.comm.n_ranks());
        let [before, all] = [taking.block, n_slots].map(|end| (0..end).map(stride).sum::<u64>());
        let at = CELL + turn * all + before;
        let len = len_of(taking.block);
        let data_at = data_at(len);
        let writer = Rank::new(taking.writer, self.comm.n_ranks())?;
        Ok(EagerSlot {
            flag: self.comm.cell(writer, self.slots.part(at, CELL)?.offset)?,
            data: self.comm.span(writer, self.slots.part(at + data_at, len)?)?,
        })
    }

    fn input(&self, taking: BlockRead) -> Result<Span> {
        let (start, len) = self.all.part(taking.writer, taking.block);
        self.all.input(taking.writer, start, len)
    }

    fn output(&self, taking: BlockRead) -> Result<Span> {
        let me = self.comm.rank().get();
        let (start, len) = self.all.part(me, taking.to);
        self.all.output(me, start, len)
    }

    /// Returns the data that do not leave this rank, and are not in place already.
    fn own(&self) -> Result<Vec<(Span, Span)>> {
        let me = self.comm.rank().get();
        let own = self.takings(me).into_iter().filter(|taking| taking.writer == me);
        let pairs = own.map(|taking| Ok((self.input(taking)?, self.output(taking)?)));
        Ok(moving(pairs.collect::<Result<_>>()?))
    }

    /// Returns the slots of one turn that this rank writes and reads.
    fn turn(&self, turn: u64) -> Result<SlotTurn> {
        let me = self.comm.rank().get();
        let mut blocks: Vec<BlockRead> = Vec::new();
        for taking in self.others().flat_map(|reader| self.takings(reader)) {
            if taking.writer == me && blocks.iter().all(|known| known.block != taking.block) {
                blocks.push(taking);
            }
        }
        let sent = blocks.into_iter().map(|taking| Ok((self.input(taking)?, self.slot(turn, taking)?)));
        let mut mine = self.takings(me);
        mine.sort_by_key(|taking| (taking.writer + self.comm.n_ranks() - me) % self.comm.n_ranks());
        let (own, others): (Vec<_>, Vec<_>) = mine.into_iter().partition(|taking| taking.writer == me);
        let taken: Vec<_> = others
            .into_iter()
            .map(|taking| Ok((self.slot(turn, taking)?, self.output(taking)?)))
            .collect::<Result<_>>()?;
        let slots = taken.iter().map(|(slot, _)| Ok(slot.data.clone()));
        let own = own.into_iter().map(|taking| self.input(taking));
        let summands =
            if self.all.operation.reduces() { own.chain(slots).collect::<Result<_>>()? } else { Vec::new() };
        Ok(SlotTurn { sent: sent.collect::<Result<_>>()?, taken, summands })
    }
}
