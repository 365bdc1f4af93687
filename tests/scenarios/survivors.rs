//! Going on after a loss, where nobody dies: members that leave, that are given up, and epochs that
//! are revoked.

use std::time::{Duration, Instant};

use shmccl::channel::Channel;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Rank, Result};

use crate::harness::{Job, is_lost, rank};

/// Adds up what each rank of `comm` brings.
fn sum(comm: &mut Communicator, mine: u64) -> Result<u64> {
    let mut sum = [mine];
    comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    Ok(sum[0])
}

scenario!(
    members_go_on_without_one_that_has_left_and_still_read_its_heap,
    Job::of(3).heap_len(32 << 20).broken(),
    |comm| {
        let old = comm.alloc::<u64>(1000)?;
        old.fill(100 + u64::from(comm.rank().get()));
        comm.barrier()?;
        if comm.rank().get() == 1 {
            return Ok(());
        }
        let mut shrunk = comm.shrink()?;
        assert_eq!(shrunk.lost, [rank(comm, 1)]);
        let on = &mut shrunk.comm;
        assert_eq!((on.n_ranks(), on.rank().get()), (2, comm.rank().get() / 2));
        assert_eq!(sum(on, 1 << comm.rank().get())?, 0b101);
        let of_lost = comm.span(rank(comm, 1), old.region())?;
        assert_eq!(of_lost.read::<u64>(8 * 999)?, 101, "what it has left can be read");
        assert!(on.alloc::<u64>(1000)?.to_vec().iter().all(|word| *word == 0), "the new heap is fresh");
        shrunk.comm.finalize()?;
    }
);

scenario!(
    all_go_on_from_an_epoch_that_one_of_them_has_revoked_as_often_as_they_like,
    Job::of(3).heap_len(16 << 20).broken(),
    |comm| {
        let mut now = comm.shrink()?.comm;
        for round in 0..4 {
            assert_eq!(sum(&mut now, 1)?, 3);
            let mut channel = now.memory_channel(now.right())?;
            if now.rank().get() == round % 3 {
                now.revoke();
            }
            let error = channel.wait().unwrap_err();
            assert!(matches!(error, Error::Revoked { .. }), "{error}");
            let shrunk = now.shrink()?;
            assert_eq!(shrunk.lost, [] as [Rank; 0]);
            now = shrunk.comm;
        }
        assert_eq!(sum(&mut now, 2)?, 6);
        now.finalize()?;
    }
);

scenario!(
    what_ended_an_epoch_once_cannot_be_gone_on_from_twice,
    Job::of(2).heap_len(32 << 20).broken(),
    |comm| {
        let mut twin = comm.duplicate()?;
        let refused = twin.shrink().unwrap_err();
        assert!(matches!(refused, Error::Unavailable { operation: "shrink", .. }), "{refused}");
        comm.barrier()?;
        let on = comm.shrink()?.comm;
        let refused = comm.shrink().unwrap_err();
        assert!(matches!(refused, Error::Unavailable { operation: "shrink", .. }), "{refused}");
        on.finalize()?;
    }
);

scenario!(
    a_member_that_does_not_come_is_named_and_can_be_given_up,
    Job::of(3).heap_len(16 << 20).timeout(Duration::from_secs(2)).broken(),
    |comm| {
        let released = comm.alloc::<u64>(1)?.part(0, 1)?.offset;
        let words = comm.symmetric();
        comm.barrier()?;
        let hangs = rank(comm, 2);
        if comm.rank() == hangs {
            // As the others see it.
            let began = Instant::now();
            while words.fetch::<u64>(hangs, released)? == 0 {
                assert!(began.elapsed() < Duration::from_secs(40), "nobody has gone on without it");
                std::thread::yield_now();
            }
            let error = comm.shrink().unwrap_err();
            assert!(matches!(error, Error::Excluded), "{error}");
            return Ok(());
        }
        let shrunk = loop {
            match comm.shrink() {
                Ok(shrunk) => break shrunk,
                // Or the other one has given it up before.
                Err(Error::Timeout { awaited, .. }) if awaited == Some(hangs) => comm.give_up(hangs)?,
                // The other one was late.
                Err(Error::Timeout { .. }) => {}
                Err(error) => return Err(error),
            }
        };
        assert_eq!(shrunk.lost, [hangs]);
        words.set(hangs, released, 1_u64)?;
        shrunk.comm.finalize()?;
    }
);

scenario!(
    whoever_is_given_up_is_lost_to_all_and_is_told_that_it_is_left_behind,
    Job::of(3).heap_len(16 << 20).broken(),
    |comm| {
        let given_up = rank(comm, 2);
        comm.barrier()?;
        if comm.rank().get() == 0 {
            let own = comm.give_up(comm.rank()).unwrap_err();
            assert!(matches!(own, Error::InvalidArgument { name: "rank", .. }), "{own}");
            comm.give_up(given_up)?;
        }
        // Its signals come from nobody.
        let error = comm.memory_channel(comm.right())?.wait().unwrap_err();
        assert!(is_lost(&error, given_up), "{error}");
        if comm.rank() == given_up {
            let error = comm.shrink().unwrap_err();
            assert!(matches!(error, Error::Excluded), "{error}");
            return Ok(());
        }
        let shrunk = comm.shrink()?;
        assert_eq!(shrunk.lost, [given_up]);
        shrunk.comm.finalize()?;
    }
);

scenario!(
    nobody_is_brought_back_where_no_launcher_starts_ranks_again,
    Job::of(2).heap_len(16 << 20),
    |comm| {
        comm.on_recovery(|recovery| panic!("there was none: {recovery:?}"));
        let refused = comm.recover(7).unwrap_err();
        assert!(
            matches!(refused, Error::Unavailable { operation: "recover", needs } if needs.contains("--restart")),
            "{refused}"
        );
        assert!(!comm.was_restarted());
        assert_eq!(sum(comm, 1)?, 2, "nothing has changed");
    }
);
