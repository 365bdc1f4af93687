//! Which algorithms differ for an operation: some leave it to another one.

use shmccl::collective::tuning::ONE_SHOT_LEN;
use shmccl::collective::{Algorithm, Operation};

use crate::perf::test::TestChannel;

/// Returns the algorithms that differ for `operation` over `channel` among `n_ranks`, where a rank
/// contributes `len` bytes.
pub(crate) fn distinct(operation: Operation, channel: TestChannel, n_ranks: u32, len: u64) -> Vec<Algorithm> {
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
        assert_eq!(direct(Operation::Gather, 2, 8), "one_shot two_shot");
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
            for operation in [Operation::AllToAll, Operation::Gather, Operation::Scatter] {
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
