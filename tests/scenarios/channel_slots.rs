//! Several channels between one pair, and channels that come and go.

use shmccl::channel::{Channel, MAX_CHANNELS_PER_PEER};
use shmccl::{Error, Rank};

use crate::harness::Job;

channel_scenario!(channels_of_one_pair_do_not_hear_each_other, Job::of(2), |comm, open| {
    const CHANNELS: usize = 4;
    let (source, target) = (comm.alloc::<u64>(CHANNELS)?, comm.alloc::<u64>(CHANNELS)?);
    let peer = comm.right();
    let mut channels = Vec::new();
    for _ in 0..CHANNELS {
        channels.push(open(comm, peer)?);
    }
    for round in 0..100 {
        for (index, channel) in channels.iter_mut().enumerate().rev() {
            source.set(index, round * 10 + index as u64)?;
            channel.put_with_signal(target.part(index, 1)?.offset, source.part(index, 1)?.offset, 8)?;
        }
        for (index, channel) in channels.iter_mut().enumerate() {
            channel.wait()?;
            assert!(!channel.poll(), "channel {index} heard a signal of another");
            assert_eq!(target.get(index)?, round * 10 + index as u64);
            channel.flush()?;
        }
        comm.barrier()?;
    }
});

channel_scenario!(
    a_channel_that_is_opened_again_goes_on_where_the_last_one_ended,
    Job::of(2),
    |comm, open| {
        let peer = comm.right();
        for round in 0..20 {
            let mut channel = open(comm, peer)?;
            for _ in 0..round % 4 {
                channel.signal()?;
            }
            for _ in 0..round % 4 {
                channel.wait()?;
            }
            assert!(!channel.poll(), "round {round}");
            drop(channel);
            comm.barrier()?;
        }
    }
);

channel_scenario!(
    signals_sent_to_a_closed_channel_wait_for_the_next_one_in_its_slot,
    Job::of(2),
    |comm, open| {
        let peer = comm.right();
        let mut sender = open(comm, peer)?;
        if comm.rank().get() == 1 {
            drop(open(comm, peer)?);
            sender.wait()?;
            drop(sender);
            comm.barrier()?;
            // Two were sent, one was consumed.
            let mut again = open(comm, peer)?;
            again.wait()?;
            assert!(!again.poll());
        } else {
            sender.signal()?;
            sender.signal()?;
            sender.flush()?;
            comm.barrier()?;
        }
    }
);

port_scenario!(a_slot_passes_from_kind_to_kind_and_keeps_its_counts, Job::of(2), |comm| {
    let (source, target) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
    let peer = comm.right();
    for round in 0..40 {
        // Every combination of kinds at the two ends.
        let direct = round >> comm.rank().get() & 1 == 0;
        let mut channel: Box<dyn Channel> = match direct {
            true => Box::new(comm.memory_channel(peer)?),
            false => Box::new(comm.port_channel(peer)?),
        };
        for _ in 0..3 {
            source.set(0, round)?;
            channel.put_with_signal(target.region().offset, source.region().offset, 8)?;
            channel.wait()?;
            assert_eq!(target.get(0)?, round);
            channel.signal()?;
            channel.wait()?;
        }
        assert!(!channel.poll());
        drop(channel);
        comm.barrier()?;
    }
});

channel_scenario!(
    a_pair_has_sixteen_slots_and_a_slot_that_is_left_is_taken_again,
    Job::of(2),
    |comm, open| {
        let peer = comm.right();
        let mut channels = Vec::new();
        for _ in 0..MAX_CHANNELS_PER_PEER {
            channels.push(open(comm, peer)?);
        }
        assert!(matches!(open(comm, peer), Err(Error::Exhausted { limit: 16, .. })));
        comm.barrier()?;
        drop(channels.remove(5));
        let mut again = open(comm, peer)?;
        again.signal()?;
        again.wait()?;
        assert!(open(comm, peer).is_err());
        comm.barrier()?;
    }
);

scenario!(a_rank_that_does_not_exist_has_no_channels, Job::of(2), |comm| {
    let stranger = Rank::new(2, 64).unwrap();
    assert!(matches!(comm.memory_channel(stranger), Err(Error::InvalidRank { rank: 2, n_ranks: 2 })));
    assert!(matches!(comm.port_channel(stranger), Err(Error::InvalidRank { rank: 2, n_ranks: 2 })));
});
