//! Locks in the heap: one holder at a time, in turns, whatever becomes of the one before.

use std::time::Duration;

use shmccl::heap::HeapOffset;
use shmccl::symmetric::{Acquired, LockWord};
use shmccl::sync::AtomicWord;
use shmccl::{Communicator, Error, Rank, Result, Symmetric};

use crate::harness::{Job, leave_together, meet_at_last, rank};

const SHORT: Duration = Duration::from_millis(50);

/// Adds one to a word, not atomically.
fn count_up(all: &Symmetric, home: Rank, at: HeapOffset) -> Result<()> {
    let count: u64 = all.read(home, at)?;
    std::thread::yield_now();
    all.write(home, at, count + 1)
}

/// All ranks count under locks of several ranks, by waiting and by polling.
fn count_in_turns(comm: &mut Communicator, rounds: u64) -> Result<()> {
    let words = comm.alloc::<u64>(2)?;
    let (all, n_ranks) = (comm.symmetric(), u64::from(comm.n_ranks()));
    let (lock, count) = (words.region().offset, words.part(1, 1)?.offset);
    for round in 0..rounds {
        let home = rank(comm, u32::try_from(round % n_ranks.min(2)).unwrap());
        if round % 3 == 0 {
            while all.try_lock(home, lock)?.is_none() {}
        } else {
            assert_eq!(all.lock(home, lock)?, Acquired::Clean);
        }
        count_up(&all, home, count)?;
        all.unlock(home, lock)?;
    }
    comm.barrier()?;
    let homes = n_ranks.min(2);
    let own = u64::from(comm.rank().get());
    let expected = if own < homes { n_ranks * ((rounds + homes - 1 - own) / homes) } else { 0 };
    assert_eq!(words.to_vec(), [0, expected]);
    comm.barrier()
}

scenario!(two_ranks_lose_no_count_under_a_lock, Job::of(2), |comm| {
    count_in_turns(comm, 1000)?;
});

scenario!(eight_ranks_lose_no_count_under_a_lock, Job::of(8), |comm| {
    count_in_turns(comm, 60)?;
});

scenario!(
    /// More of them than have a place to be handed the lock.
    threads_of_a_rank_take_turns_too,
    Job::of(2),
    |comm| {
        let words = comm.alloc::<u64>(2)?;
        let (all, home) = (comm.symmetric(), rank(comm, 0));
        let (lock, count) = (words.region().offset, words.part(1, 1)?.offset);
        std::thread::scope(|scope| {
            let counting = || {
                for _ in 0..20 {
                    all.lock(home, lock).unwrap();
                    count_up(&all, home, count).unwrap();
                    all.unlock(home, lock).unwrap();
                }
            };
            let threads: Vec<_> = (0..10).map(|_| scope.spawn(counting)).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        comm.barrier()?;
        let expected = if comm.rank() == home { [0, 400] } else { [0, 0] };
        assert_eq!(words.to_vec(), expected);
    }
);

scenario!(turns_go_round_however_eager_a_rank_is, Job::of(4), |comm| {
    let words = comm.alloc::<u64>(102)?;
    let (all, home, own) = (comm.symmetric(), rank(comm, 0), u64::from(comm.rank().get()));
    let at = |index| words.part(index, 1).unwrap().offset;
    let (lock, next) = (at(0), at(1));
    if own == 0 {
        all.lock(home, lock)?;
    }
    comm.barrier()?;
    if own == 0 {
        // The others have a wish each by then.
        std::thread::park_timeout(Duration::from_millis(30));
        all.unlock(home, lock)?;
    }
    for _ in 0..if own == 0 { 0 } else { 20 } {
        all.lock(home, lock)?;
        let turn: u64 = all.read(home, next)?;
        all.write(home, at(usize::try_from(turn).unwrap() + 2), own)?;
        all.write(home, next, turn + 1)?;
        // Whoever comes back at once finds the others waiting.
        std::thread::park_timeout(Duration::from_millis(2));
        all.unlock(home, lock)?;
    }
    comm.barrier()?;
    if own == 0 {
        let turns = words.to_vec();
        // No rank gets a second turn before each of the others had one.
        let is_fair = |window: &[u64]| window[0] != window[1] || window[0] == 0;
        assert!(turns[2..42].windows(2).all(is_fair), "{turns:?}");
    }
});

scenario!(a_lock_that_is_held_is_refused_and_times_out, Job::of(2).timeout(SHORT).broken(), |comm| {
    let word = comm.alloc::<u64>(1)?;
    let (all, home, at) = (comm.symmetric(), rank(comm, 1), word.region().offset);
    comm.barrier()?;
    if comm.rank().get() == 0 {
        assert_eq!(all.lock(home, at)?, Acquired::Clean);
        assert_eq!(all.try_lock(home, at)?, None);
        // Once more by the same thread is a wait without an end.
        let error = all.lock(home, at).unwrap_err();
        assert!(matches!(error, Error::Timeout { operation: "lock", .. }), "{error}");
        all.unlock(home, at)?;
    }
    // This one may be handed the lock as it gives up.
    while let Err(error) = all.lock(home, at) {
        assert!(matches!(error, Error::Timeout { operation: "lock", .. }), "{error}");
    }
    all.unlock(home, at)?;
    meet_at_last(comm);
    assert_eq!(all.fetch::<u64>(home, at)?, 0);
    leave_together(comm);
});

scenario!(only_whoever_holds_a_lock_lets_it_go, Job::of(2), |comm| {
    let words = comm.alloc::<u64>(2)?;
    let (all, home, at) = (comm.symmetric(), rank(comm, 0), words.region().offset);
    let is_foreign = |result: Result<()>| matches!(result, Err(Error::InvalidArgument { name: "lock", .. }));
    assert!(is_foreign(all.unlock(home, at)));
    comm.barrier()?;
    if comm.rank() == home {
        assert_eq!(all.try_lock(home, at)?, Some(Acquired::Clean));
    }
    comm.barrier()?;
    if comm.rank() == home {
        all.unlock(home, at)?;
    } else {
        assert!(is_foreign(all.unlock(home, at)) || all.fetch::<u64>(home, at)? == 0);
    }
    let odd = HeapOffset::new(at.get() + 4);
    assert!(matches!(all.lock(home, odd), Err(Error::Misaligned { .. })));
    let end = HeapOffset::new(comm.heap_usage().len);
    assert!(matches!(all.try_lock(home, end), Err(Error::OutOfRange { .. })));
    comm.barrier()?;
});

scenario!(ranks_of_a_part_share_a_lock_with_all, Job::of(3), |comm| {
    let words = comm.alloc::<u64>(2)?;
    let (lock, count) = (words.region().offset, words.part(1, 1)?.offset);
    let color = u32::from(comm.rank().get() == 0);
    let part = comm.split(Some(color), 0)?.unwrap();
    // Rank 2 of all is number 1 of its part, and its heap is the same one.
    let home = rank(comm, 2);
    let in_part = Rank::new(part.n_ranks() - 1, part.n_ranks())?;
    let (all, home) = match comm.rank().get() {
        0 => (comm.symmetric(), home),
        _ => (part.symmetric(), in_part),
    };
    for _ in 0..200 {
        all.lock(home, lock)?;
        count_up(&all, home, count)?;
        all.unlock(home, lock)?;
    }
    comm.barrier()?;
    assert_eq!(words.to_vec(), if comm.rank().get() == 2 { [0, 600] } else { [0, 0] });
    drop(part);
});

scenario!(a_lock_may_be_any_word_that_all_ranks_have_mapped, Job::of(3), |comm| {
    const TURNS: u64 = 100;
    let words = comm.alloc::<u64>(2)?;
    let (all, home) = (comm.symmetric(), comm.span(rank(comm, 0), words.region())?);
    let [word, count] = home.atomics_u64(0, 2)? else { unreachable!("two were asked for") };
    let lock = LockWord { word, name: 7 };
    for turn in 0..TURNS {
        if turn % 3 > 0 {
            all.lock_word(lock)?;
        } else {
            while all.try_lock_word(lock)?.is_none() {}
        }
        count.set(count.fetch() + 1);
        all.unlock_word(lock)?;
    }
    assert!(matches!(all.unlock_word(lock), Err(Error::InvalidArgument { name: "lock", .. })));
    for name in [0, 1 << 63, u64::MAX] {
        let unnamed = LockWord { name, ..lock };
        for refused in [all.lock_word(unnamed).map(drop), all.unlock_word(unnamed)] {
            assert!(matches!(refused, Err(Error::InvalidArgument { name: "name of a lock", .. })));
        }
    }
    comm.barrier()?;
    assert_eq!(count.fetch(), 3 * TURNS);
});

/// A rank that dies with a lock leaves it to the next one, which is told.
mod a_lock_outlives_its_holder {
    use shmccl::bootstrap::ProxyMode;
    use shmccl::launch::Launch;

    use super::*;
    use crate::harness::{VICTIMS_CODE, Watchdog, check_exit_of, is_lost, test_name, this_test};

    #[test]
    fn processes() {
        let name = test_name(module_path!(), "processes");
        let _watchdog = Watchdog::start(&name, Duration::from_secs(60));
        let launch = Launch::new(3).unwrap().program(this_test(&name)).proxy(ProxyMode::Thread);
        let victim = Rank::new(1, 3).unwrap();
        let role = launch.capture_output(true).run(|comm| {
            let words = comm.alloc::<u64>(2)?;
            let (all, home) = (comm.symmetric(), rank(comm, 0));
            let (lock, count) = (words.region().offset, words.part(1, 1)?.offset);
            if comm.rank() == victim {
                all.lock(home, lock)?;
                all.write(home, count, 7_u64)?;
            }
            comm.barrier()?;
            if comm.rank() == victim {
                // One of the others waits by then, or both.
                std::thread::park_timeout(Duration::from_millis(20));
                std::process::exit(VICTIMS_CODE);
            }
            // It is recovered once, and clean for the one behind; or that one hears of the death.
            match all.lock(home, lock) {
                Ok(acquired) => {
                    let before: u64 = all.read(home, count)?;
                    assert_eq!(acquired == Acquired::Recovered, before == 7, "{before}");
                    all.write(home, count, before + 1)?;
                    all.unlock(home, lock)?;
                }
                Err(error) => assert!(is_lost(&error, victim), "{error}"),
            }
            let error = comm.barrier().unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            let found: u64 = all.read(home, count)?;
            assert!([7, 8, 9].contains(&found), "{found}");
            Err(error)
        });
        check_exit_of(victim, role);
    }
}
