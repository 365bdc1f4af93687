//! Which transfers of neighbouring blocks can be done as one.
//!
//! MSCCL++ splits a program into *instances*: blocks that do the same, each on its part of every
//! chunk. Where several of these stand at a step, their transfers together are one of consecutive
//! bytes, which is set up once. No block waits for another one because of that.

use shmccl_plan::Lowered;
use shmccl_plan::lower::{Action, BlockCode, Form, Operand, Transfer};

/// By block and step of a rank: whether the same step of the next block goes on where it ends.
pub(super) type JoinedSteps = Vec<Vec<bool>>;

/// The payload of a packet.
const WORD: usize = 4;

/// Finds the steps of each rank that go on in the next block, and has their operands allow that.
pub(super) fn join(lowered: &mut Lowered) -> Vec<JoinedSteps> {
    let ranks = lowered.ranks.iter_mut();
    ranks
        .map(|code| {
            code.blocks.iter_mut().for_each(straighten);
            let pairs = code.blocks.iter().zip(code.blocks.iter().skip(1));
            pairs.map(|(block, next)| joined_steps(block, next)).collect()
        })
        .collect()
}

/// Has operands that no transfer wraps around in wrap nowhere.
fn straighten(code: &mut BlockCode) {
    for step in &code.steps {
        let Action::Move(transfer) = step.action else { continue };
        let operands = transfer.operands..transfer.operands + transfer.sources + transfer.targets;
        for operand in &mut code.operands[operands] {
            if transfer.unit == 0 && transfer.bytes <= operand.wrap {
                operand.wrap = usize::MAX;
            }
        }
    }
}

fn joined_steps(block: &BlockCode, next: &BlockCode) -> Vec<bool> {
    let steps = block.steps.iter().zip(&next.steps);
    let of_pair = |pair| match pair {
        (Action::Move(first), Action::Move(second)) => goes_on(block, &first, next, &second),
        _ => false,
    };
    steps.map(|(step, behind)| of_pair((step.action, behind.action))).collect()
}

/// Returns whether each operand of the second transfer begins where that of the first one ends.
fn goes_on(block: &BlockCode, first: &Transfer, next: &BlockCode, second: &Transfer) -> bool {
    let is_alike = (first.operator, first.sources, first.targets, first.unit)
        == (second.operator, second.sources, second.targets, 0);
    let continues = |(a, b): (&Operand, &Operand)| {
        let is_whole = a.form == Form::Plain || first.bytes.is_multiple_of(WORD);
        let end = Operand { offset: a.at(first.bytes), ..*a };
        is_whole && a.wrap == usize::MAX && end == *b
    };
    let all = |a: &[Operand], b: &[Operand]| a.iter().zip(b).all(continues);
    is_alike
        && all(block.sources(first), next.sources(second))
        && all(block.targets(first), next.targets(second))
}

#[cfg(test)]
mod tests {
    use shmccl_plan::build::Program;
    use shmccl_plan::lower;

    use super::*;

    /// Returns whether copies by neighbouring blocks are one, each from a chunk of input to a chunk
    /// of scratch; in pipelines where there is a `unit`.
    fn joined(copies: [[(usize, usize); 2]; 2], unit: Option<usize>) -> Vec<bool> {
        let mut program = Program::new("copies", "allreduce", 2).chunks(3, 3, 3);
        let blocks = [program.block(0), program.block(0)];
        for (block, copies) in blocks.into_iter().zip(copies) {
            if let Some(unit) = unit {
                program.begin_pipeline(block, unit, 1).unwrap();
            }
            for (from, to) in copies {
                let (from, to) = (program.input(0, from..from + 1), program.scratch(0, to..to + 1));
                program.copy(block, from, to).unwrap();
            }
            if unit.is_some() {
                program.end_pipeline(block).unwrap();
            }
        }
        let mut lowered = lower(&program.finish_unproved().unwrap(), 3 * 64).unwrap();
        join(&mut lowered)[0][0].clone()
    }

    #[test]
    fn steps_are_one_where_each_operand_goes_on_in_the_next_block() {
        assert_eq!(joined([[(0, 1), (1, 0)], [(1, 2), (2, 1)]], None), [true, true]);
        assert_eq!(joined([[(0, 1), (1, 0)], [(1, 0), (0, 1)]], None), [false, false]);
        assert_eq!(joined([[(0, 1), (1, 0)], [(1, 1), (0, 0)]], None), [false, false]);
    }

    #[test]
    fn steps_of_pipelines_are_not() {
        let copies = [[(0, 0), (1, 1)], [(1, 1), (2, 2)]];
        assert_eq!(joined(copies, None), [true, true]);
        assert!(!joined(copies, Some(16)).contains(&true));
    }
}
