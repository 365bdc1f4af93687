//! How many elements an operation moves at a size, where they lie, and how its bandwidth is counted: as nccl-tests does.

use shmccl::collective::Operation;

/// The buffers of one operation at one size, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    operation: Operation,
    n_ranks: u64,
    /// Elements of a block; what nccl-tests prints as the count.
    pub(crate) block: u64,
}

impl Layout {
    /// The layout that `bytes` of elements of `size` bytes have room for; sizes that the ranks do not divide are rounded down.
    pub(crate) fn new(operation: Operation, bytes: u64, size: u64, n_ranks: u64) -> Self {
        let (send, recv) = blocks(operation, n_ranks);
        Self { operation, n_ranks, block: bytes / size / send.max(recv).max(1) }
    }

    /// Elements of the input of a rank, or of the root where only it has one.
    pub(crate) fn send(self) -> u64 {
        blocks(self.operation, self.n_ranks).0 * self.block
    }

    /// Elements of the output of a rank, or of the root where only it has one.
    pub(crate) fn recv(self) -> u64 {
        blocks(self.operation, self.n_ranks).1 * self.block
    }

    /// Elements of the larger of both.
    pub(crate) fn largest(self) -> u64 {
        self.send().max(self.recv())
    }

    /// Where `rank` has its input in a buffer that is its output as well: in its own block, if it sends one block.
    pub(crate) fn send_in_place(self, rank: u64) -> u64 {
        if self.send() < self.recv() { rank * self.block } else { 0 }
    }

    /// Where `rank` has its output in a buffer that is its input as well.
    pub(crate) fn recv_in_place(self, rank: u64) -> u64 {
        if self.recv() < self.send() { rank * self.block } else { 0 }
    }
}

/// Blocks of the input and of the output of a rank, which receives as much as it sends where it does both.
fn blocks(operation: Operation, n_ranks: u64) -> (u64, u64) {
    if operation == Operation::Send { (1, 1) } else { operation.blocks(n_ranks) }
}

/// By how much the bandwidth of an operation is multiplied to tell that of the links that it keeps busy.
pub(crate) fn bus_factor(operation: Operation, n_ranks: u32) -> f64 {
    let others = f64::from(n_ranks - 1) / f64::from(n_ranks);
    match operation {
        Operation::AllReduce => 2.0 * others,
        Operation::AllGather
        | Operation::ReduceScatter
        | Operation::AllToAll
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
        let layout = |operation| Layout::new(operation, 1000, 4, 3);
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
    fn bus_bandwidth_is_counted_as_nccl_tests_counts_it() {
        let factor = |operation| bus_factor(operation, 4);
        assert_eq!(factor(Operation::AllReduce), 1.5);
        assert_eq!(factor(Operation::AllGather), 0.75);
        assert_eq!(factor(Operation::Gather), 0.75);
        assert_eq!((factor(Operation::Reduce), factor(Operation::Broadcast)), (1.0, 1.0));
    }
}
