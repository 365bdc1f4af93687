//! Ranks that are told how many cores to count on, however many there are.

use std::num::NonZeroU32;
use std::time::Duration;

use shmccl::bootstrap::Options;
use shmccl::{Collectives, Communicator, Group, Result, UniqueId};

use crate::harness::{Job, Watchdog, rank};
use crate::tuning::everything;

scenario!(
    ranks_that_are_told_of_a_core_each_are_not_oversubscribed_whatever_becomes_of_them,
    Job::of(5).cores(5).heap_len(32 << 20).broken(),
    |comm| {
        assert!(!comm.is_oversubscribed()?);
        assert!(!comm.duplicate()?.is_oversubscribed()?);
        if comm.rank().get() == 1 {
            return Ok(());
        }
        let mut on = comm.shrink()?.comm;
        assert!(!on.is_oversubscribed()?, "four of them on five cores");
        on.finalize()?;
    }
);

scenario!(
    ranks_that_are_told_of_one_core_are_oversubscribed_whatever_becomes_of_them,
    Job::of(3).cores(1).heap_len(32 << 20).broken(),
    |comm| {
        assert!(comm.is_oversubscribed()?);
        assert!(comm.duplicate()?.is_oversubscribed()?);
        if comm.rank().get() == 1 {
            return Ok(());
        }
        let mut on = comm.shrink()?.comm;
        assert!(on.is_oversubscribed()?, "two of them on one core");
        on.finalize()?;
    }
);

scenario!(ranks_with_a_core_each_do_everything, Job::of(3).cores(3).heap_len(32 << 20), |comm| {
    everything(comm)?;
});

/// Sends messages around the length from which a receiver gets them from the sender's heap. Some of
/// these ranks do so from a shorter length on than others.
fn messages(comm: &mut Communicator) -> Result<()> {
    let (me, n) = (comm.rank().get(), comm.n_ranks());
    for len in [1_u32, 4000, 20_000, 60_000, 200_000] {
        let (sent, received) = (comm.alloc::<u32>(len as usize)?, comm.alloc::<u32>((n * len) as usize)?);
        sent.fill(me * 1000 + len);
        let places =
            (0..n).map(|peer| comm.buffer::<u32>(received.part((peer * len) as usize, len as usize)?));
        let places = places.collect::<Result<Vec<_>>>()?;
        let peers: Vec<_> = (0..n).map(|peer| rank(comm, peer)).collect();
        let mut group = Group::start();
        let joined = group.join(comm);
        for (place, peer) in places.iter().zip(peers) {
            group.on(joined).send(&sent, peer)?;
            group.on(joined).recv(place, peer)?;
        }
        group.end()?;
        let all = received.to_vec();
        for (peer, got) in (0..).zip(all.chunks(len as usize)) {
            assert!(got.iter().all(|word| *word == peer * 1000 + len), "{len} of {peer}");
        }
        comm.free(sent)?;
        comm.free(received)?;
    }
    Ok(())
}

#[test]
fn ranks_that_are_told_of_different_numbers_of_cores_go_the_same_ways() {
    let _watchdog = Watchdog::start("different cores", Duration::from_secs(60));
    let id = UniqueId::new().unwrap();
    let id = &id;
    let member = |rank: u32, cores: u32| -> Result<()> {
        let options = Options {
            heap_len: 32 << 20,
            timeout: Duration::from_secs(20),
            cores: NonZeroU32::new(cores),
            ..Options::default()
        };
        let mut comm = Communicator::init_rank_with(3, id, rank, &options)?;
        assert!(comm.is_oversubscribed()?, "one of them is");
        messages(&mut comm)?;
        everything(&mut comm)?;
        comm.finalize()
    };
    let member = &member;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..).zip([3, 1, 7]).map(|(rank, cores)| scope.spawn(move || member(rank, cores))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
}
