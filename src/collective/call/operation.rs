//! The operations that can be called collectively.

use std::fmt;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// All wait for all.
    Barrier = 1,
    /// Every rank gets the reduction of all inputs.
    AllReduce,
    /// The root gets the reduction of all inputs.
    Reduce,
    /// Every rank gets the root's input.
    Broadcast,
    /// Every rank gets all inputs, in the order of the ranks.
    AllGather,
    /// Every rank gets its block of the reduction of all inputs.
    ReduceScatter,
    /// Every rank gets its block of every input, in the order of the ranks.
    AllToAll,
    /// Like `AllToAll`, but with blocks of different lengths.
    AllToAllV,
    /// The root gets all inputs, in the order of the ranks.
    Gather,
    /// Every rank gets its block of the root's input.
    Scatter,
    /// The communicator is divided.
    Split,
    /// The communicator is left by all.
    Finalize,
    /// The communicator is doubled.
    Duplicate,
    /// Memory is allocated on all ranks.
    Alloc,
    /// Memory is freed on all ranks.
    Free,
    /// All choose the kind of channel that data move over.
    SetChannelKind,
    /// One rank sends another what that one receives.
    Send,
    /// One rank receives what another sends it.
    Recv,
    /// A switch channel is opened.
    SwitchChannel,
    /// All register an algorithm of the user's own.
    RegisterAlgorithm,
    /// Several small operations at once.
    Group,
    /// All come together with newcomers.
    Grow,
    /// All write what they have in their heaps to files.
    Checkpoint,
    /// All read it back.
    Restore,
    /// All choose the table that algorithms are chosen by.
    SetTuning,
    /// All prepare what calls need.
    Prepare,
    /// One rank receives what any other sends it.
    RecvAny,
    /// What an execution plan does that is no other operation.
    RunPlan,
}

impl Operation {
    /// All of them with their names, in the order of their codes.
    const NAMED: &[(Self, &'static str); 28] = &[
        (Self::Barrier, "barrier"),
        (Self::AllReduce, "all_reduce"),
        (Self::Reduce, "reduce"),
        (Self::Broadcast, "broadcast"),
        (Self::AllGather, "all_gather"),
        (Self::ReduceScatter, "reduce_scatter"),
        (Self::AllToAll, "all_to_all"),
        (Self::AllToAllV, "all_to_all_v"),
        (Self::Gather, "gather"),
        (Self::Scatter, "scatter"),
        (Self::Split, "split"),
        (Self::Finalize, "finalize"),
        (Self::Duplicate, "duplicate"),
        (Self::Alloc, "alloc"),
        (Self::Free, "free"),
        (Self::SetChannelKind, "set_channel_kind"),
        (Self::Send, "send"),
        (Self::Recv, "recv"),
        (Self::SwitchChannel, "switch_channel"),
        (Self::RegisterAlgorithm, "register_algorithm"),
        (Self::Group, "group"),
        (Self::Grow, "grow"),
        (Self::Checkpoint, "checkpoint"),
        (Self::Restore, "restore"),
        (Self::SetTuning, "set_tuning"),
        (Self::Prepare, "prepare"),
        (Self::RecvAny, "recv_any"),
        (Self::RunPlan, "run_plan"),
    ];

    /// All of them, in the order of their codes.
    pub const ALL: [Self; 28] = firsts(Self::NAMED);

    /// Returns its name, as messages and tables print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMED[self as usize - 1].1
    }

    /// Returns whether one rank plays a part of its own in it.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Returns whether it is between two ranks, and not among all.
    #[must_use]
    #[inline]
    pub const fn has_peer(self) -> bool {
        matches!(self, Self::Send | Self::Recv | Self::RecvAny)
    }

    /// Returns whether it is done by messages between pairs of ranks.
    #[must_use]
    #[inline]
    pub(crate) const fn is_by_messages(self) -> bool {
        self.has_peer() || matches!(self, Self::AllToAllV)
    }

    /// Returns whether it combines elements.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Blocks of `count` elements in the input and in the output of each rank of `n_ranks`, where
    /// these are counted alike on all ranks; the root's, where ranks differ.
    #[must_use]
    pub const fn blocks(self, n_ranks: u64) -> (u64, u64) {
        match self {
            Self::AllReduce | Self::Reduce | Self::Broadcast | Self::RunPlan => (1, 1),
            Self::AllGather | Self::Gather => (1, n_ranks),
            Self::ReduceScatter | Self::Scatter => (n_ranks, 1),
            Self::AllToAll => (n_ranks, n_ranks),
            Self::Send => (1, 0),
            Self::Recv | Self::RecvAny => (0, 1),
            _ => (0, 0),
        }
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        let index = usize::try_from(code).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }
}

/// Returns the first of each pair.
pub(super) const fn firsts<T: Copy, const N: usize>(pairs: &[(T, &str); N]) -> [T; N] {
    let mut all = [pairs[0].0; N];
    let mut index = 1;
    while index < N {
        all[index] = pairs[index].0;
        index += 1;
    }
    all
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_in_the_order_of_their_codes() {
        for (operation, code) in Operation::ALL.into_iter().zip(1..) {
            assert_eq!((operation as u64, Operation::from_code(code)), (code, Some(operation)));
        }
    }
}
