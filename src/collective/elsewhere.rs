//! Ranks that wait where all ranks of the job meet, while this one is in an operation on the board.
//!
//! The barriers, allocations and the like of the job's first communicator go by the meeting of all ranks
//! (`src/comm/meeting.rs`), its operations by the board. A rank in the one and a rank in the other would wait for each other
//! until their deadline. So each looks, on the slow path of its wait, at what the other has put up:
//!
//! - Who is in operation s looks for a rank that has arrived at a meeting to which it has not come itself, and has not posted s.
//!   What a rank posted before it arrived is acquired with its arrival (B1).
//! - Who is at a meeting looks for a rank that has posted an operation after its own last one, and has not arrived. What a rank arrived
//!   at before it posted is acquired with the post (C1).
//!
//! Ranks call the same in the same order, so either is a mistake for certain. It takes that a rank arrives only when all operations
//! that it has begun are done, wherever they are executed.

use super::operation::{Operation, Summary};
use crate::channel::Fabric;
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::{AgreementCell, BarrierCell};

/// What all ranks have put up at the meeting, as one of them reads it.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    arrivals: CellSlice<BarrierCell>,
    proposals: CellSlice<AgreementCell>,
    me: Rank,
}

impl Elsewhere {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        let control = fabric.world().control();
        Self { arrivals: control.barrier().0, proposals: control.agreement(), me: fabric.rank() }
    }

    /// The call in which `rank` has arrived at the meeting that this rank comes to next.
    pub(crate) fn call_of(&self, rank: Rank) -> Option<Summary> {
        let generation = self.arrivals[self.me.index()].arrivals();
        if !self.arrivals[rank.index()].shows(generation.wrapping_add(1)) {
            return None;
        }
        Some(call_met(&self.proposals[rank.index()], generation))
    }
}

/// The call in which the rank that has put up `proposal` has arrived at the meeting after number `generation`.
pub(crate) fn call_met(proposal: &AgreementCell, generation: u64) -> Summary {
    let code = proposal.proposal(generation).map_or(Operation::Barrier as u64, |words| words[0]);
    Summary::from_words([code, 0])
}
