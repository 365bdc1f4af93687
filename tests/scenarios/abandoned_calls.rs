//! Calls that some ranks have given up: a rank that makes such a call later does not take their
//! next call for it, and writes into no buffer of those that have failed.

use std::time::Duration;

use shmccl::channel::Channel;
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Group, Result};

use crate::harness::{Job, rank};

/// A call that all ranks make, with a word of the heap.
type Called = (&'static str, fn(&mut Communicator, &DeviceBuffer<u64>) -> Result<()>);

const CALLS: [Called; 6] = [
    ("a word that was reduced before", |comm, word| comm.all_reduce_in_place(word, &ReduceOp::Sum)),
    ("a slice", |comm, _| comm.all_reduce_in_place(&mut [1.0_f32; 4], &ReduceOp::Sum)),
    ("an all-gather", |comm, _| comm.all_gather(&[1_u8; 3], &mut [0; 6])),
    ("a group", |comm, word| {
        let mut sum = [1_u32; 2];
        let mut group = Group::start();
        let joined = group.join(comm);
        group.on(joined).all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
        group.on(joined).all_reduce_in_place(word, &ReduceOp::Max)?;
        group.end()
    }),
    ("a call of a stream", |comm, word| {
        let stream = comm.stream()?;
        stream.on(comm).all_reduce_in_place(word, &ReduceOp::Sum)?;
        stream.synchronise()
    }),
    ("a large one", |comm, _| comm.all_reduce_in_place(&mut vec![1_u64; 100_000], &ReduceOp::Sum)),
];

/// Rank 0 gives the call up and makes it again, while rank 1 makes it for the first time, and then
/// the next one.
fn come_late(comm: &mut Communicator, call: Called) -> Result<()> {
    let word = comm.alloc::<u64>(1)?;
    for _ in 0..2 {
        (call.1)(comm, &word)?;
    }
    comm.barrier()?;
    if comm.rank().get() == 0 {
        let given_up = (call.1)(comm, &word).unwrap_err();
        assert!(matches!(given_up.origin(), Error::Timeout { .. }), "{}: {given_up:?}", call.0);
    } else {
        while comm.revoked().is_none() {
            std::thread::yield_now();
        }
        // What rank 0 has put in is there: it may be answered, if not more has to be done together.
        let _answered = (call.1)(comm, &word);
    }
    let told = (call.1)(comm, &word);
    let error = told.as_ref().err().map(Error::origin);
    assert!(
        matches!(error, Some(Error::Revoked { by: Some(by), .. }) if by.get() == 0),
        "{}: {told:?}",
        call.0
    );
    Ok(())
}

#[test]
fn a_call_that_was_given_up_is_not_made_again_beside_the_next_one() {
    // All at once, as each takes as long as its ranks may wait.
    std::thread::scope(|scope| {
        for call in CALLS {
            let job = Job::of(2).broken().timeout(Duration::from_secs(5));
            scope.spawn(move || job.threads(call.0, |comm| come_late(comm, call)));
        }
    });
}

/// What `rank` puts in, and keeps when the call has failed.
fn input_of(rank: u32) -> Vec<u64> {
    vec![100 + u64::from(rank); 1 << 15]
}

scenario!(
    a_rank_that_comes_late_to_a_call_in_the_heap_is_told_and_leaves_the_buffers_of_the_others_alone,
    Job::of(3).timeout(Duration::from_secs(5)).broken(),
    |comm| {
        let me = comm.rank().get();
        let words = comm.alloc::<u64>(1 << 15)?;
        words.copy_from_slice(0, &input_of(me))?;
        comm.prepare()?;
        comm.barrier()?;
        if me == 2 {
            while comm.revoked().is_none() {
                std::thread::yield_now();
            }
        }
        // When the last rank comes, the posts of all are up.
        let error = comm.all_reduce_in_place(&words, &ReduceOp::Sum).unwrap_err();
        let is_told = matches!(error.origin(), Error::Revoked { by: Some(by), .. } if by.get() < 2);
        assert!(is_told || me < 2 && matches!(error.origin(), Error::Timeout { .. }), "{error:?}");
        if me == 2 {
            for peer in 0..3 {
                let theirs = comm.span(rank(comm, peer), words.region())?;
                assert!(theirs.equals(0, bytemuck::cast_slice(&input_of(peer)))?, "rank {peer}'s");
            }
        }
    }
);

scenario!(
    a_timeout_that_is_set_counts_for_waits_that_begin_later_and_for_this_rank_alone,
    Job::of(2),
    |comm| {
        let (mut channel, before) = (comm.memory_channel(comm.right())?, comm.timeout());
        let refused = comm.set_timeout(Duration::ZERO);
        assert!(matches!(refused, Err(Error::InvalidArgument { name: "timeout", .. })), "{refused:?}");
        if comm.rank().get() == 0 {
            let short = Duration::from_millis(30);
            comm.set_timeout(short)?;
            let late = channel.wait();
            assert!(matches!(late, Err(Error::Timeout { waited, .. }) if waited == short), "{late:?}");
            comm.set_timeout(before)?;
            channel.signal()?;
        } else {
            channel.wait()?;
        }
        assert_eq!(comm.timeout(), before);
    }
);
