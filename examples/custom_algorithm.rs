//! An all-reduce algorithm of the program's own. Partial sums go along a chain from the first rank
//! to the last one, and the result comes back. The library uses it for every `all_reduce`, for
//! buffers of any kind and over either kind of channel.
//!
//! Run it alone (`cargo run --release --example custom_algorithm`), or under
//! `shmccl run -n N -- ...` for any N.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::sync::Arc;

use shmccl::Collectives;
use shmccl::collective::{CustomAlgorithm, Operation, Steps};
use shmccl::launch::launch;
use shmccl::reduce::ReduceOp;

struct Chain;

impl CustomAlgorithm for Chain {
    fn name(&self) -> &str {
        "chain"
    }

    fn run(&self, steps: &mut Steps<'_>) -> shmccl::Result<()> {
        let (left, right) = (steps.left(), steps.right());
        let (is_first, is_last) = (left > steps.rank(), right < steps.rank());
        let len = steps.longest_message();
        for (mine, sum) in steps.input().parts(len).zip(steps.output().parts(len)) {
            if is_first {
                steps.combine(&[mine], sum, false)?;
            } else {
                let so_far = steps.receive(left, mine.len())?;
                // The last rank has the whole sum, so the operator's final step is done here.
                steps.combine(&[so_far, mine], sum, is_last)?;
            }
            if !is_last {
                steps.send(right, sum)?;
                // The right one has used what was sent by the time it answers.
                let result = steps.receive(right, sum.len())?;
                steps.copy(result, sum)?;
            }
            if !is_first {
                steps.send(left, sum)?;
            }
        }
        Ok(())
    }
}

fn main() -> shmccl::Result<()> {
    const COUNT: usize = 100_000;
    launch(3, |comm| {
        let (rank, n_ranks) = (u64::from(comm.rank().get()), u64::from(comm.n_ranks()));
        comm.register_algorithm(Operation::AllReduce, Arc::new(Chain))?;
        let mine: Vec<u64> = (0..COUNT as u64).map(|index| index * (rank + 1)).collect();
        let mut sums = vec![0; COUNT];
        comm.all_reduce(&mine, &mut sums, &ReduceOp::Sum)?;
        let factor = n_ranks * (n_ranks + 1) / 2;
        assert!(sums.iter().zip(0_u64..).all(|(sum, index)| *sum == index * factor));
        if rank == 0 {
            println!("{n_ranks} ranks have added up {COUNT} numbers along a chain, and every sum is right");
        }
        comm.unregister_algorithm(Operation::AllReduce)
    })
    .map(drop)
}
