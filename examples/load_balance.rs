//! Ranks share tasks of unequal length by one counter: whoever is free takes the next one. The same
//! tasks are then dealt out in rounds, each of which an `all_reduce` ends, and both times are told.
//!
//! Run it alone (`cargo run --release --example load_balance`), or under `shmccl run -n N -- ...`.
//! `load_balance.c` and `load_balance.py` are the same program.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::time::Instant;

use shmccl::launch::launch;
use shmccl::reduce::ReduceOp;
use shmccl::symmetric::{Comparison, WordSignal};
use shmccl::{Collectives, Rank};

const TASKS: u64 = 2000;

/// Tasks of a rank in a round.
const DEALT: u64 = 16;

/// Counts the steps from `start` to 1: halves what is even, and makes `3n + 1` of what is odd.
fn steps(start: u64) -> u64 {
    let next = |n: &u64| Some(if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 });
    std::iter::successors(Some(start), next).take_while(|n| *n != 1).count() as u64
}

/// One task in eight takes 30 times as long as the others.
fn result_of(task: u64) -> u64 {
    let count = if task % 8 == task / 8 % 8 { 600 } else { 20 };
    (1..=count).map(|start| steps(task + start)).sum()
}

fn main() -> shmccl::Result<()> {
    launch(4, |comm| {
        // Rank 0 has the words that count: the next task, the sum of all results, and who is done.
        let words = comm.alloc::<u64>(3)?;
        let [next, sum, done] = [0, 1, 2].map(|index| words.part(index, 1).map(|word| word.offset));
        let (next, sum, done) = (next?, sum?, done?);
        let all = comm.symmetric();
        let home = Rank::new(0, comm.n_ranks())?;

        comm.barrier()?;
        let start = Instant::now();
        let mut taken = 0;
        loop {
            let task: u64 = all.fetch_add(home, next, 1)?;
            if task >= TASKS {
                break;
            }
            all.add(home, sum, result_of(task))?;
            taken += 1;
        }
        all.signal(home, WordSignal::add(done, 1))?;
        if comm.rank() == home {
            all.wait_until(done, Comparison::Equal, u64::from(comm.n_ranks()))?;
        }
        let by_atomics = start.elapsed();

        comm.barrier()?;
        let start = Instant::now();
        let (rank, in_round) = (u64::from(comm.rank().get()), DEALT * u64::from(comm.n_ranks()));
        let (mut first, mut total) = (0, 0);
        while first < TASKS {
            let mine = first + rank * DEALT..(first + (rank + 1) * DEALT).min(TASKS);
            let mut results = [mine.map(result_of).sum::<u64>()];
            comm.all_reduce_in_place(&mut results, &ReduceOp::Sum)?;
            (first, total) = (first + in_round, total + results[0]);
        }
        let by_collectives = start.elapsed();

        let shares = comm.alloc::<u64>(comm.n_ranks() as usize)?;
        comm.all_gather(&[taken], &shares)?;
        if comm.rank() == home {
            let expected: u64 = (0..TASKS).map(result_of).sum();
            assert_eq!((words.get(1)?, total), (expected, expected), "the sum is not that of one rank alone");
            println!(
                "load balance, {} ranks have taken {:?} of {TASKS} tasks, sum as computed alone: \
                 {:.2} ms by atomics, {:.2} ms in rounds of all_reduce",
                comm.n_ranks(),
                shares.to_vec(),
                by_atomics.as_secs_f64() * 1e3,
                by_collectives.as_secs_f64() * 1e3
            );
        }
        Ok(())
    })
    .map(drop)
}
