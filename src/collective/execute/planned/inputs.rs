//! Which inputs a plan that is written in place can leave where the caller has them.
//!
//! Such a plan has its inputs in the outputs. So a call out of place copies its input there first.
//! But an operand reads the same from the caller's input, whatever the order of blocks and ranks,
//! where nothing writes those bytes before it is read: where all that write them are the same step
//! or behind it in its own block. What no operand needs in the output is not copied.

use std::ops::Range;

use shmccl_plan::Lowered;
use shmccl_plan::collective::Overlap;
use shmccl_plan::lower::{BlockTransfer, Form, Operand, StepAction};
use shmccl_plan::plan::Buffer;

/// A step: its rank, its block and its index there.
type StepId = (usize, usize, usize);

/// Who writes some bytes of an output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Nobody,
    /// Steps of this one's block, none before it.
    From(StepId),
    /// Several blocks, or a step that is taken several times.
    Many,
}

/// Bytes of an output, up to the next piece, that each operand has all of or none of.
struct Piece {
    start: usize,
    writer: Writer,
    /// Whether what the caller has there as input has to be there.
    is_needed: bool,
}

/// An operand in an output.
struct Access {
    step: StepId,
    is_repeated: bool,
    /// The index of the operand in those of its block.
    operand: usize,
    is_source: bool,
    rank: usize,
    bytes: Range<usize>,
}

/// Has operands read the caller's input where they may. Returns which parts of each rank's input
/// have to be where the plan is written to have them.
pub(super) fn detach(lowered: &mut Lowered) -> Vec<Vec<Range<usize>>> {
    if !matches!(lowered.overlap, Overlap::Same | Overlap::InputInOutput) {
        return vec![Vec::new(); lowered.ranks.len()];
    }
    let accesses = accesses(lowered);
    let mut outputs = pieces(lowered, &accesses);
    for access in accesses.iter().filter(|access| !access.is_source) {
        for piece in within(&mut outputs[access.rank], &access.bytes) {
            piece.writer = piece.writer.and(access);
        }
    }
    for access in accesses.iter().filter(|access| access.is_source) {
        let input = lowered.ranks[access.rank].input;
        let pieces = within(&mut outputs[access.rank], &access.bytes);
        let is_input = input.offset <= access.bytes.start && access.bytes.end <= input.offset + input.bytes;
        if is_input && pieces.iter().all(|piece| piece.writer.leaves(access)) {
            let (rank, block, _) = access.step;
            let operand = &mut lowered.ranks[rank].blocks[block].operands[access.operand];
            *operand = Operand { buffer: Buffer::Input, offset: operand.offset - input.offset, ..*operand };
        } else {
            pieces.iter_mut().for_each(|piece| piece.is_needed = true);
        }
    }
    let ranks = outputs.into_iter().zip(&lowered.ranks);
    ranks.map(|(pieces, code)| needed(&pieces, code.input.offset, code.input.bytes)).collect()
}

impl Writer {
    /// Returns who writes if `access` does, too. Those of a block come in order.
    fn and(self, access: &Access) -> Self {
        match self {
            _ if access.is_repeated => Self::Many,
            Self::Nobody => Self::From(access.step),
            Self::From(first) if is_same_block(first, access.step) => self,
            _ => Self::Many,
        }
    }

    /// Returns whether `access` reads what was there before the launch.
    fn leaves(self, access: &Access) -> bool {
        match self {
            Self::Nobody => true,
            Self::From(first) => is_same_block(first, access.step) && access.step.2 <= first.2,
            Self::Many => false,
        }
    }
}

fn is_same_block(a: StepId, b: StepId) -> bool {
    (a.0, a.1) == (b.0, b.1)
}

/// Returns all operands in outputs, those of each block in order.
fn accesses(lowered: &Lowered) -> Vec<Access> {
    let mut found = Vec::new();
    for (rank, code) in lowered.ranks.iter().enumerate() {
        for (block, code) in code.blocks.iter().enumerate() {
            for (step, (of, times)) in code.steps.iter().zip(code.repeats()).enumerate() {
                let Some(transfer) = transfer_of(&of.action) else { continue };
                let operands = transfer.operands..transfer.operands + transfer.sources + transfer.targets;
                for operand in operands {
                    let Operand { rank: holder, buffer, form, offset, .. } = code.operands[operand];
                    let len = if form == Form::Packets { 2 * transfer.bytes } else { transfer.bytes };
                    if buffer == Buffer::Output && len > 0 {
                        found.push(Access {
                            step: (rank, block, step),
                            is_repeated: times > 1,
                            operand,
                            is_source: operand < transfer.operands + transfer.sources,
                            rank: holder,
                            bytes: offset..offset + len,
                        });
                    }
                }
            }
        }
    }
    found
}

fn transfer_of(action: &StepAction) -> Option<&BlockTransfer> {
    match action {
        StepAction::Move(transfer) | StepAction::Await(transfer) | StepAction::Push { transfer, .. } => {
            Some(transfer)
        }
        _ => None,
    }
}

/// Cuts the output of each rank where an operand, or its input, begins or ends.
fn pieces(lowered: &Lowered, accesses: &[Access]) -> Vec<Vec<Piece>> {
    let inputs = lowered.ranks.iter().map(|code| code.input);
    let mut cuts: Vec<_> = inputs.map(|input| vec![0, input.offset, input.offset + input.bytes]).collect();
    for access in accesses {
        cuts[access.rank].extend([access.bytes.start, access.bytes.end]);
    }
    let piece = |start| Piece { start, writer: Writer::Nobody, is_needed: false };
    let of_rank = |mut cuts: Vec<usize>| {
        cuts.sort_unstable();
        cuts.dedup();
        cuts.into_iter().map(piece).collect()
    };
    cuts.into_iter().map(of_rank).collect()
}

/// Returns the pieces that make up `bytes`.
fn within<'p>(pieces: &'p mut [Piece], bytes: &Range<usize>) -> &'p mut [Piece] {
    let [first, last] = [bytes.start, bytes.end].map(|at| pieces.partition_point(|piece| piece.start < at));
    &mut pieces[first..last]
}

/// Returns the parts of an input of so many bytes, from `offset` of the output on, that have to be
/// there: what operands read there, and what nobody writes.
fn needed(pieces: &[Piece], offset: usize, bytes: usize) -> Vec<Range<usize>> {
    let mut needed: Vec<Range<usize>> = Vec::new();
    let ends = pieces[1..].iter().map(|piece| piece.start);
    for (piece, end) in pieces.iter().zip(ends) {
        let is_input = offset <= piece.start && end <= offset + bytes;
        if !is_input || !(piece.is_needed || piece.writer == Writer::Nobody) {
            continue;
        }
        let part = piece.start - offset..end - offset;
        match needed.last_mut() {
            Some(before) if before.end == part.start => before.end = part.end,
            _ => needed.push(part),
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use shmccl_plan::build::CollectiveProgram;
    use shmccl_plan::lower;
    use shmccl_plan::plan::Buffer::{Input, Output, Scratch};

    use super::*;

    /// A copy in rank 0 by a block: from a chunk of a buffer to a chunk of a buffer.
    type ChunkCopy = (usize, (Buffer, usize), (Buffer, usize));

    /// Returns which of 3 chunks of input have to be in the output, and from which buffer each of
    /// the `copies` reads, those of block 0 first; of a pipeline where there is a `unit`.
    fn detached(copies: &[ChunkCopy], unit: Option<usize>) -> (Vec<usize>, Vec<Buffer>) {
        let mut program = CollectiveProgram::new("copies", "allreduce", 2).in_place().chunks(3, 3, 3);
        let blocks = [program.block(0), program.block(0)];
        for (number, &block) in blocks.iter().enumerate() {
            if let Some(unit) = unit {
                program.begin_pipeline(block, unit, 1).unwrap();
            }
            for &(_, from, to) in copies.iter().filter(|copy| copy.0 == number) {
                let [from, to] = [from, to].map(|(buffer, chunk)| match buffer {
                    Input => program.input(0, chunk..chunk + 1),
                    Output => program.output(0, chunk..chunk + 1),
                    Scratch => program.scratch(0, chunk..chunk + 1),
                });
                program.copy(block, from, to).unwrap();
            }
            if unit.is_some() {
                program.end_pipeline(block).unwrap();
            }
        }
        let mut lowered = lower(&program.finish_unproved().unwrap(), 3 * 64).unwrap();
        let moved = detach(&mut lowered);
        let chunks = (0..3).filter(|chunk| moved[0].iter().any(|part| part.contains(&(chunk * 64))));
        let blocks = lowered.ranks[0].blocks.iter().flat_map(|block| block.operands.iter().step_by(2));
        (chunks.collect(), blocks.map(|source| source.buffer).collect())
    }

    #[test]
    fn what_is_written_later_by_the_same_block_is_read_where_the_caller_has_it() {
        let copies =
            [(0, (Input, 0), (Scratch, 0)), (0, (Input, 1), (Output, 0)), (0, (Scratch, 0), (Input, 1))];
        assert_eq!(detached(&copies, None), (vec![2], vec![Input, Input, Scratch]));
    }

    #[test]
    fn what_was_written_before_or_by_another_block_or_in_a_loop_is_not() {
        let before =
            [(0, (Input, 0), (Output, 1)), (0, (Input, 1), (Output, 0)), (0, (Input, 2), (Output, 2))];
        assert_eq!(detached(&before, None), (vec![1], vec![Input, Output, Input]));
        let elsewhere = [(0, (Input, 0), (Scratch, 0)), (1, (Scratch, 1), (Output, 0))];
        assert_eq!(detached(&elsewhere, None), (vec![0, 1, 2], vec![Output, Scratch]));
        let both = [elsewhere[0], (0, (Scratch, 1), (Output, 0)), elsewhere[1]];
        assert_eq!(detached(&both, None), (vec![0, 1, 2], vec![Output, Scratch, Scratch]));
        let around = [(0, (Input, 0), (Output, 1)), (0, (Scratch, 0), (Output, 0))];
        assert_eq!(detached(&around, Some(16)), (vec![0, 2], vec![Output, Scratch]));
        assert_eq!(detached(&around, Some(64)), (vec![2], vec![Input, Scratch]));
    }

    #[test]
    fn what_nobody_writes_and_the_whole_input_of_a_plan_out_of_place_stay_as_they_are() {
        assert_eq!(detached(&[], None), (vec![0, 1, 2], Vec::new()));
        let program = CollectiveProgram::new("apart", "allreduce", 2).chunks(1, 1, 0);
        let mut lowered = lower(&program.finish_unproved().unwrap(), 64).unwrap();
        let before = lowered.clone();
        assert_eq!(detach(&mut lowered), [Vec::new(), Vec::new()]);
        assert_eq!(lowered, before);
    }
}
