//! The algorithms, each written once for channels of both kinds. Over direct channels most calls
//! never come here: `two_shot` goes by [`zero_copy`](super::zero_copy) or
//! [`staged`](super::staged) then, `one_shot` of up to 8 KiB by [`eager`](super::eager). These need
//! no pipes.
//!
//! | module | does |
//! |---|---|
//! | [`pairwise`] | `one_shot`, `two_shot` |
//! | [`ring`] | `ring` |
//! | [`doubling`] | `recursive_doubling` |
//! | [`halving`] | `halving_doubling` |
//! | [`tree`] | `tree`, `naive`, `double_tree`; `ring` and shots of a broadcast, and of a reduce |
//!
//! In which order each of them combines elements [`Algorithm`] tells.
//!
//! One member makes an element of a result for all, or the two that exchange make it alike. So all
//! ranks get the same bits. The order depends on the number of ranks, the count, the length of an
//! element and the root only. So the bits are the same in every run. (A call that goes through the
//! staging area in several chunks is several operations in this respect. That shows where elements
//! of one operation go different ways: in the ring and in the double tree.)
//!
//! A [`PipeWorker`] is one member in one operation: all that an algorithm touches besides pipes is
//! its own heap, where its buffers, its inbox and its send staging are. Fragments of no bytes are
//! not sent; both ends know their lengths.

pub(crate) mod doubling;
pub(crate) mod exchange;
pub(crate) mod halving;
pub(crate) mod pairwise;
pub(crate) mod ring;
pub(crate) mod tree;

use crate::collective::call::{Algorithm, Call, Input, Operation, Output, shifted};
use crate::collective::rendezvous::members::{Members, PerMember, fill};
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::CacheHint;
use tree::{Numbering, Shape};

/// Executes the worker's call by `algorithm`, which can do it, among two members or more.
///
/// # Errors
/// Those of [`crate::collective::rendezvous::board::CallBoard::await_post`];
/// [`crate::Error::OutOfRange`] for buffers that are not allocated. The pipes are of no further use
/// then.
pub(crate) fn run<L: Link>(worker: &mut PipeWorker<'_, L>, algorithm: Algorithm) -> Result<()> {
    let (operation, root) = (worker.call.operation, Numbering::From(worker.call.root));
    let is_power = worker.n().is_power_of_two();
    let has_tree = matches!(operation, Operation::Broadcast | Operation::Reduce);
    match algorithm {
        Algorithm::OneShot | Algorithm::TwoShot if has_tree => tree::run(worker, Shape::Star, root),
        Algorithm::TwoShot if operation == Operation::AllReduce => pairwise::two_shot(worker),
        Algorithm::OneShot | Algorithm::TwoShot => pairwise::one_shot(worker),
        Algorithm::Ring if has_tree => tree::run(worker, Shape::Chain, root),
        Algorithm::RecursiveDoubling if operation == Operation::AllReduce => doubling::all_reduce(worker),
        Algorithm::RecursiveDoubling if is_power => doubling::all_gather(worker),
        Algorithm::HalvingDoubling if operation == Operation::AllReduce => halving::all_reduce(worker),
        Algorithm::HalvingDoubling if is_power => halving::reduce_scatter(worker),
        Algorithm::Ring | Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling => ring::run(worker),
        Algorithm::Tree => tree::run(worker, Shape::Binary, root),
        Algorithm::DoubleTree => tree::run_double(worker),
        Algorithm::Naive => tree::run(worker, Shape::Star, root),
    }?;
    worker.pipes.flush_all()
}

/// One member in one operation.
#[derive(Debug)]
pub(crate) struct PipeWorker<'a, L: Link> {
    pub(crate) pipes: Pipes<'a, L>,
    /// What is to be done, on buffers in the heap.
    pub(crate) call: &'a Call<'a>,
}

/// Elements in this member's heap that are to be combined with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) at: HeapOffset,
    /// Whether they are some member's input, and not yet combined with anything.
    pub(crate) fresh: bool,
}

impl Operand {
    /// Makes the elements `bytes` further on.
    fn shifted(self, bytes: u64) -> Self {
        Self { at: shifted(self.at, bytes), ..self }
    }
}

impl<L: Link> PipeWorker<'_, L> {
    fn me(&self) -> usize {
        self.pipes.members.me()
    }

    fn n(&self) -> usize {
        self.pipes.members.n_members()
    }

    /// Returns the place `at` bytes into the input.
    fn input(&self, at: u64) -> HeapOffset {
        match self.call.input {
            Input::Heap(offset) => shifted(offset, at),
            _ => unreachable!("only the input of a member that has one, in the heap, is looked for"),
        }
    }

    /// Returns the place `at` bytes into the output.
    fn output(&self, at: u64) -> HeapOffset {
        match self.call.output {
            Output::Heap(offset) => shifted(offset, at),
            _ => unreachable!("only the output of a member that has one, in the heap, is looked for"),
        }
    }

    /// Combines `len` bytes of each of `operands`, in this order, at `target`; `finish` with the
    /// last step of the operator.
    fn combine(&self, operands: &[Operand], target: HeapOffset, len: u64, finish: bool) -> Result<()> {
        combine(self.pipes.members, self.call, operands.iter().copied(), Region::new(target, len), finish)
    }

    /// Copies `len` bytes within this member's heap, unless they are there already.
    fn copy(&self, source: HeapOffset, target: HeapOffset, len: u64) -> Result<()> {
        copy(self.pipes.members, source, Region::new(target, len))
    }
}

/// Combines as many bytes of each of `operands` as `target` has, in this order, there, by the
/// operator of `call`, which has one; `finish` with its last step.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for bytes of this member's heap that are not allocated; those of
/// [`crate::reduce::Reducer::combine`].
pub(crate) fn combine(
    members: &Members,
    call: &Call<'_>,
    operands: impl Iterator<Item = Operand>,
    target: Region,
    finish: bool,
) -> Result<()> {
    let heap = |at| members.heap_of(members.me(), Region::new(at, target.len));
    let source = |operand: Operand| {
        let place = SourcePlace::Shared(heap(operand.at)?, operand.at.get());
        Ok(Source { place, fresh: operand.fresh })
    };
    let mut sources = PerMember::new();
    fill(&mut sources, operands.map(source))?;
    let mut targets = [Target::Shared(heap(target.offset)?, target.offset.get())];
    let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
    reducer.combine(&sources, &mut targets, target.len / call.data_type.size() as u64, finish)
}

/// Copies as many bytes at `source` as `target` has there, within this member's heap, unless they
/// are there already.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for bytes that are not allocated.
pub(crate) fn copy(members: &Members, source: HeapOffset, target: Region) -> Result<()> {
    if source == target.offset {
        return Ok(());
    }
    let heap = members.heap_of(members.me(), Region::new(source, target.len))?;
    members.heap_of(members.me(), target)?;
    heap.copy_to(source.get(), heap, target.offset.get(), target.len, CacheHint::Keep)
}

/// The ends of pieces are multiples of so many bytes: of elements, and of pairs of cache lines.
pub(crate) const ALIGN: u64 = 128;

/// So many pieces are wanted, so that pipelines fill ...
const WANTED: u64 = 8;

/// ... as long as they have so many bytes, which take longer to copy than to announce.
pub(crate) const WORTH_SENDING: u64 = 4 << 10;

/// Bytes in a row, cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceCut {
    total: u64,
    piece: u64,
}

impl PieceCut {
    /// Cuts `total` bytes into pieces of `piece`.
    pub(crate) fn into_pieces_of(total: u64, piece: u64) -> Self {
        Self { total, piece }
    }

    /// Cuts `total` bytes for a pipeline, into pieces of at most `longest`.
    pub(crate) fn for_pipeline(total: u64, longest: u64) -> Self {
        let fair = total.div_ceil(WANTED).next_multiple_of(ALIGN);
        Self { total, piece: fair.max(WORTH_SENDING).min(longest) }
    }

    /// Returns how many pieces there are.
    pub(crate) fn n(self) -> u64 {
        self.total.div_ceil(self.piece)
    }

    /// Returns where piece number `index` starts, and how long it is: nothing past the end.
    pub(crate) fn piece(self, index: u64) -> (u64, u64) {
        let start = index.saturating_mul(self.piece).min(self.total);
        (start, self.piece.min(self.total - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        for total in [0, 1, 4095, 4096, 4097, 65536, 1 << 20, (1 << 20) + 4] {
            let cut = PieceCut::for_pipeline(total, 16 << 10);
            let mut end = 0;
            for index in 0..cut.n() {
                let (start, len) = cut.piece(index);
                assert!(start == end && len > 0 && len <= 16 << 10 && start.is_multiple_of(ALIGN));
                end += len;
            }
            assert_eq!((end, cut.piece(cut.n())), (total, (total, 0)));
        }
    }
}
