//! What devices do until some of them are killed, and how the others go on.

use shmccl::collective::ChannelKind;
use shmccl::comm::{Collectives, Group, Member, join_job};
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Error, Result};

use crate::device::{Neighbours, open, say};
use crate::now;

/// The body of a device process.
pub(crate) fn be_a_survivor() {
    let Ok(Some(Member::Device(comm))) = join_job() else { return };
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

/// Does one kind of operation until it fails.
fn work(comm: &mut Communicator, kind: &str, mode: &str) -> Result<()> {
    if mode != "direct" {
        comm.set_channel_kind(ChannelKind::Port)?;
    }
    let mut channels = open(comm, mode)?;
    let buffer = comm.alloc::<f32>(1 << 19)?;
    loop {
        operate(comm, kind, &mut channels, &buffer)?;
    }
}

fn operate(
    comm: &mut Communicator,
    kind: &str,
    [right, left]: &mut Neighbours,
    buffer: &DeviceBuffer<f32>,
) -> Result<()> {
    let (here, there) = (buffer.part(0, 1 << 14)?, buffer.part(1 << 18, 1 << 14)?);
    match kind {
        "all_reduce" => comm.all_reduce_in_place(&comm.buffer::<f32>(buffer.part(0, 2)?)?, &ReduceOp::Sum),
        "large all_reduce" => comm.all_reduce_in_place(buffer, &ReduceOp::Sum),
        "ordinary" => comm.all_reduce_in_place(&mut vec![1.0_f32; 1 << 17], &ReduceOp::Sum),
        "all_to_all" => {
            let blocks = vec![1.0_f32; 1000 * comm.n_ranks() as usize];
            comm.all_to_all(&blocks, &mut vec![0.0_f32; blocks.len()])
        }
        "send_recv" => {
            let (sent, mut received) = ([1.0_f32; 5000], [0.0_f32; 5000]);
            let (next, previous) = (comm.right(), comm.left());
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).send(&sent, next)?;
            group.on(joined).recv(&mut received, previous)?;
            group.end()
        }
        "put" => {
            right.put_with_signal(there.offset, here.offset, here.len)?;
            left.wait()
        }
        "alloc" => {
            let buffer = comm.alloc::<u64>(1000)?;
            comm.free(buffer)
        }
        _ => comm.barrier(),
    }
}

/// Adds up in the new epoch, so that the bits tell who takes part and in which order.
pub(crate) fn compute(comm: &mut Communicator, numbers: &[u32]) -> Result<()> {
    const COUNT: usize = 1000;
    let term = |number: u32, index: usize| 0.1_f32 * (number + 1) as f32 + index as f32 / 7.0;
    let mut sums: Vec<_> = (0..COUNT).map(|index| term(numbers[comm.rank().index()], index)).collect();
    comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum)?;
    for (index, sum) in sums.iter().enumerate() {
        let exact: f64 = numbers.iter().map(|number| f64::from(term(*number, index))).sum();
        assert!((f64::from(*sum) - exact).abs() <= 1e-5 * exact, "{sum} at {index}, expected {exact}");
    }
    let bits = sums
        .iter()
        .fold(0_u64, |hash, sum| hash.rotate_left(5) ^ u64::from(sum.to_bits()).wrapping_mul(0x9e37_79b9));
    say(&format!("sum {bits:x} {}", now()));
    comm.barrier()
}
