//! Members and newcomers that come together. The newcomers are threads of the first member's
//! process.

use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Rank, Result, UniqueId};

use crate::harness::Job;

const PATIENCE: Duration = Duration::from_secs(20);

/// What a newcomer is and brings back.
type Newcomer = JoinHandle<Result<u64>>;

/// Makes an id, and `count` newcomers that join by it and do `then`.
fn invite(count: usize, then: fn(Communicator) -> Result<u64>) -> Result<(UniqueId, Vec<Newcomer>)> {
    let id = UniqueId::new()?;
    let join = move || spawn(move || Communicator::join_within(&id, PATIENCE).and_then(then));
    Ok((id, std::iter::repeat_with(join).take(count).collect()))
}

/// Adds up what each rank of `comm` brings: one bit.
fn sum(comm: &mut Communicator) -> Result<u64> {
    let mut sum = [1 << comm.rank().get()];
    comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    Ok(sum[0])
}

fn add_up_and_leave(mut comm: Communicator) -> Result<u64> {
    let sum = sum(&mut comm)?;
    comm.finalize()?;
    Ok(sum)
}

scenario!(
    members_keep_their_ranks_newcomers_get_those_behind_and_the_old_communicator_lives_on,
    Job::of(2).heap_len(32 << 20),
    |comm| {
        let old = comm.alloc::<u64>(100)?;
        old.fill(7 + u64::from(comm.rank().get()));
        comm.barrier()?;
        let is_host = comm.rank().get() == 0;
        let (id, newcomers) =
            if is_host { invite(2, add_up_and_leave)? } else { invite(0, add_up_and_leave)? };
        let mut grown = comm.grow(4, is_host.then_some(&id))?;
        assert_eq!((grown.n_ranks(), grown.rank()), (4, comm.rank()));
        assert_eq!(sum(&mut grown)?, 0b1111);
        // Both are used in turns.
        assert_eq!(sum(comm)?, 0b11);
        assert_eq!(comm.span(comm.right(), old.region())?.read::<u64>(0)?, 8 - u64::from(comm.rank().get()));
        grown.finalize()?;
        for newcomer in newcomers {
            assert_eq!(newcomer.join().unwrap()?, 0b1111);
        }
        assert_eq!(sum(comm)?, 0b11);
    }
);

scenario!(
    what_has_grown_grows_again_and_goes_on_without_whoever_leaves,
    Job::of(2).heap_len(16 << 20),
    |comm| {
        let is_host = comm.rank().get() == 0;
        // The newcomer of the first time is a member of the second, and its thread ends with that.
        fn take_part(mut comm: Communicator) -> Result<u64> {
            let mut grown = comm.grow(4, None)?;
            let sum = sum(&mut grown)?;
            drop(grown);
            Ok(sum)
        }
        fn stay(mut comm: Communicator) -> Result<u64> {
            let before = sum(&mut comm)?;
            let shrunk = comm.shrink()?;
            let mut on = shrunk.comm;
            assert_eq!(shrunk.lost.len(), 1);
            let after = sum(&mut on)?;
            on.finalize()?;
            Ok(before << 8 | after)
        }
        let (id, first) = invite(usize::from(is_host), take_part)?;
        let mut three = comm.grow(3, is_host.then_some(&id))?;
        let (id, second) = invite(usize::from(is_host), stay)?;
        let four = three.grow(4, is_host.then_some(&id))?;
        let both = stay(four)?;
        assert_eq!(both, 0b1111 << 8 | 0b111);
        for newcomer in first {
            assert_eq!(newcomer.join().unwrap()?, 0b1111);
        }
        for newcomer in second {
            assert_eq!(newcomer.join().unwrap()?, both);
        }
    }
);

scenario!(
    members_that_do_not_agree_on_growing_are_all_told_and_nothing_has_changed,
    Job::of(2).heap_len(16 << 20),
    |comm| {
        let own = u64::from(comm.rank().get());
        let id = UniqueId::new()?;
        let differ = comm.grow(3 + comm.rank().get(), Some(&id)).unwrap_err();
        assert!(
            matches!(differ, Error::Mismatch { mine, theirs, .. } if (mine, theirs) == (3 + own, 4 - own)),
            "{differ}"
        );
        let two_ids = comm.grow(3, Some(&id)).unwrap_err();
        assert!(matches!(two_ids, Error::Mismatch { what: "the unique id to grow by", .. }), "{two_ids}");
        let no_id = comm.grow(3, None).unwrap_err();
        assert!(matches!(no_id, Error::Unavailable { operation: "grow", .. }), "{no_id}");
        for n_ranks in [0, 2, 257] {
            let refused = comm.grow(n_ranks, Some(&id)).unwrap_err();
            assert!(matches!(refused, Error::InvalidArgument { name: "n_ranks", .. }), "{refused}");
        }
        assert_eq!(sum(comm)?, 0b11);
    }
);

scenario!(
    newcomers_that_do_not_come_are_named_and_the_communicator_can_be_used_further,
    Job::of(2).heap_len(16 << 20).timeout(Duration::from_secs(5)),
    |comm| {
        let is_host = comm.rank().get() == 0;
        let id = UniqueId::new()?;
        let missed = comm.grow(3, is_host.then_some(&id)).unwrap_err();
        // A host that is held up does not tell the other one in time.
        let is_named = |awaited: Option<Rank>| awaited.map_or(!is_host, |rank| rank.get() == 2);
        assert!(matches!(missed, Error::Timeout { awaited, .. } if is_named(awaited)), "{missed}");
        comm.barrier()?;
        // Nobody comes any more, and the id is used up for the members too.
        let over = comm.grow(3, is_host.then_some(&id)).unwrap_err();
        assert!(matches!(over, Error::NoMeeting { .. }), "{over}");
        assert_eq!(sum(comm)?, 0b11);
    }
);

scenario!(a_communicator_of_some_ranks_grows_without_the_others, Job::of(3).heap_len(32 << 20), |comm| {
    let pair = comm.split((comm.rank().get() != 1).then_some(0), 0)?;
    if let Some(mut pair) = pair {
        let is_host = pair.rank().get() == 1;
        let (id, newcomers) = invite(usize::from(is_host), add_up_and_leave)?;
        let mut grown = pair.grow(3, is_host.then_some(&id))?;
        assert_eq!((grown.rank(), sum(&mut grown)?), (pair.rank(), 0b111));
        grown.finalize()?;
        for newcomer in newcomers {
            assert_eq!(newcomer.join().unwrap()?, 0b111);
        }
        pair.finalize()?;
    }
    assert_eq!(sum(comm)?, 0b111);
});
