//! One operation at one size on one rank: its buffers, its data, and the check of its result.

use std::ops::Range;

use shmccl::collective::Operation;
use shmccl::comm::{Buffers, CollectiveCall, RecvBuffer, SendBuffer, Submit};
use shmccl::heap::{DeviceBuffer, Region};
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Blocks, Collectives, Communicator, Group, Rank, Result};
use shmccl_limits::staged::Own;

use crate::layout::{CaseLayout, bus_factor};
use crate::pattern::{OneWordData, PERIOD, Pattern, TestElement};
use crate::report::{CollectiveFigures, Memory, PerfRow};

/// The buffers of every rank in its heap.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveBuffers {
    /// For inputs.
    pub send: Region,
    /// For outputs, and for buffers that are both.
    pub recv: Region,
    /// For the slots of hand-written eager loops.
    pub eager: Region,
    /// For the slots of hand-written staging loops.
    pub staging: Region,
}

impl CollectiveBuffers {
    /// Allocates for inputs and outputs of `len` bytes, and for hand-written loops. Collective.
    ///
    /// # Errors
    /// No memory; ranks that do not come.
    pub fn alloc(comm: &mut Communicator, len: u64, eager: u64, staging: u64) -> Result<Self> {
        let mut region = |len| comm.alloc_region(len, 4096);
        Ok(Self { send: region(len)?, recv: region(len)?, eager: region(eager)?, staging: region(staging)? })
    }

    /// Returns the bytes of heap that measurements of up to `len` bytes take.
    pub fn heap_len(len: u64) -> u64 {
        // Inputs and outputs, flags and times; an eighth is the library's own.
        (whole_pages(len).saturating_mul(2).saturating_add(64 << 20) / 7).saturating_mul(8)
    }

    /// Returns the input and the output of `rank`, for elements of `size` bytes in this `layout`.
    ///
    /// # Errors
    /// Too little memory.
    pub fn regions(
        self,
        layout: CaseLayout,
        rank: u64,
        size: u64,
        in_place: bool,
    ) -> Result<(Region, Region)> {
        if in_place {
            let (send, recv) = (layout.send_in_place(rank) * size, layout.recv_in_place(rank) * size);
            Ok((self.recv.part(send, layout.send() * size)?, self.recv.part(recv, layout.recv() * size)?))
        } else {
            Ok((self.send.part(0, layout.send() * size)?, self.recv.part(0, layout.recv() * size)?))
        }
    }
}

/// Rounds `len` up to whole pages.
pub fn whole_pages(len: u64) -> u64 {
    len.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// An operation that all ranks do again and again.
#[derive(Clone, Debug)]
pub struct CaseSpec {
    /// The operation.
    pub operation: Operation,
    /// The operator, if it reduces.
    pub op: Option<ReduceOp>,
    /// The root, where the operation has one.
    pub root: Rank,
    /// The sizes of the buffers.
    pub layout: CaseLayout,
    /// Whether the output takes the place of the input.
    pub in_place: bool,
    /// Whether results are verified.
    pub check: bool,
}

impl CaseSpec {
    /// Returns the figures of a `row` of this operation, on elements of `data_type`, by `op`.
    pub fn figures(&self, row: &PerfRow, data_type: DataType, op: &str, memory: Memory) -> CollectiveFigures {
        let algbw = row.times.gb_per_s.unwrap_or(0.0);
        CollectiveFigures {
            algbw,
            busbw: algbw * bus_factor(self.operation, row.ranks),
            memory,
            in_place: self.in_place,
            data_type: data_type.name().to_owned(),
            redop: op.to_owned(),
            root: if self.operation.has_root() { self.root.get().into() } else { -1 },
            count: self.layout.block,
            heap_p50_ns: None,
            heap_ratio: None,
        }
    }
}

/// The memory of the elements.
#[derive(Debug)]
enum CaseBuffers<T> {
    Heap {
        send: DeviceBuffer<T>,
        recv: DeviceBuffer<T>,
    },
    Ordinary {
        send: Vec<T>,
        recv: Vec<T>,
    },
    /// One buffer for input and output, and where they begin.
    OneOrdinary {
        both: Vec<T>,
        send: usize,
        recv: usize,
    },
}

/// The elements that a rank exchanges with each other, where the counts differ.
#[derive(Debug, Default)]
struct Parts {
    counts: Vec<usize>,
    displacements: Vec<usize>,
}

impl Parts {
    fn new(spec: &CaseSpec, rank: u64, n_ranks: u64) -> Self {
        if spec.operation != Operation::AllToAllV {
            return Self::default();
        }
        let parts = (0..n_ranks).map(|peer| spec.layout.part(rank, peer));
        let (displacements, counts) = parts.map(|(start, count)| (own(start), own(count))).unzip();
        Self { counts, displacements }
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks::new(&self.counts, &self.displacements)
    }
}

/// An execution plan that is registered.
#[derive(Debug)]
pub struct Planned {
    /// The name.
    pub name: String,
    /// Whose input this rank gets by it, if it is a sendrecv.
    pub sender: Option<u32>,
}

/// A rank's part in a [`CaseSpec`].
#[derive(Debug)]
pub struct CaseData<T> {
    spec: CaseSpec,
    rank: u32,
    /// The rank before this one, in a ring or by a plan.
    before: u32,
    /// The name of the execution plan that does what is no call, if one does.
    planned: Option<String>,
    buffers: CaseBuffers<T>,
    parts: Parts,
    pattern: Pattern<T>,
    /// The data of the shortest operations.
    words: Option<OneWordData>,
    /// Room for a period of a result, to compare it.
    copy: Vec<T>,
    turn: u64,
    /// Elements that were not as expected so far.
    pub wrong: u64,
}

/// Returns whether the result of `operation` is defined. A send from memory that another message is
/// received into has none; nccl-tests measures that, and does not verify it.
pub fn is_defined(operation: Operation, in_place: bool) -> bool {
    operation != Operation::Send || !in_place
}

impl<T: TestElement> CaseData<T> {
    /// Lays the data out in `buffers`, or in ordinary memory.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(
        comm: &Communicator,
        spec: CaseSpec,
        buffers: CollectiveBuffers,
        memory: Memory,
    ) -> Result<Self> {
        let (layout, rank) = (spec.layout, comm.rank().get());
        let zeros = |count: u64| vec![T::zeroed(); own(count)];
        let buffers = match (memory, spec.in_place) {
            (Memory::Heap, in_place) => {
                let size = size_of::<T>() as u64;
                let (send, recv) = buffers.regions(layout, rank.into(), size, in_place)?;
                CaseBuffers::Heap { send: comm.buffer(send)?, recv: comm.buffer(recv)? }
            }
            // A send and a receive cannot borrow ordinary memory at once.
            (Memory::Ordinary, in_place) if !in_place || spec.operation == Operation::Send => {
                CaseBuffers::Ordinary { send: zeros(layout.send()), recv: zeros(layout.recv()) }
            }
            (Memory::Ordinary, _) => {
                let (send, recv) = (layout.send_in_place(rank.into()), layout.recv_in_place(rank.into()));
                CaseBuffers::OneOrdinary { both: zeros(layout.largest()), send: own(send), recv: own(recv) }
            }
        };
        let n_ranks = comm.n_ranks() as usize;
        let combined = spec.operation.sources(comm.rank().index(), spec.root.index(), n_ranks);
        let pattern = Pattern::new(comm.n_ranks(), combined, spec.op.as_ref());
        let words = OneWordData::new(&spec, &pattern, rank).filter(|_| memory == Memory::Heap);
        let copy = vec![T::zeroed(); PERIOD];
        let before = comm.left().get();
        let parts = Parts::new(&spec, rank.into(), comm.n_ranks().into());
        Ok(Self {
            spec,
            rank,
            before,
            planned: None,
            buffers,
            parts,
            pattern,
            words,
            copy,
            turn: 0,
            wrong: 0,
        })
    }

    /// Has messages exchanged by an execution plan that is a sendrecv.
    pub fn by_plan(mut self, plan: Option<&Planned>) -> Self {
        if let Some(Planned { name, sender: Some(sender) }) = plan {
            (self.planned, self.before) = (Some(name.clone()), *sender);
        }
        self
    }

    /// Goes on to the next turn: rewrites the input.
    #[inline]
    pub fn rewrite(&mut self) -> Result<()> {
        self.turn += 1;
        if let (Some(words), CaseBuffers::Heap { send, .. }) = (&self.words, &self.buffers) {
            return words.write(self.turn, send.span());
        }
        if self.sends() {
            let count = self.spec.layout.send();
            self.write(count)?;
        }
        Ok(())
    }

    /// Does the operation.
    ///
    /// # Errors
    /// The errors of the library.
    #[inline]
    pub fn run(&mut self, comm: &mut Communicator) -> Result<()> {
        if self.spec.operation == Operation::Send {
            return self.pass_on(comm);
        }
        let spec = &self.spec;
        let buffers = match &mut self.buffers {
            CaseBuffers::Heap { send, recv } => Buffers::apart(&*send, &*recv),
            CaseBuffers::Ordinary { send, recv } => {
                Buffers::apart(SendBuffer::<T>::from(&*send), RecvBuffer::<T>::from(recv))
            }
            CaseBuffers::OneOrdinary { both, send, recv } => {
                let part = match spec.layout.blocks_of(self.rank, spec.root) {
                    (1.., 0) => *send..*send + own(spec.layout.send()),
                    (0, 1..) => *recv..*recv + own(spec.layout.recv()),
                    _ => 0..both.len(),
                };
                Buffers::in_place(RecvBuffer::<T>::from(&mut both[part]))
            }
        };
        comm.submit(CollectiveCall {
            op: Some(spec.op.as_ref().unwrap_or(&ReduceOp::Sum)),
            root: spec.root,
            blocks: Some(&[self.parts.blocks(); 2]),
            ..CollectiveCall::new(spec.operation, T::DATA_TYPE, buffers)
        })
    }

    /// Sends to the next rank and receives from the one before, or lets a plan do that.
    fn pass_on(&mut self, comm: &mut Communicator) -> Result<()> {
        macro_rules! pass_on {
            ($send:expr, $recv:expr) => {{
                if let Some(name) = &self.planned {
                    let plan = comm.plan(name)?;
                    return comm.run_plan(plan, $send, $recv);
                }
                let (next, before) = (comm.right(), comm.left());
                let mut group = Group::start();
                let all = group.join(comm);
                group.on(all).send($send, next)?;
                group.on(all).recv($recv, before)?;
                group.end()
            }};
        }
        match &mut self.buffers {
            CaseBuffers::Heap { send, recv } => pass_on!(&*send, &*recv),
            CaseBuffers::Ordinary { send, recv } => pass_on!(&*send, recv),
            CaseBuffers::OneOrdinary { .. } => unreachable!("a message is not done in place"),
        }
    }

    /// Reads the result, and counts the elements that are not as expected.
    ///
    /// # Errors
    /// None while the buffers last.
    #[inline]
    pub fn verify(&mut self) -> Result<()> {
        if !self.spec.check || !self.receives() {
            return Ok(());
        }
        if let (Some(words), CaseBuffers::Heap { recv, .. }) = (&self.words, &self.buffers)
            && words.are_in(self.turn, recv.span())?
        {
            return Ok(());
        }
        let (layout, turn, me) = (self.spec.layout, self.turn, u64::from(self.rank));
        let whole = ExpectedBlock { start: 0, count: layout.recv(), first: 0 };
        let share = ExpectedBlock { first: me * layout.block, ..whole };
        let (pattern, root) = (&self.pattern, self.spec.root.get());
        let mut result = Outputs { buffers: &self.buffers, copy: &mut self.copy };
        self.wrong += match self.spec.operation {
            Operation::ReduceScatter => result.mismatches(share, pattern.reduced(turn))?,
            operation if operation.reduces() => result.mismatches(whole, pattern.reduced(turn))?,
            Operation::Broadcast => result.mismatches(whole, pattern.input(turn, root))?,
            Operation::Scatter => result.mismatches(share, pattern.input(turn, root))?,
            Operation::Send => result.mismatches(whole, pattern.input(turn, self.before))?,
            operation => {
                let is_exchange = matches!(operation, Operation::AllToAll | Operation::AllToAllV);
                let first = |rank: u32| if is_exchange { layout.part(rank.into(), me).0 } else { 0 };
                result.mismatched_blocks(layout, me, first, |rank| pattern.input(turn, rank))?
            }
        };
        Ok(())
    }

    fn sends(&self) -> bool {
        self.spec.layout.blocks_of(self.rank, self.spec.root).0 > 0
    }

    fn receives(&self) -> bool {
        self.spec.layout.blocks_of(self.rank, self.spec.root).1 > 0
    }

    /// Writes this turn's input.
    #[inline]
    fn write(&mut self, count: u64) -> Result<()> {
        let data = self.pattern.input(self.turn, self.rank);
        for (at, part) in periods(0, count) {
            match &mut self.buffers {
                CaseBuffers::Heap { send, .. } => send.copy_from_slice(at, &data[part])?,
                CaseBuffers::Ordinary { send, .. } => send[at..][..part.len()].copy_from_slice(&data[part]),
                CaseBuffers::OneOrdinary { both, send, .. } => {
                    both[*send + at..][..part.len()].copy_from_slice(&data[part]);
                }
            }
        }
        Ok(())
    }
}

impl CaseData<f32> {
    /// Returns the data, where a loop may stage them.
    pub fn own(&mut self) -> Option<Own<'_>> {
        match &mut self.buffers {
            CaseBuffers::Heap { send, recv } => {
                (!self.spec.in_place).then(|| Own::Heap(send.span(), recv.span()))
            }
            CaseBuffers::Ordinary { send, recv } => Some(Own::Apart(send, recv)),
            CaseBuffers::OneOrdinary { both, .. } => Some(Own::InPlace(both)),
        }
    }
}

/// Returns `count` as a number of elements of this process.
fn own(count: u64) -> usize {
    usize::try_from(count).expect("it fits the address space")
}

/// Elements of an output, and where they began in the input that they came from.
#[derive(Clone, Copy)]
struct ExpectedBlock {
    start: u64,
    count: u64,
    first: u64,
}

/// The outputs of a case, and room to compare them.
struct Outputs<'w, T> {
    buffers: &'w CaseBuffers<T>,
    copy: &'w mut [T],
}

impl<T: TestElement> Outputs<'_, T> {
    /// Counts the elements of `block` that differ from `expected`, which repeats.
    #[inline]
    fn mismatches(&mut self, block: ExpectedBlock, expected: &[T]) -> Result<u64> {
        let (start, mut wrong) = (own(block.start), 0);
        for (at, part) in periods(block.first, block.count) {
            let found = match self.buffers {
                // A copy of correct data would be one pass more than the results of MPI take.
                CaseBuffers::Heap { recv, .. } if is_in(recv, start + at, &expected[part.clone()])? => {
                    continue;
                }
                CaseBuffers::Heap { recv, .. } => {
                    let copy = &mut self.copy[..part.len()];
                    recv.copy_to_slice(start + at, copy)?;
                    &*copy
                }
                CaseBuffers::Ordinary { recv, .. } => &recv[start + at..][..part.len()],
                CaseBuffers::OneOrdinary { both, recv, .. } => &both[*recv + start + at..][..part.len()],
            };
            wrong += differing(found, &expected[part]);
        }
        Ok(wrong)
    }

    /// Counts the wrong elements of the output of rank `me`, which has a block from each rank. A
    /// block began in the input of its rank at `first`.
    fn mismatched_blocks<'p>(
        &mut self,
        layout: CaseLayout,
        me: u64,
        first: impl Fn(u32) -> u64,
        expected: impl Fn(u32) -> &'p [T],
    ) -> Result<u64>
    where
        T: 'p,
    {
        let mut wrong = 0;
        let blocks = layout.recv().checked_div(layout.block).unwrap_or(0);
        for rank in 0..u32::try_from(blocks).expect("a block for each rank") {
            let (start, count) = layout.part(me, rank.into());
            let block = ExpectedBlock { start, count, first: first(rank) };
            wrong += self.mismatches(block, expected(rank))?;
        }
        Ok(wrong)
    }
}

/// Returns whether `expected` is in `buffer` from element `at` on.
#[inline]
fn is_in<T: TestElement>(buffer: &DeviceBuffer<T>, at: usize, expected: &[T]) -> Result<bool> {
    buffer.span().equals((at * size_of::<T>()) as u64, bytemuck::cast_slice(expected))
}

/// Counts the elements that differ in any bit.
#[inline]
fn differing<T: TestElement>(found: &[T], expected: &[T]) -> u64 {
    let bytes = bytemuck::cast_slice::<T, u8>;
    if bytes(found) == bytes(expected) { 0 } else { count_differing(found, expected) }
}

#[cold]
fn count_differing<T: TestElement>(found: &[T], expected: &[T]) -> u64 {
    let differs = |(a, b): &(&T, &T)| bytemuck::bytes_of(*a) != bytemuck::bytes_of(*b);
    found.iter().zip(expected).filter(differs).count() as u64
}

/// Cuts `count` elements from element `first` on where the pattern begins anew. Returns where each
/// part starts, and its range in the period.
#[inline]
fn periods(first: u64, count: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
    let skipped = if first == 0 { 0 } else { own(first % PERIOD as u64) };
    let (count, mut at, mut place) = (own(count), 0, skipped);
    std::iter::from_fn(move || {
        let len = (PERIOD - place).min(count - at);
        let part = (at, place..place + len);
        (at, place) = (at + len, 0);
        (len > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests;
