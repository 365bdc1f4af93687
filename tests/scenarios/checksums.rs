//! Data that are checked on their way: a flipped bit is an error, and without one everything is as
//! ever.
//!
//! That the same bits go through unseen without checksums the scenarios of `faults` show.

use std::sync::Mutex;
use std::time::Duration;

use shmccl::bootstrap::Options;
use shmccl::channel::{Channel, RefusalReason};
use shmccl::collective::{Algorithm, ChannelKind};
use shmccl::comm::{Blocks, Collectives, Group};
use shmccl::launch::launch_threads;
use shmccl::reduce::{ReduceOp, Scalar};
use shmccl::{Communicator, Error, Result};

use crate::checkpoints::common_directory;
use crate::fault_program::all_operations;
use crate::harness::{Job, Watchdog, pattern, rank};

port_scenario!(
    all_goes_as_ever_where_nothing_is_corrupted,
    Job::of(3).heap_len(16 << 20).checksums(),
    |comm| {
        let directory = common_directory("checksums");
        all_operations(comm, &directory)?;
        if comm.rank().get() == 0 {
            std::fs::remove_dir_all(&directory).unwrap();
        }
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
            for count in [1, 2, 3, 30, 1000, 3000, 70_001] {
                Staged::ALL.into_iter().try_for_each(|staged| staged.call(comm, count))?;
                scaled_by_each(comm, count)?;
            }
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

/// Adds inputs that each rank multiplies by a number of its own, in ordinary memory and in the
/// heap.
fn scaled_by_each(comm: &mut Communicator, count: usize) -> Result<()> {
    let (mine, n) = (comm.rank().get() + 1, comm.n_ranks());
    let (op, expected) = (ReduceOp::PreMulSum(Scalar::new(mine)), (1..=n).map(|one| one * one).sum::<u32>());
    let buffer = comm.alloc::<u32>(count)?;
    buffer.fill(mine);
    comm.all_reduce_in_place(&buffer, &op)?;
    let mut got = vec![0; count];
    comm.all_reduce(&vec![mine; count], &mut got, &op)?;
    assert!(buffer.to_vec().iter().chain(&got).all(|&sum| sum == expected), "{count} elements");
    comm.free(buffer)
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

/// Whether `error` is what a rank is told when rank 1 finds that what rank 0 has sent in
/// `operation` was corrupted.
fn is_told(comm: &Communicator, error: &Error, operation: &str) -> bool {
    match error {
        Error::Corrupted { operation: told, rank: sender, expected, found, .. } => {
            comm.rank().get() == 1 && *told == operation && sender.get() == 0 && expected != found
        }
        Error::Revoked { by, .. } => comm.rank().get() != 1 && *by == Some(rank(comm, 1)),
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
        let last = comm.fault_hits().last().map(|hit| hit.number);
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

/// Exchanges a block of as many bytes in place, again and again, until what comes is not what was
/// sent; each time it was, it is what the peer had.
fn exchanged_until_told(comm: &mut Communicator, len: usize, in_heap: bool) -> Result<Error> {
    let me = comm.rank().index();
    let counts = if me == 0 { [0, len] } else { [len, 0] };
    let blocks = Blocks::new(&counts, &[0, 0]);
    let (heap, mut own) = (comm.alloc::<u8>(len)?, vec![0; len]);
    for round in 0.. {
        let of = |rank: usize| pattern((round << 8 | rank) as u64, len);
        own.copy_from_slice(&of(me));
        heap.copy_from_slice(0, &own)?;
        let done = match in_heap {
            true => comm.all_to_all_v_in_place(&heap, blocks),
            false => comm.all_to_all_v_in_place(&mut own, blocks),
        };
        if let Err(error) = done {
            return Ok(error);
        }
        assert!(if in_heap { heap.to_vec() } else { own.clone() } == of(1 - me), "round {round}");
    }
    unreachable!("it goes on until an error")
}

scenario!(
    a_block_in_place_that_was_corrupted_on_its_way_is_an_error_of_who_gets_it,
    Job::of(2).checksums().faults("corrupt:rank=0,at=9,of=message").broken(),
    |comm| {
        let error = exchanged_until_told(comm, 500_000, false)?;
        assert!(is_told(comm, &error, "all_to_all_v"), "{error}");
    }
);

scenario!(
    a_short_block_in_the_heap_in_place_that_was_corrupted_on_its_way_is_an_error_too,
    Job::of(2).checksums().faults("corrupt:rank=0,at=2,of=message").broken(),
    |comm| {
        let error = exchanged_until_told(comm, 700, true)?;
        assert!(is_told(comm, &error, "all_to_all_v"), "{error}");
    }
);

scenario!(
    a_block_that_a_rendezvous_get_in_place_reads_otherwise_is_an_error,
    // Rank 1 has sent two messages before its rendezvous get.
    Job::of(2).checksums().faults("corrupt:rank=1,at=3,of=message").broken(),
    |comm| {
        let (buffer, other) = (comm.alloc::<u8>(100_000)?, comm.alloc::<u8>(100_000)?);
        let done = match comm.rank().get() {
            0 => {
                let blocks = Blocks::new(&[0, 100_000], &[0, 0]);
                comm.all_to_all_v(&buffer, blocks, &other, blocks).and_then(|()| comm.barrier())
            }
            _ => comm.all_to_all_v_in_place(&buffer, Blocks::new(&[100_000, 0], &[0, 0])),
        };
        let error = done.unwrap_err();
        assert!(is_told(comm, &error, "all_to_all_v"), "{error}");
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

/// An operation on ordinary memory, of which pieces are staged.
#[derive(Clone, Copy, Debug)]
enum Staged {
    AllReduce,
    InPlace,
    Reduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Scatter,
    Gather,
    ReduceScatterInPlace,
    ScatterInPlace,
}

impl Staged {
    const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::InPlace,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllToAll,
        Self::Broadcast,
        Self::Scatter,
        Self::Gather,
        Self::ReduceScatterInPlace,
        Self::ScatterInPlace,
    ];

    /// Does it on blocks of `count` elements, and looks at what comes.
    fn call(self, comm: &mut Communicator, count: usize) -> Result<()> {
        let (n, me, root) = (comm.n_ranks() as usize, comm.rank().get(), rank(comm, 1));
        let block = |from: usize, to: usize| {
            let first = u32::try_from(from * 1000 + to * 10).unwrap();
            (first..).take(count)
        };
        let sum = |to: usize| -> Vec<u32> {
            let first = (0..n).map(|from| u32::try_from(from * 1000 + to * 10).unwrap()).sum();
            (first..).step_by(n).take(count).collect()
        };
        let whole: Vec<u32> = (0..n).flat_map(|to| block(me as usize, to)).collect();
        let from_each = |to: usize| -> Vec<u32> { (0..n).flat_map(|from| block(from, to)).collect() };
        let (mine, is_root) = (&whole[..count], me == 1);
        let (mut one, mut all) = (vec![0; count], vec![0; n * count]);
        let sent = if is_root { &whole[..] } else { &[] };
        match self {
            Self::AllReduce => comm.all_reduce(mine, &mut one, &ReduceOp::Sum)?,
            Self::InPlace => {
                one.copy_from_slice(mine);
                comm.all_reduce_in_place(&mut one, &ReduceOp::Sum)?;
            }
            Self::Reduce => comm.reduce(mine, &mut one, &ReduceOp::Sum, root)?,
            Self::ReduceScatter => comm.reduce_scatter(&whole, &mut one, &ReduceOp::Sum)?,
            Self::AllGather => comm.all_gather(mine, &mut all)?,
            Self::AllToAll => comm.all_to_all(&whole, &mut all)?,
            Self::Broadcast => comm.broadcast(mine, &mut one, root)?,
            Self::Scatter => comm.scatter(sent, &mut one, root)?,
            Self::Gather => comm.gather(mine, &mut all, root)?,
            Self::ReduceScatterInPlace => {
                all.copy_from_slice(&whole);
                comm.reduce_scatter_in_place(&mut all, &ReduceOp::Sum)?;
                one.copy_from_slice(&all[me as usize * count..][..count]);
            }
            Self::ScatterInPlace if is_root => {
                all.copy_from_slice(&whole);
                comm.scatter_in_place(&mut all, root)?;
                one.copy_from_slice(&all[me as usize * count..][..count]);
            }
            Self::ScatterInPlace => comm.scatter_in_place(&mut one, root)?,
        }
        let is_right = match self {
            Self::AllReduce | Self::InPlace => one == sum(0),
            Self::Reduce => !is_root || one == sum(0),
            Self::ReduceScatter | Self::ReduceScatterInPlace => one == sum(me as usize),
            Self::AllGather => all == from_each(0),
            Self::AllToAll => all == from_each(me as usize),
            Self::Broadcast => one == block(1, 0).collect::<Vec<_>>(),
            Self::Scatter | Self::ScatterInPlace => one == block(1, me as usize).collect::<Vec<_>>(),
            Self::Gather => !is_root || all == from_each(0),
        };
        assert!(is_right, "{self:?} of {count}");
        Ok(())
    }
}

/// Corrupts one write `of` that kind after the other of each rank in each operation on blocks of
/// `count` elements: an error tells of it, or nobody needed it. Returns how often one did, and the
/// most writes of a rank in one operation.
fn corrupt_each(of: &str, count: usize) -> (usize, u64) {
    let (mut n_told, mut most) = (0, 0);
    for (staged, victim) in Staged::ALL.into_iter().flat_map(|staged| [(staged, 0), (staged, 1)]) {
        for number in 1.. {
            let faults = format!("corrupt:rank={victim},at={number},of={of}").parse().unwrap();
            let options = Options { checksums: true, faults, heap_len: 16 << 20, ..Options::default() };
            let told = Mutex::new(Vec::new());
            let hits = Mutex::new(Vec::new());
            let outcome = launch_threads(2, &options, |comm| {
                let done = staged.call(comm, count).and_then(|()| comm.barrier());
                hits.lock().unwrap().extend(comm.fault_hits());
                told.lock().unwrap().extend(done.as_ref().err().map(ToString::to_string));
                done
            });
            let hits = hits.into_inner().unwrap();
            let told = told.into_inner().unwrap();
            if hits.is_empty() {
                outcome.unwrap();
                break;
            }
            most = most.max(number);
            if told.is_empty() {
                outcome.unwrap();
                continue;
            }
            let from = format!("from rank {victim} was corrupted on its way");
            let is_told = told.len() == 2 && told.iter().any(|error| error.contains(&from));
            assert!(is_told, "{staged:?} of {count}, {hits:?}: {told:?}");
            n_told += 1;
        }
    }
    (n_told, most)
}

#[test]
fn whatever_is_corrupted_that_was_staged_or_made_of_it_is_an_error_and_never_a_result() {
    let _watchdog = Watchdog::start("corrupted stages", Duration::from_secs(120));
    let (n_told, most) = corrupt_each("stage", 150_000);
    assert!(n_told > 30 && most > 4, "{n_told}, results among them: {most}");
}

#[test]
fn whatever_is_corrupted_that_was_posted_is_an_error_and_never_a_result() {
    let _watchdog = Watchdog::start("corrupted posts", Duration::from_secs(120));
    // A word, what goes into a post, and what goes into an eager slot.
    for count in [1, 5, 1000] {
        // Nobody looks at what a root has for itself, or at what others have where only a root has
        // something.
        let (n_told, most) = corrupt_each("post", count);
        assert!(n_told >= 16 && most == 1, "{count}: {n_told}, {most}");
    }
}

scenario!(
    a_word_that_was_corrupted_in_a_call_that_is_made_again_is_an_error,
    Job::of(2).checksums().faults("corrupt:rank=0,at=4,of=post").broken(),
    |comm| {
        let (one, sum) = (comm.alloc::<u64>(1)?, comm.alloc::<u64>(1)?);
        one.set(0, 7)?;
        let error = loop {
            match comm.all_reduce(&one, &sum, &ReduceOp::Sum) {
                Ok(()) => assert_eq!(sum.get(0)?, 14),
                Err(error) => break error,
            }
        };
        assert!(is_told(comm, &error, "all_reduce"), "{error}");
    }
);

scenario!(
    small_calls_of_a_group_are_checked_each_by_itself,
    Job::of(2).checksums().faults("corrupt:rank=0,at=3,of=post").broken(),
    |comm| {
        let mut results = [[0_u32; 3]; 2];
        let error = loop {
            let [first, second] = &mut results;
            let mut group = Group::start();
            let joined = group.join(comm);
            group.on(joined).all_reduce(&[1, 2, 3], first, &ReduceOp::Sum)?;
            group.on(joined).all_reduce(&[4, 5, 6], second, &ReduceOp::Sum)?;
            match group.end() {
                Ok(()) => assert_eq!(results, [[2, 4, 6], [8, 10, 12]]),
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
            // Triggers behind the one that was corrupted are refused, a flush among them completes
            // all the same.
            let error = put().and_then(|()| comm.barrier()).unwrap_err();
            assert!(is_put_corrupted(&error), "{error}");
            // The epoch ends first, then the trigger is counted.
            let refused = loop {
                match comm.fifo_snapshots()?[0].last_refused {
                    Some(refused) => break refused,
                    None => std::thread::yield_now(),
                }
            };
            let reason = RefusalReason::from_code(refused.code);
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
