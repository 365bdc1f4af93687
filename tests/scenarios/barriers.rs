//! All ranks meet.

use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::{Communicator, Error, Result};

use crate::harness::{Job, leave_together, meet_at_last};

const ROUNDS: u64 = 1000;

/// Every rank tells in its cell how far it is; nobody may be behind after a barrier, nor more than
/// one ahead.
fn meet_often(comm: &mut Communicator) -> Result<()> {
    let progress = comm.alloc::<u64>(128)?;
    let own = usize::try_from(comm.rank().get()).unwrap();
    let mut channels = Vec::new();
    for rank in 0..comm.n_ranks() {
        channels.push(comm.memory_channel(crate::harness::rank(comm, rank))?);
    }
    let mine = progress.part(own, 1)?.offset;
    for round in 1..=ROUNDS {
        for channel in &mut channels {
            channel.write(mine, round)?;
        }
        comm.barrier()?;
        for rank in 0..channels.len() {
            assert_eq!(progress.get(rank)?, round, "rank {rank}");
        }
        comm.barrier()?;
    }
    Ok(())
}

scenario!(one_rank_meets_itself, Job::of(1), |comm| {
    meet_often(comm)?;
});
scenario!(two_ranks_meet, Job::of(2), |comm| {
    meet_often(comm)?;
});
scenario!(three_ranks_meet, Job::of(3), |comm| {
    meet_often(comm)?;
});
scenario!(five_ranks_meet, Job::of(5), |comm| {
    meet_often(comm)?;
});
scenario!(eight_ranks_meet, Job::of(8), |comm| {
    meet_often(comm)?;
});

scenario!(
    a_barrier_that_timed_out_can_be_waited_for_again,
    Job::of(2).timeout(Duration::from_millis(20)).broken(),
    |comm| {
        if comm.rank().get() == 0 {
            // Rank 1 comes when it is told to, after the first try has failed.
            let mut channel = comm.memory_channel(comm.right())?;
            let error = comm.barrier().unwrap_err();
            let named = matches!(error, Error::Timeout { operation: "barrier", awaited: Some(rank), .. } if rank.get() == 1);
            assert!(named, "{error}");
            channel.signal()?;
        } else {
            let mut channel = comm.memory_channel(comm.left())?;
            while channel.wait().is_err() {}
        }
        meet_at_last(comm);
        leave_together(comm);
    }
);
