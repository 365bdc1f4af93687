//! Algorithms over pipes on ordinary memory, or on short floats that are to be accumulated as
//! `f32`, or of scaled sums: chunk by chunk through the heap.
//!
//! A chunk of each input block is copied into this member's staging area. The operation runs there
//! as on any other buffers in the heap, and the results are copied out. Chunks are small enough to
//! stay in the cache, so that each copy costs less than a pass over memory. All members cut alike,
//! since the cut depends on the call only.
//!
//! What is multiplied by a scalar of this member is multiplied in the staging area, once it is
//! widened, and is then added as it is.

use super::widened::{self, widened};
use crate::collective::call::{Call, Input, Output, shifted};
use crate::collective::rendezvous::members::Members;
use crate::collective::strategy::ElementForm;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{Reducer, Source, SourcePlace, Target};

/// Chunks begin at multiples of so many bytes in the staging area.
const ALIGN: u64 = 128;

/// Executes `call` chunk by chunk: each of them, in the heap of `members`, by `execute`.
///
/// # Errors
/// Fails as `execute` does, or with [`crate::Error::OutOfRange`] for buffers that are not
/// allocated.
pub(crate) fn run(
    members: &mut Members,
    call: &mut Call<'_>,
    form: ElementForm,
    mut execute: impl FnMut(&mut Members, &mut Call<'_>) -> Result<()>,
) -> Result<()> {
    let inner = ChunkCall::of(call, form);
    let size = inner.call.data_type.size() as u64;
    let (inputs, outputs) = call.operation.blocks(members.n_members() as u64);
    let staging = members.staging(members.me());
    // Rounded down, so that every block of a chunk can begin at a multiple of ALIGN.
    let most = staging.len / (inputs + outputs) / ALIGN * ALIGN / size;
    let mut done = 0;
    while done < call.count {
        let chunk = Chunk { start: done, count: most.min(call.count - done), staging };
        let mut staged = inner.stage(members, call, chunk)?;
        execute(members, &mut staged)?;
        inner.take_results(members, call, chunk)?;
        done += chunk.count;
    }
    Ok(())
}

/// What is executed of a call, in the staging area.
struct ChunkCall {
    /// The call without its buffers.
    call: Call<'static>,
    /// What multiplies inputs before.
    scaler: Option<Reducer>,
    is_widened: bool,
}

/// A part of every block of a call.
#[derive(Clone, Copy)]
struct Chunk {
    /// The first element of each block.
    start: u64,
    /// How many elements of each block.
    count: u64,
    staging: Region,
}

impl ChunkCall {
    fn of(call: &Call<'_>, form: ElementForm) -> Self {
        let wide = match form {
            ElementForm::Widened => widened(call),
            ElementForm::Own => None,
        };
        let is_widened = wide.is_some();
        let mut inner = wide.unwrap_or_else(|| Call { reducer: call.reducer.clone(), ..call.bare() });
        let unscaled = inner.reducer.as_ref().and_then(Reducer::unscaled);
        let scaler = unscaled.and_then(|unscaled| inner.reducer.replace(unscaled));
        Self { call: inner, scaler, is_widened }
    }

    /// Returns the length of a block of `chunk` in the staging area.
    fn len(&self, chunk: Chunk) -> u64 {
        chunk.count * self.call.data_type.size() as u64
    }

    /// Returns where the results of `chunk` are.
    fn output(&self, members: &Members, chunk: Chunk) -> HeapOffset {
        let (inputs, _) = self.call.operation.blocks(members.n_members() as u64);
        shifted(chunk.staging.offset, (inputs * self.len(chunk)).next_multiple_of(ALIGN))
    }

    /// Brings the inputs of `chunk` of `call` into the staging area; what is to be executed there.
    fn stage(&self, members: &Members, call: &Call<'_>, chunk: Chunk) -> Result<Call<'static>> {
        let (block, len) = (call.block_len()?, self.len(chunk));
        let (inputs, outputs) = blocks_here(call, members.n_members() as u64);
        let span = members.heap_of(members.me(), chunk.staging)?;
        for index in 0..inputs {
            let target = chunk.staging.part(index * len, len)?;
            let entrance = if self.is_widened { widened::entrance(target, call.data_type) } else { target };
            let at = index * block + chunk.start * call.data_type.size() as u64;
            call.copy_input(members.view(), at, span, entrance)?;
            if self.is_widened {
                widened::widen(span, target, call.data_type)?;
            }
            if let Some(scaler) = &self.scaler {
                let (source, target) = (Source::fresh(SourcePlace::Target(0)), target.offset.get());
                scaler.combine(&[source], &mut [Target::Shared(span, target)], chunk.count, false)?;
            }
        }
        let output = self.output(members, chunk);
        Ok(Call {
            count: chunk.count,
            reducer: self.call.reducer.clone(),
            input: if inputs == 0 { Input::None } else { Input::Heap(chunk.staging.offset) },
            output: if outputs == 0 { Output::None } else { Output::Heap(output) },
            ..self.call.bare()
        })
    }

    /// Copies the results of `chunk` of `call` to where they belong.
    fn take_results(&self, members: &Members, call: &mut Call<'_>, chunk: Chunk) -> Result<()> {
        let (size, block, len) = (call.data_type.size() as u64, call.block_len()?, self.len(chunk));
        let (_, outputs) = blocks_here(call, members.n_members() as u64);
        let span = members.heap_of(members.me(), chunk.staging)?;
        for index in 0..outputs {
            let source = Region::new(shifted(self.output(members, chunk), index * len), len);
            if self.is_widened {
                widened::narrow(span, source, call.data_type)?;
            }
            let at = index * block + chunk.start * size;
            call.output.copy(members.view(), at, span, source.offset.get(), chunk.count * size)?;
        }
        Ok(())
    }
}

/// Returns how many blocks of input and output this member has.
fn blocks_here(call: &Call<'_>, n_members: u64) -> (u64, u64) {
    let (inputs, outputs) = call.operation.blocks(n_members);
    let inputs = if matches!(call.input, Input::None) { 0 } else { inputs };
    let outputs = if matches!(call.output, Output::None) { 0 } else { outputs };
    (inputs, outputs)
}
