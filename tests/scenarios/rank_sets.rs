//! More ranks than a word has bits: those on both sides of each border do what others do.

use std::time::Duration;

use shmccl::bootstrap::ProxyMode;
use shmccl::channel::Channel;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Group, Rank, Result};

use crate::harness::{Job, is_lost, rank, test_name};

/// As many as a message of the first meeting tells of, and one; words of a set and half a word; and
/// as many as there can be.
const MANY: [u32; 3] = [65, 130, 256];

fn job(n_ranks: u32) -> Job {
    Job::of(n_ranks).heap_len(16 << 20).timeout(Duration::from_secs(60))
}

/// Adds up in every way that small and larger data are added up.
fn add_up(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (u64::from(comm.rank().get()), u64::from(comm.n_ranks()));
    for len in [1, 7, 600, 3000] {
        let mut sums: Vec<_> = (0..len).map(|index| me + index).collect();
        comm.all_reduce_in_place(&mut sums[..], &ReduceOp::Sum)?;
        assert!((0..).zip(sums).all(|(index, sum)| sum == n * (n - 1) / 2 + n * index));
    }
    let on_heap = comm.alloc::<u32>(5000)?;
    on_heap.fill(1);
    comm.all_reduce_in_place(&on_heap, &ReduceOp::Sum)?;
    assert!(on_heap.to_vec().iter().all(|sum| u64::from(*sum) == n));
    comm.free(on_heap)
}

/// Sends to the rank on the other side of the job, and receives from there.
fn swap_with_far(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank().get(), comm.n_ranks());
    let (to, from) = (rank(comm, (me + n / 2) % n), rank(comm, (me + n - n / 2) % n));
    for len in [1, 1500, 40_000] {
        let (mut received, sent) = (vec![0; len], vec![me; len]);
        let mut group = Group::start();
        let joined = group.join(comm);
        group.on(joined).send(&sent[..], to)?;
        group.on(joined).recv(&mut received[..], from)?;
        group.end()?;
        assert!(received.iter().all(|word| *word == from.get()));
    }
    Ok(())
}

/// Parts into those below the 64th rank and the others, whose algorithms need channels of all.
fn part(comm: &mut Communicator) -> Result<()> {
    let me = comm.rank().get();
    let mut part = comm.split(Some(u32::from(me >= 64)), 0)?.expect("every rank has a colour");
    let mut members = [1_u32];
    part.all_reduce_in_place(&mut members, &ReduceOp::Sum)?;
    assert_eq!((members[0], part.rank().get()), (part.n_ranks(), if me < 64 { me } else { me - 64 }));
    part.finalize()
}

fn work(comm: &mut Communicator) -> Result<()> {
    comm.barrier()?;
    add_up(comm)?;
    swap_with_far(comm)?;
    part(comm)?;
    comm.barrier()
}

/// Those that are lost: the last rank of the first word, the first of the second, and the last.
fn lost(comm: &Communicator) -> Vec<Rank> {
    let mut numbers = vec![63, 64, comm.n_ranks() - 1];
    numbers.dedup();
    numbers.into_iter().map(|number| rank(comm, number)).collect()
}

/// Goes on without those, which are given up: the others learn of it in a barrier.
fn go_on(comm: &mut Communicator) -> Result<()> {
    let lost = lost(comm);
    comm.barrier()?;
    if lost.contains(&comm.rank()) {
        let error = comm.memory_channel(rank(comm, 0))?.wait().unwrap_err();
        assert!(lost.iter().any(|lost| is_lost(&error, *lost)), "{error}");
        let error = comm.shrink().unwrap_err();
        assert!(matches!(error, Error::Excluded), "{error}");
        return Ok(());
    }
    if comm.rank().get() == 0 {
        lost.iter().try_for_each(|lost| comm.give_up(*lost))?;
    }
    let error = comm.barrier().unwrap_err();
    assert!(lost.iter().any(|lost| is_lost(&error, *lost)), "{error}");
    let mut shrunk = comm.shrink()?;
    assert_eq!(shrunk.lost, lost);
    add_up(&mut shrunk.comm)?;
    shrunk.comm.finalize()
}

#[test]
fn ranks_beyond_a_word_do_everything_that_others_do() {
    for n_ranks in MANY {
        job(n_ranks)
            .threads(&test_name(module_path!(), "ranks_beyond_a_word_do_everything_that_others_do"), work);
    }
}

/// In processes: where ranks are threads of one, each of them gets descriptors of all when it goes
/// on. `SHMCCL_LONG=1` takes as many ranks as there can be.
#[test]
fn ranks_on_both_sides_of_a_word_are_lost_and_the_others_go_on() {
    let n_ranks = if support::long() { 256 } else { 66 };
    let name = test_name(module_path!(), "ranks_on_both_sides_of_a_word_are_lost_and_the_others_go_on");
    job(n_ranks).broken().processes(&name, ProxyMode::Thread, go_on);
}
