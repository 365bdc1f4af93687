//! A small program of three ranks with some of every operation, to be struck by faults.

use shmccl::bootstrap::Options;
use shmccl::channel::Channel;
use shmccl::collective::ChannelKind;
use shmccl::comm::{Collectives, Group};
use shmccl::launch::spawn_threads;
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Rank, Result};

/// Some of every operation, in a job of three ranks.
pub(crate) fn all_sorts(comm: &mut Communicator) -> Result<()> {
    let buffer = comm.alloc::<u32>(1 << 13)?;
    let channels: [Box<dyn Channel>; 2] =
        [Box::new(comm.memory_channel(comm.right())?), Box::new(comm.memory_channel(comm.left())?)];
    let proxied: [Box<dyn Channel>; 2] =
        [Box::new(comm.port_channel(comm.right())?), Box::new(comm.port_channel(comm.left())?)];
    let (here, there) = (buffer.part(0, 64)?.offset, buffer.part(64, 64)?.offset);
    for [right, left] in &mut [channels, proxied] {
        right.put(there, here, 256)?;
        right.signal()?;
        right.put_with_signal_and_flush(there, here, 256)?;
        left.wait()?;
        left.wait()?;
        right.flush()?;
    }
    comm.barrier()?;
    comm.all_reduce_in_place(&comm.buffer::<u32>(buffer.part(0, 1)?)?, &ReduceOp::Sum)?;
    comm.all_reduce_in_place(&buffer, &ReduceOp::Sum)?;
    comm.all_reduce_in_place(&mut vec![1_u32; 1 << 14], &ReduceOp::Sum)?;
    let (sent, mut received) = ([1_u32; 3000], [0_u32; 3000]);
    let (next, previous) = (comm.right(), comm.left());
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).send(&sent, next)?;
    group.on(joined).recv(&mut received, previous)?;
    group.end()?;
    comm.set_channel_kind(ChannelKind::Port)?;
    comm.broadcast(&buffer, &buffer, Rank::new(1, comm.n_ranks())?)?;
    let mut half = comm.split(Some(0), 0)?.expect("all have a colour");
    half.barrier()?;
    half.finalize()?;
    comm.free(buffer)?;
    comm.barrier()
}

/// How many operations each rank does in `all_sorts` and the end of the job.
pub(crate) fn count_operations() -> u64 {
    let faults = "delay:one_in=1,time=0ns".parse().unwrap();
    let options = Options { heap_len: 16 << 20, faults, ..Options::default() };
    // Every operation is struck, by a delay of nothing.
    let comms = Communicator::init_all_with(3, &options).unwrap();
    let counts = spawn_threads(comms, |_, mut comm| {
        all_sorts(&mut comm)?;
        let count = comm.strikes().len() as u64;
        comm.finalize()?;
        Ok(count + 1)
    })
    .unwrap();
    assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "{counts:?}");
    counts[0]
}
