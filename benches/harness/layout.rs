//! How many elements an operation moves at a size, where they lie, and how its bandwidth is
//! counted, as in nccl-tests. And which algorithms differ for it.
//!
//! An `all_to_all_v` among n ranks is cut into n (n + 1) / 2 parts of what a rank sends. Of these,
//! 1 + (r + s) mod n go from rank r to rank s; a remainder goes to the longest blocks. So the
//! blocks of a rank have all lengths from one part to n, and all ranks send and receive equally
//! much. Two ranks send each other as much, which an exchange in place needs. In the `alltoallv` of
//! rccl-tests, too, lengths depend on sums of ranks. Bandwidths are counted as there: as if the
//! blocks were of one length.

use shmccl::Rank;
use shmccl::collective::tuning::ONE_SHOT_LEN;
use shmccl::collective::{Algorithm, Operation};

use crate::test::TestChannel;

/// The sizes of the buffers of one operation at one size, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseLayout {
    operation: Operation,
    n_ranks: u64,
    /// Elements of a block, or the mean of blocks of several lengths; what nccl-tests prints as the
    /// count.
    pub block: u64,
}

impl CaseLayout {
    /// Makes the layout that `bytes` of elements of `size` bytes have room for. Sizes that the
    /// ranks do not divide are rounded down.
    pub fn new(operation: Operation, bytes: u64, size: u64, n_ranks: u64) -> Self {
        let (send, recv) = blocks(operation, n_ranks);
        Self { operation, n_ranks, block: bytes / size / send.max(recv).max(1) }
    }

    /// Returns the elements of the input of a rank, or of the root where only the root has one.
    pub fn send(self) -> u64 {
        blocks(self.operation, self.n_ranks).0 * self.block
    }

    /// Returns the elements of the output of a rank, or of the root where only the root has one.
    pub fn recv(self) -> u64 {
        blocks(self.operation, self.n_ranks).1 * self.block
    }

    /// Returns the blocks of the input and of the output of `rank`.
    pub fn blocks_of(self, rank: u32, root: Rank) -> (u64, u64) {
        regular(self.operation).parts(rank as usize, root.index(), self.n_ranks)
    }

    /// Returns the elements of the larger of both.
    pub fn largest(self) -> u64 {
        self.send().max(self.recv())
    }

    /// Returns where block number `index` starts in the input of `rank`, or in its output, and its
    /// elements.
    pub fn part(self, rank: u64, index: u64) -> (u64, u64) {
        if self.operation != Operation::AllToAllV {
            return (index * self.block, self.block);
        }
        let start = (0..index).map(|before| self.exchanged(rank, before)).sum();
        (start, self.exchanged(rank, index))
    }

    /// Returns the elements that two ranks send each other in an `all_to_all_v`.
    fn exchanged(self, one: u64, other: u64) -> u64 {
        let (n, total) = (self.n_ranks, self.send());
        let (parts, mine) = (n * (n + 1) / 2, 1 + (one + other) % n);
        total / parts * mine + if mine == n { total % parts } else { 0 }
    }

    /// Returns where `rank` has its input in a buffer that is its output as well: in its own block,
    /// if it sends one block.
    pub fn send_in_place(self, rank: u64) -> u64 {
        if self.send() < self.recv() { rank * self.block } else { 0 }
    }

    /// Returns where `rank` has its output in a buffer that is its input as well.
    pub fn recv_in_place(self, rank: u64) -> u64 {
        if self.recv() < self.send() { rank * self.block } else { 0 }
    }
}

/// Returns the blocks of the input and of the output of a rank.
pub fn blocks(operation: Operation, n_ranks: u64) -> (u64, u64) {
    regular(operation).blocks(n_ranks)
}

/// Returns an operation with as many blocks, all of one length. What is sent is received here, too.
fn regular(operation: Operation) -> Operation {
    match operation {
        Operation::Send => Operation::RunPlan,
        Operation::AllToAllV => Operation::AllToAll,
        _ => operation,
    }
}

/// Returns the factor from the bandwidth of an operation to that of the links that it keeps busy.
pub fn bus_factor(operation: Operation, n_ranks: u32) -> f64 {
    let others = f64::from(n_ranks - 1) / f64::from(n_ranks);
    let (send, recv) = blocks(operation, 2);
    match operation {
        Operation::AllReduce => 2.0 * others,
        // The block of a rank that stays there keeps no link busy.
        _ if send.max(recv) > 1 => others,
        _ => 1.0,
    }
}

/// Returns the algorithms that differ for `operation` over `channel` among `n_ranks`, where a rank
/// contributes `len` bytes.
pub fn distinct(operation: Operation, channel: TestChannel, n_ranks: u32, len: u64) -> Vec<Algorithm> {
    use Algorithm::{HalvingDoubling, Naive, OneShot, RecursiveDoubling, Ring, TwoShot};
    use Operation::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let is_direct = channel == TestChannel::Memory;
    let differs = |algorithm: &Algorithm| match (algorithm, operation) {
        // Between two ranks a chain and a star are the tree.
        (Ring, Broadcast) | (Naive, _) if n_ranks == 2 => false,
        // Longer data than an announcement carries go like naive.
        (OneShot, Reduce | Broadcast) => is_direct && len <= ONE_SHOT_LEN,
        // Where no rank reaches another's buffers, this is one shot, and naive where there is a
        // tree.
        (TwoShot, operation) => is_direct || operation == AllReduce,
        // These need a power of two, and leave anything else to the ring.
        (RecursiveDoubling, AllGather) | (HalvingDoubling, ReduceScatter) => n_ranks.is_power_of_two(),
        _ => true,
    };
    Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(operation)).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_larger_buffer_and_counts_those_of_a_block() {
        let layout = |operation| CaseLayout::new(operation, 1000, 4, 3);
        let of = |operation| {
            let layout = layout(operation);
            (layout.block, layout.send(), layout.recv(), layout.send_in_place(2), layout.recv_in_place(2))
        };
        assert_eq!(of(Operation::AllReduce), (250, 250, 250, 0, 0));
        assert_eq!(of(Operation::AllGather), (83, 83, 249, 166, 0));
        assert_eq!(of(Operation::ReduceScatter), (83, 249, 83, 0, 166));
        assert_eq!(of(Operation::AllToAll), (83, 249, 249, 0, 0));
        assert_eq!(layout(Operation::Scatter).largest(), 249);
    }

    #[test]
    fn blocks_of_unequal_lengths_fill_the_buffers_and_are_as_long_both_ways() {
        for (n, bytes) in (1..=8).flat_map(|n| [0, 4, 8, 100, 4096, 30_000].map(|bytes| (n, bytes))) {
            let layout = CaseLayout::new(Operation::AllToAllV, bytes, 4, n);
            assert_eq!(layout.send(), CaseLayout::new(Operation::AllToAll, bytes, 4, n).send());
            for rank in 0..n {
                let parts: Vec<_> = (0..n).map(|index| layout.part(rank, index)).collect();
                let ends = parts.iter().map(|(start, count)| start + count);
                assert!(ends.eq(parts[1..].iter().map(|part| part.0).chain([layout.recv()])), "{parts:?}");
                let counts: Vec<_> = (0..n).map(|index| layout.part(index, rank).1).collect();
                assert!(counts.iter().eq(parts.iter().map(|(_, count)| count)), "{parts:?}, {counts:?}");
            }
        }
        let counts =
            |rank| [0, 1, 2].map(|index| CaseLayout::new(Operation::AllToAllV, 84, 4, 3).part(rank, index).1);
        assert_eq!([0, 1, 2].map(counts), [[3, 6, 12], [6, 12, 3], [12, 3, 6]]);
    }

    #[test]
    fn bus_bandwidth_is_counted_as_nccl_tests_counts_it() {
        let factor = |operation| bus_factor(operation, 4);
        assert_eq!(factor(Operation::AllReduce), 1.5);
        assert_eq!(factor(Operation::AllGather), 0.75);
        assert_eq!((factor(Operation::Gather), factor(Operation::AllToAllV)), (0.75, 0.75));
        assert_eq!((factor(Operation::Reduce), factor(Operation::Broadcast)), (1.0, 1.0));
    }

    const SHORT: u64 = ONE_SHOT_LEN;
    const LONG: u64 = ONE_SHOT_LEN + 1;

    fn names(operation: Operation, channel: TestChannel, n_ranks: u32, len: u64) -> String {
        let names = distinct(operation, channel, n_ranks, len).into_iter().map(Algorithm::name);
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_would_be_left_to_another_is_no_way_of_its_own() {
        let direct = |operation, n_ranks, len| names(operation, TestChannel::Memory, n_ranks, len);
        assert_eq!(direct(Operation::ReduceScatter, 4, LONG), "one_shot two_shot ring halving_doubling");
        assert_eq!(direct(Operation::ReduceScatter, 3, LONG), "one_shot two_shot ring");
        assert_eq!(direct(Operation::AllGather, 4, LONG), "one_shot two_shot ring recursive_doubling");
        assert_eq!(direct(Operation::AllGather, 3, LONG), "one_shot two_shot ring");
        assert_eq!(direct(Operation::Reduce, 3, SHORT), "one_shot two_shot tree naive");
        assert_eq!(direct(Operation::Reduce, 3, LONG), "two_shot tree naive");
        assert_eq!(direct(Operation::Broadcast, 3, SHORT), "one_shot two_shot ring tree naive");
        assert_eq!(direct(Operation::Broadcast, 3, LONG), "two_shot ring tree naive");
        assert_eq!(distinct(Operation::AllReduce, TestChannel::Memory, 3, LONG), Algorithm::ALL);
        for operation in [Operation::Gather, Operation::Scan, Operation::ExScan] {
            assert_eq!(direct(operation, 2, 8), "one_shot two_shot");
        }
    }

    #[test]
    fn over_ports_both_shots_are_one_but_for_an_all_reduce_and_naive_where_there_is_a_tree() {
        for len in [SHORT, LONG] {
            let proxied = |operation, n_ranks| names(operation, TestChannel::Port, n_ranks, len);
            assert_eq!(distinct(Operation::AllReduce, TestChannel::Port, 3, len), Algorithm::ALL);
            assert_eq!(proxied(Operation::AllGather, 4), "one_shot ring recursive_doubling");
            assert_eq!(proxied(Operation::ReduceScatter, 4), "one_shot ring halving_doubling");
            assert_eq!(proxied(Operation::Reduce, 3), "tree naive");
            assert_eq!(proxied(Operation::Broadcast, 3), "ring tree naive");
            for operation in Algorithm::OPERATIONS.into_iter().skip(5) {
                assert_eq!(proxied(operation, 3), "one_shot");
            }
        }
    }

    #[test]
    fn between_two_ranks_there_is_one_tree() {
        let direct = |operation, len| names(operation, TestChannel::Memory, 2, len);
        assert_eq!(direct(Operation::Reduce, SHORT), "one_shot two_shot tree");
        assert_eq!(direct(Operation::Broadcast, LONG), "two_shot tree");
        for operation in [Operation::Reduce, Operation::Broadcast] {
            assert_eq!(names(operation, TestChannel::Port, 2, SHORT), "tree");
        }
        for channel in [TestChannel::Memory, TestChannel::Port] {
            let all_but_naive = &Algorithm::ALL[..Algorithm::ALL.len() - 1];
            assert_eq!(distinct(Operation::AllReduce, channel, 2, SHORT), all_but_naive);
        }
    }

    #[test]
    fn what_goes_by_messages_has_no_algorithms() {
        for channel in [TestChannel::Memory, TestChannel::Port] {
            assert!(distinct(Operation::Send, channel, 2, 8).is_empty());
            assert!(distinct(Operation::AllToAllV, channel, 3, 8).is_empty());
        }
    }
}
