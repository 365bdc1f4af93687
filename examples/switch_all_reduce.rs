//! An all-reduce over a switch channel, as a switch does it that reduces and multicasts. Each rank
//! loads its share of the elements from all buffers at once, combined, and stores it to all buffers
//! at once. Two barriers around that suffice. The result is compared with that of the library's own
//! all-reduce, bit for bit.
//!
//! Run it alone (`cargo run --release --example switch_all_reduce`), or under
//! `shmccl run -n N -- ...` for any N.

#![allow(clippy::print_stdout, reason = "examples print")]

use shmccl::Collectives;
use shmccl::comm::SwitchChannel;
use shmccl::launch::launch;
use shmccl::reduce::ReduceOp;

const COUNT: usize = 1 << 20;

/// Leaves the sum of all ranks' buffers in each of them.
fn all_reduce(switch: &mut SwitchChannel<f32>) -> shmccl::Result<()> {
    switch.barrier()?; // everybody has written its input
    switch.reduce_broadcast(switch.share(COUNT), &ReduceOp::Sum)?;
    switch.barrier() // everybody has stored its share
}

fn main() -> shmccl::Result<()> {
    launch(2, |comm| {
        let me = comm.rank();
        let input: Vec<f32> = (0..COUNT).map(|i| ((i * 31 + me.index() * 17) % 1000) as f32 / 7.0).collect();
        let mut expected = vec![0.0; COUNT];
        comm.all_reduce(&input, &mut expected, &ReduceOp::Sum)?;

        let buffer = comm.alloc::<f32>(COUNT)?;
        let mut switch = comm.switch_channel(&buffer)?;
        buffer.copy_from_slice(0, &input)?;
        all_reduce(&mut switch)?;
        assert!(buffer.to_vec() == expected, "rank {me}: differs from the library's all_reduce");

        // An all-reduce by hand: a share is loaded, and then stored.
        switch.barrier()?;
        buffer.copy_from_slice(0, &input)?;
        switch.barrier()?;
        let share = switch.share(COUNT);
        let mut sum = vec![0.0; share.len()];
        switch.reduce(share.start, &mut sum, &ReduceOp::Sum)?;
        switch.broadcast(share.start, &sum)?;
        switch.barrier()?;
        assert!(buffer.to_vec() == expected, "rank {me}: differs when it is done in two steps");

        comm.barrier()?;
        if me.get() == 0 {
            println!(
                "{COUNT} floats of {} ranks: every bit as the library's all_reduce has it",
                comm.n_ranks()
            );
        }
        Ok(())
    })
    .map(drop)
}
