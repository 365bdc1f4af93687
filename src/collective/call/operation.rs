//! The operations that can be called collectively.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::rank::Rank;

/// Declares [`Operation`]: what each does, and its name.
macro_rules! operations {
    ($($(#[doc = $does:literal])+ $operation:ident $(= $code:literal)? $name:literal,)+) => {
        /// A collective operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[doc = $does])+ $operation $(= $code)?,)+
        }

        impl Operation {
            /// All of them, in the order of their codes, each with its name and what it does.
            const TABLE: &[(Self, &str, &str)] = &[$((Self::$operation, $name, concat!($($does),+))),+];

            /// All of them, in the order of their codes.
            pub const ALL: [Self; Self::TABLE.len()] = [$(Self::$operation),+];
        }
    };
}

operations! {
    /// All wait for all.
    Barrier = 1 "barrier",
    /// Every rank gets the reduction of all inputs.
    AllReduce "all_reduce",
    /// The root gets the reduction of all inputs.
    Reduce "reduce",
    /// Every rank gets the root's input.
    Broadcast "broadcast",
    /// Every rank gets all inputs, in the order of the ranks.
    AllGather "all_gather",
    /// Every rank gets its block of the reduction of all inputs.
    ReduceScatter "reduce_scatter",
    /// Every rank gets its block of every input, in the order of the ranks.
    AllToAll "all_to_all",
    /// Like `AllToAll`, but with blocks of different lengths.
    AllToAllV "all_to_all_v",
    /// The root gets all inputs, in the order of the ranks.
    Gather "gather",
    /// Every rank gets its block of the root's input.
    Scatter "scatter",
    /// The communicator is divided.
    Split "split",
    /// The communicator is left by all.
    Finalize "finalize",
    /// The communicator is doubled.
    Duplicate "duplicate",
    /// Memory is allocated on all ranks.
    Alloc "alloc",
    /// Memory is freed on all ranks.
    Free "free",
    /// All choose the kind of channel that data move over.
    SetChannelKind "set_channel_kind",
    /// One rank sends another what that one receives.
    Send "send",
    /// One rank receives what another sends it.
    Recv "recv",
    /// A switch channel is opened.
    SwitchChannel "switch_channel",
    /// All register an algorithm of the user's own.
    RegisterAlgorithm "register_algorithm",
    /// Several small operations at once.
    Group "group",
    /// All come together with newcomers.
    Grow "grow",
    /// All write what they have in their heaps to files.
    Checkpoint "checkpoint",
    /// All read it back.
    Restore "restore",
    /// All choose the table that algorithms are chosen by.
    SetTuning "set_tuning",
    /// All prepare what calls need.
    Prepare "prepare",
    /// One rank receives what any other sends it.
    RecvAny "recv_any",
    /// What an execution plan does that is no other operation.
    RunPlan "run_plan",
    /// Every rank gets the reduction of the inputs of all ranks up to itself.
    Scan "scan",
    /// Every rank but the first gets the reduction of the inputs of all ranks before it.
    ExScan "exscan",
}

/// What a rank gives to an operation, or gets from it: blocks of one length, on all ranks or on
/// some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Nothing, or blocks of different lengths.
    Nothing,
    /// One block.
    Block,
    /// A block for each rank.
    Blocks,
    /// One block, on the root.
    RootBlock,
    /// A block for each rank, on the root.
    RootBlocks,
    /// One block, on all ranks but the first.
    LaterBlock,
}

impl Side {
    /// Returns its number of blocks for `n_ranks`; the root's, where ranks differ.
    #[inline]
    pub(crate) const fn blocks(self, n_ranks: u64) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Block | Self::RootBlock | Self::LaterBlock => 1,
            Self::Blocks | Self::RootBlocks => n_ranks,
        }
    }

    /// Returns whether `rank` has it.
    #[inline]
    pub(crate) const fn is_there(self, rank: usize, root: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Block | Self::Blocks => true,
            Self::RootBlock | Self::RootBlocks => rank == root,
            Self::LaterBlock => rank > 0,
        }
    }
}

impl Operation {
    /// Returns its name, as messages and tables print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::TABLE[self as usize - 1].1
    }

    /// Returns what it does, in a sentence.
    #[must_use]
    pub const fn description(self) -> &'static str {
        Self::TABLE[self as usize - 1].2.trim_ascii()
    }

    /// Returns whether it is called with buffers: an operation of
    /// [`CollectiveCall`](crate::comm::CollectiveCall).
    #[must_use]
    pub const fn has_buffers(self) -> bool {
        !matches!(self.sides(), (Side::Nothing, Side::Nothing)) || matches!(self, Self::AllToAllV)
    }

    /// Returns whether there are [algorithms](super::Algorithm) for it: whether it has buffers, and
    /// goes neither by messages nor by a plan.
    #[must_use]
    pub const fn has_algorithms(self) -> bool {
        self.has_buffers() && !self.is_by_messages() && !matches!(self, Self::RunPlan)
    }

    /// Lists the first `N` that have buffers, in the order of their codes, and counts all; those
    /// alone that have algorithms, if `by_algorithms` says so.
    pub(crate) const fn with_buffers<const N: usize>(by_algorithms: bool) -> ([Self; N], usize) {
        let (mut all, mut n, mut index) = ([Self::Barrier; N], 0, 0);
        while index < Self::ALL.len() {
            let operation = Self::ALL[index];
            if operation.has_buffers() && (operation.has_algorithms() || !by_algorithms) {
                if n < N {
                    all[n] = operation;
                }
                n += 1;
            }
            index += 1;
        }
        (all, n)
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
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter) || self.is_prefix()
    }

    /// Returns whether each rank combines the inputs of ranks before it.
    #[must_use]
    #[inline]
    pub const fn is_prefix(self) -> bool {
        matches!(self, Self::Scan | Self::ExScan)
    }

    /// Returns the input and the output of a rank.
    #[inline]
    pub(crate) const fn sides(self) -> (Side, Side) {
        use Side::{Block, Blocks, LaterBlock, Nothing, RootBlock, RootBlocks};
        match self {
            Self::AllReduce | Self::RunPlan | Self::Scan => (Block, Block),
            Self::ExScan => (Block, LaterBlock),
            Self::Reduce => (Block, RootBlock),
            Self::Broadcast => (RootBlock, Block),
            Self::AllGather => (Block, Blocks),
            Self::ReduceScatter => (Blocks, Block),
            Self::AllToAll => (Blocks, Blocks),
            Self::Gather => (Block, RootBlocks),
            Self::Scatter => (RootBlocks, Block),
            Self::Send => (Block, Nothing),
            Self::Recv | Self::RecvAny => (Nothing, Block),
            _ => (Nothing, Nothing),
        }
    }

    /// Blocks of `count` elements in the input and in the output of each rank of `n_ranks`, where
    /// these are counted alike on all ranks; the root's, where ranks differ.
    #[must_use]
    #[inline]
    pub const fn blocks(self, n_ranks: u64) -> (u64, u64) {
        let (input, output) = self.sides();
        (input.blocks(n_ranks), output.blocks(n_ranks))
    }

    /// Blocks of `count` elements in the input and in the output of `rank`, one of `n_ranks`.
    #[must_use]
    #[inline]
    pub const fn parts(self, rank: usize, root: usize, n_ranks: u64) -> (u64, u64) {
        let (input, output) = self.sides();
        let sent = if input.is_there(rank, root) { input.blocks(n_ranks) } else { 0 };
        let received = if output.is_there(rank, root) { output.blocks(n_ranks) } else { 0 };
        (sent, received)
    }

    /// Returns the members of `n` whose inputs the output of `member` is made of.
    #[inline]
    #[must_use]
    pub const fn sources(self, member: usize, root: usize, n: usize) -> Range<usize> {
        match self {
            Self::Scan => 0..member + 1,
            Self::ExScan => 0..member,
            Self::Broadcast | Self::Scatter => root..root + 1,
            _ => 0..n,
        }
    }

    /// Returns which block of an input is for `member`.
    #[inline]
    pub(crate) const fn block_for(self, member: usize) -> usize {
        match self.sides().0 {
            Side::Blocks | Side::RootBlocks => member,
            _ => 0,
        }
    }

    /// Returns which block of an output comes from `member`.
    #[inline]
    pub(crate) const fn block_from(self, member: usize) -> usize {
        match self.sides().1 {
            Side::Blocks | Side::RootBlocks => member,
            _ => 0,
        }
    }

    /// Returns how many inputs `rank` of `n_ranks` combines; one, where it combines none.
    #[inline]
    pub(crate) fn n_combined(self, rank: Rank, n_ranks: u32) -> u32 {
        let sources = self.sources(rank.index(), 0, n_ranks as usize);
        u32::try_from(sources.len()).map_or(n_ranks, |n| n.max(1))
    }

    /// Returns whether each member combines one block for others.
    #[inline]
    pub(crate) const fn combines_a_block(self) -> bool {
        self.reduces() && matches!(self.sides().0, Side::Block)
    }

    /// Returns the members of `n` that get a result, where it [combines a
    /// block](Self::combines_a_block).
    #[inline]
    pub(crate) const fn receivers(self, root: usize, n: usize) -> Range<usize> {
        match self.sides().1 {
            _ if !self.combines_a_block() => 0..0,
            Side::RootBlock => root..root + 1,
            Side::LaterBlock => 1..n,
            _ => 0..n,
        }
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        let index = usize::try_from(code).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }
}

/// A name that no operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such operation, expected a name such as all_reduce")]
pub struct UnknownOperation;

impl FromStr for Operation {
    type Err = UnknownOperation;

    /// Accepts names with dashes, too.
    fn from_str(name: &str) -> Result<Self, UnknownOperation> {
        let name = name.replace('-', "_");
        Self::ALL.into_iter().find(|operation| operation.name() == name).ok_or(UnknownOperation)
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
            assert_eq!(operation.name().parse(), Ok(operation));
        }
        assert_eq!("all-to-all-v".parse(), Ok(Operation::AllToAllV));
        assert_eq!("AllReduce".parse::<Operation>(), Err(UnknownOperation));
    }
}
