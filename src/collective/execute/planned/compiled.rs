//! A plan as it was lowered for a size, with what its launches need to know of it.

use std::ops::Range;

use shmccl_plan::Lowered;
use shmccl_plan::lower::{Form, Operand, RankCode};
use shmccl_plan::plan::Buffer;

use super::memory::staged;
use super::transfer::{PACKET_PIECE, SLOTS};
use super::{inputs, instances};

/// A plan compiled for one size.
#[derive(Debug)]
pub(crate) struct CompiledPlan {
    pub(super) lowered: Lowered,
    /// The parts of the input of each rank that have to be where the plan is written to have them.
    pub(super) moved: Vec<Vec<Range<usize>>>,
    /// The blocks of the plan that each block of each rank stands for.
    pub(super) blocks: Vec<Vec<Range<usize>>>,
    /// Bytes in which each rank unpacks: none without packets.
    pub(super) bounce: usize,
    /// The scratch of the rank that has most.
    pub(super) scratch: usize,
    /// What both buffers take of the rank whose are longest.
    pub(super) stage: usize,
    /// Whether words of a rank's scratch may be plain bytes at one size and packets at another.
    pub(super) mixes_forms: bool,
    /// Whether a launch leaves the scratch alone that the last one has used.
    pub(super) alternates: bool,
}

impl CompiledPlan {
    /// Makes that of a plan that was `lowered`.
    pub(crate) fn new(mut lowered: Lowered) -> Self {
        let moved = inputs::detach(&mut lowered);
        let blocks = instances::merge(&mut lowered);
        let operands =
            || lowered.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.operands);
        let has = |of: &dyn Fn(&Operand) -> bool| operands().any(of);
        let in_scratch =
            |form| has(&|operand: &Operand| operand.buffer == Buffer::Scratch && operand.form == form);
        let has_packets = has(&|operand: &Operand| operand.form == Form::Packets);
        let most = |bytes: fn(&RankCode) -> usize| lowered.ranks.iter().map(bytes).max().unwrap_or(0);
        Self {
            moved,
            blocks,
            bounce: usize::from(has_packets) * SLOTS * PACKET_PIECE,
            scratch: most(|rank| rank.buffers[2]),
            stage: most(staged),
            mixes_forms: in_scratch(Form::Packets) && in_scratch(Form::Plain),
            alternates: lowered.ranks.iter().all(|rank| rank.half > 0 || rank.buffers[2] == 0),
            lowered,
        }
    }
}
