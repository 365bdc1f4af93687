//! Two device processes pass a counter back and forth through each other's memory: put, signal,
//! wait.
//!
//! Run it alone (`cargo run --release --example ping_pong`), or under `shmccl run -n N -- ...`.
//! Ranks 0 and 1 are a pair, 2 and 3 are, and so on. A rank without a partner only watches.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::time::Instant;

use shmccl::Rank;
use shmccl::channel::Channel;
use shmccl::launch::launch;

const ROUNDS: u64 = 100_000;

fn main() -> shmccl::Result<()> {
    launch(2, |comm| {
        // Collective: the same offset on every rank. Slot 0 is what I send, slot 1 what I receive.
        let slots = comm.alloc::<u64>(2)?;
        let rank = comm.rank();
        let Ok(peer) = Rank::new(rank.get() ^ 1, comm.n_ranks()) else {
            println!("rank {rank} has nobody to play with");
            return Ok(());
        };
        let mut channel = comm.memory_channel(peer)?;
        let (outgoing, incoming) = (slots.part(0, 1)?.offset, slots.part(1, 1)?.offset);
        let serves = rank < peer;

        let start = Instant::now();
        for round in 0..ROUNDS {
            if serves {
                slots.set(0, round)?;
                channel.put_with_signal(incoming, outgoing, 8)?;
                channel.wait()?;
                assert_eq!(slots.get(1)?, round + 1, "the peer adds one");
            } else {
                channel.wait()?;
                slots.set(0, slots.get(1)? + 1)?;
                channel.put_with_signal(incoming, outgoing, 8)?;
            }
        }
        if serves {
            let one_way = start.elapsed().as_nanos() / u128::from(2 * ROUNDS);
            println!("ranks {rank} and {peer}: {ROUNDS} round trips, {one_way} ns one way");
        }
        Ok(())
    })
    .map(drop)
}
