//! Algorithms over pipes on ordinary memory, or on short floats that are to be accumulated as `f32`, or of scaled sums: piece by piece
//! through the heap.
//!
//! A piece of each input block is copied into this member's scratch, the operation runs there as on any other buffers in the
//! heap, and the results are copied out. Pieces are small enough to stay in the cache, so that the copies cost less than a
//! pass over memory each. All members cut alike, since the cut depends on the call only.
//!
//! What is multiplied by a scalar of this member is multiplied in the scratch, once it is widened, and is then added as it is.

use super::widened::{self, widened};
use crate::collective::call::{Call, Input, Output, shifted};
use crate::collective::rendezvous::members::Team;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{Reducer, Source, SourcePlace, Target};

/// Pieces begin at multiples of so many bytes in the scratch.
const ALIGN: u64 = 128;

/// Executes `call` piece by piece: each of them, in the heap of `team`, by `execute`.
///
/// # Errors
/// Those of `execute`; [`crate::Error::OutOfRange`] for buffers that are not allocated.
pub(crate) fn run(
    team: &mut Team,
    call: &mut Call<'_>,
    form: Form,
    mut execute: impl FnMut(&mut Team, &mut Call<'_>) -> Result<()>,
) -> Result<()> {
    let inner = Inner::of(call, form);
    let size = inner.call.data_type.size() as u64;
    let (inputs, outputs) = call.operation.blocks(team.n_members() as u64);
    let scratch = team.scratch(team.me());
    // Rounded down, so that every block of a piece can begin at a multiple of ALIGN.
    let most = scratch.len / (inputs + outputs) / ALIGN * ALIGN / size;
    let mut done = 0;
    while done < call.count {
        let piece = Piece { start: done, count: most.min(call.count - done), scratch };
        let mut staged = inner.stage(team, call, piece)?;
        execute(team, &mut staged)?;
        inner.take_results(team, call, piece)?;
        done += piece.count;
    }
    Ok(())
}

/// How elements lie in the scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    Own,
    /// As `f32`, where that is what their type is accumulated in.
    Widened,
}

/// What is executed of a call, in the scratch.
struct Inner {
    /// The call without its buffers.
    call: Call<'static>,
    /// What multiplies inputs before.
    scaler: Option<Reducer>,
    is_widened: bool,
}

/// A part of every block of a call.
#[derive(Clone, Copy)]
struct Piece {
    /// The first element of each block.
    start: u64,
    /// How many elements of each block.
    count: u64,
    scratch: Region,
}

impl Inner {
    fn of(call: &Call<'_>, form: Form) -> Self {
        let wide = match form {
            Form::Widened => widened(call),
            Form::Own => None,
        };
        let is_widened = wide.is_some();
        let mut inner = wide.unwrap_or_else(|| Call { reducer: call.reducer.clone(), ..call.bare() });
        let unscaled = inner.reducer.as_ref().and_then(Reducer::unscaled);
        let scaler = unscaled.and_then(|unscaled| inner.reducer.replace(unscaled));
        Self { call: inner, scaler, is_widened }
    }

    /// The length of a block of `piece` in the scratch.
    fn len(&self, piece: Piece) -> u64 {
        piece.count * self.call.data_type.size() as u64
    }

    /// Where the results of `piece` are.
    fn output(&self, team: &Team, piece: Piece) -> HeapOffset {
        let (inputs, _) = self.call.operation.blocks(team.n_members() as u64);
        shifted(piece.scratch.offset, (inputs * self.len(piece)).next_multiple_of(ALIGN))
    }

    /// Brings the inputs of `piece` of `call` into the scratch; what is to be executed there.
    fn stage(&self, team: &Team, call: &Call<'_>, piece: Piece) -> Result<Call<'static>> {
        let (block, len) = (call.block_len()?, self.len(piece));
        let (inputs, outputs) = blocks_here(call, team.n_members() as u64);
        let span = team.heap_of(team.me(), piece.scratch)?;
        for index in 0..inputs {
            let target = piece.scratch.part(index * len, len)?;
            let entrance = if self.is_widened { widened::entrance(target, call.data_type) } else { target };
            let at = index * block + piece.start * call.data_type.size() as u64;
            call.copy_input(team.view(), at, span, entrance)?;
            if self.is_widened {
                widened::widen(span, target, call.data_type)?;
            }
            if let Some(scaler) = &self.scaler {
                let (source, target) = (Source::fresh(SourcePlace::Target(0)), target.offset.get());
                scaler.combine(&[source], &mut [Target::Shared(span, target)], piece.count, false)?;
            }
        }
        let output = self.output(team, piece);
        Ok(Call {
            count: piece.count,
            reducer: self.call.reducer.clone(),
            input: if inputs == 0 { Input::None } else { Input::Heap(piece.scratch.offset) },
            output: if outputs == 0 { Output::None } else { Output::Heap(output) },
            ..self.call.bare()
        })
    }

    /// Copies the results of `piece` of `call` to where they belong.
    fn take_results(&self, team: &Team, call: &mut Call<'_>, piece: Piece) -> Result<()> {
        let (size, block, len) = (call.data_type.size() as u64, call.block_len()?, self.len(piece));
        let (_, outputs) = blocks_here(call, team.n_members() as u64);
        let span = team.heap_of(team.me(), piece.scratch)?;
        for index in 0..outputs {
            let source = Region::new(shifted(self.output(team, piece), index * len), len);
            if self.is_widened {
                widened::narrow(span, source, call.data_type)?;
            }
            let at = index * block + piece.start * size;
            call.output.copy(team.view(), at, span, source.offset.get(), piece.count * size)?;
        }
        Ok(())
    }
}

/// How many blocks of input and output this member has.
fn blocks_here(call: &Call<'_>, n_members: u64) -> (u64, u64) {
    let (inputs, outputs) = call.operation.blocks(n_members);
    let inputs = if matches!(call.input, Input::None) { 0 } else { inputs };
    let outputs = if matches!(call.output, Output::None) { 0 } else { outputs };
    (inputs, outputs)
}
