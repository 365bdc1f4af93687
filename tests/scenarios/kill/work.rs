//! What devices do, over and over, until some of them are killed.

use std::path::PathBuf;
use std::sync::Arc;

use shmccl::channel::{Channel, MemoryChannel};
use shmccl::collective::{ChannelKind, Operation};
use shmccl::comm::{Blocks, Collectives, Group};
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::shm::packet::{PacketFlag, PacketKind};
use shmccl::{Communicator, Error, Rank, Result, Work};

use crate::fault_program::Exchange;
use crate::kill::device::{Neighbours, open};

/// What it is. The first has a fifo full of puts.
pub(crate) const KINDS: [&str; 28] = [
    "flood",
    "all_reduce",
    "large all_reduce",
    "ordinary",
    "all_to_all",
    "send_recv",
    "put",
    "barrier",
    "alloc",
    "arena",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_to_all_v",
    "all_to_all_v in place",
    "get",
    "packets",
    "stream",
    "started",
    "split",
    "group",
    "switch",
    "custom",
    "derived",
    "checkpoint",
];

/// The variable that says where checkpoints are.
pub(crate) const DIRECTORY: &str = "WORK_DIRECTORY";

pub(crate) fn told_directory() -> PathBuf {
    std::env::var_os(DIRECTORY).expect("the launcher tells where checkpoints are").into()
}

/// The elements of a block, where each rank has one.
const BLOCK: usize = 3000;

/// Does one kind of operation until it fails.
pub(crate) fn work(comm: &mut Communicator, kind: &str, mode: &str) -> Result<()> {
    if mode != "direct" {
        comm.set_channel_kind(ChannelKind::Port)?;
    }
    let mut channels = open(comm, mode)?;
    let buffer = comm.alloc::<f32>(1 << 19)?;
    match kind {
        "get" | "packets" => return by_own_core(comm, kind, &buffer),
        "stream" => return by_stream(comm, &buffer),
        "started" => return started(comm, &buffer),
        "switch" => return by_switch(comm, &buffer),
        "derived" => return by_derived(comm, &buffer),
        "checkpoint" => return to_directory(comm),
        // From here on all calls of the kind are executed so.
        "custom" => comm.register_algorithm(Operation::AllToAll, Arc::new(Exchange))?,
        _ => {}
    }
    for round in 0.. {
        // Each rank is the root in turn.
        let root = Rank::new(round % comm.n_ranks(), comm.n_ranks())?;
        match kind {
            "broadcast" | "reduce" | "gather" | "scatter" => rooted(comm, kind, root, &buffer)?,
            "flood" => flood(&mut channels, &buffer)?,
            "put" => put(&mut channels, &buffer)?,
            _ => operate(comm, kind, &buffer)?,
        }
    }
    Ok(())
}

fn put([right, left]: &mut Neighbours, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let (here, there) = (buffer.part(0, 1 << 14)?, buffer.part(1 << 18, 1 << 14)?);
    right.put_with_signal(there.offset, here.offset, here.len)?;
    left.wait()
}

/// Puts so many at a time, and so long ones, that a proxy has some milliseconds to do.
fn flood([right, left]: &mut Neighbours, buffer: &DeviceBuffer<f32>) -> Result<()> {
    const PUTS: u32 = 200;
    let (here, there) = (buffer.part(0, 1 << 16)?, buffer.part(1 << 18, 1 << 16)?);
    (0..PUTS).try_for_each(|_| right.put_with_signal(there.offset, here.offset, here.len))?;
    (0..PUTS).try_for_each(|_| left.wait())
}

fn rooted(comm: &mut Communicator, kind: &str, root: Rank, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let mut blocks = vec![1.0_f32; BLOCK * comm.n_ranks() as usize];
    let mut block = vec![2.0_f32; BLOCK];
    match kind {
        "broadcast" => comm.broadcast_in_place(buffer, root),
        "reduce" => comm.reduce_in_place(buffer, &ReduceOp::Sum, root),
        "gather" => comm.gather(&block, &mut blocks, root),
        _ => comm.scatter(&blocks, &mut block, root),
    }
}

fn operate(comm: &mut Communicator, kind: &str, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let n_ranks = comm.n_ranks() as usize;
    let mut blocks = vec![1.0_f32; BLOCK * n_ranks];
    let mut block = vec![2.0_f32; BLOCK];
    match kind {
        "all_reduce" => comm.all_reduce_in_place(&few(comm, buffer)?, &ReduceOp::Sum),
        "large all_reduce" => comm.all_reduce_in_place(buffer, &ReduceOp::Sum),
        "ordinary" => comm.all_reduce_in_place(&mut vec![1.0_f32; 1 << 17], &ReduceOp::Sum),
        "all_gather" => comm.all_gather(&block, &mut blocks),
        "reduce_scatter" => comm.reduce_scatter(&blocks, &mut block, &ReduceOp::Sum),
        "all_to_all" | "custom" => comm.all_to_all(&blocks, &mut vec![0.0_f32; BLOCK * n_ranks]),
        "all_to_all_v" => {
            let (counts, places) = (vec![BLOCK; n_ranks], (0..n_ranks).map(|rank| rank * BLOCK));
            let places: Vec<_> = places.collect();
            let each = Blocks::new(&counts, &places);
            comm.all_to_all_v(&blocks, each, &mut vec![0.0_f32; BLOCK * n_ranks], each)
        }
        "all_to_all_v in place" => {
            // More than has room between two ranks.
            let most = (1 << 19) / n_ranks;
            let (counts, places) = (vec![most; n_ranks], (0..n_ranks).map(|rank| rank * most));
            let places: Vec<_> = places.collect();
            comm.all_to_all_v_in_place(buffer, Blocks::new(&counts, &places))
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
        "group" => {
            let (mut first, mut second) = ([1.0_f64; 3], [1_u32; 200]);
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).all_reduce_in_place(&mut first, &ReduceOp::Max)?;
            group.on(joined).all_gather(&block, &mut blocks)?;
            group.on(joined).all_reduce_in_place(&mut second, &ReduceOp::Sum)?;
            group.end()
        }
        "alloc" => {
            let buffer = comm.alloc::<u64>(1000)?;
            comm.free(buffer)
        }
        "arena" => {
            let _shift = comm.arena().alloc::<u8>(100 * comm.rank().index())?;
            let (input, output) = (comm.arena().alloc::<f32>(1 << 15)?, comm.arena().alloc::<f32>(1 << 15)?);
            comm.all_reduce(&input, &output, &ReduceOp::Sum)?;
            comm.all_gather(&block, &comm.arena().alloc::<f32>(BLOCK * n_ranks)?)
        }
        "split" => {
            let color = comm.rank().get() % 2;
            let half = comm.split(Some(color), 0)?;
            half.expect("it has named a colour").all_reduce_in_place(&mut [1.0_f32; 10], &ReduceOp::Sum)
        }
        "barrier" => comm.barrier(),
        other => panic!("{other} is no kind of work"),
    }
}

fn few(comm: &Communicator, buffer: &DeviceBuffer<f32>) -> Result<DeviceBuffer<f32>> {
    comm.buffer(buffer.part(0, 2)?)
}

/// What is done by direct channels alone.
fn by_own_core(comm: &mut Communicator, kind: &str, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let mut channels: [MemoryChannel; 2] =
        [comm.memory_channel(comm.right())?, comm.memory_channel(comm.left())?];
    // In a ring of two both neighbours are one rank, which opens its channels in the same order.
    if comm.n_ranks() == 2 && comm.rank().get() == 1 {
        channels.reverse();
    }
    let [right, left] = &mut channels;
    let (own, far) = (buffer.part(0, 1 << 12)?, buffer.part(1 << 18, 1 << 14)?);
    let mut flag = PacketFlag::FIRST;
    loop {
        if kind == "get" {
            right.get(own.offset, far.offset, own.len)?;
            comm.barrier()?;
            continue;
        }
        right.put_packets(PacketKind::Ll8, far.offset, own.offset, own.len, flag)?;
        left.unpack_packets(PacketKind::Ll8, own.offset, far.offset, own.len, flag)?;
        // The next packets take the place of those that were unpacked.
        left.signal()?;
        right.wait()?;
        flag = flag.next();
    }
}

fn by_stream(comm: &mut Communicator, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let (stream, few, root) = (comm.stream()?, few(comm, buffer)?, Rank::new(0, comm.n_ranks())?);
    loop {
        let reduced = stream.on(comm).all_reduce_in_place(&few, &ReduceOp::Sum);
        let enqueued = reduced.and_then(|()| stream.on(comm).broadcast_in_place(buffer, root));
        let done = enqueued.and_then(|()| stream.synchronise());
        done.map_err(|error| match *error.origin() {
            Error::PeerLost { rank } => Error::PeerLost { rank },
            _ => error,
        })?;
    }
}

/// What is started, and waited for in another order: calls of all ranks, and messages beside them.
fn started(comm: &mut Communicator, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let (few, sent) = (few(comm, buffer)?, comm.buffer::<f32>(buffer.part(1 << 17, 1 << 15)?)?);
    let received = comm.buffer::<f32>(buffer.part(1 << 18, 1 << 15)?)?;
    let (mut messages, right, left) = (comm.duplicate()?, comm.right(), comm.left());
    loop {
        let works = [
            messages.start(|_| (), |calls| calls.recv(&received, left))?,
            comm.start(|_| (), |calls| calls.all_reduce_in_place(&few, &ReduceOp::Sum))?,
            messages.start(|_| (), |calls| calls.send(&sent, right))?,
            comm.start(|_| (), |calls| calls.all_reduce_in_place(&few, &ReduceOp::Sum))?,
        ];
        works.iter().rev().try_for_each(Work::wait).map_err(|error| match *error.origin() {
            Error::PeerLost { rank } => Error::PeerLost { rank },
            _ => error,
        })?;
    }
}

/// What is done with all members' buffers as if they were one.
fn by_switch(comm: &mut Communicator, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let shared = comm.buffer::<f32>(buffer.part(0, 1 << 17)?)?;
    let mut switch = comm.switch_channel(&shared)?;
    let (mine, mut sums) = ([1.0_f32; BLOCK], vec![0.0_f32; 1 << 15]);
    loop {
        switch.broadcast(comm.rank().index() * BLOCK, &mine)?;
        switch.barrier()?;
        switch.reduce(0, &mut sums, &ReduceOp::Sum)?;
        switch.barrier()?;
        switch.reduce_broadcast(switch.share(shared.len()), &ReduceOp::Max)?;
        switch.barrier()?;
    }
}

/// What is done in communicators of all ranks and of every other one, again and again in the same
/// ones.
fn by_derived(comm: &mut Communicator, buffer: &DeviceBuffer<f32>) -> Result<()> {
    let mut all = comm.duplicate()?;
    let half = comm.split(Some(comm.rank().get() % 2), 0)?;
    let mut half = half.expect("it has named a colour");
    loop {
        all.all_reduce_in_place(buffer, &ReduceOp::Max)?;
        half.all_reduce_in_place(&mut [1.0_f32; BLOCK], &ReduceOp::Sum)?;
        half.broadcast_in_place(buffer, Rank::new(0, half.n_ranks())?)?;
        all.barrier()?;
    }
}

fn to_directory(comm: &mut Communicator) -> Result<()> {
    let directory = told_directory();
    loop {
        comm.checkpoint(&directory)?;
        comm.restore(&directory)?;
    }
}
