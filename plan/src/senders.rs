//! Whose input each rank gets by a sendrecv: the format leaves that to the plan.

use crate::collective::CollectiveKind;
use crate::interpret;
use crate::lower::{Sizes, lower_sized, slices};
use crate::plan::{ExecutionPlan, Operator};

/// The most bytes of all buffers, and the most steps of all blocks, that are looked at.
const MAX_BYTES: usize = 1 << 28;
const MAX_STEPS: usize = 4_000_000;

/// Returns, by rank, whose input it gets by `plan`. `None` where that is not a sendrecv, does not
/// give each rank the whole input of one rank, or is too large to look at.
#[must_use]
pub fn senders(plan: &ExecutionPlan) -> Option<Vec<usize>> {
    if CollectiveKind::of(plan) != CollectiveKind::SendRecv {
        return None;
    }
    // The limits of a plan change nothing of it, and may ask for any amount of memory.
    let sizes = Sizes::of_chunk(plan, plan.alignment.checked_mul(slices(plan))?, None).ok()?;
    let lowered = lower_sized(plan, &sizes).ok()?;
    let bytes = lowered.ranks.iter().flat_map(|rank| rank.buffers).fold(0, usize::saturating_add);
    let marks: Vec<_> = (0..=u8::MAX).take(lowered.ranks.len()).collect();
    if bytes > MAX_BYTES || lowered.steps() > MAX_STEPS || marks.len() < lowered.ranks.len() {
        return None;
    }
    let marked = |rank: usize, _: u64| vec![marks[rank]; lowered.ranks[rank].input.bytes];
    let adds_nothing = |_: Operator, _: &mut [u8], _: &[u8]| ();
    let outcome = interpret::run(&lowered, usize::MAX, 1, 0, &marked, &adds_nothing);
    let sender = |launches: Vec<Vec<u8>>| {
        let output = launches.into_iter().next()?;
        let sender = *output.first()?;
        output.iter().all(|&byte| byte == sender).then_some(sender.into())
    };
    outcome.outputs.into_iter().map(sender).collect()
}

#[cfg(test)]
mod tests {
    use super::senders;
    use crate::build::CollectiveProgram;

    #[test]
    fn each_rank_has_the_input_that_the_plan_sends_it() {
        let mut program = CollectiveProgram::new("swaps", "sendrecv", 4).chunks(1, 1, 0);
        for rank in 0..4 {
            let (block, peer) = (program.block(rank), rank ^ 2);
            let channel = program.memory_channel(rank, peer);
            program.put(block, program.input(rank, 0..1), program.output(peer, 0..1)).unwrap();
            program.signal(block, channel).unwrap();
            program.wait(block, channel).unwrap();
        }
        assert_eq!(senders(&program.finish_unproved().unwrap()), Some(vec![2, 3, 0, 1]));
        let mut program =
            CollectiveProgram::new("large", "sendrecv", 2).chunks(1, 1, 0).limits(1 << 50, u64::MAX);
        for rank in 0..2 {
            let block = program.block(rank);
            program.put(block, program.input(rank, 0..1), program.output(1 - rank, 0..1)).unwrap();
        }
        assert_eq!(senders(&program.finish_unproved().unwrap()), Some(vec![1, 0]));
        let mut none = CollectiveProgram::new("none", "allreduce", 2).chunks(1, 1, 0);
        none.block(0);
        assert_eq!(senders(&none.finish_unproved().unwrap()), None);
    }
}
