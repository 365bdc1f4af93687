//! Memory that each rank allocates by itself, as operand of everything that ranks do together.

use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::collective::{Algorithm, ChannelKind, Operation};
use shmccl::comm::{self, CollectiveCall, Submit};
use shmccl::heap::{DeviceBuffer, HeapOffset, Region};
use shmccl::proxy::{Transfer, TransferLen};
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::shm::packet::{PacketFlag, PacketKind};
use shmccl::{Arena, ArenaBuffer, Collectives, Communicator, Error, Group, Result};

use crate::collectives::{Buffers, CallCase, OPERATIONS};
use crate::harness::{Job, Random, is_lost, pattern, rank};

/// Takes what this rank alone does before its buffers, so that they lie elsewhere on each rank.
fn shifted(comm: &Communicator) -> Result<ArenaBuffer<u8>> {
    comm.arena().alloc(100 + 5000 * comm.rank().index())
}

/// The offsets of the buffers of all ranks, which differ.
fn offsets<T: bytemuck::Pod>(comm: &mut Communicator, buffer: &DeviceBuffer<T>) -> Result<Vec<HeapOffset>> {
    let mut all = vec![0; comm.n_ranks() as usize];
    comm.all_gather(&[buffer.region().offset.get()], &mut all)?;
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    Ok(all.into_iter().map(HeapOffset::new).collect())
}

const COUNTS: [usize; 6] = [0, 1, 2, 23, 2049, 100_003];

/// Every operation by every algorithm that can do it, on buffers at different offsets.
fn everything(comm: &mut Communicator, kind: ChannelKind) -> Result<()> {
    let (me, n) = (comm.rank().index(), comm.n_ranks() as usize);
    comm.set_channel_kind(kind)?;
    let _shift = shifted(comm)?;
    let most = n * COUNTS[COUNTS.len() - 1];
    let (send_buffer, recv_buffer) = (comm.arena().alloc::<f32>(most)?, comm.arena().alloc::<f32>(most)?);
    offsets(comm, &send_buffer)?;
    let names = Algorithm::OPERATIONS;
    for (which, (send, recv, run)) in OPERATIONS.into_iter().enumerate() {
        let able = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(names[which]));
        for algorithm in std::iter::once(None).chain(able.map(Some)) {
            comm.set_algorithm(algorithm);
            for (round, count) in COUNTS.into_iter().enumerate() {
                let case = CallCase { round, me, n, count };
                let (input, expected) = (send(case), recv(case));
                send_buffer.copy_from_slice(0, &input)?;
                recv_buffer.fill(f32::NAN);
                let sent = comm.buffer::<f32>(send_buffer.part(0, input.len())?)?;
                let received = comm.buffer::<f32>(recv_buffer.part(0, expected.len())?)?;
                run(comm, case, Buffers::Heap(&sent, &received))?;
                assert!(
                    received.to_vec() == expected,
                    "operation {which}: {count} elements by {algorithm:?}"
                );
            }
        }
    }
    comm.set_algorithm(None);
    Ok(())
}

port_scenario!(operations_take_buffers_of_arenas_by_all_algorithms, Job::of(3).heap_len(32 << 20), |comm| {
    everything(comm, ChannelKind::Memory)?;
    everything(comm, ChannelKind::Port)?;
});

scenario!(
    two_ranks_reduce_words_and_long_buffers_of_arenas_in_place,
    Job::of(2).heap_len(64 << 20),
    |comm| {
        let _shift = shifted(comm)?;
        for count in [1, 2, 3, 1000, 1_000_003] {
            let buffer = comm.arena().alloc::<f64>(count)?;
            // The third time the call is known.
            for round in 1..4 {
                buffer.fill(f64::from(round * (1 + comm.rank().get())));
                comm.all_reduce_in_place(&buffer, &ReduceOp::Sum)?;
                assert!(
                    buffer.to_vec().iter().all(|sum| *sum == f64::from(3 * round)),
                    "{count} in round {round}"
                );
            }
        }
    }
);

port_scenario!(messages_of_all_lengths_go_between_arenas, Job::of(2).heap_len(32 << 20), |comm| {
    let _shift = shifted(comm)?;
    for kind in [ChannelKind::Memory, ChannelKind::Port] {
        comm.set_channel_kind(kind)?;
        for len in [0, 1, 100, 5000, 70_000, 1_000_001] {
            let (sent, received) = (comm.arena().alloc::<u8>(len)?, comm.arena().alloc::<u8>(len)?);
            let me = u64::from(comm.rank().get());
            sent.copy_from_slice(0, &pattern(me, len))?;
            let peer = comm.right();
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).send(&sent, peer)?;
            group.on(joined).recv(&received, peer)?;
            group.end()?;
            assert!(received.to_vec() == pattern(1 - me, len), "{len} bytes over {kind} channels");
        }
    }
});

channel_scenario!(
    a_buffer_that_one_rank_has_made_alone_is_put_into,
    Job::of(2).heap_len(64 << 20),
    |comm, open| {
        let mut channel = open(comm, comm.right())?;
        let told = comm.alloc::<u64>(1)?;
        for len in [1, 64, 4096, 3 << 20] {
            // Rank 0 alone allocates, and tells of it by a signal.
            let here = if comm.rank().get() == 0 { Some(comm.arena().alloc::<u8>(len)?) } else { None };
            if let Some(buffer) = &here {
                comm.memory_channel(comm.right())?
                    .write(told.region().offset, buffer.region().offset.get())?;
                channel.signal()?;
                channel.wait()?;
                assert!(buffer.to_vec() == pattern(3, len), "{len} bytes");
            } else {
                channel.wait()?;
                let source = comm.arena().alloc::<u8>(len)?;
                source.copy_from_slice(0, &pattern(3, len))?;
                let there = HeapOffset::new(told.get(0)?);
                channel.put_with_signal_and_flush(there, source.region().offset, len as u64)?;
                let beyond = HeapOffset::new(there.get() - (2 << 20) - len as u64);
                let out = channel.put(beyond, source.region().offset, 1);
                assert!(matches!(out, Err(Error::OutOfRange { .. })), "{out:?}");
            }
            comm.barrier()?;
        }
        comm.free(told)?;
    }
);

port_scenario!(registered_memory_packets_gets_and_switches_reach_arenas, Job::of(2), |comm| {
    let _shift = shifted(comm)?;
    let (peer, me) = (comm.right(), comm.rank().get());
    let (source, target) = (comm.arena().alloc::<u8>(4096)?, comm.arena().alloc::<u8>(16 << 10)?);
    source.copy_from_slice(0, &pattern(me.into(), 4096))?;
    let (sources, targets) = (offsets(comm, &source)?, offsets(comm, &target)?);
    let theirs = |offsets: &[HeapOffset], len| Region::new(offsets[peer.index()], len);

    let (from, to) =
        (comm.register(comm.rank(), source.region())?, comm.register(peer, theirs(&targets, 16 << 10))?);
    let mut port = comm.port_channel(peer)?;
    port.put_registered(Transfer {
        len: TransferLen::new(4096).unwrap(),
        source: from,
        source_offset: 0,
        target: to,
        target_offset: 100,
    })?;
    port.signal()?;
    port.flush()?;
    port.wait()?;
    assert!(target.to_vec()[100..4196] == pattern((1 - me).into(), 4096));
    comm.unregister(from)?;
    comm.unregister(to)?;
    comm.barrier()?;

    let mut direct = comm.memory_channel(peer)?;
    direct.get(target.region().offset, sources[peer.index()], 4096)?;
    assert!(target.to_vec()[..4096] == pattern((1 - me).into(), 4096));
    comm.barrier()?;
    let packets = HeapOffset::new(targets[peer.index()].get());
    direct.put_packets(PacketKind::Ll8, packets, source.region().offset, 4096, PacketFlag::FIRST)?;
    let unpacked = comm.arena().alloc::<u8>(4096)?;
    let (into, from) = (unpacked.region().offset, target.region().offset);
    direct.unpack_packets(PacketKind::Ll8, into, from, 4096, PacketFlag::FIRST)?;
    assert!(unpacked.to_vec() == pattern((1 - me).into(), 4096));

    let words = comm.arena().alloc::<u32>(1000)?;
    words.fill(me + 1);
    let mut switch = comm.switch_channel(&words)?;
    switch.barrier()?;
    switch.reduce_broadcast(switch.share(1000), &ReduceOp::Sum)?;
    switch.barrier()?;
    assert!(words.to_vec().iter().all(|sum| *sum == 3));
    comm.barrier()?;
});

/// Allocates and frees at random until told to stop, and checks that nobody else writes there.
fn churn(arena: &Arena, seed: u64, stop: &std::sync::atomic::AtomicBool) {
    let (mut random, mut kept) = (Random(seed), Vec::<(ArenaBuffer<u8>, u8)>::new());
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let mark = u8::try_from(random.below(256)).unwrap();
        match arena.alloc::<u8>(usize::try_from(random.below(100_000)).unwrap()) {
            Ok(buffer) => {
                buffer.fill(mark);
                kept.push((buffer, mark));
            }
            Err(error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
        }
        if kept.len() > 12 {
            let (buffer, mark) = kept.swap_remove(usize::try_from(random.below(12)).unwrap());
            assert!(buffer.to_vec().iter().all(|byte| *byte == mark));
        }
    }
}

scenario!(
    threads_allocate_and_free_in_any_order_while_collective_calls_run,
    Job::of(3).heap_len(32 << 20).timeout(Duration::from_secs(60)),
    |comm| {
        let (arena, me) = (comm.arena(), u64::from(comm.rank().get()));
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (arena, stop) = (&arena, &stop);
                scope.spawn(move || churn(arena, 100 * me + thread, stop));
            }
            let done = rounds(comm, me);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            done
        })?;
        assert_eq!(comm.arena().usage().live, 0);
    }
);

/// Makes calls on buffers that come and go, symmetric ones among them.
fn rounds(comm: &mut Communicator, me: u64) -> Result<()> {
    let mut random = Random(me);
    for round in 0..60_u64 {
        let count = usize::try_from(1 + round * round * 37 % 50_000).unwrap();
        let _shift = comm.arena().alloc::<u8>(usize::try_from(random.below(100_000)).unwrap())?;
        let (input, output) = (comm.arena().alloc::<u64>(count)?, comm.arena().alloc::<u64>(count)?);
        let symmetric = comm.alloc::<u64>(count)?;
        input.fill(me + round);
        comm.all_reduce(&input, &output, &ReduceOp::Sum)?;
        comm.all_reduce(&output, &symmetric, &ReduceOp::Max)?;
        assert!(symmetric.to_vec().iter().all(|sum| *sum == 3 + 3 * round), "round {round}");
        comm.free(symmetric)?;
    }
    Ok(())
}

scenario!(
    an_arena_that_leaves_no_room_on_one_rank_fails_an_allocation_on_all,
    Job::of(2).heap_len(8 << 20),
    |comm| {
        let last = comm.rank().get() == 1;
        let large = if last { Some(comm.arena().alloc::<u8>(5 << 20)?) } else { None };
        let error = comm.alloc::<u8>(4 << 20).unwrap_err();
        match &large {
            Some(_) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
            None => assert!(
                matches!(error, Error::FailedElsewhere { operation: "alloc", rank } if rank.get() == 1)
            ),
        }
        drop(large);
        let all = comm.alloc::<u8>(4 << 20)?;
        let error = comm.arena().alloc::<u8>(5 << 20).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { len, .. } if len <= 4 << 20), "{error}");
        comm.free(all)?;
    }
);

scenario!(addresses_are_found_in_the_heaps_of_members, Job::of(3), |comm| {
    let _shift = shifted(comm)?;
    let (local, symmetric) = (comm.arena().alloc::<u64>(100)?, comm.alloc::<u64>(100)?);
    let address = |buffer: &DeviceBuffer<u64>| buffer.span().start().addr().get();
    for buffer in [&*local, &symmetric] {
        assert_eq!(comm.region_of(address(buffer), 800), Some(buffer.region()));
        assert_eq!(comm.place_of(address(buffer), 800), Some((comm.rank(), buffer.region())));
        let again = comm.buffer::<u64>(comm.region_of(address(buffer) + 8, 16).unwrap())?;
        again.fill(5);
        assert_eq!(buffer.get(2)?, 5);
    }
    let peer = comm.right();
    let theirs = comm.span(peer, symmetric.region())?.start().addr().get();
    assert_eq!(comm.place_of(theirs, 800), Some((peer, symmetric.region())));
    assert_eq!(comm.region_of(theirs, 800), None);
    let ordinary = [0_u64; 4];
    assert_eq!(comm.place_of(ordinary.as_ptr().addr(), 32), None);
    // In a derived communicator ranks have other numbers, and some are no members.
    let pair = comm.split(Some(u32::from(comm.rank().get() == 0)), -i64::from(comm.rank().get()))?.unwrap();
    if pair.n_ranks() == 2 {
        assert_eq!(pair.place_of(address(&symmetric), 8).unwrap().0, pair.rank());
        assert_eq!(pair.members(), [rank(comm, 2), rank(comm, 1)]);
        let of_first = comm.span(rank(comm, 0), symmetric.region())?.start().addr().get();
        assert_eq!(pair.place_of(of_first, 8), None);
    }
    drop(pair);
    comm.barrier()?;
    comm.free(symmetric)?;
});

scenario!(
    buffers_of_an_epoch_that_has_ended_keep_their_bytes_and_are_unknown_to_the_next,
    Job::of(3).heap_len(16 << 20).broken(),
    |comm| {
        let _shift = shifted(comm)?;
        let (arena, buffer) = (comm.arena(), comm.arena().alloc::<u32>(1000)?);
        buffer.fill(7);
        comm.barrier()?;
        if comm.rank().get() == 1 {
            return Ok(());
        }
        let lost = comm.all_reduce_in_place(&buffer, &ReduceOp::Sum).unwrap_err();
        // The other one may have noticed first, and ended the epoch.
        let is_revoked = matches!(lost, Error::Revoked { .. });
        assert!(is_revoked || is_lost(&lost, rank(comm, 1)), "{lost}");
        let mut on = comm.shrink()?.comm;
        let address = buffer.span().start().addr().get();
        assert_eq!((on.region_of(address, 4000), on.place_of(address, 4000)), (None, None));
        assert_eq!(comm.region_of(address, 4000), Some(buffer.region()));
        // Its memory is no heap's, so it is refused, or else the new heap's own.
        assert!(matches!(on.buffer::<u32>(buffer.region()), Err(Error::OutOfRange { .. })));
        let fresh = on.arena().alloc::<u32>(1000)?;
        fresh.fill(1);
        on.all_reduce_in_place(&fresh, &ReduceOp::Sum)?;
        assert_eq!(fresh.to_vec()[..6], [2; 6]);
        on.finalize()?;
        // Allocation goes on, though nobody else looks at it.
        assert_eq!(arena.alloc::<u32>(1)?.to_vec(), [0]);
        buffer.set(0, 8)?;
        assert_eq!(buffer.get(0)?, 8);
    }
);

#[test]
fn buffers_and_arenas_outlive_a_communicator_that_is_finalized() {
    let comm = Communicator::init_all(1).unwrap().remove(0);
    let (arena, buffer) = (comm.arena(), comm.arena().alloc::<u8>(100).unwrap());
    buffer.fill(3);
    comm.finalize().unwrap();
    assert_eq!(buffer.to_vec(), [3; 100]);
    buffer.fill(4);
    let other = arena.alloc::<u8>(100).unwrap();
    assert_ne!(other.region(), buffer.region());
    drop(buffer);
    assert_eq!(arena.usage().live, 1);
}

scenario!(what_calls_stage_of_ordinary_memory_is_counted_and_nothing_of_the_heap, Job::of(2), |comm| {
    let (mut ordinary, buffer) = (vec![1.0_f64; 50_000], comm.arena().alloc::<f64>(50_000)?);
    let peer = comm.right();
    let mut counts = vec![comm.staged_bytes()];
    for _ in 0..3 {
        comm.all_reduce_in_place(&buffer, &ReduceOp::Max)?;
        comm.all_gather_in_place(&buffer)?;
    }
    counts.push(comm.staged_bytes());
    comm.all_reduce_in_place(&mut ordinary, &ReduceOp::Max)?;
    counts.push(comm.staged_bytes());
    let first = rank(comm, 0);
    comm.broadcast_in_place(&mut ordinary, first)?;
    counts.push(comm.staged_bytes());
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).send(&ordinary, peer)?;
    group.on(joined).recv(&buffer, peer)?;
    group.end()?;
    counts.push(comm.staged_bytes());
    let root = if comm.rank() == first { 400_000 } else { 0 };
    let steps: Vec<_> = counts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(steps, [0, 400_000, root, 400_000]);
});

scenario!(a_buffer_of_an_epoch_before_is_no_operand, Job::of(2).broken(), |comm| {
    let (own, of_all) = (comm.arena().alloc::<u32>(10)?, comm.alloc::<u32>(10)?);
    comm.barrier()?;
    comm.revoke();
    let mut later = comm.shrink()?.comm;
    let first = rank(&later, 0);
    let refused = [
        later.all_reduce_in_place(&own, &ReduceOp::Sum),
        later.all_gather(&of_all, &mut [0; 20]),
        later.submit(CollectiveCall {
            root: first,
            ..CollectiveCall::new(Operation::Broadcast, DataType::U32, comm::Buffers::in_place(&of_all))
        }),
    ];
    for refused in refused {
        let name = "the offset of a buffer";
        assert!(
            matches!(refused, Err(Error::InvalidArgument { name: told, .. }) if told == name),
            "{refused:?}"
        );
    }
    own.fill(7);
    let mut seven = own.to_vec();
    later.all_reduce_in_place(&mut seven, &ReduceOp::Sum)?;
    assert_eq!(seven, [14; 10]);
});
