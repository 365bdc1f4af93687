//! What devices do until some of them are killed, and how the others go on.

use shmccl::comm::{Collectives, JoinedAs, join_job};
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Error, Result};

use crate::kill::device::say;
use crate::kill::now;
use crate::kill::work::work;

/// The body of a device process.
pub(crate) fn be_a_survivor() {
    let Ok(Some(JoinedAs::Device(comm))) = join_job() else { return };
    let (kind, mode) = (std::env::var("SURVIVE_KIND").unwrap(), std::env::var("SURVIVE_MODE").unwrap());
    // Who this and the others were in the beginning.
    let numbers: Vec<_> = (0..comm.n_ranks()).collect();
    let mut comm = *comm;
    say(&format!("up {}", std::process::id()));
    let outcome = work(&mut comm, &kind, &mode);
    carry_on(comm, numbers, outcome);
    say("done");
}

/// Goes on from `outcome` and computes until nobody is lost any more.
pub(crate) fn carry_on(mut comm: Communicator, mut numbers: Vec<u32>, mut outcome: Result<()>) {
    loop {
        match outcome {
            Err(Error::PeerLost { rank }) => say(&format!("lost {} {}", numbers[rank.index()], now())),
            Err(error) => panic!("{error}"),
            Ok(()) => break,
        }
        let shrunk = comm.shrink().unwrap();
        let lost: Vec<_> = shrunk.lost.iter().map(|rank| numbers[rank.index()]).collect();
        say(&format!("on {} {}", lost.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), now()));
        numbers.retain(|number| !lost.contains(number));
        comm = shrunk.comm;
        outcome = compute(&mut comm, &numbers);
    }
    // A victim that is killed only now is nobody's concern any more.
    let _ = comm.finalize();
}

/// Adds up in the new epoch, says what has come of it, and waits for the others.
pub(crate) fn compute(comm: &mut Communicator, numbers: &[u32]) -> Result<()> {
    let bits = sum_up(comm, numbers)?;
    say(&format!("sum {bits:x} {}", now()));
    comm.barrier()
}

/// Adds up so that the bits tell who takes part and in which order, and returns a hash of them.
pub(crate) fn sum_up(comm: &mut Communicator, numbers: &[u32]) -> Result<u64> {
    const COUNT: usize = 1000;
    let term = |number: u32, index: usize| 0.1_f32 * (number + 1) as f32 + index as f32 / 7.0;
    let mut sums: Vec<_> = (0..COUNT).map(|index| term(numbers[comm.rank().index()], index)).collect();
    comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum)?;
    for (index, sum) in sums.iter().enumerate() {
        // In the documented order, that of the ranks.
        let terms = numbers.iter().map(|number| term(*number, index));
        let expected = terms.reduce(|sum, next| sum + next).expect("somebody has survived");
        assert_eq!(sum.to_bits(), expected.to_bits(), "{sum} at {index}, expected {expected}");
    }
    let mix = |hash: u64, sum: &f32| hash.rotate_left(5) ^ u64::from(sum.to_bits()).wrapping_mul(0x9e37_79b9);
    Ok(sums.iter().fold(0, mix))
}
