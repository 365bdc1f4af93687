//! Which algorithms are ways of their own: some leave an operation to another one where they have nothing to add.

use shmccl::collective::tuning::ONE_SHOT_LEN;
use shmccl::collective::{Algorithm, Operation};

/// The algorithms that do `operation` among `n_ranks` each in its own way, where a rank contributes `len` bytes.
pub(crate) fn ways(operation: Operation, n_ranks: u32, len: u64) -> Vec<Algorithm> {
    let differs = |algorithm: &Algorithm| match (algorithm, operation) {
        // Past what travels with the announcement this is naive.
        (Algorithm::OneShot, Operation::Reduce | Operation::Broadcast) => len <= ONE_SHOT_LEN,
        // Where these need a power of two, they leave it to the ring otherwise.
        (Algorithm::RecursiveDoubling, Operation::AllGather)
        | (Algorithm::HalvingDoubling, Operation::ReduceScatter) => n_ranks.is_power_of_two(),
        _ => true,
    };
    Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(operation)).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_left_to_another_is_no_way_of_its_own() {
        let has = |algorithm, operation, n_ranks, len| ways(operation, n_ranks, len).contains(&algorithm);
        for (algorithm, operation) in [
            (Algorithm::HalvingDoubling, Operation::ReduceScatter),
            (Algorithm::RecursiveDoubling, Operation::AllGather),
        ] {
            assert!(has(algorithm, operation, 4, 1 << 20) && !has(algorithm, operation, 3, 1 << 20));
        }
        for operation in [Operation::Reduce, Operation::Broadcast] {
            assert!(has(Algorithm::OneShot, operation, 2, ONE_SHOT_LEN));
            assert!(!has(Algorithm::OneShot, operation, 2, ONE_SHOT_LEN + 1));
        }
        assert!(has(Algorithm::OneShot, Operation::AllReduce, 3, 1 << 20));
        assert!(!has(Algorithm::Ring, Operation::Gather, 2, 8));
    }
}
