//! Data that are checked on their way: a flipped bit is an error, and without one everything is as ever.
//!
//! That the same bits go through unseen without checksums the scenarios of `faults` show.

use shmccl::bootstrap::Options;
use shmccl::channel::{Channel, RefusalReason};
use shmccl::collective::{Algorithm, ChannelKind};
use shmccl::comm::{Collectives, Group};
use shmccl::launch::launch_threads;
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Error, Result};

use crate::harness::{Job, pattern, rank};
use crate::sorts::all_sorts;

port_scenario!(
    all_goes_as_ever_where_nothing_is_corrupted,
    Job::of(3).heap_len(16 << 20).checksums(),
    |comm| {
        all_sorts(comm)?;
        let n = comm.n_ranks();
        for kind in [ChannelKind::Memory, ChannelKind::Port] {
            comm.set_channel_kind(kind)?;
            for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(operation())) {
                comm.set_algorithm(Some(algorithm));
                let buffer = comm.alloc::<u32>(50_000)?;
                (0..buffer.len())
                    .step_by(997)
                    .try_for_each(|index| buffer.set(index, comm.rank().get() + 1))?;
                comm.all_reduce_in_place(&buffer, &ReduceOp::Sum)?;
                assert_eq!(
                    (buffer.get(0)?, buffer.get(997)?),
                    (n * (n + 1) / 2, n * (n + 1) / 2),
                    "{algorithm}"
                );
                comm.free(buffer)?;
            }
            comm.set_algorithm(None);
            for len in [0, 1, 32, 33, 64, 1000, 1025, 70_000, 500_000] {
                let sent = pattern(comm.rank().get().into(), len);
                assert_eq!(passed_on(comm, &sent)?, pattern(comm.left().get().into(), len), "{kind:?} {len}");
            }
        }
    }
);

fn operation() -> shmccl::collective::Operation {
    shmccl::collective::Operation::AllReduce
}

/// Sends to the right and returns what comes from the left.
fn passed_on(comm: &mut Communicator, sent: &[u8]) -> Result<Vec<u8>> {
    let mut received = vec![0; sent.len()];
    let (next, previous) = (comm.right(), comm.left());
    let mut group = Group::start();
    let joined = group.join(comm);
    group.on(joined).send(sent, next)?;
    group.on(joined).recv(&mut received, previous)?;
    group.end()?;
    Ok(received)
}

/// Whether `error` is what a rank is told when rank 1 finds that what rank 0 has sent in `operation` was corrupted.
fn is_told(comm: &Communicator, error: &Error, operation: &str) -> bool {
    match error {
        Error::Corrupted { operation: told, rank: sender, expected, found, .. } => {
            comm.rank().get() == 1 && *told == operation && sender.get() == 0 && expected != found
        }
        Error::Revoked { by } => comm.rank().get() != 1 && *by == Some(rank(comm, 1)),
        _ => false,
    }
}

scenario!(
    a_message_that_was_corrupted_is_an_error_of_its_receiver,
    Job::of(2).checksums().faults("corrupt:rank=0,at=3,of=message").broken(),
    |comm| {
        let sent = pattern(7, 900);
        let error = loop {
            match passed_on(comm, &sent) {
                Ok(received) => assert_eq!(received, sent),
                Err(error) => break error,
            }
        };
        assert!(is_told(comm, &error, "recv"), "{error}");
        let last = comm.strikes().last().map(|strike| strike.number);
        assert_eq!(last, (comm.rank().get() == 0).then_some(3));
    }
);

scenario!(
    a_parcel_that_is_lent_and_arrives_otherwise_is_an_error,
    Job::of(2).checksums().faults("corrupt:rank=1,at=1,of=message").broken(),
    |comm| {
        let buffer = comm.alloc::<u8>(100_000)?;
        let done = match comm.rank().get() {
            0 => comm.send(&buffer, rank(comm, 1)).and_then(|()| comm.barrier()),
            _ => comm.recv(&buffer, rank(comm, 0)),
        };
        let error = done.unwrap_err();
        assert!(is_told(comm, &error, "recv"), "{error}");
    }
);

scenario!(
    a_message_of_an_algorithm_that_was_corrupted_is_an_error,
    Job::of(2).checksums().faults("corrupt:rank=0,at=5,of=message").broken(),
    |comm| {
        let buffer = comm.alloc::<u32>(100_000)?;
        buffer.fill(1);
        comm.set_algorithm(Some(Algorithm::Ring));
        let error = loop {
            match comm.all_reduce_in_place(&buffer, &ReduceOp::Sum) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert!(is_told(comm, &error, "all_reduce"), "{error}");
    }
);

port_scenario!(
    a_put_that_a_proxy_has_corrupted_ends_the_epoch_and_is_never_signalled,
    Job::of(2).checksums().faults("corrupt:rank=0,at=2,of=trigger").broken(),
    |comm| {
        let (source, target) = (comm.alloc::<u8>(5000)?, comm.alloc::<u8>(5000)?);
        source.copy_from_slice(0, &pattern(3, 5000))?;
        let (mut right, mut left) = (comm.port_channel(comm.right())?, comm.port_channel(comm.left())?);
        if comm.rank().get() == 1 {
            std::mem::swap(&mut right, &mut left);
        }
        let is_put_corrupted =
            |error: &Error| matches!(error, Error::PutCorrupted { rank } if rank.get() == 0);
        if comm.rank().get() == 0 {
            let mut put = || {
                right.put(target.region().offset, source.region().offset, 5000)?;
                right.signal()?;
                right.flush()
            };
            put()?;
            comm.barrier()?;
            // Triggers behind the one that was corrupted are refused, a flush among them completes all the same.
            let error = put().and_then(|()| comm.barrier()).unwrap_err();
            assert!(is_put_corrupted(&error), "{error}");
            let refused = comm.fifo_snapshots()?.remove(0);
            let reason = refused.last_refused.and_then(|refused| RefusalReason::from_code(refused.code));
            assert_eq!(reason, Some(RefusalReason::Corrupted));
        } else {
            left.wait()?;
            assert!(target.to_vec() == pattern(3, 5000), "the first one is whole");
            comm.barrier()?;
            let error = left.wait().unwrap_err();
            assert!(is_put_corrupted(&error), "{error}");
            assert!(!left.poll());
        }
    }
);

#[test]
fn threads_of_a_process_take_checksums_by_their_options() {
    let options = Options { checksums: true, heap_len: 16 << 20, ..Options::default() };
    launch_threads(2, &options, |comm| {
        let sent = pattern(1, 5000);
        assert_eq!(passed_on(comm, &sent)?, sent);
        Ok(())
    })
    .unwrap();
}
