//! The limit of an operation on few bytes: a hand-written loop in which every byte is handed over
//! once.
//!
//! Who has something for others puts it into a letter, behind a flag, and goes on; who needs it
//! waits for the flag, and for nothing else. So an operation has one hand-over, where ranks that
//! read each other's buffers have to meet twice; and where data go one way only, nobody waits for
//! those behind.
//!
//! A letter is written again some operations later. By then whoever writes to its writer has read
//! it, since it writes one letter after the other. Readers that do not write back tell now and then
//! how far they have come, and the writer looks there as often.

use crate::perf::collective::case::CaseData;
use crate::perf::collective::limit::{RankBuffers, SIZE, moving};
use crate::perf::collective::timed_case::{BATCH_BYTES, RunCase};
use crate::perf::sync::Gathering;
use shmccl::collective::Operation;
use shmccl::heap::Region;
use shmccl::shm::{CellRef, CopyKernel, Span};
use shmccl::{Communicator, Rank, Result};
use shmccl_limits::flags::BareFlag;
use shmccl_limits::sum::{self, SumKernel};

/// Letters in a ring, at least: so many there are of the longest.
const TURNS: u64 = 8;

/// Letters in a ring at most: of short ones there are more, so that a writer seldom has to learn
/// how far its readers have come.
const MOST_TURNS: u64 = 32;

/// The same where all who read from each other also write to each other: none is ahead by more than
/// one.
const TURNS_OF_MUTUAL: u64 = 2;

/// What one writer writes begins at a multiple of so many bytes: pairs of cache lines.
const CELL: u64 = 128;

/// Where a letter that so fits into fewer lines has its data: behind the flag.
const SHORT: u64 = 8;

/// Where others have them: where a line begins.
const LONG: u64 = 64;

/// What a rank reads of what a rank has, itself included: some block of that one's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockRead {
    writer: u32,
    /// Which block of its input; letters are told apart by it.
    block: u32,
    /// To which block of the output. All go to the first one where they are added.
    to: u32,
}

/// What a rank reads in an operation with this `root`.
fn takings(operation: Operation, n_ranks: u32, root: u32, reader: u32) -> Vec<BlockRead> {
    let (all, is_root) = (0..n_ranks, reader == root);
    let of = |writer, block, to| BlockRead { writer, block, to };
    match operation {
        Operation::Broadcast => vec![of(root, 0, 0)],
        Operation::Scatter => vec![of(root, reader, 0)],
        Operation::Send => vec![of((reader + n_ranks - 1) % n_ranks, 0, 0)],
        Operation::Gather | Operation::Reduce if !is_root => Vec::new(),
        Operation::Gather | Operation::AllGather => all.map(|writer| of(writer, 0, writer)).collect(),
        Operation::Reduce | Operation::AllReduce => all.map(|writer| of(writer, 0, 0)).collect(),
        Operation::ReduceScatter => all.map(|writer| of(writer, reader, 0)).collect(),
        _ => all.map(|writer| of(writer, reader, writer)).collect(),
    }
}

/// A letter, as its writer and its readers see it.
#[derive(Clone, Debug)]
struct EagerSlot {
    flag: CellRef<BareFlag>,
    data: Span,
}

/// The letters of one turn of the ring.
#[derive(Clone, Debug)]
struct SlotTurn {
    /// What goes into which letter.
    sent: Vec<(Span, EagerSlot)>,
    /// What comes in which letter, and where it goes.
    taken: Vec<(EagerSlot, Span)>,
    /// What is added, if anything is.
    summands: Vec<Span>,
}

/// The part of one rank.
#[derive(Debug)]
pub(crate) struct EagerLimit {
    turns: Vec<SlotTurn>,
    /// What does not leave the rank.
    own: Vec<(Span, Span)>,
    /// Where sums go.
    sum: Option<Span>,
    /// How far the readers have come that do not write to this rank.
    readers: Vec<CellRef<BareFlag>>,
    /// Where this rank tells how far it has come, if that matters to anybody.
    told: Option<CellRef<BareFlag>>,
    number: u64,
    /// After so many operations a reader tells how far it has come.
    tells_after: u64,
    /// Whether the lines of the next letters are brought here while these are under way.
    ahead: bool,
    /// Whether a wait gives way, since ranks share cores.
    yields: bool,
}

/// What the letters of a rank take up in its heap, for inputs of up to [`BATCH_BYTES`], in both
/// ways.
pub(crate) fn eager_len(n_ranks: u32) -> u64 {
    2 * (CELL + TURNS * (BATCH_BYTES + u64::from(n_ranks) * (LONG + CELL))).next_multiple_of(CELL)
}

impl EagerLimit {
    /// The part of this rank in the task of `places`, if its data are few. Lines of letters are
    /// fetched `ahead` or not: it gains where cores are far apart, and costs where they are near.
    /// Collective: letters are emptied.
    ///
    /// # Errors
    /// Too little ground.
    pub(crate) fn new(
        all: &RankBuffers<'_>,
        gathering: &mut Gathering,
        oversubscribed: bool,
        ahead: bool,
    ) -> Result<Option<Self>> {
        let comm = all.comm;
        if all.spec.layout.send() * SIZE > BATCH_BYTES {
            return Ok(None);
        }
        let half = all.buffers.eager.len / 2;
        let slots = all.buffers.eager.part(u64::from(ahead) * half, half)?;
        comm.span(comm.rank(), slots)?.fill(0, slots.len, 0)?;
        gathering.meet()?;
        let map = SlotMap { comm, all, slots };
        let me = comm.rank().get();
        let is_mutual = (0..comm.n_ranks()).all(|rank| map.strangers_to(rank).next().is_none());
        // What is fetched ahead must have been read long ago.
        let n_turns = if is_mutual && !ahead { TURNS_OF_MUTUAL } else { map.turns() };
        let turns = (0..n_turns).map(|turn| map.turn(turn)).collect::<Result<_>>()?;
        let own = if all.spec.operation.reduces() { Vec::new() } else { map.own()? };
        let readers = map.strangers_to(me).map(|rank| map.told(rank)).collect::<Result<_>>()?;
        let tells = (0..comm.n_ranks()).any(|writer| map.strangers_to(writer).any(|rank| rank == me));
        let sums = all.spec.operation.reduces() && !map.takings(me).is_empty();
        let block = all.spec.layout.block * SIZE;
        Ok(Some(Self {
            turns,
            own,
            sum: sums.then(|| all.output(me, 0, block)).transpose()?,
            readers,
            told: tells.then(|| map.told(me)).transpose()?,
            number: 0,
            tells_after: n_turns / 2,
            ahead,
            yields: oversubscribed,
        }))
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

impl RunCase<f32> for EagerLimit {
    #[inline]
    fn run(&mut self, _data: &mut CaseData<f32>, _gathering: &mut Gathering) -> Result<()> {
        self.number += 1;
        let number = self.number;
        let n_turns = self.turns.len() as u64;
        if !self.readers.is_empty() && number % self.tells_after == 1 && number > n_turns {
            self.readers.iter().for_each(|reader| self.wait(reader, number - 1 - self.tells_after));
        }
        let turn_of = |number: u64| &self.turns[usize::try_from(number).unwrap_or(0) % self.turns.len()];
        let turn = turn_of(number);
        for (source, letter) in &turn.sent {
            source.copy_with(CopyKernel::Memcpy, &letter.data)?;
            letter.flag.set(number);
        }
        if self.ahead {
            // They show that already.
            let shown = (number + 1).saturating_sub(n_turns);
            turn_of(number + 1).sent.iter().for_each(|(_, letter)| letter.flag.set(shown));
        }
        for (source, target) in &self.own {
            source.copy_with(CopyKernel::Memcpy, target)?;
        }
        for (letter, target) in &turn.taken {
            self.wait(&letter.flag, number);
            if self.sum.is_none() {
                letter.data.copy_with(CopyKernel::Memcpy, target)?;
            }
        }
        if let Some(sum) = &self.sum {
            let [kernel, _] = SumKernel::by_widest();
            sum::add(kernel, &turn.summands, std::slice::from_ref(sum))?;
        }
        if let Some(told) = &self.told
            && number.is_multiple_of(self.tells_after)
        {
            told.set(number);
        }
        Ok(())
    }
}

/// Where letters lie.
struct SlotMap<'a> {
    comm: &'a Communicator,
    all: &'a RankBuffers<'a>,
    slots: Region,
}

impl SlotMap<'_> {
    fn takings(&self, reader: u32) -> Vec<BlockRead> {
        let spec = self.all.spec;
        takings(spec.operation, self.comm.n_ranks(), spec.root.get(), reader)
    }

    /// How many letters the rings have: the same of all writers, and no more than there is mail
    /// for.
    fn turns(&self) -> u64 {
        let heads = u64::from(self.comm.n_ranks()) * (LONG + CELL);
        let len = self.all.spec.layout.send() * SIZE;
        (TURNS * (BATCH_BYTES + heads) / (len + heads)).clamp(TURNS, MOST_TURNS) / 2 * 2
    }

    /// Whether one rank has something to read of another.
    fn reads(&self, reader: u32, writer: u32) -> bool {
        self.takings(reader).iter().any(|taking| taking.writer == writer)
    }

    /// The ranks that read what `writer` writes, and write nothing that it reads.
    fn strangers_to(&self, writer: u32) -> impl Iterator<Item = u32> {
        let others = (0..self.comm.n_ranks()).filter(move |&rank| rank != writer);
        others.filter(move |&rank| self.reads(rank, writer) && !self.reads(writer, rank))
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        let me = self.comm.rank().get();
        // The next one first, so that not all begin at the same.
        (me + 1..self.comm.n_ranks()).chain(0..me)
    }

    fn told(&self, rank: u32) -> Result<CellRef<BareFlag>> {
        self.comm.cell(Rank::new(rank, self.comm.n_ranks())?, self.slots.offset)
    }

    /// The letter of `turn` with this block of the input of its writer.
    fn letter(&self, turn: u64, taking: BlockRead) -> Result<EagerSlot> {
        let layout = self.all.spec.layout;
        let len_of = |index| layout.part(taking.writer.into(), index).1 * SIZE;
        let data_at =
            |len| if SHORT + len <= LONG || LONG < len && SHORT + len <= CELL { SHORT } else { LONG };
        let stride = |index| (data_at(len_of(index)) + len_of(index)).next_multiple_of(CELL);
        // Blocks of no length are one for each rank at most.
        let n_letters = layout.send().checked_div(layout.block).unwrap_or(self.comm.n_ranks().into());
        let [before, all] = [taking.block.into(), n_letters].map(|end| (0..end).map(stride).sum::<u64>());
        let at = CELL + turn * all + before;
        let len = len_of(taking.block.into());
        let data_at = data_at(len);
        let writer = Rank::new(taking.writer, self.comm.n_ranks())?;
        Ok(EagerSlot {
            flag: self.comm.cell(writer, self.slots.part(at, CELL)?.offset)?,
            data: self.comm.span(writer, self.slots.part(at + data_at, len)?)?,
        })
    }

    fn input(&self, taking: BlockRead) -> Result<Span> {
        let (start, count) = self.all.spec.layout.part(taking.writer.into(), taking.block.into());
        self.all.input(taking.writer, start * SIZE, count * SIZE)
    }

    fn output(&self, taking: BlockRead) -> Result<Span> {
        let me = self.comm.rank().get();
        let (start, count) = self.all.spec.layout.part(me.into(), taking.to.into());
        self.all.output(me, start * SIZE, count * SIZE)
    }

    /// What does not leave this rank, and is not where it belongs.
    fn own(&self) -> Result<Vec<(Span, Span)>> {
        let me = self.comm.rank().get();
        let own = self.takings(me).into_iter().filter(|taking| taking.writer == me);
        let pairs = own.map(|taking| Ok((self.input(taking)?, self.output(taking)?)));
        Ok(moving(pairs.collect::<Result<_>>()?))
    }

    /// The letters of one turn that this rank writes and reads.
    fn turn(&self, turn: u64) -> Result<SlotTurn> {
        let me = self.comm.rank().get();
        let mut blocks: Vec<BlockRead> = Vec::new();
        for taking in self.others().flat_map(|reader| self.takings(reader)) {
            if taking.writer == me && blocks.iter().all(|known| known.block != taking.block) {
                blocks.push(taking);
            }
        }
        let sent = blocks.into_iter().map(|taking| Ok((self.input(taking)?, self.letter(turn, taking)?)));
        let mut mine = self.takings(me);
        mine.sort_by_key(|taking| (taking.writer + self.comm.n_ranks() - me) % self.comm.n_ranks());
        let (own, others): (Vec<_>, Vec<_>) = mine.into_iter().partition(|taking| taking.writer == me);
        let taken: Vec<_> = others
            .into_iter()
            .map(|taking| Ok((self.letter(turn, taking)?, self.output(taking)?)))
            .collect::<Result<_>>()?;
        let letters = taken.iter().map(|(letter, _)| Ok(letter.data.clone()));
        let own = own.into_iter().map(|taking| self.input(taking));
        let summands = if self.all.spec.operation.reduces() {
            own.chain(letters).collect::<Result<_>>()?
        } else {
            Vec::new()
        };
        Ok(SlotTurn { sent: sent.collect::<Result<_>>()?, taken, summands })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::collective::case::{CaseSpec, CollectiveBuffers};
    use crate::perf::collective::layout::CaseLayout;
    use crate::perf::collective::timed_case::TimedCase;
    use crate::perf::interleave::Contender;
    use crate::perf::plan::RankAverage;
    use crate::perf::report::Memory;
    use shmccl::bootstrap::Options;
    use shmccl::collective::Algorithm;
    use shmccl::launch::launch_threads;
    use shmccl::reduce::ReduceOp;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Operations by letters: elements that are wrong; `None` where there are too many for that.
    fn wrong(
        comm: &mut Communicator,
        operation: Operation,
        bytes: u64,
        in_place: bool,
    ) -> Result<Option<u64>> {
        let eager = eager_len(comm.n_ranks());
        let buffers = CollectiveBuffers::alloc(comm, bytes, eager, 0)?;
        let gathering = Rc::new(RefCell::new(Gathering::new(comm, RankAverage::Mean, false)?));
        let spec = CaseSpec {
            operation,
            op: operation.reduces().then_some(ReduceOp::Sum),
            root: Rank::new(1, comm.n_ranks())?,
            layout: CaseLayout::new(operation, bytes, SIZE, comm.n_ranks().into()),
            in_place,
            check: true,
        };
        let all = RankBuffers { comm, spec: &spec, buffers };
        let mut wrong = None;
        for ahead in [false, true] {
            let Some(eager) = EagerLimit::new(&all, &mut gathering.borrow_mut(), true, ahead)? else {
                continue;
            };
            let data = CaseData::<f32>::new(comm, spec.clone(), buffers, Memory::Heap)?;
            let mut case = TimedCase::new(eager, data, &gathering, bytes);
            case.slice(2 * case.batch(), &mut Vec::new())?;
            wrong = Some(wrong.unwrap_or(0) + case.wrong());
        }
        Ok(wrong)
    }

    #[test]
    fn letters_bring_what_the_operations_promise_in_place_and_apart_and_longer_data_take_none() {
        for n_ranks in [2, 3, 5] {
            launch_threads(n_ranks, &Options::default(), |comm| {
                comm.prepare()?;
                for operation in
                    Algorithm::OPERATIONS.into_iter().chain([Operation::AllToAllV, Operation::Send])
                {
                    for bytes in [0, 4, 120, 124, 1000, BATCH_BYTES, 8 * BATCH_BYTES] {
                        let layout = CaseLayout::new(operation, bytes, SIZE, n_ranks.into());
                        let is_short = layout.send() * SIZE <= BATCH_BYTES;
                        // Blocks that are exchanged in place have no yardstick of their own.
                        let is_exchange = matches!(operation, Operation::AllToAll | Operation::AllToAllV);
                        for in_place in [false, !is_exchange] {
                            let wrong = wrong(comm, operation, bytes, in_place)?;
                            assert_eq!(wrong, is_short.then_some(0), "{operation}, {bytes} among {n_ranks}");
                        }
                    }
                }
                Ok(())
            })
            .unwrap();
        }
    }
}
