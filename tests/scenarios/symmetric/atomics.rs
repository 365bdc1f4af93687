//! Atomic operations, by one rank and by many at once.

use shmccl::heap::HeapOffset;
use shmccl::symmetric::IntegerAtom;
use shmccl::{Communicator, Error, Rank, Result, Symmetric};

use crate::harness::{Job, rank};

/// Does all operations on a word of `peer`, and holds each against plain arithmetic.
fn each_operation<T>(all: &Symmetric, peer: Rank, at: HeapOffset, values: [T; 3]) -> Result<()>
where
    T: IntegerAtom
        + std::fmt::Debug
        + std::ops::BitAnd<Output = T>
        + std::ops::BitOr<Output = T>
        + std::ops::BitXor<Output = T>,
    std::num::Wrapping<T>: std::ops::Add<Output = std::num::Wrapping<T>>,
{
    let [a, b, c] = values;
    let sum = |x, y| (std::num::Wrapping(x) + std::num::Wrapping(y)).0;
    all.set(peer, at, a)?;
    assert_eq!((all.fetch::<T>(peer, at)?, all.read::<T>(peer, at)?), (a, a));
    assert_eq!((all.swap(peer, at, b)?, all.fetch(peer, at)?), (a, b));
    assert_eq!((all.compare_swap(peer, at, a, c)?, all.fetch(peer, at)?), (b, b));
    assert_eq!((all.compare_swap(peer, at, b, c)?, all.fetch(peer, at)?), (b, c));
    assert_eq!((all.fetch_add(peer, at, a)?, all.fetch(peer, at)?), (c, sum(c, a)));
    all.set(peer, at, a)?;
    all.add(peer, at, b)?;
    assert_eq!(all.fetch::<T>(peer, at)?, sum(a, b));
    all.set(peer, at, a)?;
    assert_eq!((all.fetch_and(peer, at, b)?, all.fetch_or(peer, at, c)?), (a, a & b));
    assert_eq!((all.fetch_xor(peer, at, a)?, all.fetch(peer, at)?), (a & b | c, (a & b | c) ^ a));
    all.set(peer, at, a)?;
    all.and(peer, at, b)?;
    all.or(peer, at, c)?;
    all.xor(peer, at, a)?;
    assert_eq!(all.fetch::<T>(peer, at)?, (a & b | c) ^ a);
    Ok(())
}

scenario!(each_operation_is_that_of_plain_arithmetic, Job::of(2), |comm| {
    let cells = comm.alloc::<u64>(2)?;
    comm.barrier()?;
    let (all, peer) = (comm.symmetric(), comm.right());
    let at = cells.part(1, 1)?.offset;
    each_operation(&all, peer, at, [0x8000_0000_0000_000f_u64, 0x8000_0000_0000_0035, u64::MAX])?;
    each_operation(&all, peer, at, [i64::MIN, -1, 0x35])?;
    // The upper half of the 8 bytes stays.
    all.set(peer, at, 0x0123_4567_0000_0000_u64)?;
    each_operation(&all, peer, at, [0x8000_000f_u32, 0x8000_0035, u32::MAX])?;
    each_operation(&all, peer, at, [i32::MIN, -1, 0x35])?;
    assert_eq!(all.fetch::<u64>(peer, at)? >> 32, 0x0123_4567);
    all.set(peer, at, 1.5_f64)?;
    assert_eq!((all.fetch_add(peer, at, -2.25_f64)?, all.swap(peer, at, f64::NAN)?), (1.5, -0.75));
    assert!(all.fetch::<f64>(peer, at)?.is_nan());
    // A sum with what is no number ends, too.
    all.add(peer, at, 1.0_f64)?;
    all.set(peer, at, 0.5_f32)?;
    all.add(peer, at, 0.25_f32)?;
    assert_eq!(all.fetch::<f32>(peer, at)?.to_bits(), 0.75_f32.to_bits());
    comm.barrier()?;
    assert_eq!(cells.get(0)?, 0);
});

scenario!(an_offset_that_is_no_multiple_of_the_element_is_an_error, Job::of(2), |comm| {
    let cells = comm.alloc::<u64>(2)?;
    let (all, peer, start) = (comm.symmetric(), comm.right(), cells.region().offset.get());
    for past in 1..8 {
        let at = HeapOffset::new(start + past);
        let refused = all.fetch_add(peer, at, 1_u64);
        assert!(matches!(refused, Err(Error::Misaligned { align: 8, offset, .. }) if offset == start + past));
        assert_eq!(all.fetch::<u32>(peer, at).is_err(), past != 4);
    }
    comm.barrier()?;
    assert_eq!(cells.to_vec(), [0; 2]);
});

/// All ranks change the words of all, in every way, and none of it is lost.
fn contend(comm: &mut Communicator) -> Result<()> {
    const ROUNDS: u64 = 2000;
    let words = comm.alloc::<u64>(8)?;
    let (all, own, n_ranks) = (comm.symmetric(), u64::from(comm.rank().get()), u64::from(comm.n_ranks()));
    let at = |index| words.part(index, 1).unwrap().offset;
    let mut tickets = Vec::new();
    let mut swapped = 0;
    comm.barrier()?;
    for round in 0..ROUNDS {
        // The same order everywhere, so that they meet.
        let peer = rank(comm, u32::try_from(round % n_ranks).unwrap());
        tickets.push((peer, all.fetch_add(peer, at(0), 1_u64)?));
        all.add(peer, at(1), -1_i32)?;
        all.add(peer, HeapOffset::new(at(1).get() + 4), 1_u32)?;
        all.add(peer, at(2), 0.5_f64)?;
        all.xor(peer, at(3), 1_u64 << own)?;
        all.or(peer, at(4), 1_u64 << (own * 8 + round / n_ranks % 8))?;
        all.and(peer, at(5), !(1_u64 << own))?;
        let mut seen = all.fetch::<u64>(peer, at(6))?;
        loop {
            let found = all.compare_swap(peer, at(6), seen, seen + 1)?;
            if found == seen {
                break;
            }
            seen = found;
        }
        swapped += all.swap(peer, at(7), 1 << 40 | own)? >> 40;
    }
    comm.barrier()?;
    let mine = ROUNDS / n_ranks;
    let found = words.to_vec();
    assert_eq!((found[0], found[6]), (mine * n_ranks, mine * n_ranks));
    assert_eq!(
        found[1],
        (mine * n_ranks) << 32 | u64::from((-i32::try_from(mine * n_ranks).unwrap()).cast_unsigned())
    );
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let half = (mine * n_ranks) as f64 / 2.0;
    assert_eq!(f64::from_bits(found[2]).to_bits(), half.to_bits());
    assert_eq!(found[3], if mine.is_multiple_of(2) { 0 } else { (1 << n_ranks) - 1 });
    assert_eq!(found[4].count_ones(), 8 * comm.n_ranks());
    assert_eq!(found[5], 0);
    each_ticket_once(comm, &tickets, mine)?;
    // Each swap but the first of a word has found another's value.
    let total = comm.alloc::<u64>(1)?;
    all.add(rank(comm, 0), total.region().offset, swapped)?;
    comm.barrier()?;
    if own == 0 {
        assert_eq!(total.get(0)?, n_ranks * (mine * n_ranks - 1));
    }
    comm.barrier()
}

/// No two ranks were told the same value of a counter, and none was left out.
fn each_ticket_once(comm: &mut Communicator, tickets: &[(Rank, u64)], mine: u64) -> Result<()> {
    let n_tickets = usize::try_from(mine).unwrap() * comm.n_ranks() as usize;
    let taken = comm.alloc::<u32>(n_tickets)?;
    let all = comm.symmetric();
    for (peer, ticket) in tickets {
        all.add(*peer, taken.part(usize::try_from(*ticket).unwrap(), 1)?.offset, 1_u32)?;
    }
    comm.barrier()?;
    assert!(taken.to_vec().iter().all(|count| *count == 1));
    Ok(())
}

scenario!(four_ranks_at_once_lose_nothing, Job::of(4), |comm| {
    contend(comm)?;
});

scenario!(eight_ranks_at_once_lose_nothing, Job::of(8), |comm| {
    contend(comm)?;
});

scenario!(threads_of_one_rank_share_what_reaches_the_others, Job::of(2), |comm| {
    let count = comm.alloc::<u64>(1)?;
    let (all, peer, at) = (comm.symmetric(), comm.right(), count.region().offset);
    std::thread::scope(|scope| {
        let adding = || (0..1000).for_each(|_| all.add(peer, at, 1_u64).unwrap());
        let threads = [scope.spawn(adding), scope.spawn(adding), scope.spawn(adding)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    comm.barrier()?;
    assert_eq!(count.get(0)?, 3000);
});

/// Publishes data by a flag that `raise` raises.
fn publish(comm: &mut Communicator, raise: impl Fn(&Symmetric, HeapOffset, u64) -> Result<()>) -> Result<()> {
    let cells = comm.alloc::<u64>(65)?;
    let (all, peer, own) = (comm.symmetric(), comm.right(), comm.rank());
    let (data, flag) = (cells.part(0, 64)?.offset, cells.part(64, 1)?.offset);
    for round in 1..300_u64 {
        all.put(peer, data, &[round; 64])?;
        raise(&all, flag, round)?;
        while all.fetch::<u64>(own, flag)? != round {
            std::thread::yield_now();
        }
        let mut got = [0; 64];
        all.get(own, data, &mut got)?;
        assert_eq!(got, [round; 64]);
        comm.barrier()?;
    }
    Ok(())
}

scenario!(a_flag_that_is_set_publishes_what_was_written_before, Job::of(2), |comm| {
    let peer = comm.right();
    publish(comm, |all, flag, round| all.set(peer, flag, round))?;
});

scenario!(
    /// As programs of OpenSHMEM do.
    a_plain_write_behind_a_fence_publishes_what_was_written_before,
    Job::of(2),
    |comm| {
        let peer = comm.right();
        publish(comm, |all, flag, round| {
            all.fence();
            all.write(peer, flag, round)
        })?;
    }
);

/// The memory of a rank outlives it.
mod atomics_on_the_heap_of_a_dead_rank_go_on {
    use shmccl::bootstrap::ProxyMode;
    use shmccl::launch::Launch;
    use std::time::Duration;

    use super::*;
    use crate::harness::{VICTIMS_CODE, Watchdog, check_exit_of, is_lost, test_name, this_test};

    #[test]
    fn processes() {
        let name = test_name(module_path!(), "processes");
        let _watchdog = Watchdog::start(&name, Duration::from_secs(60));
        let launch = Launch::new(3).unwrap().program(this_test(&name)).proxy(ProxyMode::Thread);
        let victim = Rank::new(1, 3).unwrap();
        let role = launch.capture_output(true).run(|comm| {
            let count = comm.alloc::<u64>(1)?;
            let (all, at) = (comm.symmetric(), count.region().offset);
            all.add(victim, at, 1_u64)?;
            comm.barrier()?;
            if comm.rank() == victim {
                std::process::exit(VICTIMS_CODE);
            }
            let error = comm.barrier().unwrap_err();
            assert!(is_lost(&error, victim), "{error}");
            let before = all.fetch_add(victim, at, 10_u64)?;
            assert!([3, 13].contains(&before), "{before}");
            all.write(victim, at, 0_u64)?;
            Err(error)
        });
        check_exit_of(victim, role);
    }
}
