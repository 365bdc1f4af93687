//! Ranks that wait in a barrier of the job, while this one is in an operation on the board.
//!
//! The barriers, allocations and the like of the job's first communicator go by a barrier of all
//! ranks (`src/comm/membership/job_barrier.rs`), its operations by the board. A rank in the one and
//! a rank in the other would wait for each other until their deadline. So each looks, on the slow
//! path of its wait, at what the other has announced:
//!
//! - A rank in operation s looks for a rank that has arrived at a barrier to which it has not come
//!   itself, and has not posted s. What that rank posted before is acquired with its arrival (B1).
//! - A rank at a barrier looks for a rank that has posted an operation after its own last one, and
//!   has not arrived. What that rank arrived at before is acquired with the post (C1).
//!
//! Ranks make the same calls in the same order, so either is a mistake for certain. This needs that
//! a rank arrives only when all operations that it has begun are done, wherever they are executed.

use crate::channel::RankContext;
use crate::collective::call::{CallSignature, Operation};
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::{AgreementCell, BarrierCell};

/// What all ranks have proposed at a barrier, as one of them reads it.
#[derive(Debug)]
pub(crate) struct AtBarrier {
    arrivals: CellSlice<BarrierCell>,
    proposals: CellSlice<AgreementCell>,
    me: Rank,
}

impl AtBarrier {
    pub(crate) fn new(context: &RankContext) -> Self {
        let control = context.mapped().control();
        Self { arrivals: control.barrier().0, proposals: control.agreement(), me: context.rank() }
    }

    /// Returns the call in which `rank` has arrived at the barrier that this rank comes to next.
    pub(crate) fn call_of(&self, rank: Rank) -> Option<CallSignature> {
        let generation = self.arrivals[self.me.index()].arrivals();
        if !self.arrivals[rank.index()].shows(generation.wrapping_add(1)) {
            return None;
        }
        Some(call_met(&self.proposals[rank.index()], generation))
    }
}

/// Returns the call in which the rank of `proposal` has arrived at the barrier after number
/// `generation`.
pub(crate) fn call_met(proposal: &AgreementCell, generation: u64) -> CallSignature {
    call_proposed(proposal.proposal(generation).map_or(Operation::Barrier as u64, |words| words[0]))
}

/// Returns the word by which a rank proposes `operation`, which it is in on its own account or
/// within the call `around`.
pub(crate) fn proposed(operation: Operation, around: Option<CallSignature>) -> u64 {
    let word = |call: CallSignature| call.words()[0] & 0xff | u64::from(call.is_first()) << 8;
    operation as u64 | around.map_or(0, word) << 8
}

/// Returns the call of the program's that `word` was proposed in.
pub(crate) fn call_proposed(word: u64) -> CallSignature {
    let [own, around, is_first, ..] = word.to_le_bytes();
    let signature = CallSignature::from_words([if around == 0 { own } else { around }.into(), 0]);
    if is_first == 0 { signature } else { signature.as_first() }
}

/// Returns whether ranks that have proposed these words can agree: all in the same operation,
/// within calls or not. What calls those are is not compared here; each rank may come to the first
/// one of a job by another.
pub(crate) fn can_agree(one: u64, other: u64) -> bool {
    let kind = |word: u64| (word & 0xff, word >> 8 == 0);
    kind(one) == kind(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_proposed_names_the_call_of_the_program_and_is_compared_without() {
        let (send, recv) =
            (CallSignature::new(Operation::Send).as_first(), CallSignature::new(Operation::Recv).as_first());
        let words = [None, Some(send), Some(recv)].map(|around| proposed(Operation::Alloc, around));
        assert_eq!(words.map(call_proposed), [CallSignature::new(Operation::Alloc), send, recv]);
        assert!(can_agree(words[1], words[2]) && !can_agree(words[0], words[1]));
        assert!(!can_agree(words[0], proposed(Operation::Free, None)));
    }
}
