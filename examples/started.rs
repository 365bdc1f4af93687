//! Sums while something else is computed, and what it costs to start a sum and wait for it at once:
//! the mean of a call, of the same call started and waited for, and of many that are started before
//! the first wait.
//!
//! Run it alone (`cargo run --release --example started`), or under `shmccl run -n N -- ...` for
//! any N.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::time::{Duration, Instant};

use shmccl::heap::DeviceBuffer;
use shmccl::launch::launch;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Result, Work};

/// Rounds, in which all ways take turns: the best one counts.
const ROUNDS: usize = 20;

/// Operations that are started before the first wait.
const AHEAD: usize = 64;

/// Starts a sum. Nothing has to be kept alive for it but the heap.
fn start(comm: &mut Communicator, sums: &DeviceBuffer<f32>) -> Result<Work> {
    comm.start(|_| (), |calls| calls.all_reduce_in_place(sums, &ReduceOp::Sum))
}

fn call(comm: &mut Communicator, sums: &DeviceBuffer<f32>) -> Result<()> {
    (0..AHEAD).try_for_each(|_| comm.all_reduce_in_place(sums, &ReduceOp::Sum))
}

fn start_and_wait(comm: &mut Communicator, sums: &DeviceBuffer<f32>) -> Result<()> {
    (0..AHEAD).try_for_each(|_| start(comm, sums)?.wait())
}

fn start_many(comm: &mut Communicator, sums: &DeviceBuffer<f32>) -> Result<()> {
    let started = (0..AHEAD).map(|_| start(comm, sums)).collect::<Result<Vec<_>>>()?;
    started.iter().try_for_each(Work::wait)
}

type Way = fn(&mut Communicator, &DeviceBuffer<f32>) -> Result<()>;

fn main() -> Result<()> {
    launch(2, |comm| {
        let ways: [(&str, Way); 3] =
            [("call", call), ("start, wait", start_and_wait), ("start all, wait", start_many)];
        for count in [2, 256, 16 << 10, 1 << 20] {
            let sums = comm.alloc::<f32>(count)?;
            let mut best = [Duration::MAX; 3];
            for _ in 0..ROUNDS {
                for ((_, way), best) in ways.iter().zip(&mut best) {
                    sums.fill(0.0);
                    comm.barrier()?;
                    let begun = Instant::now();
                    way(comm, &sums)?;
                    *best = begun.elapsed().min(*best);
                }
            }
            if comm.rank().get() == 0 {
                let times = ways.iter().zip(best);
                let times = times.map(|((name, _), best)| format!("{name} {:?}", best / 64));
                println!("{:>8} bytes: {}", 4 * count, times.collect::<Vec<_>>().join(", "));
            }
            comm.free(sums)?;
        }

        // Gradients of one layer are summed while those of the next are computed.
        let layers: Vec<_> = (0..8).map(|_| comm.alloc::<f32>(1 << 16)).collect::<Result<_>>()?;
        let mut started = Vec::new();
        for (number, layer) in (1_u8..).zip(&layers) {
            layer.fill(number.into());
            started.push(start(comm, layer)?);
        }
        started.iter().try_for_each(Work::wait)?;
        for (number, layer) in (1_u8..).zip(&layers) {
            assert_eq!(layer.get(1000)?, comm.n_ranks() as f32 * f32::from(number));
        }
        Ok(())
    })
    .map(drop)
}
