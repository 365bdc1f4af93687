//! Two ranks that wait for messages of each other: both are told, and nobody else is taken for one
//! of them.

use std::time::{Duration, Instant};

use shmccl::collective::CallMismatch;
use shmccl::collective::ChannelKind;
use shmccl::{Collectives, Communicator, Group, Result};

use crate::harness::{Job, rank};

/// Both ranks make the call that is named so, to or from the other one.
type Called = (&'static str, fn(&mut Communicator) -> Result<()>);

const LONG: usize = 300_000;

const CALLS: [Called; 4] = [
    ("recv of 4 float from", |comm| comm.recv(&mut [0.0_f32; 4], comm.right())),
    ("send of 300000 float to", |comm| comm.send(&vec![1.0_f32; LONG], comm.right())),
    ("send of 300000 float to", |comm| {
        let in_heap = comm.buffer::<f32>(comm.heap().regions()[0])?;
        comm.send(&in_heap, comm.right())
    }),
    ("recv of 2 float from", |comm| {
        let (right, mut first, mut second) = (comm.right(), [0.0_f32; 2], [0.0_f32; 2]);
        let mut group = Group::start();
        let joined = group.join(comm);
        group.on(joined).recv(&mut first, right)?;
        group.on(joined).recv(&mut second, right)?;
        group.end()
    }),
];

fn wait_for_each_other(comm: &mut Communicator, kind: ChannelKind, call: Called) -> Result<()> {
    let _in_heap = comm.alloc::<f32>(LONG)?;
    comm.set_channel_kind(kind)?;
    comm.barrier()?;
    let told = (call.1)(comm);
    let Some(CallMismatch { mine, rank, theirs }) = CallMismatch::of(&told) else {
        panic!("{}: {told:?}", call.0)
    };
    assert_eq!(rank, comm.right());
    let named = [mine.to_string(), theirs.to_string()];
    assert!(named.iter().all(|name| name.starts_with(call.0)), "{named:?}");
    assert_ne!(named[0], named[1]);
    Ok(())
}

#[test]
fn ranks_that_wait_for_messages_of_each_other_are_told_both() {
    for kind in [ChannelKind::Memory, ChannelKind::Port] {
        for call in CALLS {
            Job::of(2).broken().threads(call.0, |comm| wait_for_each_other(comm, kind, call));
        }
    }
}

port_scenario!(ranks_that_receive_from_each_other_by_proxies_are_told_both, Job::of(2).broken(), |comm| {
    wait_for_each_other(comm, ChannelKind::Port, CALLS[0])?;
});

// Each waits long enough for its first sleep, for what comes then; in one direction, and now and
// then in both.
scenario!(who_gets_in_the_end_what_it_waits_for_is_not_taken_for_opposed, Job::of(3), |comm| {
    let (own, n_ranks) = (comm.rank().get(), comm.n_ranks());
    let mut long = vec![0_u32; LONG];
    for round in 0..60_u32 {
        comm.set_channel_kind(if round % 20 < 10 { ChannelKind::Memory } else { ChannelKind::Port })?;
        let (sender, receiver) = (round % n_ranks, (round + 1 + round / 3 % 2) % n_ranks);
        for (from, to) in [(sender, receiver), (receiver, sender)] {
            let count = if round % 4 == 0 { LONG } else { 10 };
            if own == from {
                pause(Duration::from_micros(u64::from(round % 7) * 500));
                long.fill(round);
                comm.send(&long[..count], rank(comm, to))?;
            } else if own == to {
                pause(Duration::from_micros(u64::from(round % 5) * 600));
                comm.recv(&mut long[..count], rank(comm, from))?;
                assert!(long[..count].iter().all(|word| *word == round), "round {round}");
            }
        }
    }
});

fn pause(time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        std::thread::yield_now();
    }
}
