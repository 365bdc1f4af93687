//! One member in one operation over pipes.
//!
//! All that an algorithm touches besides pipes is the member's own heap, where its buffers, its
//! inbox and its send staging are.

use crate::collective::call::{Call, Input, Output, shifted};
use crate::collective::rendezvous::members::{Members, PerMember, fill};
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::CacheHint;

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
    pub(super) fn shifted(self, bytes: u64) -> Self {
        Self { at: shifted(self.at, bytes), ..self }
    }
}

impl<L: Link> PipeWorker<'_, L> {
    pub(super) fn me(&self) -> usize {
        self.pipes.members.me()
    }

    pub(super) fn n(&self) -> usize {
        self.pipes.members.n_members()
    }

    /// Returns the place `at` bytes into the input.
    pub(super) fn input(&self, at: u64) -> HeapOffset {
        match self.call.input {
            Input::Heap(offset) => shifted(offset, at),
            _ => unreachable!("only the input of a member that has one, in the heap, is looked for"),
        }
    }

    /// Returns the place `at` bytes into the output.
    pub(super) fn output(&self, at: u64) -> HeapOffset {
        match self.call.output {
            Output::Heap(offset) => shifted(offset, at),
            _ => unreachable!("only the output of a member that has one, in the heap, is looked for"),
        }
    }

    /// Combines `len` bytes of each of `operands`, in this order, at `target`; `finish` with the
    /// last step of the operator.
    pub(super) fn combine(
        &self,
        operands: &[Operand],
        target: HeapOffset,
        len: u64,
        finish: bool,
    ) -> Result<()> {
        combine(self.pipes.members, self.call, operands.iter().copied(), Region::new(target, len), finish)
    }

    /// Copies `len` bytes within this member's heap, unless they are there already.
    pub(super) fn copy(&self, source: HeapOffset, target: HeapOffset, len: u64) -> Result<()> {
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
