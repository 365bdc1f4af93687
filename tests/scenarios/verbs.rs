//! One-sided traffic and signals, the same over direct and proxied channels.

use shmccl::channel::{Channel, MAX_CHANNELS_PER_PEER, SEMAPHORE_LEN};
use shmccl::heap::HeapOffset;
use shmccl::{Error, Rank, Result};

use crate::harness::{Job, pattern, rank};

/// Lengths around everything that a copy treats differently.
const SIZES: [usize; 17] =
    [0, 1, 3, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097, 65_536, 65_537, 1 << 18, 1 << 20, (1 << 20) + 1];

/// Both sides have seen everything of this round.
fn meet(channel: &mut dyn Channel) -> Result<()> {
    channel.signal()?;
    channel.wait()
}

channel_scenario!(puts_of_every_size_arrive_whole_and_touch_nothing_else, Job::of(2), |comm, open| {
    const LEN: usize = (1 << 20) + 64;
    let (source, target) = (comm.alloc::<u8>(LEN)?, comm.alloc::<u8>(LEN)?);
    let peer = comm.right();
    let mut channel = open(comm, peer)?;
    for (round, len) in (0_u64..).zip(SIZES) {
        let (from, to) = (len % 7, len % 5 + 1);
        let mine = pattern(2 * round + u64::from(comm.rank().get()), len);
        source.copy_from_slice(from, &mine)?;
        target.fill(0xa5);
        meet(&mut *channel)?;
        channel.put_with_signal(target.part(to, len)?.offset, source.part(from, len)?.offset, len as u64)?;
        channel.wait()?;
        let mut expected = vec![0xa5; LEN];
        expected[to..to + len].copy_from_slice(&pattern(2 * round + u64::from(peer.get()), len));
        assert!(target.to_vec() == expected, "{len} bytes");
        channel.flush()?;
        meet(&mut *channel)?;
    }
});

channel_scenario!(a_signal_publishes_every_earlier_put_of_its_channel, Job::of(2), |comm, open| {
    const COUNT: usize = 100;
    let (source, target) = (comm.alloc::<u64>(COUNT)?, comm.alloc::<u64>(COUNT)?);
    let mut channel = open(comm, comm.right())?;
    for round in 0..50 {
        for index in 0..COUNT {
            source.set(index, round * 1000 + index as u64)?;
        }
        for index in (0..COUNT).rev() {
            channel.put(target.part(index, 1)?.offset, source.part(index, 1)?.offset, 8)?;
        }
        channel.signal()?;
        channel.wait()?;
        let expected: Vec<_> = (0..COUNT as u64).map(|index| round * 1000 + index).collect();
        assert_eq!(target.to_vec(), expected);
        // Now the source may be written again, and the peer has read what it was sent.
        channel.flush()?;
        meet(&mut *channel)?;
    }
});

channel_scenario!(a_flushed_source_may_be_written_again, Job::of(2), |comm, open| {
    const ROUNDS: usize = 300;
    let (source, target) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(ROUNDS)?);
    let mut channel = open(comm, comm.right())?;
    for round in 0..ROUNDS {
        source.set(0, round as u64)?;
        let (to, from) = (target.part(round, 1)?.offset, source.region().offset);
        if round % 2 == 0 {
            channel.put(to, from, 8)?;
            channel.flush()?;
        } else {
            channel.put_with_signal_and_flush(to, from, 8)?;
            channel.wait()?;
        }
    }
    meet(&mut *channel)?;
    assert_eq!(target.to_vec(), (0..ROUNDS as u64).collect::<Vec<_>>());
});

channel_scenario!(signals_are_counted_and_none_is_lost_or_seen_twice, Job::of(2), |comm, open| {
    let mut channel = open(comm, comm.right())?;
    for burst in [1, 2, 3, 100, 511, 512, 513, 1500] {
        for _ in 0..burst {
            channel.signal()?;
        }
        for _ in 0..burst {
            channel.wait()?;
        }
        assert!(!channel.poll(), "a signal too many after {burst}");
        comm.barrier()?;
    }
});

channel_scenario!(poll_takes_a_signal_or_says_that_there_is_none, Job::of(2), |comm, open| {
    let mut channel = open(comm, comm.right())?;
    assert!(!channel.poll());
    comm.barrier()?;
    channel.signal()?;
    channel.flush()?;
    comm.barrier()?;
    assert!(channel.poll() && !channel.poll());
    comm.barrier()?;
});

channel_scenario!(an_empty_put_with_signal_signals, Job::of(2), |comm, open| {
    let target = comm.alloc::<u8>(8)?;
    target.fill(7);
    comm.barrier()?;
    let mut channel = open(comm, comm.right())?;
    let heap_end = HeapOffset::new(comm.heap_usage().len);
    for offset in [target.region().offset, HeapOffset::new(0), heap_end] {
        channel.put(offset, offset, 0)?;
        channel.put_with_signal(offset, offset, 0)?;
        channel.put_with_signal_and_flush(offset, offset, 0)?;
        channel.wait()?;
        channel.wait()?;
        assert!(!channel.poll());
        comm.barrier()?;
    }
    assert_eq!(target.to_vec(), [7; 8]);
});

channel_scenario!(
    what_reaches_past_the_allocated_heap_moves_nothing_and_signals_nothing,
    Job::of(2),
    |comm, open| {
        let buffer = comm.alloc::<u8>(16)?;
        buffer.fill(3);
        comm.barrier()?;
        let mut channel = open(comm, comm.right())?;
        let (here, len) = (buffer.region().offset, comm.heap_usage().len);
        let bad = [(len, 1), (len - 1, 2), (len + 1, 0), (u64::MAX, 1), (1, u64::MAX), (4 << 20, 1)];
        for (offset, len) in bad {
            let there = HeapOffset::new(offset);
            let out = |result| matches!(result, Err(Error::OutOfRange { .. }));
            assert!(out(channel.put(there, here, len)), "{len} to {offset}");
            assert!(out(channel.put(here, there, len)), "{len} from {offset}");
            assert!(out(channel.put_with_signal(there, here, len)), "{len} to {offset}");
            assert!(out(channel.put_with_signal_and_flush(here, there, len)), "{len} from {offset}");
        }
        channel.flush()?;
        comm.barrier()?;
        assert!(!channel.poll());
        assert_eq!(buffer.to_vec(), [3; 16]);
        assert_eq!(comm.fifo_snapshots()?.iter().map(|fifo| fifo.refused).sum::<u64>(), 0);
    }
);

channel_scenario!(a_rank_has_channels_to_itself, Job::of(2), |comm, open| {
    let (source, target) = (comm.alloc::<u64>(64)?, comm.alloc::<u64>(64)?);
    let mut first = open(comm, comm.rank())?;
    let mut second = open(comm, comm.rank())?;
    assert_eq!(first.peer(), comm.rank());
    for round in 0..100 {
        source.fill(round + u64::from(comm.rank().get()) * 1000);
        first.put_with_signal(target.region().offset, source.region().offset, 512)?;
        first.wait()?;
        assert_eq!(target.to_vec(), source.to_vec());
        assert!(!second.poll(), "it has a semaphore of its own");
        second.signal()?;
        second.wait()?;
        assert!(!first.poll());
    }
});

channel_scenario!(ranges_of_one_heap_may_overlap, Job::of(1), |comm, open| {
    let buffer = comm.alloc::<u8>(10_000)?;
    let mut channel = open(comm, comm.rank())?;
    for (from, to, len) in [(0, 1, 9000), (1, 0, 9000), (100, 5000, 5000), (5, 5, 700), (3, 9, 8)] {
        let mut expected = pattern(len as u64, 10_000);
        buffer.copy_from_slice(0, &expected)?;
        channel.put_with_signal(buffer.part(to, len)?.offset, buffer.part(from, len)?.offset, len as u64)?;
        channel.wait()?;
        expected.copy_within(from..from + len, to);
        assert!(buffer.to_vec() == expected, "{len} bytes from {from} to {to}");
    }
});

channel_scenario!(a_token_goes_round_a_ring_and_grows, Job::of(3), |comm, open| {
    const LAPS: u64 = 200;
    let token = comm.alloc::<u64>(2)?;
    let (inbox, outbox) = (token.part(0, 1)?.offset, token.part(1, 1)?.offset);
    let (mut to, mut from) = (open(comm, comm.right())?, open(comm, comm.left())?);
    let n_ranks = u64::from(comm.n_ranks());
    for lap in 0..LAPS {
        let first = comm.rank().get() == 0;
        if !(first && lap == 0) {
            from.wait()?;
        }
        let value = if first && lap == 0 { 0 } else { token.get(0)? };
        assert_eq!(value, lap * n_ranks + u64::from(comm.rank().get()));
        token.set(1, value + 1)?;
        to.put_with_signal_and_flush(inbox, outbox, 8)?;
    }
    if comm.rank().get() == 0 {
        from.wait()?;
        assert_eq!(token.get(0)?, LAPS * n_ranks);
    }
});

channel_scenario!(channels_of_one_device_move_apart_and_work_at_once, Job::of(2), |comm, open| {
    const CHANNELS: usize = 4;
    const ROUNDS: u64 = 200;
    let (source, target) = (comm.alloc::<u64>(CHANNELS)?, comm.alloc::<u64>(CHANNELS)?);
    let peer = comm.right();
    // Opened here, so that the order is the same on both sides.
    let channels = (0..CHANNELS).map(|_| open(comm, peer)).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, mut channel) in channels.into_iter().enumerate() {
            let (source, target) = (&source, &target);
            threads.push(scope.spawn(move || {
                let mine = source.part(index, 1).unwrap().offset;
                let theirs = target.part(index, 1).unwrap().offset;
                for round in 0..ROUNDS {
                    source.set(index, round * 10 + index as u64).unwrap();
                    channel.put_with_signal_and_flush(theirs, mine, 8).unwrap();
                    channel.wait().unwrap();
                    assert_eq!(target.get(index).unwrap(), round * 10 + index as u64);
                    channel.signal().unwrap();
                    channel.wait().unwrap();
                }
            }));
        }
        // Joined one by one: a sanitizer sees that, and not the end of a scope.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
});

scenario!(gets_reads_and_writes_reach_into_the_peer, Job::of(2), |comm| {
    let (shared, local) = (comm.alloc::<u8>(1 << 17)?, comm.alloc::<u8>(1 << 17)?);
    let words = comm.alloc::<u64>(4)?;
    let peer = comm.right();
    shared.copy_from_slice(0, &pattern(comm.rank().get().into(), 1 << 17))?;
    comm.barrier()?;
    let mut channel = comm.memory_channel(peer)?;
    let theirs = pattern(peer.get().into(), 1 << 17);
    for len in SIZES.into_iter().filter(|len| *len < 1 << 17) {
        local.fill(0);
        channel.get(local.part(1, len)?.offset, shared.part(2, len)?.offset, len as u64)?;
        let mut got = vec![0; len];
        local.copy_to_slice(1, &mut got)?;
        assert!(got == theirs[2..2 + len], "{len} bytes");
    }
    let at = |index: usize| shared.part(index, 16).unwrap().offset;
    assert_eq!(channel.read::<u8>(at(5))?, theirs[5]);
    assert_eq!(channel.read::<[u8; 16]>(at(7))?, theirs[7..23]);
    assert_eq!(channel.read::<u64>(at(8))?.to_le_bytes(), theirs[8..16]);
    channel.write(words.part(0, 1)?.offset, 0x1122_3344_5566_7788_u64)?;
    channel.write(words.part(1, 1)?.offset, 0x99_u8)?;
    channel.put_slice(words.part(2, 2)?.offset, &[1_u64, 2])?;
    channel.put_slice::<u64>(words.part(2, 0)?.offset, &[])?;
    channel.signal()?;
    channel.wait()?;
    assert_eq!(words.to_vec(), [0x1122_3344_5566_7788, 0x99, 1, 2]);
    let end = HeapOffset::new(comm.heap_usage().len);
    assert!(matches!(channel.read::<u64>(end), Err(Error::OutOfRange { .. })));
    assert!(matches!(channel.write(end, 1_u8), Err(Error::OutOfRange { .. })));
    assert!(matches!(channel.put_slice(end, &[1_u8]), Err(Error::OutOfRange { .. })));
    assert!(matches!(channel.get(end, words.region().offset, 1), Err(Error::OutOfRange { .. })));
    assert!(matches!(channel.get(words.region().offset, end, 1), Err(Error::OutOfRange { .. })));
});

scenario!(relaxed_signals_count_like_any_others, Job::of(2), |comm| {
    let mut channel = comm.memory_channel(comm.right())?;
    for round in 0..400 {
        if round % 3 == 0 {
            channel.signal()?;
        } else {
            channel.relaxed_signal()?;
        }
        if round % 2 == 0 {
            channel.relaxed_wait()?;
        } else {
            channel.wait()?;
        }
    }
    comm.barrier()?;
    assert!(!channel.poll());
});

scenario!(a_direct_channel_pairs_with_a_proxied_one, Job::of(2), |comm| {
    let (source, target) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    let peer = rank(comm, 1 - comm.rank().get());
    let mut channel: Box<dyn Channel> = match comm.rank().get() {
        0 => Box::new(comm.memory_channel(peer)?),
        _ => Box::new(comm.port_channel(peer)?),
    };
    for round in 0..200 {
        source.set(0, round)?;
        channel.put_with_signal_and_flush(target.region().offset, source.region().offset, 8)?;
        channel.wait()?;
        assert_eq!(target.get(0)?, round);
        meet(&mut *channel)?;
    }
});

scenario!(
    /// More than there are places for, from either rank to the other and to itself, all at once.
    channels_over_semaphores_of_the_programs_own_pair_by_them_and_count_nowhere,
    Job::of(2),
    |comm| {
        const EACH: u64 = 40;
        let cells = comm.alloc_region(2 * EACH * SEMAPHORE_LEN, SEMAPHORE_LEN)?;
        comm.span(comm.rank(), cells)?.fill(0, cells.len, 0)?;
        comm.barrier()?;
        let cell = |from: Rank, index: u64| {
            let place = u64::from(from.get()) * EACH + index;
            HeapOffset::new(cells.offset.get() + place * SEMAPHORE_LEN)
        };
        let mut channels = Vec::new();
        for peer in [comm.right(), comm.rank()] {
            for index in 0..EACH {
                channels.push(comm.memory_channel_over(peer, cell(comm.rank(), index), cell(peer, index))?);
            }
        }
        let numbers = comm.alloc::<u64>(channels.len())?;
        for (index, channel) in (0..).zip(&mut channels) {
            for _ in 0..3 {
                channel.put_slice(numbers.part(index, 1)?.offset, &[index as u64 + 7])?;
                channel.signal()?;
            }
        }
        for channel in channels.iter_mut().rev() {
            (0..3).try_for_each(|_| channel.wait())?;
            assert!(!channel.poll());
        }
        assert!(numbers.to_vec().iter().zip(7..).all(|(found, expected)| *found == expected));
        for offset in [cells.offset.get() + 8, u64::MAX - 127] {
            let refused = comm.memory_channel_over(comm.right(), cells.offset, HeapOffset::new(offset));
            assert!(matches!(refused, Err(Error::Misaligned { .. } | Error::OutOfRange { .. })), "{refused:?}");
        }
        // All places are left.
        let counted = (0..MAX_CHANNELS_PER_PEER).map(|_| comm.memory_channel(comm.right()));
        counted.collect::<Result<Vec<_>>>()?;
        comm.barrier()?;
    }
);
