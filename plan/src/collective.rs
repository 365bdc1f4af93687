//! The collectives that the format defines: sizes, overlap in place, and results.

use crate::plan::{Buffer, ExecutionPlan};

/// A collective, as far as the format says what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Each rank gets the combination of all inputs.
    AllReduce,
    /// Each rank gets all inputs, in rank order.
    AllGather,
    /// Rank r gets part r of the combination.
    ReduceScatter,
    /// Part q of rank r is part r of rank q's input.
    AllToAll,
    /// Each rank gets the input of another one, by a permutation that the file does not say.
    SendRecv,
    /// What is computed is not in the file.
    Other,
}

impl CollectiveKind {
    /// Returns the collective of a plan.
    #[must_use]
    pub fn of(plan: &ExecutionPlan) -> Self {
        match plan.collective.as_str() {
            "allreduce" => Self::AllReduce,
            "allgather" => Self::AllGather,
            "reducescatter" => Self::ReduceScatter,
            "alltoall" => Self::AllToAll,
            "sendrecv" => Self::SendRecv,
            _ => Self::Other,
        }
    }

    /// Returns how many times the input, and the output, fits the message.
    #[must_use]
    pub fn shares(self, ranks: usize) -> (usize, usize) {
        match self {
            Self::AllGather => (ranks, 1),
            Self::ReduceScatter => (1, ranks),
            _ => (1, 1),
        }
    }

    /// Returns where input and output overlap in a plan that is written in place.
    #[must_use]
    pub fn overlap(self, sizes_agree: bool) -> Overlap {
        match self {
            Self::AllGather => Overlap::InputInOutput,
            Self::ReduceScatter => Overlap::OutputInInput,
            _ if sizes_agree => Overlap::Same,
            _ => Overlap::Apart,
        }
    }
}

/// Where the input and the output of a rank lie in relation to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// Input and output are two buffers.
    Apart,
    /// Input and output are the same bytes.
    Same,
    /// The input of rank r is part r of the output.
    InputInOutput,
    /// The output of rank r is part r of the input, whose rest may be destroyed.
    OutputInInput,
}

impl Overlap {
    /// Returns in which buffer the bytes of `buffer` lie.
    #[must_use]
    pub fn holder(self, buffer: Buffer) -> Buffer {
        match (self, buffer) {
            (Self::Same | Self::InputInOutput, Buffer::Input) => Buffer::Output,
            (Self::OutputInInput, Buffer::Output) => Buffer::Input,
            _ => buffer,
        }
    }
}
