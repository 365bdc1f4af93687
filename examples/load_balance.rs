//! Ranks share tasks of unequal length by one counter: whoever is free takes the next one.
//!
//! Run it alone (`cargo run --release --example load_balance`), or under `shmccl run -n N -- ...`.

#![allow(clippy::print_stdout, reason = "examples print")]

use shmccl::launch::launch;
use shmccl::symmetric::{Comparison, WordSignal};

const TASKS: u64 = 10_000;

/// Counts the steps from `start` to 1: halves what is even, and makes `3n + 1` of what is odd.
fn steps(start: u64) -> u64 {
    let next = |n: &u64| Some(if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 });
    std::iter::successors(Some(start), next).take_while(|n| *n != 1).count() as u64
}

fn main() -> shmccl::Result<()> {
    launch(4, |comm| {
        // Rank 0 has the words that count: the next task, the sum of all results, and who is done.
        let words = comm.alloc::<u64>(3)?;
        let [next, sum, done] = [0, 1, 2].map(|index| words.part(index, 1).map(|word| word.offset));
        let (next, sum, done) = (next?, sum?, done?);
        let all = comm.symmetric();
        let home = shmccl::Rank::new(0, comm.n_ranks())?;

        let mut taken = 0;
        loop {
            let task: u64 = all.fetch_add(home, next, 1)?;
            if task >= TASKS {
                break;
            }
            all.add(home, sum, steps(task + 1))?;
            taken += 1;
        }
        all.signal(home, WordSignal::add(done, 1))?;
        println!("rank {} has taken {taken} of {TASKS} tasks", comm.rank());

        if comm.rank() == home {
            all.wait_until(done, Comparison::Equal, u64::from(comm.n_ranks()))?;
            assert_eq!(words.get(1)?, (1..=TASKS).map(steps).sum::<u64>());
        }
        Ok(())
    })
    .map(drop)
}
