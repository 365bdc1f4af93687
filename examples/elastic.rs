//! Training that survives a death: the launcher starts the dead rank again, and the others take it back.
//!
//! Three ranks fit a line to points of which each has its own, step by step, all with the same weights. In step 40 one of them
//! dies. Those who are left say which step they have completed, all are told the least of these, and go on from there; the rank
//! that was started again gets the weights from one that was not. The result is that of a run in which nobody dies, to the bit.
//!
//! It starts its own ranks, or is started by `shmccl run -n 3 --restart 1 -- elastic`.

#![allow(clippy::print_stdout, reason = "examples print")]

use shmccl::launch::Launch;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Rank, Result};

const STEPS: u64 = 100;
const DEADLY_STEP: u64 = 40;
const RATE: f64 = 0.2;

/// Slope and intercept.
type Weights = [f64; 2];

fn main() -> Result<()> {
    Launch::new(3)?.restart(1).run(train).map(drop)
}

fn train(comm: &mut Communicator) -> Result<()> {
    // The weights after the last step and after the one before: nobody is further ahead of the others.
    let mut history = [(0, [0.0; 2]); 2];
    if comm.recovery().is_some() {
        take_up(comm, &mut history)?;
    }
    loop {
        match descend(comm, &mut history) {
            Ok(()) => break,
            Err(Error::PeerLost { rank }) => {
                *comm = comm.recover(history[0].0)?;
                report(comm, rank);
                take_up(comm, &mut history)?;
            }
            Err(error) => return Err(error),
        }
    }
    if comm.rank().get() == 0 {
        let [slope, intercept] = history[0].1;
        println!("after {STEPS} steps: {slope:.6} x + {intercept:.6} (meant: 3 x + 1)");
    }
    Ok(())
}

/// Does the steps that are left.
fn descend(comm: &mut Communicator, history: &mut [(u64, Weights); 2]) -> Result<()> {
    while history[0].0 < STEPS {
        let (completed, weights) = history[0];
        if completed + 1 == DEADLY_STEP && comm.rank().get() == 1 && !comm.was_restarted() {
            std::process::abort();
        }
        let mut gradient = gradient(comm.rank(), weights);
        comm.all_reduce_in_place(&mut gradient, &ReduceOp::Sum)?;
        let ranks = f64::from(comm.n_ranks());
        let next = std::array::from_fn(|index| weights[index] - RATE * gradient[index] / ranks);
        *history = [(completed + 1, next), history[0]];
    }
    Ok(())
}

/// Goes back to the step that all have completed who survived, with the weights that these have.
fn take_up(comm: &mut Communicator, history: &mut [(u64, Weights); 2]) -> Result<()> {
    let recovery = comm.recovery().expect("somebody was brought back");
    let step = recovery.sequence();
    let survivor = (0..comm.n_ranks()).find(|rank| !recovery.restarted().iter().any(|it| it.get() == *rank));
    let survivor = Rank::new(survivor.expect("one has invited the others"), comm.n_ranks())?;
    let weights = history.iter().find(|(completed, _)| *completed == step).map_or([0.0; 2], |it| it.1);
    let mut agreed = [0.0; 2];
    comm.broadcast(&weights, &mut agreed, survivor)?;
    *history = [(step, agreed); 2];
    Ok(())
}

fn report(comm: &Communicator, lost: Rank) {
    let recovery = comm.recovery().expect("somebody was brought back");
    println!("rank {}: rank {lost} is back, on from step {}", comm.rank(), recovery.sequence());
}

/// Of the squared error over the points of this rank.
fn gradient(rank: Rank, [slope, intercept]: Weights) -> Weights {
    let points = (0..32).map(|index| f64::from(rank.get() + 3 * index) / 48.0 - 1.0);
    let mut sums = [0.0; 2];
    for x in points {
        let error = slope * x + intercept - (3.0 * x + 1.0);
        sums[0] += error * x / 16.0;
        sums[1] += error / 16.0;
    }
    sums
}
