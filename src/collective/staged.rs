//! Algorithms on ordinary memory, or on short floats that are to be accumulated as `f32`: piece by piece through the heap.
//!
//! A piece of each input block is copied into this member's scratch, the operation runs there as on any other buffers in the
//! heap, and the results are copied out. Pieces are small enough to stay in the cache, so that the copies cost less than a
//! pass over memory each. All members cut alike, since the cut depends on the call only.

use super::call::{Call, Input, Output, shifted};
use super::team::Team;
use super::widened::{self, widened};
use crate::error::Result;
use crate::heap::Region;

/// Pieces begin at multiples of so many bytes in the scratch.
const ALIGN: u64 = 128;

/// Executes `call` piece by piece: each of them, in the heap, by `execute`.
///
/// # Errors
/// Those of `execute`; [`crate::Error::OutOfRange`] for buffers that are not allocated.
pub(crate) fn run(
    team: &mut Team,
    call: &mut Call<'_>,
    form: Form,
    mut execute: impl FnMut(&mut Team, &Call<'_>) -> Result<()>,
) -> Result<()> {
    let inner = match form {
        Form::Widened => widened(call),
        Form::Own => None,
    };
    let inner = inner.unwrap_or_else(|| Call { reducer: call.reducer.clone(), ..call.bare() });
    let size = inner.data_type.size() as u64;
    let (inputs, outputs) = call.operation.blocks(team.n_members() as u64);
    let scratch = team.scratch(team.me());
    // Rounded down, so that every block of a piece can begin at a multiple of ALIGN.
    let piece = scratch.len / (inputs + outputs) / ALIGN * ALIGN / size;
    let mut done = 0;
    while done < call.count {
        let count = piece.min(call.count - done);
        run_piece(team, call, &inner, &mut execute, Piece { start: done, count, scratch })?;
        done += count;
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

/// A part of every block of a call.
#[derive(Clone, Copy)]
struct Piece {
    /// The first element of each block.
    start: u64,
    /// How many elements of each block.
    count: u64,
    scratch: Region,
}

/// Executes a piece of `call` as one of `inner`, which has no buffers.
fn run_piece(
    team: &mut Team,
    call: &mut Call<'_>,
    inner: &Call<'_>,
    execute: &mut impl FnMut(&mut Team, &Call<'_>) -> Result<()>,
    piece: Piece,
) -> Result<()> {
    let (size, is_widened) = (call.data_type.size() as u64, inner.data_type != call.data_type);
    let (block, len) = (call.block_len()?, piece.count * inner.data_type.size() as u64);
    let n = team.n_members() as u64;
    let (inputs, outputs) = blocks_here(call, n);
    let span = team.heap_of(team.me(), piece.scratch)?.clone();
    for index in 0..inputs {
        let target = piece.scratch.part(index * len, len)?;
        let entrance = if is_widened { widened::entrance(target, call.data_type) } else { target };
        call.copy_input(team.view(), index * block + piece.start * size, &span, entrance)?;
        if is_widened {
            widened::widen(&span, target, call.data_type)?;
        }
    }
    let input = piece.scratch.offset;
    let output = shifted(input, (call.operation.blocks(n).0 * len).next_multiple_of(ALIGN));
    let inner = Call {
        count: piece.count,
        reducer: inner.reducer.clone(),
        input: if inputs == 0 { Input::None } else { Input::Heap(input) },
        output: if outputs == 0 { Output::None } else { Output::Heap(output) },
        ..inner.bare()
    };
    execute(team, &inner)?;
    for index in 0..outputs {
        let source = Region::new(shifted(output, index * len), len);
        if is_widened {
            widened::narrow(&span, source, call.data_type)?;
        }
        let at = index * block + piece.start * size;
        call.output.copy(team.view(), at, &span, source.offset.get(), piece.count * size)?;
    }
    Ok(())
}

/// How many blocks of input and output this member has.
fn blocks_here(call: &Call<'_>, n_members: u64) -> (u64, u64) {
    let (inputs, outputs) = call.operation.blocks(n_members);
    let inputs = if matches!(call.input, Input::None) { 0 } else { inputs };
    let outputs = if matches!(call.output, Output::None) { 0 } else { outputs };
    (inputs, outputs)
}
