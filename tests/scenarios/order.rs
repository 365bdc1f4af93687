//! Calls of a group that share memory: which of them have an order, and what is refused. The oracle
//! (`oracle::shared`) draws all those that have one.

use shmccl::reduce::ReduceOp;
use shmccl::{Blocks, Collectives, Communicator, Error, Group, Result};

use crate::harness::Job;

/// Whether a group was refused that has calls without an order.
fn is_refused(ended: &Result<()>) -> bool {
    matches!(ended, Err(Error::InvalidArgument { name, .. }) if name.contains("memory"))
}

/// Two buffers of `count` ones.
fn ones(comm: &mut Communicator, count: usize) -> Result<[shmccl::heap::DeviceBuffer<u32>; 2]> {
    let both = [comm.alloc::<u32>(count)?, comm.alloc::<u32>(count)?];
    both.iter().for_each(|buffer| buffer.fill(1));
    Ok(both)
}

scenario!(a_message_before_a_collective_call_shares_memory_with_it_only_if_both_read, Job::of(2), |comm| {
    let (other, n) = (comm.right(), comm.n_ranks());
    let [x, y] = ones(comm, 8)?;
    let z = comm.alloc::<u32>(8)?;
    // What is sent is overwritten later, and what is received is read.
    for is_sent in [true, false] {
        let mut group = Group::start();
        let joined = group.join(comm);
        if is_sent {
            group.on(joined).send(&x, other)?;
            group.on(joined).all_reduce(&y, &x, &ReduceOp::Sum)?;
            group.on(joined).recv(&z, other)?;
        } else {
            group.on(joined).recv(&y, other)?;
            group.on(joined).send(&x, other)?;
            group.on(joined).all_reduce(&y, &z, &ReduceOp::Sum)?;
        }
        let ended = group.end();
        assert!(is_refused(&ended), "{ended:?}");
        assert_eq!((x.get(0)?, y.get(0)?, z.get(0)?), (1, 1, 0), "nothing has moved");
    }
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).send(&x, other)?;
    group.on(joined).all_reduce(&x, &y, &ReduceOp::Sum)?;
    group.on(joined).recv(&z, other)?;
    group.end()?;
    assert_eq!((y.get(7)?, z.get(7)?), (n, 1), "both have read");
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_reduce_in_place(&x, &ReduceOp::Sum)?;
    group.on(joined).send(&x, other)?;
    group.on(joined).recv(&y, other)?;
    group.end()?;
    assert_eq!(y.get(7)?, n, "the message comes behind the call");
});

/// Executes a group of an exchange of blocks and of messages that share memory with it.
fn exchange_and_pass_on(
    comm: &mut Communicator,
    [x, out, got]: [&shmccl::heap::DeviceBuffer<u32>; 3],
    is_started: bool,
) -> Result<()> {
    let (peer, block) = (comm.right(), x.len() / comm.n_ranks() as usize);
    let (counts, displacements) = (vec![block; 2], vec![0, block]);
    let blocks = || Blocks::new(&counts, &displacements);
    if is_started {
        let work = comm.start(
            |_| (),
            |calls| {
                calls.all_to_all_v(x, blocks(), out, blocks())?;
                calls.send(out, peer)?;
                calls.recv(got, peer)
            },
        )?;
        return work.wait();
    }
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_to_all_v(x, blocks(), out, blocks())?;
    group.on(joined).send(out, peer)?;
    group.on(joined).recv(got, peer)?;
    group.end()
}

scenario!(a_message_behind_an_exchange_of_blocks_has_what_that_has_brought, Job::of(2), |comm| {
    let me = comm.rank().get();
    for count in [2, 128, 20_000] {
        let buffers: Vec<_> = (0..3).map(|_| comm.alloc::<u32>(count)).collect::<Result<_>>()?;
        let [x, out, got] = [&buffers[0], &buffers[1], &buffers[2]];
        for turn in 1..10 {
            x.fill(1000 * me + turn);
            exchange_and_pass_on(comm, [x, out, got], turn % 2 == 0)?;
            let expected = |index: usize| if index < count / 2 { turn } else { 1000 + turn };
            let all = got.to_vec();
            assert!(all.iter().enumerate().all(|(at, &value)| value == expected(at)), "{count} {turn}");
        }
    }
});

scenario!(started_calls_without_an_order_are_refused_as_they_are_started, Job::of(2), |comm| {
    let other = comm.right();
    let [x, y] = ones(comm, 8)?;
    let started = comm.start(
        |_| (),
        |calls| {
            calls.send(&x, other)?;
            calls.recv(&y, other)?;
            calls.all_reduce_in_place(&y, &ReduceOp::Sum)
        },
    );
    assert!(is_refused(&started.map(|_| ())));
    comm.all_reduce_in_place(&x, &ReduceOp::Sum)?;
    assert_eq!(x.get(0)?, 2);
});

scenario!(communicators_of_a_group_share_memory_only_where_all_of_them_read, Job::of(2), |comm| {
    let mut copy = comm.duplicate()?;
    let [x, y] = ones(comm, 8)?;
    let z = comm.alloc::<u32>(8)?;
    let mut both = |second: [&shmccl::heap::DeviceBuffer<u32>; 2]| {
        let mut group = Group::start();
        let (first, other) = (group.join(comm), group.join(&mut copy));
        group.on(first).all_reduce(&x, &y, &ReduceOp::Sum)?;
        group.on(other).all_reduce(second[0], second[1], &ReduceOp::Max)?;
        group.end()
    };
    for second in [[&y, &z], [&z, &x], [&z, &y]] {
        let ended = both(second);
        assert!(is_refused(&ended), "{ended:?}");
        assert_eq!((x.get(0)?, y.get(0)?), (1, 1), "nothing has moved");
    }
    both([&x, &z])?;
    assert_eq!((y.get(7)?, z.get(7)?), (2, 1));
});

scenario!(parts_of_one_buffer_that_lie_apart_are_fused_and_exchanged_as_ever, Job::of(3), |comm| {
    // Blocks of the exchange lie between those that are reduced.
    let (n, me) = (comm.n_ranks() as usize, comm.rank().index());
    let whole = comm.alloc::<u32>(4 * n)?;
    let part = |at: usize, len: usize| comm.buffer::<u32>(whole.part(at, len)?);
    let [sums, all] = [part(0, 1)?, part(0, 4 * n)?];
    let displacements: Vec<_> = (0..n).map(|rank| 4 * rank + 2).collect();
    let counts = vec![1; n];
    all.fill(u32::try_from(me).unwrap() + 1);
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).all_to_all_v_in_place(&all, Blocks::new(&counts, &displacements))?;
    group.on(joined).all_reduce_in_place(&sums, &ReduceOp::Sum)?;
    group.end()?;
    let got = all.to_vec();
    assert!(displacements.iter().zip(1..).all(|(&at, from)| got[at] == from), "{got:?}");
    assert_eq!(got[0], 6);
});
