//! How many elements an operation moves at a size, where they lie, and how its bandwidth is
//! counted, as in nccl-tests.
//!
//! An `all_to_all_v` among n ranks is cut into n (n + 1) / 2 parts of what a rank sends. Of these,
//! 1 + (r + s) mod n go from rank r to rank s; a remainder goes to the longest blocks. So the
//! blocks of a rank have all lengths from one part to n, and all ranks send and receive equally
//! much. Two ranks send each other as much, which an exchange in place needs. In the `alltoallv` of
//! rccl-tests, too, lengths depend on sums of ranks. Bandwidths are counted as there: as if the
//! blocks were of one length.

use shmccl::collective::Operation;

/// The sizes of the buffers of one operation at one size, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CaseLayout {
    operation: Operation,
    n_ranks: u64,
    /// Elements of a block, or the mean of blocks of several lengths; what nccl-tests prints as the
    /// count.
    pub(crate) block: u64,
}

impl CaseLayout {
    /// Makes the layout that `bytes` of elements of `size` bytes have room for. Sizes that the
    /// ranks do not divide are rounded down.
    pub(crate) fn new(operation: Operation, bytes: u64, size: u64, n_ranks: u64) -> Self {
        let (send, recv) = blocks(operation, n_ranks);
        Self { operation, n_ranks, block: bytes / size / send.max(recv).max(1) }
    }

    /// Returns the elements of the input of a rank, or of the root where only the root has one.
    pub(crate) fn send(self) -> u64 {
        blocks(self.operation, self.n_ranks).0 * self.block
    }

    /// Returns the elements of the output of a rank, or of the root where only the root has one.
    pub(crate) fn recv(self) -> u64 {
        blocks(self.operation, self.n_ranks).1 * self.block
    }

    /// Returns the elements of the larger of both.
    pub(crate) fn largest(self) -> u64 {
        self.send().max(self.recv())
    }

    /// Returns where block number `index` starts in the input of `rank`, or in its output, and its
    /// elements.
    pub(crate) fn part(self, rank: u64, index: u64) -> (u64, u64) {
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
    pub(crate) fn send_in_place(self, rank: u64) -> u64 {
        if self.send() < self.recv() { rank * self.block } else { 0 }
    }

    /// Returns where `rank` has its output in a buffer that is its input as well.
    pub(crate) fn recv_in_place(self, rank: u64) -> u64 {
        if self.recv() < self.send() { rank * self.block } else { 0 }
    }
}

/// Returns the blocks of the input and of the output of a rank.
pub(crate) fn blocks(operation: Operation, n_ranks: u64) -> (u64, u64) {
    match operation {
        Operation::Send => (1, 1),
        Operation::AllToAllV => (n_ranks, n_ranks),
        _ => operation.blocks(n_ranks),
    }
}

/// Returns the factor from the bandwidth of an operation to that of the links that it keeps busy.
pub(crate) fn bus_factor(operation: Operation, n_ranks: u32) -> f64 {
    let others = f64::from(n_ranks - 1) / f64::from(n_ranks);
    match operation {
        Operation::AllReduce => 2.0 * others,
        Operation::AllGather
        | Operation::ReduceScatter
        | Operation::AllToAll
        | Operation::AllToAllV
        | Operation::Gather
        | Operation::Scatter => others,
        _ => 1.0,
    }
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
}
