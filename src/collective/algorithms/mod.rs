//! The algorithms, each written once for channels of both kinds. Over direct channels most calls never come here: `two_shot` goes by
//! [`direct`](super::direct) or [`pipeline`](super::pipeline) then, `one_shot` of up to 8 KiB by [`small`](super::small), which need no pipes.
//!
//! | module | does |
//! |---|---|
//! | [`pairwise`] | `one_shot`, `two_shot` |
//! | [`ring`] | `ring` |
//! | [`doubling`] | `recursive_doubling` |
//! | [`halving`] | `halving_doubling` |
//! | [`tree`] | `tree` and `naive` of an all-reduce, a reduce and a broadcast; both shots of the latter two; `double_tree`; `ring` of a broadcast |
//!
//! In which order each of them combines elements [`Algorithm`] tells.
//!
//! Every element of a result is made by one member for all, or alike by the two that exchange, so that all ranks get the same
//! bits; and the order depends on the number of ranks, the count, the length of an element and the root only, so they are the same
//! in every run. (What goes through the scratch in several pieces is several operations in this respect, which shows where elements
//! of one operation go different ways: in the ring and in the double tree.)
//!
//! A [`Worker`] is one member in one operation: all that an algorithm touches besides pipes is its own heap, where its
//! buffers, its inbox and its bench are. Messages of no bytes are not sent; both ends know their lengths.

mod cut;
mod doubling;
mod exchange;
mod halving;
mod pairwise;
mod ring;
mod tree;

use super::algorithm::Algorithm;
use super::call::{Call, Input, Output, shifted};
use super::operation::Operation;
use super::per_member::{PerMember, fill};
use super::pipe::Pipes;
use crate::channel::Channel;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::ReadSoon;
use tree::{Numbering, Shape};

/// Executes the worker's call by `algorithm`, which can do it, among two members or more.
///
/// # Errors
/// Those of [`super::board::Board::await_post`]; [`crate::Error::OutOfRange`] for buffers that are not allocated. The pipes
/// are of no further use then.
pub(crate) fn run<C: Channel>(worker: &mut Worker<'_, C>, algorithm: Algorithm) -> Result<()> {
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
pub(crate) struct Worker<'a, C> {
    pub(crate) pipes: Pipes<'a, C>,
    /// What is to be done, on buffers in the heap.
    pub(crate) call: &'a Call<'a>,
}

/// Elements in this member's heap that are to be combined with others.
#[derive(Clone, Copy, Debug)]
struct Operand {
    at: HeapOffset,
    /// Whether they are some member's input, and not yet combined with anything.
    fresh: bool,
}

impl Operand {
    /// The elements `bytes` further on.
    fn shifted(self, bytes: u64) -> Self {
        Self { at: shifted(self.at, bytes), ..self }
    }
}

impl<C: Channel> Worker<'_, C> {
    fn me(&self) -> usize {
        self.pipes.team.me()
    }

    fn n(&self) -> usize {
        self.pipes.team.n_members()
    }

    /// The place `at` bytes into the input.
    fn input(&self, at: u64) -> HeapOffset {
        match self.call.input {
            Input::Heap(offset) => shifted(offset, at),
            _ => unreachable!("only the input of a member that has one, in the heap, is looked for"),
        }
    }

    /// The place `at` bytes into the output.
    fn output(&self, at: u64) -> HeapOffset {
        match self.call.output {
            Output::Heap(offset) => shifted(offset, at),
            _ => unreachable!("only the output of a member that has one, in the heap, is looked for"),
        }
    }

    /// Combines `len` bytes of each of `operands`, in this order, at `target`; `finish` with the last step of the operator.
    fn combine(&self, operands: &[Operand], target: HeapOffset, len: u64, finish: bool) -> Result<()> {
        let team = self.pipes.team;
        let heap = |at| team.heap_of(team.me(), Region::new(at, len));
        let source = |operand: &Operand| {
            let place = SourcePlace::Shared(heap(operand.at)?, operand.at.get());
            Ok(Source { place, fresh: operand.fresh })
        };
        let mut sources = PerMember::new();
        fill(&mut sources, operands.iter().map(source))?;
        let mut targets = [Target::Shared(heap(target)?, target.get())];
        let reducer = self.call.reducer.as_ref().expect("an operation that reduces has a reducer");
        reducer.combine(&sources, &mut targets, len / self.call.data_type.size() as u64, finish)
    }

    /// Copies `len` bytes within this member's heap, unless they are there already.
    fn copy(&self, source: HeapOffset, target: HeapOffset, len: u64) -> Result<()> {
        if source == target {
            return Ok(());
        }
        let team = self.pipes.team;
        let heap = team.heap_of(team.me(), Region::new(source, len))?;
        team.heap_of(team.me(), Region::new(target, len))?;
        heap.copy_to(source.get(), heap, target.get(), len, ReadSoon::Yes)
    }
}
