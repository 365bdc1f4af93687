//! Training that survives a death: the launcher restarts the dead rank, and the others take it
//! back.
//!
//! Three ranks fit a line to points, of which each has its own, step by step, all with the same
//! weights. In step 40 one of them dies. The survivors say which step they have completed. A
//! callback tells all ranks the least of these steps, and they go on from there. The restarted rank
//! gets the weights from a survivor. The result is bit for bit that of a run without a death.
//!
//! It starts its own ranks, or is started by `shmccl run -n 3 --restart 1 -- elastic`.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::sync::mpsc;

use shmccl::comm::Recovery;
use shmccl::launch::Launch;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Rank, Result};

const STEPS: u64 = 100;
const DEADLY_STEP: u64 = 40;
const RATE: f64 = 0.2;

/// Slope and intercept.
type Weights = [f64; 2];

/// The weights after the last step and after the one before. No rank is further ahead of the
/// others.
type History = [(u64, Weights); 2];

fn main() -> Result<()> {
    Launch::new(3)?.restart(1).run(train).map(drop)
}

fn train(comm: &mut Communicator) -> Result<()> {
    // It is called on all ranks: on a survivor within `recover`, on a restarted rank here.
    let (tell, told) = mpsc::channel();
    let (rank, ranks) = (comm.rank(), comm.n_ranks());
    comm.on_recovery(move |recovery| _ = tell.send(resume(recovery, rank, ranks)));
    let mut history: History = [(0, [0.0; 2]); 2];
    loop {
        // Another death may come at any time, in taking up the work, too.
        let taken_up = told.try_iter().last().map_or(Ok(()), |resume| take_up(comm, resume?, &mut history));
        match taken_up.and_then(|()| descend(comm, &mut history)) {
            Ok(()) => break,
            Err(Error::PeerLost { .. }) => *comm = comm.recover(history[0].0)?,
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
fn descend(comm: &mut Communicator, history: &mut History) -> Result<()> {
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

/// Returns the step that all survivors have completed, and one of these.
fn resume(recovery: &Recovery, rank: Rank, ranks: u32) -> Result<(u64, Rank)> {
    let (step, restarted) = (recovery.sequence, &recovery.restarted);
    let back: Vec<_> = restarted.iter().map(|rank| format!("rank {rank}")).collect();
    println!("rank {rank}: {} back, on from step {step}", back.join(" and "));
    let survivor = (0..ranks).find(|rank| !restarted.iter().any(|it| it.get() == *rank));
    Ok((step, Rank::new(survivor.expect("one has invited the others"), ranks)?))
}

/// Goes back to that step, with the weights that the survivor has.
fn take_up(comm: &mut Communicator, (step, survivor): (u64, Rank), history: &mut History) -> Result<()> {
    let weights = history.iter().find(|(completed, _)| *completed == step).map_or([0.0; 2], |it| it.1);
    let mut agreed = [0.0; 2];
    comm.broadcast(&weights, &mut agreed, survivor)?;
    *history = [(step, agreed); 2];
    Ok(())
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
