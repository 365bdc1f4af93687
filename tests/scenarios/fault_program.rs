//! A small program of three ranks with some of every operation, to be struck by faults.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shmccl::bootstrap::Options;
use shmccl::channel::Channel;
use shmccl::collective::{ChannelKind, CustomAlgorithm, Operation, Steps};
use shmccl::comm::{Collectives, Group};
use shmccl::launch::spawn_threads;
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Rank, Result};

/// A directory of a test's own that goes with this. Nothing is there to begin with.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        // A failed run may have left it whose process had the same number.
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An algorithm of the user's own: everybody sends the block of each rank to it.
pub(crate) struct Exchange;

impl CustomAlgorithm for Exchange {
    fn name(&self) -> &str {
        "exchange"
    }

    fn run(&self, steps: &mut Steps<'_>) -> Result<()> {
        let (n, block) = (steps.n_ranks(), steps.output().len() / u64::from(steps.n_ranks()));
        let (input, output, me) = (steps.input(), steps.output(), steps.rank().get());
        let place = |rank: u32| u64::from(rank) * block;
        let others: Vec<_> =
            (1..n).map(|distance| Rank::new((me + distance) % n, n)).collect::<Result<_, _>>()?;
        steps.copy(input.part(place(me), block)?, output.part(place(me), block)?)?;
        let mut at = 0;
        while at < block {
            let len = steps.longest_message().min(block - at);
            for &to in &others {
                steps.send(to, input.part(place(to.get()) + at, len)?)?;
            }
            for &from in &others {
                let message = steps.receive(from, len)?;
                steps.copy(message, output.part(place(from.get()) + at, len)?)?;
                steps.release(from)?;
            }
            at += len;
        }
        Ok(())
    }
}

/// Does some of every operation, in a job of three ranks. Its checkpoint is in `directory`.
pub(crate) fn all_operations(comm: &mut Communicator, directory: &Path) -> Result<()> {
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
    let mut switch = comm.switch_channel(&buffer)?;
    switch.reduce_broadcast(switch.share(buffer.len()), &ReduceOp::Max)?;
    switch.barrier()?;
    drop(switch);
    comm.register_algorithm(Operation::AllToAll, Arc::new(Exchange))?;
    comm.all_to_all(&[1_u32; 3 * 1000], &mut [0; 3 * 1000])?;
    let mut twin = comm.duplicate()?;
    twin.all_to_all(&[1_u32; 3 * 1000], &mut [0; 3 * 1000])?;
    twin.finalize()?;
    comm.checkpoint(directory)?;
    comm.restore(directory)?;
    comm.free(buffer)?;
    comm.barrier()
}

/// How many operations each rank does in `all_operations` and the end of the job.
pub(crate) fn count_operations() -> u64 {
    let faults = "delay:one_in=1,time=0ns".parse().unwrap();
    let options = Options { heap_len: 16 << 20, faults, ..Options::default() };
    let scratch = Scratch::new("count-operations");
    // Every operation is struck, by a delay of nothing.
    let comms = Communicator::init_all_with(3, &options).unwrap();
    let counts = spawn_threads(comms, |_, mut comm| {
        all_operations(&mut comm, scratch.path())?;
        let count = comm.fault_hits().len() as u64;
        comm.finalize()?;
        Ok(count + 1)
    })
    .unwrap();
    assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "{counts:?}");
    counts[0]
}
