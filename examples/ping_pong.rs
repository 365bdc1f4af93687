//! Two device processes pass a counter back and forth through each other's memory.
//!
//! Run it alone (`cargo run --release --example ping_pong`), or under `shmccl run -n 2 -- ...`.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::time::Instant;

use shmccl::channel::Channel;
use shmccl::launch::launch;

const ROUNDS: u64 = 100_000;

fn main() -> shmccl::Result<()> {
    launch(2, |comm| {
        // Collective: the same offset on every rank. Slot 0 is what I send, slot 1 what I receive.
        let slots = comm.alloc::<u64>(2)?;
        if comm.rank().get() > 1 {
            return Ok(()); // a third rank only watches
        }
        let peer = shmccl::Rank::new(1 - comm.rank().get(), comm.n_ranks())?;
        let mut channel = comm.memory_channel(peer)?;
        let (outgoing, incoming) = (slots.part(0, 1)?.offset, slots.part(1, 1)?.offset);
        let serves = comm.rank().get() == 0;

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
            println!("{ROUNDS} round trips, {one_way} ns one way");
        }
        Ok(())
    })
    .map(drop)
}
