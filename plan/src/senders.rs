//! Whose input each rank gets by a sendrecv: the format leaves that to the plan.

use crate::collective::Collective;
use crate::interpret;
use crate::lower::{lower, smallest};
use crate::plan::{Operator, Plan};

/// Returns, by rank, whose input it gets by `plan`. `None` where that is not a sendrecv, or does
/// not give each rank the whole input of one rank.
#[must_use]
pub fn senders(plan: &Plan) -> Option<Vec<usize>> {
    if Collective::of(plan) != Collective::SendRecv {
        return None;
    }
    let lowered = lower(plan, smallest(plan)?).ok()?;
    let marked = |rank: usize, _: u64| vec![u8::try_from(rank).unwrap_or(0); lowered.ranks[rank].input.bytes];
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
    use crate::build::Program;

    #[test]
    fn each_rank_has_the_input_that_the_plan_sends_it() {
        let mut program = Program::new("swaps", "sendrecv", 4).chunks(1, 1, 0);
        for rank in 0..4 {
            let (block, peer) = (program.block(rank), rank ^ 2);
            let channel = program.memory_channel(rank, peer);
            program.put(block, program.input(rank, 0..1), program.output(peer, 0..1)).unwrap();
            program.signal(block, channel).unwrap();
            program.wait(block, channel).unwrap();
        }
        assert_eq!(senders(&program.finish_unproved().unwrap()), Some(vec![2, 3, 0, 1]));
        let mut none = Program::new("none", "allreduce", 2).chunks(1, 1, 0);
        none.block(0);
        assert_eq!(senders(&none.finish_unproved().unwrap()), None);
    }
}
