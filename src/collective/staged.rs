//! Algorithms on ordinary memory: piece by piece through the heap.
//!
//! A piece of each input block is copied into this member's scratch, the operation runs there as on any other buffers in the
//! heap, and the results are copied out. Pieces are small enough to stay in the cache, so that the copies cost less than a
//! pass over memory each. All members cut alike, since the cut depends on the call only.

use super::call::{Call, Input, Output, shifted};
use super::team::Team;
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
    mut execute: impl FnMut(&mut Team, &Call<'_>) -> Result<()>,
) -> Result<()> {
    let size = call.data_type.size() as u64;
    let (inputs, outputs) = call.operation.blocks(team.n_members() as u64);
    let scratch = team.scratch(team.me());
    // Rounded down, so that every block of a piece can begin at a multiple of ALIGN.
    let piece = scratch.len / (inputs + outputs) / ALIGN * ALIGN / size;
    let mut done = 0;
    while done < call.count {
        let count = piece.min(call.count - done);
        run_piece(team, call, &mut execute, Piece { start: done, count, scratch })?;
        done += count;
    }
    Ok(())
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

fn run_piece(
    team: &mut Team,
    call: &mut Call<'_>,
    execute: &mut impl FnMut(&mut Team, &Call<'_>) -> Result<()>,
    piece: Piece,
) -> Result<()> {
    let size = call.data_type.size() as u64;
    let (block, len) = (call.block_len()?, piece.count * size);
    let n = team.n_members() as u64;
    let (inputs, outputs) = blocks_here(call, n);
    let span = team.heap_of(team.me(), piece.scratch)?.clone();
    for index in 0..inputs {
        let target = piece.scratch.part(index * len, len)?;
        call.copy_input(team.view(), index * block + piece.start * size, &span, target)?;
    }
    let input = piece.scratch.offset;
    let output = shifted(input, (call.operation.blocks(n).0 * len).next_multiple_of(ALIGN));
    let inner = Call {
        operation: call.operation,
        data_type: call.data_type,
        count: piece.count,
        root: call.root,
        reducer: call.reducer.clone(),
        layout: None,
        input: if inputs == 0 { Input::None } else { Input::Heap(input) },
        output: if outputs == 0 { Output::None } else { Output::Heap(output) },
    };
    execute(team, &inner)?;
    for index in 0..outputs {
        let source = output.get() + index * len;
        call.output.copy(team.view(), index * block + piece.start * size, &span, source, len)?;
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
